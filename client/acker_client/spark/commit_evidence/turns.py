"""Turns: writes into one place come one after the other.

Spark's writers of files share a folder `_temporary` below the folder that they write into, and each write removes it at
its end. A write that is still running then loses files, and Spark reports success for both. Decides which writes are
into one place, by the text of the path or table that the user gives. Two texts may name one folder, and then do not
exclude each other. ``actions`` detects such overlapping writes afterwards.
"""

from __future__ import annotations

import logging
import os.path
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

log = logging.getLogger("acker.spark")

# Time between two lines of the log about a write that waits.
LINE_S = 60.0

_LOCAL = re.compile(r"^file:/*")
_TABLE = re.compile(r"\b(?:into|overwrite)\s+(?:table\s+)?([\w.`]+)", re.IGNORECASE)

_changed = threading.Condition()
_taken: set[str] = set()


class Waits:
    """How long the writes of a sink have waited for their turns. Thread-safe."""

    def __init__(self) -> None:
        self._waiting = 0
        self._since_s = self._ended_s = 0.0

    @property
    def total_s(self) -> float:
        """Seconds in which at least one write waited, the current wait among them."""
        with _changed:
            return self._ended_s + (time.monotonic() - self._since_s if self._waiting else 0.0)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count the time of the block. The caller holds the lock at its beginning and its end."""
        self._since_s = self._since_s if self._waiting else time.monotonic()
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._ended_s += time.monotonic() - self._since_s


@contextmanager
def turn(place: str, waits: Waits) -> Iterator[None]:
    """Wait until no other thread writes into ``place``, and keep others out until the block ends. Does nothing for the
    place ""."""
    if not place:
        yield
        return
    with _changed:
        with waits.counted():
            while not _changed.wait_for(lambda: place not in _taken, LINE_S):
                log.warning("a write into %s waits for another one, which has not ended for a minute", place)
        _taken.add(place)
    try:
        yield
    finally:
        with _changed:
            _taken.remove(place)
            _changed.notify_all()


def is_any_taken() -> bool:
    """Whether a write of a sink runs in this driver now."""
    with _changed:
        return bool(_taken)


def folder(path: str) -> str:
    """Return the place that ``path`` names."""
    local = _LOCAL.sub("/", path)
    return local.rstrip("/") if "://" in local else os.path.abspath(local)


def table(name: str) -> str:
    """Return the place that the ``name`` of a table names."""
    return name.replace("`", "").lower()


def table_of(statement: str) -> str:
    """Return the place that an SQL statement inserts into; "" if it does not insert into a table."""
    found = _TABLE.search(statement)
    return table(found[1]) if found else ""
