"""Steps for tests of the guard: plain mapInArrow nodes that have the function name of a tracked step and pass rows on
unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from acker_client.spark.driver import lineage

THIN = "id long, word string, _root bigint, _edge bigint"
PACKED = "id long, word string, _anchors binary"


@dataclass(eq=False)
class FakeBatch:
    """Stands in for the driver's state of a batch."""

    number: int = 1


def tracked(spark: SparkSession, name: str, batch: FakeBatch, *, moving_boundaries: bool = False) -> DataFrame:
    """Return two rows with ``_root`` and ``_edge`` that look like output of operator ``name``."""
    base = spark.range(2).selectExpr("id", "'w' AS word", "id + 10 AS _root", "id + 20 AS _edge")
    return _tracked(base, name, THIN, batch, moving_boundaries)


def packed(spark: SparkSession, name: str, batch: FakeBatch) -> DataFrame:
    """Return two rows with packed anchors."""
    base = spark.range(2).selectExpr("id", "'w' AS word", "CAST('0123456789abcdef' AS binary) AS _anchors")
    return _tracked(base, name, PACKED, batch, False)


def _tracked(base: DataFrame, name: str, schema: str, batch: FakeBatch, moving: bool) -> DataFrame:
    node = lineage.register("operator", name, batch, moving_boundaries=moving)

    def hand_on(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches

    hand_on.__name__ = lineage.function_name(node.kind, node.name, node.tag)
    return base.mapInArrow(hand_on, schema)
