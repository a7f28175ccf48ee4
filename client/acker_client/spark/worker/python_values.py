"""Python values: turns an Arrow column into the Python objects that a Row holds.

Decides that structs, lists and maps are converted column by column, at any depth, and what a struct becomes: a
``pyspark.sql.Row`` that is quick to make and to read. The values are those of Spark's own converters, which work value
by value; ``compat`` has them for all other types.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StructType

from acker_client.spark import compat

# Returns the values of an Arrow array.
Read = Callable[[Any], list[Any]]


def reader_of(kind: DataType) -> Read:
    """Return the function that reads columns of a Spark type. Make it once: it makes the classes of Rows."""
    if isinstance(kind, StructType):
        return _structs(kind)
    if isinstance(kind, ArrayType):
        return _lists(kind)
    if isinstance(kind, MapType):
        return _maps(kind)
    return _by_value(kind)


def row_maker(names: Sequence[str]) -> Callable[[tuple[Any, ...]], Row]:
    """Return the function that makes a Row with these fields out of a tuple."""
    return partial(tuple.__new__, _row_class(tuple(names)))


def _row_class(names: tuple[str, ...]) -> type[Row]:
    """Make a subclass of Row that finds its fields without a search. It pickles and prints like any Row."""
    # The getters of a namedtuple read any tuple by position, and are far quicker than a property.
    make: Any = namedtuple  # noqa: PYI024  # its fields are known only at run time
    getters = make("Getters", [f"at_{index}" for index in range(len(names))])
    fields = {name: vars(getters)[f"at_{index}"] for index, name in enumerate(names) if not hasattr(Row, name)}
    return type("Row", (Row,), {**fields, "__fields__": list(names), "__slots__": ()})


def _by_value(kind: DataType) -> Read:
    convert = None if isinstance(kind, BinaryType) else compat.from_arrow(kind)
    if convert is None:
        return compat.values
    return lambda column: [convert(value) for value in compat.values(column)]


def _structs(kind: StructType) -> Read:
    by_value, names = _by_value(kind), list(kind.names)
    fields, make = [reader_of(field.dataType) for field in kind.fields], row_maker(names)
    is_simple = 0 < len(names) == len(set(names))

    def read(column: Any) -> list[Any]:
        if not is_simple or [field.name for field in column.type] != names:
            return by_value(column)
        present = column.drop_null()
        parts = [read_field(present.field(index)) for index, read_field in enumerate(fields)]
        return _with_nulls(column, list(map(make, zip(*parts, strict=True))))

    return read


def _lists(kind: ArrayType) -> Read:
    by_value, read_elements = _by_value(kind), reader_of(kind.elementType)

    def read(column: Any) -> list[Any]:
        if not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
            return by_value(column)
        present = column.drop_null()
        bounds, first, count = _bounds(present)
        elements = read_elements(present.values.slice(first, count))
        return _with_nulls(column, [elements[start:stop] for start, stop in bounds])

    return read


def _maps(kind: MapType) -> Read:
    read_keys, read_items = reader_of(kind.keyType), reader_of(kind.valueType)

    def read(column: Any) -> list[Any]:
        present = column.drop_null()
        bounds, first, count = _bounds(present)
        keys, items = read_keys(present.keys.slice(first, count)), read_items(present.items.slice(first, count))
        maps = [dict(zip(keys[start:stop], items[start:stop], strict=True)) for start, stop in bounds]
        return _with_nulls(column, maps)

    return read


def _bounds(column: Any) -> tuple[list[tuple[int, int]], int, int]:
    """Return (bounds, first, count) for a column of lists or maps without nulls.

    The column has ``count`` elements, which begin at ``first`` in its values. ``bounds``: where each list or map begins
    and ends among these elements."""
    if not len(column):
        return [], 0, 0
    offsets = column.offsets.to_numpy()
    first = int(offsets[0])
    return list(pairwise((offsets - first).tolist())), first, int(offsets[-1]) - first


def _with_nulls(column: Any, present: list[Any]) -> list[Any]:
    """Return the values of ``column``, given those that are not null."""
    if not column.null_count:
        return present
    values = iter(present)
    return [next(values) if is_valid else None for is_valid in column.is_valid().to_pylist()]
