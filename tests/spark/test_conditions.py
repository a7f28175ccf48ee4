"""Conditions of ``where`` on Arrow: random conditions against Spark itself, and mutants that these conditions catch."""

from __future__ import annotations

import datetime
import random
import re
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from acker_client.spark.driver import catalyst, conditions
from acker_client.spark.operators.flags import FLAG, flagged
from acker_client.spark.worker import condition
from acker_client.spark.worker.condition import Attribute, Constant, Expression, Function, rows_where
from tests.spark.drawn_conditions import VALUES, Draw

# Conditions as users write them with columns.
COLUMNS: list[Callable[[], Column]] = [
    lambda: F.col("i") > 1,
    lambda: ~(F.col("i") == F.col("l")),
    lambda: F.col("t").isin("a", "ab"),
    lambda: F.col("i").isin([1, 5, None]),
    lambda: F.col("d").eqNullSafe(float("nan")),
    lambda: F.col("d") != 0.0,
    lambda: F.col("t").like("a%") | F.col("t").startswith("\U0001f600"),
    lambda: F.col("t").endswith("b") & F.col("u").contains(""),
    lambda: F.col("a").between(datetime.date(1969, 12, 31), datetime.date(2026, 3, 8)),
    lambda: F.col("c") <= datetime.datetime(2026, 3, 8, 7, 30, 0, 1, tzinfo=datetime.UTC),
    lambda: F.col("T").isNull() | F.isnan("f"),
    lambda: F.col("e") == Decimal("0.10"),
    lambda: F.col("r") > F.lit(b"\x7f"),
    lambda: F.coalesce("i", F.lit(7)) == 7,
    lambda: F.when(F.col("i") > 0, None).otherwise(F.col("b")),
    lambda: F.col("l") > F.col("f"),
    lambda: F.trim("t") == "a",
    lambda: F.lit(True),
]


def rows(spark: SparkSession, seed: int, count: int = 150) -> DataFrame:
    """Return a frame with random rows of these values."""
    draw = random.Random(seed)
    made = [tuple(draw.choice(values) for _, values in VALUES.values()) for _ in range(count)]
    texts = [name for name, (kind, _) in VALUES.items() if kind == "string"]
    kinds = ", ".join(f"{name} {'binary' if name in texts else kind}" for name, (kind, _) in VALUES.items())
    df = spark.createDataFrame(made, kinds)
    # Not a relation that the optimizer evaluates: Spark generates code for the conditions.
    return df.withColumns({name: F.col(name).cast("string") for name in texts}).localCheckpoint()


class Judged:
    """Conditions that go to Arrow, and Spark's own values of them for some rows."""

    def __init__(self, df: DataFrame, given: Sequence[str | Column]) -> None:
        self.given = len(given)
        found = [(one, on_arrow(df, one)) for one in given]
        self.on_arrow = [(one, tree) for one, tree in found if tree is not None]
        values = df.select("*", *(flag_of(one).alias(f"_{n}") for n, (one, _) in enumerate(self.on_arrow))).toArrow()
        (batch,) = values.combine_chunks().to_batches()
        self.data = batch.select(list(VALUES))
        self._spark_says = [batch.column(f"_{n}").to_pylist() for n in range(len(self.on_arrow))]

    def differences(self) -> Iterator[str]:
        """Yield what differs between Arrow and Spark."""
        for (one, tree), expected in zip(self.on_arrow, self._spark_says, strict=True):
            values = tree.values(self.data)
            given = values.to_pylist() if isinstance(values, pa.Array) else [values.as_py()] * len(expected)
            yield from (
                f"{one}: {a}, in Spark {b}, for {self._shown(row)}"
                for row, (a, b) in enumerate(zip(given, expected, strict=True))
                if a is not b
            )
            assert rows_where(tree, self.data).tolist() == [value is True for value in expected], one

    def _shown(self, row: int) -> str:
        # Some texts are no characters.
        columns = [c.cast(pa.binary()) if c.type == pa.string() else c for c in self.data.slice(row, 1).columns]
        return str({name: column[0].as_py() for name, column in zip(VALUES, columns, strict=True)})


def flag_of(given: str | Column) -> Column:
    flag = F.expr(given) if isinstance(given, str) else given
    return flag.cast("boolean")


def on_arrow(df: DataFrame, given: str | Column) -> Expression | None:
    """Return the condition for Arrow; None if Spark refuses it or has to evaluate it."""
    try:
        ahead = flagged(df, given, "where")
    except Exception:  # noqa: BLE001  # Spark's analysis refuses some drawn conditions
        return None
    return conditions.on_arrow(df, ahead, FLAG)


