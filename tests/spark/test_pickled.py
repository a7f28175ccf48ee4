"""Functions of operators in a task: as they were when they were applied, whenever Spark plans them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pickle import PicklingError
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from acker_client.spark import arrow_operator, branch, operator, sink
from tests.spark.live_batch import ACKED, LiveBatch, texts

Live = Callable[..., LiveBatch]


@sink
def collect(rows: DataFrame) -> list[dict[str, Any]]:
    return sorted((row.asDict() for row in rows.collect()), key=str)


def test_functions_in_a_loop_keep_the_values_that_they_had_when_they_were_applied(live: Live) -> None:
    batch = live(texts(1))
    df = batch.df
    for turn in range(3):
        df = df.transform(operator(f"row{turn} int", lambda row: (turn,), keep="*", name=f"row{turn}"))  # noqa: B023
        whole = arrow_operator(f"batch{turn} int", keep="*", name=f"batch{turn}")
        df = df.transform(whole(lambda given: pa.table({f"batch{turn}": [turn] * len(given)})))  # noqa: B023
    (row,) = collect(df.drop("number", "text"))
    assert row == {"batch2": 2, "row2": 2, "batch1": 1, "row1": 1, "batch0": 0, "row0": 0}
    assert set(batch.settle().values()) == {ACKED}


def test_copies_of_a_branch_keep_their_own_functions(live: Live) -> None:
    batch = live(texts(1))
    made = []
    for turn, copy in enumerate(branch(batch.df, 2)):
        made.append(copy.transform(operator("turn int", lambda row: (turn,), name=f"turn{turn}")))  # noqa: B023
    assert collect(made[0].union(made[1])) == [{"turn": 0}, {"turn": 1}]
    assert set(batch.settle().values()) == {ACKED}


def test_a_function_finds_its_broadcast_variables_in_each_plan(live: Live, spark: SparkSession) -> None:
    batch = live(texts(1))
    first, second = (spark.sparkContext.broadcast(value) for value in (7, 8))
    df = batch.df.transform(operator("a int", lambda row: (first.value,), name="first"))
    both = df.transform(operator("b int", lambda row: (row.a * 10 + second.value,), name="second"))
    assert df.select("a").collect() == [(7,)]
    assert both.select("b").collect() == [(78,)]
    assert collect(both) == [{"b": 78}]
    assert set(batch.settle().values()) == {ACKED}


def test_a_function_that_cannot_be_pickled_raises_where_it_is_applied(live: Live) -> None:
    lock = threading.Lock()
    with pytest.raises(PicklingError, match="lock"):
        live(texts(1)).df.transform(operator("a int", lambda row: lock and 1, name="locked"))
