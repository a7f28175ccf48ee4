"""Kafka for tests: librdkafka's mock cluster in its own process. That process ends with this one.

``python -m tests.source.kafka_broker BROKERS`` owns the cluster, prints its address, and serves until its standard
input ends. The cluster creates a topic, with four partitions, when a producer asks for its metadata. It has no
compaction, no permissions and no retention by time. It does not support requests to create or delete topics.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self

from confluent_kafka import Consumer, Producer, TopicPartition

from acker_testing import standstill

PARTITIONS = 4
# Only idempotence keeps the order of records over a retry.
PRODUCER = {"enable.idempotence": True, "linger.ms": 1, "log_level": 0}
ROOT = Path(__file__).parents[2]


class MockKafka:
    """A mock cluster. ``servers``: its addresses; ``process``: the process that runs it."""

    def __init__(self, brokers: int = 2) -> None:
        command = [sys.executable, "-m", "tests.source.kafka_broker", str(brokers)]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self.process.stdout is not None
        self.servers = self.process.stdout.readline().strip()
        self._producer = Producer({**PRODUCER, "bootstrap.servers": self.servers})
        self._topics = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()
        self.process.wait(timeout=10)

    def pause(self) -> None:
        """Stop the process at any point of its work. Returns when all of its threads have stopped."""
        standstill.stop_child(self.process)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def new_topic(self, *counts: int, prefix: str = "topic") -> str:
        """Return a new topic. ``counts``: the number of records in each partition: ``0.0``, ``0.1`` and so on."""
        self._topics += 1
        topic = f"{prefix}-{self._topics}"
        self.create(topic)
        for partition, count in enumerate(counts):
            self.write(topic, partition, [f"{partition}.{k}".encode() for k in range(count)])
        return topic

    def create(self, topic: str) -> None:
        while self._producer.list_topics(topic, timeout=10).topics[topic].error is not None:
            """Create the topic by asking for it."""

    def write(self, topic: str, partition: int, values: Sequence[bytes | None], **more: Any) -> None:
        for value in values:
            self.send(topic, partition, value, **more)
        assert self._producer.flush(30) == 0

    def send(self, topic: str, partition: int, value: bytes | None, **more: Any) -> None:
        while True:
            try:
                return self._producer.produce(topic, value, partition=partition, **more)
            except BufferError:
                self._producer.poll(0.1)

    def committed(self, group: str, topic: str) -> dict[int, tuple[int, str]]:
        """Return the group's commits: partition -> (offset, metadata)."""
        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": group})
        asked = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
        answered = consumer.committed(asked, timeout=10)
        consumer.close()
        return {each.partition: (each.offset, each.metadata or "") for each in answered if each.offset >= 0}

    def commit(self, group: str, topic: str, offsets: Iterable[tuple[int, int]], metadata: str = "") -> None:
        """Commit offsets as another program would."""
        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": group})
        made = [TopicPartition(topic, partition, offset, metadata) for partition, offset in offsets]
        consumer.commit(offsets=made, asynchronous=False)
        consumer.close()


def main(brokers: int) -> None:
    owner = Producer({"test.mock.num.brokers": brokers, "log_level": 0})
    print(",".join(f"{each.host}:{each.port}" for each in owner.list_topics(timeout=10).brokers.values()), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(int(sys.argv[1]))
