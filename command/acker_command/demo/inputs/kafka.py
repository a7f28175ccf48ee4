"""Kafka: the lines as records of a topic, in the mock cluster that librdkafka brings along.

The cluster keeps 5 MiB of each partition and drops older records. Compressed records count with their compressed
size. Therefore the lines are compressed, and an input that does not fit is refused. The key of a record is
``line:path``. The verifier identifies a record by its partition and offset, not by this key.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import numpy as np
import pyarrow as pa

from acker_client.source import Kafka
from acker_command.demo import DemoError
from acker_command.demo.corpus import Ints
from acker_command.demo.inputs import DemoInput

TOPIC = "lines"
# Number of partitions of a topic in the mock cluster.
PARTITIONS = 4
TIMEOUT_S = 60.0
# The producer is flushed after this many lines.
FLUSH_RECORDS = 50_000
# Lines are written in order, and each only once, so that an offset identifies a line.
PRODUCER = {"test.mock.num.brokers": 2, "enable.idempotence": True, "compression.type": "zstd", "linger.ms": 50}


class KafkaLines(DemoInput):
    """Partitions in turn: record n is at offset ``n // PARTITIONS`` of partition ``n % PARTITIONS``."""

    packages = ("confluent_kafka",)
    install = "pip install 'acker[kafka]'"
    place = f"a topic of {PARTITIONS} partitions (librdkafka's mock of Kafka, two brokers)"
    columns = (
        "value",
        "substr(string(key), instr(string(key), ':') + 1) AS path",
        "bigint(substring_index(string(key), ':', 1)) AS line",
    )
    servers = ""

    def begin(self, exits: ExitStack) -> None:
        from confluent_kafka import Producer

        # The cluster lives as long as this producer.
        self._producer = producer = Producer({**PRODUCER, "log_level": 0})
        brokers = producer.list_topics(timeout=TIMEOUT_S).brokers.values()
        self.servers = ",".join(f"{broker.host}:{broker.port}" for broker in brokers)
        for record, (path, line, content) in enumerate(self.text.lines()):
            if record % FLUSH_RECORDS == 0:
                producer.flush(TIMEOUT_S)
            producer.produce(TOPIC, content, f"{line}:{path}", partition=record % PARTITIONS)
        producer.flush(TIMEOUT_S)
        if self._watermarks() != [(0, count) for count in self._counts()]:
            raise DemoError(
                f"--source kafka: {self.text.records:,} lines are more than the mock cluster holds (20 MiB, packed);"
                " give --records N with fewer"
            )

    def source(self, **options: Any) -> Kafka:
        return Kafka(TOPIC, bootstrap_servers=self.servers, stop="end", **options)

    def records(self, origins: pa.RecordBatch) -> Ints:
        numbers: Ints = origins["offset"].to_numpy() * PARTITIONS + origins["partition"].to_numpy().astype(np.int64)
        return numbers

    def is_at_end(self) -> bool:
        # `done` is a list of run lengths. The first one is the number of offsets that are done without a gap.
        done = [self.saved().get(f"{TOPIC}/{partition}", {}).get("done") for partition in range(PARTITIONS)]
        return [sum((runs or [0])[:1]) for runs in done] == self._counts()

    def _counts(self) -> list[int]:
        """Return the number of lines in each partition."""
        return [len(range(partition, self.text.records, PARTITIONS)) for partition in range(PARTITIONS)]

    def _watermarks(self) -> list[tuple[int, int]]:
        """Return the first offset that each partition holds, and the next one to be written."""
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": "watermarks", "log_level": 0})
        partitions = [TopicPartition(TOPIC, partition) for partition in range(PARTITIONS)]
        try:
            return [consumer.get_watermark_offsets(partition, timeout=TIMEOUT_S) for partition in partitions]
        finally:
            consumer.close()
