"""Values that a row operator's function may return, and the errors for values that do not fit the schema."""

from __future__ import annotations

import datetime
import decimal
import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from acker_client.spark.operators.row import RowStep
from acker_client.spark.worker.rows import Mismatch, RowReader, RowWriter, arrow_schema
from acker_protocol.ids import root_id
from tests.spark.chains import SCOPE, TEXT, WORD, failed, ledger, reading, run, sink, words

pytestmark = pytest.mark.matrix

PAIR = StructType([StructField("word", StringType()), StructField("size", IntegerType(), False)])
EVERYTHING = StructType(
    [
        StructField("s", StringType()),
        StructField("b", BinaryType()),
        StructField("d", DecimalType(10, 2)),
        StructField("day", DateType()),
        StructField("at", TimestampType()),
        StructField("at_ntz", TimestampNTZType()),
        StructField("list", ArrayType(LongType())),
        StructField("map", MapType(StringType(), LongType())),
        StructField("struct", StructType([StructField("x", LongType()), StructField("y", StringType())])),
    ]
)
VALUES = (
    "a", b"b", decimal.Decimal("1.25"), datetime.date(2020, 1, 2), datetime.datetime(2020, 1, 2, 3, 4, 5),
    datetime.datetime(2020, 1, 2, 3, 4, 5), [1, None], {"k": 1}, Row(x=1, y="z"),
)  # fmt: skip


def listed(given: Any, schema: StructType = PAIR) -> list[tuple[Any, ...]]:
    writer = RowWriter(schema)
    children = writer.returned_rows(given)
    rows = writer.tuples(children)
    if given is not None and not isinstance(given, Iterator):
        columns = writer.columns(children)
        assert list(zip(*(column.to_pylist() for column in columns), strict=True)) == rows
    return rows


@pytest.mark.parametrize(
    "given",
    [
        ("a", 1),
        Row(word="a", size=1),
        Row(size=1, word="a"),
        Row(w="a", s=1),
        {"size": 1, "word": "a"},
        [("a", 1)],
        [Row("a", 1)],  # type: ignore[call-overload]
        iter([{"word": "a", "size": 1}]),
        (row for row in [("a", 1)]),
    ],
    ids=[
        "tuple",
        "Row",
        "Row in another order",
        "Row of other names",
        "dict",
        "list",
        "list of Rows",
        "iterator of dicts",
        "generator",
    ],
)
def test_a_row_may_be_given_in_any_of_its_forms(given: Any) -> None:
    assert listed(given) == [("a", 1)]


def test_none_and_nothing_are_no_rows() -> None:
    assert listed(None) == listed([]) == listed(iter(())) == []


def test_one_column_takes_bare_values() -> None:
    assert listed("abc", WORD) == listed(["abc"], WORD) == [("abc",)]
    assert listed(["a", ("b",)], WORD) == [("a",), ("b",)]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("a",), "give 2 values of (word string, size int), got 1: ('a',) (tuple)"),
        ("ab", "give a tuple, Row or dict of (word string, size int), got 'ab' (str)"),
        (["ab"], "give a tuple, Row or dict of (word string, size int), got 'ab' (str)"),
        ({"word": "a", "length": 1}, "a dict names ['length'], which the schema (word string, size int) does not have"),
        (("a", "b"), "field 'size' is int, got 'b' (str)"),
        ((1, 2), "field 'word' is string, got 1 (int)"),
        ((b"a", 2), "field 'word' is string, got b'a' (bytes)"),
        (("a", decimal.Decimal(2)), "field 'size' is int, got Decimal('2') (Decimal)"),
        (("a", 2.5), "field 'size' is int, got 2.5 (float)"),
        (("a", True), "field 'size' is int, got True (bool)"),
        (("a", 1 << 40), "field 'size' is int, got 1099511627776 (int)"),
        (("a", None), "field 'size' is declared not null, got None"),
    ],
)
def test_what_does_not_fit_is_named(given: Any, says: str) -> None:
    writer = RowWriter(PAIR)
    with pytest.raises(Mismatch) as error:
        writer.check(writer.tuples(writer.returned_rows(given)))
    assert str(error.value) == says


def test_every_type_comes_back_as_it_was_given() -> None:
    columns = RowWriter(EVERYTHING).columns([VALUES, (None,) * len(VALUES)])
    batch = pa.RecordBatch.from_arrays(columns, schema=arrow_schema(EVERYTHING))
    rows = RowReader(EVERYTHING).rows(batch)
    assert rows == [VALUES, (None,) * len(VALUES)]
    assert rows[0].struct.y == "z"


