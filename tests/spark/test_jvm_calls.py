"""The fixed cost of a batch in the driver: its calls into the JVM, and the frames that Spark never has to plan."""

from __future__ import annotations

import gc
import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import py4j.clientserver
import pytest
from py4j.protocol import MEMORY_COMMAND_NAME
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from acker_client.source import Batch, Files, tracked
from acker_client.spark import Refused, operator, sink
from acker_client.spark.commit_evidence.acked import is_planned
from acker_client.spark.commit_evidence.executions import BUS_WAIT_MS
from acker_client.spark.driver.session import SessionError, settings_of
from acker_client.spark.driver.stores import Stores
from acker_client.spark.worker.rows import struct_type
from tests.spark.live_batch import LiveBatch

pytestmark = pytest.mark.jvm

CALLS_MAX, MICRO_BATCH_CALLS_MAX = 100, 180
# The second part of a longer answer waits 40 ms for the acknowledgement of the first.
PY4J_BUFFER = 8192
SCHEMAS: list[str | StructType] = [
    "word string",
    "id bigint not null, `a.b` int, at timestamp, day date, price decimal(10,2)",
    "name char(4), other varchar(9), data binary, flag boolean",
    "items array<struct<sku: string, qty: int>>, counts map<string, bigint>, deep struct<a: struct<b: double>>",
    StructType([StructField("n", LongType(), False, {"comment": "a number"}), StructField("t", StringType())]),
]


@operator("word string")
def words(row: Row) -> Iterator[str]:
    yield from row.value.split(" ")


@sink
def save(rows: DataFrame, path: str) -> None:
    rows.write.mode("append").parquet(path)


