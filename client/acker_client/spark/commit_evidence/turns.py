"""Turns: lets only one sink at a time write into a place.

Spark's writers of files share a folder `_temporary` below the folder that they write into, and each write removes it at
its end. A write that is still running then loses files, and Spark reports success for both. Decides which writes go
into the same place, by the text of the path or table that the user gives. If two texts name the same folder, their
writes may overlap. ``actions`` detects that afterwards.
"""

from __future__ import annotations

import logging
import os.path
import re
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

log = logging.getLogger("acker.spark")

# Time between two lines of the log about a write that waits.
LINE_S = 60.0

_LOCAL = re.compile(r"^file:/*")
_TABLE = re.compile(r"\b(?:into|overwrite)\s+(?:table\s+)?([\w.`]+)", re.IGNORECASE)

_changed = threading.Condition()
# The thread that writes into each place now.
_taken: dict[str, int] = {}


@dataclass(slots=True)
class TurnWait:
    """From when to when a write waited for its turn, by ``time.monotonic``. ``ended_s``: infinite while it lasts."""

    began_s: float
    ended_s: float = float("inf")


def waited_s(waits: Iterable[TurnWait]) -> float:
    """Return the seconds during which at least one of these ``waits`` lasted, up to now."""
    now, total_s, until_s = time.monotonic(), 0.0, 0.0
    for wait in sorted(waits, key=lambda wait: wait.began_s):
        ended_s = min(wait.ended_s, now)
        total_s += max(0.0, ended_s - max(wait.began_s, until_s))
        until_s = max(until_s, ended_s)
    return total_s


@contextmanager
def turn(place: str, waits: list[TurnWait]) -> Iterator[None]:
    """Wait until no other thread writes into ``place``, and keep others out until the block ends. Adds the wait, if
    there is one, to ``waits``. Does nothing for the place "", or if this thread has a turn already: a write within a
    write would wait for itself, or for a thread that waits for this one."""
    thread = threading.get_ident()
    with _changed:
        has_turn = thread in _taken.values()
    if not place or has_turn:
        yield
        return
    with _changed:
        if place in _taken:
            waits.append(wait := TurnWait(time.monotonic()))
            try:
                while not _changed.wait_for(lambda: place not in _taken, LINE_S):
                    log.warning("a write into %s waits for another one, which has not ended for a minute", place)
            finally:
                wait.ended_s = time.monotonic()
        _taken[place] = thread
    try:
        yield
    finally:
        with _changed:
            del _taken[place]
            _changed.notify_all()


def is_any_sink_writing() -> bool:
    """Whether a sink of this driver is writing into any place now."""
    with _changed:
        return bool(_taken)


def folder(path: str) -> str:
    """Return the place of the folder with this ``path``."""
    local = _LOCAL.sub("/", path)
    return local.rstrip("/") if "://" in local else os.path.abspath(local)


def table(name: str) -> str:
    """Return the place of the table with this ``name``."""
    return name.replace("`", "").lower()


def table_of(statement: str) -> str:
    """Return the place that an SQL statement inserts into; "" if it does not insert into a table."""
    found = _TABLE.search(statement)
    return table(found[1]) if found else ""
