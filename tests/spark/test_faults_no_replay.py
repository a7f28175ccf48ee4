"""Faults in a Spark job that cause neither a replay nor a false ACK."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from acker_client.spark import arrow_operator, branch, operator, sink
from tests.spark import faults
from tests.spark.live_batch import ACKED, LiveBatch, texts, words_of

pytestmark = pytest.mark.sampled(3)

Options = Callable[[str, str], None]
Start = Callable[..., LiveBatch]

WORDS = "number long, word string"


@operator(WORDS)
def words(row: Row) -> Iterator[tuple[int, str]]:
    for word in row.text.split():
        yield row.number, word


@operator(WORDS)
def shout(row: Row) -> Iterator[tuple[int, str]]:
    yield row.number, row.word


def sink_to(path: Path) -> Any:
    """Return a sink that writes Parquet to ``path``."""

    @sink
    def save(rows: DataFrame) -> None:
        rows.write.mode("overwrite").parquet(str(path))

    return save


def written(spark: SparkSession, path: Path) -> list[tuple[int, str]]:
    return sorted((row.number, row.word) for row in spark.read.parquet(str(path)).collect())


def assert_all_acked(live: LiveBatch, path: Path) -> None:
    """Settle; assert that every record is ACKED, and that exactly the expected rows are in ``path``."""
    verdicts = live.settle()
    unexpected = {
        number: (verdict.name, live.reasons[number]) for number, verdict in verdicts.items() if verdict != ACKED
    }
    assert not unexpected
    assert len(verdicts) == len(live.texts)
    assert written(live.spark, path) == sorted(words_of(live.texts))


def unfused(df: DataFrame) -> DataFrame:
    """Return the rows in a frame that the library does not know, so the next step is not fused with the last."""
    return df.alias("rows")


def fail_at_the_end(folder: Path, fault: Callable[[], None]) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return a user function for a sink. In its first task, ``fault`` runs after everything was read and reported."""

    def hand_on(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches
        if faults.first_time(folder):
            fault()

    return hand_on


def break_down() -> None:
    raise RuntimeError("harm on purpose")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("fault", [break_down, faults.kill_this_worker])
@pytest.mark.parametrize("form", [lambda df: df, unfused], ids=["fused", "unfused"])
def test_a_task_that_fails_after_its_work_is_run_again(
    live: Start, tmp_path: Path, fault: Callable[[], None], form: Callable[[DataFrame], DataFrame]
) -> None:
    batch = live(texts(20))
    harm = fail_at_the_end(tmp_path, fault)

    @sink
    def save(rows: DataFrame) -> None:
        rows.mapInArrow(harm, rows.schema).write.parquet(str(tmp_path / "out"))

    save(form(batch.df.transform(words)))
    assert (tmp_path / "once").exists()
    assert_all_acked(batch, tmp_path / "out")


@pytest.mark.parametrize("form", [lambda df: df, unfused], ids=["fused", "unfused"])
def test_a_python_worker_is_killed_in_an_operator(
    live: Start, tmp_path: Path, form: Callable[[DataFrame], DataFrame]
) -> None:
    batch = live(texts(20))

    @operator(WORDS)
    def deadly(row: Row) -> Iterator[tuple[int, str]]:
        if row.number == 7 and faults.first_time(tmp_path):
            faults.kill_this_worker()
        for word in row.text.split():
            yield row.number, word

    sink_to(tmp_path / "out")(form(batch.df.transform(deadly)))
    assert (tmp_path / "once").exists()
    assert_all_acked(batch, tmp_path / "out")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("adaptive", ["true", "false"])
def test_a_shuffle_file_is_lost_and_the_stage_is_run_again(
    live: Start, tmp_path: Path, local_dir: Path, conf: Options, adaptive: str
) -> None:
    conf("spark.sql.adaptive.enabled", adaptive)
    batch = live(texts(40))

    @operator(WORDS)
    def losing(row: Row) -> Iterator[tuple[int, str]]:
        if faults.first_time(tmp_path):
            assert faults.lose_shuffle_file(local_dir)
        yield row.number, row.word

    sink_to(tmp_path / "out")(batch.df.transform(words).repartition(6).transform(losing))
    assert (tmp_path / "once").exists()
    assert_all_acked(batch, tmp_path / "out")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("cached", [False, True], ids=["not cached", "cached"])
@pytest.mark.parametrize("form", [lambda df: df, unfused], ids=["fused", "unfused"])
def test_a_frame_is_counted_and_then_written(
    live: Start, tmp_path: Path, form: Callable[[DataFrame], DataFrame], cached: bool
) -> None:
    batch = live(texts(20))
    frame = form(form(batch.df).transform(words)).transform(shout)
    if cached:
        frame = frame.cache()

    assert frame.count() == 60
    sink_to(tmp_path / "out")(frame)
    assert_all_acked(batch, tmp_path / "out")
    frame.unpersist()


@pytest.mark.long
def test_a_frame_counted_fused_is_written_unfused(live: Start, tmp_path: Path) -> None:
    batch = live(texts(20))
    frame = batch.df.transform(words)

    assert frame.count() == 60
    sink_to(tmp_path / "out")(frame.coalesce(1).select("number", "word", "_root", "_edge"))
    assert_all_acked(batch, tmp_path / "out")


@pytest.mark.long
def test_the_same_sink_writes_the_same_frame_again(live: Start, tmp_path: Path) -> None:
    batch = live(texts(20))
    frame, save = batch.df.transform(words), sink_to(tmp_path / "out")

    save(frame)
    save(frame)
    assert_all_acked(batch, tmp_path / "out")


@pytest.mark.long
@pytest.mark.parametrize("adaptive", ["true", "false"])
def test_two_sinks_in_one_batch_one_of_them_over_branch(
    live: Start, tmp_path: Path, conf: Options, adaptive: str
) -> None:
    conf("spark.sql.adaptive.enabled", adaptive)
    batch = live(texts(20))
    first, second = branch(batch.df, 2)

    @sink
    def keep(rows: DataFrame) -> None:
        rows.write.parquet(str(tmp_path / "raw"))

    keep(first)
    sink_to(tmp_path / "out")(second.repartition(3).transform(words))
    assert batch.spark.read.parquet(str(tmp_path / "raw")).count() == 20
    assert_all_acked(batch, tmp_path / "out")


@pytest.mark.long
def test_one_of_two_sinks_is_not_enough(live: Start, tmp_path: Path) -> None:
    batch = live(texts(20))
    first, _ = branch(batch.df, 2)

    sink_to(tmp_path / "out")(first.transform(words))
    verdicts = batch.settle()
    assert len(verdicts) == 20
    assert ACKED not in verdicts.values()


@pytest.mark.long
def test_coalesce_runs_several_workers_in_one_partition(live: Start, tmp_path: Path) -> None:
    batch = live(texts(40), slices=4)

    sink_to(tmp_path / "out")(batch.df.coalesce(1).transform(words).coalesce(1).transform(shout).coalesce(1))
    assert_all_acked(batch, tmp_path / "out")


def test_a_union_of_two_tracked_frames(live: Start, tmp_path: Path) -> None:
    batch = live(texts(20))
    first, second = branch(batch.df, 2)

    @operator(WORDS)
    def odd(row: Row) -> Iterator[tuple[int, str]]:
        yield from ((row.number, word) for word in row.text.split()[1::2])

    @operator(WORDS)
    def even(row: Row) -> Iterator[tuple[int, str]]:
        yield from ((row.number, word) for word in row.text.split()[::2])

    sink_to(tmp_path / "out")(first.transform(odd).union(second.transform(even)).transform(shout))
    assert_all_acked(batch, tmp_path / "out")


@pytest.mark.long
def test_a_union_is_counted_and_then_written(live: Start, tmp_path: Path) -> None:
    batch = live(texts(20))
    first, second = branch(batch.df, 2)

    @operator(WORDS)
    def nothing(row: Row) -> Iterator[tuple[int, str]]:
        yield from ()

    both = first.transform(nothing).union(second.transform(words)).repartition(3)
    assert both.count() == 60
    sink_to(tmp_path / "out")(both)
    assert_all_acked(batch, tmp_path / "out")


SHUFFLES: dict[str, Callable[[DataFrame], DataFrame]] = {
    "repartition(5)": lambda df: df.repartition(5),
    "repartition(w)": lambda df: df.repartition("word"),
    "repartition(2, w)": lambda df: df.repartition(2, "word"),
    "orderBy": lambda df: df.orderBy("word"),
    "sortWithinPartitions": lambda df: df.repartition(2).sortWithinPartitions("word"),
    "repartitionByRange": lambda df: df.repartitionByRange(3, "word"),
    "rebalance": lambda df: df.hint("rebalance"),
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("adaptive", ["true", "false"])
@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_rows_are_moved_between_operators(
    live: Start, tmp_path: Path, conf: Options, shuffle: str, adaptive: str
) -> None:
    conf("spark.sql.adaptive.enabled", adaptive)
    batch = live(texts(30))

    sink_to(tmp_path / "out")(SHUFFLES[shuffle](batch.df.transform(words)).transform(shout))
    assert_all_acked(batch, tmp_path / "out")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_moved_rows_are_evaluated_twice_behind_a_cache(live: Start, tmp_path: Path, shuffle: str) -> None:
    batch = live(texts(30))
    frame = SHUFFLES[shuffle](batch.df.transform(words)).cache().transform(shout)

    assert frame.count() == 90
    sink_to(tmp_path / "out")(frame)
    assert_all_acked(batch, tmp_path / "out")


def test_arrow_operators_are_run_again_as_rows_are(live: Start, tmp_path: Path) -> None:
    batch = live(texts(20))

    @arrow_operator(WORDS)
    def split(rows: pa.RecordBatch) -> tuple[pa.RecordBatch, list[int]]:
        found = [
            (number, word, index)
            for index, (number, text) in enumerate(
                zip(*(column.to_pylist() for column in rows.columns[:2]), strict=True)
            )
            for word in text.split()
        ]
        if faults.task().partitionId() == 0 and faults.first_time(tmp_path):
            faults.kill_this_worker()
        numbers, kept, parents = zip(*found, strict=True)
        return pa.RecordBatch.from_pydict({"number": numbers, "word": kept}), list(parents)

    sink_to(tmp_path / "out")(batch.df.transform(split).repartition(3).transform(shout))
    assert (tmp_path / "once").exists()
    assert_all_acked(batch, tmp_path / "out")


@pytest.mark.long
def test_a_thread_of_the_users_inside_foreach_batch(spark: SparkSession, live: Start, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.mkdir()
    (lines / "a.txt").write_text("\n".join(texts(20)))
    batches: list[LiveBatch] = []
    errors: list[BaseException] = []

    def run(rows: DataFrame) -> None:
        try:
            batch = live([row.value for row in rows.collect()])
            sink_to(tmp_path / "out")(batch.df.transform(words).repartition(3).transform(shout))
            batches.append(batch)
        except BaseException as error:  # noqa: BLE001  # of a thread: the test looks at them
            errors.append(error)

    def each(rows: DataFrame, number: int) -> None:
        thread = threading.Thread(target=run, args=(rows,))
        thread.start()
        thread.join()

    stream = spark.readStream.text(str(lines)).writeStream.foreachBatch(each).trigger(availableNow=True)
    stream.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()

    assert not errors
    assert len(batches) == 1
    assert_all_acked(batches[0], tmp_path / "out")
