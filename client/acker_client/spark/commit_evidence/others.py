"""Others: frames and RDDs that hold a sink's rows, but do not derive from the sink's frame. Examples are
`other.join(rows)`, a view, SQL, and `other.union(rows.rdd)`.

While a sink runs, such a frame is followed from the moment that its rows are taken out. The frame's plan shows whose
rows it holds. An RDD has no plan: it is followed if it was made from an RDD that is followed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import getattr_static
from itertools import starmap
from typing import Any

from pyspark import RDD, SparkContext
from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame

from acker_client.spark.commit_evidence.following import FollowedFrame, analyzed, follow, follow_rows
from acker_client.spark.commit_evidence.witness import Trail

# Attributes that take rows out of a frame, or hand them to the user's function.
_TAKES = ("write", "groupBy", "groupby", *(name for name in vars(FollowedFrame) if not name.startswith("_")))
# Methods that make one RDD of several. PySpark builds joins and cogroups from unions.
_UNIONS = ((RDD, "union"), (RDD, "cartesian"), (RDD, "zip"), (SparkContext, "union"))

_lock = threading.Lock()
_trails: list[Trail] = []
_patches: list[_PatchedAttribute] = []


@contextmanager
def followed_too(trail: Trail) -> Iterator[None]:
    """While the block runs, follow every frame that holds rows of ``trail``."""
    with _lock:
        if not _trails:
            _patches.extend([*(_PatchedAttribute(ClassicFrame, name) for name in _TAKES), *starmap(_Union, _UNIONS)])
            for patch in _patches:
                patch.install()
        _trails.append(trail)
    try:
        yield
    finally:
        with _lock:
            _trails.remove(trail)
            if not _trails:
                while _patches:
                    _patches.pop().uninstall()


class _PatchedAttribute:
    """Replaces an attribute of PySpark's frames while a sink runs. For a frame with that sink's rows, it returns the
    attribute of a followed copy. For any other frame, it returns the original attribute."""

    def __init__(self, owner: type, name: str) -> None:
        self._owner = owner
        self._name = name
        self._own = vars(owner).get(name)
        self._before = getattr_static(owner, name)

    def __get__(self, frame: Any, kind: type | None = None) -> Any:
        trail = _trail_of(frame) if type(frame) is ClassicFrame else None
        if trail is not None:
            return getattr(follow(frame, trail), self._name)
        return self._before.__get__(frame, kind)

    def install(self) -> None:
        setattr(self._owner, self._name, self)

    def uninstall(self) -> None:
        if vars(self._owner).get(self._name) is not self:
            # Other code has put its own wrapper in place of this patch, and the wrapper still calls the patch. So leave
            # both.
            return
        if self._own is None:
            delattr(self._owner, self._name)
        else:
            setattr(self._owner, self._name, self._own)


class _Union(_PatchedAttribute):
    """Replaces a method that makes one RDD of several. The new RDD is followed if one of the given RDDs is."""

    def __get__(self, one: Any, kind: type | None = None) -> Any:
        method = self._before.__get__(one, kind)
        if one is None or hasattr(one, "_trail"):
            return method

        @wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            given = [*args, *kwargs.values()] if self._owner is SparkContext else [one, *args, *kwargs.values()]
            return follow_rows(method(*args, **kwargs), given, self._name)

        return call


def _trail_of(frame: ClassicFrame) -> Trail | None:
    with _lock:
        trails = list(_trails)
    plan = analyzed(frame) if trails else ""
    return next((trail for trail in trails if trail.witness.places.are_in(plan)), None)
