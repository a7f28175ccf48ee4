"""Any DataFrame as a source, on a real Spark with a real server: numbering, replays, keys, schemas, changing rows."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import StorageLevel
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from acker_client.pins import decode
from acker_client.source import Batch, CheckpointError, Frame, InputChanged, Retry
from acker_client.spark import functions as AF
from acker_client.spark import operator, sink
from acker_client.spark.driver.persisted import COMPRESSED, ONE_JOB, Persisted
from acker_client.spark.driver.session import PINS

QUICK = Retry(max_retries=1, initial_s=0.01, cap_s=0.01)
POISON = 13


@operator("twice long")
def doubled(row: Row) -> Any:
    if row.id == POISON:
        raise ValueError("poison")
    yield (2 * row.id,)


def collecting(found: list[Any]) -> Any:
    @sink
    def collect(rows: DataFrame) -> None:
        found.extend(rows.collect())

    return collect


def is_persisted(df: DataFrame) -> bool:
    level = df.storageLevel
    return bool(level.useMemory or level.useDisk)


def drawn(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield random rows, others at each evaluation."""
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"id": [random.randrange(1 << 40, 1 << 60) for _ in range(batch.num_rows)]})


def shuffled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in another order at each evaluation."""
    rows = [row for batch in batches for row in batch.column(0).to_pylist()]
    random.shuffle(rows)
    yield pa.RecordBatch.from_pydict({"id": rows})


def fewer(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield another number of rows at each evaluation."""
    for batch in batches:
        yield batch.slice(random.randrange(batch.num_rows))


@pytest.mark.matrix
def test_rows_that_two_sources_use_stay_persisted_until_the_second_one_ends(spark: SparkSession) -> None:
    df = spark.range(10).withColumn("drawn", F.rand())
    first, second, of_the_user = Persisted(df), Persisted(df.select("*")), Persisted(spark.range(7).cache())
    for each in (first, second, of_the_user):
        each.persist()
    kept = []
    for each in (first, second, of_the_user):
        each.unpersist()
        kept.append((df.storageLevel.useMemory, spark.range(7).storageLevel.useMemory))
    spark.range(7).unpersist()
    assert kept == [(True, True), (False, True), (False, True)]


def test_every_row_of_a_frame_is_acked_or_in_the_dead_letters_under_its_key_and_nothing_stays_persisted(
    connected: SparkSession, tmp_path: Path
) -> None:
    df = connected.range(0, 20_000, 1, 5).selectExpr("id", "concat('n', id) as name")
    found: list[Row] = []
    save = collecting(found)
    rows: list[int] = []

    def process(batch: Batch) -> None:
        rows.append(batch.records)
        save(batch.df.transform(doubled))

    source = Frame(df, name="ids", key="name", dead_letters=tmp_path / "dead", retry=QUICK)
    summary = source.run(connected, process)
    assert (summary.acked, summary.dead_lettered, summary.open, summary.replayed) == (19_999, 1, 0, 1)
    assert rows == [20_000, 1]
    assert Counter(row.twice for row in found) == Counter(2 * k for k in range(20_000) if k != POISON)
    (letter,) = [json.loads(line) for line in (tmp_path / "dead").open()]
    assert (letter["key"], letter["value"]) == ({"name": "n13"}, {"id": 13, "name": "n13"})
    assert letter["reason"].startswith("doubled: ValueError: poison")
    assert not is_persisted(df)


def test_a_frame_that_a_sink_makes_from_an_rdd_counts_if_the_source_itself_was_made_from_one(
    connected: SparkSession,
) -> None:
    @sink
    def save(rows: DataFrame) -> None:
        made = rows.sparkSession.createDataFrame(rows.rdd.map(tuple), rows.schema)
        made.write.format("noop").mode("append").save()

    df = connected.createDataFrame([(number,) for number in range(8)], "id long")
    summary = Frame(df, name="rdd", retry=QUICK).run(connected, lambda batch: save(batch.df))
    assert (summary.acked, summary.replayed) == (8, 0)


