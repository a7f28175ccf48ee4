"""Kafka: the lines as records of a topic, in the mock cluster that librdkafka brings along.

The cluster keeps 5 MiB of a partition, as they come over the wire, and drops what is older: so they are packed as small
as may be, and what does not fit is refused. A record's key says which line it is; who checks goes by its offset.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import numpy as np
import pyarrow as pa

from acker_client.source import Kafka, Ranges
from acker_command.demo.errors import DemoError
from acker_command.demo.expected import Ints
from acker_command.demo.inputs.demo_input import SourceInput, SourceOptions
from acker_command.demo.inputs.embedded import embedded

TOPIC = "lines"
# As many as the cluster gives a topic.
PARTITIONS = 4
TIMEOUT_S = 60.0
# In order and once each, so that an offset says which line it is.
PRODUCER = {"enable.idempotence": True, "compression.type": "zstd", "linger.ms": 50, "log_level": 0}

_PROGRAM = """
import sys
from confluent_kafka import Producer

owner = Producer({"test.mock.num.brokers": 2, "log_level": 0})
brokers = owner.list_topics(timeout=10).brokers.values()
print(",".join(f"{broker.host}:{broker.port}" for broker in brokers), flush=True)
sys.stdin.read()
"""


class KafkaLines(SourceInput):
    """Partitions in turn: the n-th line is at offset ``n // PARTITIONS`` of partition ``n % PARTITIONS``."""

    packages = ("confluent_kafka",)
    install = "pip install 'acker[kafka]'"
    columns = (
        "value",
        "substr(string(key), instr(string(key), ':') + 1) AS path",
        "bigint(substring_index(string(key), ':', 1)) AS line",
    )
    _servers = ""

    @property
    def place(self) -> str:
        return f"a topic of {PARTITIONS} partitions (librdkafka's mock of Kafka, two brokers)"

    def begin(self, exits: ExitStack) -> None:
        self._servers = exits.enter_context(embedded(_PROGRAM, self.folder / "kafka.log"))
        self._produce()
        if [self._watermarks(partition) for partition in range(PARTITIONS)] != [(0, count) for count in self._counts]:
            raise DemoError(
                f"--source kafka: {self.text.records:,} lines are more than the mock cluster holds (20 MiB, packed);"
                " give --records N with fewer"
            )

    def source(self, options: SourceOptions) -> Kafka:
        return Kafka(TOPIC, bootstrap_servers=self._servers, stop="end", **options)

    def records(self, origins: pa.RecordBatch) -> Ints:
        offsets, partitions = (origins.column(name).to_numpy().astype(np.int64) for name in ("offset", "partition"))
        records: Ints = offsets * PARTITIONS + partitions
        return records

    def is_at_end(self) -> bool:
        """Whether every offset is done."""
        done = {name: Ranges.from_runs(each["done"]).prefix for name, each in self._saved().items()}
        return all(done.get(f"{TOPIC}/{partition}", 0) == count for partition, count in enumerate(self._counts))

    @property
    def _counts(self) -> list[int]:
        """Lines of each partition."""
        return [len(range(partition, self.text.records, PARTITIONS)) for partition in range(PARTITIONS)]

    def _produce(self) -> None:
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self._servers, **PRODUCER})
        for record, (path, line, content) in enumerate(self.text.lines()):
            _send(producer, content, f"{line}:{path}", record % PARTITIONS)
        if left := producer.flush(TIMEOUT_S):
            raise DemoError(f"the mock cluster of Kafka did not take {left:,} of the lines within {TIMEOUT_S:g} s")

    def _watermarks(self, partition: int) -> tuple[int, int]:
        """(first offset that is there, next one to be written)."""
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({"bootstrap.servers": self._servers, "group.id": "watermarks", "log_level": 0})
        try:
            low, high = consumer.get_watermark_offsets(TopicPartition(TOPIC, partition), timeout=TIMEOUT_S)
        finally:
            consumer.close()
        return low, high


def _send(producer: Any, value: bytes, key: str, partition: int) -> None:
    """Hand a record to ``producer``, once it has room."""
    while True:
        try:
            producer.produce(TOPIC, value, key, partition=partition)
        except BufferError:
            producer.poll(0.1)
        else:
            return
