"""The retry schedule compared with a reference model, and edge cases of the retry policy."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from acker_client import Verdict
from acker_client.source.records.retry import GROUP_MIN, GROUPS_MAX, PIECES, Retry, RetryPolicy, Schedule


def columns(records: set[int] | list[int]) -> np.ndarray:
    return np.array(sorted(records), np.int64)


@dataclass
class Attempt:
    failed: int = 0
    interrupted: int = 0
    due_s: float | None = None  # None: in flight


@dataclass
class Twin:
    """Reference model with one object per record. The random draw is always 1, so each delay is at its bound."""

    retry: Retry
    records: dict[int, Attempt] = field(default_factory=dict)

    def count(self, what: str, records: set[int], now: float) -> set[int]:
        limit = self.retry.max_retries if what == "failed" else self.retry.max_interruptions
        spent = set()
        for record in records:
            attempt = self.records.setdefault(record, Attempt())
            count = getattr(attempt, what) + 1
            setattr(attempt, what, count)
            if count > limit:
                spent.add(record)
            else:
                attempt.due_s = now + min(self.retry.cap_s, self.retry.initial_s * 2 ** (count - 1))
        return spent

    def due(self, now: float) -> set[int]:
        return {r for r, attempt in self.records.items() if attempt.due_s is not None and attempt.due_s <= now}


def asked(policy: RetryPolicy, verdict: Verdict, attempts: np.ndarray) -> np.ndarray:
    """Ask a policy about each record: a ``Decide``."""
    answers = (policy.decide(int(attempt), verdict, "bad", {}) for attempt in attempts)
    return np.array([np.nan if answer is None else answer for answer in answers])


class ScheduleBesideItsTwin(RuleBasedStateMachine):
    @initialize(retries=st.integers(0, 3), interruptions=st.integers(0, 3), asks=st.booleans())
    def begin(self, retries: int, interruptions: int, asks: bool) -> None:
        retry = Retry(max_retries=retries, max_interruptions=interruptions, initial_s=1, cap_s=3)
        self.schedule, self.twin = Schedule(retry, draw=lambda: 1.0), Twin(retry)
        # The policy is asked about each record, or Retry's own code schedules all of them at once.
        self.asks = asks
        self.now, self.flying = 0.0, set(range(12))

    @rule(data=st.data(), what=st.sampled_from(["failed", "interrupted"]))
    def count(self, data: st.DataObject, what: str) -> None:
        if not self.flying:
            return
        records = data.draw(st.sets(st.sampled_from(sorted(self.flying))))
        self.flying -= records
        count = self.schedule.count_failures if what == "failed" else self.schedule.interrupt
        verdict = Verdict.FAILED if what == "failed" else Verdict.LOST
        decide = partial(asked, self.twin.retry, verdict) if self.asks else None
        spent = count(columns(records), self.now, decide=decide)
        assert set(spent.tolist()) == self.twin.count(what, records, self.now)

    @rule(seconds=st.sampled_from([0.5, 1.0, 3.0]), records_max=st.integers(1, 12))
    def take(self, seconds: float, records_max: int) -> None:
        self.now += seconds
        due = self.twin.due(self.now)
        group = self.schedule.take_due(self.now, records_max)
        taken = set() if group is None else set(group.records.tolist())
        assert taken <= due
        assert len(taken) == min(len(due), records_max)
        assert group is None or group.records.tolist() == sorted(taken)
        for record in taken:
            self.twin.records[record].due_s = None
        self.flying |= taken

    @rule(records=st.sets(st.integers(0, 11)), seconds=st.sampled_from([0.0, 2.0]))
    def postpone(self, records: set[int], seconds: float) -> None:
        self.now += seconds
        self.schedule.postpone(columns(records), self.now, self.now + 1)
        for record in self.twin.due(self.now) & records:
            self.twin.records[record].due_s = self.now + 1

    @invariant()
    def agree(self) -> None:
        if not hasattr(self, "twin"):
            return
        waiting = [attempt.due_s for attempt in self.twin.records.values() if attempt.due_s is not None]
        assert self.schedule.waiting == len(waiting)
        due_s = self.schedule.next_due_s
        assert (due_s is None) == (not waiting)
        assert due_s is None or due_s <= min(waiting)
        everybody = columns(list(range(12)))
        known = [self.twin.records.get(record, Attempt()) for record in range(12)]
        assert self.schedule.failed(everybody).tolist() == [attempt.failed for attempt in known]
        assert self.schedule.interrupted(everybody).tolist() == [attempt.interrupted for attempt in known]


TestScheduleBesideItsTwin = ScheduleBesideItsTwin.TestCase
TestScheduleBesideItsTwin.settings = settings(max_examples=80, stateful_step_count=25, deadline=None)


@given(
    attempts=st.integers(0, 2**40),
    draw=st.floats(0, 1, exclude_max=True),
    initial_s=st.floats(0, 1e6),
    more_s=st.floats(0, 1e9),
)
def test_a_delay_never_overflows_never_is_negative_and_never_exceeds_its_cap(
    attempts: int, draw: float, initial_s: float, more_s: float
) -> None:
    retry = Retry(initial_s=initial_s, cap_s=initial_s + more_s)
    assert 0 <= retry.delay_s(attempts, lambda: draw) <= retry.cap_s


def test_delays_double_up_to_the_cap() -> None:
    retry = Retry(initial_s=1, cap_s=10)
    assert [retry.delay_s(attempt, lambda: 1.0) for attempt in (1, 2, 3, 4, 5, 57, 10_000)] == [1, 2, 4, 8, 10, 10, 10]


def test_max_retries_zero_never_tries_again() -> None:
    schedule = Schedule(Retry(max_retries=0), draw=lambda: 0.5)
    assert schedule.count_failures(columns([3, 4]), now=0).tolist() == [3, 4]
    assert (schedule.waiting, schedule.next_due_s) == (0, None)


def test_interruptions_do_not_spend_the_retries_of_a_record() -> None:
    schedule = Schedule(Retry(max_retries=1, max_interruptions=5, initial_s=0, cap_s=0), draw=lambda: 0.5)
    for _ in range(5):
        assert not len(schedule.interrupt(columns([7]), now=0))
        assert schedule.take_due(0, 10) is not None
    assert not len(schedule.count_failures(columns([7]), now=0))
    assert schedule.count_failures(columns([7]), now=0).tolist() == [7]


def test_a_batch_that_broke_is_replayed_whole_then_in_pieces_down_to_single_records() -> None:
    schedule = Schedule(Retry(initial_s=1, cap_s=1), draw=lambda: 1.0)
    schedule.isolate(columns(list(range(1000))), depth=0, now=0)
    whole = schedule.take_due(1, 10)
    assert whole is not None
    assert (len(whole.records), whole.depth) == (1000, 1)
    schedule.isolate(whole.records, whole.depth, now=1)
    pieces = [schedule.take_due(2, 10_000) for _ in range(PIECES)]
    assert [len(piece.records) for piece in pieces if piece] == [63] * 8 + [62] * 8
    last = pieces[-1]
    assert last is not None
    assert last.depth == 2
    assert schedule.take_due(2, 10_000) is None
    schedule.isolate(last.records, last.depth, now=2)
    smaller = [schedule.take_due(3, 10_000) for _ in range(PIECES)]
    assert np.concatenate([piece.records for piece in smaller if piece]).tolist() == last.records.tolist()


def test_records_that_must_be_alone_are_never_mixed_with_others() -> None:
    schedule = Schedule(Retry(initial_s=1, cap_s=1), draw=lambda: 1.0)
    schedule.count_failures(columns([1]), now=0)
    schedule.count_failures(columns([2]), now=0, depth=3)
    schedule.count_failures(columns([3]), now=0)
    groups = [schedule.take_due(5, 100) for _ in range(3)]
    assert sorted((group.records.tolist(), group.depth) for group in groups if group) == [([1], 0), ([2], 3), ([3], 0)]


def test_of_a_piece_that_must_be_alone_only_the_postponed_records_wait_and_are_alone_then() -> None:
    schedule = Schedule(Retry(initial_s=1, cap_s=1), draw=lambda: 1.0)
    schedule.count_failures(columns([1, 2]), now=0, depth=3)
    schedule.count_failures(columns([3]), now=0)
    schedule.postpone(columns([2, 3]), 5, 6)
    group = schedule.take_due(5, 100)
    assert group is not None
    assert (group.records.tolist(), group.depth, schedule.take_due(5, 100)) == ([1], 3, None)
    groups = [schedule.take_due(6, 100) for _ in range(2)]
    assert [(group.records.tolist(), group.depth) for group in groups if group] == [([2], 3), ([3], 0)]


def test_attempts_of_records_that_are_done_are_forgotten() -> None:
    schedule = Schedule(Retry(), draw=lambda: 1.0)
    schedule.count_failures(columns([5, 9]), now=0)
    schedule.forget_attempts(6)
    assert schedule.failed(columns([5, 9, 10])).tolist() == [0, 1, 0]
    schedule.forget_attempts(10_000_000)
    schedule.count_failures(columns([10_000_007]), now=0)
    assert schedule.failed(columns([9, 10_000_007])).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"max_retries": -1}, "max_retries"),
        ({"max_retries": 2.5}, "max_retries"),
        ({"max_retries": True}, "max_retries"),
        ({"max_interruptions": 70_000}, "max_interruptions"),
        ({"initial_s": -1}, "initial_s"),
        ({"initial_s": 5, "cap_s": 1}, "cap_s"),
        ({"cap_s": float("inf")}, "cap_s"),
        ({"cap_s": float("nan")}, "cap_s"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused_by_name(options: dict[str, float], names: str) -> None:
    with pytest.raises(ValueError, match=names):
        Retry(**options)  # type: ignore[arg-type]


def test_after_the_sixtieth_failure_the_wait_is_still_up_to_the_cap() -> None:
    retry = Retry(max_retries=100, initial_s=0.002, cap_s=10)
    assert [retry.delay_s(attempt, lambda: 1.0) for attempt in (14, 44, 57, 60, 64, 100)] == [10.0] * 6
    schedule = Schedule(retry, draw=lambda: 0.5)
    now = 0.0
    for _ in range(60):
        assert not len(schedule.count_failures(columns([7]), now))
        assert schedule.next_due_s is not None
        waited_s, now = schedule.next_due_s - now, schedule.next_due_s
        assert schedule.take_due(now, 1) is not None
    assert waited_s == pytest.approx(5.0)


def test_a_thousand_failures_at_one_moment_in_batches_of_their_own_are_spread_over_the_whole_wait() -> None:
    draw = random.Random(1).random
    schedule = Schedule(Retry(initial_s=8, cap_s=60), draw)
    for record in range(1000):
        schedule.count_failures(columns([record]), now=100.0)
    due = np.zeros(1000)
    for _ in range(1000):
        at_s = schedule.next_due_s
        assert at_s is not None
        group = schedule.take_due(at_s, 1)
        assert group is not None
        due[group.records] = at_s
    assert np.histogram(due, bins=8, range=(100.0, 108.0))[0].min() > 90
    assert len(np.unique(due)) > 990


def times_of(schedule: Schedule) -> dict[float, list[int]]:
    """Return the waiting records by their due time."""
    due: dict[float, list[int]] = {}
    while (at_s := schedule.next_due_s) is not None:
        group = schedule.take_due(at_s, 1_000_000)
        assert group is not None
        due[at_s] = group.records.tolist()
    return due


def test_a_thousand_failures_of_one_batch_are_spread_over_the_wait_in_a_few_groups() -> None:
    schedule = Schedule(Retry(initial_s=8, cap_s=60), random.Random(1).random)
    assert not len(schedule.count_failures(columns(list(range(1000))), now=100.0))
    due = times_of(schedule)
    assert sorted(record for records in due.values() for record in records) == list(range(1000))
    assert [len(records) for records in due.values()] == [250] * 4
    assert max(due) - min(due) > 4
    assert min(due) >= 100
    assert max(due) < 108


def test_a_few_failures_of_one_batch_are_tried_again_together() -> None:
    schedule = Schedule(Retry(initial_s=8, cap_s=60), random.Random(1).random)
    schedule.count_failures(columns(list(range(2 * GROUP_MIN - 1))), now=100.0)
    assert [len(records) for records in times_of(schedule).values()] == [2 * GROUP_MIN - 1]


def test_a_large_failed_batch_is_spread_over_a_few_groups_too() -> None:
    schedule = Schedule(Retry(initial_s=8, cap_s=60), random.Random(1).random)
    schedule.interrupt(columns(list(range(1_000_000))), now=100.0)
    assert len(times_of(schedule)) == GROUPS_MAX


@given(st.lists(st.one_of(st.floats(0, 1e9), st.sampled_from([0.0, 1.0, 30.0])), min_size=1, max_size=60))
def test_no_record_is_tried_before_its_decided_delay_and_none_waits_a_tenth_longer(delays: list[float]) -> None:
    schedule = Schedule(Retry(), draw=lambda: 0.5)
    schedule.count_failures(columns(list(range(len(delays)))), now=0.0, decide=lambda _: np.array(delays))
    groups = times_of(schedule)
    due = {record: at_s for at_s, records in groups.items() for record in records}
    assert sorted(due) == list(range(len(delays)))
    for record, delay_s in enumerate(delays):
        assert delay_s <= due[record] <= max(1.1 * delay_s, 0.001)
    assert len(groups) <= len(set(delays))


def test_a_million_decided_delays_become_few_groups() -> None:
    delays = np.random.default_rng(1).uniform(1, 3600, 1_000_000)
    schedule = Schedule(Retry(), draw=lambda: 0.5)
    schedule.count_failures(columns(list(range(1_000_000))), now=0.0, decide=lambda _: delays)
    assert len(times_of(schedule)) < 100


def test_attempts_are_counted_up_to_a_limit_and_never_begin_anew() -> None:
    schedule, counted = Schedule(Retry(), draw=lambda: 0.5), list[int]()

    def decide(attempts: np.ndarray) -> np.ndarray:
        counted.append(int(attempts[0]))
        return np.zeros(1)

    schedule.count_failures(columns([0]), now=0.0, decide=decide)
    schedule._failed.values[:] = 65_533
    for _ in range(3):
        schedule.count_failures(columns([0]), now=0.0, decide=decide)
    assert counted == [1, 65_534, 65_535, 65_535]
