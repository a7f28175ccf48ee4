"""A real Apache Kafka, for the tests that the mock cluster is not enough for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kafka.broker import RealKafka, build


@pytest.fixture(scope="session")
def real_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealKafka]:
    """A broker for all tests of this process; each makes topics of its own."""
    build()
    broker = RealKafka(tmp_path_factory.mktemp("kafka"))
    yield broker
    broker.close()
