"""How Spark's UI shows the work on a batch: its jobs and executions have the batch's name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from acker_client.source import Batch, Frame, Retry, tracked
from acker_client.spark import operator, sink
from acker_client.spark.driver.session import DESCRIPTION
from acker_testing import Pipeline


@operator("word string")
def words(row: Row) -> Iterator[tuple[str]]:
    if "!" in row.value:
        raise ValueError(f"{row.value} is too loud")
    yield (row.value,)


def read_all(rows: Iterator[Row]) -> None:
    list(rows)


@sink
def save(rows: DataFrame) -> None:
    rows.write.format("noop").mode("append").save()
    rows.foreachPartition(read_all)


@pytest.fixture(autouse=True)
def _no_description(spark: SparkSession) -> Iterator[None]:
    """Batches of other tests, which nobody releases, leave theirs."""
    spark.sparkContext.setJobDescription(None)  # type: ignore[arg-type]  # None removes it
    yield
    spark.sparkContext.setJobDescription(None)  # type: ignore[arg-type]


@pytest.fixture
def shown(spark: SparkSession) -> Any:
    """Return a function that returns the new descriptions of executions and of jobs, each once, in order."""
    session: Any = spark._jsparkSession
    context: Any = spark.sparkContext._jsc.sc()
    store: Any = session.sharedState().statusStore()

    def descriptions(before: tuple[int, int] = (0, 0)) -> tuple[list[str], list[str], tuple[int, int]]:
        context.listenerBus().waitUntilEmpty(30_000)
        executions, jobs = store.executionsList(), context.statusStore().jobsList(None)
        texts = [str(executions.apply(k).description()) for k in range(before[0], executions.size())]
        # The store gives the newest job first.
        found = [jobs.apply(k).description() for k in reversed(range(jobs.size() - before[1]))]
        named = [str(each.get()) for each in found if each.isDefined()]
        return list(dict.fromkeys(texts)), list(dict.fromkeys(named)), (executions.size(), jobs.size())

    return descriptions


@pytest.mark.long
def test_jobs_and_executions_of_a_batch_have_its_name(pipeline: Pipeline, spark: SparkSession, shown: Any) -> None:
    _, _, before = shown()
    options: dict[str, Any] = {"batch_records": 2, "name": "orders", "retry": Retry(max_retries=1, initial_s=0.0)}
    pipeline.run(["a", "b!", "c"], lambda batch: save(batch.df.transform(words)), **options)
    executions, jobs, _ = shown(before)
    names = ["orders: batch 1, 2 records, attempt 1", "orders: batch 2, 2 records, 1 of them again, attempt 1"]
    assert executions == names
    assert jobs == names
    assert spark.sparkContext.getLocalProperty(DESCRIPTION) is None


@pytest.mark.long
def test_a_batch_that_failed_as_a_whole_has_the_number_of_its_attempt(pipeline: Pipeline, shown: Any) -> None:
    _, _, before = shown()
    failed: list[int] = []

    def process(batch: Batch) -> None:
        save(batch.df)
        if batch.number < 3:
            failed.append(batch.number)
            raise OSError("disk full")

    pipeline.run(["a"], process, name="orders", retry=Retry(initial_s=0.0))
    assert shown(before)[0] == [f"orders: batch {k}, 1 record, attempt {k}" for k in (1, 2, 3)]


@pytest.mark.long
def test_descriptions_of_the_users_own_are_kept_and_come_back(
    pipeline: Pipeline, spark: SparkSession, shown: Any
) -> None:
    _, _, before = shown()
    context = spark.sparkContext
    context.setJobDescription("before")

    def process(batch: Batch) -> None:
        save(batch.df)
        if batch.number == 2:
            context.setJobDescription("mine")

    pipeline.run(["a"], process, name="orders")
    assert context.getLocalProperty(DESCRIPTION) == "before"
    pipeline.run(["a", "b"], process, name="orders", batch_records=1)
    assert context.getLocalProperty(DESCRIPTION) == "mine"
    assert "before" not in shown(before)[0]


@pytest.mark.long
def test_a_micro_batch_shows_the_query_again_after_its_rows(
    pipeline: Pipeline, spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("one\n")
    seen: list[str | None] = []
    process = tracked(lambda batch: save(batch.df), name="lines")

    def foreach(df: DataFrame, batch_id: int) -> None:
        seen.append(spark.sparkContext.getLocalProperty(DESCRIPTION))
        process(df, batch_id)
        seen.append(spark.sparkContext.getLocalProperty(DESCRIPTION))

    writer = spark.readStream.text(str(tmp_path / "in")).writeStream.foreachBatch(foreach).queryName("ours")
    writer.option("checkpointLocation", str(tmp_path / "ckpt")).trigger(availableNow=True).start().awaitTermination()
    assert seen[0] == seen[1]
    assert "batch = 0" in str(seen[0])


@pytest.mark.long
def test_outcomes_of_a_frame_name_its_rows_by_their_key(pipeline: Pipeline, spark: SparkSession) -> None:
    frame = spark.createDataFrame([(1, "a"), (2, "b!"), (3, "c")], "id long, value string")
    options: dict[str, Any] = {"name": "rows", "key": "id", "retry": Retry(max_retries=1, initial_s=0.0)}
    source = Frame(frame, max_dead_share=1.0, dead_letters="log", **options)
    outcomes = list(source.outcomes(spark, lambda batch: save(batch.df.transform(words))))
    assert sorted((each.origin["id"], each.verdict.name, each.attempts, each.is_final) for each in outcomes) == [
        (1, "ACKED", 1, True), (2, "FAILED", 1, False), (2, "FAILED", 2, True), (3, "ACKED", 1, True)
    ]  # fmt: skip
