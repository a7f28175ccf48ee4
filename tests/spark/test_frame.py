"""Any DataFrame as a source, on a real Spark with a real server: numbering, replays, keys, schemas, other rows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from acker_client.source import Batch, CheckpointError, Frame, InputChanged, Retry, tracked
from acker_client.spark import operator, sink

QUICK = Retry(max_retries=1, initial_s=0.01, cap_s=0.01)
POISON = 13


@pytest.fixture
def connected(spark: SparkSession, server: Any, conf: Callable[[str, str], None]) -> SparkSession:
    conf("spark.acker.servers", server.address)
    return spark


@operator("id long", keep="*")
def poisoned(row: Row) -> Any:
    if row.id == POISON:
        raise ValueError("poison")
    yield (row.id,)


@operator("twice long")
def doubled(row: Row) -> Any:
    if row.id == POISON:
        raise ValueError("poison")
    yield (2 * row.id,)


def collecting(found: list[Any]) -> Any:
    @sink
    def collect(rows: DataFrame) -> None:
        found.extend(rows.collect())

    return collect


def is_persisted(df: DataFrame) -> bool:
    level = df.storageLevel
    return bool(level.useMemory or level.useDisk)


def test_every_row_of_a_frame_is_acked_or_in_the_dead_letters_under_its_key_and_nothing_stays_persisted(
    connected: SparkSession, tmp_path: Path
) -> None:
    df = connected.range(0, 20_000, 1, 5).selectExpr("id", "concat('n', id) as name")
    found: list[Row] = []
    save = collecting(found)
    rows: list[int] = []

    def process(batch: Batch) -> None:
        rows.append(batch.records)
        save(batch.df.transform(doubled))

    source = Frame(df, name="ids", key="name", dead_letters=tmp_path / "dead", retry=QUICK)
    summary = source.run(connected, process)
    assert (summary.acked, summary.dead_lettered, summary.open, summary.replayed) == (19_999, 1, 0, 1)
    assert rows == [20_000, 1]
    assert Counter(row.twice for row in found) == Counter(2 * k for k in range(20_000) if k != POISON)
    (letter,) = [json.loads(line) for line in (tmp_path / "dead").open()]
    assert (letter["key"], letter["value"]) == ({"name": "n13"}, {"id": 13, "name": "n13"})
    assert letter["reason"].startswith("doubled: ValueError: poison")
    assert not is_persisted(df)
