"""Frames of a plain source: the driver emits their rows, tasks ack them by several means, and never too early."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import InheritableThread
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from acker_client import AckerClient, OpenSource, Verdict
from acker_client.source import Frame, hand_on
from acker_client.spark import (
    Collector,
    Refused,
    acker_udf,
    branch,
    operator,
    process_client,
    sink,
    where,
)
from acker_client.spark import functions as AF
from acker_client.spark.anchoring.pages import OtherRows, Pages, Runs, place_of
from acker_client.spark.anchoring.tally import Report
from acker_client.spark.commit_evidence.acked import AckedTwice, Copied
from acker_client.spark.commit_evidence.batch import NotHeld
from acker_client.spark.driver import embedded
from acker_client.spark.driver.persisted import DIGEST, PLACE
from acker_client.spark.driver.session import NO_TRACKING, PINS, TASK_TRACKING, SessionError, hand_down
from acker_client.spark.operators.emitted import EmittedReading
from acker_protocol.ids import edge0, hash64, root_id

ROWS = 12
ALL = dict.fromkeys(range(ROWS), "ACKED")
FIFTHS = {number: "ACKED" if number % 5 else "FAILED" for number in range(ROWS)}


@pytest.fixture
def source(start_server: Callable[..., Any]) -> Iterator[OpenSource]:
    """A source on three servers."""
    yield from open_source([start_server(id=number).address for number in range(3)])


@pytest.fixture
def alone(server: Any) -> Iterator[OpenSource]:
    """A source on one server."""
    yield from open_source([server.address])


def open_source(servers: list[str]) -> Iterator[OpenSource]:
    with AckerClient(servers) as client, client.open_source("plain", lease_s=600, message_timeout_s=None) as source:
        yield source


@pytest.fixture
def df(spark: SparkSession) -> DataFrame:
    return spark.range(ROWS).selectExpr("id", "concat('w', id) AS text").repartition(3)


@pytest.fixture(autouse=True)
def _own_thread_properties(spark: SparkSession) -> Iterator[None]:
    """Give the next test a thread to which nothing was handed down."""
    yield
    for key in ("spark.acker.servers", PINS, "spark.acker.notes"):
        spark.sparkContext.setLocalProperty(key, None)  # type: ignore[arg-type]


def verdicts(source: OpenSource) -> dict[Any, str]:
    found: dict[Any, str] = {}
    while source.pending:
        outcome = next(source.outcomes())
        assert outcome.message_id not in found
        found[outcome.message_id] = outcome.verdict.name
    return found


def post_all(rows: Iterator[Row]) -> None:
    with Collector("post") as out:
        for row in rows:
            out.ack(row)


def read_all(rows: Iterator[Row]) -> None:
    for _ in rows:
        pass


def post(rows: Iterable[Any]) -> None:
    with Collector("post") as out:
        for row in rows:
            if row.id % 5:
                out.ack(row)
            else:
                out.fail(row, "on purpose")


@pytest.mark.long
@pytest.mark.matrix
def test_a_collector_on_several_servers_needs_nothing_but_the_frame(source: OpenSource, df: DataFrame) -> None:
    frame = source.frame(df, message_id="id")
    assert frame.columns == ["id", "text", "_root", "_edge"]
    job = InheritableThread(target=frame.foreachPartition, args=(post,))
    job.start()
    assert verdicts(source) == FIFTHS
    job.join()


@pytest.mark.long
def test_collectors_in_two_stages_end_the_trees_of_the_rows(source: OpenSource, df: DataFrame) -> None:
    def split(rows: Iterable[Any]) -> Iterator[Row]:
        with Collector("split") as out:
            for row in rows:
                for letter in row.text:
                    yield out.emit({"id": row.id, "letter": letter}, anchors=[row])
                yield out.emit({"id": row.id, "letter": "log"}, anchors=[])
                out.ack(row)

    frame = source.frame(df, message_id="id")
    letters = frame.rdd.mapPartitions(split).repartition(2)
    letters.foreachPartition(post)
    assert verdicts(source) == FIFTHS


@pytest.mark.long
@pytest.mark.matrix
def test_an_ack_column_waits_for_the_columns_that_it_names(alone: OpenSource, df: DataFrame) -> None:
    checked = F.udf(lambda text: f"no {text}" if text == "w7" else None, "string")
    frame = alone.frame(df, message_id="id")
    frame.select("id", AF.fail(checked("text"), after="text")).collect()
    assert verdicts(alone) == {**ALL, 7: "FAILED"}
    loud = F.udf(str.upper, "string")
    frame = alone.frame(df, message_id=["id", "text"])
    made = frame.withColumn("loud", loud("text")).select("loud", AF.ack(after="loud"))
    assert min(made.collect()) == ("W0", True)
    assert verdicts(alone) == {(number, f"w{number}"): "ACKED" for number in range(ROWS)}


@pytest.mark.long
def test_an_ack_that_waits_for_nothing_is_refused_for_rows_that_are_not_held(alone: OpenSource, df: DataFrame) -> None:
    frame = alone.frame(df)
    nothing = F.lit(None).cast("string")
    for name, column in {"ack": AF.ack(), "fail": AF.fail(nothing), "emit": AF.emit(F.lit(0))}.items():
        with pytest.raises(Exception, match=rf"{name}: .* name the columns that have to be computed before, in after="):
            frame.select("id", column).collect()
    assert alone.pending == ROWS
    frame.select("id", AF.ack(after="id")).collect()
    assert len(verdicts(alone)) == ROWS


@pytest.mark.long
def test_what_an_ack_column_names_is_computed_in_a_node_below_it(alone: OpenSource, df: DataFrame) -> None:
    loud = F.udf(str.upper, "string")
    made = alone.frame(df).select(loud("text").alias("loud"), "_root", "_edge").select(AF.ack(after="loud"))
    plan = made._jdf.queryExecution().executedPlan().toString()
    evals = [line for line in plan.splitlines() if "EvalPython" in line]
    assert ["acker_ack_" in line for line in evals] == [True, False]


@acker_udf("int")
def row_udf(number: int, text: str) -> int:
    if number % 5 == 0:
        raise ValueError("on purpose")
    return len(text)


@acker_udf("long", emits=True)
def tell(number: int) -> int:
    return number


@acker_udf("long")
def row_value(value: int) -> int:
    return value


@acker_udf("long")
def other_value(value: int) -> int:
    return value


@acker_udf("int")
def pandas_udf(number: pd.Series, text: pd.Series) -> pd.Series:
    if (number % 5 == 0).any():
        raise ValueError("on purpose")
    return text.str.len()


@acker_udf("int")
def arrow_udf(number: pa.Array, text: pa.Array) -> pa.Array:
    return pa.array([row_udf.function(*each) for each in zip(number.to_pylist(), text.to_pylist(), strict=True)])


@acker_udf("int")
def iterator_udf(batches: Iterator[tuple[pd.Series, pd.Series]]) -> Iterator[pd.Series]:
    for batch in batches:
        yield pandas_udf.function(*batch)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("udf", [row_udf, pandas_udf, arrow_udf, iterator_udf], ids=lambda each: each.name)
def test_a_udf_acks_its_rows_and_fails_those_for_which_it_raises(source: OpenSource, df: DataFrame, udf: Any) -> None:
    made = source.frame(df, message_id="id").select("id", udf("id", "text").alias("size")).collect()
    assert {row.id: row["size"] for row in made} == {
        number: len(f"w{number}") if number % 5 else None for number in range(ROWS)
    }
    assert verdicts(source) == FIFTHS


@operator("id long")
def as_operator(row: Row) -> int:
    return int(row.id)


def renamed(frame: DataFrame) -> DataFrame:
    return frame.toDF("a", "b", "c", "d", *frame.columns[4:])


@pytest.mark.parametrize(
    "work",
    [
        lambda frame: frame.select(row_udf("id", "text"), pandas_udf("id", "text")),
        lambda frame: frame.withColumn("n", row_udf("id", "text")).withColumn("m", pandas_udf("id", "text")),
        lambda frame: frame.withColumn("n", row_udf("id", "text")).foreachPartition(post),
        lambda frame: renamed(frame.withColumn("n", row_udf("id", "text"))).select(
            pandas_udf("a", "b", anchors=["c", "d"])
        ),
        lambda frame: renamed(frame.withColumn("n", row_udf("id", "text"))).foreachPartition(read_all),
        lambda frame: (
            frame.select("id", "text", "_root", F.col("_edge").alias("e"), row_udf("id", "text"))
            .withColumn("_edge", F.struct(F.col("e").cast("string").alias("text")).getField("text").cast("long"))
            .drop("e")
            .select(pandas_udf("id", "text"))
        ),
        lambda frame: (
            frame.select("*", *(F.lit(number).alias(f"c{number}") for number in range(30)))
            .withColumn("n", row_udf("id", "text"))
            .withColumn("m", pandas_udf("id", "text"))
        ),
        lambda frame: frame.withColumn("n", row_udf("id", "text")).transform(as_operator),
        lambda frame: frame.select(*[row_udf("id", "text")] * 2),
        lambda frame: frame.union(frame.withColumn("n", row_udf("id", "text")).drop("n")).foreachPartition(post),
    ],
    ids=[
        "two in a select",
        "one after the other",
        "a collector behind one",
        "one behind other names",
        "a function over partitions behind other names",
        "one behind a computed edge",
        "one behind more columns than Spark's text of a plan has",
        "an operator",
        "the same one twice",
        "a union with rows that are acked",
    ],
)
def test_a_second_function_that_acks_the_same_edges_is_refused(alone: OpenSource, df: DataFrame, work: Any) -> None:
    frame = alone.frame(df)
    with pytest.raises(AckedTwice, match=r"another column acks the same rows.* Do the work in one function"):
        work(frame)
    assert alone.pending == ROWS


@pytest.mark.parametrize(
    "work",
    [
        lambda frame: (
            frame.select("_root", AF.emit("n", after="n").alias("edges"))
            .select("_root", F.explode("edges").alias("_edge"))
            .foreachPartition(post_all)
        ),
        lambda frame: (
            frame.select("_root", AF.emit("n", after="n").alias("edges"))
            .withColumn("_edge", F.explode("edges"))
            .foreachPartition(post_all)
        ),
        lambda frame: frame.select("_root", AF.ack(after="n")).foreachPartition(read_all),
        lambda frame: (
            frame.select("_root", AF.emit("n", after="n").alias("edges"))
            .select("_root", F.col("edges")[0].alias("first"), F.element_at("edges", 2).alias("second"))
            .select(
                row_value(F.lit(1), anchors=["_root", "first"]),
                row_udf(F.lit(1), F.lit(""), anchors=["_root", "second"]),
            )
            .collect()
        ),
        lambda frame: (
            frame.select("id", "text", tell("id").alias("told"))
            .select("told.*", "id", "text")
            .select("id", "value", row_value("value"))
            .foreachPartition(read_all)
        ),
        lambda frame: (
            frame.select("_root", AF.emit("n", after="n").alias("edges"))
            .select(F.col("_root").alias("r"), F.explode("edges").alias("e"))
            .select(AF.ack("r", "e", after="e"))
            .collect()
        ),
    ],
    ids=[
        "exploded edges",
        "exploded edges beside their array",
        "the root alone",
        "two functions of one select for two edges",
        "an emitted record",
        "other names",
    ],
)
def test_what_comes_behind_a_function_that_acked_may_have_other_edges_or_none(
    alone: OpenSource, df: DataFrame, work: Any
) -> None:
    work(alone.frame(df, message_id="id").withColumn("n", F.lit(2)))
    assert verdicts(alone) == ALL


def loud_and(frame: DataFrame) -> DataFrame:
    return frame.withColumn("loud", F.upper("text"))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (lambda frame: frame.select(row_udf("id", "text")), lambda frame: frame.select(pandas_udf("id", "text"))),
        (lambda frame: frame.select(row_value("id")), lambda frame: frame.select(row_value(F.col("id") + 1))),
        (
            lambda frame: frame.select(AF.ack(after="loud")),
            lambda frame: frame.select(AF.ack(after=["loud", "id"])),
        ),
        (lambda frame: frame.select(row_value("id")), lambda frame: frame.transform(as_operator)),
        (lambda frame: frame.transform(as_operator), lambda frame: frame.select(row_value("id"))),
        (lambda frame: frame.select(row_value("id")), lambda frame: branch(frame, 2)),
    ],
    ids=["two functions", "other arguments", "another after", "an operator behind", "an operator before", "a branch"],
)
def test_a_function_that_acks_the_rows_of_another_frame_with_an_ack_is_refused(
    alone: OpenSource, df: DataFrame, first: Any, second: Any
) -> None:
    frame = loud_and(df).transform(alone.frame)
    first(frame)
    with pytest.raises(Refused, match=r"they go to .* already.* Make a copy for each consumer first"):
        second(frame)
    assert alone.pending == ROWS


def test_the_same_function_may_take_the_same_rows_in_another_frame(alone: OpenSource, df: DataFrame) -> None:
    frame = alone.frame(df, message_id="id")
    with pytest.raises(Exception, match="nothing"):
        frame.select(row_value("nothing"))
    for _ in range(2):
        frame.select(row_udf("id", "text").alias("n"), F.transform(F.array("id"), lambda each: each + 1)).count()
        second = frame.withColumn("n", row_udf("id", "text"))
    second.select("n").collect()
    assert verdicts(alone) == FIFTHS


@pytest.mark.parametrize(
    "meet",
    [
        lambda one, other: one.union(other),
        lambda one, other: one.join(other, "id"),
        lambda one, other: one.unionByName(other=other),
    ],
)
def test_frames_that_ack_the_same_records_are_refused_where_they_meet(
    alone: OpenSource, df: DataFrame, meet: Any
) -> None:
    told = alone.frame(df).select("id", tell("id").alias("told")).select("id", "told.*")
    one, other = (told.select("id", udf("value").alias("n")) for udf in (row_value, other_value))
    with pytest.raises(AckedTwice, match="another column acks the same rows"):
        meet(one, other)
    assert one.union(one).columns == ["id", "n"]
    assert alone.pending == ROWS


def test_rows_that_were_aggregated_are_refused_if_they_hold_edges(alone: OpenSource, df: DataFrame) -> None:
    frame = alone.frame(df)
    firsts = [F.first(column).alias(column) for column in ("text", "_root", "_edge")]
    for made in (
        frame.groupBy("id").agg(*firsts),
        frame.groupBy("id").pivot("id", [1]).agg(F.max("_root").alias("r"), F.max("_edge").alias("e")),
    ):
        with pytest.raises(Refused, match=r"Aggregate|Pivot|lost its tracking"):
            made.foreachPartition(post)
    with pytest.raises(Refused, match="Aggregate"):
        frame.groupBy("id").agg(*firsts).select(row_udf("id", "text"))
    counts = frame.groupBy("text").agg(F.count("_edge").alias("n"), F.max("id").alias("most"))
    assert (counts.rdd.count(), counts.agg({"n": "sum"}).collect()[0][0]) == (ROWS, ROWS)
    acked = frame.withColumn("n", row_value("id"))
    with pytest.raises(AckedTwice):
        acked.groupBy("id").agg(F.max("_edge").alias("most")).foreachPartition(read_all)
    assert acked.groupBy("n").count().rdd.count() == ROWS
    assert set(verdicts(alone).values()) == {"ACKED"}


def lookup(frame: DataFrame) -> DataFrame:
    return frame.sparkSession.range(ROWS).withColumnRenamed("id", "value")


@pytest.mark.parametrize(
    "copy",
    [
        lambda told: told.union(told.withColumn("id", F.lit(1))),
        lambda told: told.join(lookup(told), "value"),
        lambda told: told.withColumn("k", F.explode(F.array("id", "value"))),
        lambda told: told.withColumn("_edge", F.explode(F.array("_edge", "_edge"))),
        lambda told: told.withColumn("_edge", F.explode(F.array_repeat("_edge", 2))),
        lambda told: told.select(
            F.explode(F.array(*(F.struct(F.lit(k).alias("k"), "*") for k in "ab"))).alias("row")
        ).select("row.*"),
        lambda told: (
            told.withColumn("edges", AF.emit(F.array("value", "value"), after="value"))
            .withColumn("first", F.explode("edges"))
            .withColumn("_edge", F.explode("edges"))
        ),
    ],
    ids=["a union", "a join", "an explode", "an array", "array_repeat", "an array of rows", "a second explode"],
)
def test_copies_of_emitted_records_are_refused(alone: OpenSource, df: DataFrame, copy: Any) -> None:
    copies = copy(alone.frame(df).select("id", tell("id").alias("told")).select("id", "told.*"))
    takes: list[Callable[[], Any]] = [
        lambda: copies.select(row_value("value")),
        lambda: copies.select(AF.ack(after="value")),
        lambda: copies.foreachPartition(post),
    ]
    for take in takes:
        with pytest.raises(Copied, match="Give each copy an edge of its own"):
            take()
    assert copies.select("id", "value").count() >= ROWS
    assert alone.pending == ROWS


@pytest.mark.parametrize(
    "keep",
    [
        lambda told: told.join(lookup(told), "value", "left_semi"),
        lambda told: told.select("*", F.explode(F.array("id")).alias("k")),
        lambda told: told.union(told.sparkSession.createDataFrame([], told.schema)),
        lambda told: told.distinct().sort("id"),
        lambda told: (
            told.select("_root", AF.emit(F.array("value", "value"), after="value").alias("edges"))
            .select("_root", F.posexplode("edges").alias("place", "_edge"))
            .withColumn("value", F.lit(1).cast("long"))
        ),
    ],
    ids=["a semi join", "an explode of one", "a union with others", "one row each", "edges of its own"],
)
def test_emitted_records_of_which_there_are_no_copies_are_acked(alone: OpenSource, df: DataFrame, keep: Any) -> None:
    told = alone.frame(df, message_id="id").select("id", tell("id").alias("told")).select("id", "told.*")
    keep(told).select(row_value("value").alias("n")).collect()
    assert verdicts(alone) == ALL


@pytest.mark.parametrize(
    "work",
    [
        lambda frame: frame.select("id", row_value("n")).foreachPartition(post),
        lambda frame: frame.select(row_value("n")),
        lambda frame: frame.select(AF.ack(after="n")),
        lambda frame: frame.mapInPandas(pass_on, "id long"),
    ],
    ids=["a udf", "a udf alone", "an ack", "a function over batches"],
)
@pytest.mark.parametrize("is_left", [True, False])
def test_copies_of_rows_that_a_join_with_acked_rows_makes_are_refused(
    alone: OpenSource, df: DataFrame, work: Any, is_left: bool
) -> None:
    acked = alone.frame(df).select("id", row_value("id").alias("n"))
    fresh = alone.frame(df).select(F.col("id").alias("key"), "_root", "_edge")
    joined = acked.join(fresh, F.lit(True)) if is_left else fresh.join(acked, F.lit(True))
    with pytest.raises(Refused, match="Join"):
        work(joined)
    assert alone.pending == 2 * ROWS


def pass_on(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for batch in batches:
        yield batch.assign(id=batch["id"] + 0)


def ack_all(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    with Collector("batches") as out:
        for batch in batches:
            for row in batch.itertuples():
                out.ack((row.root, row.edge))
            yield batch[["id"]]


@pytest.mark.parametrize(
    "work",
    [
        lambda frame: (
            frame.withColumnsRenamed({"_root": "root", "_edge": "edge"})
            .withColumns({"_root": F.col("root"), "_edge": F.col("edge")})
            .mapInPandas(ack_all, "id long")
            .mapInPandas(pass_on, "id long")
            .collect()
        ),
        lambda frame: (
            frame.select("id").mapInPandas(pass_on, "id long").foreachPartition(read_all),
            frame.select(row_value("id")).collect(),
        ),
        lambda frame: (
            frame.select("id", row_value("id").alias("n"))
            .mapInPandas(pass_on, "id long, n long")
            .foreachPartition(read_all)
        ),
        lambda frame: (
            frame.select("id", row_value("id").alias("n"))
            .unpivot("id", ["n"], "name", "value")
            .foreachPartition(read_all)
        ),
        lambda frame: (
            frame.select("id", tell("id").alias("r"))
            .withColumn("ok", F.col("r").isNotNull())
            .select("ok", row_value("r.value", anchors=["r._root", "r._edge"]).alias("n"))
            .foreachPartition(read_all)
        ),
        lambda frame: (
            frame.select("_root", AF.emit(F.array("text", "text"), after="text").alias("edges"))
            .select("_root", F.size("edges").alias("k"), F.explode("edges").alias("e"))
            .select("k", row_value(F.lit(1), anchors=["_root", "e"]).alias("n"))
            .foreachPartition(read_all)
        ),
        lambda frame: (
            frame.select("id", row_value("id").alias("n"))
            .withColumn("most", F.expr("(SELECT max(id) FROM range(3))"))
            .foreachPartition(read_all)
        ),
    ],
    ids=[
        "two functions over batches",
        "a function over batches",
        "a function over batches behind an ack",
        "an unpivot behind an ack",
        "whether there is a record",
        "the number of edges",
        "a subquery over a table",
    ],
)
def test_a_program_that_acks_each_edge_once_may_go_on_in_any_way(alone: OpenSource, df: DataFrame, work: Any) -> None:
    work(alone.frame(df, message_id="id"))
    assert verdicts(alone) == ALL


@pytest.mark.parametrize(
    "hide",
    [
        lambda frame: frame.withColumn("e", F.expr("(SELECT max(id) FROM range(3))") + F.col("_edge")).select("e"),
        lambda frame: frame.select("id", "_edge").unpivot("id", ["_edge"], "name", "value"),
        lambda frame: frame.mapInPandas(pass_on, frame.schema),
    ],
    ids=["beside a subquery", "an unpivot", "a function over batches"],
)
def test_an_acked_edge_is_found_behind_columns_that_a_node_makes_itself(
    alone: OpenSource, df: DataFrame, hide: Any
) -> None:
    made = alone.frame(df).withColumn("n", row_value("id"))
    with pytest.raises(AckedTwice, match="another column acks the same rows"):
        hide(made).foreachPartition(read_all)


def test_edges_behind_other_names_are_refused_where_nothing_checks_what_becomes_of_the_rows(
    alone: OpenSource, df: DataFrame
) -> None:
    frame = renamed(alone.frame(df))
    for take in (
        lambda: frame.foreachPartition(read_all),
        lambda: frame.select(row_udf("a", "b", anchors=["c", "d"])),
        lambda: frame.crossJoin(df).mapInArrow(iter, "n long"),
    ):
        with pytest.raises(Refused, match=r"lost its tracking columns|Join .* stands between"):
            take()
    assert frame.groupBy("b").count().rdd.count() == ROWS
    assert frame.select("a").rdd.count() == ROWS


def test_an_expression_of_any_depth_may_stand_beside_a_function_that_acks(alone: OpenSource, df: DataFrame) -> None:
    frame, deep = alone.frame(df, message_id="id"), F.expr("id " + "+ 1L - 1L " * 75)
    assert frame.select(deep.alias("deep")).rdd.count() == ROWS
    made = frame.select("*", deep.alias("deep"), (deep + F.col("_edge")).alias("hidden")).withColumn(
        "n", row_udf("id", "text")
    )
    with pytest.raises(AckedTwice):
        made.select("hidden").foreachPartition(read_all)
    made.select("deep", "n").foreachPartition(read_all)
    assert verdicts(alone) == FIFTHS
    with pytest.raises(AckedTwice, match="nothing shows that no other column acks these rows"):
        alone.frame(df).select(row_udf(deep, "text").alias("n")).select("n").foreachPartition(read_all)


@pytest.mark.long
def test_records_that_a_udf_or_an_emit_column_makes_are_acked_by_the_next_step(
    alone: OpenSource, df: DataFrame
) -> None:
    @acker_udf("letters array<string>, first string", emits=True)
    def parse(text: str) -> tuple[list[str], str]:
        return list(text), text[0]

    parsed = alone.frame(df, message_id="id").select("id", parse("text").alias("r")).select("id", "r.*")
    emitted = parsed.select("id", "letters", "_root", AF.emit("letters", after="letters").alias("edges"))
    each = F.explode(F.arrays_zip("letters", "edges")).alias("each")
    letters = emitted.select("id", "_root", each).select("id", "_root", F.col("each.edges").alias("_edge"))
    letters.repartition(2).foreachPartition(post)
    assert verdicts(alone) == FIFTHS


def test_a_null_in_place_of_a_record_does_not_fail_the_other_rows_of_its_task(alone: OpenSource, df: DataFrame) -> None:
    @acker_udf("number long, letter string", emits=True)
    def parse(number: int, text: str) -> tuple[int, str] | None:
        if number % 5 == 0:
            raise ValueError("on purpose")
        return (number, text[0]) if number % 2 else None

    @acker_udf("string")
    def loud(letter: str) -> str:
        return letter.upper()

    parsed = alone.frame(df.repartition(1), message_id="id").select("id", parse("id", "text").alias("r"))
    made = parsed.select("id", "r.*").select("id", loud("letter").alias("loud")).collect()
    assert {row.id: row.loud for row in made} == {
        number: "W" if number % 2 and number % 5 else None for number in range(ROWS)
    }
    assert verdicts(alone) == FIFTHS


@pytest.mark.long
def test_operators_work_on_the_frame_and_their_unanchored_output_belongs_to_no_tree(
    alone: OpenSource, df: DataFrame
) -> None:
    @operator("id long", anchors=[])
    def log(row: Row) -> int:
        return int(row.id)

    first, second = branch(alone.frame(df, message_id="id").transform(where("id < 9")), 2)
    assert {row._root for row in first.transform(log).collect()} == {None}
    second.foreachPartition(post)
    assert verdicts(alone) == {**FIFTHS, 10: "ACKED"}


def test_a_process_client_reports_once_for_its_block_from_anywhere_below_it(
    source: OpenSource, spark: SparkSession
) -> None:
    settings, records = source.settings, [(*source.emit(number), number) for number in range(ROWS)]

    def handle(anchor: tuple[int, int], number: int) -> None:
        with process_client() as client:
            if number % 5:
                client.ack(anchor)
            else:
                process_client().fail(anchor, "on purpose")

    def work(given: Iterable[tuple[int, int, int]]) -> None:
        with process_client(settings):
            for root, edge, number in given:
                handle((root, edge), number)

    rdd = spark.sparkContext.parallelize(records, 2)
    rdd.foreachPartition(work)
    rdd.foreachPartition(work)
    assert verdicts(source) == FIFTHS


@pytest.mark.long
def test_two_readings_of_a_frame_count_once(alone: OpenSource, df: DataFrame) -> None:
    frame = alone.frame(df, message_id="id")
    half = InheritableThread(target=lambda: frame.select("id").limit(2).collect())
    half.start()
    half.join()
    assert frame.count() == ROWS
    frame.foreachPartition(post)
    frame.foreachPartition(post)
    assert verdicts(alone) == FIFTHS


def page_of(texts: list[str]) -> tuple[Any, Pages, Runs]:
    """Return the rows of one partition as a task reads them, and how they were counted and numbered."""
    places = np.arange(len(texts)) + place_of(2, 0)
    # A row's digest includes its place.
    digests = np.array([hash64(f"{place} {text}") for place, text in zip(places, texts, strict=True)], np.uint64)
    columns = [pa.array(texts), pa.array(places), pa.array(digests.view(np.int64))]
    batch = pa.RecordBatch.from_arrays(columns, names=["_0", PLACE, DIGEST])
    pages = Pages(places[:1] >> 12, np.array([len(texts)]), np.bitwise_xor.reduce(digests, keepdims=True))
    return batch, pages, Runs.of([places], [1000])


def vals_of(texts: list[str], reports: list[Report], consumed: list[tuple[int, int]]) -> dict[int, int]:
    """Return the ack val of each root after its init, these reports, and the consumption of these anchors."""
    vals = {root_id(1000, number): edge0(root_id(1000, number)) for number in range(len(texts))}
    for report in reports:
        for root, val in zip(report.entries.root_ids.tolist(), report.entries.ack_vals.tolist(), strict=True):
            vals[root] ^= val
    for root, edge in consumed:
        vals[root] ^= edge
    return vals


TEXTS = st.lists(st.text("ab", max_size=3), min_size=1, max_size=6)


@given(TEXTS, TEXTS, st.integers(1, 4))
def test_a_row_counts_as_read_with_its_whole_partition_and_only_as_itself(
    texts: list[str], others: list[str], size: int
) -> None:
    batch, pages, runs = page_of(texts)
    reading = EmittedReading(("text",), runs, pages)
    reports = list[Report]()
    flow = reading.rows([batch.slice(at, size) for at in range(0, len(texts), size)], reports)
    anchors = [pair for rows in flow for row in range(len(rows)) for pair in rows.anchors.of(row)]
    assert set(vals_of(texts, reports, anchors).values()) == {0}
    assert all(vals_of(texts, [], anchors).values())
    again = list[Report]()
    for _ in reading.rows([batch], again):
        pass
    assert [(each.identity, each.entries.ack_vals.tolist()) for each in again] == [
        (each.identity, each.entries.ack_vals.tolist()) for each in reports
    ]
    changed, other_pages, other_runs = page_of(others)
    if others != texts:
        with pytest.raises(OtherRows):
            list(reading.rows([changed], []))
        # Were it not noticed, the edges would differ.
        other = list[Report]()
        for _ in EmittedReading(("text",), other_runs, other_pages).rows([changed], other):
            pass
        same = [number for number, (one, two) in enumerate(zip(texts, others, strict=False)) if one == two]
        shared = range(min(len(texts), len(others)))
        vals = vals_of(texts, other if len(others) <= len(texts) else [], anchors)
        done = {number for number in shared if not vals[root_id(1000, number)]}
        assert done <= set(same)


@pytest.mark.long
def test_rows_that_are_computed_anew_as_others_are_never_acked(alone: OpenSource, spark: SparkSession) -> None:
    drawn = F.udf(lambda _: __import__("secrets").randbits(60), "long").asNondeterministic()
    df = spark.range(ROWS).select("id", drawn("id").alias("drawn"))
    frame = alone.frame(df, message_id="id")
    df.unpersist()
    with pytest.raises(Exception, match="gives other rows when it is computed anew"):
        frame.foreachPartition(post)
    assert alone.pending == ROWS


def is_kept(df: DataFrame) -> bool:
    return bool(df.storageLevel.useMemory)


@pytest.mark.long
def test_an_emitted_frame_is_unpersisted_when_each_row_has_its_outcome(alone: OpenSource, df: DataFrame) -> None:
    frame = alone.frame(df)
    assert df.is_cached
    assert is_kept(df)
    frame.foreachPartition(post)
    assert len(verdicts(alone)) == ROWS
    assert not is_kept(df)
    alone.frame(df)
    alone.close()
    assert not is_kept(df)
    assert {outcome.verdict for outcome in alone.outcomes()} == {Verdict.LOST}


@pytest.mark.long
def test_a_row_without_a_message_id_is_named_by_its_root(alone: OpenSource, df: DataFrame) -> None:
    frame = alone.frame(df)
    roots = [row._root for row in frame.select("_root").collect()]
    frame.foreachPartition(post)
    assert sorted(verdicts(alone)) == sorted(roots)


@pytest.mark.long
def test_an_empty_frame_has_no_outcomes(alone: OpenSource, df: DataFrame) -> None:
    frame = alone.frame(df.where("id < 0"), message_id="id")
    assert frame.count() == alone.pending == 0
    frame.foreachPartition(post)


def untracked(frame: DataFrame) -> DataFrame:
    return frame.sparkSession.range(3)


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("take", "match"),
    [
        (lambda frame: frame.join(untracked(frame), "id").foreachPartition(post), "Join"),
        (lambda frame: frame.where("id > 3").foreachPartition(post), "Filter"),
        (lambda frame: frame.union(frame).select(AF.ack(after="id")), "twice"),
        (lambda frame: frame.select("*", F.explode(F.array("id", "id"))).select(row_udf("id", "text")), "Generate"),
        (lambda frame: frame.crossJoin(untracked(frame).toDF("n")).mapInArrow(iter, "n long"), "Join"),
    ],
)
def test_rows_that_were_dropped_or_multiplied_are_refused(
    alone: OpenSource, df: DataFrame, take: Callable[[DataFrame], Any], match: str
) -> None:
    with pytest.raises(Refused, match=match):
        take(alone.frame(df))


def test_a_sink_and_a_hand_on_are_refused_with_advice_that_works(alone: OpenSource, df: DataFrame) -> None:
    @sink
    def save(rows: DataFrame) -> None:
        rows.collect()

    frame = alone.frame(df, message_id="id")
    with pytest.raises(
        NotHeld, match=r"sink 'save': .* not held.* Collector.* read them with acker_client\.source"
    ) as no:
        save(frame)
    assert "hand_on" not in str(no.value)
    with pytest.raises(Refused, match=r"hand_on .* plain source has emitted these rows.* Collector"):
        hand_on("nowhere", bootstrap_servers="localhost:1", value="text")(frame)
    # A source reads the same frame, in a thread of its own.
    source = Frame(df, name="held", key=["id"])
    summaries = list[Any]()
    in_plain_thread(lambda: summaries.append(source.run(df.sparkSession, lambda batch: save(batch.df))))
    assert summaries[0].acked == ROWS
    assert alone.pending == ROWS


@pytest.mark.parametrize(
    ("given", "message_id", "match"),
    [
        (lambda df: df.withColumn("_ROOT", F.lit(1)), None, "the acker's own"),
        (lambda df: df, "nothing", "message_id='nothing' is no column"),
        (lambda df: df.rdd, None, "a DataFrame is expected"),
    ],
)
def test_a_frame_that_cannot_be_emitted_is_refused(
    alone: OpenSource, df: DataFrame, given: Callable[[DataFrame], Any], message_id: Any, match: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=match):
        alone.frame(given(df), message_id)
    assert alone.pending == 0


def test_a_frame_is_refused_inside_a_batch_of_another_source(alone: OpenSource, df: DataFrame) -> None:
    df.sparkSession.sparkContext.setLocalProperty(PINS, "[a pin]")
    with pytest.raises(SessionError, match="in a thread of its own"):
        alone.frame(df)


@pytest.mark.parametrize("by", ["session", "batch"])
def test_a_frame_is_refused_where_tracking_is_off(
    alone: OpenSource, df: DataFrame, conf: Callable[[str, str], None], by: str
) -> None:
    if by == "session":
        conf("spark.acker.tracking", "false")
    else:
        hand_down(df.sparkSession, NO_TRACKING)
    with pytest.raises(SessionError, match="frame\\(\\) is called where tracking is off"):
        alone.frame(df)
    assert alone.pending == 0


def test_a_frame_whose_last_outcome_another_thread_reads_leaves_that_thread_its_batch(
    alone: OpenSource, df: DataFrame
) -> None:
    context = df.sparkSession.sparkContext
    df_of_source, found = alone.frame(df), list[Any]()

    def read() -> None:
        hand_down(df.sparkSession, NO_TRACKING)
        verdicts(alone)
        found.append(context.getLocalProperty(TASK_TRACKING))

    df_of_source.select(AF.ack(after="text")).collect()
    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    assert found == ["false"]


def test_a_frame_whose_last_outcome_another_thread_reads_is_over_for_its_own_thread(
    alone: OpenSource, df: DataFrame, spark: SparkSession
) -> None:
    outer = hand_down(spark, alone.settings)
    alone.frame(df).select(row_udf("id", "text")).collect()
    in_plain_thread(partial(verdicts, alone))
    with pytest.raises(SessionError, match="tracking is on for one and off for the other"):
        hand_down(spark, NO_TRACKING)
    alone.frame(df).select(row_udf("id", "text")).collect()
    outer()
    in_plain_thread(partial(verdicts, alone))
    local = spark.sparkContext.getLocalProperty
    assert (local(PINS), local(TASK_TRACKING)) == (None, None)
    hand_down(spark, NO_TRACKING)()


@pytest.mark.long
def test_a_job_of_a_thread_to_which_nothing_was_handed_down_says_what_to_do(
    alone: OpenSource, df: DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame, errors = alone.frame(df), list[str]()

    def job() -> None:
        try:
            frame.foreachPartition(post)
        except Exception as error:  # noqa: BLE001
            errors.append(str(error))

    thread = threading.Thread(target=job)
    thread.start()
    thread.join()
    assert "or in an InheritableThread; or take settings = collector_settings(spark), or source.settings" in errors[0]


def in_plain_thread(work: Callable[[], Any]) -> None:
    """Run ``work`` in a thread to which nothing is handed down."""
    errors = list[BaseException]()

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    for error in errors:
        raise error


@pytest.mark.parametrize("column", [lambda: row_udf("id", "text"), lambda: AF.ack(after="text")], ids=["udf", "ack"])
def test_a_column_that_a_plain_thread_makes_reports_to_the_servers_of_the_frame(
    alone: OpenSource, df: DataFrame, monkeypatch: pytest.MonkeyPatch, column: Callable[[], Any]
) -> None:
    monkeypatch.setattr(embedded, "reach", lambda _: pytest.fail("an embedded server is started"))
    frame = alone.frame(df, message_id="id")
    in_plain_thread(lambda: frame.select("id", column()).collect())
    assert len(verdicts(alone)) == ROWS


def test_a_column_that_was_made_before_its_frame_is_refused_if_nothing_names_the_servers(
    alone: OpenSource, df: DataFrame, monkeypatch: pytest.MonkeyPatch, conf: Callable[[str, str], None]
) -> None:
    monkeypatch.setattr(embedded, "reach", lambda _: {"servers": ("localhost:1",)})
    made = [row_udf("id", "text"), AF.ack(after="text", name="as_ack")]
    frame = alone.frame(df, message_id="id")
    for column, name in zip(made, ["row_udf", "as_ack"], strict=True):
        with pytest.raises(SessionError, match=rf"^{name}: .*named the servers of its rows.* make the column after"):
            frame.withColumns({"made": column})
    assert alone.pending == ROWS
    conf("spark.acker.servers", alone.settings.servers[0])
    named = row_udf("id", "text")
    alone.frame(df, message_id="text").select(named).collect()
    frame.select("id", row_udf("id", "text")).collect()
    assert len(verdicts(alone)) == 2 * ROWS


def select_udf(frame: DataFrame) -> DataFrame:
    return frame.select(row_udf("id", "text"))


def test_a_column_is_refused_where_the_frames_of_plain_sources_are_at_several_servers(
    alone: OpenSource, df: DataFrame, monkeypatch: pytest.MonkeyPatch, start_server: Callable[..., Any]
) -> None:
    monkeypatch.setattr(embedded, "reach", lambda _: {"servers": ("localhost:1",)})
    for other in open_source([start_server(id=1).address]):
        frames = [alone.frame(df), other.frame(df)]
        for frame in frames:
            with pytest.raises(SessionError, match="make the column after"):
                in_plain_thread(partial(select_udf, frame))


def test_a_column_is_refused_for_rows_at_other_servers_than_the_last_frame_of_its_thread(
    alone: OpenSource, df: DataFrame, start_server: Callable[..., Any]
) -> None:
    for other in open_source([start_server(id=1).address]):
        frame, last = alone.frame(df), other.frame(df, message_id="id")
        with pytest.raises(
            SessionError, match=r"nothing named the servers of its rows.* before that of another source"
        ):
            frame.select(row_udf("id", "text"))
        last.select(row_udf("id", "text")).collect()
        assert verdicts(other) == FIFTHS


def test_an_acker_udf_acks_the_rows_of_a_batch_that_is_held(live: Callable[..., Any]) -> None:
    batch = live([f"w{number}" for number in range(6)])
    rows = batch.df.select(row_udf(F.col("number") + 1, "text").alias("size")).collect()
    assert len(rows) == 6
    assert {number: verdict.name for number, verdict in batch.settle().items()} == {
        number: "FAILED" if number == 4 else "ACKED" for number in range(6)
    }
