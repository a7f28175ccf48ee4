"""Steps of a random body: looks, and transformations before a write. Runs in driver and workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.udtf import SkipRestOfInputTableException

COLUMNS = ("number", "day", "text")


class Barred:
    """Function that raises on every row until the file ``flag`` exists. A file is visible to all processes."""

    def __init__(self, flag: str) -> None:
        self.flag = flag

    def __call__(self, number: int) -> int:
        if not Path(self.flag).exists():
            raise RuntimeError("barred")
        return number


class Skipping:
    """A UDTF that skips the rest of its table after one row."""

    def eval(self, row: Any) -> Iterator[tuple[int, int, str]]:
        yield row["number"], row["day"], row["text"]
        raise SkipRestOfInputTableException


def every(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


def piece(batches: Iterator[Any]) -> Iterator[Any]:
    yield next(batches).slice(0, 1)


def one_batch(batches: Iterator[Any]) -> Iterator[Any]:
    yield from islice(batches, 1)


def same(rows: Any) -> Any:
    return rows


def view_of(rows: DataFrame, name: str = "") -> str:
    """Create a temporary view of ``rows`` and return its name. Without ``name``, the view is unique to ``rows``."""
    name = f"body_{name or abs(id(rows))}"
    rows.createOrReplaceTempView(name)
    return name


def _seen(rows: DataFrame) -> DataFrame:
    return rows.sparkSession.sql(f"select * from {view_of(rows)}")


def _counted(rows: DataFrame) -> DataFrame:
    cached = rows.cache()
    cached.count()
    return cached


def _skipping(rows: DataFrame) -> DataFrame:
    function: Any = F.udtf(Skipping, returnType="number long, day int, text string")
    rows.sparkSession.udtf.register("skipping", function)
    return rows.sparkSession.sql(f"select * from skipping(table({view_of(rows)}))")


def _joined(rows: DataFrame) -> DataFrame:
    return rows.join(rows.sparkSession.range(100).withColumnRenamed("id", "number"), "number").select(*COLUMNS)


def _joined_to(rows: DataFrame) -> DataFrame:
    other = rows.sparkSession.range(100).withColumnRenamed("id", "number")
    return other.join(rows, "number").select(*COLUMNS)


def _window(rows: DataFrame) -> DataFrame:
    return rows.withColumn("n", F.row_number().over(Window.partitionBy("day").orderBy("number"))).drop("n")


def _aggregated(rows: DataFrame) -> DataFrame:
    return rows.groupBy("number").agg(F.first("day").alias("day"), F.first("text").alias("text"))


BETWEEN: dict[str, Callable[[DataFrame], DataFrame]] = {
    "select": lambda rows: rows.select(*COLUMNS),
    "column": lambda rows: rows.withColumn("text", F.upper("text")),
    "repartition": lambda rows: rows.repartition(2),
    "coalesce": lambda rows: rows.coalesce(1),
    "sort": lambda rows: rows.orderBy("number"),
    "sort within": lambda rows: rows.sortWithinPartitions("text"),
    "cache": lambda rows: rows.cache(),
    "cache and count": _counted,
    "local checkpoint": lambda rows: rows.localCheckpoint(),
    "checkpoint": lambda rows: rows.checkpoint(),
    "map all": lambda rows: rows.mapInArrow(every, rows.schema),
    "pandas all": lambda rows: rows.mapInPandas(every, rows.schema),
    "join": _joined,
    "join to another": _joined_to,
    "window": _window,
    "view": _seen,
    "table": lambda rows: rows.sparkSession.table(view_of(rows)),
    "distinct": lambda rows: rows.distinct(),
    "group": lambda rows: rows.groupBy("day").applyInPandas(same, rows.schema),
    "union": lambda rows: rows.union(rows.where("false")),
    "aggregate": _aggregated,
    "even": lambda rows: rows.where("number % 2 = 0"),
    "none": lambda rows: rows.where("number < 0"),
    "limit": lambda rows: rows.limit(3),
    "map a piece": lambda rows: rows.mapInArrow(piece, rows.schema),
    "map a batch": lambda rows: rows.mapInArrow(one_batch, rows.schema),
    "udtf": _skipping,
}

LOOK: dict[str, Callable[[DataFrame], Any]] = {
    "count": lambda rows: rows.count(),
    "is empty": lambda rows: rows.isEmpty(),
    "take": lambda rows: rows.take(2),
    "first": lambda rows: rows.first(),
    "sum": lambda rows: rows.agg(F.sum("number")).collect(),
    "counts by day": lambda rows: rows.groupBy("day").count().collect(),
    "distinct days": lambda rows: rows.select("day").distinct().collect(),
    "crosstab": lambda rows: rows.crosstab("day", "text").collect(),
    "describe": lambda rows: rows.describe("number").collect(),
    "rdd count": lambda rows: rows.rdd.count(),
    "aggregate by key": lambda rows: rows.groupBy("number").agg(F.max("text")).toPandas(),
}