@pytest.fixture
def judged(spark: SparkSession, conf: Callable[[str, str], None]) -> Callable[..., Judged]:
    """Draw conditions and rows, and let Spark evaluate them."""

    def judge(seed: int, *, count: int = 70, ansi: bool = True) -> Judged:
        conf("spark.sql.ansi.enabled", str(ansi).lower())
        conf("spark.sql.session.timeZone", ("UTC", "America/New_York")[seed % 2])
        draw = Draw(seed)
        drawn: list[str | Column] = [draw.condition() for _ in range(count)]
        return Judged(rows(spark, seed), [*drawn, *(make() for make in COLUMNS)])

    return judge


@pytest.mark.matrix
@pytest.mark.parametrize("seed", [1, 2])
def test_conditions_on_arrow_have_the_values_that_spark_gives_them(judged: Callable[..., Judged], seed: int) -> None:
    tried = judged(seed, ansi=seed % 2 == 0)
    assert next(tried.differences(), None) is None
    assert len(tried.on_arrow) > tried.given / 3


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 120))
def test_more_conditions_on_arrow_have_the_values_that_spark_gives_them(
    judged: Callable[..., Judged], seed: int
) -> None:
    assert next(judged(seed, count=200, ansi=seed % 3 > 0).differences(), None) is None


def _prefix_and_suffix(texts: Any, parts: tuple[str, ...]) -> Any:
    return pc.and_(pc.starts_with(texts, parts[0]), pc.ends_with(texts, parts[-1]))


def _by_line(texts: Any, parts: tuple[str, ...]) -> Any:
    return pc.match_substring_regex(texts.cast(pa.binary()), f"\\A{'.*'.join(map(re.escape, parts))}\\z")


_cast = condition.FUNCTIONS["cast"]

MUTANTS: dict[str, tuple[str, Callable[..., Any]]] = {
    "and of two values": ("and", pc.and_),
    "or of two values": ("or", pc.or_),
    "not of null": ("not", lambda values: pc.fill_null(pc.invert(values), True)),
    "NaN is not NaN": ("= of floats", pc.equal),
    "NaN is not above": ("< of floats", pc.less),
    "NaN is not equal to NaN": ("<= of floats", pc.less_equal),
    "zeros by their bits": ("= of floats", lambda a, b: pc.equal(*(pc.cast(x, pa.string()) for x in (a, b)))),
    "null is not null": ("<=>", pc.equal),
    "less for greater": ("<", pc.greater),
    "less or equal for less": ("<", pc.less_equal),
    "null in a list is ignored": ("in", lambda values, options: pc.is_in(values, pa.array(options, values.type))),
    "null is in no list": ("in", lambda values, options: pc.fill_null(condition._is_in(values, options), False)),
    "prefix and suffix overlap": ("like", _prefix_and_suffix),
    "lines end a pattern": ("like", _by_line),
    "letters alike": ("like", lambda texts, parts: pc.match_substring(texts, parts[-1], ignore_case=True)),
    "NaN is null": ("is null", lambda values: pc.is_null(values, nan_is_null=True)),
    "null or NaN": ("is nan", pc.is_nan),
    "the last of them": ("coalesce", lambda *values: pc.coalesce(*values[::-1])),
    "white space": ("trim", pc.ascii_trim_whitespace),
    "by way of floats": ("cast", lambda values, kind: _cast(pc.cast(values, pa.float32(), safe=False), kind)),
}  # fmt: skip


@pytest.mark.long
def test_the_conditions_catch_each_function_that_means_something_else(
    judged: Callable[..., Judged], monkeypatch: pytest.MonkeyPatch
) -> None:
    unnoticed = list(MUTANTS)
    for seed in range(3, 8):
        if not unnoticed:
            break
        tried = judged(seed, count=120)
        for name in tuple(unnoticed):
            function, mutant = MUTANTS[name]
            with monkeypatch.context() as patched:
                patched.setattr(condition, "FUNCTIONS", {**condition.FUNCTIONS, function: mutant})
                if next(tried.differences(), None):
                    unnoticed.remove(name)
    assert unnoticed == []