@pytest.mark.long
def test_a_batch_goes_on_after_other_sources_were_run_to_their_end_inside_it(
    spark: SparkSession, start_server: Callable[..., Any], conf: Callable[[str, str], None]
) -> None:
    # Each batch lives on one of these two servers.
    conf("spark.acker.servers", ",".join(start_server(id=number).address for number in range(2)))
    conf("spark.acker.spread", "1")
    conf("spark.acker.replicas", "1")
    lived_on: list[Any] = []

    def lives_on() -> Any:
        (pin,) = decode(spark.sparkContext.getLocalProperty(PINS) or "")
        return pin.placement.members

    def inner(batch: Batch) -> None:
        lived_on.append(lives_on())
        batch.df.select(AF.ack()).collect()

    def outer(batch: Batch) -> None:
        own = lives_on()
        while lived_on[-1:] in ([], [own]):
            assert Frame(spark.range(3), name="inner", retry=QUICK).run(spark, inner).acked == 3
        batch.df.select(AF.ack()).collect()

    summary = Frame(spark.range(20), name="outer", retry=QUICK).run(spark, outer)
    assert (summary.acked, summary.replayed) == (20, 0)


@pytest.mark.long
def test_rows_keep_their_schema_and_a_row_without_a_key_is_named_by_its_partition_and_row(
    connected: SparkSession, tmp_path: Path, conf: Callable[[str, str], None]
) -> None:
    conf("spark.sql.session.timeZone", "Europe/Berlin")
    schema = (
        "id long not null, `a.b` decimal(20,3), at timestamp, local timestamp_ntz, raw binary, day date, flag boolean,"
        " items array<struct<sku: string, prices: array<double>>>, tags map<string, array<int>>, at_all double"
    )
    at, local = datetime(2026, 3, 29, 1, 30, tzinfo=UTC), datetime(2026, 3, 29, 2, 30)
    full = (1, Decimal("1.005"), at, local, b"\x00\xff", at.date(), True, [("a", [0.5, None]), None], {"t": [1, None]})
    df = connected.createDataFrame([(*full, -0.0), (2, *[None] * 9), (POISON, *full[1:], float("nan"))], schema)
    found: list[Row] = []

    @operator("id2 long", keep="*")
    def kept(row: Row) -> Any:
        if row.id == POISON:
            raise ValueError("poison")
        yield (row.id,)

    save = collecting(found)
    retry = Retry(max_retries=0)
    source = Frame(df.coalesce(1), name="orders", dead_letters=tmp_path / "dead", retry=retry, max_dead_share=1)
    summary = source.run(connected, lambda batch: save(batch.df.transform(kept)))
    assert (summary.acked, summary.dead_lettered) == (2, 1)
    assert sorted(map(str, (tuple(row)[1:] for row in found))) == sorted(
        map(str, map(tuple, df.where("id < 9").collect()))
    )
    (letter,) = [json.loads(line) for line in (tmp_path / "dead").open()]
    assert (letter["partition"], letter["row"]) == (0, 2)
    assert letter["value"]["a.b"] == "1.005"
    assert letter["value"]["items"] == [{"sku": "a", "prices": [0.5, None]}, None]
    assert letter["value"]["tags"] == [["t", [1, None]]]
    whole: list[Row] = []
    assert Frame(df, name="whole").run(connected, lambda batch: collecting(whole)(batch.df)).acked == 3
    assert sorted(map(str, whole)) == sorted(map(str, df.collect()))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("other", [drawn, shuffled, fewer])
