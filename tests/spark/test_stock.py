"""Stock operators in Spark, against a real server: what Spark's own would lose is kept."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from trial import ACKED, Trial, texts

from acker_client.spark import branch, explode, group, join, operator, sink, where

ALL = dict.fromkeys(range(20), ACKED)


@sink
def collect(rows: DataFrame) -> list[Row]:
    assert not [column for column in rows.columns if column.startswith("_")]
    return sorted(rows.collect())


@operator("word string", keep=["number"])
def words(row: Row) -> Any:
    return row.text.split()


def test_what_where_drops_is_acked(spark: SparkSession, server: Any) -> None:
    with Trial(spark, server.address, texts(20)) as trial:
        rows = collect(trial.df.transform(where("number % 2 = 0")).transform(words))
        assert {row.number for row in rows} == set(range(0, 20, 2))
        assert trial.settle() == ALL


def test_null_conditions_drop_as_in_spark(spark: SparkSession, server: Any) -> None:
    with Trial(spark, server.address, texts(20)) as trial:
        assert collect(trial.df.transform(where(F.when(F.col("number") < 3, None).otherwise(False)))) == []
        assert trial.settle() == ALL


def test_explode_gives_every_element_an_edge(spark: SparkSession, server: Any) -> None:
    with Trial(spark, server.address, texts(20)) as trial:
        split = trial.df.withColumn("word", F.split("text", " "))
        rows = collect(split.transform(explode("word")))
        assert [(row.number, row.word) for row in rows] == sorted(
            (n, word) for n, text in enumerate(texts(20)) for word in text.split()
        )
        assert trial.settle() == ALL


def test_explode_of_maps_and_outer(spark: SparkSession, server: Any) -> None:
    with Trial(spark, server.address, texts(20)) as trial:
        mapped = trial.df.select(
            "number",
            F.expr("CASE WHEN number % 3 = 0 THEN map('a', number, 'b', 2) WHEN number % 3 = 1 THEN map() END").alias(
                "m"
            ),
            "_root",
            "_edge",
        )
        rows = collect(mapped.transform(explode("m", ("k", "v"), outer=True)))
        assert rows[:4] == [
            Row(number=0, k="a", v=0),
            Row(number=0, k="b", v=2),
            Row(1, None, None),
            Row(2, None, None),
        ]
        assert trial.settle() == ALL


def test_both_branches_have_to_be_written(spark: SparkSession, server: Any) -> None:
    with Trial(spark, server.address, texts(20)) as trial:
        left, right = branch(trial.df, 2)
        assert len(collect(left)) == len(collect(right.transform(where("number < 10")))) * 2
        assert trial.settle() == ALL


def test_a_branch_that_nobody_takes_leaves_its_records_unfinished(spark: SparkSession, server: Any) -> None:
    with Trial(spark, server.address, texts(20)) as trial:
        left, _ = branch(trial.df, 2)
        collect(left)
        assert ACKED not in trial.settle().values()
        assert set(trial.reasons.values()) == {"unfinished"}


def test_branch_caches_where_boundaries_may_move(spark: SparkSession, server: Any) -> None:
    with Trial(spark, server.address, texts(20)) as trial:
        left, right = branch(trial.df.orderBy(F.rand()), 2)
        collect(left)
        collect(right)
        assert trial.settle() == ALL
        trial.frame.record.release()


def test_inner_join_multiplies_and_drops(spark: SparkSession, server: Any) -> None:
    small = spark.createDataFrame([(0, "x", 1), (0, "y", 2), (3, "z", 3)], "number long, tag string, weight long")
    with Trial(spark, server.address, texts(20)) as trial:
        rows = collect(trial.df.transform(join(small, "number")).select("number", "tag", "weight", "_root", "_edge"))
        assert rows == [Row(0, "x", 1), Row(0, "y", 2), Row(3, "z", 3)]
        assert trial.settle() == ALL


def test_left_join_keeps_rows_without_a_match(spark: SparkSession, server: Any) -> None:
    small = spark.createDataFrame([(0, "x"), (0, "y"), (3, None)], "number long, tag string")
    with Trial(spark, server.address, texts(20)) as trial:
        rows = [
            (row.number, row.tag)
            for row in trial.df.transform(join(small, "number", "left")).transform(as_is).collect()
        ]
        assert len(rows) == 21
        assert trial.settle() != ALL


@operator("tag string", keep=["number"])
def as_is(row: Row) -> Any:
    return (row.tag,)


@group("first", "first long, total long")
def totals(rows: pa.Table) -> Any:
    return pa.table({"first": rows["first"][:1], "total": [pc.sum(rows["number"]).as_py()]}), "all"


@group("first", "number long")
def evens(rows: pa.Table) -> Any:
    numbers = rows["number"].to_pylist()
    kept = [index for index, number in enumerate(numbers) if number % 2 == 0]
    return pa.table({"number": pa.array([numbers[index] for index in kept], pa.int64())}), [[index] for index in kept]


def test_a_group_is_done_when_its_row_is(spark: SparkSession, server: Any) -> None:
    with Trial(spark, server.address, texts(20)) as trial:
        rows = collect(trial.df.withColumn("first", F.col("number") % 3).transform(totals))
        assert rows == [Row(0, 63), Row(1, 70), Row(2, 57)]
        assert trial.settle() == ALL


def test_a_group_over_children_merges_their_edges(spark: SparkSession, server: Any) -> None:
    with Trial(spark, server.address, texts(20)) as trial:
        many = trial.df.transform(words).withColumn("first", F.lit(1).cast("long")).transform(totals)
        assert collect(many.transform(where("total > 0")).transform(explode_twice)) == [Row(570)] * 2
        assert trial.settle() == ALL


@operator("total long")
def explode_twice(row: Row) -> Any:
    yield row.total
    yield row.total


def test_rows_that_no_output_names_are_done(spark: SparkSession, server: Any) -> None:
    with Trial(spark, server.address, texts(20)) as trial:
        rows = collect(trial.df.withColumn("first", F.col("number") % 4).transform(evens))
        assert [row.number for row in rows] == list(range(0, 20, 2))
        assert trial.settle() == ALL
