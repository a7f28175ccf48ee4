"""Columns become Python values column by column; the twin is Spark's own converter, value by value."""

from __future__ import annotations

import datetime
import pickle
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DecimalType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from acker_client.spark import compat
from acker_client.spark.worker.python_values import reader_of
from acker_client.spark.worker.rows import arrow_schema

pytestmark = pytest.mark.matrix

LEAVES: dict[DataType, Any] = {
    LongType(): st.integers(-(2**63), 2**63 - 1),
    StringType(): st.text(max_size=4),
    BooleanType(): st.booleans(),
    DoubleType(): st.floats(allow_nan=False),
    BinaryType(): st.binary(max_size=4),
    DecimalType(10, 2): st.integers(-(10**6), 10**6).map(lambda cents: Decimal(cents) / 100),
    TimestampType(): st.datetimes(datetime.datetime(1990, 1, 1), datetime.datetime(2030, 1, 1)),
}
NAMES = st.lists(st.sampled_from(["x", "count", "two words", "y"]), max_size=3, unique=True)


def struct(given: tuple[list[str], list[DataType]]) -> StructType:
    return StructType([StructField(name, kind) for name, kind in zip(*given, strict=False)])


KINDS = st.recursive(
    st.sampled_from(list(LEAVES)),
    lambda inner: st.one_of(
        inner.map(ArrayType),
        inner.map(lambda kind: MapType(StringType(), kind)),
        st.tuples(NAMES, st.lists(inner, min_size=3, max_size=3)).map(struct),
    ),
    max_leaves=6,
)


def values_of(kind: Any) -> Any:
    """Return a strategy of values as Arrow takes them."""
    if isinstance(kind, ArrayType):
        made: Any = st.lists(values_of(kind.elementType), max_size=3)
    elif isinstance(kind, MapType):
        made = st.dictionaries(values_of(StringType()).filter(bool), values_of(kind.valueType), max_size=3)
        made = made.map(lambda pairs: list(pairs.items()))
    elif isinstance(kind, StructType):
        made = st.fixed_dictionaries({field.name: values_of(field.dataType) for field in kind.fields})
    else:
        made = LEAVES[kind]
    return st.none() | made


def by_value(column: Any, kind: DataType) -> list[Any]:
    convert = compat.from_arrow(kind)
    return [value if convert is None else convert(value) for value in column.to_pylist()]


def described(value: Any) -> Any:
    """Return a value with the names of the fields of its Rows, and the types of its values."""
    if isinstance(value, Row):
        return "row", list(getattr(value, "__fields__", [])), [described(each) for each in value]
    if isinstance(value, dict):
        return "map", [(described(key), described(item)) for key, item in value.items()]
    if isinstance(value, list):
        return "list", [described(each) for each in value]
    # Older Sparks make bytearrays of bytes inside of lists.
    return ("bytes" if isinstance(value, bytearray) else type(value).__name__), value


@given(st.data(), st.booleans())
def test_any_column_has_the_values_that_spark_converts_one_by_one(data: st.DataObject, large: bool) -> None:
    kind = data.draw(KINDS)
    drawn = data.draw(st.lists(values_of(kind), max_size=6))
    type_ = arrow_schema(StructType([StructField("column", kind)]), large=large).types[0]
    column = pa.array(drawn, type_)
    start, stop = sorted(data.draw(st.tuples(st.integers(0, len(drawn)), st.integers(0, len(drawn)))))
    read = reader_of(kind)
    for part in (column, column.slice(start, stop - start)):
        expected, values = by_value(part, kind), read(part)
        assert list(map(described, values)) == list(map(described, expected))
        assert values == expected
        assert pickle.loads(pickle.dumps(values)) == values


def test_what_lies_under_a_null_is_not_converted() -> None:
    # No datetime has such a year.
    times = pa.array([0, 2**62], pa.timestamp("us", "UTC"))
    is_null = pa.array([False, True])
    structs = pa.StructArray.from_arrays([times], names=["at"], mask=is_null)
    lists = pa.ListArray.from_arrays(pa.array(np.array([0, 1, 2], np.int32)), times, mask=is_null)
    at = StructType([StructField("at", TimestampType())])
    for column, kind in ((structs, at), (lists, ArrayType(TimestampType()))):
        values = reader_of(kind)(column)
        assert (len(values), values[0] is None, values[1]) == (2, False, None)


def test_a_struct_with_fields_in_another_order_is_read_by_name() -> None:
    column = pa.array([{"y": 1, "x": "a"}], pa.struct([("y", pa.int64()), ("x", pa.string())]))
    kind = StructType([StructField("x", StringType()), StructField("y", LongType())])
    (row,) = reader_of(kind)(column)
    assert (row.x, row.y, list(row.__fields__)) == ("a", 1, ["x", "y"])


def test_a_row_inside_of_a_row_is_a_row_of_spark() -> None:
    inner = StructType([StructField("x", LongType()), StructField("count", LongType())])
    ((row,),) = reader_of(ArrayType(inner))(pa.array([[{"x": 1, "count": 2}]]))
    assert isinstance(row, Row)
    assert (row.x, row["count"], row.asDict(), repr(row)) == (1, 2, {"x": 1, "count": 2}, "Row(x=1, count=2)")
