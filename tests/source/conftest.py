"""What tests of sources share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.source.kafka_broker import MockKafka


@pytest.fixture(scope="session")
def kafka() -> Iterator[MockKafka]:
    """A Kafka for all tests of this process; each makes topics of its own."""
    with MockKafka() as cluster:
        yield cluster
