"""Unusual frames: columns of any name, text and bytes with wide offsets, and thin and packed anchors in one frame."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from acker_client import Settings
from acker_client.cluster.scope import BatchScope
from acker_client.spark import (
    Refused,
    arrow_operator,
    branch,
    cogroup,
    explode,
    group,
    join,
    operator,
    pandas_operator,
    sink,
    where,
)
from acker_client.spark import functions as AF
from acker_client.spark.operators.read import frame_of
from tests.spark.live_batch import ACKED, texts

pytestmark = pytest.mark.sampled(3)

ODD = ["a.b", "a b", "a`b", "größe", 'say "it"', "it's", "", "*", "a.*", "`q`", "(x)", "a;b", "Case", "case"]
ODD_SCHEMA = StructType([StructField(name, StringType()) for name in ODD])
ALL = dict.fromkeys(range(4), ACKED)

Conf = Callable[[str, str], None]
Step = Callable[[DataFrame], DataFrame]


@sink
def collect(rows: DataFrame) -> list[Row]:
    return sorted(rows.collect(), key=str)


@operator(ODD_SCHEMA, keep=["number"])
def odd(row: Row) -> Any:
    return tuple(f"{row.text}/{name}" for name in ODD)


@operator("n long", keep=ODD)
def after(row: Row) -> Any:
    return (row.number,)


@pandas_operator("n long", keep=ODD)
def after_pandas(frame: Any) -> Any:
    return frame.assign(n=frame["number"])


@arrow_operator("n long", keep=ODD)
def after_arrow(batch: pa.RecordBatch) -> Any:
    return pa.table({"n": batch["number"]})


def made(number: int) -> list[str]:
    return [f"w{number}.0 w{number}.1 w{number}.2/{name}" for name in ODD]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("step", [after, after_pandas, after_arrow], ids=lambda step: str(step.name))
def test_columns_of_any_name_pass_a_hop(live: Callable[..., Any], step: Step) -> None:
    batch = live(texts(4))
    rows = collect(step(batch.df.transform(odd).alias("rows")).alias("rows"))
    assert rows[0].__fields__ == ["n", *ODD]
    assert [list(row) for row in rows] == [[number, *made(number)] for number in range(4)]
    assert batch.settle() == ALL


def test_where_takes_columns_of_any_name(live: Callable[..., Any]) -> None:
    batch = live(texts(4))
    rows = collect(batch.df.transform(odd).transform(where("`a.b` > 'w1.9' AND `a``b` <> ''")))
    assert [list(row) for row in rows] == [[*made(number), number] for number in (2, 3)]
    assert batch.settle() == ALL


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["a.b", "a`b", "*"])
def test_explode_takes_a_column_of_any_name(live: Callable[..., Any], name: str) -> None:
    batch = live(texts(4))
    split = batch.df.select("*", F.split("text", " ").alias(name), F.lit(1).alias("x.y"))
    rows = collect(split.transform(explode(name)))
    assert [(row.number, row[name], row["x.y"]) for row in rows] == [
        (number, f"w{number}.{word}", 1) for number in range(4) for word in range(3)
    ]
    assert batch.settle() == ALL


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["a.b", "a`b", "*"])
def test_join_takes_columns_of_any_name(spark: SparkSession, live: Callable[..., Any], name: str) -> None:
    batch = live(texts(4))
    schema = StructType([StructField(name, StringType()), StructField("v.w", IntegerType())])
    table = spark.createDataFrame([("w1.0 w1.1 w1.2", 1), ("w1.0 w1.1 w1.2", 2)], schema)
    rows = collect(batch.df.select("number", F.col("text").alias(name), "_root", "_edge").transform(join(table, name)))
    assert [(row.number, row["v.w"]) for row in rows] == [(1, 1), (1, 2)]
    assert batch.settle() == ALL


@pytest.mark.sampled(3)
@pytest.mark.parametrize("keys", [["a.b"], ["a`b", "*", "", "case", "größe"]])
def test_group_takes_columns_of_any_name(live: Callable[..., Any], keys: list[str]) -> None:
    @group(keys, StructType([*ODD_SCHEMA.fields, StructField("a`.b", IntegerType())]))
    def firsts(rows: pa.Table) -> Any:
        return pa.table({**{name: rows[name][:1] for name in ODD}, "a`.b": [rows.num_rows]}), "all"

    batch = live(texts(4))
    rows = collect(batch.df.transform(odd).transform(firsts))
    assert [list(row) for row in rows] == [[*made(number), 1] for number in range(4)]
    assert batch.settle() == ALL


@pytest.mark.sampled(3)
@pytest.mark.parametrize("keys", [["a.b"], ["a`b", "*", "", "case", "größe"]])
def test_cogroup_takes_columns_of_any_name(live: Callable[..., Any], keys: list[str]) -> None:
    @cogroup(keys, StructType([*ODD_SCHEMA.fields, StructField("a`.b", IntegerType())]))
    def firsts(left: pa.Table, right: pa.Table) -> Any:
        assert left.schema == right.schema
        return pa.table({**{name: right[name][:1] for name in ODD}, "a`.b": [left.num_rows]}), "all"

    batch = live(texts(4))
    left, right = branch(batch.df.transform(odd), 2)
    rows = collect(firsts(left, right))
    assert [list(row) for row in rows] == [[*made(number), 1] for number in range(4)]
    assert batch.settle() == ALL


@pytest.mark.long
def test_cogroup_takes_a_field_of_a_struct_and_names_in_any_case(live: Callable[..., Any]) -> None:
    @cogroup(["s.part", "NUMBER"], "n long")
    def count(key: tuple[Any, ...], left: pa.Table, right: pa.Table) -> Any:
        return pa.table({"n": [key[0].as_py() * 10 + left.num_rows + right.num_rows]}), "all"

    batch = live(texts(4))
    left, right = branch(batch.df.withColumn("s", F.expr("struct(number % 2 AS part)")), 2)
    assert sorted(collect(count(left, right.withColumnRenamed("number", "Number")))) == [(2,), (2,), (12,), (12,)]
    assert batch.settle() == ALL


def test_group_takes_a_field_of_a_struct_and_names_in_any_case(live: Callable[..., Any]) -> None:
    @group(["s.part", "NUMBER"], "n long")
    def count(rows: pa.Table) -> Any:
        return pa.table({"n": [rows.num_rows]}), "all"

    batch = live(texts(4))
    assert collect(batch.df.withColumn("s", F.expr("struct(number % 2 AS part)")).transform(count)) == [(1,)] * 4
    assert batch.settle() == ALL


def test_a_column_that_is_not_there_is_named_by_group(live: Callable[..., Any]) -> None:
    batch = live(texts(4))
    counted = group("wordd", "n long", name="count")(lambda rows: (rows, "all"))
    with pytest.raises(ValueError, match=r"group 'count': there is no column 'wordd' to group by; the frame has \['nu"):
        batch.df.transform(counted)


def test_a_name_that_comes_twice_is_refused(live: Callable[..., Any]) -> None:
    batch = live(texts(4))
    with pytest.raises(Refused, match="operator 'after' cannot take this frame: it has the column 'text' more than"):
        batch.df.select("*", "text").transform(after)


@pytest.mark.parametrize(
    "step",
    [
        lambda df: df.select("number", "_ROOT", "_EDGE"),
        lambda df: df.withColumn("_ROOT", F.lit(1)),
        lambda df: df.select("*", F.lit(1).alias("_Anchors")),
    ],
    ids=["select", "withColumn", "a column beside them"],
)
def test_tracking_columns_in_capitals_are_refused(live: Callable[..., Any], step: Step) -> None:
    batch = live(texts(4))
    with pytest.raises(
        Refused, match=r"its column '_(ROOT|Anchors)' is not '_(root|anchors)', and Spark takes the two"
    ):
        collect(step(batch.df))


def test_names_of_tracking_columns_in_capitals_are_refused_where_they_are_declared(
    spark: SparkSession, live: Callable[..., Any]
) -> None:
    batch = live(texts(4))
    split = batch.df.withColumn("list", F.split("text", " "))
    for declare in (
        lambda: operator("_ROOT long", len),
        lambda: group("k", "_Edge long", name="g")(len),
        lambda: split.transform(explode("list", "_ANCHORS")),
        lambda: join(spark.range(2).selectExpr("id AS number", "id AS _Root"), "number"),
    ):
        with pytest.raises(ValueError, match="are the acker's own"):
            declare()


def test_a_source_with_a_column_called_as_a_tracking_column_is_refused(spark: SparkSession) -> None:
    with pytest.raises(
        ValueError, match="source 'orders': the columns _root, _edge, _anchors are the acker's own; rename"
    ):
        frame_of(
            spark,
            name="orders",
            scope=BatchScope(1, 1, 1),
            schema="a int, _Root long",
            slices=[],
            settings=Settings(("a:1",)),
        )


# Text and bytes with wide offsets.


@group("k", "n long, s string, l array<string>, b binary")
def grouped(rows: pa.Table) -> Any:
    return pa.table({"n": [rows.num_rows], "s": rows["text"][:1], "l": [["x"]], "b": [b"y"]}), "all"


@cogroup("number", "n long, text string, l array<string>, b binary")
def meeting(left: pa.Table, right: pa.Table) -> Any:
    return pa.table({"n": [left.num_rows], "text": left["text"], "l": [["x"]], "b": [b"y"]}), "all"


@group("number", "n long")
def numbers(rows: pa.Table) -> Any:
    return pa.table({"n": rows["number"]}), [[index] for index in range(rows.num_rows)]


@arrow_operator("text string, l array<string>, m map<string, string>, b binary", keep=["number"])
def texts_of(batch: pa.RecordBatch) -> Any:
    text = batch["text"].to_pylist()
    rows = [{"text": one, "l": [one], "m": [(one, one)], "b": one.encode()} for one in text]
    return pa.Table.from_pylist(rows, pa.schema({
        "text": pa.large_string(), "l": pa.list_(pa.string()), "m": pa.map_(pa.string(), pa.string()),
        "b": pa.binary(),
    }))  # fmt: skip


@operator("x string", keep="*")
def after_text(row: Row) -> Any:
    return (row.text,)


LARGE: dict[str, Callable[[SparkSession, DataFrame], DataFrame]] = {
    "row": lambda spark, df: df.alias("rows").transform(after_text),
    "pandas": lambda spark, df: df.alias("rows").transform(pandas_operator("x string", keep="*")(with_x)),
    "arrow": lambda spark, df: df.alias("rows").transform(texts_of).alias("rows").transform(where("number >= 0")),
    "explode": lambda spark, df: df.withColumn("l", F.split("text", " ")).transform(explode("l")),
    "explode a map": lambda spark, df: df.withColumn("m", F.expr("map(text, text)")).transform(explode("m")),
    "join": lambda spark, df: df.transform(join(spark.sql("SELECT 1L AS number, 's' AS s"), "number", "left")),
    "branch": lambda spark, df: df.alias("rows").transform(both),
    "group": lambda spark, df: df.withColumn("k", F.lit("k")).transform(grouped).transform(where("n > 0")),
    "group of numbers": lambda spark, df: df.select("number", "_root", "_edge").transform(numbers).alias("rows"),
    "group of groups": lambda spark, df: df.withColumn("k", F.lit(1)).transform(grouped).transform(regrouped),
    "cogroup": lambda spark, df: df.transform(with_itself).transform(where("n > 0")),
    "cogroup with a table": lambda spark, df: df.transform(meeting, spark.sql("SELECT 9L AS number, 's' AS s")),
}


def with_itself(df: DataFrame) -> DataFrame:
    first, second = branch(df, 2)
    return meeting(first, second.alias("rows"))


def regrouped(df: DataFrame) -> DataFrame:
    return df.selectExpr("s AS text", "1 AS k", "_anchors").transform(grouped)


def both(df: DataFrame) -> DataFrame:
    first, second = branch(df, 2)
    return first.union(second)


def with_x(frame: Any) -> Any:
    return frame.assign(x="x")


@pytest.mark.sampled(3)
@pytest.mark.matrix
@pytest.mark.parametrize("step", LARGE)
def test_text_and_bytes_with_wide_offsets_pass_everywhere(
    spark: SparkSession, live: Callable[..., Any], conf: Conf, step: str
) -> None:
    conf("spark.sql.execution.arrow.useLargeVarTypes", "true")
    batch = live(texts(4))
    assert collect(LARGE[step](spark, batch.df))
    assert batch.settle() == ALL


def test_a_frame_without_a_value_reaches_spark_in_columns_of_every_type(live: Callable[..., Any]) -> None:
    kinds = "d date, t timestamp, n timestamp_ntz, l array<int>, s struct<x: int>, c decimal(9, 2), m map<string, int>"

    @pandas_operator(f"{kinds}, b binary, f boolean, i interval day to second", keep=["number"])
    def nothing(frame: Any) -> Any:
        import pandas as pd

        kept = frame[frame["number"] == 3]
        return pd.DataFrame(dict.fromkeys("dtnlscmbfi", float("nan")), index=kept.index), kept.index

    batch = live(texts(4))
    assert [list(row) for row in collect(batch.df.transform(nothing).alias("rows"))] == [[*[None] * 10, 3]]
    assert batch.settle() == ALL


@pytest.mark.long
@pytest.mark.matrix
def test_functions_take_packed_anchors_with_wide_offsets(live: Callable[..., Any], conf: Conf) -> None:
    conf("spark.sql.execution.arrow.useLargeVarTypes", "true")
    batch = live(texts(4))
    assert len(batch.df.transform(numbers).select("n", AF.ack("_anchors")).collect()) == 4
    assert batch.settle() == ALL


@pytest.mark.sampled(3)
@pytest.mark.parametrize("preserve", ["false", "true"])
def test_columns_of_char_and_varchar_are_strings(
    spark: SparkSession, live: Callable[..., Any], conf: Conf, preserve: str
) -> None:
    conf("spark.sql.preserveCharVarcharTypeInfo", preserve)
    spark.sql("DROP TABLE IF EXISTS sizes")
    spark.sql("CREATE TABLE sizes (number long, c char(3), v varchar(3)) USING parquet")
    try:
        spark.sql("INSERT INTO sizes VALUES (0, 'a', 'b'), (1, 'c', 'd')")
        batch = live(texts(4))
        declared = operator("c char(3), short varchar(2), l array<varchar(2)>", keep=["number"])(sized)
        rows = collect(batch.df.transform(declared).select("number", "short", "l", "_root", "_edge").transform(
            join(spark.table("sizes"), "number")
        ).alias("r").transform(operator("n long", keep=["short", "l", "c", "v"])(lambda row: row.number)))  # fmt: skip
        assert rows == [(0, "long one", ["x"], "a  ", "b"), (1, "long one", ["x"], "c  ", "d")]
        assert batch.settle() == ALL
    finally:
        spark.sql("DROP TABLE sizes")


def sized(row: Row) -> Any:
    return "c", "long one", ["x"]


# Thin and packed anchors in one frame.

MIXED: dict[str, tuple[int, Step]] = {
    "a sink": (8, lambda df: df),
    "an operator": (8, lambda df: df.transform(operator("m long", keep=["number"])(lambda row: row.number))),
    "a hop": (8, lambda df: df.repartition(2).withColumn("z", F.lit(1))),
    "join": (8, lambda df: df.transform(join(df.sparkSession.range(4).toDF("number"), "number"))),
    "ack": (8, lambda df: df.select("number", AF.ack("_root", "_edge", "_anchors"))),
    "where": (4, lambda df: df.transform(where("number > 1"))),
    "group": (8, lambda df: df.transform(numbers)),
    "another union": (12, lambda df: thin_and_packed(df, "again")),
}


def thin_and_packed(df: DataFrame, name: str) -> DataFrame:
    first, second = branch(df, 2, name=name)
    merged = group("number", "number long", name=f"g {name}")(lambda rows: (rows.select(["number"])[:1], "all"))
    return first.unionByName(second.transform(merged), allowMissingColumns=True)


@pytest.mark.sampled(3)
@pytest.mark.matrix
@pytest.mark.parametrize("step", MIXED)
def test_thin_and_packed_frames_meet_in_a_union(live: Callable[..., Any], step: str) -> None:
    batch = live(texts(4))
    count, build = MIXED[step]
    made = build(thin_and_packed(batch.df, "first"))
    assert len(made.collect() if step == "ack" else collect(made)) == count
    assert batch.settle() == ALL


@pytest.mark.parametrize(
    "step",
    [
        lambda df: df.withColumn("_anchors", F.lit(None).cast("binary")),
        lambda df: df.withColumn("_root", F.lit(None).cast("bigint")),
        lambda df: df.withColumns({name: F.lit(None).cast("bigint") for name in ("_root", "_edge")}),
        lambda df: df.select(*(F.lit(None).alias(name) for name in df.columns)),
    ],
    ids=["packed", "root", "thin", "all"],
)
def test_anchors_that_were_made_null_are_refused(live: Callable[..., Any], step: Step) -> None:
    batch = live(texts(4))
    with pytest.raises(Refused, match=r"its column _(root|edge|anchors) is not the one that the step before made"):
        collect(step(thin_and_packed(batch.df, "first")))


def test_a_mixed_frame_that_lost_a_part_of_its_columns_is_refused(live: Callable[..., Any]) -> None:
    batch = live(texts(4))
    mixed = thin_and_packed(batch.df, "first")
    for columns in (["number", "_root", "_anchors"], ["number", "_edge", "_anchors"]):
        with pytest.raises(Refused, match="lost its tracking columns"):
            collect(mixed.select(*columns))
    for columns in (["number", "_anchors"], ["number", "_root", "_edge"]):
        with pytest.raises(Refused, match="is not the one that the step before made"):
            collect(mixed.select(*columns))
