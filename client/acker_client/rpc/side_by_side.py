"""Side by side: calls to several servers at once.

Each call has its own daemon thread. So a server that does not answer delays neither the other calls nor the end of the
program. Simulations have their own implementation.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, Protocol, TypeVar

from acker_client.backoff import Deadline
from acker_client.errors import Unavailable

Result = TypeVar("Result")


class SideBySide(Protocol):
    """Starts calls that run side by side, and waits for them."""

    def start(self, call: Callable[[], Result]) -> Future[Result]:
        """Start ``call``. The future gets its result or its exception."""
        ...

    def wait(self, calls: Collection[Future[Any]], timeout_s: float) -> None:
        """Wait until one of ``calls`` is done, up to ``timeout_s``."""
        ...


def do_all(side_by_side: SideBySide, calls: Iterable[Callable[[], Result]], deadline: Deadline) -> list[Future[Result]]:
    """Make ``calls``, and wait until all of them are done or the time is up."""
    futures = [side_by_side.start(call) for call in calls]
    wait_for(side_by_side, futures, deadline)
    return futures


def errors_of(calls: Iterable[Future[Any]]) -> list[BaseException]:
    """Return the errors of the calls that failed, and ``Unavailable`` for each call that is not done."""
    errors = (call.exception() if call.done() else Unavailable("no answer yet") for call in calls)
    return [error for error in errors if error is not None]


def wait_for(side_by_side: SideBySide, futures: Collection[Future[Any]], deadline: Deadline) -> None:
    """Wait until all of ``futures`` are done or the time is up."""
    while deadline.left_s and (left := [future for future in futures if not future.done()]):
        side_by_side.wait(left, deadline.left_s)


class Threads:
    """One thread for each call."""

    def start(self, call: Callable[[], Result]) -> Future[Result]:
        future: Future[Result] = Future()

        def run() -> None:
            try:
                result = call()
            except BaseException as error:  # noqa: BLE001  # the future raises it
                future.set_exception(error)
            else:
                future.set_result(result)

        threading.Thread(target=run, name="acker-call", daemon=True).start()
        return future

    def wait(self, calls: Collection[Future[Any]], timeout_s: float) -> None:
        wait(calls, timeout_s, FIRST_COMPLETED)


class InTurn:
    """One call after another in the caller's thread, for simulated time."""

    def start(self, call: Callable[[], Result]) -> Future[Result]:
        future: Future[Result] = Future()
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001  # the future raises it
            future.set_exception(error)
        return future

    def wait(self, calls: Collection[Future[Any]], timeout_s: float) -> None:
        """Return at once, as all started calls are done."""
