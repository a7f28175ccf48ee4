"""The threads that answer calls: shared among connections, and few when the system has no more."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acker_service.ports import StartError
from acker_service.process.workers import Workers
from acker_service.server import Server
from tests.service.caller import Caller, eventually


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function after which no thread can be started."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    return lambda: monkeypatch.setattr(threading.Thread, "start", refuse)


def pool(size: int = 2) -> Workers:
    return Workers("test", size, receive_s=10.0, clock=lambda: 0.0)


def test_a_pool_without_further_threads_answers_with_those_that_it_has(no_threads: Callable[[], None]) -> None:
    workers = pool(8)
    workers.start()
    no_threads()
    tasks = [workers.submit(lambda: "done") for _ in range(100)]
    assert [each.result(20) for each in tasks] == ["done"] * 100
    workers.shutdown()


def test_a_call_without_any_thread_is_answered_once_the_system_has_threads_again(
    no_threads: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = pool()
    no_threads()
    with pytest.raises(RuntimeError, match="the pool test"):
        workers.start()
    waiting = workers.submit(lambda: "done")
    workers.relieve()
    assert (waiting.done(), workers.queued) == (False, 1)
    monkeypatch.undo()
    workers.relieve()
    assert waiting.result(20) == "done"
    workers.shutdown()


class Held:
    """Calls that keep their threads until ``finish`` is set. ``begun``: the connections of those that have one."""

    def __init__(self, size: int) -> None:
        def connection_of(connection: str, *_: object) -> str:
            return connection

        self.workers = Workers(
            "test", size, receive_s=10.0, clock=lambda: 0.0, connection_of=connection_of, is_shared=True
        )
        self.begun: list[str] = []
        self.finish = threading.Event()

    def submit(self, connection: str, *, parked: bool = False) -> Any:
        def work(connection: str) -> None:
            wait = self.workers.parked(connection) if parked else contextlib.nullcontext()
            with wait:
                self.begun.append(connection)
                self.finish.wait(20)

        return self.workers.submit(work, connection)


def test_a_greedy_connection_leaves_threads_to_others() -> None:
    held = Held(12)
    calls = [held.submit("greedy") for _ in range(50)]
    eventually(lambda: len(held.begun) == 6)
    calls += [held.submit("too") for _ in range(50)]
    eventually(lambda: len(held.begun) == 9)
    for other in ("modest", "humble"):
        calls.append(held.submit(other))
        eventually(lambda other=other: other in held.begun)  # type: ignore[misc]
    # What waits, waits because of its own connection.
    assert held.workers.waited_s == 0.0
    held.finish.set()
    assert all(each.result(20) is None for each in calls)
    held.workers.shutdown()


def test_calls_that_are_parked_do_not_count_as_greedy_and_the_last_thread_is_used() -> None:
    held = Held(12)
    calls = [held.submit("driver", parked=True) for _ in range(11)]
    eventually(lambda: len(held.begun) == 11)
    calls.append(held.submit("driver"))
    eventually(lambda: len(held.begun) == 12)
    held.finish.set()
    assert all(each.result(20) is None for each in calls)
    held.workers.shutdown()


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=60), st.integers(1, 6))
def test_every_call_gets_a_thread_whoever_waits_and_parks(calls: list[tuple[str, bool]], size: int) -> None:
    held = Held(size)
    held.finish.set()
    tasks = [held.submit(connection, parked=parked) for connection, parked in calls]
    assert all(each.result(20) is None for each in tasks)
    eventually(lambda: (held.workers._busy, held.workers._at_work) == (0, {}))
    held.workers.shutdown()


def test_a_server_without_threads_keeps_its_state_and_says_what_to_do(
    start_server: Callable[..., Server], no_threads: Callable[[], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    server = start_server(state_dir=str(tmp_path))
    with Caller(server.address) as caller:
        generation = caller.watch().generation
    server.stop()
    no_threads()
    with pytest.raises(StartError, match="ulimit -u"):
        start_server(state_dir=str(tmp_path))
    monkeypatch.undo()
    with Caller(start_server(state_dir=str(tmp_path)).address) as caller:
        assert (caller.watch().generation, caller.watch().is_new) == (generation, False)
