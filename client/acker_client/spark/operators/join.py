"""Join: tracked rows with an untracked table. Each match is a row with an edge of its own.

Spark finds the matches and returns all matches of a key as one array. A tracked row therefore stays one row until
``explode`` makes a row of each match.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    IntegralType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from acker_client.spark.anchoring.anchors import TRACKING, reserved
from acker_client.spark.driver import lineage
from acker_client.spark.driver.columns import quoted, user_schema
from acker_client.spark.operators.declared import Transform, check_name, column_names, refuse_connect, refuse_untracked
from acker_client.spark.operators.explode import ExplodePlan, exploded
from acker_client.spark.plan_check import plan
from acker_client.spark.worker.returns import kind_of
from acker_client.spark.worker.rows import struct_type

MATCHES = "_acker_matches"

# Decimals of so many digits stay different as doubles. Spark's decimals have no more than so many digits.
DOUBLE_DIGITS, DECIMAL_DIGITS = 15, 38

# The digits of the decimal type that Spark takes for an integer.
_DIGITS: dict[type[DataType], int] = {ByteType: 3, ShortType: 5, IntegerType: 10, LongType: 20}


def join(
    other: DataFrame, on: str | Sequence[str], how: Literal["inner", "left"] = "inner", *, name: str = "join"
) -> Transform:
    """Join tracked rows with ``other``, an untracked table that fits into memory. ``on``: columns that both sides have.

    Each match is a row with an edge of its own. ``how``: "inner" acks a row without a match, "left" keeps it and adds
    nulls.
    """
    if how not in ("inner", "left"):
        raise ValueError(f"join: how={how!r}; give 'inner' or 'left'")
    if not isinstance(other, DataFrame):
        raise TypeError(f"join: the table is {kind_of(other)}; give a DataFrame: join(spark.table('prices'), 'sku')")
    refuse_connect(other, "join")
    keys = column_names(on, "join", "on")
    check_name("join", name)
    missing = [key for key in keys if key not in other.columns]
    if missing or not keys:
        raise ValueError(f"join: on={on!r}; give columns that both sides have; the table has {other.columns}")
    added = [field for field in struct_type(other.schema) if field.name not in keys]
    taken = reserved(field.name for field in added)
    if taken:
        raise ValueError(
            f"join: the table has a column {taken[0]!r}, and {', '.join(TRACKING)} are the acker's own (Spark"
            " ignores the case of names). Rename it. To join two tracked frames, use cogroup(...)"
        )

    def match(df: DataFrame) -> DataFrame:
        refuse_untracked(df, "join")
        upstream = plan.inspect(df, f"operator {name!r}")
        given = user_schema(df)
        _refuse_unfit(name, given, keys, added)
        _refuse_inexact(name, given, struct_type(other.schema), keys)
        right = F.broadcast(_one_row_a_key(other, keys, added)).alias(lineage.admit_join(*upstream.batches))
        joined = df.join(right, keys, "left")
        ours = ExplodePlan(name, MATCHES, added, given.fields, outer=how == "left", fans_out=True)
        return exploded(joined, plan.guard(joined, name), ours)

    return match


def _refuse_unfit(name: str, given: StructType, keys: list[str], added: list[StructField]) -> None:
    missing = [key for key in keys if key not in given.names]
    if missing:
        raise ValueError(f"{name}: the tracked side has no column {missing[0]!r} to join on; it has {given.names}")
    double = [field.name for field in added if field.name in given.names]
    if double:
        raise ValueError(f"{name}: both sides have a column {double[0]!r}; rename it on one of them, or join on it too")


def _refuse_inexact(name: str, given: StructType, table: StructType, keys: list[str]) -> None:
    """Raise ValueError if Spark compares a key as a type in which several values of the table may be one value."""
    for key in keys:
        ours, theirs = given[key].dataType, table[key].dataType
        if not _stays_exact(theirs, ours):
            kind = "text" if isinstance(theirs, StringType) else theirs.simpleString()
            raise ValueError(
                f"{name}: the key {key!r} is {ours.simpleString()} on the tracked side and {kind} in the table, where"
                f" several {kind}s may be one value. Make it one type first, as table.withColumn({key!r},"
                f" F.col({key!r}).cast({ours.simpleString()!r}))"
            )


def _stays_exact(table: DataType, tracked: DataType) -> bool:
    """Whether different values of a type of the table stay different where Spark compares them with a tracked type.

    Spark casts both to a common type. If that makes two keys of the table one, a tracked row has the matches of both.
    True for types that Spark does not compare.
    """
    if table.simpleString() == tracked.simpleString():
        return True
    if isinstance(table, ArrayType) and isinstance(tracked, ArrayType):
        return _stays_exact(table.elementType, tracked.elementType)
    if isinstance(table, StructType) and isinstance(tracked, StructType):
        pairs = zip(table.fields, tracked.fields, strict=False)
        return all(_stays_exact(theirs.dataType, ours.dataType) for theirs, ours in pairs)
    if isinstance(table, StringType):
        return False
    if isinstance(table, TimestampNTZType):
        # The clocks of a time zone skip an hour each spring.
        return not isinstance(tracked, TimestampType)
    return _number_stays_exact(table, tracked)


def _number_stays_exact(table: DataType, tracked: DataType) -> bool:
    if isinstance(tracked, (FloatType, DoubleType, StringType)) and isinstance(table, DecimalType):
        return table.precision <= DOUBLE_DIGITS
    if isinstance(tracked, (FloatType, DoubleType)) and isinstance(table, IntegralType):
        fits_double = isinstance(tracked, DoubleType) and isinstance(table, IntegerType)
        return fits_double or isinstance(table, (ByteType, ShortType))
    ours, theirs = _decimal_of(tracked), _decimal_of(table)
    if ours is None or theirs is None or DecimalType not in (type(table), type(tracked)):
        return True
    whole = max(ours.precision - ours.scale, theirs.precision - theirs.scale)
    return whole + max(ours.scale, theirs.scale) <= DECIMAL_DIGITS


def _decimal_of(kind: DataType) -> DecimalType | None:
    """Return the decimal type that Spark takes for a number beside a decimal; None for other types."""
    if isinstance(kind, DecimalType):
        return kind
    return DecimalType(_DIGITS[type(kind)], 0) if type(kind) in _DIGITS else None


def _one_row_a_key(other: DataFrame, keys: list[str], added: list[StructField]) -> DataFrame:
    """Return all rows of each key as one array, in a stable order where Spark can sort them."""
    matches = F.collect_list(F.struct(*(quoted(field.name) for field in added)) if added else F.struct(F.lit(True)))
    if not any(
        "map<" in field.dataType.simpleString() or "variant" in field.dataType.simpleString() for field in added
    ):
        matches = F.sort_array(matches)
    return other.groupBy(*map(quoted, keys)).agg(matches.alias(MATCHES))
