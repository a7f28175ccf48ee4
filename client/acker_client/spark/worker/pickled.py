"""Pickled: a user's function as it is when the user applies it to a frame.

A frame is planned later, and a function is pickled once more for each step that joins its chain. Without this, a lambda
in a loop would see the loop's last values, and not the values that it would see in Spark's own ``mapInArrow``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark import SparkContext
from pyspark.serializers import CloudPickleSerializer

# PySpark gives its methods no types.
_serializer: Any = CloudPickleSerializer


@dataclass(frozen=True, slots=True)
class Pickled:
    """A pickled function. In a task it is the function itself. ``broadcasts``: Spark's broadcast variables in it."""

    content: bytes
    broadcasts: tuple[Any, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        # Spark sends a task the broadcast variables that are pickled while it plans.
        return _unpickled, (self.content, self.broadcasts)


def pickled(function: Callable[..., Any], context: SparkContext) -> Any:
    """Return ``function`` as it is now, for a step of a chain. Raises ``pickle.PicklingError``."""
    known: Any = context._pickled_broadcast_vars
    try:
        content = _serializer().dumps(function)
        return Pickled(content, tuple(known))
    finally:
        known.clear()


def _unpickled(content: bytes, broadcasts: tuple[Any, ...]) -> Any:
    return _serializer().loads(content)
