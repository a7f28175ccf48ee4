"""Scheduler: keeps virtual time, and decides which ready process continues next.

Blocking code runs unchanged in greenlets, one at a time, and yields where it would wait. Events of the same time come
in an order drawn from the seed. Nothing here uses a real clock or the system's randomness.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import Any, TypeVar

from greenlet import GreenletExit, getcurrent, greenlet

T = TypeVar("T")
Action = Callable[[], object]


class Stuck(Exception):
    """No process can continue, and the run is not over."""


class Endless(Exception):
    """The run takes longer than any run should."""


class Process:
    """A thread of a simulated process. ``owner``: the name of that process, like 'driver' or 'executor 2'."""

    __slots__ = ("greenlet", "is_killed", "name", "owner", "turn", "waits_for")

    def __init__(self, owner: str, name: str) -> None:
        self.owner = owner
        self.name = name
        self.turn = 0
        self.waits_for = "its start"
        self.is_killed = False
        self.greenlet: greenlet

    def __str__(self) -> str:
        return f"{self.owner} ({self.name})" if self.name else self.owner


class Scheduler:
    """Runs events in virtual time. Raises :class:`Endless` beyond ``time_max`` (virtual seconds) or ``events_max``."""

    def __init__(self, seed: int, *, time_max: float = 20_000.0, events_max: int = 400_000) -> None:
        self.now = 0.0
        self.events = 0
        self._time_max, self._events_max = time_max, events_max
        self._draw = random.Random(f"{seed} order").random
        self._queue: list[tuple[float, float, int, str, bool, Action]] = []
        self._busy = 0
        self._numbers = 0
        self._frozen: dict[str, float] = {}
        self._processes: dict[greenlet, Process] = {}
        self._hub = getcurrent()

    @property
    def is_idle(self) -> bool:
        """Whether only events are left that no process waits for."""
        return not self._busy

    def clock(self) -> float:
        """Return the virtual time in seconds."""
        return self.now

    def sleep(self, seconds: float) -> None:
        self.park("time to pass", max(0.0, seconds))

    # -- events

    def at(self, when: float, action: Action, owner: str = "", *, idles: bool = False) -> None:
        """Call ``action`` at time ``when``, outside of any process. The call waits while ``owner`` is frozen.
        ``idles``: no process can be waiting for it."""
        self._numbers += 1
        self._busy += not idles
        heapq.heappush(self._queue, (max(when, self.now), self._draw(), self._numbers, owner, idles, action))

    def after(self, seconds: float, action: Action, owner: str = "", *, idles: bool = False) -> None:
        """Like :meth:`at`, this many seconds from now."""
        self.at(self.now + seconds, action, owner, idles=idles)

    def run(self, is_over: Callable[[], bool]) -> None:
        """Run events until ``is_over``. Raises what a process raised."""
        self._hub = getcurrent()
        while not is_over():
            if not self._busy:
                raise Stuck("no process can continue: " + "; ".join(self._waiting()))
            when, _, _, owner, idles, action = heapq.heappop(self._queue)
            self._busy -= not idles
            thaws = self._frozen.get(owner, 0.0)
            if thaws > when:
                self.at(thaws, action, owner, idles=idles)
                continue
            self.now = max(self.now, when)
            self.events += 1
            if self.now > self._time_max or self.events > self._events_max:
                raise Endless(f"no end after {self.events} events: " + "; ".join(self._waiting()))
            action()

    # -- processes

    @property
    def current(self) -> Process | None:
        """The running process; None during an action of :meth:`at`."""
        return self._processes.get(getcurrent())

    def spawn(self, owner: str, name: str, call: Callable[[], object]) -> Process:
        """Start a thread of ``owner`` at the current virtual time, when its turn comes."""
        process = Process(owner, name)

        def body() -> None:
            try:
                call()
            except GreenletExit:
                pass
            finally:
                del self._processes[process.greenlet]

        process.greenlet = greenlet(body)
        self._processes[process.greenlet] = process
        self._resume_later(process, True)
        return process

    def kill(self, owner: str) -> None:
        """End every thread of ``owner`` where it is. Its ``finally`` blocks run up to their first wait."""
        for process in [process for process in self._processes.values() if process.owner == owner]:
            self.end(process)

    def end(self, process: Process) -> None:
        """End one thread like :meth:`kill`."""
        if process.greenlet.dead or process.greenlet is getcurrent():
            return
        process.is_killed = True
        process.turn += 1
        process.greenlet.parent = getcurrent()
        if process.greenlet:
            process.greenlet.throw(GreenletExit)
        else:
            # The thread never started, so there is nothing to unwind.
            self._processes.pop(process.greenlet, None)

    def freeze(self, owner: str, until: float) -> None:
        """Pause ``owner`` until then. Its events wait."""
        self._frozen[owner] = max(until, self._frozen.get(owner, 0.0))

    def is_frozen(self, owner: str) -> bool:
        return self._frozen.get(owner, 0.0) > self.now

    def park(self, waits_for: str, timeout_s: float | None = None) -> bool:
        """Yield until the calling process is woken. False if ``timeout_s`` ends first."""
        process = self.current
        if process is None:
            raise Stuck(f"what is no process waits for {waits_for}")
        if process.is_killed:
            raise GreenletExit
        process.turn += 1
        process.waits_for = waits_for
        if timeout_s is not None:
            self._resume_later(process, False, timeout_s)
        return bool(self._hub.switch())

    def wake(self, process: Process, turn: int) -> None:
        """Wake a process that has been parked since its ``turn``. Does nothing if it has continued already."""
        if process.turn == turn:
            self._resume_later(process, True)

    def _resume_later(self, process: Process, woken: bool, seconds: float = 0.0) -> None:
        turn = process.turn

        def resume() -> None:
            if process.turn != turn or process.is_killed:
                return
            process.turn += 1
            process.greenlet.parent = self._hub
            process.greenlet.switch(woken) if process.greenlet else process.greenlet.switch()

        self.after(seconds, resume, process.owner)

    def _waiting(self) -> list[str]:
        return [f"{process} waits for {process.waits_for}" for process in self._processes.values()]


class Signal:
    """An event that happens once, and that any number of processes may wait for."""

    __slots__ = ("_scheduler", "_waiting", "is_set", "what")

    def __init__(self, scheduler: Scheduler, what: str) -> None:
        self._scheduler = scheduler
        self._waiting: list[tuple[Process, int]] = []
        self.what = what
        self.is_set = False

    def set(self) -> None:
        self.is_set = True
        waiting, self._waiting = self._waiting, []
        for process, turn in waiting:
            self._scheduler.wake(process, turn)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the event. Return whether it has happened."""
        process = self._scheduler.current
        if not self.is_set and process is not None:
            # `park` increments the turn.
            self._waiting.append((process, process.turn + 1))
            self._scheduler.park(self.what, timeout_s)
        return self.is_set


class GreenSideBySide:
    """The client's port for concurrent calls, in greenlets instead of threads."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def start(self, call: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        caller = self._scheduler.current

        def body() -> None:
            try:
                result = call()
            except GreenletExit:
                raise
            except BaseException as error:  # noqa: BLE001  # the caller gets it
                future.set_exception(error)
            else:
                future.set_result(result)

        self._scheduler.spawn(caller.owner if caller else "", "a call beside others", body)
        return future

    def wait(self, calls: Collection[Future[Any]], timeout_s: float) -> None:
        """Wait until one of ``calls`` is done, or the time is over."""
        if any(call.done() for call in calls):
            return
        signal = Signal(self._scheduler, f"one of {len(calls)} calls")
        for call in calls:
            call.add_done_callback(lambda _: signal.set())
        signal.wait(timeout_s)
