"""Ticker: a thread that repeats one thing.

Decides the pace, and that an error in one tick does not end the thread. Does not know what a tick does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from acker_service.process.logs import Log

log = Log("acker.server")


class Ticker:
    """A thread that calls ``tick`` every ``every_s`` seconds, measured from start to start."""

    def __init__(self, name: str, tick: Callable[[], None], every_s: float) -> None:
        self._tick, self._every_s = tick, every_s
        self._stop = threading.Event()
        self._ticked = time.monotonic()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def silent_s(self) -> float:
        return time.monotonic() - self._ticked

    def start(self) -> None:
        self._ticked = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            try:
                self._tick()
                self._ticked = time.monotonic()
            except Exception:
                log.exception("tick_failed")
            due = max(due + self._every_s, time.monotonic())
