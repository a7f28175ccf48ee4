"""Acks and fails as columns of a plain select."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from acker_client import Settings, Settlement
from acker_client.cluster.scope import BatchScope
from acker_client.pins import Pin
from acker_client.spark import Collector, group
from acker_client.spark import functions as AF
from acker_client.spark.driver.session import hand_down
from acker_client.spark.operators.read import frame_of
from acker_protocol.placement import Member, View, place
from tests.spark.live_batch import ACKED, FAILED, SCHEMA, Lines, LiveBatch, texts

pytestmark = pytest.mark.matrix


@pytest.fixture
def servers(spark: SparkSession, server: Any) -> Iterator[str]:
    spark.conf.set("spark.acker.servers", server.address)
    yield server.address
    spark.conf.unset("spark.acker.servers")


@pytest.mark.long
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


@pytest.mark.sampled(3)
@pytest.mark.parametrize("how", ["read", "ack", "collector"])
def test_a_server_that_a_task_went_on_without_is_noted_for_their_batch(
    spark: SparkSession, servers: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LiveBatch(spark, servers, texts(4)) as live:
        hello = live.client.hello()
        one, dead = Member(hello.id, hello.generation, servers), Member(hello.id + 1, 7, "127.0.0.1:1")
        alone, both = (
            Pin(live.session, 1, live.base, 4, place(View(1, members), live.session, 1, len(members)))
            for members in ((one,), (one, dead))
        )
        settings = replace(live.settings, servers=(servers, dead.address), replica_wait_s=0.05, pins=(both,))
        scope = BatchScope(live.session, 1, live.base)
        lines = [Lines(0, 4, live.texts)]
        all_alone = replace(live.settings, pins=(alone,))
        read, rest = (settings, all_alone) if how == "read" else (all_alone, settings)
        live.frame = frame_of(spark, name="lines", scope=scope, schema=SCHEMA, slices=lines, settings=read)
        hand_down(spark, rest)
        if how != "collector":
            monkeypatch.setattr(AF, "settings_of_columns", lambda _: (rest, ()))
            live.df.select("number", AF.ack()).write.format("noop").mode("append").save()
        else:
            live.df.foreachPartition(acking(rest))
        assert live.frame.evidence.without == {dead.id}
        assert live.settle(Settlement.DONE) == dict.fromkeys(range(4), ACKED)


def acking(settings: Settings) -> Callable[[Iterator[Any]], None]:
    def work(rows: Iterator[Any]) -> None:
        with Collector("works", settings) as out:
            for row in rows:
                out.ack(row)

    return work
