"""One local Spark session for every Spark test, and a batch that a test can open, run and settle in a few lines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from acker_client.spark.session import local_session

HERE = Path(__file__).parent

CONF = {
    "spark.sql.shuffle.partitions": "3",
    "spark.python.worker.reuse": "true",
    "spark.sql.warehouse.dir": "/nonexistent",
}


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start Spark before any other test of this run opens a gRPC channel: a fork beside gRPC's threads may hang."""
    if any(HERE in item.path.parents for item in session.items) and not session.config.option.collectonly:
        _session()


def _session() -> SparkSession:
    spark = local_session("acker-tests", conf=CONF)
    spark.sparkContext.setLogLevel("OFF")
    return spark


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = _session()
    yield session
    session.stop()
