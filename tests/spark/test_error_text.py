"""`shorten` finds the line of the user's own exception in an error of Spark."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from acker_client.error_text import REASON_LENGTH_MAX, shorten

pytestmark = pytest.mark.sampled(3)

JAVA = """An error occurred while calling o340.parquet.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 14.0 failed 4 times, most recent \
failure: Lost task 0.3 in stage 14.0 (TID 31) (vm executor driver): java.io.IOException: Mkdirs failed to create file:/x
	at org.apache.hadoop.fs.ChecksumFileSystem.create(ChecksumFileSystem.java:774)

Driver stacktrace:
	at org.apache.spark.scheduler.DAGScheduler.runJob(DAGScheduler.scala:1549)
Caused by: java.io.IOException: Mkdirs failed to create file:/x
	at org.apache.hadoop.fs.ChecksumFileSystem.create(ChecksumFileSystem.java:774)
	... 1 more"""
REASON = """words: ValueError: not three
Traceback (most recent call last):
  File "job.py", line 3, in words
    raise ValueError("not three")
ValueError: not three
"""


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("no\nmore"), "ValueError: no"),
        (KeyError("sku"), "KeyError: 'sku'"),
        (RuntimeError(), "RuntimeError"),
        ("", ""),
        ("plain words", "plain words"),
        ("e.txt:2 (byte 3): not valid UTF-8", "e.txt:2 (byte 3): not valid UTF-8"),
        ("a.b.c: no", "c: no"),
        (REASON, "words: ValueError: not three"),
        (REASON.partition("\n")[2], "ValueError: not three"),
        ("[STREAM_FAILED] a.b.Py4JException: An Exception\nTraceback (most recent call last):\n  in f\nException",
         "Exception"),
        (JAVA, "IOException: Mkdirs failed to create file:/x"),
        ("An error occurred while calling o1.f.\n: java.sql.SQLException: No suitable driver\n\tat x.y(z)",
         "SQLException: No suitable driver"),
        (("An error occurred while calling o1.f.\n: a.b.SparkException: Exception thrown in awaitResult: \n"
         "\tat x.y(z)\nCaused by: c.d.E: deep\n\tat x.y(z)"), "E: deep"),
        ("[STREAM_FAILED] Query [id = 1] terminated with exception: a.b.E: broke SQLSTATE: XXKST", "E: broke"),
        ("Traceback (most recent call last):", "Traceback (most recent call last):"),
        ("x" * 1000, "x" * (REASON_LENGTH_MAX - 3) + "..."),
    ],
)  # fmt: skip
def test_the_gist_of_a_text_is_its_line(error: BaseException | str, line: str) -> None:
    assert shorten(error) == line


def boom(*_: Any) -> Any:
    raise ValueError("bad row 7")


def boom_in_batches(batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        raise ValueError("first\nsecond\n\nthird")
        yield batch  # type: ignore[unreachable]  # makes it a generator


def boom_from_another(batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        try:
            dict[str, str]()["k"]
        except KeyError as error:
            raise Broken from error
        yield batch


def die(batches: Iterator[Any]) -> Iterator[Any]:
    os._exit(3)
    yield  # type: ignore[unreachable]  # makes it a generator


class Broken(Exception):
    """A user's exception without a message."""


UDF: Any = F.udf(boom, StringType())

ERRORS: dict[str, tuple[Callable[[DataFrame, Path], Any], str]] = {
    "udf": (lambda df, path: df.select(UDF("id")).collect(), "ValueError: bad row 7"),
    "udf in a write": (lambda df, path: df.select(UDF("id")).write.parquet(str(path / "o")), "ValueError: bad row 7"),
    "mapInArrow": (lambda df, path: df.mapInArrow(boom_in_batches, "id long").collect(), "ValueError: first"),
    "an exception from another": (lambda df, path: df.mapInArrow(boom_from_another, "id long").collect(), "Broken"),
    "foreachPartition": (lambda df, path: df.foreachPartition(boom), "ValueError: bad row 7"),
    "toLocalIterator": (lambda df, path: list(df.select(UDF("id")).toLocalIterator()), "ValueError: bad row 7"),
    "analysis": (
        lambda df, path: df.select("nope"),
        (
            "AnalysisException: [UNRESOLVED_COLUMN.WITH_SUGGESTION] A column, variable, or function parameter with name"
            " `nope` cannot be resolved. Did you mean one of the following? [`id`]."
        ),
    ),
    "syntax": (
        lambda df, path: df.sparkSession.sql("SELEC 1"),
        "ParseException: [PARSE_SYNTAX_ERROR] Syntax error at or near 'SELEC'.",
    ),
    "the JVM's own": (
        lambda df, path: df.selectExpr("1 div id AS x").write.parquet(str(path / "o")),
        "ArithmeticException: [DIVIDE_BY_ZERO] Division by zero. Use `try_divide` to tolerate divisor being 0 and",
    ),
    "a dead worker": (
        lambda df, path: df.mapInArrow(die, "id long").collect(),
        "SparkException: Python worker exited unexpectedly (crashed)",
    ),
    "foreachBatch": (lambda df, path: stream(df, path, boom), "ValueError: bad row 7"),
    "a job in foreachBatch": (
        lambda df, path: stream(df, path, lambda rows, number: rows.select(UDF("value")).collect()),
        "ValueError: bad row 7",
    ),
    "a stream": (
        lambda df, path: ended(
            df.sparkSession.readStream.text(str(path)).select(UDF("value")).writeStream.format("noop"), path
        ),
        "ValueError: bad row 7",
    ),
}


def stream(df: DataFrame, path: Path, work: Callable[..., Any]) -> None:
    ended(df.sparkSession.readStream.text(str(path)).writeStream.foreachBatch(work), path)


def ended(writer: Any, path: Path) -> None:
    (path / "one.txt").write_text("1\n")
    writer.trigger(availableNow=True).option("checkpointLocation", str(path / "state")).start().awaitTermination()


@pytest.mark.sampled(5)
@pytest.mark.parametrize("kind", ERRORS)
def test_the_gist_of_what_spark_raises_is_what_went_wrong(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    run, line = ERRORS[kind]
    with pytest.raises(Exception) as error:  # noqa: PT011
        run(spark.range(3), tmp_path)
    assert shorten(error.value).startswith(line)
    assert "\n" not in shorten(error.value)
    if line.startswith("ValueError"):
        assert shorten(error.value) == shorten(str(error.value)) == line
