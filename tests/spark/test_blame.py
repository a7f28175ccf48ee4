"""Blame: a bug in the program stops the run and costs no record a retry. An error that a row may have caused does not
stop the run."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from acker_client.source import Batch, Files, Retry
from acker_client.spark import operator, sink

pytestmark = pytest.mark.sampled(3)

QUICK = Retry(max_retries=1, initial_s=0.0, cap_s=0.0)


@operator("value string")
def items(row: Row) -> Any:
    yield (row.value,)


@sink
def save(rows: DataFrame) -> None:
    rows.write.format("noop").mode("append").save()


@sink
def misspelt(rows: DataFrame) -> None:
    rows.wrote.format("noop")  # type: ignore[operator]


def saved_and(then: Callable[[Batch], Any]) -> Callable[[Batch], None]:
    def process(batch: Batch) -> None:
        save(batch.df)
        then(batch)

    return process


def swallowed(batch: Batch) -> None:
    with suppress(AttributeError):
        misspelt(batch.df)


def source(folder: Path) -> Files:
    (folder / "in.txt").write_text("".join(f"{k}\n" for k in range(30)))
    return Files(f"{folder}/in.txt", name="lines", dead_letters=folder / "dead.jsonl", retry=QUICK, max_dead_share=1.0)


# Typed as Any, because a type checker refuses the wrong calls below.
any_save: Any = save
any_items: Any = items


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("process", "error"),
    [
        pytest.param(lambda batch: any_save(items), TypeError, id="an operator where a sink takes a frame"),
        pytest.param(lambda batch: any_save(), TypeError, id="no argument"),
        pytest.param(saved_and(lambda batch: any_save(items)), TypeError, id="an operator, after rows were written"),
        pytest.param(lambda batch: any_items(save), TypeError, id="a sink where an operator takes a frame"),
        pytest.param(lambda batch: save(batch.df.nothing), AttributeError, id="a column that is not there"),
        pytest.param(lambda batch: save(batch.rows), AttributeError, id="an attribute that is not there"),
        pytest.param(saved_and(lambda batch: undefined(batch)), NameError, id="a name that is not there"),  # type: ignore[name-defined]  # noqa: F821
        pytest.param(lambda: None, TypeError, id="a process without a parameter"),
        pytest.param(swallowed, Exception, id="a mistake in a sink that process swallows"),
    ],
)
def test_a_mistake_of_the_program_stops_the_run_and_no_record_is_charged(
    connected: SparkSession, tmp_path: Path, process: Any, error: type[Exception]
) -> None:
    lines = source(tmp_path)
    with pytest.raises(error):
        lines.run(connected, process)
    summary = lines.summary()
    assert (summary.batches, summary.dead_lettered, summary.open) == (1, 0, 30)
    assert not (tmp_path / "dead.jsonl").read_text()


@pytest.mark.long
def test_a_mistake_that_a_row_causes_is_that_rows_alone(connected: SparkSession, tmp_path: Path) -> None:
    def process(batch: Batch) -> None:
        texts = [None if row.value == "7" else row.value for row in batch.df.collect()]
        [text.upper() for text in texts]  # type: ignore[union-attr]
        save(batch.df)

    lines = source(tmp_path)
    summary = lines.run(connected, process)
    assert (summary.acked, summary.dead_lettered) == (29, 1)
    assert json.loads((tmp_path / "dead.jsonl").read_text())["value"] == "7"
