"""Where in the chain of the steps before it: the same rows and reports as behind a hop, and one plan node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from acker_client.source import Files
from acker_client.spark import branch, explode, operator, sink, where
from acker_client.spark.anchoring.anchors import with_columns
from acker_client.spark.operators.flags import FLAG
from acker_client.spark.operators.where import WhereStep
from acker_client.spark.worker.condition import Attribute, Function
from tests.spark import faults
from tests.spark.chains import arriving, ledger, reading, run, words
from tests.spark.live_batch import ACKED

LONG = Function("like", (Attribute("word", "string"),), option=("w", ""))


@pytest.mark.parametrize("at_once", [1, 3, 1000])
def test_a_where_in_a_chain_reports_what_it_reports_behind_a_hop(at_once: int) -> None:
    texts = ["w1 a w2", "", "b", "w w w c", "unreadable", "w1 a w2"] * 3
    step = WhereStep("where")
    fused, sent = run(
        reading(texts, at_once),
        [words(), replace(step, condition=LONG), words(name="again", function=as_word, keep=())],
    )
    made, before = run(reading(texts), [words()])
    (batch,) = made.combine_chunks().to_batches()
    flags = pc.starts_with(batch.column("word"), "w")
    kept, hop = arriving([step], pa.Table.from_batches([with_columns(batch, [FLAG], [flags])]), at_once)
    rest, after = arriving([words(name="again", function=as_word, keep=())], kept, at_once)
    assert fused.to_pydict() == rest.to_pydict()
    assert ledger(sent) == ledger([*before, *hop, *after])
    assert {report.identity for report in sent} == {report.identity for report in [*before, *hop, *after]}


def as_word(row: Any) -> list[tuple[str]]:
    return [(row.word,)]


@sink
def collect(rows: DataFrame) -> list[Row]:
    return sorted(rows.collect(), key=str)


def hops(df: DataFrame) -> int:
    """Return how often the plan of ``df`` hands rows to Python."""
    plan: str = df._jdf.queryExecution().optimizedPlan().toString()
    return plan.count("MapInArrow")


@operator("sku string, qty int", keep=["path"])
def items(row: Row) -> Any:
    yield row.value, 1


def test_the_first_program_hands_its_rows_to_python_once(connected: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "orders.jsonl").write_text("a\n\nb\n")
    for batch in Files(tmp_path / "orders.jsonl", name="orders").batches(connected):
        made = batch.df.transform(where("value <> ''")).transform(items)
        assert hops(made) == 1
        assert sorted(row.sku for row in collect(made)) == ["a", "b"]


@operator("k int, t string, flag boolean", keep=["number"])
def typed(row: Row) -> Any:
    yield row.number % 5 or None, row.text, row.number % 3 == 0


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("given", "expected", "planned"),
    [
        ("k > 1 and T like 'w%'", lambda n: n % 5 > 1, 1),
        (lambda: F.col("k").isNull(), lambda n: n % 5 == 0, 1),
        ("flag", lambda n: n % 3 == 0, 1),
        ("true", lambda n: True, 1),
        ("null", lambda n: False, 1),
        ("not (k > 1)", lambda n: n % 5 == 1, 1),
        ("k % 2 = 0", lambda n: n % 5 in (2, 4), 2),
        ("_root is not null", lambda n: True, 2),
    ],
)
def test_where_joins_a_chain_if_its_condition_can(
    live: Callable[..., Any], given: Any, expected: Callable[[int], bool], planned: int
) -> None:
    batch = live([f"w{n}" for n in range(20)])
    made = batch.df.transform(typed).transform(where(given if isinstance(given, str) else given()))
    assert hops(made) == planned
    assert sorted(row.number for row in collect(made)) == [n for n in range(20) if expected(n)]
    assert set(batch.settle().values()) == {ACKED}


@pytest.mark.matrix
def test_a_task_that_runs_again_reports_the_same_of_where(live: Callable[..., Any], tmp_path: Path) -> None:
    @operator("k int", name="dying")
    def dying(row: Row) -> Any:
        if faults.first_time(tmp_path):
            faults.kill_this_worker()
        return row.k

    @sink
    def written_twice(rows: DataFrame) -> None:
        rows.write.parquet(f"{tmp_path}/first")
        rows.write.parquet(f"{tmp_path}/second")

    batch = live([f"w{n}" for n in range(20)])
    made = batch.df.transform(typed).transform(where("k > 1")).transform(dying)
    assert hops(made) == 1
    written_twice(made)
    assert batch.settle() == dict.fromkeys(range(20), ACKED)


def test_where_behind_other_nodes_is_left_to_spark(live: Callable[..., Any]) -> None:
    batch = live(["a b", "c"])
    made = batch.df.withColumn("z", F.lit(1)).transform(where("text <> 'c'"))
    assert hops(made) == 2
    assert [row.text for row in collect(made)] == ["a b"]
    assert set(batch.settle().values()) == {ACKED}


def test_where_joins_the_chain_of_a_branch(live: Callable[..., Any]) -> None:
    batch = live(["a b", "c"])
    first, second = branch(batch.df, 2)
    split = first.withColumn("word", F.split("text", " ")).transform(explode("word"))
    assert [row.word for row in collect(split.transform(where("word > 'a'")))] == ["b", "c"]
    assert [row.text for row in collect(second.transform(where("text = 'c'")))] == ["c"]
    assert set(batch.settle().values()) == {ACKED}
