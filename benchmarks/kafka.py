"""Kafka: a job over a topic, tracked and untracked, with the same reader, on a real Apache Kafka and a real server.

All jobs plan the same ranges, batch by batch, read them with the same slices, split the values into words and write
Parquet. They take turns. There are two untracked jobs. One is written as a user writes it without the acker: one
call reads, and one splits. In the other, both calls are fused by hand. The tracked job also opens and settles its
batches, and every record has to be ACKED.

``others_beside_poison_over_without``: one poison record in each partition fails at every try. The figure
is the rate of all other records, over their rate without poison. ``stream``: a query of Structured Streaming over
Spark's own connector, tracked and untracked, as in ``frame``.

    python -m benchmarks.kafka [--quick] [--rounds N]

Prints one JSON object: medians, in seconds and records per second. Needs Maven and a JDK.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from acker_client.source import Chosen, Emissions, Kafka, Listener, Ranges
from acker_client.source.kafka.slices import COLUMNS
from acker_client.spark import arrow_operator, sink
from acker_client.spark.driver.session import local_session
from benchmarks import frame
from benchmarks.spark import serving
from benchmarks.turns import medians, speed_over, times_of
from tests.kafka.broker import RealKafka, build, connector

PARTITIONS = 4
MICRO_BATCHES = 4
# Enough batches that the replays of the poison records come between them.
BATCHES_OF_OTHERS = 10
VALUE = b"the quick brown fox jumps over the lazy dog %d"


def split_batch(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Any]:
    words = pc.split_pattern(batch.column("value").cast(pa.string()), " ")
    return pa.RecordBatch.from_arrays([words.flatten()], names=["word"]), pc.list_parent_indices(words)


@arrow_operator("word string")
def words(batch: pa.RecordBatch) -> Any:
    return split_batch(batch)


def words_but(poison: bytes) -> Any:
    """Return an operator like ``words`` that raises for the value ``poison``."""

    @arrow_operator("word string", name="words")
    def split(batch: pa.RecordBatch) -> Any:
        if pc.any(pc.equal(batch.column("value"), pa.scalar(poison))).as_py():
            raise ValueError("poison")
        return split_batch(batch)

    return split


class Others(Listener):
    """Notes the time (``at``) when this many records were acked."""

    def __init__(self, records: int) -> None:
        self._left = records
        self.at = 0.0

    def on_ack(self, acked: Emissions) -> None:
        self._left -= len(acked)
        if self._left <= 0 and not self.at:
            self.at = time.perf_counter()


@sink
def save(rows: DataFrame, path: str) -> None:
    rows.write.mode("overwrite").parquet(path)


class Jobs:
    """The jobs over one topic. Each run of a job reads the whole topic."""

    def __init__(self, spark: SparkSession, servers: str, topic: str, records: int, folder: Path) -> None:
        self.spark = spark
        self.records = records
        self._servers = servers
        self._topic = topic
        self._out = str(folder / "out")
        self._letters = folder / "letters"

    def tracked(self) -> None:
        summary = self._source().run(self.spark, lambda batch: save(batch.df.transform(words), self._out))
        if summary.acked != self.records:
            raise RuntimeError(f"{summary.acked} of {self.records} records were acked")

    def untracked(self) -> None:
        def split(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                yield split_batch(batch)[0]

        self._plan(lambda slices: self._read(slices, COLUMNS, lambda batch: batch).mapInArrow(split, "word string"))

    def hand_fused(self) -> None:
        self._plan(lambda slices: self._read(slices, "word string", lambda batch: split_batch(batch)[0]))

    def others_s(self, poison: bytes) -> float:
        """Return the seconds until all records but one per partition are acked."""
        begun, others = time.perf_counter(), Others(self.records - PARTITIONS)
        source = self._source(BATCHES_OF_OTHERS, listener=others, dead_letters=self._letters)
        summary = source.run(self.spark, lambda batch: save(batch.df.transform(words_but(poison)), self._out))
        if summary.acked + summary.dead_lettered != self.records or summary.acked < self.records - PARTITIONS:
            raise RuntimeError(f"of {self.records} records there came {summary.brief}")
        return others.at - begun

    def _plan(self, frame: Callable[[list[Any]], DataFrame]) -> None:
        source = self._source()
        input_: Any = source.input()[0]
        input_.start({})
        tasks = self.spark.sparkContext.defaultParallelism
        while not (plan := input_.plan(source.options.batch_records, tasks)).is_end:
            frame(input_.slices([Chosen(part) for part in plan.parts], tasks)).write.mode("overwrite").parquet(
                self._out
            )
            for part in plan.parts:
                input_.advance(part.partition, Ranges.below(part.stop))
        input_.close()

    def _read(self, slices: list[Any], schema: str, make: Callable[[pa.RecordBatch], pa.RecordBatch]) -> DataFrame:
        def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for index in batch.column(0).to_pylist():
                    yield from (make(rows.columns) for rows in slices[index].read())

        return self.spark.range(0, len(slices), 1, len(slices)).mapInArrow(read, schema)

    def _source(self, batches: int = 2, **options: Any) -> Kafka:
        return Kafka(
            self._topic,
            bootstrap_servers=self._servers,
            name="bench",
            group_id=uuid.uuid4().hex,
            stop="end",
            batch_records=max(1, self.records // batches),
            **options,
        )


def measure(jobs: Jobs, rounds: int) -> dict[str, Any]:
    each = {"tracked": jobs.tracked, "untracked": jobs.untracked, "hand_fused": jobs.hand_fused}
    times = times_of(each, rounds)
    seconds = medians(times)
    return {
        "records": jobs.records,
        "others_beside_poison_over_without": _beside_poison(jobs, rounds),
        "tracked_over_untracked": speed_over(times, "tracked", "untracked"),
        "tracked_over_hand_fused": speed_over(times, "tracked", "hand_fused"),
        "tracked_records_per_s": jobs.records / seconds["tracked"],
        "untracked_records_per_s": jobs.records / seconds["untracked"],
    }


def measure_stream(spark: SparkSession, servers: str, topic: str, records: int, folder: Path, rounds: int) -> Any:
    """Measure a query over Spark's own connector. A micro-batch takes a quarter of the topic."""

    def stream() -> DataFrame:
        reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", topic)
        reader = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", records // MICRO_BATCHES)
        return reader.load().selectExpr("partition", "offset", "cast(value as string) as text")

    queries = frame.Queries(folder, stream, ["partition", "offset"])
    return {kind: frame.measure(queries, kind, records, rounds) for kind in frame.KINDS}


