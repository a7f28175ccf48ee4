"""Trees that span two jobs, on a real Spark with a real server and librdkafka's mock cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from acker_client.source import Batch, Files, Kafka, Retry, hand_on
from acker_client.spark import Collector, Refused, functions, group, operator, sink
from acker_client.spark.commit_evidence.batch import NotHeld
from tests.source.executors import Log
from tests.source.kafka_broker import MockKafka


@operator("word string, value string")
def words(row: Row) -> Any:
    for word in row.value.split():
        yield word[0], word


@group("word", "word string, value string")
def joined(rows: pa.Table) -> Any:
    together = " ".join(sorted(rows["value"].to_pylist()))
    return pa.table({"word": rows["word"][:1].to_pylist(), "value": [together]}), "all"


def files(folder: Path, *lines: str, **options: Any) -> Files:
    (folder / "in.txt").write_text("".join(f"{line}\n" for line in lines))
    retry = Retry(max_retries=1, initial_s=0.01, cap_s=0.01)
    return Files(f"{folder}/in.txt", name="first", retry=retry, max_dead_share=1.0, **options)


@pytest.mark.long
def test_lines_are_acked_when_the_words_that_were_grouped_of_them_are_written_by_the_second_job(
    connected: SparkSession, kafka: MockKafka, tmp_path: Path
) -> None:
    topic, log = kafka.new_topic(prefix="words"), Log()
    hand = hand_on(topic, bootstrap_servers=kafka.servers, key="word")
    written: list[str] = []

    @sink
    def save(rows: DataFrame) -> None:
        written.extend(bytes(row.value).decode() for row in rows.collect())

    def first(batch: Batch) -> None:
        hand(batch.df.transform(words).transform(joined))
        assert log.acked == []
        second = Kafka(
            topic,
            bootstrap_servers=kafka.servers,
            name="second",
            acks_upstream=True,
            first_poll="earliest",
            stop="end",
        )
        second.run(connected, lambda batch: save(batch.df))

    source = files(tmp_path, "one two", "three", "of", held=False, message_timeout_s=60.0, listener=log)
    summary = source.run(connected, first)
    assert (summary.acked, summary.failed, summary.lost, summary.batches) == (3, 0, 0, 1)
    assert sorted(written) == ["of one", "three two"]


def test_what_would_be_acked_before_spark_has_written_it_is_refused_and_so_is_a_hand_on_of_a_held_batch(
    connected: SparkSession, tmp_path: Path
) -> None:
    hand = hand_on("nowhere", bootstrap_servers="localhost:1")

    @sink
    def save(rows: DataFrame) -> None:
        rows.collect()

    def by_ack(batch: Batch) -> None:
        batch.df.select("value", functions.ack()).collect()

    not_held = {"held": False, "message_timeout_s": 60.0}
    for process, options, error, says in (
        (
            lambda batch: save(batch.df),
            not_held,
            NotHeld,
            "sink 'save': these rows are not held.* leave held=False out",
        ),
        (by_ack, not_held, NotHeld, "ack.*: these rows are not held"),
        (lambda batch: hand(batch.df), {}, Refused, "is held"),
        (lambda batch: hand(batch.df.select("_root", "_edge", "line")), not_held, Refused, "no column 'value'"),
    ):
        with pytest.raises(error, match=says):
            files(tmp_path, "one", **options).run(connected, process)


def post(rows: Iterator[Row]) -> None:
    with Collector("post") as out:
        for row in rows:
            if row.kind == "copy":
                out.fail(row, "on purpose")
            else:
                out.ack(row)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda df: df.withColumn("kind", F.lit("main")).union(df.withColumn("kind", F.lit("copy"))),
            "rows of source 'first' reach it twice.*branch",
        ),
        (lambda df: df.join(df.sparkSession.createDataFrame([("main",), ("copy",)], "kind string")), "Join"),
    ],
    ids=["a union", "a join"],
)
def test_copies_of_rows_that_are_not_held_are_refused_before_a_collector_acks_one_of_them(
    connected: SparkSession, tmp_path: Path, change: Any, says: str
) -> None:
    source = files(tmp_path, "one", held=False, message_timeout_s=60.0)
    with pytest.raises(Refused, match=says):
        source.run(connected, lambda batch: change(batch.df).foreachPartition(post))


@pytest.mark.long
def test_another_hand_on_of_the_same_rows_is_refused_as_nobody_would_wait_for_its_messages(
    connected: SparkSession, kafka: MockKafka, tmp_path: Path
) -> None:
    topic = kafka.new_topic(prefix="twice")
    values, paths = (hand_on(topic, bootstrap_servers=kafka.servers, value=column) for column in ("value", "path"))

    def both(batch: Batch) -> None:
        values(batch.df)
        paths(batch.df)

    with pytest.raises(Refused, match="branch"):
        files(tmp_path, "one", held=False, message_timeout_s=60.0).run(connected, both)
