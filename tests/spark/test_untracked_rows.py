"""Rows of untracked records, without Spark: the same output as tracked ones, and no trace in any report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row

from acker_client import AckerClient, Settings
from acker_client.spark import Collector, group
from acker_client.spark.anchoring.tally import Report
from acker_client.spark.driver.session import NO_TRACKING
from acker_client.spark.operators.branch import BranchStep
from acker_client.spark.operators.emit import Choosing, Emits
from acker_client.spark.operators.flags import FLAG
from acker_client.spark.operators.merging import AccountStep
from acker_client.spark.operators.read import Reading
from acker_client.spark.worker.chain import Arriving, Chain, Entry, Step
from acker_client.spark.worker.failed import RecordFailed
from acker_client.spark.worker.returns import OperatorError
from acker_protocol.ids import root_id
from tests.spark.chains import SCOPE, SETTINGS, Texts, failed, ledger, over_arrow, sink, words
from tests.spark.test_chain import in_arrow

TEXTS = st.lists(st.sampled_from(["", "a", "b a", "bad", "a b a", "unreadable"]), min_size=1, max_size=20)
TRACKING = ("_root", "_edge", "_anchors")
START = pa.RecordBatch.from_pydict({"id": [0]})


def halves(texts: Sequence[str]) -> tuple[Texts, ...]:
    """Return two slices, which hand out three rows at a time."""
    middle = len(texts) // 2
    return (Texts(tuple(texts[:middle]), at_once=3), Texts(tuple(texts[middle:]), middle, at_once=3))


def split(row: Row) -> list[tuple[str]]:
    if row.text == "bad":
        raise ValueError("bad")
    return [(word,) for word in row.text.split()]


def chunked(batch: pa.RecordBatch) -> Any:
    if "bad" in batch.column("text").to_pylist():
        raise ValueError("bad")
    return in_arrow(batch)


@group("number", "rows long")
def counted(table: pa.Table) -> Any:
    return pa.table({"rows": pa.array([len(table)], pa.int64())}), "all"


def ran(
    entry: Entry, steps: Sequence[Step], batches: Sequence[pa.RecordBatch], settings: Settings = SETTINGS
) -> tuple[list[pa.RecordBatch], list[Report]]:
    reports: list[Report] = []
    made = list(Chain(settings, entry, tuple(steps)).run(batches, reports.append))
    return made, reports


def read(
    texts: Sequence[str], emits: Emits, steps: Sequence[Step], settings: Settings = SETTINGS
) -> tuple[list[pa.RecordBatch], list[Report]]:
    """Run a fused chain over both slices."""
    both = pa.RecordBatch.from_pydict({"id": [0, 1]})
    return ran(Reading(SCOPE, halves(texts), emits), steps, [both], settings)


def chosen_later(
    texts: Sequence[str], tracked: set[int], steps: Sequence[Step]
) -> tuple[list[pa.RecordBatch], list[Report]]:
    """Read in one chain, and choose in the next one, as with a condition of Spark's."""
    made, reports = read(texts, "later", [])
    flags = [[number in tracked or None for number in batch["number"].to_pylist()] for batch in made]
    flagged = [batch.append_column(FLAG, pa.array(each, pa.bool_())) for batch, each in zip(made, flags, strict=True)]
    rows, more = ran(Choosing(SCOPE), steps, [batch for batch in flagged if batch.num_rows])
    return rows, [*reports, *more]


def rows_of(batches: Sequence[pa.RecordBatch]) -> Counter[tuple[Any, ...]]:
    """Return the user's columns of all rows."""
    tables = [batch.drop_columns([name for name in TRACKING if name in batch.schema.names]) for batch in batches]
    return Counter(tuple(row.items()) for table in tables for row in table.to_pylist())


def covered(reports: Sequence[Report]) -> list[int]:
    ranges = [each for report in reports if report.inits is not None for each in report.inits.covered.tolist()]
    return sorted(number for start, stop in ranges for number in range(start, stop))


