"""Structured Streaming with tracked records: queries whose foreachBatch is ``tracked``, on a real Spark and server."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from acker_client.source import Batch, QueryStopped, Retry, tracked
from acker_client.spark import branch, operator, sink
from tests.service.caller import eventually

QUICK = Retry(max_retries=1, initial_s=0.01, cap_s=0.01)
# One row in every ``POISON`` rows is poison.
POISON = 2_500


@operator("id long, twice long")
def doubled(row: Row) -> Any:
    if row.id % POISON == 13:
        raise ValueError("poison")
    yield row.id, 2 * row.id


@operator("id long")
def stuck(row: Row) -> Any:
    raise ValueError("stuck")


class Query:
    """A query over a folder of files, one file per micro-batch. Its checkpoint is beside the folder."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.files = 0

    def add(self, start: int, stop: int) -> None:
        """Add a file with the ids from ``start`` up to ``stop``."""
        place = self.folder / f"in{self.files}"
        self.spark.range(start, stop, 1, 2).coalesce(1).write.json(str(place))
        (self.folder / "in").mkdir(exist_ok=True)
        (part,) = place.glob("part-*.json")
        part.rename(self.folder / "in" / f"{self.files:03}.json")
        self.files += 1

    def start(self, function: Any, change: Callable[[DataFrame], DataFrame] = lambda df: df) -> StreamingQuery:
        rows = self.spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).json(str(self.folder / "in"))
        writer = change(rows).writeStream.foreachBatch(function).outputMode("update")
        return writer.option("checkpointLocation", str(self.folder / "ckpt")).trigger(availableNow=True).start()

    def run(self, function: Any, change: Callable[[DataFrame], DataFrame] = lambda df: df) -> StreamingQuery:
        query = self.start(function, change)
        query.awaitTermination()
        return query

    @property
    def committed(self) -> int:
        """The number of micro-batches that Spark's checkpoint has as done."""
        return len([path for path in (self.folder / "ckpt" / "commits").glob("*") if path.name.isdigit()])


@pytest.fixture
def query(spark: SparkSession, server: Any, conf: Callable[[str, str], None], tmp_path: Path) -> Iterator[Query]:
    conf("spark.acker.servers", server.address)
    # Other tests of this session may have left persisted RDDs.
    before = persisted(spark)
    yield Query(spark, tmp_path)
    for each in spark.streams.active:
        each.stop()
    # A stopped query may still be cleaning up.
    eventually(lambda: persisted(spark) <= before)


def persisted(spark: SparkSession) -> set[int]:
    """Return the ids of the persisted RDDs."""
    kept: Any = spark.sparkContext._jsc.getPersistentRDDs()
    return {int(number) for number in kept.keySet()}


def watchers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "acker-watcher"]


def saving(folder: Path, *, fails: list[str] | None = None) -> Any:
    """Return a sink that appends Parquet. Each message in ``fails`` makes one call raise OSError."""

    @sink
    def save(rows: DataFrame) -> None:
        if fails:
            raise OSError(fails.pop())
        rows.write.mode("append").parquet(str(folder / "out"))

    return save


