"""Evidence in foreachBatch: the same writes count as elsewhere, although all executions there have one root."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark import InheritableThread
from pyspark.sql import DataFrame, SparkSession

from acker_client import Verdict
from acker_client.spark import sink
from tests.spark.live_batch import LiveBatch
from tests.spark.test_executions import DONE, NOT_DONE, TEXTS, noop, split

# Cases that could go wrong inside the query's execution: RDD jobs have its tag, commands are not root executions, and
# everything descends from the start of the query.
OTHERS_IN_FOREACH_BATCH = {
    "JDBC", "table", "collect", "RDD collect", "foreachPartition", "an iterator to its end", "a cache, written",
    "count", "limit, written over JDBC", "a write, then a failed foreachPartition", "RDD take",
    "foreachPartition that reads one row",
}  # fmt: skip


@pytest.fixture
def in_foreach_batch(spark: SparkSession, tmp_path: Path) -> Callable[[Callable[[DataFrame], None]], None]:
    """Return a runner that calls a function once inside foreachBatch, and raises the error of the function."""

    def run(function: Callable[[DataFrame], None]) -> None:
        spark.range(1).write.mode("overwrite").parquet(str(tmp_path / "in"))
        raised: list[BaseException] = []

        def call(df: DataFrame, _: int) -> None:
            try:
                function(df)
            except BaseException as error:  # noqa: BLE001  # it is raised below, in the test's own thread
                raised.append(error)

        stream = spark.readStream.schema("id long").parquet(str(tmp_path / "in")).writeStream.foreachBatch(call)
        query = stream.option("checkpointLocation", str(tmp_path / "ckpt")).trigger(availableNow=True).start()
        query.awaitTermination()
        for error in raised:
            raise error

    return run


def judged(spark: SparkSession, address: str, function: Any, place: Path) -> tuple[set[Verdict], str]:
    with LiveBatch(spark, address, TEXTS, slices=4) as batch:
        sink(function, name="save")(batch.df.transform(split), str(place))
        error = batch.error
        return set(batch.settle().values()), str(error or "")


def wrong(spark: SparkSession, address: str, names: Iterable[str], place: Path) -> dict[str, Any]:
    """Return the cases with a wrong result, each with its verdicts and error."""
    found = {}
    for number, name in enumerate(names):
        function, because = (DONE[name], "") if name in DONE else NOT_DONE[name]
        verdicts, error = judged(spark, address, function, place / f"case{number}" / "out")
        is_right = verdicts == ({Verdict.LOST} if because else {Verdict.ACKED}) and because in error
        if not is_right:
            found[name] = verdicts, error
    return found


@pytest.mark.long
@pytest.mark.parametrize(
    "names", [sorted(OTHERS_IN_FOREACH_BATCH), [*DONE, *NOT_DONE]], ids=["those that differ", "all"]
)
def test_what_counts_as_delivered_in_foreach_batch_is_what_counts_elsewhere(
    in_foreach_batch: Any, server: Any, tmp_path: Path, conf: Callable[[str, str], None], names: list[str]
) -> None:
    conf("spark.sql.execution.arrow.maxRecordsPerBatch", "4")
    found: dict[str, Any] = {}
    in_foreach_batch(lambda df: found.update(wrong(df.sparkSession, server.address, names, tmp_path)))
    assert found == {}


@pytest.mark.long
def test_a_write_over_jdbc_counts_in_foreach_batch_also_if_spark_has_cut_off_the_text_of_its_plan(
    in_foreach_batch: Any, server: Any, tmp_path: Path, conf: Callable[[str, str], None]
) -> None:
    conf("spark.sql.maxPlanStringLength", "200")
    found: dict[str, Any] = {}
    in_foreach_batch(lambda df: found.update(wrong(df.sparkSession, server.address, ["JDBC"], tmp_path)))
    assert found == {}


@pytest.mark.long
@pytest.mark.parametrize(
    "written",
    [lambda rows: rows.sparkSession.range(0, 1, 1, 1), lambda rows: rows.limit(10)],
    ids=["something else", "a part of the rows"],
)
def test_a_write_that_goes_on_during_a_look_does_not_make_it_a_delivery_in_foreach_batch(
    in_foreach_batch: Any, server: Any, tmp_path: Path, written: Callable[[DataFrame], DataFrame]
) -> None:
    """All executions of a micro-batch have one root, but one that runs during another is not always a part of it."""
    begun, counted = tmp_path / "begun", tmp_path / "counted"

    def wait(batches: Any) -> Any:
        begun.touch()
        while not counted.exists():
            threading.Event().wait(0.01)
        yield from batches

    found: list[Any] = []

    def count(rows: DataFrame, _: str) -> None:
        slow = written(rows)
        other = InheritableThread(target=lambda: noop(slow.mapInArrow(wait, slow.schema)))
        other.start()
        while not begun.exists():
            threading.Event().wait(0.01)
        rows.count()
        counted.touch()
        other.join()

    def function(df: DataFrame) -> None:
        with suppress(AssertionError):
            found.append(judged(df.sparkSession, server.address, count, tmp_path / "out"))

    in_foreach_batch(function)
    ((verdicts, error),) = found
    assert verdicts == {Verdict.LOST}
    assert "counted them" in error