MISREADINGS: dict[str, tuple[Any, str, Any]] = {
    "greater is less": (conditions, "_COMPARISONS", {**conditions._COMPARISONS, "GreaterThan": ("<", False)}),
    "an end is a start": (conditions, "_FIXED", {**conditions._FIXED, "EndsWith": ((), ("",))}),
    "escapes are text": (conditions, "_parts_of", lambda pattern, escape: tuple(pattern.split("%"))),
    "any float cast": (conditions, "_is_wider", lambda wide, narrow: True),
    "texts of any collation": (conditions, "_kind_of", lambda kind: str(kind.jsonValue()).partition(" ")[0]),
}


@pytest.mark.long
@pytest.mark.parametrize("name", MISREADINGS)
def test_the_conditions_catch_each_expression_that_is_misread(
    judged: Callable[..., Judged], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(*MISREADINGS[name])
    try:
        caught = any(next(judged(seed, count=200).differences(), None) for seed in range(4))
    except Exception:  # noqa: BLE001  # Spark or Arrow raises what no condition should raise
        caught = True
    assert caught


SPARK_ALONE = [
    "length(t) > 1",
    "i % 2 = 0",
    "1 / i > 0",
    "rand() < 2",
    "c > current_timestamp()",
    "a = current_date()",
    "a >= 'today'",
    "c >= '12:30'",
    "t collate UTF8_LCASE = 'A'",
    "k = 'a'",
    "cast(t as int) = 1",
    "t rlike 'a'",
    "t like 'a_b'",
    "d in (0.0, 1.0)",
    "a = c",
    "i in (select 1)",
    "upper(t) = 'A'",
    "t ilike 'a'",
    "coalesce(k, 'a') = 'a'",
    "cast(t as string collate UTF8_LCASE) = 'a' collate UTF8_LCASE",
    "cast('A' as string collate UTF8_LCASE) = cast('a' as string collate UTF8_LCASE)",
    "row_number() over (order by i) > 1",
    "'a' in (k)",
    "k is null",
    "f = float(0.1)",
    "t > cast(X'ff' as string)",
    "t = '\ufffd'",
]


@pytest.mark.matrix
def test_conditions_that_may_raise_or_mean_something_else_are_left_to_spark(spark: SparkSession) -> None:
    df = rows(spark, 1, 1)
    assert [one for one in SPARK_ALONE if on_arrow(df, one) is not None] == []


def test_a_class_or_a_field_that_is_not_known_leaves_the_condition_to_spark(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    df = rows(spark, 1, 1)
    assert on_arrow(df, "i > 1 or t like 'a%'") is not None
    real = catalyst._tree

    def changed(change: Callable[[dict[str, Any]], Any]) -> Expression | None:
        monkeypatch.setattr(catalyst, "_tree", lambda nodes, path: real((change(node) or node for node in nodes), path))
        return on_arrow(df, "i > 1 or t like 'a%'")

    assert changed(lambda node: None) is not None
    for kind in (".Or", ".GreaterThan", ".Like"):
        assert changed(partial(_with_field, kind)) is None
        assert changed(partial(_renamed, kind)) is None


def _with_field(kind: str, node: dict[str, Any]) -> None:
    if node["class"].endswith(kind):
        node["mode"] = "new"


def _renamed(kind: str, node: dict[str, Any]) -> None:
    if node["class"].endswith(kind):
        node["class"] += "Of"


def test_a_condition_that_is_nested_deep_is_left_to_spark(spark: SparkSession) -> None:
    df = spark.range(1).toDF("i")
    assert on_arrow(df, " or ".join(f"i = {n}" for n in range(40))) is not None
    assert on_arrow(df, "not " * 150 + "(i = 1)") is None


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_a_condition_takes_texts_in_each_form_that_arrow_has(kind: Any) -> None:
    data = pa.RecordBatch.from_arrays([pa.array(["a", None, "b"]).cast(kind)], names=["t"])
    text = Attribute("t", "string")
    for one in (
        Function("=", (text, Constant("a", "string"))),
        Function("in", (text,), option=("a", None)),
        Function("like", (text,), option=("", "a", "", "")),
        Function("like", (text,), option=("", "a", "")),
    ):
        assert rows_where(one, data).tolist() == [True, False, False]
    assert rows_where(Function("=", (text, Constant("a", "string"))), data.slice(0, 0)).tolist() == []


def test_the_columns_of_these_tests_have_the_types_that_conditions_take(spark: SparkSession) -> None:
    schema: StructType = rows(spark, 1, 1).schema
    kinds = {conditions._kind_of(field.dataType) for field in schema.fields}
    assert set(condition._TYPES) <= kinds