def _beside_poison(jobs: Jobs, rounds: int) -> float:
    poisons = {"beside": VALUE % 0, "without": b"nobody's"}
    each = {name: partial(jobs.others_s, poison) for name, poison in poisons.items()}
    return speed_over(times_of(each, rounds, measure=lambda others_s: others_s()), "beside", "without")


def run(records: int, rounds: int) -> dict[str, Any]:
    build()
    with tempfile.TemporaryDirectory() as folder:
        kafka = RealKafka(Path(folder))
        try:
            topic = kafka.new_topic(PARTITIONS)
            each = records // PARTITIONS
            for partition in range(PARTITIONS):
                kafka.write(topic, partition, [VALUE % k for k in range(each)], key=b"key")
            spark = local_session("benchmark", conf={"spark.driver.memory": "3g", "spark.jars": connector()})
            spark.sparkContext.setLogLevel("ERROR")
            with serving(Path(folder)) as address:
                spark.conf.set("spark.acker.servers", address)
                figures = measure(Jobs(spark, kafka.servers, topic, each * PARTITIONS, Path(folder)), rounds)
                figures["stream"] = measure_stream(spark, kafka.servers, topic, each * PARTITIONS, Path(folder), rounds)
            spark.stop()
        finally:
            kafka.close()
    return figures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    print(json.dumps(run(200_000 if given.quick else 2_000_000, 2 if given.quick else given.rounds), indent=2))
