"""The bench for programs, on the Spark session that all Spark tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.pipelines.bench import Bench
from tests.spark import conftest as shared


def pytest_collection_finish(session: pytest.Session) -> None:
    """As for the other Spark tests: Spark starts before any other test opens a gRPC channel."""
    here = os.path.dirname(__file__)
    if any(str(item.path).startswith(here) for item in session.items) and not session.config.option.collectonly:
        shared._session()


@pytest.fixture(scope="session")
def bench() -> Iterator[Bench]:
    with Bench(spark=shared._session()) as made:
        yield made
