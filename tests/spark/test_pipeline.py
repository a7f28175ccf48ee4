"""A user's whole pipeline in a test: real Spark, a server of its own, records from a list."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

from acker_client import Verdict
from acker_client.source import Retry
from acker_client.spark import operator, sink
from acker_testing import Dead, Outcome, Pipeline


@operator("word string")
def words(row: Row) -> Iterator[tuple[str]]:
    if "!" in row.value:
        raise ValueError(f"{row.value} is too loud")
    for word in row.value.split():
        yield (word,)


@operator("total bigint")
def total(row: Row) -> Iterator[tuple[int]]:
    yield (row.price * row.qty,)


def saving(operation: Any, written: list[Row]) -> Any:
    @sink
    def save(rows: Any) -> None:
        written.extend(rows.collect())

    return lambda batch: save(batch.df.transform(operation))


@pytest.mark.long
@pytest.mark.matrix
def test_a_pipeline_says_which_records_were_acked_and_which_died_of_what(pipeline: Pipeline) -> None:
    written: list[Row] = []
    result = pipeline.run(["a b", "help!", "c"], saving(words, written), retry=Retry(max_retries=0))
    assert sorted(row.word for row in written) == ["a", "b", "c"]
    assert result.acked == ["a b", "c"]
    assert result.dead == [Dead("help!", "words: ValueError: help! is too loud")]
    assert sorted(result.outcomes, key=lambda outcome: outcome.record) == [
        Outcome("a b", Verdict.ACKED, ""),
        Outcome("c", Verdict.ACKED, ""),
        Outcome("help!", Verdict.FAILED, "words: ValueError: help! is too loud"),
    ]
    assert (result.summary.records, result.summary.acked, result.summary.dead_lettered) == (3, 2, 1)


@pytest.mark.long
def test_a_pipeline_takes_dictionaries_with_a_schema_and_malformed_lines_beside_them(pipeline: Pipeline) -> None:
    written: list[Row] = []
    records: list[Any] = [
        {"price": 3, "qty": 2},
        "no object",
        {"price": 5, "qty": 1, "note": "ignored"},
    ]
    result = pipeline.run(records, saving(total, written), schema="price int, qty int")
    assert sorted(row.total for row in written) == [5, 6]
    assert result.acked == [records[0], records[2]]
    assert result.dead == [Dead("no object", "records.jsonl:2 (byte 23): not a JSON object")]
    assert [outcome.record for outcome in result.outcomes].count("no object") == 2


@pytest.mark.long
def test_a_pipeline_leaves_the_session_as_it_was(spark: SparkSession) -> None:
    environment = dict(spark.sparkContext.environment)
    servers = spark.conf.get("spark.acker.servers", None)
    with Pipeline() as pipeline:
        assert pipeline.spark is not None
        assert str(spark.conf.get("spark.acker.servers", "")).startswith("127.0.0.1:")
    assert spark.conf.get("spark.acker.servers", None) == servers
    assert spark.sparkContext.environment == environment
    with pytest.raises(RuntimeError, match=r"is not open: with Pipeline\(\) as pipeline"):
        pipeline.run([], print)


@pytest.mark.long
def test_a_pipeline_does_not_use_the_access_to_servers_that_environment_and_session_name(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = {
        "ACKER_CA": "/nowhere/ca.pem",
        "ACKER_TOKEN_FILE": "/nowhere/token",
        "ACKER_ACCESS_FILE": "/nowhere/access.json",
    }
    for name, value in foreign.items():
        monkeypatch.setenv(name, value)
    spark.conf.set("spark.acker.accessFile", "/nowhere/access.json")

    @operator("named string")
    def variables(row: Row) -> Iterator[tuple[str]]:
        yield (" ".join(name for name in foreign if os.environ.get(name)),)

    written: list[Row] = []
    try:
        with Pipeline(spark) as pipeline:
            assert pipeline.run(["a", "b"], saving(variables, written)).acked == ["a", "b"]
            assert not any(name.startswith("ACKER_") for name in os.environ)
        assert spark.conf.get("spark.acker.accessFile") == "/nowhere/access.json"
    finally:
        spark.conf.unset("spark.acker.accessFile")
    assert [row.named for row in written] == ["", ""]
    assert {name: os.environ[name] for name in foreign} == foreign


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("records", "options", "says"),
    [
        (["fine", "two\nlines"], {}, r"records\[1\] contains a line feed"),
        ([{"a": 1}], {}, r"records\[0\] is not a string: give schema="),
        ([{"a": object()}], {"schema": "a int"}, r"records\[0\] cannot be written as JSON"),
        (["fine"], {"listener": None}, "listener: Pipeline sets its own"),
    ],
)
def test_records_that_no_line_can_hold_are_refused_by_their_place(
    pipeline: Pipeline, records: list[Any], options: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        pipeline.run(records, print, **options)


@pytest.mark.long
def test_the_server_of_a_pipeline_ends_with_the_process_that_started_it(tmp_path: Any) -> None:
    program = (
        "import os, pathlib, sys\n"
        "from acker_testing.child import Child\n"
        f"child = Child(pathlib.Path({str(tmp_path)!r}))\n"
        "child.await_ready()\n"
        "print(child._process.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == -signal.SIGKILL
    with contextlib.suppress(ProcessLookupError):
        ended = os.pidfd_open(int(done.stdout))
        assert select.select([ended], [], [], 60.0)[0], "the server lives on"
        os.close(ended)
