"""Acks and fails as columns of a plain select."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from acker_client.spark import functions as AF
from acker_client.spark import group
from tests.spark.live_batch import ACKED, FAILED, LiveBatch, texts

pytestmark = pytest.mark.matrix


@pytest.fixture
def servers(spark: SparkSession, server: Any) -> Iterator[str]:
    spark.conf.set("spark.acker.servers", server.address)
    yield server.address
    spark.conf.unset("spark.acker.servers")


def test_rows_are_acked_when_the_select_is_run(spark: SparkSession, servers: str) -> None:
    with LiveBatch(spark, servers, texts(20)) as live:
        assert live.df.select("number", AF.ack().alias("acked")).collect()[0] == (0, True)
        assert live.settle() == dict.fromkeys(range(20), ACKED)


def test_a_fail_fails_the_rows_that_have_a_reason_and_acks_the_others(spark: SparkSession, servers: str) -> None:
    with LiveBatch(spark, servers, texts(20)) as live:
        reason = F.when(F.col("number") == 3, F.concat(F.lit("bad "), "number"))
        rows = live.df.select("number", AF.fail(reason).alias("failed")).collect()
        assert [row.number for row in rows if row.failed] == [3]
        assert live.settle() == {number: FAILED if number == 3 else ACKED for number in range(20)}
        assert live.reasons[3] == "fail: bad 3"


def test_a_fail_that_nobody_selects_fails_all_the_same(spark: SparkSession, servers: str) -> None:
    with LiveBatch(spark, servers, texts(20)) as live:
        live.df.withColumn("failed", AF.fail(F.lit("bad"))).select("number").collect()
        assert set(live.settle().values()) == {FAILED}
        assert set(live.reasons.values()) == {"fail: bad"}


def test_an_ack_that_nobody_writes_acks_all_the_same(spark: SparkSession, servers: str) -> None:
    with LiveBatch(spark, servers, texts(20)) as live:
        live.df.select("number", AF.ack().alias("acked")).drop("acked").collect()
        assert live.settle() == dict.fromkeys(range(20), ACKED)


@group("first", "rows long")
def count(rows: pa.Table) -> Any:
    return pa.table({"rows": pa.array([len(rows)], pa.int64())}), "all"


def test_packed_anchors_are_acked(spark: SparkSession, servers: str) -> None:
    with LiveBatch(spark, servers, texts(20)) as live:
        counted = live.df.withColumn("first", F.col("number") % 2).transform(count)
        assert counted.select("rows", AF.ack("_anchors")).collect() == [(10, True), (10, True)]
        assert live.settle() == dict.fromkeys(range(20), ACKED)
