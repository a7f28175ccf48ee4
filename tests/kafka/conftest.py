"""Fixtures: a real Apache Kafka, for tests that need more than the mock cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kafka.broker import RealKafka, build


@pytest.fixture(scope="session")
def real_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealKafka]:
    """A broker for all tests of this process. Each test creates topics of its own."""
    build()
    broker = RealKafka(tmp_path_factory.mktemp("kafka"))
    yield broker
    broker.close()
