"""RDDs with a Collector.

For RDDs, Spark does not check that a rerun task gives the same rows, and user code can drop rows without the library's
knowledge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from acker_client.spark import Collector
from tests.spark import faults
from tests.spark.live_batch import ACKED, FAILED, LiveBatch, texts, words_of
from tests.spark.test_faults_replay import assert_no_false_ack, complete, made

Start = Callable[..., LiveBatch]
Rows = Iterable[Any]


def splitting(batch: LiveBatch) -> Callable[[Rows], Rows]:
    settings = batch.settings

    def split(rows: Rows) -> Rows:
        with Collector("split", settings) as out:
            for row in rows:
                for word in row.text.split():
                    yield out.emit({"number": row.number, "word": word}, anchors=[row])
                out.ack(row)

    return split


def writing(batch: LiveBatch, folder: Path) -> Callable[[Rows], None]:
    """Return a writer of one file per partition.

    The writer renames a file into place once the file is complete. A rerun of the task replaces the file.
    """
    settings = batch.settings
    folder.mkdir()

    def write(rows: Rows) -> None:
        partition = faults.task().partitionId()
        with Collector("write", settings) as out:
            lines = []
            for row in rows:
                lines.append(repr(tuple(row[name] for name in row.__fields__ if not name.startswith("_"))))
                out.ack(row)
            part = folder / f"part-{partition}"
            part.with_suffix(".new").write_text("\n".join(lines))
            part.with_suffix(".new").rename(part)

    return write


def written(folder: Path) -> list[tuple[Any, ...]]:
    lines = [line for part in folder.glob("part-*") for line in part.read_text().splitlines()]
    return sorted(eval(line) for line in lines)


def assert_all_acked(batch: LiveBatch, folder: Path) -> None:
    assert batch.settle() == dict.fromkeys(range(len(batch.texts)), ACKED)
    assert written(folder) == sorted(words_of(batch.texts))


def by_word(row: Any) -> tuple[str, Any]:
    return row.word, row


@pytest.mark.long
def test_collectors_over_a_shuffle_ack_everything(live: Start, tmp_path: Path) -> None:
    batch = live(texts(20))
    words = batch.df.rdd.mapPartitions(splitting(batch)).map(by_word).partitionBy(3).values()

    assert words.count() == 60
    words.foreachPartition(writing(batch, tmp_path / "out"))
    assert_all_acked(batch, tmp_path / "out")


@pytest.mark.long
def test_a_lost_shuffle_file_of_an_rdd_costs_nothing(live: Start, tmp_path: Path, local_dir: Path) -> None:
    batch = live(texts(20))
    write = writing(batch, tmp_path / "out")

    def losing(rows: Rows) -> None:
        held = list(rows)
        if faults.first_time(tmp_path, "lost"):
            assert faults.lose_shuffle_file(local_dir)
        write(iter(held))

    batch.df.rdd.mapPartitions(splitting(batch)).map(by_word).partitionBy(6).values().foreachPartition(losing)
    assert (tmp_path / "lost").exists()
    assert_all_acked(batch, tmp_path / "out")


def test_a_killed_worker_of_a_collector_costs_nothing(live: Start, tmp_path: Path) -> None:
    batch = live(texts(20))
    write = writing(batch, tmp_path / "out")

    def deadly(rows: Rows) -> None:
        write(rows)
        if faults.first_time(tmp_path, "killed"):
            faults.kill_this_worker()

    batch.df.rdd.mapPartitions(splitting(batch)).foreachPartition(deadly)
    assert (tmp_path / "killed").exists()
    assert_all_acked(batch, tmp_path / "out")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("how", ["count", "value", "order"])
def test_other_children_from_a_rerun_collector_cause_no_false_ack(
    live: Start, tmp_path: Path, local_dir: Path, how: str
) -> None:
    batch = live(texts(40))
    settings, write = batch.settings, writing(batch, tmp_path / "out")

    def fickle(rows: Rows) -> Rows:
        attempt = faults.attempt_of(tmp_path, f"map.{faults.task().partitionId()}")
        with Collector("fickle", settings) as out:
            for row in rows:
                for shown, ordinal, count, word in made(how, row.text, attempt):
                    child = {"number": row.number, "attempt": shown, "ordinal": ordinal, "count": count, "word": word}
                    yield out.emit(child, anchors=[row])
                out.ack(row)

    def losing(rows: Rows) -> None:
        held = list(rows)
        if faults.first_time(tmp_path, "lost"):
            assert faults.lose_shuffle_file(local_dir)
        write(iter(held))

    # `RDD.repartition` deals rows out round robin, so the order of the rows decides which task gets which row.
    shuffled = batch.df.rdd.mapPartitions(fickle).repartition(6)
    shuffled.foreachPartition(losing)
    assert (tmp_path / "lost").exists()
    assert list(tmp_path.glob("map.*.1"))
    assert_no_false_ack(batch, complete(how, batch, set(written(tmp_path / "out"))))
    assert len(batch.verdicts) == 40


def test_only_records_with_rows_dropped_outside_the_library_are_unfinished(live: Start, tmp_path: Path) -> None:
    batch = live(texts(20))
    words = batch.df.rdd.mapPartitions(splitting(batch))

    words.filter(lambda row: row.word not in ("w3.1", "w11.0", "w11.2")).foreachPartition(
        writing(batch, tmp_path / "out")
    )
    verdicts = batch.settle()
    assert {number for number, verdict in verdicts.items() if verdict == FAILED} == {3, 11}
    assert batch.reasons[3] == batch.reasons[11] == "unfinished"
    assert sum(verdict == ACKED for verdict in verdicts.values()) == 18


def test_a_row_that_is_neither_acked_nor_failed_is_unfinished(live: Start) -> None:
    batch = live(texts(20))
    settings = batch.settings

    def forgetful(rows: Rows) -> None:
        with Collector("forgetful", settings) as out:
            for row in rows:
                if row.number == 5:
                    out.fail(row, "no five")
                elif row.number != 13:
                    out.ack(row)

    batch.df.rdd.foreachPartition(forgetful)
    verdicts = batch.settle()
    assert (verdicts[5], verdicts[13]) == (FAILED, FAILED)
    assert (batch.reasons[5], batch.reasons[13]) == ("forgetful: no five", "unfinished")
    assert sum(verdict == ACKED for verdict in verdicts.values()) == 18


@pytest.mark.long
def test_rows_dropped_before_a_udf_acks_them_are_unfinished(live: Start) -> None:
    from acker_client.spark import functions as AF

    batch = live(texts(20))
    rows = batch.df.where("number <> 7").select("number", "text", AF.ack())
    assert len(rows.collect()) == 19
    verdicts = batch.settle()
    assert {number for number, verdict in verdicts.items() if verdict != ACKED} == {7}
    assert batch.reasons[7] == "unfinished"