@pytest.mark.long
@pytest.mark.parametrize("rows", [pytest.param(20_000, id="20_000"), pytest.param(1_000_000, id="1_000_000")])
def test_every_row_of_a_stream_is_written_or_dead_at_each_commit_over_failed_writes_and_a_restart(
    query: Query, tmp_path: Path, rows: int
) -> None:
    files, a_file = 4, rows // 4
    for number in range(files):
        query.add(number * a_file, (number + 1) * a_file)
    save, batches = saving(tmp_path, fails=["disk full"]), list[tuple[int, int]]()

    def process(batch: Batch) -> None:
        batches.append((batch.records, batch.replays))
        save(batch.df.transform(doubled))

    job = tracked(process, name="ids", key=["id"], dead_letters=tmp_path / "dead", retry=QUICK, max_dead_share=1)
    at_commit: list[tuple[Row, set[int]]] = []

    seen = ["count(id)", "count(distinct id)", f"count_if(id % {POISON} = 13)", "min(id)", "max(id)", "sum(twice)"]

    def function(df: DataFrame, batch_id: int) -> None:
        if len(at_commit) == 2 and not interrupted:
            interrupted.append(batch_id)
            raise KeyError("the driver dies")
        job(df, batch_id)
        (written,) = query.spark.read.parquet(str(tmp_path / "out")).selectExpr(*seen).collect()
        dead = {json.loads(line)["key"]["id"] for line in (tmp_path / "dead").open()}
        at_commit.append((written, dead))

    interrupted: list[int] = []
    with pytest.raises(StreamingQueryException, match="the driver dies"):
        query.run(function)
    assert query.committed == 2
    ended = query.run(function)
    assert query.committed == files
    assert sum(progress.numInputRows for progress in ended.recentProgress) == rows // 2
    for number, (written, dead) in enumerate(at_commit):
        ids = range((number + 1) * a_file)
        good = [k for k in ids if k % POISON != 13]
        assert dead == set(ids) - set(good)
        assert tuple(written) == (len(good), len(good), 0, 0, ids[-1], 2 * sum(good))
    poison = a_file // POISON
    # The failed write replays the whole first micro-batch once. Otherwise only the poison is replayed.
    assert Counter(batches) == Counter({(a_file, 0): files, (a_file, a_file): 1, (poison, poison): files})
    for thread in watchers():
        thread.join(30)
    assert watchers() == []


@pytest.mark.long
def test_a_worker_that_is_killed_in_a_stream_costs_neither_a_row_nor_a_replay(query: Query, tmp_path: Path) -> None:
    for number in range(3):
        query.add(number * 20_000, (number + 1) * 20_000)
    killed, save, batches = tmp_path / "killed", saving(tmp_path), list[tuple[int, int]]()

    @operator("id long")
    def deadly(row: Row) -> Any:
        if row.id == 20_007 and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        yield (row.id,)

    def process(batch: Batch) -> None:
        batches.append((batch.records, batch.replays))
        save(batch.df.transform(deadly))

    job = tracked(process, name="deadly", retry=QUICK, dead_letters=tmp_path / "dead")
    query.run(job)
    assert killed.exists()
    assert (query.committed, batches) == (3, [(20_000, 0)] * 3)
    written = query.spark.read.parquet(str(tmp_path / "out"))
    assert (written.count(), written.distinct().count()) == (60_000, 60_000)
    assert (tmp_path / "dead").read_text() == ""


@operator("id long, at timestamp")
def stamped(row: Row) -> Any:
    yield row.id, datetime.now(UTC)


@sink
def left(rows: DataFrame) -> None:
    rows.write.format("noop").mode("append").save()


@sink
def right(rows: DataFrame) -> None:
    rows.write.format("noop").mode("append").save()


def test_rows_that_a_micro_batch_evaluated_twice_are_cached_in_all_later_ones(query: Query) -> None:
    for number in range(3):
        query.add(number * 10, (number + 1) * 10)
    batches = list[tuple[int, int]]()

    def process(batch: Batch) -> None:
        batches.append((batch.records, batch.replays))
        one, other = branch(batch.df.transform(stamped), 2)
        left(one)
        right(other)

    query.run(tracked(process, name="stamped", retry=QUICK))
    assert (query.committed, batches) == (3, [(10, 0), (10, 10), (10, 0), (10, 0)])


@pytest.mark.long
def test_two_queries_of_one_session_under_one_name_at_one_time_are_each_their_own(
    spark: SparkSession, server: Any, conf: Callable[[str, str], None], tmp_path: Path
) -> None:
    conf("spark.acker.servers", server.address)
    both, meet = list[StreamingQuery](), threading.Barrier(2, timeout=120)
    found = {"a": list[Row](), "b": list[Row]()}
    for number, name in enumerate(found):
        (tmp_path / name).mkdir()
        query = Query(spark, tmp_path / name)
        query.add(number * 100, number * 100 + 50)

        def process(batch: Batch, name: str = name) -> None:
            if not batch.replays:
                meet.wait()
            collecting(found[name])(batch.df.transform(doubled))

        both.append(query.start(tracked(process, name="same", retry=QUICK, dead_letters=tmp_path / name / "dead")))
    for each in both:
        each.awaitTermination()
    assert sorted(row.id for row in found["a"]) == sorted(set(range(50)) - {13})
    assert sorted(row.id for row in found["b"]) == list(range(100, 150))


