"""The task of an acker_udf without Spark, compared with a twin that goes row by row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType, TimestampType

from acker_client.spark import acker_udf
from acker_client.spark.operators.culprits import MISFITS_MAX
from acker_client.spark.operators.udf import _fields_of
from acker_client.spark.operators.udf_task import Udf, UdfTask
from acker_client.spark.worker.returns import OperatorError
from acker_protocol.ids import child_edge, edge0, root_id
from acker_protocol.messages import FAIL

# Batches of rows: a text, or "!" for a row for which the function raises.
BATCHES = st.lists(st.lists(st.sampled_from(["a", "bb", "", "!"]), min_size=1, max_size=6), max_size=5)


def row(text: str) -> int:
    if text == "!":
        raise ValueError("no such text")
    return len(text)


def arrow(texts: pa.Array) -> pa.Array:
    return pa.array([row(text) for text in texts.to_pylist()], pa.int64())


def pandas(texts: pd.Series) -> pd.Series:
    return texts.map(row).astype("int64")


def arrow_iterator(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
    yield from map(arrow, batches)


def pandas_iterator(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
    yield from map(pandas, batches)


def answered_late(batches: Iterator[pa.Array], answer: Callable[[pa.Array], pa.Array]) -> Iterator[pa.Array]:
    """Take a second batch before the first one is answered."""
    first = next(batches, None)
    while first is not None:
        second = next(batches, None)
        yield answer(first)
        first = second


def ahead(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
    return answered_late(batches, arrow)


FUNCTIONS = [row, arrow, pandas, arrow_iterator, pandas_iterator, ahead]


def task_of(
    function: Callable[..., Any], returns: Any = "bigint", *, is_tracked: bool = True, **options: Any
) -> UdfTask:
    made = acker_udf(returns, **options)(function)
    fields, is_single = _fields_of(LongType() if returns == "bigint" else returns, "it")
    udf = Udf(made.name, function, made._kind, made._is_iterator, fields, is_single, made._emits, made._on_error)
    return UdfTask(udf, 2, is_tracked=is_tracked)


def batches_of(texts: list[list[str]]) -> Iterator[Any]:
    number = 0
    for batch in texts:
        roots = np.array([root_id(1, number + at) for at in range(len(batch))], np.uint64)
        edges = np.array([edge0(int(root)) for root in roots], np.uint64)
        number += len(batch)
        yield pa.array(batch, pa.string()), pa.array(roots.view(np.int64)), pa.array(edges.view(np.int64))


def answers(task: UdfTask) -> tuple[dict[int, int], dict[int, str]]:
    """Return the ack val of each root in the report, and the reasons of those that failed."""
    entries = task.tally.report().entries
    vals = dict(zip(entries.root_ids.tolist(), entries.ack_vals.tolist(), strict=True))
    if not len(entries.kinds):
        return vals, {}
    failed = entries.root_ids[entries.kinds & FAIL != 0].tolist()
    reasons = [entries.reasons[index].partition("\n")[0] for index in entries.reason_ids.tolist()]
    return vals, dict(zip(failed, reasons, strict=True))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda each: each.__name__)
@settings(max_examples=30)
@given(BATCHES)
def test_every_row_is_consumed_once_and_only_those_that_raise_fail(function: Any, texts: list[list[str]]) -> None:
    task = task_of(function)
    made = [column.to_pylist() for column in task.run(batches_of(texts))]
    assert made == [[None if text == "!" else len(text) for text in batch] for batch in texts]
    flat = [text for batch in texts for text in batch]
    roots = [root_id(1, number) for number in range(len(flat))]
    vals, failed = answers(task)
    assert vals == {root: edge0(root) for root in roots}
    name = function.__name__
    assert failed == {
        root: f"{name}: ValueError: no such text" for root, text in zip(roots, flat, strict=True) if text == "!"
    }


@pytest.mark.parametrize("function", [row, arrow, pandas_iterator], ids=lambda each: each.__name__)
def test_the_edges_of_records_that_a_function_emits_hang_on_their_values(function: Any) -> None:
    texts = [["a", "!", "bb"], ["a"]]
    task = task_of(function, emits=True)
    made = [record for column in task.run(batches_of(texts)) for record in column.to_pylist()]
    assert [None if record is None else record["value"] for record in made] == [1, None, 2, 1]
    vals, failed = answers(task)
    roots = [root_id(1, number) for number in range(4)]
    assert list(failed) == [roots[1]]
    for root, record in zip(roots, made, strict=True):
        edge = 0 if record is None else record["_edge"] % (1 << 64)
        assert vals[root] == edge0(root) ^ edge
        assert record is None or record["_root"] % (1 << 64) == root
    again = task_of(function, emits=True)
    assert [record for column in again.run(batches_of(texts)) for record in column.to_pylist()] == made
    assert again.tally.report().identity == task.tally.report().identity
    others = task_of(lambda text: len(text) + 1, emits=True, name=function.__name__)
    other = next(others.run(batches_of([["a"]]))).to_pylist()[0]
    assert other["_edge"] != made[0]["_edge"]
    assert child_edge(edge0(roots[0]), 0, 0, 0) != made[0]["_edge"] % (1 << 64)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda each: each.__name__)
def test_a_row_without_anchors_that_raises_fails_the_task_only_where_nothing_is_tracked(
    function: Any, caplog: pytest.LogCaptureFixture
) -> None:
    none = pa.nulls(2, pa.int64())

    def run(task: UdfTask) -> list[Any]:
        given = ((pa.array(texts), none, none) for texts in (["a", "b"], ["c", "!"]))
        return [column.to_pylist() for column in task.run(given)]

    with pytest.raises(ValueError, match="no such text"):
        run(task_of(function, is_tracked=False))
    task = task_of(function)
    assert run(task) == [[1, 1], [1, None]]
    assert task.tally.report().is_empty
    assert f"acker_udf '{function.__name__}': 1 rows without anchors raised, the first: " in caplog.text


def day(text: str) -> pd.Timestamp:
    return pd.Timestamp(text, tz="UTC")


def days(text: str) -> list[pd.Timestamp]:
    return [day(text)]


def scalar(text: str) -> pa.Scalar | pa.lib.Int64Scalar:
    return pa.scalar(1)


def tables(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Int64Array]:
    yield from ()


def frames(given: pd.DataFrame) -> Nowhere:  # type: ignore[name-defined]  # noqa: F821
    return given


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (day, ("row", False)),
        (days, ("row", False)),
        (scalar, ("row", False)),
        (tables, ("arrow", True)),
        (frames, ("pandas", False)),
        (pandas, ("pandas", False)),
        (arrow_iterator, ("arrow", True)),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_only_types_of_whole_batches_make_a_function_one_over_batches(function: Any, kind: tuple[str, bool]) -> None:
    made = acker_udf("int")(function)
    assert (made._kind, made._is_iterator) == kind


def test_a_row_function_may_return_a_scalar_of_pandas() -> None:
    [column] = task_of(day, TimestampType()).run(batches_of([["2024-02-03", "no day"]]))
    assert [value and value.date().isoformat() for value in column.to_pylist()] == ["2024-02-03", None]


def lists_in_arrow(texts: pa.Array) -> pa.Array:
    return pa.array([[1]] * len(texts))


def halves(text: str) -> dict[str, str] | None:
    return {"first": text[0], "rest": text[1:]} if text else None


def halves_in_arrow(texts: pa.Array) -> pa.Array:
    return pa.array(
        [halves(text) for text in texts.to_pylist()], pa.struct({"first": pa.string(), "rest": pa.string()})
    )


def halves_in_turn(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
    yield from map(halves_in_arrow, batches)


@pytest.mark.parametrize("emits", [True, False])
@pytest.mark.parametrize("function", [halves, halves_in_arrow, halves_in_turn], ids=lambda each: each.__name__)
def test_a_row_for_which_a_function_returns_no_columns_is_done_and_has_no_record(function: Any, emits: bool) -> None:
    pair = StructType([StructField("first", StringType()), StructField("rest", StringType())])
    task = task_of(function, pair, emits=emits)
    made = [record for column in task.run(batches_of([["ab", "", "c"], [""]])) for record in column.to_pylist()]
    assert [record and (record["first"], record["rest"]) for record in made] == [("a", "b"), None, ("c", ""), None]
    vals, failed = answers(task)
    roots = [root_id(1, number) for number in range(4)]
    assert not failed
    assert [vals[root] for root in roots] == [
        edge0(root) ^ (record["_edge"] % (1 << 64) if emits and record else 0)
        for root, record in zip(roots, made, strict=True)
    ]


def test_columns_make_a_struct() -> None:
    schema = StructType([StructField("first", StringType()), StructField("size", LongType())])
    task = task_of(lambda text: {"first": text[0], "size": len(text)}, schema, name="it")
    [column] = task.run(batches_of([["ab", "!x", ""]]))
    assert column.to_pylist() == [{"first": "a", "size": 2}, {"first": "!", "size": 2}, None]
    _, failed = answers(task)
    assert list(failed.values()) == ["it: IndexError: string index out of range"]


def test_a_pandas_function_gets_maps_as_dicts() -> None:
    def total(counts: pd.Series) -> pd.Series:
        return counts.map(lambda each: 0 if each is None else sum(each.values()))

    def deep_total(frame: pd.DataFrame) -> pd.Series:
        return total(frame["deep"])

    kind = pa.map_(pa.string(), pa.int64())
    for function, column in (
        (total, pa.array([[("a", 1), ("b", 2)], None, []], kind)),
        (deep_total, pa.array([{"deep": [("a", 3)]}, {"deep": None}, {"deep": []}], pa.struct([("deep", kind)]))),
    ):
        [(_, *anchors)] = batches_of([["", "", ""]])
        [made] = task_of(function, name="it").run(iter([(column, *anchors)]))
        assert made.to_pylist() == [3, 0, 0]


def test_a_text_that_is_not_utf_8_fails_its_row_alone() -> None:
    [(texts, *anchors)] = batches_of([["a", "bb", "a"]])
    offsets = pa.py_buffer(np.array([0, 2], np.int32))
    bad = pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(b"\xff\xfe")])
    task = task_of(row, name="it")
    [column] = task.run(iter([(pa.concat_arrays([texts[:1], bad, texts[2:]]), *anchors)]))
    assert column.to_pylist() == [1, None, 1]
    [reason] = answers(task)[1].values()
    assert reason.startswith("it: UnicodeDecodeError")


def test_a_result_over_batches_that_does_not_fit_fails_its_row_alone() -> None:
    def arrow(texts: pa.Array) -> pa.Array:
        return pa.array([1 << 63 if text == "!" else len(text) for text in texts.to_pylist()], pa.uint64())

    def two_ahead(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        return answered_late(batches, arrow)

    for function in (arrow, two_ahead):
        task = task_of(function, name="it")
        made = [column.to_pylist() for column in task.run(batches_of([["a"], ["bb", "!"], ["", "a"]]))]
        assert made == [[1], [2, None], [0, 1]]
        [reason] = answers(task)[1].values()
        assert reason.startswith("it: Mismatch: acker_udf 'it': column 'value' is declared int64, and is uint64")


def test_rows_beside_one_that_misfits_keep_their_results_although_the_function_reuses_its_memory() -> None:
    lengths = np.zeros(10)

    def arrow(texts: pa.Array) -> pa.Array:
        found = texts.to_pylist()
        lengths[: len(found)] = [len(text) for text in found]
        return pa.array([None if text == "!" else "x" for text in found] if "!" in found else lengths[: len(found)])

    task = task_of(arrow, DoubleType(), name="it")
    [column] = task.run(batches_of([["a", "bb", "ccc", "!"]]))
    assert column.to_pylist() == [1, 2, 3, None]


@pytest.mark.parametrize("misfits", [99, 100])
def test_a_function_of_which_no_result_fits_is_wrong_itself(misfits: int) -> None:
    task = task_of(lists_in_arrow, name="it")
    if misfits < MISFITS_MAX:
        [column] = task.run(batches_of([["a"] * misfits]))
        assert column.to_pylist() == [None] * misfits
    else:
        with pytest.raises(OperatorError, match="none of the first 100 results fits: correct the declared type"):
            list(task.run(batches_of([["a"] * misfits])))


def test_an_object_that_a_function_reuses_counts_with_what_it_held_when_it_was_returned() -> None:
    reused: dict[str, Any] = {}

    def sizes(text: str) -> Any:
        reused["size"] = len(text)
        return reused

    task = task_of(sizes, StructType([StructField("size", LongType())]), name="it")
    [column] = task.run(batches_of([["ab", "x", ""]]))
    assert column.to_pylist() == [{"size": 2}, {"size": 1}, {"size": 0}]


def test_a_value_that_does_not_fit_fails_its_row_alone() -> None:
    task = task_of(lambda text: text if text == "bb" else 7, name="it")
    [column] = task.run(batches_of([["a", "bb", "a"]]))
    assert column.to_pylist() == [7, None, 7]
    assert next(iter(answers(task)[1].values())).startswith("it: Mismatch: field 'value' is bigint, got 'bb'")


def test_rows_that_are_not_anchored_are_passed_and_raise_the_task() -> None:
    def untracked(*texts: str) -> Iterator[Any]:
        none = pa.nulls(len(texts), pa.int64())
        yield pa.array(texts), none, none

    task = task_of(row, emits=True)
    [column] = task.run(untracked("a", "bb"))
    assert column.to_pylist() == [
        {"value": 1, "_root": None, "_edge": None},
        {"value": 2, "_root": None, "_edge": None},
    ]
    assert task.tally.report().is_empty
    with pytest.raises(ValueError, match="no such text"):
        list(task_of(row, is_tracked=False).run(untracked("!")))


def too_short(texts: pa.Array) -> pa.Array:
    return arrow(texts).slice(1)


def no_array(texts: pa.Array) -> Any:
    return texts.to_pylist()


def ends_early(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
    yield arrow(next(batches))


def too_many(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
    for batch in batches:
        yield arrow(batch)
        yield arrow(batch)


def swallows(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
    for batch in batches:
        yield from batch[:0]


def test_results_of_another_type_fail_their_rows() -> None:
    def texts_of(texts: pa.Array) -> pa.Array:
        return texts

    task = task_of(texts_of, name="it")
    [column] = task.run(batches_of([["a", "2"]]))
    assert column.to_pylist() == [None, 2]
    [reason] = answers(task)[1].values()
    assert reason.startswith("it: Mismatch: acker_udf 'it': column 'value' is declared int64, and is string")


@pytest.mark.parametrize("function", [too_short, no_array, ends_early, too_many, swallows])
def test_a_function_that_breaks_its_contract_fails_the_task(function: Any) -> None:
    with pytest.raises(OperatorError, match=f"acker_udf '{function.__name__}'"):
        list(task_of(function).run(batches_of([["a", "bb"], ["a"]])))


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda each: each.__name__)
def test_with_raise_the_first_error_fails_the_task(function: Any) -> None:
    with pytest.raises(ValueError, match="no such text"):
        list(task_of(function, on_error="raise").run(batches_of([["a", "!"], ["a"]])))


def careless(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
    try:
        for batch in batches:
            yield arrow(batch)
    except OSError:
        return


@pytest.mark.parametrize("function", [arrow_iterator, careless, ahead])
def test_an_input_that_breaks_off_is_not_taken_for_its_end_or_for_a_bad_row(function: Any) -> None:
    def broken() -> Iterator[Any]:
        yield from batches_of([["a"], ["bb"]])
        raise OSError("the socket is gone")

    with pytest.raises(OSError, match="the socket is gone"):
        list(task_of(function).run(broken()))


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: acker_udf(row), "write @acker_udf"),  # type: ignore[arg-type]
        (lambda: acker_udf("int", on_error="skip"), "on_error='skip'"),  # type: ignore[arg-type]
        (lambda: acker_udf("int")(5), "is for a function"),  # type: ignore[arg-type]
        (lambda: _fields_of(StructType([StructField("_ROOT", LongType())]), "it"), "the acker's own"),
    ],
)
def test_a_udf_that_cannot_be_is_refused_where_it_is_declared(call: Callable[[], Any], match: str) -> None:
    with pytest.raises((TypeError, ValueError), match=match):
        call()
