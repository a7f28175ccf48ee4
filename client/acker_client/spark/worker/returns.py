"""Returns: checks the result of a user's function over batches or groups.

Decides how the result is compared with the declared schema and the input rows. A result of another form is an
:class:`OperatorError`, and ends the run. A value that does not fit its column is a
:class:`~acker_client.spark.worker.rows.Mismatch`, which one record may have caused. This includes columns of another
type: Arrow and pandas read the type of a column from its values. The errors fit the kind of the operator, and say what
to return instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.types import StructType

from acker_client.spark.anchoring.anchors import Positions
from acker_client.spark.anchoring.derive import batch_of
from acker_client.spark.worker.rows import Mismatch, arrow_schema

BatchFunction = Callable[[Any], Any]

# Types that functions return by mistake, and what to do instead.
_HINTS = {
    "NoneType": "return one with the rows; if there are none, return an empty one and [] as parents",
    "generator": "return one, do not yield",
    "list": "return one, of all rows together",
    "tuple": "return one, or (rows, parents)",
}
_ARROW_HINTS = {
    "DataFrame": "use pa.Table.from_pandas(frame, preserve_index=False)",
    "dict": "use pa.RecordBatch.from_pydict(...)",
    "list": "use pa.RecordBatch.from_pylist(...) for a list of dicts, pa.Table.from_batches(...) for one of batches",
}
_PANDAS_HINTS = {
    "Series": "return a DataFrame, as series.to_frame({column!r})",
    "ndarray": "return a DataFrame, as frame.assign({column}=array)",
    "dict": "return pandas.DataFrame(...) of it",
    "list": "return a DataFrame, as pandas.concat(...) of frames or pandas.DataFrame(...) of rows",
    "Table": "use @arrow_operator, or return table.to_pandas()",
    "RecordBatch": "use @arrow_operator, or return batch.to_pandas()",
}


class OperatorError(TypeError):
    """A batch operator broke its contract: its result does not have the declared form, or does not fit its input. The
    task fails."""


def checked_batch(given: Any, schema: pa.Schema, rows: int, subject: str) -> tuple[list[Any], Positions | None]:
    """Return the declared columns and the parents from the result of a batch operator for ``rows`` rows.

    The parents are None if the operator returned no parents. Raises :class:`OperatorError` and
    :class:`~acker_client.spark.worker.rows.Mismatch`.
    """
    data, parents = _with_parents(given, subject)
    columns, children = checked_columns(data, schema, subject)
    if parents is not None:
        return columns, checked_parents(parents, children, rows, subject)
    if children != rows:
        raise OperatorError(
            f"{subject} returned {children} rows for {rows} input rows, and no parents: return (rows, parents), where"
            " parents[j] is the position of the input row that row j descends from"
        )
    return columns, None


def checked_columns(data: Any, schema: pa.Schema, subject: str) -> tuple[list[Any], int]:
    """Return the columns that ``schema`` declares from a RecordBatch or Table, and the number of rows.

    Raises :class:`OperatorError` and :class:`~acker_client.spark.worker.rows.Mismatch`.
    """
    if not isinstance(data, (pa.RecordBatch, pa.Table)):
        hint = _ARROW_HINTS.get(_type(data), _HINTS.get(_type(data), "return a table of the declared columns"))
        raise OperatorError(
            f"{subject} returned {kind_of(data)} where a pyarrow RecordBatch or Table is expected: {hint}"
        )
    batch = one_batch(data)
    return [_checked_column(batch, field, subject) for field in schema], batch.num_rows


def checked_parents(parents: Any, children: int, rows: int, subject: str) -> Positions:
    """Return ``parents`` as int64[children], each the index of one of ``rows`` rows. Raises :class:`OperatorError`."""
    if isinstance(parents, (pa.Array, pa.ChunkedArray)) and parents.null_count:
        raise OperatorError(
            f"{subject}: parents has nulls; give each row the position of the one row that it descends from"
        )
    try:
        column = np.asarray(parents)
    except ValueError:
        column = np.asarray(None)
    if column.size == 0:
        column = column.astype(np.int64)
    if column.ndim != 1 or column.dtype.kind not in "iu":
        raise OperatorError(
            f"{subject}: parents must be whole numbers, one for each row, as a list or an array of ints; got"
            f" {kind_of(parents)} of {column.dtype}"
        )
    if len(column) != children:
        raise OperatorError(
            f"{subject} returned {children} rows and {len(column)} parents; give one parent for each row"
        )
    positions: Positions = np.ascontiguousarray(column, np.int64)
    if len(positions) and not 0 <= positions.min() <= positions.max() < rows:
        bad = int(positions[(positions < 0) | (positions >= rows)][0])
        had = f"rows 0 to {rows - 1}" if rows else "no rows"
        raise OperatorError(f"{subject}: parent {bad} is not a position in the input, which had {had}")
    return positions


def over_pandas(function: BatchFunction, schema: StructType, name: str) -> BatchFunction:
    """Return a function over pandas frames as a function over Arrow batches."""

    subject = f"operator {name!r}"

    def over_arrow(batch: pa.RecordBatch) -> Any:
        frame, parents = _with_parents(function(to_pandas(batch)), subject)
        columns = columns_of_frame(frame, arrow_schema(schema), subject)
        if parents is None:
            _refuse_reordered(frame.index, batch.num_rows, subject)
        return batch_of(columns, schema.names, len(frame)), parents

    return over_arrow


def to_pandas(data: Any) -> Any:
    """Return Arrow data as pandas, as Spark does for its own functions: dates as objects, and maps as dicts."""
    return data.to_pandas(date_as_object=True, maps_as_pydicts="lossy")


def _refuse_reordered(index: Any, rows: int, subject: str) -> None:
    """Raise :class:`OperatorError` if the index of a frame, of ``rows`` rows, says that they are in another order.

    An index with a name comes from a column, and says nothing about the order of the input.
    """
    dtype = index.dtype
    if len(index) != rows or index.name is not None or not isinstance(dtype, np.dtype) or dtype.kind not in "iu":
        return
    found, every = index.to_numpy(), np.arange(rows)
    if not np.array_equal(found, every) and np.array_equal(np.sort(found), every):
        raise OperatorError(
            f"{subject} returned a frame whose index says that its rows were reordered, and no parents: return (frame,"
            " frame.index), or keep the order. If the index means something else, return frame.reset_index(drop=True)"
        )


def columns_of_frame(frame: Any, schema: pa.Schema, subject: str) -> list[Any]:
    """Return the columns that ``schema`` declares from a pandas frame.

    Raises :class:`OperatorError` and :class:`~acker_client.spark.worker.rows.Mismatch`.
    """
    if not hasattr(frame, "iloc") or not hasattr(frame, "columns"):
        hint = _PANDAS_HINTS.get(_type(frame), _HINTS.get(_type(frame), "return a frame of the declared columns"))
        column = schema.names[0] if schema.names else "x"
        raise OperatorError(
            f"{subject} returned {kind_of(frame)} where a pandas DataFrame is expected: {hint.format(column=column)}"
        )
    names = list(frame.columns)
    for field in schema:
        if names.count(field.name) != 1:
            lack = "lacks it" if field.name not in names else "has it more than once"
            raise OperatorError(f"{subject} declares a column {field.name!r}, and the frame {lack}: it has {names}")
    return [_pandas_column(frame[field.name], field, subject) for field in schema]


def kind_of(value: Any) -> str:
    """Describe the type of ``value`` for errors: ``a list``, ``an int``, ``None``."""
    kind = type(value).__name__
    return "None" if value is None else f"{'an' if kind[0] in 'aeiouAEIOU' else 'a'} {kind}"


def _with_parents(given: Any, subject: str) -> tuple[Any, Any]:
    """Split the result of a batch operator into (rows, parents or None)."""
    if not isinstance(given, tuple):
        return given, None
    if len(given) != 2:
        raise OperatorError(
            f"{subject} returned a tuple of {len(given)}: return the rows alone, or (rows, parents), where parents[j]"
            " is the position of the input row that row j descends from"
        )
    return given


def one_batch(data: Any) -> pa.RecordBatch:
    if not isinstance(data, pa.Table):
        return data
    columns = [column.combine_chunks() for column in data.columns]
    columns = [pa.concat_arrays(c.chunks) if isinstance(c, pa.ChunkedArray) else c for c in columns]
    return batch_of(columns, data.schema.names, data.num_rows)


def _checked_column(data: pa.RecordBatch, field: pa.Field, subject: str) -> Any:
    found = data.schema.names.count(field.name)
    if found != 1:
        lack = "lacks it" if not found else f"has it {found} times"
        raise OperatorError(
            f"{subject} declares a column {field.name!r}, and what it returned {lack}: it has {data.schema.names}"
        )
    column = data.column(field.name)
    if column.type != field.type:
        try:
            column = column.cast(field.type)
        except pa.ArrowException as error:
            raise Mismatch(
                f"{subject}: column {field.name!r} is declared {field.type}, and is {column.type} in what it returned"
                f" ({_line(error)}); cast it, or declare what it is"
            ) from None
    if not field.nullable and column.null_count:
        raise Mismatch(
            f"{subject}: column {field.name!r} is declared not null, and has a null in what it returned; fill it, or"
            " drop 'not null' from the schema"
        )
    return column


def _pandas_column(series: Any, field: pa.Field, subject: str) -> Any:
    # The dtype of an all-null column says nothing about its type, but Arrow would convert from that dtype.
    if series.isna().all():
        return pa.nulls(len(series), field.type)
    try:
        if pa.types.is_binary(field.type) and getattr(series.dtype, "kind", "O") in "biufmM":
            raise TypeError("numbers are no bytes")
        made = pa.Array.from_pandas(series, type=field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise Mismatch(
            f"{subject}: column {field.name!r} is declared {field.type}, and is {series.dtype} in the frame"
            f" ({_line(error)}); cast it, or declare what it is"
        ) from None
    return made.combine_chunks() if isinstance(made, pa.ChunkedArray) else made


def _type(value: Any) -> str:
    return type(value).__name__


def _line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
