"""Schemas as text: without a session they are read as Spark reads them, and refused only if Spark refuses them, too."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest
from pyspark import SparkContext
from pyspark.sql import Row, SparkSession
from pyspark.sql.types import StringType

from acker_client.spark import group, operator
from acker_client.spark.worker import ddl
from acker_client.spark.worker.rows import struct_type
from acker_client.spark.worker.schema import arrow_schema_of

READ = [
    "",
    "  ",
    "word string",
    "sku string, qty int",
    " a INT ,b: bigint, c Long not null comment 'how many, (all) of them' ",
    "`a.b` string, `back``tick` int, _x1 double",
    "a boolean, b tinyint, c byte, d smallint, e short, f integer, g float, h real, i date, j timestamp, k binary",
    "a timestamp_ntz, b timestamp_ltz, c void, d variant",
    "a decimal, b dec(5), c numeric(10, 2), d decimal(38,38)",
    "a array<int>, b map<string, array<double>>, c struct<x: int, y struct<z: string not null>>",
    "a array<array<map<int,struct<>>>>, struct int, map string",
    "struct<a: int, b string>",
    "a varchar(5), b char(3), c array<varchar(2)>, d struct<e: character(1)>",
]
BROKEN = [
    "word", "a int, b", "a int,", ", a int", "a int b int", "a strin", "a array<int", "a array<int>>",
    "a map<int>", "a struct<x>", "a decimal(x)", "a decimal(1,2,3)", "a struct<x: in>", "a: , b int", "'a' int",
]  # fmt: skip
LEFT_TO_SPARK = [
    "a interval day to second",
    "a time(6)",
    "a string collate UTF8_LCASE",
    "a interval",
    "a int default 1",
]


@pytest.fixture
def no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)


@pytest.mark.parametrize("text", READ)
def test_without_a_session_a_schema_is_read_as_spark_reads_it(
    spark: SparkSession, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from_spark = struct_type(text)
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    ours = struct_type(text)
    assert [(f.name, f.dataType, f.nullable) for f in ours] == [(f.name, f.dataType, f.nullable) for f in from_spark]


@pytest.mark.parametrize("text", BROKEN)
def test_what_is_refused_without_a_session_is_refused_with_one(spark: SparkSession, text: str) -> None:
    with pytest.raises(ddl.BrokenSchema, match=re.escape(f"the schema {text!r} cannot be read: ")):
        ddl.parse(text)
    with pytest.raises(ValueError, match=re.escape(f"the schema {text!r} cannot be read: ") + ".*write it like"):
        struct_type(text)


@pytest.mark.parametrize("text", LEFT_TO_SPARK)
def test_what_only_spark_can_read_waits_for_a_session(no_session: None, text: str) -> None:
    declared = operator(text, lambda row: None, name="later")
    with pytest.raises(ValueError, match="needs a SparkSession: build one first, or give a StructType"):
        declared.test(Row())


def test_a_broken_schema_is_refused_where_it_is_written_without_a_session(no_session: None) -> None:
    with pytest.raises(
        ValueError, match=r"@operator: the schema 'word strin' cannot be read: column 'word' has the type"
    ):
        operator("word strin")
    with pytest.raises(ValueError, match="@group: the schema 'n int m int' cannot be read: a comma is missing before"):
        group("key", "n int m int")
    with pytest.raises(ValueError, match="rename '_Edge'"):
        operator("_Edge long")


def test_lengths_of_texts_are_left_to_tables() -> None:
    assert [field.dataType for field in struct_type("a char(3), b varchar(5)")] == [StringType(), StringType()]


def test_a_source_takes_lengths_of_texts_for_strings() -> None:
    assert arrow_schema_of("a char(3), b array<varchar(5)>") == pa.schema(
        [pa.field("a", pa.string()), pa.field("b", pa.list_(pa.field("element", pa.string())))]
    )


def test_a_type_is_no_schema(spark: SparkSession) -> None:
    with pytest.raises(ValueError, match="is a type, not columns; write it like 'word string, count int'"):
        struct_type("array<int>")