def test_a_row_is_a_row_of_spark() -> None:
    schema = StructType([StructField(name, LongType()) for name in ("x", "count", "two words")])
    row = RowReader(schema).rows(pa.RecordBatch.from_pydict({"x": [1], "count": [2], "two words": [3]}))[0]
    assert isinstance(row, Row)
    assert (row.x, row["count"], row["two words"], row[0]) == (1, 2, 3, 1)
    assert row.asDict() == {"x": 1, "count": 2, "two words": 3}
    assert "x" in row
    assert pickle.loads(pickle.dumps(row)) == row
    with pytest.raises(AttributeError):
        _ = row.y


def test_a_row_that_raises_fails_alone_and_the_first_traceback_is_reported() -> None:
    def careful(row: Row) -> Any:
        yield row.text
        if row.number % 2:
            raise ValueError(f"odd {row.number}")

    table, reports = run(reading(["a", "b", "c", "d"]), [words(careful), sink()])
    assert table["word"].to_pylist() == ["a", "c"]
    assert not any(ledger(reports).values())
    reasons = failed(reports)
    assert set(reasons) == {root_id(SCOPE.first, 1), root_id(SCOPE.first, 3)}
    first, rest = reasons[root_id(SCOPE.first, 1)].split("\n", 1)
    assert first == "words: ValueError: odd 1"
    assert rest.startswith("Traceback")
    assert reasons[root_id(SCOPE.first, 3)] == "words: ValueError: odd 3"


def test_a_row_that_does_not_fit_fails_alone() -> None:
    def numbers(row: Row) -> Any:
        return [(row.text,), (row.number if row.number == 1 else row.text,)]

    table, reports = run(reading(["a", "b", "c"]), [words(numbers), sink()])
    assert table["word"].to_pylist() == ["a", "a", "c", "c"]
    assert [reason.split("\n")[0] for reason in failed(reports).values()] == [
        "words: Mismatch: field 'word' is string, got 1 (int)"
    ]
    assert not any(ledger(reports).values())


@pytest.mark.parametrize("on_error", ["fail", "raise"])
def test_an_unanchored_row_that_raises_is_dropped_unless_the_task_is_to_fail(on_error: str) -> None:
    from tests.spark.chains import arriving

    def boom(row: Row) -> Any:
        raise ValueError("boom")

    table, _ = run(reading(["a"]), [])
    table = table.set_column(2, "_root", pa.nulls(1, pa.int64())).set_column(3, "_edge", pa.nulls(1, pa.int64()))
    if on_error == "raise":
        with pytest.raises(ValueError, match="boom"):
            arriving([words(boom, on_error=on_error)], table)
    else:
        made, reports = arriving([words(boom)], table)
        assert (made.num_rows, [report for report in reports if not report.is_empty]) == (0, [])


def test_an_operator_without_columns_counts_its_children() -> None:
    step = RowStep("count", lambda row: [()] * 2, StructType([]), StructType([]), (), "fail")
    table, reports = run(reading(["a"]), [words(), drop_columns(), step, sink()])
    assert table.num_rows == 2
    assert not any(ledger(reports).values())


def drop_columns() -> RowStep:
    given = StructType([*WORD.fields, StructField("number", LongType())])
    return RowStep("drop", lambda row: [()], given, StructType([]), (), "fail")


@pytest.mark.parametrize("nested", [False, True], ids=["a value", "in a list"])
def test_a_time_with_a_zone_fails_its_row_where_the_column_has_none(nested: bool) -> None:
    kind = TimestampNTZType()
    schema = StructType([StructField("at", ArrayType(kind) if nested else kind)])
    noon = datetime.datetime(2026, 7, 1, 12, 0)
    zone = datetime.timezone(datetime.timedelta(hours=2))

    def at(row: Row) -> Any:
        found = noon.replace(tzinfo=zone) if row.number == 1 else None if row.number == 2 else noon
        return [([found] if nested else found,)]

    table, reports = run(reading(["text"] * 3), [RowStep("at", at, TEXT, schema, ("number",), "fail"), sink()])
    assert table.select(["at", "number"]).to_pydict() == {
        "at": [[noon], [None]] if nested else [noon, None],
        "number": [0, 2],
    }
    [(root, reason)] = failed(reports).items()
    assert root == root_id(SCOPE.first, 1)
    assert reason.startswith(f"at: Mismatch: field 'at' is {schema['at'].dataType.simpleString()}, got ")
