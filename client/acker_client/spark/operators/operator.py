"""Operators: the user's functions as steps of a tracked pipeline. Storm calls them bolts.

Decides how a function is called (row by row, or a batch at a time), how its result is checked against the declared
schema, and which input rows each output row descends from. If a row raises, its tree fails with the exception as
reason, and the other rows go on. One update anchors every output to its input and acks the input. The function sees no
tracking columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Never, overload

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import StructType

from acker_client.spark.anchoring.derive import batch_of
from acker_client.spark.driver.columns import user_schema
from acker_client.spark.driver.reruns import spark_checks_reruns
from acker_client.spark.operators.batch import BatchStep
from acker_client.spark.operators.declared import (
    DECORATORS,
    TAKES,
    Declared,
    Kind,
    OnError,
    checked_function,
    declared,
    refuse_no_frame,
)
from acker_client.spark.operators.row import RowFunction, RowStep
from acker_client.spark.plan_check import fusing, plan
from acker_client.spark.worker import chain
from acker_client.spark.worker.pickled import pickled
from acker_client.spark.worker.returns import BatchFunction, checked_batch, one_batch, over_pandas, to_pandas
from acker_client.spark.worker.rows import RowReader, RowWriter, arrow_schema

__all__ = ["Operator", "arrow_operator", "operator", "pandas_operator"]

_TESTED: dict[Kind, str] = {"row": "Row(...)", "pandas": "frame", "arrow": "batch"}


class Operator:
    """A function as a step: ``df.transform(op)`` or ``op(df)`` applies it to a tracked frame.

    ``function`` is the user's, unchanged. :meth:`test` calls it and checks its result against the schema.
    """

    def __init__(self, function: Callable[[Any], Any], declared: Declared, kind: Kind) -> None:
        self.name = checked_function(function, declared.name, f"@{DECORATORS[kind]}", TAKES[kind])
        self.function = function
        self.__doc__ = function.__doc__
        self.__name__ = self.name
        self._declared = declared
        self._kind = kind

    def __call__(self, df: DataFrame) -> DataFrame:
        """Return the operator's output for ``df``: the declared columns, the kept columns and the anchors."""
        refuse_no_frame(df, self, f"{self.name}.test({_TESTED[self._kind]})")
        schema = self._declared.fields(self.name)
        upstream = plan.inspect(df, f"operator {self.name!r}")
        given = user_schema(df)
        keep = self._kept_of(given.names, schema)
        kept = StructType([field for field in given.fields if field.name in keep])
        step = self._step(df.sparkSession, given, schema, tuple(kept.names))
        upstream = plan.mark_consumed(df, upstream, self.name)
        output = StructType([*schema.fields, *kept.fields])
        return fusing.extend(fusing.chain_of(df, upstream), upstream, step, "operator", output)

    def test(self, given: Any) -> Any:
        """Return the operator's output for ``given``, without Spark or a server: declared columns, then kept ones.

        A Row gives a list of Rows, a ``pandas.DataFrame`` gives a frame, a RecordBatch or Table gives a Table. Raises
        what the function raises, :class:`~acker_client.spark.worker.rows.Mismatch` or :class:`OperatorError` if its
        result does not fit the schema, and ValueError if ``given`` lacks a column to keep. DDL with unusual types can
        only be read with a Spark session.
        """
        schema = self._declared.fields(self.name)
        if self._kind == "row":
            return self._test_row(given, schema)
        is_frame = hasattr(given, "iloc")
        batch = pa.RecordBatch.from_pandas(given, preserve_index=False) if is_frame else one_batch(given)
        keep = self._kept_of(batch.schema.names, schema)
        function = self._over_arrow(schema)
        columns, parents = checked_batch(function(batch), arrow_schema(schema), len(batch), f"operator {self.name!r}")
        kept = [batch.column(name) if parents is None else batch.column(name).take(pa.array(parents)) for name in keep]
        table = pa.Table.from_arrays([*columns, *kept], names=[*schema.names, *keep])
        return to_pandas(table) if is_frame else table

    def _test_row(self, row: Any, schema: StructType) -> list[Row]:
        given = row.asDict() if isinstance(row, Row) and hasattr(row, "__fields__") else {}
        keep = self._kept_of(list(given), schema)
        writer = RowWriter(schema)
        made = writer.tuples(writer.returned_rows(self.function(row)))
        writer.check(made)
        batch = batch_of(writer.columns(made), schema.names, len(made))
        kept = [given[name] for name in keep]
        names = [*schema.names, *keep]
        return [Row(*names)(*child, *kept) if names else Row() for child in RowReader(schema).rows(batch)]

    def _kept_of(self, given: Sequence[str], schema: StructType) -> list[str]:
        keep = self._declared.kept_of(given, schema, self.name)
        return [name for name in given if name in keep]

    def _over_arrow(self, schema: StructType) -> BatchFunction:
        return over_pandas(self.function, schema, self.name) if self._kind == "pandas" else self.function

    def __repr__(self) -> str:
        return f"<operator {self.name!r}>"

    def _step(self, spark: SparkSession, given: StructType, schema: StructType, keep: tuple[str, ...]) -> chain.Step:
        declared = self._declared
        context, anchored = spark.sparkContext, declared.anchored
        if self._kind == "row":
            function = pickled(self.function, context)
            return RowStep(self.name, function, given, schema, keep, declared.on_error, anchored)
        digests_values = not declared.deterministic or not spark_checks_reruns(spark)
        function = pickled(self._over_arrow(schema), context)
        return BatchStep(self.name, function, schema, keep, declared.on_error, digests_values, anchored)


