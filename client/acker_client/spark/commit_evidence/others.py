"""Others: frames and RDDs that hold a sink's rows, but do not derive from the sink's frame. Examples are
`other.join(rows)`, a view, SQL, and `other.union(rows.rdd)`.

While a sink runs, such a frame is followed from the moment that its rows are taken out. The frame's plan shows whose
rows it holds. An RDD has no plan: it is followed if it was made from an RDD that is followed. So is a frame that any
session makes from such an RDD, and all sessions watch their ``statements``: PySpark wraps one session in many objects.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import getattr_static
from itertools import starmap
from typing import Any

from pyspark import RDD, SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame

from acker_client.spark.commit_evidence.following import FollowedFrame, analyzed, follow, follow_rows
from acker_client.spark.commit_evidence.statements import watching
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
    """While the block runs, follow every frame that holds rows of ``trail``, and watch all statements over them."""
    with _lock:
        if not _trails:
            _patches.extend(_PatchedAttribute(ClassicFrame, name) for name in _TAKES)
            _patches.extend(starmap(_Union, _UNIONS))
            _patches.extend(starmap(_SessionMethod, (("sql", _watching_sql), ("createDataFrame", _following_frames))))
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


class _SessionMethod(_PatchedAttribute):
    """Replaces a method of all sessions. If other code has replaced the method of one session, the replacement is
    wrapped while a sink runs, and stays in place. ``wrapped`` takes a session and its method, and returns the method to
    call."""

    def __init__(self, name: str, wrapped: Callable[[SparkSession, Callable[..., Any]], Callable[..., Any]]) -> None:
        super().__init__(SparkSession, name)
        self._wrapped = wrapped

    def __get__(self, session: Any, kind: type | None = None) -> Any:
        own = None if session is None else vars(session).get(self._name)
        method = own or self._before.__get__(session, kind)
        return method if session is None else self._wrapped(session, method)

    # With this method and the next one, Python prefers this object to a session's own attribute.
    def __set__(self, session: Any, method: Any) -> None:
        vars(session)[self._name] = method

    def __delete__(self, session: Any) -> None:
        del vars(session)[self._name]


def _watching_sql(session: SparkSession, sql: Callable[..., Any]) -> Callable[..., Any]:
    return watching(session, sql, _running)


def _following_frames(_: SparkSession, create: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(create)
    def run(*args: Any, **kwargs: Any) -> Any:
        return follow_rows(create(*args, **kwargs), [args[0] if args else kwargs.get("data")], "createDataFrame")

    return run


def _running() -> list[Trail]:
    """Return the trails of the sinks that run now."""
    with _lock:
        return list(_trails)


def _trail_of(frame: ClassicFrame) -> Trail | None:
    trails = _running()
    plan = analyzed(frame) if trails else ""
    return next((trail for trail in trails if trail.witness.places.are_in(plan)), None)
