"""Threads that cannot be started: calls wait for the threads that there are, and nothing hangs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from acker_service.ports import StartError
from acker_service.process.workers import Workers
from acker_service.server import Server
from tests.service.caller import Caller


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
