"""The worked examples of the documents run unchanged, and all their records are acked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from acker_client.spark import sink
from tests.packaging import programs
from tests.spark.live_batch import ACKED

NOTES = ["apple pear apple", "pear", "plum"]
ALL = dict.fromkeys(range(3), ACKED)


@pytest.fixture(scope="module")
def examples() -> dict[str, Any]:
    """Return the names that the program with the examples defines."""
    # With the name of a script, the functions travel to workers by value, so the workers need no module to import.
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(programs.only("def each_item"), "examples.py", "exec"), names)
    return names


@pytest.fixture
def prices(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([("apple", 0.5), ("pear", 1.25)], "sku string, price double")


@sink
def collect(rows: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in rows.collect())


def orders(batch: Any) -> DataFrame:
    frame: DataFrame = batch.df.selectExpr(
        "number AS id", "text AS note", "split(text, ' ') AS items", "_root", "_edge"
    )
    return frame


@pytest.mark.long
def test_explode_and_join(live: Callable[..., Any], examples: dict[str, Any], prices: DataFrame) -> None:
    batch = live(NOTES)
    items = examples["each_item"](orders(batch))
    assert items.columns == ["id", "note", "sku", "_root", "_edge"]
    rows = collect(examples["priced"](items, prices).select("id", "sku", "price", "_root", "_edge"))
    assert rows == [(0, "apple", 0.5), (0, "apple", 0.5), (0, "pear", 1.25), (1, "pear", 1.25)]
    assert batch.settle() == ALL


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "expected"),
    [("totals", [(0, 2.25), (1, 1.25)]), ("once", [(0, "apple"), (0, "pear"), (1, "pear")])],
)
def test_group(
    live: Callable[..., Any], examples: dict[str, Any], prices: DataFrame, name: str, expected: list[Any]
) -> None:
    batch = live(NOTES)
    items = examples["priced"](examples["each_item"](orders(batch)), prices)
    assert collect(items.transform(examples[name])) == expected
    assert batch.settle() == ALL


@pytest.mark.long
def test_cogroup(live: Callable[..., Any], examples: dict[str, Any]) -> None:
    batch, other = live(NOTES), live(["paid", "by nobody we know"])
    payments = other.df.selectExpr("number * 7 AS id", "_root", "_edge")
    assert collect(examples["reminders"](examples["each_item"](orders(batch)), payments)) == [(1, "pear"), (2, "plum")]
    assert batch.settle() == ALL
    assert other.settle() == dict.fromkeys(range(2), ACKED)


@pytest.mark.long
def test_branch(live: Callable[..., Any], examples: dict[str, Any], prices: DataFrame) -> None:
    batch = live(NOTES)
    items = examples["priced"](examples["each_item"](orders(batch)), prices)
    cheap, dear = examples["split"](items.select("id", "price", "_root", "_edge"))
    assert collect(cheap) == [(0, 0.5)] * 2
    assert collect(dear) == [(0, 1.25), (1, 1.25)]
    assert batch.settle() == ALL


def test_pandas_with_parents(live: Callable[..., Any], examples: dict[str, Any]) -> None:
    batch = live([*NOTES, "   "])
    rows = collect(orders(batch).transform(examples["words"]))
    assert rows == [("apple", 0), ("apple", 0), ("pear", 0), ("pear", 1), ("plum", 2)]
    assert batch.settle() == dict.fromkeys(range(4), ACKED)


def test_arrow(live: Callable[..., Any], examples: dict[str, Any], prices: DataFrame) -> None:
    batch = live(NOTES)
    items = examples["priced"](examples["each_item"](orders(batch)), prices).select("id", "price", "_root", "_edge")
    assert collect(items.transform(examples["cents"])) == [(50, 0, 0.5), (50, 0, 0.5), (125, 0, 1.25), (125, 1, 1.25)]
    assert batch.settle() == ALL


def test_they_are_tested_without_spark_too(examples: dict[str, Any]) -> None:
    pa, pd = examples["pa"], examples["pd"]
    assert examples["totals"].test(pa.table({"id": [7, 7], "price": [1.0, 2.0]})).to_pylist() == [
        {"id": 7, "total": 3.0}
    ]
    frame = examples["words"].test(pd.DataFrame({"id": [1, 2], "note": ["a b", ""]}))
    assert frame.to_dict("list") == {"word": ["a", "b"], "id": [1, 1]}
    assert Row(**examples["cents"].test(pa.table({"price": [0.29]})).to_pylist()[0]) == Row(cents=29, price=0.29)
