"""The tracker compared with a reference model, and its bounds on work and memory."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from acker_client.source.records import tracker as tracker_module
from acker_client.source.records.ranges import Ranges
from acker_client.source.records.tracker import Tracker
from acker_protocol.ids import BASE_MAX, root_id
from acker_protocol.messages import Verdict
from tests.service.caller import roots_of

ACKED, FAILED, TIMED_OUT, LOST = (int(verdict) for verdict in Verdict)


@dataclass
class Twin:
    """Reference model: the same rules, with plain lists, dicts and sets."""

    base: int
    emissions: list[int] = field(default_factory=list)
    outcome: dict[int, int] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)

    def apply(self, roots: list[int], verdicts: list[int]) -> tuple[list[tuple[int, int, int]], int, int]:
        numbers = {root_id(self.base, number): number for number in range(len(self.emissions))}
        applied, repeated, foreign = [], 0, 0
        for index, (root, verdict) in enumerate(zip(roots, verdicts, strict=True)):
            if root not in numbers:
                foreign += 1
            elif numbers[root] in self.outcome:
                repeated += 1
            else:
                self.outcome[numbers[root]] = verdict
                applied.append((self.emissions[numbers[root]], verdict, index))
        return applied, repeated, foreign

    def drop(self, records: set[int]) -> None:
        self.done |= records
        for number, record in enumerate(self.emissions):
            if record in records:
                self.outcome.setdefault(number, 0)

    def done_below(self, reach: int) -> int:
        still_open = set(self.emissions) - self.done
        return min(still_open, default=reach)


class TrackerBesideItsTwin(RuleBasedStateMachine):
    @initialize(base=st.integers(1, BASE_MAX - 1))
    def begin(self, base: int) -> None:
        self.tracker, self.twin = Tracker(base), Twin(base)
        self.next_record, self.failed, self.acked = 0, set[int](), set[int]()

    @rule(gaps=st.lists(st.integers(0, 5), max_size=8))
    def emit_new_records_with_gaps(self, gaps: list[int]) -> None:
        records = []
        for gap in gaps:
            records.append(self.next_record + gap)
            self.next_record += gap + 1
        self._emit(records)

    @precondition(lambda self: self.failed)
    @rule(data=st.data())
    def replay(self, data: st.DataObject) -> None:
        records = sorted(data.draw(st.sets(st.sampled_from(sorted(self.failed)), min_size=1)))
        self.failed -= set(records)
        self._emit(records)

    def _emit(self, records: list[int]) -> None:
        emitted = self.tracker.emit(np.array(records, np.int64))
        assert (emitted.start, emitted.stop) == (len(self.twin.emissions), len(self.twin.emissions) + len(records))
        self.twin.emissions += records
        assert emitted.roots.tolist() == [root_id(self.twin.base, n) for n in range(emitted.start, emitted.stop)]

    @rule(data=st.data(), foreign=st.lists(st.integers(0, 2**64 - 1), max_size=2))
    def apply(self, data: st.DataObject, foreign: list[int]) -> None:
        numbers = data.draw(st.lists(st.integers(0, len(self.twin.emissions)), max_size=12))
        roots = [root_id(self.twin.base, number) for number in numbers] + foreign
        verdicts = data.draw(st.lists(st.integers(1, 4), min_size=len(roots), max_size=len(roots)))
        got = self.tracker.apply_outcomes(np.array(roots, np.uint64), np.array(verdicts, np.uint8))
        expected, repeated, strangers = self.twin.apply(roots, verdicts)
        assert list(zip(got.records.tolist(), got.verdicts.tolist(), got.indices.tolist(), strict=True)) == expected
        assert got.roots.tolist() == [roots[index] for _, _, index in expected]
        assert (got.repeated, got.foreign) == (repeated, strangers)
        self._record(expected)

    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        start = data.draw(st.integers(0, len(self.twin.emissions)))
        stop = data.draw(st.integers(start, len(self.twin.emissions) + 3))
        got = self.tracker.end_emissions(start, stop, LOST)
        numbers = range(start, min(stop, len(self.twin.emissions)))
        expected, _, _ = self.twin.apply([root_id(self.twin.base, n) for n in numbers], [LOST] * len(numbers))
        assert got.records.tolist() == [record for record, _, _ in expected]
        self._record(expected)

    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        """Revoke records, whose emissions may have no outcome yet."""
        still_open = sorted(set(self.twin.emissions) - self.twin.done)
        records = data.draw(st.sets(st.sampled_from(still_open), max_size=5)) if still_open else set()
        self.tracker.drop_records(np.array(sorted(records), np.int64))
        self.twin.drop(records)
        self.failed -= records

    @rule()
    def take_finished(self) -> None:
        assert self.tracker.take_finished() == Ranges.of(np.array(sorted(self.acked), np.int64))
        self.acked = set()

    def _record(self, outcomes: list[tuple[int, int, int]]) -> None:
        acked = {record for record, verdict, _ in outcomes if verdict == ACKED}
        self.twin.done |= acked
        self.acked |= acked
        self.failed |= {record for record, verdict, _ in outcomes if verdict != ACKED}

    @rule()
    def compact(self) -> None:
        self.take_finished()
        self.tracker.compact()
        assert self.tracker.done_below == self.twin.done_below(self.tracker.reach)

    @invariant()
    def agree(self) -> None:
        if not hasattr(self, "tracker"):
            return
        assert self.tracker.emitted == len(self.twin.emissions)
        assert self.tracker.pending == len(self.twin.emissions) - len(self.twin.outcome)
        assert self.tracker.open_records == len(set(self.twin.emissions) - self.twin.done)


class TrackerInNumpyBesideItsTwin(TrackerBesideItsTwin):
    """The tracker without numba."""

    @rule(data=st.data(), foreign=st.lists(st.integers(0, 2**64 - 1), max_size=2))
    def apply(self, data: st.DataObject, foreign: list[int]) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tracker_module, "compiled", lambda: None)
            super().apply(data, foreign)


TestTrackerBesideItsTwin = TrackerBesideItsTwin.TestCase
TestTrackerBesideItsTwin.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestTrackerInNumpyBesideItsTwin = TrackerInNumpyBesideItsTwin.TestCase
TestTrackerInNumpyBesideItsTwin.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize("is_compiled", [True, False])
def test_outcomes_of_several_blocks_count_once_whichever_way_they_are_applied(
    is_compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tracker_module.compiled() is not None
    if not is_compiled:
        monkeypatch.setattr(tracker_module, "compiled", lambda: None)
    tracker, count = Tracker(7), 200_000
    emitted = tracker.emit(np.arange(count))
    order = np.random.default_rng(1).permutation(np.concatenate([np.arange(count), np.arange(0, count, 7)]))
    roots = np.concatenate([emitted.roots[order], np.array([1, 2, 3], np.uint64)])
    verdicts = np.where(np.arange(len(roots)) % 3 == 0, FAILED, ACKED).astype(np.uint8)
    got = tracker.apply_outcomes(roots, verdicts)
    _, firsts = np.unique(order, return_index=True)
    firsts.sort()
    assert got.indices.tolist() == firsts.tolist()
    assert got.records.tolist() == order[firsts].tolist()
    assert got.verdicts.tolist() == verdicts[firsts].tolist()
    assert (got.repeated, got.foreign, tracker.pending) == (len(order) - count, 3, 0)
    tracker.drop_records(got.records[got.records == got.records[0]])
    done = np.sort(got.records[(got.verdicts == ACKED) & (got.records != got.records[0])])
    assert tracker.take_finished() == Ranges.of(done)
    assert tracker.take_finished() == Ranges()


@given(st.permutations(range(40)))
@settings(max_examples=30, deadline=None)
def test_the_order_of_outcomes_does_not_matter(order: list[int]) -> None:
    tracker = Tracker(7)
    tracker.emit(np.arange(40))
    roots = roots_of(order, 7)
    applied = tracker.apply_outcomes(roots, np.full(40, ACKED, np.uint8))
    tracker.compact()
    assert sorted(applied.records.tolist()) == list(range(40))
    assert (tracker.done_below, tracker.pending) == (40, 0)


def test_an_outcome_told_twice_in_one_answer_counts_once_and_the_first_one_wins() -> None:
    tracker = Tracker(99)
    tracker.emit(np.array([0, 1]))
    roots = roots_of([1, 1, 0, 1], 99)
    applied = tracker.apply_outcomes(roots, np.array([FAILED, ACKED, ACKED, LOST], np.uint8))
    assert applied.records.tolist() == [1, 0]
    assert applied.verdicts.tolist() == [FAILED, ACKED]
    assert applied.repeated == 2


def test_an_outcome_after_its_emission_was_forgotten_is_a_repetition_not_a_stranger() -> None:
    tracker = Tracker(99)
    tracker.emit(np.arange(3))
    tracker.apply_outcomes(roots_of([0, 1, 2], 99), np.full(3, ACKED, np.uint8))
    tracker.compact()
    late = tracker.apply_outcomes(roots_of([1, 2], 99), np.full(2, FAILED, np.uint8))
    assert (len(late.records), late.repeated, late.foreign) == (0, 2, 0)


def test_an_outcome_that_comes_after_its_record_went_to_another_source_makes_no_other_record_done() -> None:
    """The batch is not held, so its roots are still pending when the partition is revoked."""
    tracker = Tracker(5)
    gone = tracker.emit(np.arange(10))
    tracker.emit(np.arange(10, 30))
    tracker.drop_records(gone.records)
    tracker.compact()
    late = tracker.apply_outcomes(gone.roots, np.full(10, ACKED, np.uint8))
    assert (len(late.records), late.repeated, tracker.pending, tracker.open_records) == (0, 10, 20, 20)
    assert tracker.take_finished() == Ranges()


def test_nothing_is_pending_among_emissions_that_are_forgotten_whatever_came_after_them() -> None:
    tracker = Tracker(5)
    tracker.apply_outcomes(tracker.emit(np.arange(10)).roots, np.full(10, ACKED, np.uint8))
    later = tracker.emit(np.arange(10, 40))
    tracker.compact()
    assert [len(column) for column in tracker.pending_among(0, 8)] == [0, 0]
    records, roots = tracker.pending_among(8, 15)
    assert (records.tolist(), roots.tolist()) == (list(range(10, 15)), later.roots[:5].tolist())


def test_a_gap_in_the_record_numbers_holds_nothing_up() -> None:
    tracker = Tracker(5)
    tracker.emit(np.array([10, 40, 41]))
    tracker.apply_outcomes(roots_of([0, 1], 5), np.full(2, ACKED, np.uint8))
    tracker.compact()
    assert tracker.done_below == 41


def test_done_records_are_forgotten_so_memory_follows_records_in_flight() -> None:
    tracker = Tracker(5)
    sizes = []
    for step in range(200):
        emitted = tracker.emit(np.arange(step * 1000, (step + 1) * 1000))
        tracker.apply_outcomes(emitted.roots, np.full(1000, ACKED, np.uint8))
        tracker.compact()
        sizes.append(tracker.nbytes)
    assert max(sizes) == max(sizes[:10])


def test_work_for_an_outcome_does_not_grow_with_the_number_of_outcomes() -> None:
    """A call makes a fixed number of passes over blocks of 65,536 outcomes, and runs no Python code per outcome."""
    lines = {outcomes: _lines_run(outcomes) for outcomes in (10_000, 65_536, 655_360)}
    assert lines[65_536] < lines[10_000] + 200
    assert lines[655_360] < 10 * lines[65_536]


def _lines_run(outcomes: int) -> int:
    tracker = Tracker(3)
    emitted = tracker.emit(np.arange(outcomes))
    verdicts = np.full(outcomes, ACKED, np.uint8)
    lines = 0

    def count(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal lines
        lines += 1
        return count

    sys.settrace(count)
    try:
        tracker.apply_outcomes(emitted.roots, verdicts)
        tracker.compact()
    finally:
        sys.settrace(None)
    return lines


@pytest.mark.parametrize("base", [0, BASE_MAX, -4])
def test_a_base_that_could_wrap_or_give_root_zero_is_refused(base: int) -> None:
    with pytest.raises(ValueError, match="between 1 and 2"):
        Tracker(base)
