"""Two writes into one folder at the same time: Spark may lose files of both without an error. So the acker lets them
run one after the other, or counts them as failed."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit, udf

from acker_client.source import Batch, Files, Retry
from acker_client.spark import sink, write_parquet
from acker_client.spark.commit_evidence import turns
from acker_client.spark.commit_evidence.executions import Executions
from tests.service.caller import eventually
from tests.spark.faults import await_file

QUICK = Retry(max_retries=2, initial_s=0.0, cap_s=0.0)
LINES = 200


def source(folder: Path, **options: Any) -> Files:
    (folder / "in.txt").write_text("".join(f"{k}\n" for k in range(LINES)))
    given = {"name": "lines", "dead_letters": folder / "dead.jsonl", "retry": QUICK, "max_dead_share": 1.0}
    return Files(f"{folder}/in.txt", **{**given, **options})


def written(spark: SparkSession, folder: Path) -> list[int]:
    return sorted(int(row.value) for row in spark.read.parquet(str(folder / "out")).collect())


@pytest.mark.matrix
def test_batches_at_once_that_append_to_one_folder_write_every_row_once(
    connected: SparkSession, tmp_path: Path
) -> None:
    @sink
    def save(rows: DataFrame) -> None:
        rows.repartition(3).write.mode("append").parquet(f"{tmp_path}/out")

    waited, folders = list[float](), set[str]()

    def process(batch: Batch) -> None:
        save(batch.df)
        assert batch.evidence is not None
        waited.append(batch.evidence.waited_s)
        assert batch.evidence.judge() is None
        folders.update(batch.evidence.folders)

    summary = source(tmp_path, batch_records=20, concurrency=3).run(connected, process)
    assert max(waited) > 0
    assert folders == {f"file:{tmp_path}/out"}
    assert (summary.acked, summary.replayed, summary.batches) == (LINES, 0, 10)
    assert written(connected, tmp_path) == list(range(LINES))


def test_batches_at_once_that_write_into_folders_of_their_own_wait_for_no_other(
    connected: SparkSession, tmp_path: Path
) -> None:
    def meeting(value: str) -> str:
        """Return only when a row of the other batch is being written, too."""
        (tmp_path / f"writes-{int(value) // (LINES // 2)}").touch()
        while len(list(tmp_path.glob("writes-*"))) < 2:
            time.sleep(0.01)
        return value

    @sink
    def save(rows: DataFrame, batch: Batch) -> None:
        write_parquet(rows.select(udf(meeting)("value").alias("value")), tmp_path / "out", batch)

    # One task for each batch, so that there is a core for the tasks of both batches.
    summary = source(tmp_path, batch_records=LINES // 2, concurrency=2, partitions=1).run(
        connected, lambda batch: save(batch.df, batch)
    )
    assert (summary.acked, summary.replayed) == (LINES, 0)
    assert written(connected, tmp_path) == list(range(LINES))


@pytest.mark.matrix
def test_a_write_that_overlaps_one_outside_of_any_sink_counts_as_failed(
    connected: SparkSession, tmp_path: Path
) -> None:
    out, started, go = f"{tmp_path}/out", tmp_path / "started", tmp_path / "go"

    def waiting(value: int) -> str:
        started.touch()
        await_file(go)
        return str(value)

    def write_other() -> None:
        other = connected.range(1).select(udf(waiting)("id").alias("value"))
        other.write.mode("append").parquet(out)

    @sink
    def save(rows: DataFrame) -> None:
        rows.write.mode("append").parquet(out)

    def process(batch: Batch) -> None:
        if batch.number > 1:
            save(batch.df)
            return
        beside = threading.Thread(target=write_other)
        beside.start()
        try:
            eventually(started.exists)
            save(batch.df)
        finally:
            go.touch()
            beside.join()

    running = source(tmp_path)
    summary = running.run(connected, process)
    assert (summary.acked, summary.replayed, summary.dead_lettered) == (LINES, LINES, 0)
    assert set(written(connected, tmp_path)) == set(range(LINES))


@pytest.mark.matrix
def test_the_function_of_each_batch_has_the_active_session_of_the_run(connected: SparkSession, tmp_path: Path) -> None:
    active = list[SparkSession | None]()

    def process(batch: Batch) -> None:
        active.append(SparkSession.getActiveSession())
        save(batch.df)

    @sink
    def save(rows: DataFrame) -> None:
        rows.write.format("noop").mode("append").save()

    assert SparkSession.getActiveSession() is not None
    source(tmp_path, batch_records=LINES // 2, concurrency=2).run(connected, process)
    assert active == [SparkSession.getActiveSession()] * 2


def test_a_second_write_into_a_place_waits_until_the_first_has_ended() -> None:
    order, first, second = list[str](), list[turns.TurnWait](), list[turns.TurnWait]()

    def write() -> None:
        with turns.turn(turns.folder("file:/tmp/out/"), second):
            order.append("second")

    thread = threading.Thread(target=write)
    with turns.turn(turns.folder("/tmp/out"), first):
        thread.start()
        # A wait counts while it still lasts.
        eventually(lambda: turns.waited_s(second) > 0)
        with turns.turn(turns.folder("/tmp/other"), first), turns.turn("", first):
            order.append("first")
    thread.join(60)
    assert order == ["first", "second"]
    assert (first, len(second)) == ([], 1), "only a place that is taken makes a write wait"


def test_waits_at_the_same_time_count_once() -> None:
    waits = [
        turns.TurnWait(30.0, 40.0),
        turns.TurnWait(10.0, 20.0),
        turns.TurnWait(12.0, 14.0),
        turns.TurnWait(19.0, 21.0),
    ]
    assert turns.waited_s(waits) == 21.0
    assert turns.waited_s([]) == 0.0


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (turns.folder("/a/out"), turns.folder("file:///a/out/")),
        (turns.folder("s3://b/out"), turns.folder("s3://b/out/")),
        (turns.folder("out"), turns.folder("./out/")),
        (turns.table("db.t"), turns.table("`DB`.`t`")),
        (turns.table("db.t"), turns.table_of("INSERT INTO TABLE db.t SELECT * FROM rows")),
        (turns.table("t"), turns.table_of("insert overwrite `t` select * from rows")),
        ("", turns.table_of("SELECT * FROM rows")),
    ],
)
def test_two_names_of_a_place_are_the_same_place(one: str, other: str) -> None:
    assert one == other


@pytest.mark.long
@pytest.mark.matrix
def test_a_write_beside_an_earlier_one_under_another_name_does_not_count(
    connected: SparkSession, tmp_path: Path
) -> None:
    started, go = tmp_path / "started", tmp_path / "go"
    table = f"turns_{tmp_path.name.rpartition('-')[2]}"
    connected.sql(f"CREATE TABLE {table} (value STRING, day INT) USING parquet PARTITIONED BY (day)")

    def waiting(value: str) -> str:
        started.touch()
        await_file(go)
        return value

    @sink
    def save_slowly(rows: DataFrame) -> None:
        rows.select(udf(waiting)("value").alias("value"), lit(1).alias("day")).write.insertInto(table)

    @sink
    def save(rows: DataFrame) -> None:
        connected.sql(f"INSERT INTO default.{table} PARTITION (day = 2) SELECT value FROM {{rows}}", rows=rows)

    def process(batch: Batch) -> None:
        if batch.number > 1:
            go.touch()
            beside.join()
        save(batch.df)

    first, second = source(tmp_path), source(tmp_path, name="others")
    beside = threading.Thread(target=first.run, args=(connected, lambda batch: save_slowly(batch.df)))
    beside.start()
    try:
        eventually(started.exists)
        second.run(connected, process)
    finally:
        go.touch()
        beside.join()
    for summary in (first.summary(), second.summary()):
        assert (summary.acked, summary.replayed, summary.dead_lettered) == (LINES, LINES, 0)
    read = connected.table(table).select("value", "day").distinct().collect()
    assert sorted((row.day, int(row.value)) for row in read) == [(day, k) for day in (1, 2) for k in range(LINES)]
    connected.sql(f"DROP TABLE {table}")


@pytest.mark.parametrize("mode", ["simple", "extended", "codegen", "cost", "formatted"])
@pytest.mark.parametrize("chars", [200, 1_000_000])
def test_the_folder_of_a_write_is_known_in_each_form_of_a_plan(
    spark: SparkSession, tmp_path: Path, mode: str, chars: int
) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.ui.explainMode", mode)
    session.conf.set("spark.sql.maxPlanStringLength", chars)
    seen = Executions(session)
    session.range(1).write.parquet(f"{tmp_path}/a b")
    assert [each.folder for each in seen.ran().executions] == [f"file:{tmp_path}/a b"]


def test_writes_into_two_partitions_of_a_table_are_writes_into_one_folder(spark: SparkSession) -> None:
    spark.sql("CREATE TABLE two_partitions (value INT, day INT) USING parquet PARTITIONED BY (day)")
    seen = Executions(spark)
    for partition in ("PARTITION (day = 1) SELECT 1", "PARTITION (day = 2) SELECT 1", "SELECT 1, 3"):
        spark.sql(f"INSERT INTO two_partitions {partition}")
    assert len({each.folder for each in seen.ran().executions}) == 1
    spark.sql("DROP TABLE two_partitions")


def test_the_result_of_a_statement_that_wrote_is_no_write(spark: SparkSession) -> None:
    spark.sql("CREATE TABLE written_once (value INT) USING parquet")
    inserted = spark.sql("INSERT INTO written_once SELECT 1")
    seen = Executions(spark)
    inserted.collect()
    assert {each.folder for each in seen.ran().executions} <= {""}
    spark.sql("DROP TABLE written_once")
