"""Tables: creates a table of Spark's catalog, and appends rows that the driver holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F


def create_table(spark: SparkSession, name: str, columns: Mapping[str, str]) -> list[str]:
    """Create a table with these ``columns`` (name: type) unless it exists. Returns the columns that a table which
    exists lacks."""
    if not spark.catalog.tableExists(name):
        schema = ", ".join(f"{column} {kind}" for column, kind in columns.items())
        # "ignore": another driver may have created it meanwhile.
        spark.createDataFrame([], schema).write.mode("ignore").saveAsTable(name)
    there = {column.lower() for column in spark.table(name).columns}
    return [column for column in columns if column not in there]


def append_rows(spark: SparkSession, name: str, rows: Sequence[tuple[Any, ...]], schema: str) -> None:
    """Append rows to a table, by the names of its columns. Other columns of the table get null."""
    frame = spark.createDataFrame(rows, schema).coalesce(1)
    given = {column.lower() for column in frame.columns}
    columns = [
        F.col(column) if column.lower() in given else F.lit(None).alias(column) for column in spark.table(name).columns
    ]
    frame.select(*columns).write.insertInto(name)
