"""Backoff, deadline and patience, in simulated time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from acker_client.backoff import Backoff, Deadline, Patience
from acker_testing import SimulatedTime


@given(st.integers(0, 10**9), st.floats(0, 1, exclude_max=True))
def test_a_wait_is_within_its_cap_however_many_tries(attempt: int, dice: float) -> None:
    backoff = Backoff(0.05, 2.0)
    assert 0 <= backoff.wait_s(attempt, lambda: dice) <= 2.0


@given(st.integers(0, 5))
def test_waits_double_until_the_cap(attempt: int) -> None:
    backoff = Backoff(0.05, 2.0)
    assert backoff.wait_s(attempt, lambda: 1.0) == min(2.0, 0.05 * 2**attempt)


@given(st.floats(0.1, 100), st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=30))
def test_patience_never_outlasts_its_deadline(budget_s: float, dice: list[float]) -> None:
    time = SimulatedTime()
    throws = iter(dice * 10_000)
    patience = Patience(Deadline(budget_s, time.clock), time.sleep, lambda: 0.01 + 0.99 * next(throws))
    while patience.wait():
        assert patience.deadline.left_s > 0
    assert time.clock() <= budget_s


def test_the_server_s_delay_is_waited_at_least() -> None:
    time = SimulatedTime()
    patience = Patience(Deadline(10.0, time.clock), time.sleep, lambda: 0.0)
    assert patience.wait(3.0)
    assert time.clock() == 3.0


def test_a_wait_that_does_not_fit_is_not_waited() -> None:
    time = SimulatedTime()
    patience = Patience(Deadline(2.0, time.clock), time.sleep, lambda: 0.0)
    assert not patience.wait(3.0)
    assert time.clock() == 0.0


def test_progress_makes_the_next_wait_short_again() -> None:
    time = SimulatedTime()
    patience = Patience(Deadline(100.0, time.clock), time.sleep, lambda: 1.0, Backoff(1.0, 64.0))
    for _ in range(3):
        patience.wait()
    assert time.clock() == 1 + 2 + 4
    patience.progressed()
    patience.wait()
    assert time.clock() == 8
