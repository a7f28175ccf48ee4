"""The switches with what only Kafka has, on a real Spark: decoded values, and the order of a key."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.sql import DataFrame, SparkSession

from acker_client.source import Avro, Batch, Kafka, Retry
from acker_client.spark import sink
from tests.source.executors import Log
from tests.source.kafka_broker import MockKafka
from tests.source.schema_registry import SchemaRegistryServer

SCHEMA = '{"type": "record", "name": "Order", "fields": [{"name": "qty", "type": "int"}]}'

pytestmark = pytest.mark.long


@pytest.fixture
def orders(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Options of a source over ten records with two keys, of which the value of the fifth does not decode."""
    with SchemaRegistryServer() as server, MockKafka() as kafka:
        serialize, topic = AvroSerializer(SchemaRegistryClient({"url": server.url}), SCHEMA), kafka.new_topic()
        for k in range(10):
            value = serialize({"qty": k}, SerializationContext(topic, MessageField.VALUE))
            kafka.write(topic, 0, [b"strange" if k == 4 else value], key=b"ab"[k % 2 : k % 2 + 1])
        yield {
            "topics": topic,
            "bootstrap_servers": kafka.servers,
            "name": topic,
            "stop": "end",
            "values": Avro("qty int", server.url),
            "dead_letters": tmp_path / "dead.jsonl",
            "max_dead_share": 1.0,
            "retry": Retry(max_retries=0, initial_s=0.0),
        }


def saving(seen: list[list[int]]) -> Callable[[Batch], None]:
    @sink
    def save(rows: DataFrame) -> None:
        seen.append(sorted(row.qty for row in rows.select("value.qty").collect()))

    return lambda batch: save(batch.df)


def test_records_are_chosen_by_a_condition_on_their_decoded_values(
    connected: SparkSession, orders: dict[str, Any]
) -> None:
    seen, log = list[list[int]](), Log()
    summary = Kafka(**orders, listener=log, track="value.qty >= 7").run(connected, saving(seen))
    assert seen == [[0, 1, 2, 3, 5, 6, 7, 8, 9]]
    assert (sorted(log.acked), log.dead) == ([7, 8, 9], [4])
    assert (summary.absent, summary.open) == (6, 0)


def test_a_key_stays_in_order_and_a_value_that_does_not_decode_is_a_dead_letter_without_a_server(
    spark: SparkSession, orders: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ACKER_SERVERS", raising=False)
    seen = list[list[int]]()
    source = Kafka(**orders, tracking=False, ordered_by="key", message_timeout_s=300.0)
    summary = source.run(spark, saving(seen))
    assert (summary.acked, summary.dead_lettered, summary.open) == (9, 1, 0)
    for key in (0, 1):
        # Batches that failed are seen by no sink.
        handed = [qty for batch in seen for qty in batch if qty % 2 == key]
        assert handed == [qty for qty in range(key, 10, 2) if qty != 4]
