"""Operators in Spark, against a real server: what became of every record, and what was written."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from trial import ACKED, Trial, texts, words_of

from acker_client.spark import operator, sink


@operator("word string", keep=["number"])
def words(row: Row) -> Any:
    yield from row.text.split()


@sink
def collect(rows: DataFrame) -> set[tuple[int, str]]:
    assert not {"_root", "_edge", "_anchors"} & set(rows.columns)
    return {(row.number, row.word) for row in rows.collect()}


def test_every_record_is_acked_when_all_of_it_is_written(spark: SparkSession, server: Any) -> None:
    lines = texts(20)
    with Trial(spark, server.address, lines) as trial:
        assert collect(trial.df.transform(words)) == words_of(lines)
        assert trial.settle() == dict.fromkeys(range(20), ACKED)
