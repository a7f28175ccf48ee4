"""Hung operators on a real Spark and server: the batch's jobs are cancelled and no other job, and the workers end."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark import InheritableThread
from pyspark.sql import DataFrame, Row, SparkSession

from acker_client.source import Batch, Files, Retry, tracked
from acker_client.source.engine.environment import spark_environment
from acker_client.source.frame import environment as frame_environments
from acker_client.spark import functions as AF
from acker_client.spark import operator, sink
from tests.service.caller import eventually
from tests.spark.hangs import Hang, HangTimer, wait_for

ONCE = Retry(max_retries=0, initial_s=0.0)


@pytest.fixture
def timer(tmp_path: Path) -> HangTimer:
    (tmp_path / "hung").mkdir()
    return HangTimer(tmp_path / "hung")


def source(folder: Path, timer: HangTimer, lines: list[str], **options: Any) -> Files:
    name = options.pop("name", "hanging")
    (folder / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))
    given = {"dead_letters": folder / f"{name}.dead", "max_dead_share": 1.0, "retry": ONCE, **options}
    environment = replace(spark_environment(), timer=timer.start)
    return Files(folder / f"{name}.txt", name=name, message_timeout_s=60, environment=environment, **given)


def hanging_at(hang: Hang, poison: str) -> Any:
    @operator("value string")
    def parsed(row: Row) -> Any:
        if row.value == poison:
            hang()
        return row.value

    return parsed


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.parametrize("how", ["sleep", pytest.param("C code", marks=pytest.mark.long)])
def test_a_record_at_which_an_operator_hangs_ends_in_the_dead_letters_and_its_worker_ends_too(
    connected: SparkSession, tmp_path: Path, timer: HangTimer, how: str
) -> None:
    parsed, seen = hanging_at(Hang(str(timer.folder), how), "poison"), list[str]()

    @sink
    def save(rows: DataFrame) -> None:
        seen.extend(row.value for row in rows.collect())

    summary = source(tmp_path, timer, ["a", "poison", "b"]).run(connected, lambda batch: save(parsed(batch.df)))
    assert (summary.acked, summary.dead_lettered, summary.open) == (2, 1, 0)
    # The whole batch, then the record alone.
    assert (timer.expired, summary.timed_out, summary.failed, summary.lost) == (2, 4, 0, 0)
    assert sorted(seen) == ["a", "b"]
    letter = json.loads((tmp_path / "hanging.dead").read_text())
    assert letter["value"] == "poison"
    assert "took longer than message_timeout_s=60" in letter["reason"]
    eventually(lambda: not timer.workers())


@pytest.mark.long
def test_the_cancellation_reaches_the_jobs_of_the_batch_and_no_others(
    connected: SparkSession, tmp_path: Path, timer: HangTimer
) -> None:
    hang, spark = Hang(str(timer.folder)), connected
    tags = set(spark.sparkContext.getJobTags())
    released = tmp_path / "released"

    def works(rows: DataFrame) -> DataFrame:
        return rows.mapInArrow(wait_for(str(released)), rows.schema)

    @sink
    def save(rows: DataFrame) -> None:
        works(rows).write.format("noop").mode("overwrite").save()

    @sink
    def keep(rows: DataFrame) -> None:
        rows.write.format("noop").mode("overwrite").save()

    failures: list[BaseException] = []

    def hung(job: Callable[[], object]) -> None:
        with pytest.raises(Exception, match="cancelled part of cancelled job tags") as raised:
            job()
        failures.append(raised.value)

    def look() -> None:
        spark.range(3).mapInArrow(hang.batches, "id bigint").count()

    def process(batch: Batch) -> None:
        if batch.number == 2:
            keep(batch.df)
            return
        # A job of the user's own in the batch's thread, and one in a thread that inherits the tag.
        hung(look)
        heir = InheritableThread(target=hung, args=(look,))
        heir.start()
        heir.join()

    def other(batch: Batch) -> None:
        save(batch.df)

    (tmp_path / "never").mkdir()
    with ThreadPoolExecutor(1) as pool:
        second = source(tmp_path, HangTimer(tmp_path / "never"), ["x", "y"], name="other")
        beside = pool.submit(second.run, spark, other)
        eventually(Path(f"{released}.waits").exists)
        summary = source(tmp_path, timer, ["a"], retry=Retry(max_retries=1, initial_s=0.0)).run(spark, process)
        assert (len(failures), timer.expired) == (2, 1)
        assert not beside.done()
        released.touch()
        rest = beside.result()
    assert (summary.acked, summary.timed_out) == (1, 1)
    assert (rest.acked, rest.replayed, rest.timed_out) == (2, 0, 0)
    assert set(spark.sparkContext.getJobTags()) == tags


@pytest.mark.long
def test_a_sink_that_hangs_in_a_plain_thread_is_reached_too(
    connected: SparkSession, tmp_path: Path, timer: HangTimer
) -> None:
    hangs = [Hang(str(timer.folder))]

    @sink
    def save(rows: DataFrame) -> None:
        if hangs:
            rows = rows.mapInArrow(hangs.pop().batches, rows.schema)
        rows.write.format("noop").mode("overwrite").save()

    def process(batch: Batch) -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(save, batch.df).result()

    summary = source(tmp_path, timer, ["a", "b"]).run(connected, process)
    assert (summary.acked, summary.timed_out, timer.expired) == (2, 2, 1)


@pytest.mark.long
def test_a_query_over_the_rows_that_hangs_in_a_plain_thread_is_reached_too(
    connected: SparkSession, tmp_path: Path, timer: HangTimer
) -> None:
    parsed = hanging_at(Hang(str(timer.folder)), "poison")

    def save(rows: DataFrame) -> None:
        rows.select("value", AF.ack()).write.format("noop").mode("overwrite").save()

    def process(batch: Batch) -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(save, parsed(batch.df)).result()

    summary = source(tmp_path, timer, ["a", "poison"]).run(connected, process)
    assert (summary.acked, summary.dead_lettered, timer.expired) == (1, 1, 2)


@pytest.mark.long
def test_a_query_goes_on_after_a_batch_of_a_micro_batch_was_cancelled(
    connected: SparkSession, tmp_path: Path, timer: HangTimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        frame_environments, "spark_environment", lambda: replace(spark_environment(), timer=timer.start)
    )
    parsed, seen, left = hanging_at(Hang(str(timer.folder)), "poison"), list[str](), list[set[str]]()

    @sink
    def save(rows: DataFrame) -> None:
        seen.extend(row.value for row in rows.collect())

    letters = tmp_path / "dead.jsonl"
    function = tracked(
        lambda batch: save(parsed(batch.df)),
        name="stream",
        key=["value"],
        message_timeout_s=60,
        retry=ONCE,
        dead_letters=letters,
        max_dead_share=1.0,
    )

    def micro_batch(df: DataFrame, number: int) -> None:
        before = set(df.sparkSession.sparkContext.getJobTags())
        function(df, number)
        left.append(set(df.sparkSession.sparkContext.getJobTags()) - before)

    (tmp_path / "in").mkdir()
    for number, lines in enumerate(("a\npoison\n", "b\n")):
        (tmp_path / "in" / f"{number}.txt").write_text(lines)
    rows = connected.readStream.option("maxFilesPerTrigger", 1).text(str(tmp_path / "in"))
    query = rows.writeStream.foreachBatch(micro_batch).option("checkpointLocation", str(tmp_path / "c"))
    query.trigger(availableNow=True).start().awaitTermination()
    assert sorted(seen) == ["a", "b"]
    assert [json.loads(line)["value"]["value"] for line in letters.open()] == ["poison"]
    assert timer.expired == 2
    assert left == [set(), set()]
