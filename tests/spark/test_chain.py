"""Chains without Spark: what they report, and when. Fusing, batch sizes and partitions must not change the reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row

from acker_client.spark.anchoring.tally import MultipliedEdges, Report
from acker_client.spark.operators.branch import BranchStep
from acker_client.spark.operators.flags import FLAG
from acker_client.spark.operators.read import Reading, Records
from acker_client.spark.operators.where import WhereStep
from acker_client.spark.worker.chain import Arriving, Chain, Step
from acker_protocol.ids import edge0, root_id
from acker_protocol.messages import InitScope
from acker_protocol.reports import digest
from tests.spark.chains import SCOPE, SETTINGS, Texts, arriving, failed, ledger, over_arrow, reading, run, sink, words

TEXT = st.text("ab ", max_size=8)
TEXTS = st.lists(TEXT, min_size=1, max_size=25)


def in_arrow(batch: pa.RecordBatch) -> Any:
    lists = [text.split() for text in batch.column("text").to_pylist()]
    parents = np.repeat(np.arange(len(lists)), [len(found) for found in lists])
    return pa.table({"word": pa.array([word for found in lists for word in found], pa.string())}), parents


def as_sent(reports: Sequence[Report]) -> list[Any]:
    """Return the fields that must be the same in the reports of two equal runs."""
    return [
        (
            r.identity,
            r.entries.root_ids.tolist(),
            r.entries.ack_vals.tolist(),
            r.entries.kinds.tolist(),
            digest(r.entries),
        )
        for r in reports
    ]


@given(TEXTS)
def test_everything_that_is_said_of_a_finished_tree_is_zero(texts: list[str]) -> None:
    table, reports = run(reading(texts), [words(), sink()])
    assert table.num_rows == sum(len(text.split()) for text in texts)
    assert ledger(reports) == {root_id(SCOPE.first, number): 0 for number in range(len(texts))}


@given(TEXTS)
def test_without_its_last_step_every_tree_with_rows_left_is_open(texts: list[str]) -> None:
    _, reports = run(reading(texts), [words()])
    assert [val != 0 for _, val in sorted(by_number(ledger(reports)).items())] == [bool(text.split()) for text in texts]


def by_number(vals: dict[int, int]) -> dict[int, int]:
    from acker_protocol.ids import numbers_of

    numbers = numbers_of(SCOPE.first, np.array(list(vals), np.uint64)).tolist()
    return dict(zip(numbers, vals.values(), strict=True))


@pytest.mark.long
@given(TEXTS, st.integers(1, 9), st.integers(1, 9))
@pytest.mark.parametrize("operator", [words(), over_arrow(in_arrow)], ids=["rows", "arrow"])
def test_fused_or_not_and_in_any_batches_the_reports_are_the_same(
    operator: Any, texts: list[str], at_once: int, hop: int
) -> None:
    _, fused = run(reading(texts), [operator, sink()])
    table, read = run(reading(texts, at_once), [])
    table, mapped = arriving([operator], table, hop) if len(texts) else (table, [])
    _, written = arriving([sink()], table, at_once) if table.num_rows else (table, [])
    assert as_sent(fused) == as_sent([*read, *mapped, *written])


@given(TEXTS, st.integers(0, 1 << 32))
def test_in_whatever_order_rows_arrive_the_report_is_the_same(texts: list[str], seed: int) -> None:
    table, _ = run(reading(texts), [words()])
    if not table.num_rows:
        return
    order = np.random.default_rng(seed).permutation(table.num_rows)
    _, straight = arriving([sink()], table)
    _, shuffled = arriving([sink()], table.take(order))
    assert as_sent(straight) == as_sent(shuffled)


@given(TEXTS, st.integers(0, 25))
def test_however_rows_are_spread_over_tasks_the_sum_is_the_same(texts: list[str], cut: int) -> None:
    table, reports = run(reading(texts), [words()])
    for part in (table.slice(0, cut), table.slice(cut)):
        if part.num_rows:
            reports += arriving([sink()], part)[1]
    assert not any(ledger(reports).values())


def test_rows_and_arrow_give_the_same_edges() -> None:
    texts = ["a b", "", "c"]
    assert as_sent(run(reading(texts), [words()])[1]) == as_sent(run(reading(texts), [over_arrow(in_arrow)])[1])


@pytest.mark.parametrize("other", ["a c", "b a", "a", "a b b"], ids=["value", "order", "fewer", "more"])
def test_what_became_of_a_parent_is_in_every_edge(other: str) -> None:
    def edges(text: str) -> set[int]:
        table, _ = run(reading([text]), [words()])
        return set(table["_edge"].to_pylist())

    assert edges("a b") == edges("a b")
    assert not edges("a b") & edges(other)


def test_what_is_kept_of_a_parent_is_in_its_edges() -> None:
    def edges(keep: Sequence[str]) -> list[int]:
        table, _ = run(reading(["a"]), [words(keep=keep)])
        return list(table["_edge"].to_pylist())

    assert len({*edges(["number"]), *edges(["text"]), *edges([])}) == 3


def test_inits_name_their_batch_and_what_they_cover() -> None:
    _, reports = run(Reading(SCOPE, (Texts(("a", "b"), start=5),)), [])
    assert len(reports) == 1
    inits = reports[0].inits
    assert isinstance(inits, InitScope)
    assert (inits.session, inits.batch, inits.covered.tolist()) == (7, 3, [[5, 7]])
    roots = {root_id(SCOPE.first, number) for number in (5, 6)}
    assert ledger(reports) == {root: edge0(root) for root in roots}


def test_an_empty_slice_says_what_it_covers_and_is_not_another_empty_slice() -> None:
    def reports(start: int) -> list[Report]:
        return run(Reading(SCOPE, (Gap(start, start + 3),)), [])[1]

    assert [report.inits.covered.tolist() for report in reports(5) if report.inits] == [[[5, 8]]]
    assert reports(5)[0].identity == reports(5)[0].identity != reports(8)[0].identity


class Gap:
    """A slice without records."""

    def __init__(self, start: int, stop: int) -> None:
        self.start, self.stop = start, stop

    def read(self) -> Any:
        return iter(())


class Numbers(Gap):
    """A slice whose records have the numbers ``given``."""

    given: tuple[int, ...] = ()

    def read(self) -> Any:
        numbers = np.array(self.given, np.uint64)
        yield Records(numbers, pa.RecordBatch.from_pydict({"number": numbers.astype(np.int64)}))


@pytest.mark.parametrize("numbers", [(0, 0), (1, 0), (3,), (7,)])
def test_numbers_that_would_break_the_account_are_refused(numbers: tuple[int, ...]) -> None:
    part = Numbers(0, 3)
    part.given = numbers
    with pytest.raises(ValueError, match=r"numbers that do not ascend|outside its range"):
        run(Reading(SCOPE, (part,)), [])


def test_a_record_that_cannot_be_read_is_emitted_failed_and_not_handed_on() -> None:
    table, reports = run(reading(["a", "unreadable", "b"]), [words(), sink()])
    root = root_id(SCOPE.first, 1)
    assert table["word"].to_pylist() == ["a", "b"]
    assert failed(reports) == {root: "bad"}
    assert ledger(reports) == {root_id(SCOPE.first, number): 0 for number in range(3)}
    assert [report.inits is None for report in reports] == [False, True, True, True]


def test_a_task_that_is_closed_early_has_said_nothing() -> None:
    sent: list[Report] = []
    batches = iter([pa.RecordBatch.from_pydict({"id": [0]})])
    task: Any = Chain(SETTINGS, reading(["a b"] * 50, at_once=10), (words(), sink())).run(batches, sent.append)
    next(task)
    task.close()
    assert sent == []


def test_a_task_that_raises_has_said_nothing() -> None:
    def boom(row: Row) -> Any:
        if row.number == 40:
            raise RuntimeError("boom")

    sent: list[Report] = []
    batches = iter([pa.RecordBatch.from_pydict({"id": [0]})])
    chain = Chain(SETTINGS, reading(["a b"] * 50, at_once=10), (words(boom, on_error="raise"), sink()))
    with pytest.raises(RuntimeError, match="boom"):
        list(chain.run(batches, sent.append))
    assert sent == []


def test_copies_of_a_row_are_refused_before_anything_is_said() -> None:
    table, _ = run(reading(["a b", "c"]), [words()])
    doubled = pa.concat_tables([table, table.slice(1, 1)])
    sent: list[Report] = []
    with pytest.raises(MultipliedEdges, match="'save' was handed several copies"):
        list(Chain(SETTINGS, Arriving(), (sink(),)).run(doubled.to_batches(), sent.append))
    assert sent == []


def test_large_output_is_handed_on_in_bounded_batches() -> None:
    batches = iter([pa.RecordBatch.from_pydict({"id": [0]})])
    chain = Chain(SETTINGS, reading(["w " * 200_000]), (words(), sink()))
    sent: list[Report] = []
    sizes = [batch.num_rows for batch in chain.run(batches, sent.append)]
    assert sum(sizes) == 200_000
    assert max(sizes) <= 1 << 17


def test_unanchored_rows_pass_and_are_not_counted() -> None:
    table, _ = run(reading(["a", "b"]), [])
    ids = pa.array([None, table["_root"][1].as_py()], pa.int64())
    edges = pa.array([None, table["_edge"][1].as_py()], pa.int64())
    table = table.set_column(2, "_root", ids).set_column(3, "_edge", edges)
    out, reports = arriving([words()], table)
    assert out["word"].to_pylist() == ["a", "b"]
    assert [value is None for value in out["_root"].to_pylist()] == [True, False]
    assert list(ledger(reports)) == [root_id(SCOPE.first, 1)]


@pytest.mark.parametrize(("second", "is_done"), [([1, 2], True), ([2, 1], False)], ids=["the same", "ties broken anew"])
def test_copies_of_rows_that_spark_computed_differently_never_complete_a_tree(second: list[int], is_done: bool) -> None:
    table, reports = run(reading(["a", "b"]), [])
    for index, ranks in enumerate(([1, 2], second)):
        copy, branched = arriving([BranchStep("branch", index, 2)], table.add_column(0, "rn", pa.array(ranks)))
        flagged = copy.append_column(FLAG, pa.array([rank == index + 1 for rank in ranks]))
        steps: list[Step] = [WhereStep(f"where {index}"), sink(f"save {index}")]
        saved, reported = arriving(steps, flagged)
        assert saved.num_rows == 1
        reports += [*branched, *reported]
    assert (not any(ledger(reports).values())) == is_done
