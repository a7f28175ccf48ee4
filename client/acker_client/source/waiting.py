"""Waiting for a system that is away for a while: when a line says so, and how long a call is repeated."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from acker_client.backoff import Backoff, Deadline, Patience
from acker_client.source.errors import SourceError

log = logging.getLogger("acker_client.source")

T = TypeVar("T")

# When a line says that something is awaited: the first time, and the time from there to the next line.
FIRST_REMINDER_S, REMINDER_S = 10.0, 60.0
WAITS = Backoff(first_s=0.2, cap_s=10.0)
# How long a run waits for the store of its checkpoint or dead letters, or for the records of dead letters, before it
# ends. Nothing is lost then.
OUTAGE_S = 300.0


class OutOfReach(SourceError):
    """A system has not answered, or not well. It may answer again later."""


class Reminder:
    """Logs that ``what`` is awaited: after ``first_s`` seconds, and from then on once a minute."""

    def __init__(
        self, what: str, first_s: float = FIRST_REMINDER_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._what, self._clock, self._first_s = what, clock, first_s
        self.restart()

    def restart(self) -> None:
        """Count from now on."""
        self._since_s = self._clock()
        self._due_s = self._since_s + self._first_s

    def remind(self, trouble: str = "") -> None:
        """Log a line if it is due. ``trouble``: the last error."""
        now_s = self._clock()
        if now_s >= self._due_s:
            self._due_s = now_s + REMINDER_S
            why = f" (last seen: {trouble})" if trouble else ""
            log.warning("waiting for %s, for %.0f s so far%s", self._what, now_s - self._since_s, why)


class Outage:
    """Logs when ``what`` stops answering, once a minute until it answers, and when it answers again."""

    def __init__(self, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._what = what
        self._reminder = Reminder(what, REMINDER_S, clock)
        self._why = ""

    def note(self, why: str) -> None:
        """Note that it does not answer (``why``), or that it does ("")."""
        if why and not self._why:
            log.warning("%s; waiting for it", why)
            self._reminder.restart()
        elif why:
            self._reminder.remind(why)
        elif self._why:
            log.info("%s answers again", self._what.partition(" at ")[0])
        self._why = why


def outlast(
    call: Callable[[], T],
    what: str,
    limit_s: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    draw: Callable[[], float] = random.random,
) -> T:
    """Return the result of ``call``. Repeats it, with growing waits, while it raises :class:`OutOfReach`.

    Raises the last ``OutOfReach`` once ``limit_s`` seconds have passed. ``what``: what is awaited, for the log.
    """
    patience, reminder = Patience(Deadline(limit_s, clock), sleep, draw, WAITS), Reminder(what, clock=clock)
    while True:
        try:
            return call()
        except OutOfReach as error:
            if not patience.wait():
                raise
            reminder.remind(str(error))


def outlast_each(
    make: Callable[[], Iterator[T]],
    what: str,
    limit_s: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    draw: Callable[[], float] = random.random,
) -> Iterator[T]:
    """Yield what ``make()`` yields. After an :class:`OutOfReach`, calls ``make`` again and skips what was yielded.

    Raises the last ``OutOfReach`` once ``limit_s`` seconds have passed without anything new.
    """

    def patience_from_now() -> Patience:
        return Patience(Deadline(limit_s, clock), sleep, draw, WAITS)

    taken, patience, reminder = 0, patience_from_now(), Reminder(what, clock=clock)
    while True:
        try:
            for index, each in enumerate(make()):
                if index >= taken:
                    yield each
                    taken, patience = index + 1, patience_from_now()
                    reminder.restart()
        except OutOfReach as error:
            if not patience.wait():
                raise
            reminder.remind(str(error))
        else:
            return
