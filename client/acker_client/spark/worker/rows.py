"""Rows: converts between Arrow batches and the Python rows that a row operator takes and returns.

Decides what a row looks like to user code (a ``pyspark.sql.Row``, quick to make and to read), what user code may return
(rows as tuples, Rows, dicts, or the bare value if there is one column), and how that is checked against the declared
schema. Knows nothing about anchors.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import Row
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    CharType,
    DataType,
    DateType,
    FractionalType,
    IntegralType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    UserDefinedType,
    VarcharType,
)

from acker_client.error_text import safe_text
from acker_client.spark import compat
from acker_client.spark.worker import ddl
from acker_client.spark.worker.python_values import reader_of, row_maker
from acker_client.spark.worker.snapshots import copying

Child = tuple[Any, ...]

# The Python types that are accepted for a declared type. Arrow alone would cut 2.5 to 2, read True as 1.0 and a
# datetime as its day, and accept bytes as text.
_ACCEPTED: dict[type[DataType], tuple[type, ...]] = {
    IntegralType: (int, np.integer),
    FractionalType: (float, int, np.floating, np.integer, decimal.Decimal),
    StringType: (str,),
    BinaryType: (bytes, bytearray, memoryview),
    DateType: (datetime.date,),
}
_NARROWER = (bool, datetime.datetime)

# Types of a single row that are iterable.
_SINGLE = (tuple, dict, str, bytes, bytearray)


class Mismatch(TypeError):
    """A value from user code does not fit the declared schema. The message names the field and the value."""


def struct_type(schema: str | StructType) -> StructType:
    """Return a schema, as users write it (DDL or a StructType), as a StructType with strings for ``char(n)`` and
    ``varchar(n)``.

    Spark reads DDL; without a session, :mod:`ddl` reads what it can. Raises ValueError with the reason for a text that
    cannot be read.
    """
    fields = schema if isinstance(schema, DataType) else _parsed(schema)
    if not isinstance(fields, StructType):
        raise ValueError(f"the schema {schema!r} is a type, not columns; {ddl.EXAMPLE}")
    made: StructType = _without_sizes(fields)
    return made


def checked_schema(schema: Any, subject: str, example: str) -> StructType | None:
    """Return the schema that ``subject`` is declared with; None if only a session can read it, and there is no session.

    ``subject``: the decorator, for errors; ``example``: how to write it with a schema. Raises TypeError or ValueError
    for anything but a schema.
    """
    if callable(schema) and not isinstance(schema, (str, DataType)):
        raise TypeError(f"{subject} needs the schema of what it makes: write {example} above the function")
    if not isinstance(schema, (str, StructType)):
        raise TypeError(f"{subject}: the schema is a {type(schema).__name__}; give a StructType, or {ddl.EXAMPLE}")
    try:
        if has_session() or isinstance(schema, StructType):
            return struct_type(schema)
        return ddl.parse(schema)
    except ValueError as error:
        raise ValueError(f"{subject}: {error}") from None


def has_session() -> bool:
    """Whether there is a Spark session to read DDL."""
    return SparkContext._active_spark_context is not None


def _parsed(schema: Any) -> DataType:
    if not isinstance(schema, str):
        raise TypeError(f"the schema is a {type(schema).__name__}; give a StructType, or {ddl.EXAMPLE}")
    if has_session():
        try:
            return StructType.fromDDL(schema)
        except PySparkException as error:
            reason = " ".join(str(error).strip().splitlines()[:1])
            raise ValueError(f"the schema {schema!r} cannot be read: {reason}; {ddl.EXAMPLE}") from None
    fields = ddl.parse(schema)
    if fields is None:
        raise ValueError(f"reading the schema {schema!r} needs a SparkSession: build one first, or give a StructType")
    return fields


def _without_sizes(kind: Any) -> Any:
    """Return a type with strings for ``char(n)`` and ``varchar(n)``, which only tables have."""
    if isinstance(kind, StructType):
        return StructType(
            [StructField(field.name, _without_sizes(field.dataType), field.nullable, field.metadata) for field in kind]
        )
    if isinstance(kind, ArrayType):
        return ArrayType(_without_sizes(kind.elementType), kind.containsNull)
    if isinstance(kind, MapType):
        return MapType(_without_sizes(kind.keyType), _without_sizes(kind.valueType), kind.valueContainsNull)
    return StringType() if isinstance(kind, (CharType, VarcharType)) else kind


def arrow_schema(schema: StructType, *, large: bool = False) -> pa.Schema:
    """Return the Arrow schema that Spark expects from a step with this schema. ``large``: strings and bytes with 64-bit
    offsets, as for ``spark.sql.execution.arrow.useLargeVarTypes``."""
    return compat.arrow_schema(schema, large=large)


@dataclass(frozen=True, slots=True)
class UnreadableRow:
    """Stands for a row that Python cannot read, such as one with a text that is not UTF-8. ``error`` says why."""

    error: Exception


class RowReader:
    """Makes Rows from the columns of a batch. Not picklable; made in the task."""

    def __init__(self, schema: StructType) -> None:
        self._readers = [reader_of(field.dataType) for field in schema.fields]
        self._make = row_maker(schema.names)

    def rows(self, batch: pa.RecordBatch) -> list[Row]:
        """Return one Row for each row of ``batch``, whose columns are in the order of the schema."""
        if not batch.num_columns:
            return [self._make(()) for _ in range(batch.num_rows)]
        columns = [read(column) for read, column in zip(self._readers, batch.columns, strict=True)]
        return list(map(self._make, zip(*columns, strict=True)))

    def readable_rows(self, batch: pa.RecordBatch) -> list[Row | UnreadableRow]:
        """Return what :meth:`rows` returns, with an :class:`UnreadableRow` for each row that cannot be read."""
        try:
            return list(self.rows(batch))
        except Exception as error:  # noqa: BLE001  # Arrow and Spark's converters raise several types of errors
            if batch.num_rows == 1:
                return [UnreadableRow(error)]
        half = batch.num_rows // 2
        return [*self.readable_rows(batch.slice(0, half)), *self.readable_rows(batch.slice(half))]


class RowWriter:
    """Makes Arrow columns from the results of a row operator. Not picklable; made in the task.

    ``fixed``: the types of rows that need no copy before the user's function goes on. ``copy`` copies any other row.
    """

    def __init__(self, schema: StructType) -> None:
        self.fixed, self.copy = copying(schema)
        self._schema = schema
        self._width = len(schema.fields)
        self._types = arrow_schema(schema).types
        self._converters = [_to_arrow(field.dataType) for field in schema.fields]

    def returned_rows(self, given: Any) -> list[Any]:
        """Return the result of a call as a list of copies. Runs a generator to its end. Raises :class:`Mismatch`."""
        return [self.copy(row) for row in self.rows_in(given)]

    def rows_in(self, given: Any) -> Iterable[Any]:
        """Return the rows in the result of a call: None, one row, or any iterable of rows.

        Raises :class:`Mismatch` for a frame or table, because Python would iterate over its columns.
        """
        if type(given) is list:
            return given
        if given is None:
            return []
        if isinstance(given, _SINGLE):
            return [given]
        if hasattr(given, "columns") and hasattr(given, "shape"):
            raise Mismatch(
                f"give rows of ({self._ddl}), got a {type(given).__name__}: a function that returns frames is a"
                " @pandas_operator, one that returns tables an @arrow_operator"
            )
        return given if isinstance(given, Iterable) else [given]

    def columns(self, children: list[Any]) -> list[Any]:
        """Return ``children`` (tuples, Rows, dicts, or bare values if there is one column) as Arrow arrays.

        A Row with the schema's names in another order is read by name, any other Row by position. Raises
        :class:`Mismatch`, or Arrow's own errors; see :meth:`check`.
        """
        kinds = set(map(type, children))
        if self._width == 1 and not any(issubclass(kind, (tuple, dict)) for kind in kinds):
            return [self._column(0, children, kinds)]
        columns = _transposed(children) if kinds == {tuple} else None
        if columns is None or len(columns) != self._width:
            columns = list(zip(*self.tuples(children), strict=True)) if children else [()] * self._width
        return [self._column(index, values) for index, values in enumerate(columns)]

    def tuples(self, children: list[Any]) -> list[Child]:
        """Return ``children`` as tuples. Raises :class:`Mismatch`."""
        return [self._child(child) for child in children]

    def check(self, children: list[Child]) -> None:
        """Raise :class:`Mismatch` for the first value of ``children`` that does not fit its field."""
        for child in children:
            for index, value in enumerate(child):
                try:
                    self._column(index, [value])
                except Exception as error:  # noqa: BLE001  # Arrow raises several types of errors
                    raise self._mismatch(index, value, error) from None

    def _column(self, index: int, values: Sequence[Any], kinds: set[type] | None = None) -> Any:
        """Return one Arrow array. ``kinds``: the types of ``values``, if they are already known."""
        field, convert = self._schema.fields[index], self._converters[index]
        kinds = kinds or set(map(type, values))
        if not field.nullable and type(None) in kinds:
            raise Mismatch(f"field {field.name!r} is declared not null, got None")
        if convert is not None:
            values = [convert(value) for value in values]
            kinds = set(map(type, values))
        if not all(_is_accepted(kind, field.dataType) for kind in kinds):
            raise TypeError(f"field {field.name!r}")
        return pa.array(values, self._types[index])

    def _child(self, child: Any) -> Child:
        if isinstance(child, dict):
            unknown = child.keys() - set(self._schema.names)
            if unknown:
                raise Mismatch(
                    f"a dict names {sorted(map(str, unknown))}, which the schema ({self._ddl}) does not have"
                )
            return tuple(child.get(name) for name in self._schema.names)
        if not isinstance(child, tuple):
            if self._width == 1:
                return (child,)
            raise Mismatch(f"give a tuple, Row or dict of ({self._ddl}), got {_shown(child)}")
        if len(child) != self._width:
            raise Mismatch(f"give {self._width} values of ({self._ddl}), got {len(child)}: {_shown(child)}")
        names = getattr(child, "__fields__", None)
        if names is not None and names != self._schema.names and sorted(names) == sorted(self._schema.names):
            return tuple(child[names.index(name)] for name in self._schema.names)
        return tuple(child)

    def _mismatch(self, index: int, value: Any, error: Exception) -> Mismatch:
        if isinstance(error, Mismatch):
            return error
        field = self._schema.fields[index]
        return Mismatch(f"field {field.name!r} is {field.dataType.simpleString()}, got {_shown(value)}")

    @property
    def _ddl(self) -> str:
        return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in self._schema.fields)


def _transposed(rows: list[Child]) -> list[Child] | None:
    """Return the columns of some rows; None if the rows differ in length."""
    try:
        return list(zip(*rows, strict=True))
    except ValueError:
        return None


def _is_accepted(kind: type, declared: DataType) -> bool:
    """Whether values of a Python type are accepted for a declared type. Arrow decides for types not listed here."""
    for field, accepted in _ACCEPTED.items():
        if isinstance(declared, field):
            return kind is NoneType or (issubclass(kind, accepted) and not (kind in _NARROWER and kind not in accepted))
    return True


def _without_zone(value: Any) -> Any:
    # Arrow takes the time in UTC and drops the zone, which changes the time of any other zone.
    if isinstance(value, datetime.datetime) and value.utcoffset():
        raise TypeError("a time with a zone")
    return value


def _to_arrow(kind: DataType) -> Callable[[Any], Any] | None:
    if isinstance(kind, TimestampNTZType):
        return _without_zone
    # Spark's converters turn anything into a string. Here strings, numbers and dates have to fit the schema unchanged.
    if not isinstance(
        kind, (StructType, ArrayType, MapType, TimestampType, UserDefinedType)
    ) and kind.typeName() not in (
        "variant",
        "geography",
        "geometry",
    ):
        return None
    return compat.to_arrow(kind)


def _shown(value: Any) -> str:
    text = safe_text(value, repr)
    return f"{text if len(text) <= 80 else text[:77] + '...'} ({type(value).__name__})"
