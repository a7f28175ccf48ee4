"""Row digests that Spark computes: different rows have different digests, whichever values are null."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from acker_client.spark.driver.row_digest import row_digest

# For each type, values that all differ.
OTHERS: dict[str, list[Any]] = {
    "int": [None, 0, 1],
    "string": [None, "", "null", "a", "A"],
    "string collate UTF8_LCASE": [None, "a", "A"],
    "struct<a: int, b: int>": [None, (None, None), (1, None), (None, 1), (1, 1)],
    "struct<a: struct<b: int>>": [None, (None,), ((None,),), ((1,),)],
    "struct<`a.b`: int, A: int, a: int>": [(1, None, 2), (1, 2, None), (None, 1, 2)],
    "array<int>": [None, [], [None], [1], [1, None], [None, 1], [1, 1]],
    "array<string>": [[""], [], ["a", "b"], ["ab"], ["", "ab"]],
    "array<array<int>>": [[], [[]], [[], []], [None], [[1], [2]], [[1, 2]], [[1, 2], []], [[], [1, 2]]],
    "array<struct<a: string, b: string>>": [[("x", None)], [(None, "x")], [None, ("x", None)], [(None, None)]],
    "array<string collate UTF8_LCASE>": [["a", "b"], ["a", "B"]],
    "map<string, string>": [None, {}, {"a": None}, {"a": "null"}, {"a": "b"}, {"b": "a"}],
    "map<int, array<int>>": [{1: [2]}, {1: [None]}, {1: None}, {2: [1]}],
    "map<string, timestamp>": [{"a": datetime(2026, 1, 1, 1, 1, 1, 1)}, {"a": datetime(2026, 1, 1, 1, 1, 1, 2)}],
    "array<array<array<int>>>": [[[[1]]], [[[1], []]], [[[None]]], [[None]], [None]],
    "map<string, double>": [{"a": 0.1}, {"a": 0.1 + 2**-56}],
}


@pytest.mark.matrix
def test_rows_that_are_not_the_same_have_other_digests_whatever_is_null_in_them(spark: SparkSession) -> None:
    names = [f"_{number}" for number in range(len(OTHERS))]
    schema = ", ".join(f"{name} {kind}" for name, kind in zip(names, OTHERS, strict=True))
    # Each value is in several rows.
    rows = [
        tuple(values[at % len(values)] for values in OTHERS.values())
        for at in range(2 * max(map(len, OTHERS.values())))
    ]
    df = spark.createDataFrame(rows, schema).coalesce(1).withColumn("place", F.lit(7))
    # Each digest also covers a column that is the same in all rows.
    digests = [row_digest("place", [name, "place"], [df.schema[name], df.schema["place"]]) for name in names]
    found = df.selectExpr(*digests).collect()
    for column, (kind, values) in enumerate(OTHERS.items()):
        pairs = {(at % len(values), row[column]) for at, row in enumerate(found)}
        assert len(pairs) == len({digest for _, digest in pairs}) == len(values), kind
