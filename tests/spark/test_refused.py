"""Plan nodes that may not stand between two tracked steps: the error names the node and what to use instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from acker_client import Verdict
from acker_client.spark import branch, explode, join, operator, sink, where
from acker_client.spark.plan_check import plan
from acker_client.spark.plan_check.plan import Refused
from tests.spark.test_plan import Step, sql
from tests.spark.tracked import FakeBatch, tracked

pytestmark = pytest.mark.matrix

SAME = "id long, word string, _root bigint, _edge bigint"

REFUSED: dict[str, tuple[Step, str, str]] = {
    "filter": (lambda df: df.filter("id > 0"), "Filter", "where(condition)"),
    "where": (lambda df: df.where(F.col("id") > 0), "Filter", "where(condition)"),
    "where above a select": (lambda df: df.where("id > 0").select("*"), "Filter", "where(condition)"),
    "na.drop": (lambda df: df.na.drop(), "Filter", "where(condition)"),
    "sampleBy": (lambda df: df.sampleBy("id", {0: 0.5}), "Filter", "where(condition)"),
    "IN (subquery)": (sql("SELECT * FROM tracked WHERE id IN (SELECT id FROM range(1))"), "Filter", "where(condition)"),
    "join": (lambda df: df.join(df.sparkSession.range(3), "id"), "Join", "acker_client.spark.join(...)"),
    "left join": (lambda df: df.join(df.sparkSession.range(3), "id", "left"), "Join", "acker_client.spark.join(...)"),
    "semi join": (lambda df: df.join(df.sparkSession.range(3), "id", "semi"), "Join", "cogroup(...)"),
    "self-join": (
        lambda df: df.alias("a").join(df.alias("b"), "id").select("a.id", "a._root", "a._edge"),
        "Join",
        "acker_client.spark.join(...)",
    ),
    "crossJoin": (lambda df: df.crossJoin(df.sparkSession.range(2).toDF("k")), "Join", "acker_client.spark.join(...)"),
    "lateral subquery": (
        sql("SELECT * FROM tracked, LATERAL (SELECT max(id) AS m FROM range(9) r WHERE r.id <= tracked.id)"),
        "LateralJoin",
        "acker_client.spark.join(...)",
    ),
    "explode": (lambda df: df.select("*", F.explode(F.array("id", "id"))), "Generate", "explode(...)"),
    "inline": (lambda df: df.selectExpr("*", "inline(array(struct(id AS x)))"), "Generate", "explode(...)"),
    "lateral view": (sql("SELECT * FROM tracked LATERAL VIEW explode(array(1, 2)) AS x"), "Generate", "explode(...)"),
    "limit": (lambda df: df.limit(3), "GlobalLimit", "yields nothing"),
    "offset": (lambda df: df.offset(3), "Offset", "yields nothing"),
    "sample": (lambda df: df.sample(0.5), "Sample", "where(condition)"),
    "randomSplit": (lambda df: df.randomSplit([1.0, 1.0], 1)[0], "Sample", "branch(...)"),
    "distinct": (lambda df: df.distinct(), "Deduplicate", "group(...)"),
    "dropDuplicates": (lambda df: df.dropDuplicates(["id"]), "Deduplicate", "group(...)"),
    "SELECT DISTINCT": (sql("SELECT DISTINCT * FROM tracked"), "Distinct", "group(...)"),
    "groupBy().agg": (
        lambda df: df.groupBy("id").agg(F.max("_root").alias("_root"), F.max("_edge").alias("_edge")),
        "Aggregate",
        "group(...)",
    ),
    "intersect": (lambda df: df.intersect(df), "Intersect", "group(...)"),
    "subtract": (lambda df: df.subtract(df), "Except", "group(...)"),
    "exceptAll": (lambda df: df.exceptAll(df), "Except All", "group(...)"),
    "unpivot": (lambda df: df.unpivot(["_root", "_edge"], ["id"], "what", "value"), "Expand", "explode(...)"),
    "cube": (lambda df: df.cube("_root", "_edge").count(), "Aggregate", "group(...)"),
    "mapInPandas": (lambda df: df.mapInPandas(lambda frames: frames, SAME), "MapInPandas", "@pandas_operator"),
    "mapInArrow": (lambda df: df.mapInArrow(lambda batches: batches, SAME), "MapInArrow", "@arrow_operator"),
    "applyInPandas": (
        lambda df: df.groupBy("id").applyInPandas(lambda frame: frame, SAME),
        "FlatMapGroupsInPandas",
        "group(...)",
    ),
    "applyInArrow": (
        lambda df: df.groupBy("id").applyInArrow(lambda table: table, SAME),
        "FlatMapGroupsInArrow",
        "group(...)",
    ),
    "cogroup().applyInPandas": (
        lambda df: df.groupBy("id").cogroup(df.groupBy("id")).applyInPandas(lambda left, right: left, SAME),
        "FlatMapCoGroupsInPandas",
        "use acker_client.spark.cogroup(...)",
    ),
    "cogroup().applyInArrow": (
        lambda df: df.groupBy("id").cogroup(df.groupBy("id")).applyInArrow(lambda left, right: left, SAME),
        "FlatMapCoGroupsInArrow",
        "use acker_client.spark.cogroup(...)",
    ),
    "TRANSFORM": (
        sql("SELECT TRANSFORM(id, _root, _edge) USING 'cat' AS (id bigint, _root bigint, _edge bigint) FROM tracked"),
        "ScriptTransformation",
        "@operator",
    ),
    "df.rdd.toDF": (lambda df: df.rdd.toDF(SAME), "LogicalRDD", ".cache()"),
    "localCheckpoint": (lambda df: df.localCheckpoint(eager=False), "LogicalRDD", ".cache()"),
    "createDataFrame": (
        lambda df: df.sparkSession.createDataFrame([(1, 2)], "_root bigint, _edge bigint"),
        "LogicalRDD",
        "source.batches(spark)",
    ),
    "VALUES": (sql("SELECT * FROM VALUES (1L, 2L) AS t(_root, _edge)"), "LocalRelation", "batch.df"),
    "rows of no source": (lambda df: df.sparkSession.range(3).selectExpr("id _root", "id _edge"), "Range", "batch.df"),
    "union with one of these": (lambda df: df.union(df.where("id > 0")), "Filter", "where(condition)"),
    "recursive CTE": (
        sql("WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 3) SELECT * FROM tracked, r"),
        "Join",
        "acker_client.spark.join(...)",
    ),
}

ALTERED: dict[str, Step] = {
    "na.fill of everything": lambda df: df.na.fill(0),
    "computed": lambda df: df.withColumn("_edge", F.col("_edge") + 0),
    "swapped": lambda df: df.selectExpr("id", "_edge AS _root", "_root AS _edge"),
    "another column in its place": lambda df: df.drop("_edge").withColumnRenamed("id", "_edge"),
    "another type": lambda df: df.withColumn("_root", F.col("_root").cast("string")),
    "a literal": lambda df: df.withColumn("_root", F.lit(1)),
    "a window function": lambda df: df.selectExpr("id", "_root", "lead(_edge) OVER (ORDER BY id) AS _edge"),
}

LOST: dict[str, Step] = {
    "select without them": lambda df: df.select("id", "word"),
    "select without one": lambda df: df.select("id", "_root"),
    "toDF": lambda df: df.toDF("a", "b", "c", "d"),
    "drop": lambda df: df.drop("_root", "_edge"),
}


@pytest.fixture
def batch() -> FakeBatch:
    return FakeBatch()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("step", REFUSED)
def test_what_drops_or_multiplies_rows_is_refused_with_its_fix(
    spark: SparkSession, batch: FakeBatch, step: str
) -> None:
    build, node, fix = REFUSED[step]
    df = build(tracked(spark, "words", batch))

    with pytest.raises(Refused) as refused:
        plan.guard(df, "next")
    message = str(refused.value)
    assert message.startswith("operator 'next' cannot take this frame: ")
    assert node in message
    assert fix in message


@pytest.mark.parametrize("step", ALTERED)
def test_altered_tracking_columns_are_refused(spark: SparkSession, batch: FakeBatch, step: str) -> None:
    with pytest.raises(Refused, match=r"is not the one that the step before made.*subset="):
        plan.guard(ALTERED[step](tracked(spark, "words", batch)), "next")


@pytest.mark.parametrize("step", LOST)
def test_lost_tracking_columns_are_refused(spark: SparkSession, batch: FakeBatch, step: str) -> None:
    with pytest.raises(Refused, match=r"lost its tracking columns.*df\.select\(\.\.\., '_root', '_edge'\)"):
        plan.guard(LOST[step](tracked(spark, "words", batch)), "next")


MERGED: dict[str, tuple[Step, str, str]] = {
    "groupBy().agg": (lambda df: df.groupBy("id").agg(F.count("*")), "Aggregate", "group(...)"),
    "count behind a select": (
        lambda df: df.select("id").groupBy("id").count().orderBy("id"),
        "Aggregate",
        "group(...)",
    ),
    "distinct": (lambda df: df.select("word").distinct(), "Deduplicate", "group(...)"),
    "join": (lambda df: df.select("id").join(df.sparkSession.range(3), "id"), "Join", "acker_client.spark.join(...)"),
    "applyInPandas": (
        lambda df: df.groupBy("id").applyInPandas(lambda frame: frame[["id"]], "id long"),
        "FlatMapGroupsInPandas",
        "group(...)",
    ),
    "mapInPandas": (lambda df: df.mapInPandas(lambda frames: frames, "id long"), "MapInPandas", "@pandas_operator"),
    "SQL": (sql("SELECT word, count(*) AS n FROM tracked GROUP BY word"), "Aggregate", "group(...)"),
}


@pytest.mark.parametrize("step", MERGED)
def test_what_merged_the_rows_is_named_and_not_the_columns_that_it_lost(
    spark: SparkSession, batch: FakeBatch, step: str
) -> None:
    build, node, fix = MERGED[step]
    with pytest.raises(Refused) as refused:
        plan.guard(build(tracked(spark, "words", batch)), "next")
    assert str(refused.value).startswith(f"operator 'next' cannot take this frame: {node} (")
    assert fix in str(refused.value)
    assert "lost" not in str(refused.value)


@pytest.mark.parametrize(
    ("build", "leaf"),
    [
        (lambda spark: spark.range(3), "Range"),
        (lambda spark: spark.range(3).where("id > 1").groupBy("id").count(), "Range"),
        (lambda spark: spark.createDataFrame([(1,)], "id int"), "LogicalRDD"),
        (lambda spark: spark.sql("SELECT 1 AS id"), "OneRowRelation"),
    ],
    ids=["frame", "aggregate", "createDataFrame", "SQL"],
)
def test_a_frame_that_nothing_tracks_is_told_where_to_start(spark: SparkSession, build: Any, leaf: str) -> None:
    for consumer in (save, words, where("id > 1"), branch_of_two):
        with pytest.raises(Refused, match=f"its rows come from {leaf}, which no source tracks. Start from batch.df of"):
            consumer(build(spark))


def branch_of_two(df: DataFrame) -> Any:
    return branch(df, 2)


def test_a_streaming_frame_is_told_to_read_with_a_source(spark: SparkSession) -> None:
    stream = spark.readStream.format("rate").load()
    for df in (stream, stream.groupBy("value").count()):
        for consumer in (save, words, explode("value"), join(spark.range(3).toDF("value"), "value")):
            with pytest.raises(
                Refused, match=r"it is a streaming frame .*and streams are not tracked yet. Read with a source"
            ):
                consumer(df)


def test_doubled_tracking_columns_are_refused(spark: SparkSession, batch: FakeBatch) -> None:
    df = tracked(spark, "words", batch)

    with pytest.raises(Refused, match="_root and _edge more than once"):
        plan.guard(df.select("*", "_root"), "next")


@pytest.mark.parametrize(
    "twice",
    [
        lambda df: df.union(df),
        lambda df: df.union(df.select("*")),
        lambda df: df.union(df.withColumn("word", F.lit("x"))).coalesce(1),
        sql("WITH c AS (SELECT * FROM tracked) SELECT * FROM c UNION ALL SELECT * FROM c"),
    ],
)
def test_a_union_of_a_frame_with_itself_is_refused(spark: SparkSession, batch: FakeBatch, twice: Step) -> None:
    with pytest.raises(Refused, match=r"the rows of operator 'words' reach it twice.*branch\(df, 2\)"):
        plan.guard(twice(tracked(spark, "words", batch)), "next")


def test_a_node_that_nobody_knows_is_refused_by_its_name(spark: SparkSession, batch: FakeBatch) -> None:
    df = tracked(spark, "words", batch)
    known = plan._ONE_TO_ONE
    try:
        plan._ONE_TO_ONE = known - {"Repartition"}
        with pytest.raises(Refused, match=r"Repartition stands between .* and is not known to keep rows one to one"):
            plan.guard(df.coalesce(1), "next")
    finally:
        plan._ONE_TO_ONE = known


@operator("number long, word string")
def words(row: Row) -> Iterator[tuple[int, str]]:
    for word in row.text.split():
        yield row.number, word


@operator("word string")
def shout(row: Row) -> Iterator[tuple[str]]:
    yield (row.word.upper(),)


@sink
def save(rows: DataFrame) -> None:
    rows.write.format("noop").mode("append").save()


def test_real_pipelines_are_refused_where_they_are_written(live: Callable[..., Any]) -> None:
    batch = live(["a b", "c"])
    split = batch.df.transform(words)
    shouted = split.transform(shout)

    for second in (shout, save, where("number > 0")):
        with pytest.raises(Refused, match=r"the rows of operator 'words'.*branch\(df, 2\)"):
            second(split)
    with pytest.raises(Refused, match=r"operator 'words' is applied twice to the rows of source 'lines'"):
        batch.df.select("*").transform(words)
    with pytest.raises(Refused, match=r"lost its tracking columns"):
        save(shouted.select("word"))
    with pytest.raises(Refused, match=r"Filter .*where\(condition\)"):
        save(shouted.where("word <> 'A'"))
    with pytest.raises(Refused, match=r"the rows of operator 'shout' reach it twice.*branch"):
        save(shouted.union(shouted))
    with pytest.raises(Refused, match=r"GlobalLimit .*yields nothing"):
        branch(shouted.limit(1), 2)

    save(shouted)
    assert set(batch.settle().values()) == {Verdict.ACKED}