def test_a_frame_that_gives_other_rows_when_it_is_computed_anew_is_found_out_and_no_row_of_it_acked(
    connected: SparkSession, other: Any
) -> None:
    df = connected.range(0, 500, 1, 2).mapInArrow(other, "id long")
    found: list[Row] = []

    def process(batch: Batch) -> None:
        # Drops the persisted rows, as if all executors that held them were lost.
        df.unpersist()
        collecting(found)(batch.df.transform(doubled))

    source = Frame(df, name="drawn", retry=QUICK)
    with pytest.raises(InputChanged, match=r"gives other rows when it is computed anew .*make it deterministic"):
        source.run(connected, process)
    assert (source.summary().acked, found) == (0, [])
    assert not is_persisted(df)


@pytest.mark.long
@pytest.mark.matrix
def test_a_replay_that_would_read_another_row_under_the_same_number_is_found_out(connected: SparkSession) -> None:
    spoil = (
        connected.range(0, 9, 1, 1).mapInArrow(drawn, "id long").withColumn("id", F.expr("if(rand(1) < 0.5, 13, id)"))
    )
    found: list[Row] = []

    def process(batch: Batch) -> None:
        if batch.replays:
            spoil.unpersist()
        collecting(found)(batch.df.transform(doubled))

    source = Frame(spoil, name="spoilt", retry=Retry(max_retries=9, initial_s=0.01, cap_s=0.01))
    with pytest.raises(InputChanged, match="gives other rows"):
        source.run(connected, process)
    assert source.summary().acked == len(found) > 0
    assert source.summary().dead_lettered == 0


@pytest.mark.long
def test_a_dead_letter_is_never_written_of_another_row_than_the_one_that_failed(
    connected: SparkSession, tmp_path: Path
) -> None:
    df = connected.range(0, 9, 1, 1).mapInArrow(drawn, "id long")

    @operator("x long")
    def failing(row: Row) -> Any:
        raise ValueError("always")

    def process(batch: Batch) -> None:
        collecting([])(batch.df.transform(failing))
        df.unpersist()

    source = Frame(df, name="d", dead_letters=tmp_path / "dead", retry=Retry(max_retries=0), max_dead_share=1)
    with pytest.raises(InputChanged, match="gives other rows"):
        source.run(connected, process)
    assert (tmp_path / "dead").read_text() == ""


@pytest.mark.long
@pytest.mark.parametrize("made", ["rand(7)", "rand()", "spark_partition_id()", "monotonically_increasing_id()"])
def test_a_frame_that_gives_the_same_rows_when_it_is_computed_anew_goes_on(
    connected: SparkSession, made: str, tmp_path: Path
) -> None:
    df = connected.range(0, 500, 1, 2).withColumn("made", F.expr(made)).repartition(3)

    def process(batch: Batch) -> None:
        df.unpersist()
        collecting([])(batch.df.transform(doubled))

    source = Frame(df, name="same", retry=QUICK, dead_letters=tmp_path / "dead", key="id")
    summary = source.run(connected, process)
    assert (summary.acked, summary.dead_lettered, summary.replayed) == (499, 1, 1)


@pytest.mark.long
def test_replays_read_only_the_pages_of_the_rows_that_fell_be_they_few_or_in_many_partitions(
    connected: SparkSession, tmp_path: Path
) -> None:
    df = connected.range(0, 48, 1, 24)
    records: list[list[int]] = []

    @operator("id long")
    def even(row: Row) -> Any:
        if row.id % 2 and row.id != 1:
            raise ValueError("odd")
        yield (row.id,)

    def process(batch: Batch) -> None:
        if batch.replays:
            records.append(sorted(row.id for row in batch.df.collect()))
        collecting([])(batch.df.transform(even))

    source = Frame(df, name="odd", retry=QUICK, dead_letters=tmp_path / "dead", max_dead_share=1, key="id")
    summary = source.run(connected, process)
    odd = list(range(3, 48, 2))
    assert (summary.acked, summary.dead_lettered) == (25, 23)
    assert records == [odd]
    assert sorted(json.loads(line)["key"]["id"] for line in (tmp_path / "dead").open()) == odd


