"""A sink that reads part of its rows has not done its work, however far its workers ran ahead."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import DataFrame

from acker_client import Verdict
from acker_client.spark import operator, sink, where
from acker_client.spark.executions import FailedWrite, PartialRead


@operator("word string", keep=["number"])
def split(row: Any) -> list[str]:
    return list(row.text.split())


def _refused(trial: Any, function: Any) -> None:
    batch = trial(["a b", "c d", "e f", "g h"])
    with pytest.raises(PartialRead, match="read only part of its rows"):
        sink(function, name="save")(batch.df.transform(split))
    assert set(batch.settle().values()) == {Verdict.LOST}


def test_a_sink_that_takes_two_rows_fails_and_its_batch_is_lost(trial: Any) -> None:
    _refused(trial, lambda rows: rows.take(2))


def test_a_sink_that_writes_below_a_limit_fails_and_its_batch_is_lost(trial: Any, tmp_path: Path) -> None:
    _refused(trial, lambda rows: rows.limit(2).write.parquet(str(tmp_path / "out")))


def test_a_sink_may_look_at_some_rows_beside_writing_them_all(trial: Any, tmp_path: Path) -> None:
    def save(rows: DataFrame) -> None:
        if not rows.isEmpty():
            rows.write.parquet(str(tmp_path / "out"))

    batch = trial(["a b", "c d", "e f", "g h"])
    sink(save)(batch.df.transform(split))
    assert set(batch.settle().values()) == {Verdict.ACKED}


def test_a_sink_that_finds_nothing_to_write_has_done_its_work(trial: Any) -> None:
    batch = trial(["a b", "c d"])
    sink(lambda rows: rows.isEmpty(), name="save")(batch.df.transform(where("text = ''")).transform(split))
    assert set(batch.settle().values()) == {Verdict.ACKED}


def test_a_sink_may_look_at_some_rows_and_write_them_all_as_an_rdd(trial: Any) -> None:
    def save(rows: DataFrame) -> None:
        if not rows.isEmpty():
            rows.foreachPartition(lambda part: [None for _ in part] and None)

    batch = trial(["a b", "c d", "e f", "g h"])
    sink(save)(batch.df.transform(split))
    assert set(batch.settle().values()) == {Verdict.ACKED}


def test_a_sink_that_failed_for_one_place_is_not_made_good_by_another_place(trial: Any, tmp_path: Path) -> None:
    @sink
    def save(rows: DataFrame, place: str) -> None:
        rows.write.parquet(place)
        if place.endswith("a"):
            raise OSError("the commit failed")

    batch = trial(["a b", "c d"])
    rows = batch.df.transform(split)
    with pytest.raises(OSError, match="the commit failed"):
        save(rows, str(tmp_path / "a"))
    save(rows, str(tmp_path / "b"))
    assert isinstance(batch.error, OSError)
    assert set(batch.settle().values()) == {Verdict.LOST}


def test_a_batch_that_is_settled_while_a_sink_runs_is_abandoned(trial: Any) -> None:
    batch = trial(["a b", "c d"])

    @sink
    def save(rows: DataFrame) -> None:
        rows.collect()
        assert batch.error is not None
        assert set(batch.settle().values()) == {Verdict.LOST}

    save(batch.df.transform(split))


class Full(Exception):
    """The disk is full."""


def _swallowing(rows: DataFrame, place: Path) -> None:
    def fail(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        raise Full

    with suppress(PythonException):
        rows.mapInArrow(fail, rows.schema).write.parquet(str(place))


def test_a_sink_that_swallows_the_exception_of_its_own_write_fails_and_its_batch_is_lost(
    trial: Any, tmp_path: Path
) -> None:
    batch = trial(["a b", "c d"])
    with pytest.raises(FailedWrite, match="Full"):
        sink(lambda rows: _swallowing(rows, tmp_path / "out"), name="save")(batch.df.transform(split))
    assert set(batch.settle().values()) == {Verdict.LOST}


def test_a_sink_that_writes_again_after_a_failed_write_has_done_its_work(trial: Any, tmp_path: Path) -> None:
    def save(rows: DataFrame) -> None:
        _swallowing(rows, tmp_path / "out")
        rows.write.mode("overwrite").parquet(str(tmp_path / "out"))

    batch = trial(["a b", "c d"])
    sink(save)(batch.df.transform(split))
    assert set(batch.settle().values()) == {Verdict.ACKED}


def test_a_look_at_some_rows_does_not_make_up_for_a_write_that_never_began(trial: Any, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()

    def save(rows: DataFrame) -> None:
        rows.show()
        with suppress(AnalysisException):
            rows.write.parquet(str(tmp_path / "out"))

    batch = trial(["a b", "c d"])
    with pytest.raises((FailedWrite, PartialRead)):
        sink(save)(batch.df.transform(split))
    assert set(batch.settle().values()) == {Verdict.LOST}


def test_a_count_before_a_failed_write_does_not_make_up_for_it(trial: Any, tmp_path: Path) -> None:
    def save(rows: DataFrame) -> None:
        assert rows.count() == 4
        _swallowing(rows, tmp_path / "out")

    batch = trial(["a b", "c d"])
    with pytest.raises(FailedWrite):
        sink(save)(batch.df.transform(split))
    assert set(batch.settle().values()) == {Verdict.LOST}


def test_a_failed_write_is_found_also_where_only_tasks_without_rows_went_through(trial: Any, tmp_path: Path) -> None:
    def fail(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                raise Full
            yield batch

    def save(rows: DataFrame) -> None:
        with suppress(PythonException):
            rows.mapInArrow(fail, rows.schema).write.parquet(str(tmp_path / "out"))

    batch = trial(["a b", "c d", "", ""])
    with pytest.raises(FailedWrite):
        sink(save)(batch.df.transform(where("text <> ''")).transform(split))
    assert set(batch.settle().values()) == {Verdict.LOST}
