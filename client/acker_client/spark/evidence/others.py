"""Others: frames of a sink's rows that were not made of the frame it was given: another frame that they were joined to,
one that was read from a view of them, one that SQL made.

Decides, while a sink runs, that such a frame is followed from where its rows are first taken. Whose rows it has is in
its plan. Any other frame is as it was.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import getattr_static
from typing import Any

from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame

from acker_client.spark.evidence.following import FollowedFrame, analyzed, follow
from acker_client.spark.evidence.witness import Trail

# Where rows are taken out of a frame, or handed to a function of the user's.
_TAKES = ("write", "groupBy", *(name for name in vars(FollowedFrame) if not name.startswith("_")))

_lock = threading.Lock()
_trails: list[Trail] = []


@contextmanager
def followed_too(trail: Trail) -> Iterator[None]:
    """Meanwhile every frame with the rows of ``trail`` is followed."""
    with _lock:
        if not _trails:
            for name in _TAKES:
                setattr(ClassicFrame, name, _Taking(name))
        _trails.append(trail)
    try:
        yield
    finally:
        with _lock:
            _trails.remove(trail)
            if not _trails:
                for name in _TAKES:
                    vars(ClassicFrame)[name].undo()


class _Taking:
    """In the place of an attribute of PySpark's frames: the same, of the frame that is followed where it has rows of a
    sink that runs."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._own = vars(ClassicFrame).get(name)
        self._before = getattr_static(ClassicFrame, name)

    def __get__(self, frame: Any, kind: type | None = None) -> Any:
        trail = _trail_of(frame) if type(frame) is ClassicFrame else None
        if trail is not None:
            return getattr(follow(frame, trail), self._name)
        return self._before.__get__(frame, kind)

    def undo(self) -> None:
        if self._own is None:
            delattr(ClassicFrame, self._name)
        else:
            setattr(ClassicFrame, self._name, self._own)


def _trail_of(frame: ClassicFrame) -> Trail | None:
    with _lock:
        trails = list(_trails)
    plan = analyzed(frame) if trails else ""
    return next((trail for trail in trails if trail.witness.places.are_in(plan)), None)