@pytest.mark.long
def test_partitions_are_counted_once_aqe_has_made_them(
    connected: SparkSession, conf: Callable[[str, str], None]
) -> None:
    conf("spark.sql.adaptive.enabled", "true")
    conf("spark.sql.optimizer.canChangeCachedPlanOutputPartitioning", "true")
    conf("spark.sql.shuffle.partitions", "8")
    df = connected.range(1000).selectExpr("id % 400 as k").groupBy("k").count()
    found: list[Row] = []
    source = Frame(df, name="counts", batch_records=150)
    summary = source.run(connected, lambda batch: collecting(found)(batch.df))
    assert (summary.acked, summary.replayed, len(found)) == (400, 0, 400)


def test_a_frame_is_kept_and_counted_in_one_job_and_the_settings_of_the_session_stay(
    spark: SparkSession, conf: Callable[[str, str], None]
) -> None:
    settings = {COMPRESSED: "true"} | {key: "7" if value == "1" else "true" for key, value in ONE_JOB.items()}
    for setting, value in settings.items():
        conf(setting, value)
    persisted = Persisted(spark.range(0, 10_000, 1, 4))
    context = spark.sparkContext
    context.setJobGroup("counting", "a frame")
    try:
        persisted.persist()
        tracker = context.statusTracker()
        (job,) = (tracker.getJobInfo(number) for number in tracker.getJobIdsForGroup("counting"))
        stages = [tracker.getStageInfo(number) for number in (job.stageIds if job else ())]
        assert sorted(each.numTasks for each in stages if each) == [1, 4]
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]  # None removes it
        persisted.unpersist()
    assert persisted.pages.rows.sum() == 10_000
    assert {setting: spark.conf.get(setting) for setting in settings} == settings


@pytest.mark.long
def test_a_frame_that_the_user_has_persisted_stays_so_and_one_without_rows_ends_at_once(
    connected: SparkSession,
) -> None:
    df = connected.range(10).persist(StorageLevel.DISK_ONLY)
    assert Frame(df, name="own").run(connected, lambda batch: collecting([])(batch.df)).acked == 10
    assert is_persisted(df)
    df.unpersist()
    called: list[Batch] = []
    assert Frame(df.where("id > 99"), name="none").run(connected, called.append).records == 0
    assert called == []


@pytest.mark.long
def test_a_restart_reads_only_the_rows_that_were_open_and_refuses_another_frame(
    connected: SparkSession, tmp_path: Path
) -> None:
    df = connected.range(0, 9_000, 1, 2)
    read: list[Row] = []

    def source(frame: DataFrame) -> Frame:
        slow = Retry(initial_s=1000, cap_s=1000)
        return Frame(frame, name="ids", checkpoint=tmp_path / "ckpt", retry=slow, batch_records=6_000)

    for batch in source(df).batches(connected):
        collecting(read)(batch.df.transform(doubled))
        if batch.number == 2:
            batch.done()
            break
    assert len(read) == 8_999
    again: list[Row] = []
    with pytest.raises(CheckpointError, match="is not what it was when the checkpoint was written"):
        source(connected.range(1, 9_001, 1, 2)).run(connected, lambda batch: collecting(again)(batch.df))
    summary = source(df).run(connected, lambda batch: collecting(again)(batch.df))
    assert ([row.id for row in again], summary.records) == ([POISON], 1)


def test_what_cannot_be_tracked_is_refused_with_what_to_do(connected: SparkSession) -> None:
    df = connected.range(3)
    with pytest.raises(ValueError, match="are the acker's own; rename '_root'"):
        Frame(df.withColumnRenamed("id", "_root"), name="x")
    with pytest.raises(ValueError, match="key='sku' is no column of the frame; it has id"):
        Frame(df, name="x", key="sku")
    with pytest.raises(TypeError, match="a DataFrame is expected, got a str"):
        Frame("table", name="x")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a streaming DataFrame has no end"):
        Frame(connected.readStream.format("rate").load(), name="x")