def inits(reports: Sequence[Report]) -> dict[int, int]:
    return ledger([report for report in reports if report.inits is not None])


def reasons(reports: Sequence[Report]) -> dict[int, str]:
    """Return the reasons without tracebacks, which only the first one of a task has."""
    return {root: why.partition("\n")[0] for root, why in failed(reports).items()}


def roots(numbers: set[int]) -> set[int]:
    return {root_id(SCOPE.first, number) for number in numbers}


@pytest.mark.long
@given(TEXTS, st.data())
@pytest.mark.parametrize("operator", [words(split), over_arrow(chunked)], ids=["rows", "arrow"])
def test_whatever_is_tracked_the_rows_are_the_same_and_only_tracked_records_are_reported(
    operator: Any, texts: list[str], data: st.DataObject
) -> None:
    every = set(range(len(texts)))
    tracked = data.draw(st.sets(st.sampled_from(sorted(every))))
    steps = [BranchStep("copy", data.draw(st.integers(0, 1)), 2), operator]

    def choose(batch: pa.RecordBatch) -> Any:
        return pc.is_in(batch["number"], value_set=pa.array(sorted(tracked), pa.int64()))

    whole, all_reports = read(texts, "all", steps)
    unreadable = {number for number, text in enumerate(texts) if text == "unreadable"}
    known = roots(tracked | unreadable)
    for made, reports in (read(texts, choose, steps), chosen_later(texts, tracked, steps)):
        assert rows_of(made) == rows_of(whole)
        assert covered(reports) == sorted(every)
        assert inits(reports) == {root: val for root, val in inits(all_reports).items() if root in known}
        assert set(ledger(reports)) <= known
        assert reasons(reports) == {root: why for root, why in reasons(all_reports).items() if root in known}


@given(TEXTS, st.data())
def test_trees_of_tracked_records_close_beside_untracked_ones(texts: list[str], data: st.DataObject) -> None:
    tracked = data.draw(st.sets(st.integers(0, len(texts) - 1)))
    steps: list[Step] = [words(split), sink()]

    def choose(batch: pa.RecordBatch) -> list[bool]:
        return [number in tracked for number in batch["number"].to_pylist()]

    for _, reports in (read(texts, choose, steps), chosen_later(texts, tracked, steps)):
        assert not any(ledger(reports).values())


@given(st.lists(st.sampled_from(["", "a", "b a"]), min_size=1, max_size=20))
@pytest.mark.parametrize("operator", [words(split), over_arrow(chunked)], ids=["rows", "arrow"])
def test_with_tracking_off_the_rows_are_the_same_and_nothing_is_reported(operator: Any, texts: list[str]) -> None:
    steps = [BranchStep("copy", 1, 2), operator]
    whole, _ = read(texts, "all", steps)
    made, reports = read(texts, "none", steps, NO_TRACKING)
    assert rows_of(made) == rows_of(whole)
    assert all(report.is_empty for report in reports)
    assert all(batch.column(name).null_count == batch.num_rows for batch in made for name in ("_root", "_edge"))


@pytest.mark.parametrize("operator", [words(split), over_arrow(chunked)], ids=["rows", "arrow"])
def test_with_tracking_off_a_row_that_raises_fails_the_task(operator: Any) -> None:
    with pytest.raises(ValueError, match="bad"):
        read(["a", "bad", "a"], "none", [operator], NO_TRACKING)


def test_with_tracking_off_a_record_that_cannot_be_read_fails_the_task() -> None:
    with pytest.raises(RecordFailed, match=r"a record cannot be read: bad \(tracking is off"):
        read(["a", "unreadable"], "none", [], NO_TRACKING)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=20), st.data())
