"""Waiting for a system that is away: repeated calls, and what the log says meanwhile. Time is simulated."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acker_client.source.storage.ahead import AHEAD, ahead
from acker_client.source.storage.reach import Reach
from acker_client.source.waiting import OutOfReach, outlast, outlast_each
from acker_testing import SimulatedTime
from tests.source.stores import store_over


def failing(times: int) -> Callable[[], str]:
    """Return a call that is not answered so many times."""
    left = [times]

    def call() -> str:
        left[0] -= 1
        if left[0] >= 0:
            raise OutOfReach(f"away, {left[0]} more")
        return "answer"

    return call


def test_a_call_is_repeated_until_its_limit_and_a_line_says_so_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    time = SimulatedTime()
    assert outlast(failing(40), "the store", 1000.0, clock=time.clock, sleep=time.sleep, draw=lambda: 1.0) == "answer"
    waited_s = time.clock()
    assert waited_s > 300
    lines = [line for line in caplog.messages if line.startswith("waiting for the store, for ")]
    assert waited_s / 60 - 1 <= len(lines) <= waited_s / 60 + 2
    with pytest.raises(OutOfReach, match="away"):
        outlast(failing(1000), "the store", 60.0, clock=time.clock, sleep=time.sleep, draw=lambda: 1.0)
    assert waited_s < time.clock() <= waited_s + 60.0


@given(st.integers(0, 8), st.lists(st.integers(0, 8), max_size=5))
def test_a_series_goes_on_after_each_outage_where_it_was(count: int, breaks: list[int]) -> None:
    time, left = SimulatedTime(), list(breaks)

    def series() -> Iterator[int]:
        for number in range(count):
            if left and number >= left[0]:
                del left[0]
                raise OutOfReach("away")
            yield number

    seen = outlast_each(series, "the store", 60.0, clock=time.clock, sleep=time.sleep, draw=lambda: 1.0)
    assert list(seen) == list(range(count))


def test_a_series_ends_with_the_error_if_nothing_new_comes_in_time() -> None:
    time = SimulatedTime()

    def series() -> Iterator[int]:
        yield 0
        raise OutOfReach("away")

    seen = outlast_each(series, "the store", 60.0, clock=time.clock, sleep=time.sleep, draw=lambda: 1.0)
    assert next(seen) == 0
    with pytest.raises(OutOfReach, match="away"):
        next(seen)
    assert 0 < time.clock() <= 60.0


def test_an_outage_of_a_store_says_when_to_ask_again_and_is_logged_at_its_begin_each_minute_and_at_its_end(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.INFO)
    time = SimulatedTime()
    reach = Reach(store_over(tmp_path), ["*"], time.clock, lambda: 1.0)
    assert reach.may_ask()
    while time.clock() < 130.0:
        reach.note_away(OutOfReach("the store is away"))
        assert not reach.may_ask()
        assert not reach.is_reachable()
        while not reach.may_ask():
            time.sleep(0.1)
    assert reach.is_reachable()  # asks it
    first, *minutes, last = caplog.messages
    assert first == "the store is away; waiting for it"
    assert [line.partition(", for ")[0] for line in minutes] == ["waiting for the local filesystem"] * 2
    assert last == "the local filesystem answers again"


def test_work_ahead_keeps_the_order_and_drops_what_is_not_taken() -> None:
    dropped: list[int] = []

    def work(item: int) -> int:
        if item == 30:
            raise ValueError("no thirty")
        return -item

    assert list(ahead(work, range(25), dropped.append)) == [(item, -item) for item in range(25)]
    taken = ahead(work, range(100), dropped.append)
    assert [next(taken) for _ in range(30)] == [(item, -item) for item in range(30)]
    with pytest.raises(ValueError, match="no thirty"):
        next(taken)
    assert set(dropped) <= {-item for item in range(31, 31 + AHEAD)}
