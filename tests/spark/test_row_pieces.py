"""Row operators work in pieces. Output and reports are those of a loop over the rows, whatever the function gives."""

from __future__ import annotations

import array
import gc
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from acker_client.spark.anchoring.tally import Report
from acker_client.spark.operators import row as row_operator
from acker_client.spark.operators.row import RowStep
from acker_client.spark.worker import chain
from acker_client.spark.worker.rows import Mismatch, RowWriter, arrow_schema
from acker_protocol.ids import root_id
from tests.spark.chains import SCOPE, SETTINGS, TEXT, arriving, failed, ledger, reading, run, sink

PAIR = StructType([StructField("word", StringType()), StructField("size", IntegerType(), False)])
MIXED = StructType([*PAIR.fields, StructField("list", ArrayType(LongType()))])

FITTING = st.sampled_from([("a", 1), ("bb", 2), (None, 3), {"word": "c", "size": 4}, Row(size=5, word="d")])
UNFIT = st.sampled_from([("a", None), (1, 1), ("a", 2.5), ("a", True), ("a",), ("a", 1, 2), "ab", {"other": 1}])
RESULTS = st.lists(st.one_of(FITTING, FITTING, FITTING, UNFIT), max_size=6)
FORMS: dict[str, Callable[[list[Any]], Any]] = {
    "list": list,
    "iterator": iter,
    "generator": lambda made: (each for each in made),
    "raises after it has yielded": lambda made: raising(made),
    "first alone": lambda made: made[0] if made else None,
}
CALLS = st.lists(st.tuples(st.sampled_from(sorted(FORMS)), RESULTS), min_size=1, max_size=20)


def raising(made: list[Any]) -> Iterator[Any]:
    yield from made
    raise ValueError("late")


def alone(result: Any) -> list[tuple[Any, ...]] | str:
    """Return what one result becomes, as a loop without batches finds it: tuples, or the reason of the failure."""
    writer = RowWriter(PAIR)
    try:
        made = writer.tuples(writer.returned_rows(result))
        writer.check(made)
    except (ValueError, Mismatch) as error:
        return f"pieces: {type(error).__name__}: {error}"
    return made


def entries_of(report: Report) -> Any:
    entries = report.entries
    return report.identity, entries.root_ids.tolist(), entries.ack_vals.tolist(), entries.kinds.tolist()


@given(CALLS, st.integers(1, 5), st.integers(1, 9), st.integers(1, 9))
def test_in_pieces_of_any_size_an_operator_gives_what_a_loop_over_its_rows_gives(
    calls: list[tuple[str, list[Any]]], piece_rows: int, piece_children: int, batch_rows: int
) -> None:
    def function(row: Row) -> Any:
        form, made = calls[row.number]
        return FORMS[form](made)

    step = RowStep("pieces", function, TEXT, PAIR, ("number",), "fail")
    entry = reading(["text"] * len(calls))
    whole, whole_reports = run(entry, [step, sink()])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_operator, "PIECE_ROWS", piece_rows)
        patch.setattr(row_operator, "PIECE_CHILDREN", piece_children)
        patch.setattr(chain, "BATCH_ROWS", batch_rows)
        table, reports = run(entry, [step, sink()])

    expected = [alone(FORMS[form](made)) for form, made in calls]
    rows = [(*row, number) for number, made in enumerate(expected) if isinstance(made, list) for row in made]
    reasons = {root_id(SCOPE.first, number): made for number, made in enumerate(expected) if isinstance(made, str)}
    assert list(zip(*(column.to_pylist() for column in table.select(["word", "size", "number"])), strict=True)) == rows
    assert {root: reason.split("\n")[0] for root, reason in failed(reports).items()} == reasons
    assert (table.num_rows, list(map(entries_of, reports))) == (whole.num_rows, list(map(entries_of, whole_reports)))
    assert not any(ledger(reports).values())