def test_groups_of_tracked_and_untracked_rows_carry_the_anchors_of_the_tracked_ones(
    numbers: list[int], data: st.DataObject
) -> None:
    tracked = data.draw(st.sets(st.integers(0, len(numbers) - 1)))
    is_off = data.draw(st.booleans()) and not tracked

    def choose(batch: pa.RecordBatch) -> list[bool]:
        return [number in tracked for number in batch["number"].to_pylist()]

    texts = ["a"] * len(numbers)
    settings = NO_TRACKING if is_off else SETTINGS
    made, reports = read(texts, "none" if is_off else choose, [], settings)
    table = pa.Table.from_batches(made)
    merged = counted._task(counted._fields(), None, (), tracking=not is_off)
    out = []
    for key in sorted(set(numbers)):
        own = table.filter(pa.array([each == key for each in numbers]))
        out += merged.of_group(own).combine_chunks().to_batches()
    rows, more = ran(Arriving(), [AccountStep("counted"), sink()], out, settings)
    assert sorted(row["rows"] for batch in rows for row in batch.to_pylist()) == sorted(Counter(numbers).values())
    assert {root: val for root, val in ledger([*reports, *more]).items() if val} == {}
    assert set(ledger(more)) == roots(tracked)


def test_a_group_of_untracked_rows_that_raises_is_dropped_and_fails_the_task_with_tracking_off() -> None:
    def boom(table: pa.Table) -> Any:
        raise ValueError("boom")

    broken = group("number", "rows long")(boom)
    made, _ = read(["a", "a"], lambda batch: [False] * len(batch), [])
    given = pa.Table.from_batches(made)
    out = broken._task(broken._fields(), None, ()).of_group(given).combine_chunks().to_batches()
    dropped: list[Any] = []

    class Writer:
        def write(self, kind: str, tag: str, **given: Any) -> None:
            dropped.append((kind, given))

    writer: Any = Writer()
    chain = Chain(SETTINGS, Arriving(), (AccountStep("broken"),), note_writer=writer)
    assert sum(batch.num_rows for batch in chain.run(out, lambda report: None)) == 0
    assert dropped == [("dropped", {"index": 2, "function": "boom: ValueError: boom"})]
    with pytest.raises(ValueError, match="boom"):
        broken._task(broken._fields(), None, (), tracking=False).of_group(given)


@pytest.mark.parametrize("given", [None, 3, [True], ["x", "y"], [1, 0], pa.array([True, False, True])])
def test_a_function_that_does_not_answer_for_each_row_is_refused(given: Any) -> None:
    with pytest.raises(OperatorError, match="return one boolean for each of the 2 rows"):
        ran(Reading(SCOPE, (Texts(("a", "a")),), lambda batch: given), [], [START])


@pytest.mark.parametrize(
    "given", [[True, None], np.array([True, False]), pa.array([True, False]), pa.chunked_array([[True], [False]])]
)
def test_a_function_may_answer_in_any_form(given: Any) -> None:
    _, reports = ran(Reading(SCOPE, (Texts(("a", "a")),), lambda batch: given), [], [START])
    assert set(inits(reports)) == roots({0})


def test_a_collector_goes_on_without_anchors_and_with_tracking_off_a_fail_fails_the_task() -> None:
    row, sent = Row(text="a b", _root=None, _edge=None), list[Report]()
    for settings in (SETTINGS, NO_TRACKING):
        with Collector("words", settings, send=sent.append) as out:
            made = [out.emit(word, anchors=[row]) for word in row.text.split()]
            out.ack(row)
        assert [(each.value, each._root, each._edge) for each in made] == [("a", None, None), ("b", None, None)]
    with Collector("words", SETTINGS, send=sent.append) as out:
        out.fail(row, "nobody waits for it")
    assert sent == []
    with (
        pytest.raises(RecordFailed, match=r"words: too long \(tracking is off"),
        Collector("words", NO_TRACKING) as out,
    ):
        out.fail(row, "too long")


def test_a_client_with_tracking_off_is_refused() -> None:
    with pytest.raises(ValueError, match="tracking is off"):
        AckerClient(NO_TRACKING)
