"""Rows that Spark evaluates more than once, with code that fails only the first time: which records are replayed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from acker_client.source import Batch, Emissions, Failures, Files, Listener, Retry, Summary
from acker_client.spark import Operator, branch, explode, group, operator, sink, where
from acker_client.spark import functions as AF

RECORDS = 300
FLAKY = frozenset(range(0, RECORDS, 50))


def flaky(folder: Path) -> Operator:
    """An operator that raises once for each record of FLAKY, and counts its evaluations of record 7."""

    @operator("number long")
    def words(row: Row) -> Iterator[tuple[int]]:
        number = int(row.value)
        if number == 7:
            with (folder / "evaluations").open("a") as log:
                log.write("x")
        if number in FLAKY and not (folder / f"raised.{number}").exists():
            (folder / f"raised.{number}").touch()
            raise ConnectionError("once")
        yield (number,)

    return words


class Tries(Listener):
    """Counts the retries of each record."""

    def __init__(self) -> None:
        self.again: Counter[int] = Counter()

    def on_retry(self, retried: Emissions) -> None:
        self.again.update(retried.records.tolist())

    def on_fail(self, failed: Emissions, why: Failures) -> None:
        """Do nothing: records that are not retried become dead letters."""


def noop(rows: DataFrame) -> None:
    rows.write.format("noop").mode("append").save()


@sink
def counted(rows: DataFrame) -> None:
    rows.count()
    noop(rows)


@sink
def left(rows: DataFrame) -> None:
    noop(rows)


@sink
def right(rows: DataFrame) -> None:
    noop(rows)


def count_before(rows: DataFrame) -> None:
    counted(rows)


def two_sinks(rows: DataFrame) -> None:
    one, other = branch(rows, 2)
    left(one)
    right(other)


def acks_counted_before(rows: DataFrame) -> None:
    # A count needs no columns, and round robin sends rows without columns to other tasks.
    acked = rows.repartition(3).select("number", AF.ack())
    acked.count()
    noop(acked)


def acks_looked_at_after(rows: DataFrame) -> None:
    acked = rows.select("number", AF.ack())
    acked.foreachPartition(list)  # type: ignore[arg-type]
    acked.first()


@group("key", "key long, numbers long")
def pairs(rows: pa.Table) -> Any:
    return pa.table({"key": rows["key"][:1], "numbers": pa.array([len(rows)], pa.int64())}), "all"


def groups_looked_at_after(rows: DataFrame) -> None:
    # This looks at the groups outside of the sink, and Spark decides anew how many groups a task gets.
    grouped = rows.withColumn("key", F.expr("number div 2")).transform(pairs)
    left(grouped)
    grouped.isEmpty()


def sorted_for_a_sink(rows: DataFrame) -> None:
    # Spark evaluates the rows once more to find the bounds of the ranges.
    left(rows.repartitionByRange(3, "number"))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "job",
    [count_before, two_sinks, acks_counted_before, acks_looked_at_after, groups_looked_at_after, sorted_for_a_sink],
)
def test_a_transient_error_in_rows_that_are_evaluated_twice_costs_no_innocent_more_than_one_replay(
    spark: SparkSession, server: Any, conf: Callable[[str, str], None], tmp_path: Path, job: Callable[[DataFrame], None]
) -> None:
    conf("spark.acker.servers", server.address)
    (tmp_path / "in.txt").write_text("".join(f"{number}\n" for number in range(RECORDS)))
    words, tries, evaluations = flaky(tmp_path), Tries(), []

    def process(batch: Batch) -> None:
        before = _size(tmp_path / "evaluations")
        job(batch.df.transform(words))
        evaluations.append(_size(tmp_path / "evaluations") - before)

    source = Files(
        str(tmp_path / "in.txt"), name="numbers", dead_letters=tmp_path / "dead", max_dead_share=1.0,
        retry=Retry(max_retries=3, max_interruptions=1, initial_s=0, cap_s=0), listener=tries,
    )  # fmt: skip
    summary: Summary = source.run(spark, process)
    assert (summary.acked, summary.dead_lettered) == (RECORDS, 0)
    assert max(tries.again[number] for number in range(RECORDS) if number not in FLAKY) <= 1
    assert evaluations[:2] == [2, 1]


@sink
def looked_at(rows: DataFrame) -> None:
    rows.take(3)
    noop(rows)


def test_a_union_of_groups_that_its_sink_looks_at_before_the_write_is_replayed_once(
    spark: SparkSession, server: Any, conf: Callable[[str, str], None], tmp_path: Path
) -> None:
    conf("spark.acker.servers", server.address)
    (tmp_path / "in.txt").write_text("".join(f"{number}\n" for number in range(40)))
    tries = Tries()

    def process(batch: Batch) -> None:
        # Each record is a group, and both legs are split by the key. Below the limit of `take`, Spark reads one leg.
        grouped = batch.df.withColumn("key", F.expr("cast(value as bigint)")).transform(pairs)
        one, other = branch(grouped, 2)
        looked_at(one.union(other))

    source = Files(
        str(tmp_path / "in.txt"), name="numbers", dead_letters=tmp_path / "dead", batch_records=40,
        retry=Retry(max_retries=1, initial_s=0, cap_s=0), listener=tries,
    )  # fmt: skip
    summary = source.run(spark, process)
    assert (summary.acked, summary.dead_lettered) == (40, 0)
    assert max(tries.again.values(), default=0) <= 1


@sink
def save(rows: DataFrame, folder: str) -> None:
    rows.write.mode("append").parquet(folder)


def ranked(rows: DataFrame, is_second: Path) -> DataFrame:
    @F.udf("int")
    def rank(number: str) -> int:
        # Stands for a row_number over ties: the second job ranks them the other way.
        return 1 + (int(number) + is_second.exists()) % 2

    return rows.withColumn("rank", rank("value"))


def saved_as_copies(rows: DataFrame, folder: str, is_second: Path) -> None:
    first, others = branch(ranked(rows, is_second), 2)
    save(first.transform(where("rank = 1")), folder)
    is_second.touch()
    save(others.transform(where("rank > 1")), folder)


@sink
def save_in_two_writes(rows: DataFrame, folder: str, is_second: Path) -> None:
    rows.where("rank = 1").write.mode("append").parquet(folder)
    is_second.touch()
    rows.where("rank > 1").write.mode("append").parquet(folder)


@group("value", "value string, rank int")
def as_it_is(rows: pa.Table) -> Any:
    return rows.select(["value", "rank"]), "all"


def saved_behind_a_where(rows: DataFrame, folder: str, is_second: Path) -> None:
    save_in_two_writes(ranked(rows, is_second).transform(where("value <> ''")), folder, is_second)


def saved_behind_an_explode(rows: DataFrame, folder: str, is_second: Path) -> None:
    each = ranked(rows, is_second).withColumn("each", F.array("value")).transform(explode("each"))
    save_in_two_writes(each, folder, is_second)


def saved_behind_a_group(rows: DataFrame, folder: str, is_second: Path) -> None:
    save_in_two_writes(ranked(rows, is_second).transform(as_it_is), folder, is_second)


@pytest.mark.parametrize(
    "saved", [saved_as_copies, saved_behind_a_where, saved_behind_an_explode, saved_behind_a_group]
)
def test_a_row_that_both_writes_dropped_because_of_another_value_is_replayed_and_written(
    spark: SparkSession,
    server: Any,
    conf: Callable[[str, str], None],
    tmp_path: Path,
    saved: Callable[[DataFrame, str, Path], None],
) -> None:
    conf("spark.acker.servers", server.address)
    # This check of Spark's compares the attempts of one job, and not the two writes.
    conf("spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch", "true")
    (tmp_path / "in.txt").write_text("".join(f"{number}\n" for number in range(20)))

    def process(batch: Batch) -> None:
        saved(batch.df, f"{tmp_path}/out", tmp_path / "is second")

    source = Files(
        str(tmp_path / "in.txt"),
        name="ranks",
        retry=Retry(max_retries=1, initial_s=0, cap_s=0),
        dead_letters=tmp_path / "dead",
    )
    summary: Summary = source.run(spark, process)
    assert (summary.acked, summary.dead_lettered) == (20, 0)
    written = {int(row.value) for row in spark.read.parquet(f"{tmp_path}/out").select("value").collect()}
    assert written == set(range(20))


@operator("n int", keep="*")
def counting(row: Row) -> int:
    return 1


@pytest.mark.parametrize("change", [lambda rows: rows, counting], ids=["alone", "behind an operator"])
def test_the_time_in_front_of_a_branch_is_computed_once_for_all_copies(
    spark: SparkSession, server: Any, conf: Callable[[str, str], None], tmp_path: Path, change: Any
) -> None:
    conf("spark.acker.servers", server.address)
    (tmp_path / "in.txt").write_text("a\nb\n")

    def process(batch: Batch) -> None:
        stamped = batch.df.withColumn("at", F.current_timestamp())
        for copy, out in zip(branch(stamped.transform(change), 2), "xy", strict=True):
            save(copy, f"{tmp_path}/{out}")

    summary: Summary = Files(str(tmp_path / "in.txt"), name="times", retry=Retry(max_retries=0)).run(spark, process)
    assert (summary.acked, summary.dead_lettered) == (2, 0)
    times = [spark.read.parquet(f"{tmp_path}/{out}").select("at").distinct().collect() for out in "xy"]
    assert times[0] == times[1]


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
