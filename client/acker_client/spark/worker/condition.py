"""Condition: a Spark condition that a step evaluates on Arrow, with exactly Spark's meaning. Picklable.

Decides what each function of a condition does with nulls (three-valued logic), NaN (equal to itself, and the greatest
number), zeros (0.0 = -0.0), and the bytes of strings. ``driver.conditions`` decides which of Spark's expressions become
a condition. A property test compares both with Spark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

# Spark's names of types, and the Arrow types of their columns. Not here: decimals, which have parameters.
_TYPES = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "string": pa.string(),
    "binary": pa.binary(),
}
_LARGE = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}


def arrow_type(kind: str) -> Any | None:
    """Return the Arrow type of Spark's type ``kind`` ("long", "decimal(10,2)"); None if no condition takes it."""
    decimal = re.fullmatch(r"decimal\((\d+),(\d+)\)", kind)
    return pa.decimal128(int(decimal[1]), int(decimal[2])) if decimal else _TYPES.get(kind)


class Expression(Protocol):
    """A part of a condition. ``kind``: Spark's name of the type of its values."""

    @property
    def kind(self) -> str: ...

    def values(self, data: pa.RecordBatch) -> Any:
        """Return an Arrow array with the value of each row, or a scalar if all rows have the same value."""
        ...


@dataclass(frozen=True, slots=True)
class Attribute:
    """The values of a column."""

    name: str
    kind: str

    def values(self, data: pa.RecordBatch) -> Any:
        column, expected = data.column(self.name), arrow_type(self.kind)
        return column if _LARGE.get(column.type, column.type) == expected else column.cast(expected)


@dataclass(frozen=True, slots=True)
class Constant:
    """One value for all rows. Dates are days, and timestamps microseconds, since 1970."""

    value: Any
    kind: str

    def values(self, data: pa.RecordBatch) -> Any:
        return pa.scalar(self.value, arrow_type(self.kind))


@dataclass(frozen=True, slots=True)
class Function:
    """A function (of :data:`FUNCTIONS`) of other parts. ``option``: what it takes beside them."""

    name: str
    arguments: tuple[Expression, ...]
    kind: str = "boolean"
    option: Any = None

    def values(self, data: pa.RecordBatch) -> Any:
        arguments = [argument.values(data) for argument in self.arguments]
        function = FUNCTIONS[self.name]
        return function(*arguments) if self.option is None else function(*arguments, self.option)


def rows_where(condition: Expression, data: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    """Return whether the condition is true for each row. It is not true if it is null."""
    values = condition.values(data)
    if isinstance(values, pa.Scalar):
        return np.full(data.num_rows, values.as_py() is True)
    flags: npt.NDArray[np.bool_] = pc.fill_null(values, False).to_numpy(zero_copy_only=False)
    return flags


def _equal_floats(left: Any, right: Any) -> Any:
    return pc.or_kleene(pc.equal(left, right), pc.and_kleene(pc.is_nan(left), pc.is_nan(right)))


def _less_floats(left: Any, right: Any) -> Any:
    above = pc.and_kleene(pc.invert(pc.is_nan(left)), pc.is_nan(right))
    return pc.or_kleene(pc.less(left, right), above)


def _less_equal_floats(left: Any, right: Any) -> Any:
    return pc.or_kleene(_less_floats(left, right), _equal_floats(left, right))


def _is_same(equal: Any, left: Any, right: Any) -> Any:
    """Return Spark's ``<=>``: null equals null."""
    both_null = pc.and_(pc.is_null(left), pc.is_null(right))
    return pc.or_(pc.fill_null(equal, False), both_null)


def _is_in(values: Any, options: tuple[Any, ...]) -> Any:
    known = [option for option in options if option is not None]
    found = pc.is_in(values, value_set=pa.array(known, _LARGE.get(values.type, values.type)).cast(values.type))
    # A value that is not found may still equal the null in the list.
    unknown = pc.is_null(values) if len(known) == len(options) else pc.or_(pc.is_null(values), pc.invert(found))
    return pc.if_else(unknown, pa.scalar(None, pa.bool_()), found)


def _is_like(texts: Any, parts: tuple[str, ...]) -> Any:
    """Whether a text is these parts, with anything between them. Compares bytes, as Spark does."""
    if len(parts) == 1:
        return pc.equal(texts, parts[0])
    if len(parts) == 2 and not parts[1]:
        return pc.starts_with(texts, parts[0])
    if len(parts) == 2 and not parts[0]:
        return pc.ends_with(texts, parts[1])
    if len(parts) == 3 and not parts[0] and not parts[2]:
        return pc.match_substring(texts, parts[1])
    as_bytes = texts.cast(pa.large_binary() if texts.type == pa.large_string() else pa.binary())
    quoted = ("".join(f"\\x{byte:02x}" for byte in part.encode()) for part in parts)
    return pc.match_substring_regex(as_bytes, f"(?s)\\A{'.*'.join(quoted)}\\z")


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "and": pc.and_kleene,
    "or": pc.or_kleene,
    "not": pc.invert,
    "is null": pc.is_null,
    "is not null": pc.is_valid,
    "is nan": lambda values: pc.fill_null(pc.is_nan(values), False),
    "=": pc.equal,
    "<": pc.less,
    "<=": pc.less_equal,
    "<=>": lambda left, right: _is_same(pc.equal(left, right), left, right),
    "= of floats": _equal_floats,
    "< of floats": _less_floats,
    "<= of floats": _less_equal_floats,
    "<=> of floats": lambda left, right: _is_same(_equal_floats(left, right), left, right),
    "in": _is_in,
    "like": _is_like,
    "coalesce": pc.coalesce,
    # Spark trims spaces, and no other white space.
    "trim": lambda texts: pc.ascii_trim(texts, " "),
    # A long becomes the nearest double, as in Spark.
    "cast": lambda values, kind: pc.cast(values, arrow_type(kind), safe=False),
}
