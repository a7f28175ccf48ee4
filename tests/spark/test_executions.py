"""A sink that reads part of its rows has not done its work, however far its workers ran ahead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from acker_client import Verdict
from acker_client.spark import operator, sink, where
from acker_client.spark.executions import PartialRead


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
