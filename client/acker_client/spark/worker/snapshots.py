"""Snapshots: copies of what a user's function gives, made before the function can change it.

Decides which objects are copied. A function may fill one dict or list again for each row. Rows are converted many at a
time, and would all get the content of the last one. Objects of types that Spark's rows do not hold are not copied.
"""

from __future__ import annotations

import array
import datetime
import decimal
from collections.abc import Callable
from types import NoneType
from typing import Any

import numpy as np
from pyspark.sql import Row
from pyspark.sql.types import ArrayType, BinaryType, MapType, StructType

# Types of values that nobody can change.
FIXED: frozenset[type] = frozenset(
    (
        NoneType,
        bool,
        int,
        float,
        str,
        bytes,
        decimal.Decimal,
        datetime.date,
        datetime.datetime,
        datetime.timedelta,
        np.int64,
        np.float64,
    )
)


def copying(schema: StructType) -> tuple[frozenset[type], Callable[[Any], Any]]:
    """Return the types of rows that need no copy, and the function that copies any other row of ``schema``.

    Values are copied only if a column may hold lists or the like.
    """
    if any(isinstance(field.dataType, (ArrayType, MapType, StructType, BinaryType)) for field in schema.fields):
        return FIXED, snapshot
    return FIXED | {tuple, Row}, _copied_dict


def _copied_dict(row: Any) -> Any:
    return dict(row) if isinstance(row, dict) else row


def snapshot(value: Any) -> Any:
    """Return a row or a value from user code, with copies of the lists, dicts, arrays and bytearrays in it."""
    if type(value) in FIXED:
        return value
    if isinstance(value, (list, tuple)):
        # At the speed of C for the usual list of numbers or texts.
        if FIXED.issuperset(map(type, value)):
            return value.copy() if isinstance(value, list) else value
        made = map(snapshot, value)
        return list(made) if isinstance(value, list) else _tuple_like(value, tuple(made))
    if isinstance(value, dict):
        is_flat = FIXED.issuperset(map(type, value.values()))
        return dict(value) if is_flat else {key: snapshot(item) for key, item in value.items()}
    if isinstance(value, (np.ndarray, array.array)):
        return value.__copy__()
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    return _object_like(value) if hasattr(value, "__dict__") and not hasattr(value, "__UDT__") else value


def _object_like(value: Any) -> Any:
    """Return an object with copies of the attributes of ``value``, such as a dataclass, which Spark takes for a
    struct. Objects that refuse to be made or filled this way stay as they are."""
    try:
        made = object.__new__(type(value))
        vars(made).update({name: snapshot(item) for name, item in vars(value).items()})
    except TypeError:
        return value
    return made


def _tuple_like(value: Any, items: tuple[Any, ...]) -> Any:
    """Return ``items`` as a tuple of the type of ``value``: a Row with the same names, or a namedtuple."""
    made = tuple.__new__(type(value), items)
    if hasattr(value, "__dict__"):
        # A Row has its names there.
        vars(made).update(vars(value))
    return made