@pytest.mark.long
def test_output_that_is_named_by_the_id_of_its_batch_is_never_written_over(query: Query, tmp_path: Path) -> None:
    for number in range(2):
        query.add(number * 20, (number + 1) * 20)

    @sink
    def save(rows: DataFrame, place: str) -> None:
        rows.write.mode("overwrite").parquet(place)

    def process(batch: Batch) -> None:
        save(batch.df.transform(doubled), str(tmp_path / "out" / batch.id))

    query.run(tracked(process, name="named", retry=QUICK, dead_letters=tmp_path / "dead"))
    written = query.spark.read.parquet(str(tmp_path / "out" / "*"))
    assert sorted(row.id for row in written.collect()) == sorted(set(range(40)) - {13})


@pytest.mark.matrix
@pytest.mark.long
@pytest.mark.parametrize("makes", [False, True], ids=["as it is", "with a frame made before"])
def test_a_stop_in_the_middle_of_an_action_that_the_program_swallows_does_not_commit_the_micro_batch(
    query: Query, tmp_path: Path, makes: bool
) -> None:
    query.add(0, 100)
    begun = tmp_path / "begun"

    @operator("id long")
    def slow(row: Row) -> Any:
        begun.touch()
        threading.Event().wait(0.2)
        yield (row.id,)

    swallowed: list[Exception] = []

    @sink
    def save(rows: DataFrame) -> None:
        try:
            rows.write.format("noop").mode("append").save()
        except Exception as error:  # noqa: BLE001  # this is what the program under test does
            swallowed.append(error)

    job = tracked(lambda batch: save(batch.df.transform(slow)), name="slow")

    def function(df: DataFrame, batch_id: int) -> None:
        if makes:
            # The call makes the micro-batch's session the active session. That session lists no query.
            df.sparkSession.createDataFrame([(1,)], "id int")
        job(df, batch_id)

    started = query.start(function)
    while not begun.exists():
        threading.Event().wait(0.02)
    started.stop()
    # Spark interrupts the thread and cancels its job, and either may come first.
    assert re.search("InterruptedException|SPARK_JOB_CANCELLED", str(swallowed[0]))
    assert query.committed == 0
    assert "was stopped before every row" in str(started.exception())
    written: list[Row] = []
    fine = tracked(
        lambda batch: collecting(written)(batch.df.transform(doubled)), name="slow", dead_letters=tmp_path / "d"
    )
    query.run(fine)
    assert (query.committed, len(written)) == (1, 99)


def stop_and_interrupt(query: Query) -> None:
    """Stop the running query from another thread. The caller must be the query's own thread. When this returns, Spark
    has interrupted that thread, so its next wait within Spark raises InterruptedException."""
    (running,) = query.spark.streams.active
    threading.Thread(target=running.stop).start()
    jvm: Any = query.spark._jvm
    eventually(lambda: bool(jvm.Thread.currentThread().isInterrupted()))


def ended_by(query: Query, function: Any) -> str:
    """Run a query; return the error that it ended with, or "" if Spark takes the error for an ordinary stop."""
    started = query.start(function)
    with suppress(StreamingQueryException):
        started.awaitTermination()
    return str(started.exception() or "")


@pytest.mark.long
@pytest.mark.matrix
def test_an_interrupt_that_lands_in_the_clean_up_hides_no_error_and_leaves_no_frame_behind(query: Query) -> None:
    query.add(0, 100)
    before = persisted(query.spark)

    @sink(cache=True)
    def save(rows: DataFrame) -> None:
        rows.write.format("noop").mode("append").save()

    def process(batch: Batch) -> None:
        save(batch.df.transform(doubled))
        # The source notices the stop before it settles the batch, so the next wait is in the clean-up.
        stop_and_interrupt(query)

    assert "was stopped before every row" in ended_by(query, tracked(process, name="ids", retry=QUICK))
    assert persisted(query.spark) <= before
    assert query.committed == 0


