"""Connections: which are counted, and which of them are too many, compared with a simple twin."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from acker_service.process.connections import IDLE_S, Connections

MOST = 3


class Twin:
    """Knows of each connection whether it is admitted, its calls under way, and when the last one ended."""

    def __init__(self) -> None:
        self.admitted: dict[int, tuple[int, float]] = {}
        self.others: dict[int, int] = {}

    def begin(self, connection: int, now: float) -> bool:
        self.forget(now)
        if connection in self.admitted or len(self.admitted) < MOST:
            calls, _ = self.admitted.get(connection, (0, now))
            self.admitted[connection] = calls + 1, now
            return True
        self.others[connection] = self.others.get(connection, 0) + 1
        return False

    def end(self, connection: int, was_admitted: bool, now: float) -> None:
        if was_admitted:
            self.admitted[connection] = self.admitted[connection][0] - 1, now
        else:
            self.others[connection] -= 1

    def forget(self, now: float) -> None:
        self.admitted = {
            connection: (calls, since)
            for connection, (calls, since) in self.admitted.items()
            if calls or now - since <= IDLE_S
        }

    def count(self, now: float) -> int:
        self.forget(now)
        return len(set(self.admitted) | {connection for connection, calls in self.others.items() if calls})


@settings(max_examples=300)
# A connection that was too many is admitted while its first call is still under way.
@example([("begin", n) for n in range(4)] + [("end", 0)] * 3 + [("pass", 5), ("begin", 3), ("end", 0)])
@given(st.lists(st.tuples(st.sampled_from(["begin", "begin", "end", "pass"]), st.integers(0, 5)), max_size=60))
def test_connections_are_counted_as_by_the_simple_twin(steps: list[tuple[str, int]]) -> None:
    now = 0.0
    connections, twin = Connections(MOST, lambda: now), Twin()
    under_way: list[tuple[int, bool, ExitStack]] = []
    for step, number in steps:
        if step == "begin":
            call = ExitStack()
            is_admitted = call.enter_context(connections.use(number))
            assert is_admitted == twin.begin(number, now)
            under_way.append((number, is_admitted, call))
        elif step == "end" and under_way:
            connection, was_admitted, call = under_way.pop(number % len(under_way))
            call.close()
            twin.end(connection, was_admitted, now)
        elif step == "pass":
            now += 8.0 * number
        assert connections.count == twin.count(now)


def test_a_connection_that_was_too_many_is_admitted_once_another_has_gone() -> None:
    now = 0.0
    connections = Connections(1, lambda: now)
    with connections.use("first") as is_first, connections.use("second") as is_second:
        assert (is_first, is_second, connections.count) == (True, False, 2)
    with connections.use("second") as is_admitted:
        assert not is_admitted
    now += IDLE_S + 0.1
    with connections.use("second") as is_admitted:
        assert is_admitted
    assert connections.count == 1


def test_a_call_that_raises_ends_too() -> None:
    connections = Connections(1, lambda: 0.0)
    with pytest.raises(ZeroDivisionError), connections.use("first"):
        raise ZeroDivisionError
    assert connections.count == 1
    assert not connections._used
