"""Selects between steps that only pick and rename columns: part of the next step, with the same rows and reports."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from acker_client.spark import arrow_operator, operator, sink, where
from acker_client.spark.driver import catalyst
from acker_client.spark.plan_check.plan import Refused
from acker_client.spark.worker.picking import PickingStep
from tests.spark.chains import arriving, ledger, reading, run, words
from tests.spark.live_batch import ACKED, LiveBatch, texts
from tests.spark.test_where import hops

Live = Callable[..., LiveBatch]
Pick = Callable[[DataFrame], DataFrame]
OWN = ("_root", "_edge")


@sink
def collect(rows: DataFrame) -> list[dict[str, Any]]:
    assert not set(OWN) & set(rows.columns)
    return sorted((row.asDict() for row in rows.collect()), key=str)


@operator("a int, b string, `c.d` long, E string", keep=["number"])
def wide(row: Row) -> Any:
    for child in range(row.number % 3):
        yield child, f"b{row.number}", row.number * 10, None


@arrow_operator("x long", keep="*")
def counted(batch: pa.RecordBatch) -> Any:
    return pa.table({"x": [batch.num_columns] * batch.num_rows})


PICKS: dict[str, Pick] = {
    "everything": lambda df: df.select("*"),
    "some": lambda df: df.select("a", "_root", "b", "_edge"),
    "in another order": lambda df: df.select(*OWN, "b", "a"),
    "other names": lambda df: df.select(F.col("a").alias("b"), F.col("b").alias("a"), *OWN),
    "in capitals": lambda df: df.select("A", "e", *OWN),
    "a column twice": lambda df: df.select("a", F.col("a").alias("again"), *OWN),
    "no column": lambda df: df.select(*OWN),
    "drop": lambda df: df.drop("a", "c.d"),
    "renamed": lambda df: df.withColumnRenamed("a", "z.z").withColumnRenamed("b", "y"),
    "renamed and dropped": lambda df: df.withColumnRenamed("a", "b2").drop("b").select("*"),
    "a name with a dot": lambda df: df.select("`c.d`", *OWN),
    "toDF": lambda df: df.toDF(*(name if name in OWN else f"n{place}" for place, name in enumerate(df.columns))),
    "with a new column of an old one": lambda df: df.withColumn("new", F.col("a")),
    "replaced by another": lambda df: df.withColumn("a", F.col("`c.d`")),
}
OTHERS: dict[str, Pick] = {
    "a constant": lambda df: df.withColumn("z", F.lit(1)),
    "a cast": lambda df: df.select(F.col("a").cast("long").alias("a"), *OWN),
    "a root as data": lambda df: df.withColumn("root", F.col("_root")),
    "an alias": lambda df: df.alias("rows"),
    "a hint": lambda df: df.hint("rebalance"),
    "a repartition": lambda df: df.select("*").repartition(2).select("*"),
    "an expression": lambda df: df.selectExpr("*", "a + 1 AS z"),
}


@pytest.mark.matrix
@pytest.mark.parametrize("pick", PICKS)
def test_columns_that_are_picked_or_renamed_do_not_leave_the_chain(live: Live, pick: str) -> None:
    batch = live(texts(20))
    made = PICKS[pick](batch.df.transform(wide)).transform(counted)
    assert hops(made) == 1
    assert {row["x"] for row in collect(made)} == {len(made.columns) - 3}
    assert batch.settle() == dict.fromkeys(range(20), ACKED)


@pytest.mark.parametrize("pick", OTHERS)
def test_any_other_node_is_left_to_spark(live: Live, pick: str) -> None:
    batch = live(texts(20))
    made = OTHERS[pick](batch.df.transform(wide)).transform(counted)
    assert hops(made) == 2
    assert len(collect(made)) == sum(number % 3 for number in range(20))
    assert batch.settle() == dict.fromkeys(range(20), ACKED)


@pytest.mark.parametrize("seed", range(4))
def test_random_picks_give_the_same_rows_as_in_spark(live: Live, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    def program(df: DataFrame) -> DataFrame:
        draw = random.Random(seed)
        for step in range(4):
            measured = operator(f"v{step} int", keep="*", name=f"step{step}")(lambda row: (len(str(row)),))
            kept = where(draw.choice(["true", "v0 > 60", "v0 is not null"]), name=f"where{step}")
            df = randomly_picked(df.transform(measured), draw).transform(kept)
        return randomly_picked(df, draw)

    fused = live(texts(20))
    made = program(fused.df)
    assert hops(made) == 1
    rows = collect(made)
    assert set(fused.settle().values()) == {ACKED}
    monkeypatch.setattr(catalyst, "picked_columns", lambda df, function: None)
    apart = live(texts(20))
    made = program(apart.df)
    assert hops(made) > 1
    assert rows == collect(made)
    assert set(apart.settle().values()) == {ACKED}


def randomly_picked(df: DataFrame, draw: random.Random) -> DataFrame:
    """Return a frame with the columns of ``df`` in random order, some under another name, a few left out."""
    for _ in range(draw.randrange(3)):
        kept = [name for name in df.columns if draw.random() < 0.9 or name in (*OWN, "v0")]
        draw.shuffle(kept)
        df = df.select(*kept)
        for name in kept:
            if draw.random() < 0.3 and name not in (*OWN, "v0"):
                df = df.withColumnRenamed(name, f"{name}_{draw.randrange(99)}")
    return df


def test_a_sink_takes_picked_columns(live: Live) -> None:
    batch = live(texts(20))
    planned: list[int] = []

    @sink
    def save(rows: DataFrame) -> list[Any]:
        planned.append(hops(rows))
        return sorted(map(tuple, rows.collect()))

    rows = save(batch.df.transform(wide).select(F.col("number").alias("n"), *OWN))
    assert rows == [(n,) for n in range(20) for _ in range(n % 3)]
    assert planned == [1]
    assert batch.settle() == dict.fromkeys(range(20), ACKED)


def test_picked_columns_of_a_cached_frame_come_from_the_cache(live: Live) -> None:
    batch = live(texts(20))
    cached = batch.df.transform(wide).cache()
    made = cached.select("a", *OWN).transform(counted)
    assert made._jdf.queryExecution().analyzed().toString().count("MapInArrow") == 2
    collect(made)
    assert batch.settle() == dict.fromkeys(range(20), ACKED)
    cached.unpersist()


def test_a_second_step_over_picked_columns_of_the_same_rows_is_refused(live: Live) -> None:
    batch = live(texts(4))
    df = batch.df.transform(wide)
    df.select("a", *OWN).transform(counted)
    with pytest.raises(Refused):
        df.select("b", *OWN).transform(counted)


def test_picking_reports_what_the_step_alone_reports() -> None:
    texts_of = ["a b", "", "c d e", "unreadable"]
    picks = (("word", "text"), ("number", "number"))
    fused, sent = run(reading(texts_of), [words(), PickingStep(words(name="again"), picks)])
    made, before = run(reading(texts_of), [words()])
    renamed_table = made.rename_columns(["text" if name == "word" else name for name in made.column_names])
    rest, after = arriving([words(name="again")], renamed_table)
    assert fused.to_pydict() == rest.to_pydict()
    assert ledger(sent) == ledger([*before, *after])
    assert {report.identity for report in sent} == {report.identity for report in [*before, *after]}


def test_each_call_of_a_sink_gets_the_columns_under_the_names_of_its_own_frame(live: Live) -> None:
    batch = live(texts(3))
    df = batch.df.transform(wide)

    first = collect(df.select(F.col("a").alias("x"), F.col("number").alias("y"), *OWN))
    crossed = collect(df.select(F.col("a").alias("y"), F.col("number").alias("x"), *OWN))
    assert crossed == sorted(({"y": row["x"], "x": row["y"]} for row in first), key=str)
    assert set(batch.settle().values()) == {ACKED}