@given(st.lists(st.tuples(st.none() | st.text(), st.integers(-9, 9), st.none() | st.lists(st.integers()))))
def test_rows_become_the_columns_that_their_values_alone_make(children: list[tuple[Any, ...]]) -> None:
    in_range = [(word, size, [*map(hash, items or ())]) for word, size, items in children]
    expected = [
        pa.array([child[index] for child in in_range], field.type) for index, field in enumerate(arrow_schema(MIXED))
    ]
    columns = RowWriter(MIXED).columns(list(in_range))
    assert [(column.type, column.to_pylist()) for column in columns] == [
        (column.type, column.to_pylist()) for column in expected
    ]


@pytest.mark.parametrize("other", [("b",), ("b", 2, 3)], ids=["shorter", "longer"])
def test_a_tuple_of_another_length_fails_its_row_alone(other: tuple[Any, ...]) -> None:
    step = RowStep("pieces", lambda row: [("a", 1) if row.number else other], TEXT, PAIR, (), "fail")
    table, reports = run(reading(["text"] * 2), [step, sink()])
    assert table.select(["word", "size"]).to_pylist() == [{"word": "a", "size": 1}]
    assert list(failed(reports)) == [root_id(SCOPE.first, 0)]


BAD_TEXT = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe")])


@pytest.mark.parametrize("bad", [[], [0], [3], [0, 1, 5, 9], list(range(10))], ids=str)
def test_a_text_that_is_not_utf_8_fails_its_row_alone(bad: list[int]) -> None:
    table, _ = run(reading([str(number) for number in range(10)]), [])
    texts = [BAD_TEXT if number in bad else pa.array([str(number)]) for number in range(10)]
    table = table.set_column(1, "text", pa.concat_arrays(texts))
    step = RowStep("texts", lambda row: [(row.text, 1)], TEXT, PAIR, ("number",), "fail")
    made, reports = arriving([step], table)
    numbers = [number for number in range(10) if number not in bad]
    assert made.select(["word", "number"]).to_pylist() == [
        {"word": str(number), "number": number} for number in numbers
    ]
    assert set(failed(reports)) == {root_id(SCOPE.first, number) for number in bad}
    assert all("texts: UnicodeDecodeError" in reason for reason in failed(reports).values())


class Mute(Exception):
    """An exception, or a value, that cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


def raises_mute(row: Row) -> Any:
    if row.number == 1:
        raise Mute
    return [("a", 1)]


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (raises_mute, "mute: Mute: Mute"),
        (
            lambda row: [(Mute() if row.number == 1 else "a", 1)],
            "mute: Mismatch: field 'word' is string, got Mute (Mute)",
        ),
        (lambda row: [Mute() if row.number == 1 else ("a", 1)], "mute: Mismatch: give a tuple, Row or dict of"),
        (lambda row: [("a", 1, *[Mute()] * (row.number == 1))], "mute: Mismatch: give 2 values of"),
    ],
    ids=["exception", "value", "row", "too many values"],
)
def test_what_cannot_be_shown_fails_its_row_with_the_name_of_its_type(function: Any, reason: str) -> None:
    table, reports = run(reading(["text"] * 3), [RowStep("mute", function, TEXT, PAIR, ("number",), "fail"), sink()])
    assert table["number"].to_pylist() == [0, 2]
    [(root, found)] = failed(reports).items()
    assert root == root_id(SCOPE.first, 1)
    assert found.startswith(reason)


NESTED = StructType(
    [
        StructField("word", StringType()),
        StructField("list", ArrayType(LongType())),
        StructField("structs", ArrayType(PAIR)),
        StructField("map", MapType(StringType(), ArrayType(LongType()))),
        StructField("bytes", BinaryType()),
    ]
)


class Reused:
    """Objects that a user's function fills anew for each row: the row itself, and the values in it."""

    def __init__(self) -> None:
        self.row: dict[str, Any] = {}
        self.list = [0]
        self.map = {"k": self.list}
        self.struct: dict[str, Any] = {}
        self.bytes = bytearray(1)

    def filled(self, number: int) -> dict[str, Any]:
        self.list[0], self.bytes[0] = number, number
        self.struct.update(word=str(number), size=number)
        self.row.update(word=str(number), list=self.list, structs=[self.struct], map=self.map, bytes=self.bytes)
        return self.row


