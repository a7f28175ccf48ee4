"""The types of the public API, which users' own type checks need. `make check` type-checks this file; nothing runs it.

mypy must refuse each line with an ``ignore``, because strict mode reports an ignore that is not needed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Any, assert_type

import numpy as np
import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Row, SparkSession

from acker_client import (
    AckerClient,
    Anchor,
    Entries,
    Identity,
    MessageOutcome,
    OpenSource,
    Outcomes,
    ReportResult,
    RootOutcome,
    Settings,
    Settlement,
    Verdict,
    WatchResult,
)
from acker_client.source import (
    Batch,
    DeadLetter,
    DeadLetterObjects,
    Emissions,
    Failures,
    Files,
    Frame,
    KafkaTopic,
    Listener,
    Original,
    Parquet,
    Progress,
    PutBack,
    Ranges,
    RecordOutcome,
    Retry,
    S3Checkpoint,
    Summary,
    Table,
    Tracked,
    tracked,
)
from acker_client.spark import (
    Collector,
    Operator,
    Sink,
    branch,
    check,
    cogroup,
    collector_settings,
    delta_options,
    explode,
    group,
    join,
    operator,
    pandas_operator,
    sink,
    where,
    write_parquet,
)
from acker_client.spark import functions as AF
from acker_testing import LocalServer, Pipeline, SimulatedTime


def plain(client: AckerClient) -> None:
    source = client.open_source("orders", lease_s=60, message_timeout_s=None, on_ack=print, on_fail=print)
    session: int = source
    assert_type(source, OpenSource)
    assert_type(source.emit(("orders", session)), Anchor)
    source.emit([])  # type: ignore[arg-type]
    assert_type(source.emit_columns(5, message_ids=["a"] * 5)[0].tolist(), Any)
    for outcome in source.outcomes():
        assert_type(outcome, MessageOutcome)
        assert_type(outcome.verdict, Verdict)
    client.open_source("orders", limits=5)  # type: ignore[call-arg]
    client.open_source("orders", message_timeout_s="30 s")  # type: ignore[arg-type]
    anchor = client.emit()
    assert_type(anchor, Anchor)
    assert_type(anchor.root_id, int)
    root, edge = anchor
    assert_type(edge, int)
    client.ack(root, edge, emitted=[client.new_edge()])
    client.ack(root, edge, emitted=5)  # type: ignore[arg-type]
    client.init(root, [edge, edge], batch=1)
    client.init(root, edge)  # type: ignore[call-arg]
    client.fail(root, "no such sku", edge=edge)
    client.ack_columns(np.arange(3, dtype=np.uint64), [1, 2, 3])
    assert_type(client.report(Identity(1, 2), Entries(np.arange(1), np.arange(1))), ReportResult)  # type: ignore[arg-type]
    client.open_batch(1, 1 << 40, 10, held=False, message_timeout_s=1.5)
    client.settle(1, Settlement.DONE)
    watched = client.watch(5.0)
    assert_type(watched.settled, tuple[int, ...])
    assert_type(watched, WatchResult)
    assert_type(watched.outcomes, Outcomes)
    for each in watched.outcomes:
        assert_type(each, RootOutcome)
        assert_type(each.verdict, Verdict)
        assert_type(each.reason, str)
    with client as same:
        assert_type(same, AckerClient)
    with AckerClient(Settings(("a:7070", "b:7070"), budget_s=5)) as other:
        other.flush()


def sources(spark: SparkSession) -> None:
    files = Files("orders/*.jsonl", name="orders", schema="sku string", retry=Retry(max_retries=5), checkpoint="at")
    assert_type(files.batches(spark), Generator[Batch, None, None])
    for batch in files.batches(spark):
        assert_type(batch.df, DataFrame)
        assert_type(batch.number, int)
        assert_type(batch.id, str)
        batch.on_abandon(lambda: print("taken back"))
        write_parquet(batch.df, "out", batch, part="all", partition_by=["day"])
        assert_type(delta_options(batch, "items"), dict[str, str])
        with batch as same:
            assert_type(same, Batch)
        batch.done()
    assert_type(files.run(spark, save_each), Summary)
    assert_type(files.summary().acked, int)
    assert_type(files.progress(), Progress)
    assert_type(files.outcomes(spark, save_each), Generator[RecordOutcome, None, None])
    for outcome in files.outcomes(spark, save_each):
        assert_type(outcome.verdict, Verdict)
        assert_type(outcome.where, str)
    Parquet("orders/*.parquet", name="orders", listener=Noting())
    Files("logs/*", name="logs", follow_s=2.0, dead_letters=lambda letters: print(len(letters))).stop()
    PutBack("again.jsonl", name="again", checkpoint="at", schema="sku string")
    Files("bucket/orders/*", name="orders", filesystem=object(), checkpoint=S3Checkpoint("s3://bucket/at", client=None))
    Parquet("s3://bucket/orders/", name="orders", dead_letters=DeadLetterObjects("bucket/dead", filesystem=object()))
    PutBack(name="again", checkpoint="at")  # type: ignore[call-arg]
    Files("orders/*.jsonl", name="orders", message_timeout_s=600, tracking=False)
    Files("orders/*.jsonl", name="orders", track=lambda batch: [True] * batch.num_rows)
    Files("orders/*.jsonl", name="orders", track=3)  # type: ignore[arg-type]
    Files("orders/*.jsonl", name="orders", no_such_option=1)  # type: ignore[call-arg]
    files.run(spark, "save")  # type: ignore[arg-type]
    frame = Frame(spark.range(3), name="ids", key=["id"], storage_level=StorageLevel.DISK_ONLY)
    assert_type(frame.run(spark, save_each), Summary)
    Frame("orders", name="ids")  # type: ignore[arg-type]
    job = tracked(save_each, name="ids", key="id", dead_letters="dead.jsonl")
    assert_type(job, Tracked)
    spark.readStream.format("rate").load().writeStream.foreachBatch(job)
    assert_type(job.summary(), Summary | None)


class Noting(Listener):
    def on_ack(self, acked: Emissions) -> None:
        assert_type(acked.originals(), list[Original])

    def on_fail(self, failed: Emissions, why: Failures) -> None:
        assert_type(why.reason(0), str)


class Letters:
    """A user-defined store for dead letters."""

    def open(self) -> None: ...

    def write(self, letters: Iterable[DeadLetter]) -> None: ...

    def close(self) -> None: ...


class Topic:
    """A user-defined store for outcomes."""

    def open(self) -> None: ...

    def write(self, outcomes: Iterable[RecordOutcome]) -> None: ...

    def close(self) -> None: ...


class Policy:
    """A user-defined retry policy."""

    def decide(self, attempts: int, verdict: Verdict, reason: str, origin: Mapping[str, Any]) -> float | None:
        return None if verdict is Verdict.FAILED else 2.0 * attempts


def ports() -> None:
    topic = KafkaTopic("orders.outcomes", bootstrap_servers="localhost:9092")
    Files("orders/*.jsonl", name="orders", retry=Policy(), outcomes=Topic(), dead_letters="log", progress=False)
    Files("orders/*.jsonl", name="orders", outcomes=topic, dead_letters=topic)
    Files("orders/*.jsonl", name="orders", dead_letters=Table("db.dead"))
    Files("orders/*.jsonl", name="orders", outcomes=Letters())  # type: ignore[arg-type]
    Files("orders/*.jsonl", name="orders", retry=3)  # type: ignore[arg-type]


def stores() -> None:
    Files("orders/*.jsonl", name="orders", dead_letters=Letters())
    Files("orders/*.jsonl", name="orders", checkpoint=Letters())  # type: ignore[arg-type]
    assert_type(Ranges.below(5).prefix, int)


@operator("sku string, qty int", keep=["id"])
def items(row: Row) -> Iterator[tuple[str, int]]:
    yield row.sku, row.qty


@pandas_operator("total double")
def totals(frame: Any) -> Any:
    return frame


@group("sku", "sku string, n bigint")
def counts(rows: pa.Table) -> tuple[list[Any], list[Any]]:
    return [], []


@cogroup("sku", "sku string, n bigint")
def both(key: tuple[Any, ...], left: pa.Table, right: pa.Table) -> tuple[pa.Table, list[list[int]], list[list[int]]]:
    return left, [[0]], [[0]]


@sink
def save(rows: DataFrame, path: str, *, mode: str = "append") -> int:
    rows.write.mode(mode).parquet(path)
    return 1


@sink(name="print", cache=False)
def show(rows: DataFrame) -> None:
    rows.foreach(print)


class Store:
    @sink
    def put(self, rows: DataFrame, path: str) -> int:
        rows.write.parquet(path)
        return 1


def save_each(batch: Batch) -> None:
    save(batch.df.transform(items), "out")


def spark_api(df: DataFrame, spark: SparkSession) -> None:
    assert_type(items, Operator)
    assert_type(items(df), DataFrame)
    assert_type(operator("n int", lambda row: row.n), Operator)
    assert_type(df.transform(items).transform(where("qty > 1")).transform(explode("tags")), DataFrame)
    assert_type(df.transform(join(spark.table("prices"), "sku", "left")), DataFrame)
    join(spark.table("prices"), "sku", "outer")  # type: ignore[arg-type]
    left, right = branch(df, 2)
    assert_type(left, DataFrame)
    assert_type(counts(right), DataFrame)
    assert_type(both(left, right), DataFrame)
    assert_type(left.transform(both, right), DataFrame)
    saving: Sink[..., int] = save
    assert_type(saving(df), int)
    assert_type(save(df, "out", mode="overwrite"), int)
    save(df)  # type: ignore[call-arg]
    save(df, 5)  # type: ignore[arg-type]
    show(df)
    assert_type(Store().put(df, "out"), int)
    Store().put("out")  # type: ignore[call-arg, arg-type]
    assert_type(AF.ack(), Column)
    assert_type(AF.fail(df.reason), Column)
    assert_type(collector_settings(spark), Settings)
    with Collector("split", collector_settings(spark)) as collector:
        assert_type(collector, Collector)
        assert_type(collector.emit({"sku": "pear"}, [Row()]), Row)
        collector.fail(Row(), "no such sku")
    check(spark)


def testing() -> None:
    time = SimulatedTime()
    assert_type(time.clock(), float)
    server = LocalServer(clock=time.clock, sleep=time.sleep)
    AckerClient(connect=server.connect, clock=time.clock, sleep=time.sleep)
    with Pipeline() as pipeline:
        result = pipeline.run(["a line"], save_each)
        assert_type(result.acked, list[Any])
    transform: Callable[[DataFrame], DataFrame] = where("qty > 1")
    del transform
