"""``acker_udf``: a UDF that acks the rows that it has worked on, once for all attempts at a task.

Decides how a function is called (from its type hints, as Spark does) and which columns it gets. ``udf_task`` runs it.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

from pyspark.sql import Column
from pyspark.sql.types import DataType, LongType, StructField, StructType

from acker_client.spark import compat
from acker_client.spark.anchoring.anchors import EDGE, ROOT, THIN, reserved
from acker_client.spark.driver.session import is_tracked_here
from acker_client.spark.driver.task_columns import send_report, settings_of_columns, task_column
from acker_client.spark.operators.declared import OnError, check_on_error, checked_name
from acker_client.spark.operators.udf_task import Kind, Udf, UdfTask
from acker_client.spark.worker.rows import struct_type

# The name of the column of a function that returns single values.
VALUE = "value"

# The types of whole batches in hints. Others of these packages, such as pd.Timestamp, are those of single values.
_PANDAS = re.compile(r"\b(pandas|pd)\.([\w.]+\.)?(Series|DataFrame)\b")
_ARROW = re.compile(r"\b(pyarrow|pa)\.([\w.]+\.)?(\w*Array|RecordBatch|Table)\b")
_ITERATOR = re.compile("Iterator")


class AckerUdf:
    """A function over columns that acks the rows it is called for. ``function`` is the user's, unchanged.

    Calling it with columns gives a column, to use as any other column.
    """

    def __init__(
        self, function: Callable[..., Any], returns: str | DataType, name: str | None, emits: bool, on_error: OnError
    ) -> None:
        self.name = checked_name(function, name, "@acker_udf")
        self.function = function
        self.__doc__ = function.__doc__
        self.__name__ = self.name
        self._returns = returns
        self._emits = emits
        self._on_error = on_error
        self._kind, self._is_iterator = _kind_of(function)

    def __call__(self, *columns: str | Column, anchors: Sequence[str | Column] = THIN) -> Column:
        """Return the column of the function's results for ``columns``.

        ``anchors``: the tracking columns of the row; give ``["_anchors"]`` for a frame with packed anchors.
        """
        if not compat.HAS_ARROW_UDFS:
            raise RuntimeError("acker_udf needs PySpark 4.1 or newer: use a Collector in mapPartitions, or upgrade")
        if isinstance(anchors, str):
            raise ValueError(f"{self.name}: anchors={anchors!r}; give a list of the tracking columns, as [{anchors!r}]")
        if self._emits and len(anchors) != len(THIN):
            raise ValueError(f"{self.name}: emits=True needs rows with one anchor, in {ROOT} and {EDGE}")
        fields, is_single = _fields_of(self._returns, self.name)
        udf = Udf(
            self.name, self.function, self._kind, self._is_iterator, fields, is_single, self._emits, self._on_error
        )
        (settings, assumed), width = settings_of_columns(self.name), len(anchors)

        def run(batches: Iterator[Any]) -> Iterator[Any]:
            # If nothing was handed down, the job may be tracked.
            task = UdfTask(udf, width, is_tracked=is_tracked_here(settings, is_anchored=True))
            yield from task.run(batches)
            send_report(task.tally.report(), settings)

        result = _result_type(fields, is_single, self._emits)
        return task_column(self.name, run, result, columns, anchors, assumed=assumed)

    def __repr__(self) -> str:
        return f"<acker_udf {self.name!r}>"


def acker_udf(
    returns: str | DataType, *, name: str | None = None, emits: bool = False, on_error: OnError = "fail"
) -> Callable[[Callable[..., Any]], AckerUdf]:
    """Make a UDF that acks each row for which it was called, when its task has read its rows to the end::

        @acker_udf("int")
        def post(text: str) -> int:
            return urlopen(URL, text.encode()).status

        frame.select("id", post("text").alias("status")).collect()

    ``returns``: the type of a value (``"int"``), or columns (``"sku string, qty int"``), which make a struct. The
    function is called as Spark would call it by its type hints: with pandas Series, with Arrow arrays, with an iterator
    of one of these, and otherwise with the values of one row. If it raises, the rows that cause it fail with the
    exception as reason, and their result is null; ``on_error="raise"`` fails the task. If tracking is off for the
    source, such a row fails the task as well. A row without anchors in a tracked job fails no record: its result is
    null, and the worker logs the exception.

    The row's tree is done here. With ``emits=True`` the result is a record of its own, anchored to the row: a struct
    that also has ``_root`` and ``_edge``, for the next step to ack. A row that fails has no such record, and neither
    has a row for which a function that returns columns returns None: the struct is null. The next function is called
    for that row, too, with nulls for the record, unless you leave the row out (``where("r is not null")``). ``name``
    goes into edges and reports. The ack says that the function was called for the row, and nothing about what Spark
    does with the result.
    """
    if callable(returns):
        raise TypeError('@acker_udf needs the type that the function returns: write @acker_udf("string") above it')
    check_on_error(on_error)
    return lambda function: AckerUdf(function, returns, name, emits, on_error)


def _kind_of(function: Callable[..., Any]) -> tuple[Kind, bool]:
    """Return what the function is called with, and whether it takes an iterator."""
    try:
        hints = typing.get_type_hints(function)
    except Exception:  # noqa: BLE001  # a hint may name what exists only for a type checker
        hints = getattr(function, "__annotations__", {})
    text = " ".join(map(str, hints.values()))
    kind: Literal["row", "arrow", "pandas"] = "row"
    if _PANDAS.search(text):
        kind = "pandas"
    elif _ARROW.search(text):
        kind = "arrow"
    return kind, kind != "row" and _ITERATOR.search(text) is not None


def _fields_of(returns: str | DataType, name: str) -> tuple[StructType, bool]:
    """Return the columns of a result, and whether it is a single value."""
    kind = returns if isinstance(returns, DataType) else DataType.fromDDL(returns)
    if not isinstance(kind, StructType):
        return struct_type(StructType([StructField(VALUE, kind)])), True
    taken = reserved(kind.names)
    if taken:
        raise ValueError(f"acker_udf {name!r}: the field {taken[0]!r} is the acker's own; rename it")
    return struct_type(kind), False


def _result_type(fields: StructType, is_single: bool, emits: bool) -> DataType:
    if emits:
        return StructType([*fields, StructField(ROOT, LongType()), StructField(EDGE, LongType())])
    return fields[0].dataType if is_single else fields
