"""Fixture of the bench, on the Spark session that all Spark tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.plain.bench import Bench
from tests.spark import conftest as shared


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start Spark before any test opens a gRPC channel, as for the other Spark tests."""
    shared.start_spark_before(session, Path(__file__).parent)


@pytest.fixture(scope="session")
def bench() -> Iterator[Bench]:
    with Bench(shared._session()) as made:
        yield made
