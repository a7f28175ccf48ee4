"""Threads: replaces ``threading``, ``queue`` and ``secrets`` for the code under simulation.

A thread that wants a held lock waits, as with a real lock. Each wait is counted, because a client that holds a lock
during a call blocks its other threads for as long as the network takes.
"""

from __future__ import annotations

import queue
import random
import secrets
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.simulation.scheduler import Process, Scheduler, Signal

# Modules with these prefixes get the replacements while a simulation runs.
PREFIXES = ("acker_client.", "acker_service.shared_shard", "acker_service.process.logs")


class GreenLock:
    """``threading.Lock`` for greenlets."""

    def __init__(self, scheduler: Scheduler, threads: GreenThreading) -> None:
        self._scheduler = scheduler
        self._threads = threads
        self._is_locked = False
        self._holder: Process | None = None
        self._waiting: deque[Signal] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._is_locked and not blocking:
            return False
        while self._is_locked:
            self._threads.held_up += 1
            freed = Signal(self._scheduler, f"a lock that {self._holder} has")
            self._waiting.append(freed)
            if not freed.wait(None if timeout < 0 else timeout):
                return False
        self._is_locked, self._holder = True, self._scheduler.current
        return True

    def release(self) -> None:
        self._is_locked, self._holder = False, None
        if self._waiting:
            self._waiting.popleft().set()

    def locked(self) -> bool:
        return self._is_locked

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class GreenEvent:
    """``threading.Event`` for greenlets."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._signal = Signal(scheduler, "an event")

    def is_set(self) -> bool:
        return self._signal.is_set

    def set(self) -> None:
        self._signal.set()

    def clear(self) -> None:
        if self._signal.is_set:
            self._signal = Signal(self._scheduler, "an event")

    def wait(self, timeout: float | None = None) -> bool:
        return self._signal.wait(timeout)


class GreenThread:
    """``threading.Thread`` as a greenlet of the process that starts it."""

    def __init__(
        self,
        scheduler: Scheduler,
        target: Callable[..., object],
        name: str = "",
        args: Iterable[Any] = (),
        daemon: bool | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._target = target
        self._args = tuple(args)
        self.name = name
        self.daemon = daemon
        self._ended = Signal(scheduler, f"thread {name} to end")

    def start(self) -> None:
        caller = self._scheduler.current
        self._scheduler.spawn(caller.owner if caller else "", self.name, self._run)

    def join(self, timeout: float | None = None) -> None:
        self._ended.wait(timeout)

    def is_alive(self) -> bool:
        return not self._ended.is_set

    def _run(self) -> None:
        try:
            self._target(*self._args)
        finally:
            self._ended.set()


class GreenThreading:
    """The part of ``threading`` that the code under simulation uses. ``held_up``: how often a thread had to wait for a
    lock."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.held_up = 0

    def Lock(self) -> GreenLock:  # noqa: N802  # as in threading
        return GreenLock(self._scheduler, self)

    def Event(self) -> GreenEvent:  # noqa: N802
        return GreenEvent(self._scheduler)

    def Thread(self, **options: Any) -> GreenThread:  # noqa: N802
        return GreenThread(self._scheduler, **options)


class GreenQueue:
    """``queue.SimpleQueue`` for greenlets."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._items: deque[Any] = deque()
        self._came = Signal(scheduler, "something in a queue")

    def put(self, item: Any) -> None:
        self._items.append(item)
        came, self._came = self._came, Signal(self._scheduler, "something in a queue")
        came.set()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        until = None if timeout is None else self._scheduler.now + timeout
        while not self._items:
            left = None if until is None else until - self._scheduler.now
            if not block or (left is not None and left <= 0):
                raise queue.Empty
            self._came.wait(left)
        return self._items.popleft()

    def get_nowait(self) -> Any:
        return self.get(block=False)


class GreenQueues:
    """The part of ``queue`` that the code under simulation uses."""

    Empty = queue.Empty

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def SimpleQueue(self) -> GreenQueue:  # noqa: N802
        return GreenQueue(self._scheduler)


class DrawnSecrets:
    """The part of ``secrets`` that the code under simulation uses. Draws its numbers from ``dice``."""

    def __init__(self, dice: random.Random) -> None:
        self.randbits = dice.getrandbits
        self.randbelow = dice.randrange


@contextmanager
def replaced(scheduler: Scheduler, dice: random.Random) -> Iterator[GreenThreading]:
    """Replace threads, queues and secrets in the modules under simulation."""
    threads = GreenThreading(scheduler)
    ours = {"threading": threads, "queue": GreenQueues(scheduler), "secrets": DrawnSecrets(dice)}
    places = _places(len(sys.modules))
    for module, name in places:
        setattr(module, name, ours[name])
    try:
        yield threads
    finally:
        for module, name in places:
            setattr(module, name, _REAL[name])


_REAL = {"threading": threading, "queue": queue, "secrets": secrets}
_KNOWN: dict[int, list[tuple[Any, str]]] = {}


def _places(loaded: int) -> list[tuple[Any, str]]:
    """Return (module, name) of each import of a replaced module. ``loaded``: the number of loaded modules; the search
    is repeated only when it changes."""
    if loaded not in _KNOWN:
        _KNOWN.clear()
        _KNOWN[loaded] = [
            (module, name)
            for path, module in sorted(sys.modules.items())
            if path.startswith(PREFIXES)
            for name, real in _REAL.items()
            if getattr(module, name, None) is real
        ]
    return _KNOWN[loaded]
