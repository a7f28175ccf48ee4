"""Kafka as a source, on a real Spark with a real server and librdkafka's mock cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession

from acker_client.source import Kafka, Retry
from acker_client.spark import operator, sink
from tests.source.kafka_broker import MockKafka

POISON = 13


@operator("id int, source string, at timestamp, place string")
def orders(row: Row) -> Any:
    order = json.loads(bytes(row.value))
    if order["id"] == POISON:
        raise ValueError("poison")
    (header,) = row.headers
    place = f"{row.partition}:{row.offset}:{bytes(row.key).decode()}"
    yield order["id"], f"{header.key}={bytes(header.value).decode()}", row.timestamp, place


def test_records_of_kafka_are_tracked_one_by_one_and_a_restart_reads_what_came_meanwhile(
    connected: SparkSession, kafka: MockKafka, tmp_path: Path
) -> None:
    topic = kafka.new_topic()

    def write(first: int, last: int) -> None:
        for k in range(first, last):
            value = json.dumps({"id": k}).encode()
            kafka.send(topic, k % 3, value, key=b"k%d" % k, headers=[("from", b"web")], timestamp=1_000 * (k + 1))
        kafka.write(topic, 0, [])

    @sink
    def save(rows: DataFrame) -> None:
        rows.write.mode("append").parquet(f"{tmp_path}/out")

    def run() -> Any:
        source = Kafka(
            topic,
            bootstrap_servers=kafka.servers,
            name="orders",
            checkpoint=tmp_path / "orders.ckpt",
            dead_letters=tmp_path / "dead.jsonl",
            retry=Retry(max_retries=1, initial_s=0.01, cap_s=0.01),
            max_dead_share=1.0,
            batch_records=25,
            stop="end",
        )
        return source.run(connected, lambda batch: save(batch.df.transform(orders)))

    write(0, 60)
    summary = run()
    assert (summary.acked, summary.dead_lettered, summary.open, summary.lost) == (59, 1, 0, 0)
    (letter,) = [json.loads(line) for line in (tmp_path / "dead.jsonl").open()]
    assert (letter["topic"], letter["partition"], letter["offset"], letter["key"]) == (topic, 1, 4, "k13")
    assert (letter["value"], letter["reason"].splitlines()[0]) == ('{"id": 13}', "orders: ValueError: poison")
    write(60, 70)
    assert run().records == 10
    rows = connected.read.parquet(f"{tmp_path}/out").orderBy("id").collect()
    assert [row.id for row in rows] == [k for k in range(70) if k != POISON]
    assert [row.place for row in rows] == [f"{k % 3}:{k // 3}:k{k}" for k in range(70) if k != POISON]
    assert {row.source for row in rows} == {"from=web"}
    assert [row.at.timestamp() for row in rows] == [k + 1 for k in range(70) if k != POISON]
    assert {number: offset for number, (offset, _) in kafka.committed("orders", topic).items()} == {
        0: 24,
        1: 23,
        2: 23,
        3: 0,
    }
