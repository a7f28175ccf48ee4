"""Parquet files as a source, on a real Spark with a real server."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Row, SparkSession

from acker_client.source import Batch, Parquet, Retry
from acker_client.spark import operator, sink

ROWS = 60
POISON, STUCK = 13, 20
MIDNIGHT = datetime(2026, 3, 29, tzinfo=UTC)


@operator("id long, total decimal(14,2), city string, first_tag string, at timestamp")
def totals(row: Row) -> Any:
    if row.id == POISON:
        raise ValueError("poison")
    yield row.id, sum(item.price * item.qty for item in row["items"]), row.to["city"], row.tags[0], row.at


@operator("id long")
def stuck_once(row: Row) -> Any:
    if row.id == STUCK:
        raise ValueError("stuck")
    yield (row.id,)


def write_orders(spark: SparkSession, folder: Path) -> None:
    """Write three files with Spark, with INT96 timestamps and row groups of a few rows."""
    rows = [
        (
            k,
            [(Decimal(k) / 4, 2), (Decimal("0.25"), 1)],
            (f"city {k % 3}",),
            [f"tag {k}", None],
            MIDNIGHT + timedelta(microseconds=k),
        )
        for k in range(ROWS)
    ]
    schema = (
        "id long, items array<struct<price: decimal(10,2), qty: int>>, to struct<city: string>, tags array<string>,"
        " at timestamp"
    )
    frame = spark.createDataFrame(rows, schema).repartitionByRange(3, "id")
    frame.write.option("parquet.block.size", 1).option("spark.sql.parquet.outputTimestampType", "INT96").parquet(
        str(folder)
    )
    assert len(list(folder.glob("*.parquet"))) == 3
    physical = pq.ParquetFile(next(folder.glob("*.parquet"))).schema
    assert "INT96" in {physical.column(index).physical_type for index in range(len(physical))}


def test_rows_of_parquet_files_are_tracked_one_by_one_and_a_poison_row_dies_alone(
    connected: SparkSession, tmp_path: Path
) -> None:
    write_orders(connected, tmp_path / "orders")

    @sink
    def save(rows: DataFrame) -> None:
        rows.write.mode("append").parquet(f"{tmp_path}/out")

    source = Parquet(
        tmp_path / "orders",
        name="orders",
        checkpoint=tmp_path / "orders.ckpt",
        dead_letters=tmp_path / "dead.jsonl",
        retry=Retry(max_retries=1, initial_s=0.01, cap_s=0.01),
        max_dead_share=1.0,
        batch_records=25,
    )
    summary = source.run(connected, lambda batch: save(batch.df.transform(totals)))
    assert (summary.acked, summary.dead_lettered, summary.open) == (ROWS - 1, 1, 0)
    (letter,) = [json.loads(line) for line in (tmp_path / "dead.jsonl").open()]
    assert letter["reason"].startswith("totals: ValueError: poison")
    assert (letter["value"]["id"], letter["value"]["items"][0]) == (POISON, {"price": "3.25", "qty": 2})
    out = Counter(tuple(row) for row in connected.read.parquet(f"{tmp_path}/out").collect())
    expected = connected.read.parquet(f"{tmp_path}/orders").selectExpr(
        "id", "cast(id / 2 + 0.25 as decimal(14,2))", "to.city", "tags[0]", "at"
    )
    assert out == Counter(tuple(row) for row in expected.where(f"id <> {POISON}").collect())


def test_a_restart_with_holes_reads_again_only_the_rows_that_were_open(connected: SparkSession, tmp_path: Path) -> None:
    write_orders(connected, tmp_path / "orders")
    read: list[int] = []

    def source(retry: Retry) -> Parquet:
        return Parquet(
            tmp_path / "orders", schema="id long", name="ids", checkpoint=tmp_path / "c", retry=retry, batch_records=30
        )

    @sink
    def note(rows: DataFrame) -> None:
        read.extend(row.id for row in rows.collect())

    def stop_with_a_hole(batch: Batch) -> None:
        note(batch.df.transform(stuck_once))
        if batch.number == 2:
            batch.done()

    for batch in source(Retry(initial_s=1000, cap_s=1000)).batches(connected):
        stop_with_a_hole(batch)
        if batch.number == 2:
            break
    assert sorted(read) == [k for k in range(ROWS) if k != STUCK]
    runs = [each["done"] for each in json.loads((tmp_path / "c").read_text())["partitions"]]
    assert sum(sum(lengths[::2]) for lengths in runs) == ROWS - 1
    read.clear()
    summary = source(Retry()).run(connected, lambda batch: note(batch.df))
    assert (read, summary.records, summary.acked) == ([STUCK], 1, 1)