def nested(number: int) -> dict[str, Any]:
    struct = {"word": str(number), "size": number}
    return {
        "word": str(number),
        "list": [number],
        "structs": [struct],
        "map": [("k", [number])],
        "bytes": bytes([number]),
    }


@pytest.mark.parametrize(
    "form",
    [dict, lambda row: tuple(row.values()), lambda row: Row(**row), lambda row: row],
    ids=["dict", "tuple", "Row", "same"],
)
@pytest.mark.parametrize("gives", ["yields", "returns", "returns an iterator"])
def test_objects_that_a_function_reuses_count_with_what_they_held_when_it_gave_them(form: Any, gives: str) -> None:
    reused = Reused()

    def yields(row: Row) -> Iterator[Any]:
        for number in (2 * row.number, 2 * row.number + 1):
            yield form(reused.filled(number))

    def returns(row: Row) -> Any:
        return form(reused.filled(row.number))

    function = {
        "yields": yields,
        "returns": returns,
        "returns an iterator": lambda row: itertools.chain(yields(row)),
    }
    step = RowStep("nested", function[gives], TEXT, NESTED, (), "fail")
    table, reports = run(reading(["text"] * 3), [step, sink()])
    assert failed(reports) == {}
    assert table.select(NESTED.names).to_pylist() == [
        nested(number) for number in range(3 if gives == "returns" else 6)
    ]


@dataclass
class Size:
    word: str = ""
    size: int = 0


def test_a_dataclass_and_an_array_that_a_function_reuses_count_with_what_they_held() -> None:
    struct, numbers = Size(), array.array("q", [0])

    def sizes(row: Row) -> Iterator[Any]:
        for number in range(3):
            struct.word, struct.size, numbers[0] = str(number), number, number
            yield [struct], numbers

    schema = StructType([NESTED["structs"], NESTED["list"]])
    table, reports = run(reading(["text"]), [RowStep("sizes", sizes, TEXT, schema, (), "fail"), sink()])
    assert failed(reports) == {}
    assert table["structs"].to_pylist() == [[{"word": str(number), "size": number}] for number in range(3)]
    assert table["list"].to_pylist() == [[number] for number in range(3)]


def test_a_list_that_a_function_reuses_as_its_only_value_counts_with_what_it_held() -> None:
    reused = [0]

    def lists(row: Row) -> Iterator[list[int]]:
        for number in range(3):
            reused[0] = number
            yield reused

    schema = StructType([StructField("list", ArrayType(LongType()))])
    table, _ = run(reading(["text"]), [RowStep("lists", lists, TEXT, schema, (), "fail"), sink()])
    assert table["list"].to_pylist() == [[0], [1], [2]]


def test_a_row_with_many_children_passes_them_on_before_the_next_row_is_called() -> None:
    called = list[int]()

    def many(row: Row) -> Iterator[tuple[str, int]]:
        called.append(row.number)
        yield from [("a", 1)] * chain.BATCH_ROWS

    step = RowStep("many", many, TEXT, PAIR, (), "fail")
    flow = chain.Chain(SETTINGS, reading(["text"] * 3), (step,)).run(
        [pa.RecordBatch.from_pydict({"id": [0]})], lambda report: None
    )
    assert next(flow).num_rows == chain.BATCH_ROWS
    assert called == [0]


@pytest.mark.parametrize("how", ["ends", "raises", "is closed"])
def test_the_garbage_collector_is_as_before_after_a_step(how: str) -> None:
    def function(row: Row) -> Any:
        seen.append(gc.get_threshold())
        if how == "raises":
            raise ValueError("no")
        return [("a", 1)]

    seen, before = list[Any](), gc.get_threshold()
    step = RowStep("gc", function, TEXT, PAIR, (), "raise")
    flow = chain.Chain(SETTINGS, reading(["text"]), (step,)).run(
        [pa.RecordBatch.from_pydict({"id": [0]})], lambda report: None
    )
    if how == "raises":
        with pytest.raises(ValueError, match="no"):
            list(flow)
    elif how == "ends":
        list(flow)
    else:
        next(flow)
        flow.close()  # type: ignore[attr-defined]
    assert seen
    assert gc.get_threshold() == before
