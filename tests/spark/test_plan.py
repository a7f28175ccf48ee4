"""Plan nodes that may stand between two tracked steps: the guard lets them pass and finds the step below."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.window import WindowSpec

from acker_client.spark import compat
from acker_client.spark.driver import lineage
from acker_client.spark.plan_check import plan
from acker_client.spark.plan_check.plan import MovingBoundaries, Refused
from tests.spark.tracked import FakeBatch, packed, tracked

pytestmark = pytest.mark.matrix

Step = Callable[[DataFrame], DataFrame]


def sql(text: str) -> Step:
    """Return a step that runs SQL over the view ``tracked``."""

    def run(df: DataFrame) -> DataFrame:
        df.createOrReplaceTempView("tracked")
        return df.sparkSession.sql(text)

    return run


def by_id() -> WindowSpec:
    return Window.partitionBy("id").orderBy("word")


ONE_TO_ONE: dict[str, Step] = {
    "nothing": lambda df: df,
    "select": lambda df: df.select("word", "_root", "_edge"),
    "select in another order": lambda df: df.select("_edge", "_root", "word"),
    "withColumn": lambda df: df.withColumn("twice", F.col("id") * 2).withColumn("dice", F.rand()),
    "withColumnsRenamed": lambda df: df.withColumnsRenamed({"word": "token"}),
    "drop": lambda df: df.drop("word"),
    "alias": lambda df: df.alias("a").select("a.id", "a._root", "a._edge"),
    "cast to the same type": lambda df: df.withColumn("_root", F.col("_root").cast("bigint")),
    "to a schema": lambda df: df.to(df.schema),
    "metadata": lambda df: df.withMetadata("_root", {"comment": "tracking"}),
    "python udf": lambda df: df.withColumn("u", F.udf(str, "string")("id")),
    "coalesce": lambda df: df.coalesce(1),
    "repartition by number": lambda df: df.repartition(3),
    "repartition by number and column": lambda df: df.repartition(3, "id"),
    "sortWithinPartitions": lambda df: df.sortWithinPartitions("id"),
    "cache": lambda df: df.cache(),
    "hint": lambda df: df.hint("broadcast"),
    "observe": lambda df: df.observe("seen", F.count("*")),
    "withWatermark": lambda df: df.withColumn("at", F.current_timestamp()).withWatermark("at", "1 second"),
    "window function": lambda df: df.withColumn("rank", F.row_number().over(by_id())),
    "na.fill of own columns": lambda df: df.na.fill("", subset=["word"]),
    "temp view": sql("SELECT *, id + 1 AS next FROM tracked"),
    "scalar subquery beside it": sql("SELECT *, (SELECT max(id) FROM range(3)) AS top FROM tracked"),
    "CTE": sql("WITH a AS (SELECT * FROM tracked), b AS (SELECT * FROM a) SELECT * FROM b"),
    "pipe syntax": sql("FROM tracked |> EXTEND id + 1 AS next |> SET id = 3"),
}
# Older versions lack zipWithIndex, and refuse pandas on Spark in ANSI mode.
if compat.SPARK >= (4, 2):
    ONE_TO_ONE["zipWithIndex"] = lambda df: df.zipWithIndex()
if compat.SPARK >= (4, 1):
    ONE_TO_ONE["pandas on Spark"] = lambda df: df.pandas_api(index_col="id").to_spark(index_col="id")

MOVING: dict[str, Step] = {
    "orderBy": lambda df: df.orderBy("id"),
    "repartitionByRange": lambda df: df.repartitionByRange(3, "id"),
    "repartition without a number": lambda df: df.repartition("id"),
    "rebalance": lambda df: df.hint("rebalance"),
}


@pytest.fixture
def batch() -> FakeBatch:
    return FakeBatch()


@pytest.mark.parametrize("step", ONE_TO_ONE)
def test_what_keeps_rows_one_to_one_passes(spark: SparkSession, batch: FakeBatch, step: str) -> None:
    upstream = plan.inspect(ONE_TO_ONE[step](tracked(spark, "words", batch)), "operator 'next'")

    assert [node.name for node in upstream.nodes] == ["words"]
    assert upstream.columns == ("_root", "_edge")
    assert upstream.batch is batch
    assert not upstream.moving_boundaries


@pytest.mark.parametrize("step", MOVING)
def test_what_may_move_task_boundaries_passes_and_is_reported(spark: SparkSession, batch: FakeBatch, step: str) -> None:
    df = MOVING[step](tracked(spark, "words", batch))

    assert plan.inspect(df, "operator 'next'").moving_boundaries
    assert not plan.inspect(df.cache().select("*"), "operator 'next'").moving_boundaries
    df.unpersist()


def test_moving_boundaries_hold_for_everything_above(spark: SparkSession, batch: FakeBatch) -> None:
    above = tracked(spark, "above", batch, moving_boundaries=True)
    still = tracked(spark, "still", batch)

    assert plan.inspect(above.union(still), "sink 'save'").moving_boundaries


def test_packed_anchors_are_traced_as_thin_ones_are(spark: SparkSession, batch: FakeBatch) -> None:
    df = packed(spark, "groups", batch)

    assert plan.inspect(df.select("id", "_anchors"), "sink 'save'").columns == ("_anchors",)
    with pytest.raises(Refused, match="column _anchors is not the one"):
        plan.inspect(df.withColumn("_anchors", F.col("word").cast("binary")), "sink 'save'")


def test_a_union_of_different_frames_has_a_step_for_each(spark: SparkSession, batch: FakeBatch) -> None:
    first, second = tracked(spark, "first", batch), tracked(spark, "second", batch)
    mixed = first.unionByName(second.select("_edge", "_root", "word", "id").coalesce(1))

    assert [node.name for node in plan.inspect(mixed, "sink 'save'").nodes] == ["first", "second"]


def test_a_union_by_position_that_mixes_the_tracking_columns_is_refused(spark: SparkSession, batch: FakeBatch) -> None:
    first, second = tracked(spark, "first", batch), tracked(spark, "second", batch)

    with pytest.raises(Refused, match="column _root is not the one"):
        plan.inspect(first.union(second.select("id", "word", "_edge", "_root")), "sink 'save'")


def test_our_own_join_passes_and_only_as_it_was_planned(spark: SparkSession, batch: FakeBatch) -> None:
    table = spark.range(3).alias(lineage.admit_join(batch))
    df = tracked(spark, "words", batch)

    assert plan.inspect(df.join(table, "id", "left"), "operator 'next'").node.name == "words"
    with pytest.raises(Refused, match=r"Join .*acker_client\.spark\.join"):
        plan.inspect(df.join(table, "id", "inner"), "operator 'next'")


def test_rows_have_one_consumer(spark: SparkSession, batch: FakeBatch) -> None:
    df = tracked(spark, "words", batch)
    plan.guard(df, "count")

    with pytest.raises(Refused, match=r"go to operator 'count' already.*branch\(df, 2\)"):
        plan.guard(df.select("*"), "other")
    with pytest.raises(Refused, match=r"operator 'count' is applied twice.*branch\(df, 2\)"):
        plan.guard(df, "count")
    with pytest.raises(Refused, match="go to operator 'count' already"):
        plan.guard(df, "save", kind="sink")


def test_a_refused_consumer_marks_nothing(spark: SparkSession, batch: FakeBatch) -> None:
    first, second = tracked(spark, "first", batch), tracked(spark, "second", batch)
    plan.guard(second, "other")

    with pytest.raises(Refused, match="go to operator 'other' already"):
        plan.guard(first.union(second), "count")
    with pytest.raises(Refused, match="Filter"):
        plan.guard(first.where("id > 0"), "count")
    assert plan.guard(first, "count").node.name == "first"


def test_the_same_sink_may_take_the_same_rows_again(spark: SparkSession, batch: FakeBatch) -> None:
    df = tracked(spark, "words", batch)

    assert not plan.guard(df, "save", kind="sink").repeated
    assert plan.guard(df, "save", kind="sink").repeated
    with pytest.raises(Refused, match="sink 'other' cannot take"):
        plan.guard(df, "other", kind="sink")


def test_a_second_evaluation_is_warned_of_where_boundaries_move(spark: SparkSession, batch: FakeBatch) -> None:
    df = tracked(spark, "words", batch).orderBy("id")
    plan.guard(df, "save", kind="sink")

    with pytest.warns(MovingBoundaries, match=r"sink 'save' takes a frame a second time.*\.cache\(\)"):
        plan.guard(df, "save", kind="sink")

    cached = tracked(spark, "words", batch).orderBy("id").cache()
    plan.guard(cached, "save", kind="sink")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan.guard(cached, "save", kind="sink")
    cached.unpersist()


def test_a_frame_that_was_counted_before_it_is_written_is_warned_of(spark: SparkSession, batch: FakeBatch) -> None:
    fresh, counted = (tracked(spark, name, batch).orderBy("id") for name in ("fresh", "counted"))
    counted.count()

    with pytest.warns(MovingBoundaries, match="sink 'save' takes a frame a second time"):
        plan.guard(counted, "save", kind="sink")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan.guard(fresh, "save", kind="sink")


def test_a_settled_batch_is_forgotten_and_said_to_be(spark: SparkSession) -> None:
    batch = FakeBatch()
    df = tracked(spark, "words", batch)
    node = plan.inspect(df, "sink 'save'").node
    del batch
    gc.collect()

    assert node not in lineage.known_steps()
    with pytest.raises(LookupError, match="settled and forgotten"):
        _ = node.batch
    with pytest.raises(Refused, match="the batch that it belongs to is settled and forgotten"):
        plan.inspect(df, "sink 'save'")


def test_a_batch_that_is_gone_takes_its_own_steps_with_it() -> None:
    first, second = FakeBatch(1), FakeBatch(2)
    gone, kept = lineage.register("operator", "a", first), lineage.register("operator", "b", second)
    del first

    assert gone not in lineage.known_steps()
    assert lineage.node_of(lineage.function_name("operator", "b", kept.tag)) is kept


def test_a_step_is_registered_once() -> None:
    batch = FakeBatch()
    node = lineage.register("operator", "a", batch)

    with pytest.raises(ValueError, match="a step is registered once"):
        lineage.register("operator", "b", batch, tag=node.tag)


def test_function_names_are_ours_whatever_the_operator_is_called() -> None:
    batch = FakeBatch()
    for name in ("split_words", "größe", "a b\nc", "acker_x_0123456789ab", ""):
        node = lineage.register("operator", name, batch)
        assert lineage.node_of(lineage.function_name(node.kind, name, node.tag)) is node
    assert lineage.node_of("split_words") is None
    assert not lineage.is_ours("acker_words")