@pytest.mark.long
def test_an_interrupt_that_lands_while_the_rows_are_counted_is_the_stop_of_the_query(query: Query) -> None:
    query.add(0, 100)
    before = persisted(query.spark)
    job = tracked(lambda batch: collecting([])(batch.df.transform(doubled)), name="ids", retry=QUICK)

    def function(df: DataFrame, batch_id: int) -> None:
        stop_and_interrupt(query)
        job(df, batch_id)

    assert "was stopped before every row" in ended_by(query, function)
    assert persisted(query.spark) <= before
    assert query.committed == 0


@pytest.mark.long
def test_a_stop_while_a_retry_is_waited_for_is_noticed_and_does_not_commit_the_micro_batch(
    query: Query, tmp_path: Path
) -> None:
    query.add(0, 10)
    failed = threading.Event()

    def process(batch: Batch) -> None:
        failed.set()
        collecting([])(batch.df.transform(stuck))

    raised: list[Exception] = []
    job = tracked(process, name="stuck", retry=Retry(initial_s=3600, cap_s=3600), dead_letters=tmp_path / "dead")

    def function(df: DataFrame, batch_id: int) -> None:
        try:
            job(df, batch_id)
        except Exception as error:
            raised.append(error)
            raise

    started = query.start(function)
    assert failed.wait(120)
    started.stop()
    (error,) = raised
    assert isinstance(error, QueryStopped)
    assert query.committed == 0


@pytest.mark.long
def test_a_stateful_micro_batch_is_read_to_its_end_though_all_its_rows_are_dead_letters(
    query: Query, tmp_path: Path
) -> None:
    query.add(0, 10)
    query.add(5, 15)
    retry, dead = Retry(max_retries=0), tmp_path / "dead"
    job = tracked(
        lambda batch: collecting([])(batch.df.transform(stuck)),
        name="stuck",
        key="id",
        retry=retry,
        dead_letters=dead,
        max_dead_share=1,
    )
    query.run(job, lambda df: df.dropDuplicates(["id"]))
    assert query.committed == 2
    assert sorted(json.loads(line)["key"]["id"] for line in dead.open()) == list(range(15))


@pytest.mark.long
def test_the_session_of_the_micro_batch_counts_and_not_the_active_one(
    spark: SparkSession, server: Any, tmp_path: Path
) -> None:
    query = Query(spark, tmp_path)
    query.add(0, 10)
    found: list[Row] = []
    job = tracked(lambda batch: collecting(found)(batch.df.transform(doubled)), name="ids", retry=QUICK)

    def function(df: DataFrame, batch_id: int) -> None:
        df.sparkSession.conf.set("spark.acker.servers", server.address)
        job(df, batch_id)

    query.run(function)
    assert (query.committed, len(found)) == (1, 10)


@pytest.mark.long
def test_micro_batches_without_rows_and_calls_outside_of_a_query_are_fine(
    spark: SparkSession, server: Any, conf: Callable[[str, str], None]
) -> None:
    conf("spark.acker.servers", server.address)
    found: list[Row] = []
    job = tracked(lambda batch: collecting(found)(batch.df.transform(doubled)), name="ids")
    assert job.summary() is None
    job(spark.range(0), 0)
    summary = job.summary()
    assert summary is not None
    assert (summary.records, found) == (0, [])
    job(spark.range(5), 1)
    assert len(found) == 5


@pytest.mark.long
def test_a_micro_batch_that_nobody_writes_ends_the_query_and_is_not_committed(query: Query) -> None:
    query.add(0, 10)
    with pytest.raises(StreamingQueryException, match="no sink took this batch's rows"):
        query.run(tracked(lambda batch: None, name="nothing"))
    assert query.committed == 0


def test_tracked_refuses_what_it_cannot_do_before_the_query_starts() -> None:
    with pytest.raises(ValueError, match="a streaming query has its own"):
        tracked(print, name="x", checkpoint="c")
    with pytest.raises(ValueError, match="give the source a name"):
        tracked(print, name="")
    with pytest.raises(TypeError, match="there is no such option"):
        tracked(print, name="x", parallel=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="give the function"):
        tracked("print", name="x")  # type: ignore[arg-type]


def collecting(found: list[Any]) -> Any:
    @sink
    def collect(rows: DataFrame) -> None:
        found.extend(rows.collect())

    return collect
