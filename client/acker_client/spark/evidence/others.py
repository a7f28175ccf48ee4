"""Others: frames that hold a sink's rows but were not derived from the frame it was given: `other.join(rows)`, a view
of the rows, what SQL made of them.

Decides, while a sink runs, that such a frame is followed from the moment its rows are taken. The plan of a frame says
whose rows it has.
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
_TAKES = ("write", "groupBy", "groupby", *(name for name in vars(FollowedFrame) if not name.startswith("_")))

_lock = threading.Lock()
_trails: list[Trail] = []
_takings: list[_Taking] = []


@contextmanager
def followed_too(trail: Trail) -> Iterator[None]:
    """Meanwhile every frame with the rows of ``trail`` is followed."""
    with _lock:
        if not _trails:
            _takings.extend(map(_Taking, _TAKES))
            for taking in _takings:
                taking.do()
        _trails.append(trail)
    try:
        yield
    finally:
        with _lock:
            _trails.remove(trail)
            if not _trails:
                while _takings:
                    _takings.pop().undo()


class _Taking:
    """Stands in for an attribute of PySpark's frames while a sink runs. A frame with that sink's rows is followed
    first; any other one gets the attribute as it was."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._own = vars(ClassicFrame).get(name)
        self._before = getattr_static(ClassicFrame, name)

    def __get__(self, frame: Any, kind: type | None = None) -> Any:
        trail = _trail_of(frame) if type(frame) is ClassicFrame else None
        if trail is not None:
            return getattr(follow(frame, trail), self._name)
        return self._before.__get__(frame, kind)

    def do(self) -> None:
        setattr(ClassicFrame, self._name, self)

    def undo(self) -> None:
        if vars(ClassicFrame).get(self._name) is not self:
            # Somebody else has put another in its place meanwhile, which calls this one.
            return
        if self._own is None:
            delattr(ClassicFrame, self._name)
        else:
            setattr(ClassicFrame, self._name, self._own)


def _trail_of(frame: ClassicFrame) -> Trail | None:
    with _lock:
        trails = list(_trails)
    plan = analyzed(frame) if trails else ""
    return next((trail for trail in trails if trail.witness.places.are_in(plan)), None)
