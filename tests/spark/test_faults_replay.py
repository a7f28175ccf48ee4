"""Faults that may cause a replay, but never an ACK of a record whose rows were not all committed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from acker_client import Settings
from acker_client.spark import MovingBoundaries, arrow_operator, operator, sink
from tests.spark import faults
from tests.spark.live_batch import ACKED, FAILED, LOST, LiveBatch, texts, words_of
from tests.spark.test_faults_no_replay import WORDS, shout, sink_to, words, written

pytestmark = pytest.mark.sampled(3)

Options = Callable[[str, str], None]
Start = Callable[..., LiveBatch]

JobFailed = (PySparkException, Py4JJavaError)

# A child that user code makes of a text: (attempt, ordinal, count, word).
MADE = "number long, attempt int, ordinal int, count int, word string"
Made = tuple[int, int, int, str]


def made(how: str, text: str, attempt: int) -> list[Made]:
    """Return the children of ``text``. Attempts differ in their count, in a value, or only in their order."""
    found = text.split()
    if how == "count" and attempt % 2:
        found = found[:-1]
    if how == "order" and attempt % 2:
        found = found[::-1]
    shown = 0 if how == "order" else attempt
    return [(shown, ordinal, len(found), word) for ordinal, word in enumerate(found)]


def complete(how: str, live: LiveBatch, rows: set[tuple[int, ...]]) -> set[int]:
    """Return the numbers of the complete records: their ``rows`` are exactly the children that one attempt made. With
    "order", all words in any order are enough."""
    of_number: dict[int, list[Any]] = defaultdict(list)
    for number, *rest in rows:
        of_number[number].append(tuple(rest))
    whole = set()
    for number, text in enumerate(live.texts):
        here = sorted(of_number[number])
        if any(here == sorted(made(how, text, attempt)) for attempt in range(6)):
            whole.add(number)
        if how == "order" and sorted(word for *_, word in here) == sorted(text.split()):
            whole.add(number)
    return whole


def assert_no_false_ack(live: LiveBatch, whole: set[int]) -> None:
    verdicts = live.settle()
    assert len(verdicts) == len(live.texts)
    acked = {number for number, verdict in verdicts.items() if verdict == ACKED}
    assert acked <= whole, f"acked without their rows: {sorted(acked - whole)}"


def len_of(rows: Iterable[Any]) -> Iterator[int]:
    yield sum(1 for _ in rows)


def losing_operator(folder: Path, local_dir: Path) -> Any:
    """Return an operator that passes rows on. Its first task deletes a shuffle file, so later tasks read the output of
    another attempt."""

    @operator(MADE)
    def losing(row: Row) -> Iterator[Any]:
        if faults.first_time(folder, "lost"):
            assert faults.lose_shuffle_file(local_dir)
        yield row.number, row.attempt, row.ordinal, row["count"], row.word

    return losing


def fickle_rows(how: str, folder: Path) -> Any:
    attempts: dict[int, int] = {}

    @operator(MADE)
    def fickle(row: Row) -> Iterator[Any]:
        context = faults.task()
        task = context.taskAttemptId()
        if task not in attempts:
            attempts[task] = faults.attempt_of(folder, f"map.{context.partitionId()}")
        for child in made(how, row.text, attempts[task]):
            yield (row.number, *child)

    return fickle


def fickle_arrow(how: str, folder: Path) -> Any:
    @arrow_operator(MADE)
    def fickle(rows: pa.RecordBatch) -> tuple[pa.RecordBatch, list[int]]:
        attempt = faults.attempt_of(folder, f"map.{faults.task().partitionId()}")
        columns: dict[str, list[Any]] = {name: [] for name in ("number", "attempt", "ordinal", "count", "word")}
        parents: list[int] = []
        pairs = zip(rows.column("number").to_pylist(), rows.column("text").to_pylist(), strict=True)
        for index, (number, text) in enumerate(pairs):
            for child in made(how, text, attempt):
                for column, value in zip(columns.values(), (number, *child), strict=True):
                    column.append(value)
                parents.append(index)
        types = [pa.int64(), pa.int32(), pa.int32(), pa.int32(), pa.string()]
        arrays = [pa.array(column, kind) for column, kind in zip(columns.values(), types, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, list(columns)), parents

    return fickle


@pytest.mark.long
@pytest.mark.parametrize("checked", ["true", "false"], ids=["checked", "unchecked"])
@pytest.mark.parametrize("form", [fickle_rows, fickle_arrow], ids=["rows", "arrow"])
@pytest.mark.parametrize("how", ["count", "value", "order"])
def test_a_stage_run_again_gives_other_children(
    live: Start, tmp_path: Path, local_dir: Path, conf: Options, how: str, form: Any, checked: str
) -> None:
    conf("spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch", checked)
    batch = live(texts(40))

    @sink
    def save(rows: DataFrame) -> None:
        rows.write.mode("overwrite").parquet(str(tmp_path / "out"))

    try:
        save(batch.df.transform(form(how, tmp_path)).repartition(6).transform(losing_operator(tmp_path, local_dir)))
    except JobFailed:
        # Spark's own check found the difference and failed the job: nothing is committed, everything is replayed.
        assert batch.error is not None
        assert set(batch.settle().values()) == {LOST}
        return
    assert (tmp_path / "lost").exists()
    assert (tmp_path / "map.0.1").exists() or (tmp_path / "map.1.1").exists()
    rows = {tuple(row) for row in batch.spark.read.parquet(str(tmp_path / "out")).collect()}
    assert_no_false_ack(batch, complete(how, batch, rows))


@pytest.mark.parametrize("is_swallowed", [True, False], ids=["swallowed", "raised"])
def test_a_write_that_fails_at_its_commit(live: Start, tmp_path: Path, is_swallowed: bool) -> None:
    batch = live(texts(20))
    out = tmp_path / "out"
    # Spark cannot write the marker _SUCCESS over a folder, so the job fails at its commit, after all its tasks.
    (out / "_SUCCESS").mkdir(parents=True)

    @sink
    def save(rows: DataFrame) -> None:
        rows.write.mode("append").parquet(str(out))

    if is_swallowed:
        try:
            save(batch.df.transform(words))
        except Exception as error:  # noqa: BLE001  # a job that swallows everything
            print(error)
    else:
        with pytest.raises(JobFailed):
            save(batch.df.transform(words))
    assert batch.error is not None
    assert set(batch.settle().values()) == {LOST}


@pytest.mark.long
def test_a_write_that_failed_and_then_succeeded_is_done(live: Start, tmp_path: Path) -> None:
    batch = live(texts(20))
    out = tmp_path / "out"
    (out / "_SUCCESS").mkdir(parents=True)

    @sink
    def save(rows: DataFrame) -> None:
        rows.write.mode("append").parquet(str(out))

    frame = batch.df.transform(words)
    with pytest.raises(JobFailed):
        save(frame)
    for part in out.glob("*.parquet"):
        part.unlink()
    (out / "_SUCCESS").rmdir()
    save(frame)

    assert batch.error is None
    assert set(batch.settle().values()) == {ACKED}
    assert written(batch.spark, out) == sorted(words_of(batch.texts))


def test_a_sink_that_reads_ten_rows(live: Start) -> None:
    batch = live(texts(4000), slices=4)
    taken: list[Row] = []

    @sink
    def peek(rows: DataFrame) -> None:
        taken.extend(rows.take(10))

    peek(batch.df.transform(words))
    assert len(taken) == 10
    # The first partition was read to its end and has reported.
    assert str(batch.error).startswith("no write of peek()'s rows succeeded: it read 10. ")
    assert ACKED not in batch.settle().values()
    assert len(batch.verdicts) == 4000


def test_a_sink_that_runs_a_job_over_some_partitions_has_not_done_its_work(live: Start) -> None:
    batch = live(texts(40), slices=4)

    @sink
    def half(rows: DataFrame) -> None:
        rows.rdd.context.runJob(rows.rdd, len_of, [0, 1])

    half(batch.df.transform(words))
    assert set(batch.settle().values()) == {LOST}


def test_a_batch_on_which_no_action_ran(live: Start) -> None:
    batch = live(texts(20))

    @sink
    def forget(rows: DataFrame) -> None:
        rows.select("word")

    forget(batch.df.transform(words))
    assert batch.settle() == dict.fromkeys(range(20), LOST)
    assert set(batch.reasons.values()) == {"unread"}


def test_a_batch_that_nobody_touched(live: Start) -> None:
    batch = live(texts(20))

    assert batch.settle() == dict.fromkeys(range(20), LOST)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::acker_client.spark.MovingBoundaries")
@pytest.mark.parametrize("adaptive", ["true", "false"])
def test_a_frame_with_moving_task_boundaries_is_evaluated_twice(
    live: Start, tmp_path: Path, conf: Options, adaptive: str
) -> None:
    conf("spark.sql.adaptive.enabled", adaptive)
    batch = live(texts(300))
    frame = batch.df.transform(words).repartitionByRange(5, "word").transform(shout)

    assert frame.count() == 900
    sink_to(tmp_path / "out")(frame)
    assert_no_false_ack(batch, {number for number, _ in written(batch.spark, tmp_path / "out")})


@pytest.mark.long
def test_a_frame_whose_task_boundaries_did_move_is_warned_of_and_replayed(
    live: Start, tmp_path: Path, conf: Options
) -> None:
    conf("spark.sql.adaptive.enabled", "false")
    conf("spark.sql.shuffle.partitions", "2")
    batch = live(texts(300))
    frame = batch.df.transform(words).repartition("word").transform(shout)

    assert frame.count() == 900
    conf("spark.sql.shuffle.partitions", "5")
    with pytest.warns(MovingBoundaries, match=r"'save' takes a frame a second time.*\.cache\(\)"):
        sink_to(tmp_path / "out")(frame.alias("rows"))
    assert set(batch.settle().values()) == {FAILED}
    assert set(batch.reasons.values()) == {"unfinished"}


@pytest.mark.long
def test_a_server_killed_in_a_batch_costs_a_replay_of_it(
    spark: SparkSession, server_process: Callable[..., Any], tmp_path: Path
) -> None:
    server = server_process()
    with LiveBatch(spark, Settings(servers=(server.address,), budget_s=1.0), texts(20)) as batch:
        frame = batch.df.transform(words)
        assert frame.count() == 60
        server.restart(kill=True)
        with pytest.raises(JobFailed):
            sink_to(tmp_path / "out")(frame)
        assert batch.error is not None
        assert set(batch.lost().values()) == {LOST}


def test_a_server_killed_before_settling_costs_a_replay_of_the_batch(
    spark: SparkSession, server_process: Callable[..., Any], tmp_path: Path
) -> None:
    server = server_process()
    with LiveBatch(spark, Settings(servers=(server.address,), budget_s=1.0), texts(20)) as batch:
        sink_to(tmp_path / "out")(batch.df.transform(words))
        server.restart(kill=True)

        assert batch.lost() == dict.fromkeys(range(20), LOST)


def test_records_that_user_code_raises_on_fail_alone(live: Start, tmp_path: Path) -> None:
    batch = live(texts(20))

    @operator(WORDS)
    def picky(row: Row) -> Iterator[tuple[int, str]]:
        if row.number % 7 == 3:
            raise ValueError(f"no taste for {row.number}")
        for word in row.text.split():
            yield row.number, word

    sink_to(tmp_path / "out")(batch.df.transform(picky))
    verdicts = batch.settle()
    assert {number for number, verdict in verdicts.items() if verdict == FAILED} == {3, 10, 17}
    assert "no taste for 10" in batch.reasons[10]
    assert sum(verdict == ACKED for verdict in verdicts.values()) == 17


@pytest.mark.long
@pytest.mark.parametrize("how", ["counts and writes", "sorts"])
@pytest.mark.parametrize("made", ["raises", "nothing"])
def test_a_row_that_is_lost_only_in_the_evaluation_that_is_written_is_not_acked(
    live: Start, tmp_path: Path, how: str, made: str
) -> None:
    batch = live(texts(20))

    @operator(WORDS)
    def fickle(row: Row) -> Iterator[tuple[int, str]]:
        if row.number == 7 and not faults.first_time(tmp_path):
            if made == "nothing":
                return
            raise ConnectionError("try again")
        for word in row.text.split():
            yield row.number, word

    @sink
    def save(rows: DataFrame) -> None:
        if how == "sorts":
            rows = rows.orderBy("word")  # Spark samples the rows first
        else:
            rows.count()
        rows.write.mode("overwrite").parquet(str(tmp_path / "out"))

    save(batch.df.transform(fickle))
    assert 7 not in {number for number, _ in written(batch.spark, tmp_path / "out")}
    assert_no_false_ack(batch, {number for number, _ in written(batch.spark, tmp_path / "out")})
