"""Tracking off, and sources with untracked records, on a real Spark: the same programs, with and without a server."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from acker_client.source import Batch, Emissions, Files, Frame, Retry, tracked
from acker_client.spark import (
    Collector,
    Refused,
    acker_udf,
    arrow_operator,
    branch,
    check,
    cogroup,
    collector_settings,
    explode,
    group,
    join,
    operator,
    sink,
    where,
)
from acker_client.spark import functions as AF
from acker_client.spark.driver.session import SessionError
from tests.source.executors import Log

ONCE = Retry(max_retries=0, initial_s=0.0)
LINES = [f"{k} {' '.join('abc'[: k % 4])}".strip() for k in range(24)]


@pytest.fixture
def off(spark: SparkSession, conf: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """The session with tracking off, and no server anywhere."""
    monkeypatch.delenv("ACKER_SERVERS", raising=False)
    conf("spark.acker.tracking", "false")
    assert spark.conf.get("spark.acker.servers", None) is None
    return spark


def files(folder: Path, lines: Iterable[str] = LINES, **options: Any) -> Files:
    name = options.pop("name", "lines")
    (folder / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))
    given = {"dead_letters": folder / f"{name}.dead", "max_dead_share": 1.0, "retry": ONCE, **options}
    return Files(folder / f"{name}.txt", name=name, **given)


def letters(folder: Path, name: str = "lines") -> list[dict[str, Any]]:
    path = folder / f"{name}.dead"
    return [json.loads(line) for line in path.open()] if path.exists() else []


@operator("n long, words array<string>")
def parsed(row: Row) -> Any:
    if "poison" in row.value:
        raise ValueError("poison")
    number, *words = row.value.split()
    return int(number), words


@arrow_operator("n long, twice long")
def doubled(batch: pa.RecordBatch) -> Any:
    return pa.table({"n": batch["n"], "twice": pc.multiply(batch["n"], 2)})


@group("key", "key long, total long")
def summed(table: pa.Table) -> Any:
    return pa.table({"key": table["key"][:1], "total": [pc.sum(table["n"]).as_py()]}), "all"


@cogroup("n", "n long, rows long")
def together(left: pa.Table, right: pa.Table) -> Any:
    number = (left if left.num_rows else right)["n"][:1]
    return pa.table({"n": number, "rows": [left.num_rows + right.num_rows]}), "all"


def pipeline(batch: Batch, prices: DataFrame, outputs: Counter[tuple[Any, ...]]) -> None:
    """A program with every kind of step, which names the tracking columns too."""

    @sink
    def save(rows: DataFrame) -> None:
        outputs.update(tuple(row) for row in rows.collect())

    lines = batch.df.transform(where("value <> ''")).select("value", "path", "_root", "_edge")
    first, second = branch(lines.transform(parsed), 2)
    one, two = branch(first.transform(explode("words", into="word")).select("n", "word", "_root", "_edge"), 2)
    priced = one.transform(join(prices, "word", "left"))
    save(priced.selectExpr("'price' AS kind", "word", "price", "_root", "_edge"))
    numbers, again = branch(second.select("n", "_root", "_edge").transform(doubled), 2)
    keyed = numbers.selectExpr("n % 3 AS key", "n", "_root", "_edge").transform(summed)
    save(keyed.selectExpr("'sum' AS kind", "key", "total", "_anchors"))
    met = together(again, two.select("n", "word", "_root", "_edge"))
    acked = met.select(F.lit("met").alias("kind"), "n", "rows", AF.ack("_anchors"))
    outputs.update(tuple(row)[:3] for row in acked.collect())


def made(records: int = len(LINES)) -> Counter[tuple[Any, ...]]:
    """Return what plain code makes of one batch of the first lines."""
    found: Counter[tuple[Any, ...]] = Counter()
    for k in range(records):
        found.update(("price", word, 2.5 if word == "a" else None) for word in "abc"[: k % 4])
        found["met", k, 1 + k % 4] += 1
    for key in range(3):
        found["sum", key, sum(k for k in range(records) if k % 3 == key)] += 1
    return found


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.matrix
def test_a_program_with_every_kind_of_step_writes_the_same_without_a_server(off: SparkSession, tmp_path: Path) -> None:
    prices = off.createDataFrame([("a", 2.5)], "word string, price double")
    outputs, log = Counter[tuple[Any, ...]](), Log()
    summary = files(tmp_path, listener=log).run(off, lambda batch: pipeline(batch, prices, outputs))
    assert outputs == made()
    assert (summary.acked, summary.batches, summary.replayed) == (len(LINES), 1, 0)
    assert sorted(log.acked) == list(range(len(LINES)))


@pytest.mark.long
def test_the_same_program_with_a_server_writes_the_same(connected: SparkSession, tmp_path: Path) -> None:
    prices = connected.createDataFrame([("a", 2.5)], "word string, price double")
    outputs = Counter[tuple[Any, ...]]()
    summary = files(tmp_path).run(connected, lambda batch: pipeline(batch, prices, outputs))
    assert outputs == made()
    assert (summary.acked, summary.batches, summary.replayed) == (len(LINES), 1, 0)


@pytest.mark.long
def test_with_tracking_off_a_record_at_which_an_operator_raises_ends_alone_in_the_dead_letters(
    off: SparkSession, tmp_path: Path
) -> None:
    seen: Counter[int] = Counter()

    @sink
    def save(rows: DataFrame) -> None:
        seen.update(row.n for row in rows.collect())

    source = files(tmp_path, ["1 a", "2 poison", "3"])
    summary = source.run(off, lambda batch: save(batch.df.transform(parsed)))
    assert (summary.acked, summary.dead_lettered) == (2, 1)
    assert seen == Counter([1, 3])
    (letter,) = letters(tmp_path)
    assert (letter["value"], letter["reason"]) == ("2 poison", "the batch failed: ValueError: poison")


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("how", ["fail()", "Collector.fail"])
def test_with_tracking_off_a_record_that_the_program_fails_ends_alone_in_the_dead_letters(
    off: SparkSession, tmp_path: Path, how: str
) -> None:
    def post(rows: Iterator[Row]) -> None:
        with Collector("post") as out:
            for row in rows:
                out.fail(row, "poison") if "poison" in row.value else out.ack(row)

    def process(batch: Batch) -> None:
        if how == "fail()":
            reason = F.when(F.col("value").contains("poison"), "poison")
            batch.df.select("value", AF.fail(reason)).write.format("noop").mode("overwrite").save()
        else:
            batch.df.foreachPartition(post)

    summary = files(tmp_path, ["1", "poison", "3"]).run(off, process)
    assert (summary.acked, summary.dead_lettered) == (2, 1)
    assert ": poison (tracking is off, so one failed record fails its batch)" in letters(tmp_path)[0]["reason"]


def _parsed_number(text: str) -> int:
    return int(text)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("how", ["fail()", "acker_udf", "settings", "addresses", "own session"])
def test_a_record_that_is_failed_with_settings_from_before_its_untracked_batch_is_not_acked(
    connected: SparkSession, conf: Callable[[str, str], None], tmp_path: Path, how: str
) -> None:
    """The servers are up, and the settings of the session say that tracking is on. Only the source turns it off."""
    if how == "own session":
        conf("spark.acker.tracking", "true")
    poison = F.when(F.col("value").contains("poison"), "poison")
    failed = {"fail()": AF.fail(poison), "acker_udf": acker_udf("int")(_parsed_number)("value")}
    given = {"settings": collector_settings(connected), "addresses": connected.conf.get("spark.acker.servers")}

    def post(rows: Iterable[Row]) -> Iterator[tuple[str]]:
        with Collector("post", given.get(how)) as out:
            for row in rows:
                out.fail(row, "poison") if "poison" in row.value else out.ack(row)
                yield (row.value,)

    def process(batch: Batch) -> None:
        if how in failed:
            written = batch.df.select("value", failed[how])
        else:
            written = connected.createDataFrame(batch.df.rdd.mapPartitions(post), "value string")
        written.write.format("noop").mode("overwrite").save()

    summary = files(tmp_path, ["1", "poison", "3"], tracking=False).run(connected, process)
    assert (summary.acked, summary.dead_lettered) == (2, 1)


def first_only(rows: Iterator[Row]) -> None:
    next(rows)


def through(rows: Iterator[Row]) -> Iterator[str]:
    with Collector("through") as out:
        for row in rows:
            yield out.emit(row.value, anchors=[row]).value
            out.ack(row)


@pytest.mark.slow
@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("work", "is_done"),
    [
        (lambda df: df.foreachPartition(first_only), False),
        (lambda df: df.rdd.mapPartitions(through).collect(), True),
        (lambda df: df.rdd.mapPartitions(through).count(), False),
        (lambda df: df.rdd.mapPartitions(through).take(1), False),
        (lambda df: df.count(), False),
        (lambda df: df.limit(1).collect(), False),
        (lambda df: df.write.format("noop").mode("overwrite").save(), True),
        (lambda df: None, False),
    ],
    ids=["first rows", "collect", "count of rdd", "take", "count", "limit", "write", "nothing"],
)
def test_with_tracking_off_a_batch_is_done_only_if_an_action_has_delivered_its_rows(
    off: SparkSession, tmp_path: Path, work: Callable[[DataFrame], object], is_done: bool
) -> None:
    source = files(tmp_path, ["1", "2", "3", "4"])
    loop = source.batches(off)
    work(next(loop).df)
    # Without evidence the batch comes again.
    again = next(loop, None)
    loop.close()
    assert (source.summary().acked, again is None) == ((4, True) if is_done else (0, False))


@pytest.mark.long
def test_a_source_turns_tracking_off_for_itself_alone(connected: SparkSession, tmp_path: Path) -> None:
    seen: list[tuple[bool, bool]] = []

    def process(batch: Batch) -> None:
        (row,) = batch.df.take(1)
        seen.append((collector_settings(connected).tracking, row._root is None))
        batch.df.foreachPartition(all_acked)

    for tracking in (False, True, False):
        assert files(tmp_path, tracking=tracking).run(connected, process).acked == len(LINES)
    assert seen == [(False, True), (True, False), (False, True)]
    assert collector_settings(connected).tracking


def all_acked(rows: Iterator[Row]) -> None:
    with Collector("all") as out:
        for row in rows:
            out.ack(row)


@pytest.mark.long
def test_rows_of_tracked_and_untracked_sources_do_not_meet(connected: SparkSession, tmp_path: Path) -> None:
    on, without = (
        files(tmp_path, name=name, tracking=tracking).batches(connected)
        for name, tracking in (("on", True), ("off", False))
    )
    df = next(on).df
    with pytest.raises(SessionError, match="tracking is on for one and off for the other"):
        next(without)
    with ThreadPoolExecutor(1) as pool:
        beside = files(tmp_path, name="beside", tracking=False).batches(connected)
        other = pool.submit(lambda: next(beside).df).result()
        with pytest.raises(Refused, match=r"source 'on' and source 'beside' meet, and tracking is off for some"):
            df.unionByName(other).transform(parsed)
        pool.submit(beside.close).result()
    on.close()


@pytest.mark.long
def test_a_check_with_tracking_off_asks_for_no_server(off: SparkSession) -> None:
    report = check(off)
    assert (report.ok, report.executors[0].server) == (True, "tracking is off")


@pytest.mark.long
def test_a_micro_batch_runs_without_a_server_too(off: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number, text in enumerate(("1 a\n2 poison\n", "3 b\n")):
        (tmp_path / "in" / f"{number}.txt").write_text(text)
    seen: list[int] = []

    @sink
    def save(rows: DataFrame) -> None:
        seen.extend(row.n for row in rows.collect())

    function = tracked(
        lambda batch: save(batch.df.transform(parsed)),
        name="stream",
        key="value",
        retry=ONCE,
        dead_letters=tmp_path / "lines.dead",
        max_dead_share=1.0,
    )
    rows = off.readStream.option("maxFilesPerTrigger", 1).text(str(tmp_path / "in"))
    query = rows.writeStream.foreachBatch(function).option("checkpointLocation", str(tmp_path / "c"))
    query.trigger(availableNow=True).start().awaitTermination()
    assert sorted(seen) == [1, 3]
    assert [letter["value"]["value"] for letter in letters(tmp_path)] == ["2 poison"]


# -- some records are untracked


class Ends(Log):
    """Records how each record has ended, by its number."""

    def __init__(self) -> None:
        super().__init__()
        self.absent: list[int] = []

    def on_absent(self, absent: Emissions) -> None:
        self.absent += absent.records.tolist()


def big(batch: pa.RecordBatch) -> Any:
    return pc.greater_equal(pc.cast(batch["value"], pa.int64()), 10)


CONDITIONS: dict[str, Callable[[], Any]] = {
    "SQL": lambda: "cast(value as int) >= 10",
    "a Column": lambda: F.col("value").cast("int") >= 10,
    "a function": lambda: big,
}


@pytest.mark.slow
@pytest.mark.sampled(4)
@pytest.mark.matrix
@pytest.mark.parametrize("how", CONDITIONS)
@pytest.mark.parametrize("kind", ["files", "frame"])
def test_only_tracked_records_have_outcomes_and_all_are_written(
    connected: SparkSession, tmp_path: Path, how: str, kind: str
) -> None:
    numbers, seen, log = list(range(16)), Counter[int](), Ends()
    options: dict[str, Any] = {"track": CONDITIONS[how](), "listener": log, "batch_records": 10}

    @sink
    def save(rows: DataFrame) -> None:
        seen.update(row.n for row in rows.collect())

    def process(batch: Batch) -> None:
        save(batch.df.transform(parsed).select("n", "_root", "_edge"))

    if kind == "files":
        summary = files(tmp_path, map(str, numbers), **options).run(connected, process)
    else:
        df = connected.createDataFrame([(str(k),) for k in numbers], "value string").coalesce(1)
        summary = Frame(df, name="frame", **options).run(connected, process)
    assert seen == Counter(numbers)
    assert sorted(log.acked) == list(range(10, 16))
    assert sorted(log.absent) == list(range(10))
    assert (summary.acked, summary.absent, summary.open, summary.replayed) == (6, 10, 0, 0)


@pytest.mark.slow
def test_a_failed_row_of_an_untracked_record_is_dropped_and_logged(
    connected: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[int] = []

    @sink
    def save(rows: DataFrame) -> None:
        seen.extend(row.n for row in rows.collect())

    source = files(tmp_path, ["1", "2 poison", "3", "4 poison"], track="cast(left(value, 1) as int) >= 3")
    summary = source.run(connected, lambda batch: save(batch.df.transform(parsed)))
    assert sorted(seen) == [1, 3]
    assert (summary.acked, summary.dead_lettered, summary.absent, summary.batches) == (1, 1, 2, 1)
    assert "dropped 1 failed rows of untracked records, the first: parsed: ValueError: poison" in caplog.text


@pytest.mark.long
def test_a_condition_that_is_no_condition_is_refused(connected: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"track: the condition 'value' is of type string"):
        files(tmp_path, track="value").run(connected, lambda batch: None)
    with pytest.raises(Refused, match=r"'track' cannot take this frame: Generate"):
        files(tmp_path, track=F.explode(F.array(F.lit(True)))).run(connected, lambda batch: None)


@pytest.mark.long
def test_with_tracking_off_the_choice_has_no_effect(off: SparkSession, tmp_path: Path) -> None:
    source = files(tmp_path, track="value > 'x'")
    summary = source.run(off, lambda batch: batch.df.foreachPartition(all_acked))
    assert (summary.acked, summary.absent) == (len(LINES), 0)