@overload
def operator(
    schema: str | StructType,
    /,
    *,
    keep: Sequence[str] | Literal["*"] = (),
    name: str | None = None,
    on_error: OnError = "fail",
    anchors: Sequence[Never] | None = None,
) -> Callable[[RowFunction], Operator]: ...


@overload
def operator(
    schema: str | StructType,
    function: RowFunction,
    /,
    *,
    keep: Sequence[str] | Literal["*"] = (),
    name: str | None = None,
    on_error: OnError = "fail",
    anchors: Sequence[Never] | None = None,
) -> Operator: ...


def operator(
    schema: str | StructType,
    function: RowFunction | None = None,
    /,
    *,
    keep: Sequence[str] | Literal["*"] = (),
    name: str | None = None,
    on_error: OnError = "fail",
    anchors: Sequence[Never] | None = None,
) -> Any:
    """Make a row operator: ``function(row)`` yields or returns the rows that ``row`` becomes, or None for no rows.

    ``schema``: the schema of its output, as DDL or StructType. ``keep``: the input columns to add to the output, or
    ``"*"``. An output row may be a tuple, a Row, a dict, or the bare value if the schema has one column. ``name`` (by
    default the function's) goes into edges and reports, so keep it when you move the function. ``on_error``: if a row
    raises, ``"fail"`` fails its record and goes on with the other rows; ``"raise"`` fails the task. ``anchors=[]``: the
    output belongs to no tree, as Storm's unanchored emits. A record is then done here, whatever becomes of the output.
    """
    declaration = declared("row", schema, keep, name, on_error, True, anchors)
    if function is not None:
        return Operator(function, declaration, "row")
    return lambda function: Operator(function, declaration, "row")


def pandas_operator(
    schema: str | StructType,
    *,
    keep: Sequence[str] | Literal["*"] = (),
    name: str | None = None,
    on_error: OnError = "fail",
    anchors: Sequence[Never] | None = None,
    deterministic: bool = False,
) -> Callable[[BatchFunction], Operator]:
    """Make a batch operator over pandas frames.

    ``function(frame)`` returns a frame with one row for each input row, in order. Or it returns ``(frame, parents)``,
    where ``parents[j]`` is the position of the input row that row j descends from. The input has a RangeIndex, so after
    ``explode`` or a selection the index of the result is ``parents``. Without ``parents``, an index that is another
    order of the positions is refused. After ``reset_index`` the order cannot be checked.

    Edges depend on the output's values, so two runs with different output get different edges. ``deterministic=True``
    promises that every evaluation gives the same output, also that of another job. Do not promise it if Spark may
    compute other input the next time, as ``row_number`` over ties. Values are then not hashed if Spark itself checks
    re-run tasks. The other arguments are those of :func:`operator`.
    """
    declaration = declared("pandas", schema, keep, name, on_error, deterministic, anchors)
    return lambda function: Operator(function, declaration, "pandas")


def arrow_operator(
    schema: str | StructType,
    *,
    keep: Sequence[str] | Literal["*"] = (),
    name: str | None = None,
    on_error: OnError = "fail",
    anchors: Sequence[Never] | None = None,
    deterministic: bool = False,
) -> Callable[[BatchFunction], Operator]:
    """Make a batch operator over ``pyarrow.RecordBatch``, like :func:`pandas_operator`.

    The function returns a RecordBatch or Table, alone or with ``parents``. If it raises, it is called again with each
    half of the batch, down to the single rows that cause the error.
    """
    declaration = declared("arrow", schema, keep, name, on_error, deterministic, anchors)
    return lambda function: Operator(function, declaration, "arrow")
