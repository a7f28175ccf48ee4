"""A Kinesis stream as a source, on a real Spark with a real server; moto stands in for AWS."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from acker_client.source import Batch, Kinesis, Retry
from acker_client.spark import operator, sink
from tests.source.kinesis_server import ENVIRONMENT, REGION, KinesisServer

RECORDS = 600
POISON = b"13"


@operator("value int, shard string", keep=["sequence_number"])
def parsed(row: Row) -> Any:
    if bytes(row.data) == POISON:
        raise ValueError("poison")
    assert row.arrival_timestamp.year >= 2026
    yield int(row.data), row.shard


@pytest.mark.long
def test_a_stream_that_is_split_and_merged_under_a_job_ends_with_each_record_written_once_but_for_the_poison(
    spark: SparkSession,
    server: Any,
    conf: Callable[[str, str], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    conf("spark.acker.servers", server.address)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)

    @sink
    def save(rows: DataFrame) -> None:
        rows.write.mode("append").parquet(f"{tmp_path}/out")

    with KinesisServer() as kinesis:
        kinesis.create("orders", 2)
        kinesis.put("orders", map(str, range(RECORDS // 3)))

        def process(batch: Batch) -> None:
            if batch.number == 1:
                kinesis.split("orders", 0)
                kinesis.put("orders", map(str, range(RECORDS // 3, 2 * RECORDS // 3)))
                kinesis.merge("orders", 3, 1)
                kinesis.put("orders", map(str, range(2 * RECORDS // 3, RECORDS)))
            save(batch.df.transform(parsed))

        def source(stop: str) -> Kinesis:
            return Kinesis(
                "orders",
                region=REGION,
                endpoint_url=kinesis.url,
                stop=stop,
                idle_s=0.1,
                name="orders",
                checkpoint=tmp_path / "orders.ckpt",
                dead_letters=tmp_path / "dead.jsonl",
                retry=Retry(max_retries=1, initial_s=0.0),
                max_dead_share=1.0,
                batch_records=400,
            )

        following, new = source("never"), 0
        for batch in following.batches(spark):
            process(batch)
            new += batch.records - batch.replays
            if new == RECORDS:
                batch.done()
                break
        summary, again = following.summary(), source("end").run(spark, process)
    written = Counter(row.value for row in spark.read.parquet(f"{tmp_path}/out").collect())
    assert written == Counter(k for k in range(RECORDS) if k != int(POISON))
    assert (summary.acked, summary.dead_lettered, summary.open) == (RECORDS - 1, 1, 0)
    assert (again.records, again.checkpoint) == (0, "end of the stream (5 shards)")
    (letter,) = map(json.loads, (tmp_path / "dead.jsonl").read_text().splitlines())
    assert (letter["stream"], letter["value"]) == ("orders", "13")
    assert letter["reason"].startswith("parsed: ValueError: poison")
    assert len({row.shard for row in spark.read.parquet(f"{tmp_path}/out").collect()}) >= 4
