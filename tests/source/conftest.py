"""What tests of sources share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def kafka() -> Iterator[Any]:
    """A Kafka for all tests of this process (a ``MockKafka``); each makes topics of its own."""
    # Not at the top: the other tests of this folder do without the extra.
    from tests.source.kafka_broker import MockKafka

    with MockKafka() as cluster:
        yield cluster