@sink
def count(rows: DataFrame) -> None:
    rows.write.format("noop").mode("append").save()


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The commands that this process sends to the JVM, without those that only release an object."""
    sent: list[str] = []
    send: Callable[..., Any] = py4j.clientserver.JavaClient.send_command

    def counted(self: Any, command: str, *args: Any, **kwargs: Any) -> Any:
        if not command.startswith(MEMORY_COMMAND_NAME):
            sent.append(command)
        return send(self, command, *args, **kwargs)

    monkeypatch.setattr(py4j.clientserver.JavaClient, "send_command", counted)
    return sent


def test_a_batch_of_a_file_makes_at_most_100_calls_into_the_jvm(
    connected: SparkSession, tmp_path: Path, commands: list[str]
) -> None:
    (tmp_path / "in.txt").write_text("".join(f"line {number}\n" for number in range(400)))
    source = Files(str(tmp_path / "in.txt"), name="counted", checkpoint=str(tmp_path / "ckpt"), batch_records=100)
    at: list[int] = []

    def process(batch: Batch) -> None:
        gc.collect()
        at.append(len(commands))
        save(batch.df.transform(words), str(tmp_path / "out"))

    assert source.run(connected, process).acked == 400
    # From the work of one batch to the work of the next: it is written, judged, settled, and the next one is planned.
    calls = [stop - start for start, stop in itertools.pairwise(at)]
    # The first batch also asks for what does not change in a run.
    assert max(calls[1:]) <= CALLS_MAX, calls


def test_a_micro_batch_makes_at_most_180_calls_into_the_jvm(
    connected: SparkSession, tmp_path: Path, commands: list[str]
) -> None:
    df = connected.range(100).selectExpr("cast(id as string) as value")
    job, calls = tracked(lambda batch: save(batch.df.transform(words), str(tmp_path / "out")), name="counted"), []
    for number in range(4):
        gc.collect()
        before = len(commands)
        job(df, number)
        calls.append(len(commands) - before)

    # A batch makes six calls more each time that it has to wait for Spark's record of its execution.
    assert min(calls[1:]) <= MICRO_BATCH_CALLS_MAX, calls


def test_spark_plans_neither_the_source_nor_an_operator_that_the_sink_joins(connected: SparkSession) -> None:
    with LiveBatch(connected, settings_of(connected), ["a b", "c"]) as batch:
        made = batch.df.withColumnRenamed("text", "value").transform(words)
        count(made)

        assert is_planned(batch.df), "the user's own step needs the plan below it"
        assert not is_planned(made)
        assert set(batch.settle().values()) == {1}


@pytest.mark.parametrize("schema", SCHEMAS, ids=str)
def test_a_frame_that_spark_has_not_planned_has_the_schema_that_its_plan_has(
    connected: SparkSession, schema: str | StructType
) -> None:
    with LiveBatch(connected, settings_of(connected), ["a"]) as batch:
        made = batch.df.transform(operator(schema, lambda row: None, name="none"))
        before, columns = made.schema, made.columns

        assert not is_planned(made)
        assert struct_type(made._jdf.schema().toDDL()).simpleString() == before.simpleString()
        assert before == made.select("*").schema
        assert columns == made.select("*").columns


def test_a_field_that_a_user_adds_to_the_schema_of_a_frame_does_not_change_the_frame(connected: SparkSession) -> None:
    with LiveBatch(connected, settings_of(connected), ["a"]) as batch:
        made = batch.df.withColumnRenamed("text", "value").transform(words)
        made.schema.add("more", LongType())

        assert "more" not in made.columns
        assert made.select("word").collect() == [Row(word="a")]
        count(made)
        assert set(batch.settle().values()) == {1}


def test_two_threads_that_need_the_plan_of_a_frame_get_the_same_one(connected: SparkSession) -> None:
    with LiveBatch(connected, settings_of(connected), ["a"]) as batch:
        plans: list[Any] = []
        threads = [threading.Thread(target=lambda: plans.append(batch.df._jdf)) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()

        assert {id(plan) for plan in plans} == {id(batch.df._jdf)}


def test_a_frame_that_spark_has_not_planned_is_refused_once_its_batch_is_forgotten(connected: SparkSession) -> None:
    batch = LiveBatch(connected, settings_of(connected), ["a"])
    df = batch.df
    # In a run, a frame keeps its batch alive. Here the frame outlives its batch.
    vars(df).pop("_acker_chain")
    vars(df).pop("_acker_batch")
    batch.close()
    del batch
    gc.collect()

    with pytest.raises(Refused, match="settled and forgotten"):
        words(df)


def test_a_setting_that_changes_between_two_batches_counts_from_the_next_one(
    connected: SparkSession, conf: Callable[[str, str], None]
) -> None:
    assert settings_of(connected).budget_s == 60.0
    conf("spark.acker.budgetSeconds", "7")
    assert settings_of(connected).budget_s == 7.0
    conf("spark.acker.budgetSecond", "7")
    with pytest.raises(SessionError, match="budgetSeconds"):
        settings_of(connected)


def test_no_record_of_a_long_plan_takes_an_answer_that_py4j_sends_in_two_parts(
    connected: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    connected.range(1).selectExpr(f"'{'long ' * 5000}' as text").write.format("noop").mode("append").save()
    stores = Stores(connected)
    stores.wait_until_recorded(BUS_WAIT_MS)
    answers: list[str] = []
    send: Callable[..., Any] = py4j.clientserver.JavaClient.send_command

    def counted(*args: Any, **kwargs: Any) -> Any:
        answers.append(str(send(*args, **kwargs)))
        return answers[-1]

    monkeypatch.setattr(py4j.clientserver.JavaClient, "send_command", counted)
    (latest,) = stores.executions(most=1)
    graph = stores.plan_graph(int(latest["executionId"]))

    assert len(latest["physicalPlanDescription"]) > PY4J_BUFFER < len(str(graph))
    assert max(map(len, answers)) < PY4J_BUFFER


@pytest.mark.parametrize("most", [None, 1])
def test_executions_that_spark_drops_while_they_are_counted_do_not_hide_the_others(
    connected: SparkSession, monkeypatch: pytest.MonkeyPatch, most: int | None
) -> None:
    for _ in range(3):
        connected.range(1).write.format("noop").mode("append").save()
    stores = Stores(connected)
    stores.wait_until_recorded(BUS_WAIT_MS)
    expected = stores.executions(most=most)
    kept = stores.executions_kept()
    counts = iter([kept + 100])
    monkeypatch.setattr(stores, "executions_kept", lambda: next(counts, kept))

    assert [each["executionId"] for each in stores.executions(most=most)] == [each["executionId"] for each in expected]
