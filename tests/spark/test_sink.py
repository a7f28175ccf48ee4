"""Sinks: the user's function sees its rows and nothing else; what went wrong in it is kept in the record of the
batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from trial import ACKED, FAILED, LOST, Trial, texts

from acker_client.spark import branch, sink

ALL = dict.fromkeys(range(20), ACKED)


def test_a_sink_is_a_function_with_arguments_and_a_value(spark: SparkSession, server: Any, tmp_path: Path) -> None:
    @sink
    def save(rows: DataFrame, folder: Path, *, mode: str = "error") -> int:
        """Saves."""
        assert rows.columns == ["number", "text"]
        rows.write.mode(mode).parquet(str(folder))
        return 7

    with Trial(spark, server.address, texts(20)) as trial:
        assert save(trial.df, tmp_path / "out", mode="append") == 7
        assert spark.read.parquet(str(tmp_path / "out")).count() == 20
        assert trial.settle() == ALL
    assert (save.name, save.__doc__) == ("save", "Saves.")


def test_nothing_is_told_before_the_batch_is_settled(spark: SparkSession, server: Any) -> None:
    with Trial(spark, server.address, texts(20)) as trial:
        sink(DataFrame.count)(trial.df)
        assert len(trial.client.watch(0.0).outcomes) == 0
        assert trial.settle() == ALL


def test_an_error_is_kept_also_when_it_is_swallowed_and_success_makes_it_good(spark: SparkSession, server: Any) -> None:
    failing = [True]

    @sink(name="flaky")
    def write(rows: DataFrame) -> None:
        rows.count()
        if failing:
            raise OSError("disk full")

    with Trial(spark, server.address, texts(20)) as trial:
        with pytest.raises(OSError, match="disk full"):
            write(trial.df)
        assert isinstance(trial.error, OSError)
        failing.clear()
        write(trial.df)
        assert trial.error is None
        assert trial.settle() == ALL


def test_the_success_of_another_sink_makes_nothing_good(spark: SparkSession, server: Any) -> None:
    @sink
    def broken(rows: DataFrame) -> None:
        raise OSError("disk full")

    with Trial(spark, server.address, texts(20)) as trial:
        left, right = branch(trial.df, 2)
        with pytest.raises(OSError, match="disk full"):
            broken(left)
        sink(DataFrame.count, name="other")(right)
        assert isinstance(trial.error, OSError)
        assert set(trial.settle().values()) == {LOST}


def test_two_sinks_over_a_branch_both_have_to_run(spark: SparkSession, server: Any) -> None:

    with Trial(spark, server.address, texts(20)) as trial:
        left, right = branch(trial.df, 2)
        count = sink(DataFrame.count, name="count")
        assert (count(left), count(right)) == (20, 20)
        assert trial.settle() == ALL


def test_rows_that_reach_no_sink_are_unfinished(spark: SparkSession, server: Any) -> None:
    with Trial(spark, server.address, texts(20)) as trial:
        trial.df.count()
        assert set(trial.settle().values()) == {FAILED}
        assert set(trial.reasons.values()) == {"unfinished"}
