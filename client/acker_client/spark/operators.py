"""Operators: the user's functions as steps of a tracked pipeline. Storm's bolts.

Decides how a function is called (row by row, or a batch at a time), how what it gives is held against the declared
schema, which rows of its input its output descends from, and what becomes of a row that raises: its tree fails, with
the exception as reason, and the rest goes on. Every output is anchored to its input, and the input is acked, in one
breath. The function sees no tracking columns.
"""

from __future__ import annotations

import gc
import inspect
import logging
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, overload

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import StructType

from acker_client.spark import plan, stage
from acker_client.spark.anchors import TRACKING, Anchors, Positions, Rows, reserved
from acker_client.spark.derive import batch_of, derive
from acker_client.spark.rows import Mismatch, RowReader, RowWriter, arrow_schema, checked_schema, struct_type
from acker_client.spark.tally import REASON_LENGTH_MAX, TRACEBACK_LENGTH_MAX, Report, Tally

OnError = Literal["fail", "raise"]
Kind = Literal["row", "pandas", "arrow"]
RowFunction = Callable[[Any], Any]
BatchFunction = Callable[[Any], Any]

# Spark's own check that a task which is run again gives the same rows; with it off, batch operators digest values too.
RETRY_ON_MISMATCH = "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch"

# Objects between two collections of garbage while rows are made: enough to be quick, few enough to hold in memory.
COLLECT_EVERY = 50_000

_DECORATORS: dict[Kind, str] = {"row": "operator", "pandas": "pandas_operator", "arrow": "arrow_operator"}
_TAKES: dict[Kind, str] = {"row": "a Row", "pandas": "a pandas DataFrame", "arrow": "a pyarrow RecordBatch"}
_TESTED: dict[Kind, str] = {"row": "Row(...)", "pandas": "frame", "arrow": "batch"}

_logger = logging.getLogger("acker.spark")


class OperatorError(TypeError):
    """A batch operator broke its contract: what it returned fits neither its schema nor its input. The task fails."""


class Operator:
    """A function as a step: ``df.transform(op)`` or ``op(df)`` applies it to a tracked frame.

    ``function`` is the user's, untouched; :meth:`test` calls it and holds what it gives against the schema.
    """

    def __init__(self, function: Callable[[Any], Any], declared: Declared, kind: Kind) -> None:
        self.name = checked_function(function, declared.name, f"@{_DECORATORS[kind]}", _TAKES[kind])
        self.function = function
        self.__doc__ = function.__doc__
        self.__name__ = self.name
        self._declared = declared
        self._kind = kind

    def __call__(self, df: DataFrame) -> DataFrame:
        """The frame of what this operator makes of ``df``: declared columns, kept ones, and anchors."""
        refuse_no_frame(df, self, f"{self.name}.test({_TESTED[self._kind]})")
        schema = self._declared.fields(self.name)
        upstream = plan.inspect(df, f"operator {self.name!r}")
        given = stage.user_schema(df)
        keep = self._kept_of(given.names, schema)
        kept = StructType([field for field in given.fields if field.name in keep])
        step = self._step(df.sparkSession, given, schema, tuple(kept.names))
        upstream = plan.take(df, upstream, self.name)
        return stage.apply_known(df, upstream, step, "operator", StructType([*schema.fields, *kept.fields]))

    def test(self, given: Any) -> Any:
        """What the operator makes of ``given``, without Spark or a server: a Row gives a list of Rows, a
        ``pandas.DataFrame`` a frame, a RecordBatch or Table a Table; the declared columns, and the kept ones behind.

        Raises what the function raises, :class:`~acker_client.spark.rows.Mismatch` or :class:`OperatorError` where
        what it gives does not fit the schema, and ValueError where ``given`` lacks a column to keep. DDL beyond the
        usual types needs a session.
        """
        schema = self._declared.fields(self.name)
        if self._kind == "row":
            return self._test_row(given, schema)
        is_frame = hasattr(given, "iloc")
        batch = pa.RecordBatch.from_pandas(given, preserve_index=False) if is_frame else _one_batch(given)
        keep = self._kept_of(batch.schema.names, schema)
        function = self._over_arrow(schema)
        columns, parents = checked_batch(function(batch), arrow_schema(schema), len(batch), self._who)
        kept = [batch.column(name) if parents is None else batch.column(name).take(pa.array(parents)) for name in keep]
        table = pa.Table.from_arrays([*columns, *kept], names=[*schema.names, *keep])
        return table.to_pandas(date_as_object=True) if is_frame else table

    def _test_row(self, row: Any, schema: StructType) -> list[Row]:
        given = row.asDict() if isinstance(row, Row) and hasattr(row, "__fields__") else {}
        keep = self._kept_of(list(given), schema)
        writer = RowWriter(schema)
        made = writer.tuples(writer.listed(self.function(row)))
        writer.check(made)
        batch = batch_of(writer.columns(made), schema.names, len(made))
        kept = [given[name] for name in keep]
        names = [*schema.names, *keep]
        return [Row(*names)(*child, *kept) if names else Row() for child in RowReader(schema).rows(batch)]

    def _kept_of(self, given: Sequence[str], schema: StructType) -> list[str]:
        keep = self._declared.kept_of(given, schema, self.name)
        return [name for name in given if name in keep]

    def _over_arrow(self, schema: StructType) -> BatchFunction:
        return _over_pandas(self.function, schema, self.name) if self._kind == "pandas" else self.function

    @property
    def _who(self) -> str:
        return f"operator {self.name!r}"

    def __repr__(self) -> str:
        return f"<operator {self.name!r}>"

    def _step(self, spark: SparkSession, given: StructType, schema: StructType, keep: tuple[str, ...]) -> stage.Step:
        declared = self._declared
        if self._kind == "row":
            return RowStep(self.name, self.function, given, schema, keep, declared.on_error)
        digests_values = not declared.deterministic or not spark_checks_reruns(spark)
        return BatchStep(self.name, self._over_arrow(schema), schema, keep, declared.on_error, digests_values)


@dataclass(frozen=True, slots=True)
class Declared:
    """What the user says of an operator."""

    schema: str | StructType
    keep: tuple[str, ...] | Literal["*"]
    name: str | None
    on_error: OnError
    deterministic: bool

    def __post_init__(self) -> None:
        if self.on_error not in ("fail", "raise"):
            raise ValueError(f"on_error={self.on_error!r}: give 'fail' (the record fails) or 'raise' (the task fails)")

    def fields(self, name: str) -> StructType:
        """The schema; see :func:`declared_fields`."""
        return declared_fields(self.schema, f"operator {name!r}")

    def kept_of(self, given: Sequence[str], schema: StructType, name: str) -> tuple[str, ...]:
        """The columns to keep of an input with these columns. ValueError that says which cannot be."""
        keep = tuple(given) if self.keep == "*" else self.keep
        missing = [column for column in keep if column not in given]
        if missing:
            raise ValueError(f"operator {name!r} keeps {missing}, which its input does not have: it has {list(given)}")
        double = [column for column in keep if column in schema.names]
        if double:
            raise ValueError(
                f"operator {name!r} keeps {double} and makes a column of that name too: take it out of keep, or"
                " rename it"
            )
        return keep


@overload
def operator(
    schema: str | StructType,
    /,
    *,
    keep: Sequence[str] | Literal["*"] = (),
    name: str | None = None,
    on_error: OnError = "fail",
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
) -> Operator: ...


def operator(
    schema: str | StructType,
    function: RowFunction | None = None,
    /,
    *,
    keep: Sequence[str] | Literal["*"] = (),
    name: str | None = None,
    on_error: OnError = "fail",
) -> Any:
    """A row operator: ``function(row)`` yields or returns the rows that ``row`` becomes, or None for none.

    ``schema``: of what it gives, as DDL or StructType; ``keep``: columns of the input to hand on beside it, or ``"*"``.
    A row may be a tuple, a Row, a dict, or the bare value where the schema has one column. ``name`` (the function's,
    unless given) goes into edges and reports: keep it when you move the function. ``on_error``: ``"fail"`` fails the
    record of a row that raises and goes on, ``"raise"`` fails the task.
    """
    declared = _declared("row", schema, keep, name, on_error, True)
    if function is not None:
        return Operator(function, declared, "row")
    return lambda function: Operator(function, declared, "row")


def pandas_operator(
    schema: str | StructType,
    *,
    keep: Sequence[str] | Literal["*"] = (),
    name: str | None = None,
    on_error: OnError = "fail",
    deterministic: bool = False,
) -> Callable[[BatchFunction], Operator]:
    """A batch operator over pandas: ``function(frame)`` returns a frame, one row for each of its input, in order; or
    ``(frame, parents)``, where ``parents[j]`` is the position of the input row that row j descends from.

    The input has a RangeIndex, so ``parents`` of what ``explode`` or a selection gave is its index. Edges digest the
    values that are made, so that output of two runs that differ is never taken for one. ``deterministic=True`` promises
    that a task which is run again gives the same, and saves the digest where Spark checks the promise. The rest as in
    :func:`operator`.
    """
    declared = _declared("pandas", schema, keep, name, on_error, deterministic)
    return lambda function: Operator(function, declared, "pandas")


def arrow_operator(
    schema: str | StructType,
    *,
    keep: Sequence[str] | Literal["*"] = (),
    name: str | None = None,
    on_error: OnError = "fail",
    deterministic: bool = False,
) -> Callable[[BatchFunction], Operator]:
    """A batch operator over ``pyarrow.RecordBatch``: as :func:`pandas_operator`; it returns a RecordBatch or Table, or
    that and ``parents``. A batch that raises is run again in halves, down to the rows that are to blame.
    """
    declared = _declared("arrow", schema, keep, name, on_error, deterministic)
    return lambda function: Operator(function, declared, "arrow")


def spark_checks_reruns(spark: SparkSession) -> bool:
    """Whether Spark aborts a job in which a task that is run again gives other rows."""
    return str(spark.conf.get(RETRY_ON_MISMATCH, None)).lower() == "true"


@dataclass(frozen=True, slots=True)
class RowStep:
    """A row operator as a step. ``given``: schema of its input; ``keep``: columns handed on."""

    name: str
    function: RowFunction
    given: StructType
    schema: StructType
    keep: tuple[str, ...]
    on_error: OnError

    def start(self, *, finds_copies: bool) -> RowRun:
        return RowRun(self, finds_copies)


@dataclass(frozen=True, slots=True)
class BatchStep:
    """A batch operator as a step; ``function`` takes a RecordBatch."""

    name: str
    function: BatchFunction
    schema: StructType
    keep: tuple[str, ...]
    on_error: OnError
    digests_values: bool

    def start(self, *, finds_copies: bool) -> BatchRun:
        return BatchRun(self, finds_copies)


class RowRun:
    """A row operator in one task."""

    def __init__(self, step: RowStep, finds_copies: bool) -> None:
        self._step = step
        self._tally = Tally(step.name, finds_copies=finds_copies)
        self._culprits = Culprits(step.name, step.on_error, self._tally)
        self._reader, self._writer = RowReader(step.given), RowWriter(step.schema)

    def take(self, rows: Rows) -> Iterator[Rows]:
        """Calls the function for each row; hands on as soon as there are enough children, so that memory stays
        bounded."""
        with _rare_collections():
            given = self._reader.rows(rows.data)
            start = 0
            while start < len(given):
                children = self._children(rows, start, given)
                yield self._made(rows, start, children)
                start += len(children)

    def reports(self) -> Iterable[Report]:
        return [self._tally.report()]

    def _children(self, rows: Rows, start: int, given: list[Any]) -> list[list[Any]]:
        """What the rows from ``start`` on become: a list for each, up to the end or to a full batch of children."""
        children, found = list[list[Any]](), 0
        for row in range(start, len(given)):
            made = self._call(rows, row, given[row])
            children.append(made)
            found += len(made)
            if found >= stage.BATCH_ROWS:
                break
        return children

    def _call(self, rows: Rows, row: int, given: Any) -> list[Any]:
        try:
            return self._writer.listed(self._step.function(given))
        except Exception as error:
            self._culprits.fail(rows.anchors, row, error)
            return []

    def _made(self, rows: Rows, start: int, children: list[list[Any]]) -> Rows:
        """The children of the rows from ``start`` on, anchored to them."""
        every = list(chain.from_iterable(children))
        try:
            columns = self._writer.columns(every)
        except Exception:
            self._drop_mismatches(rows, start, children)
            columns = self._writer.columns(list(chain.from_iterable(children)))
        counts = np.fromiter(map(len, children), np.int64, len(children))
        part = Rows(rows.data.slice(start, len(children)), rows.anchors.slice(start, start + len(children)))
        return derive(self._tally, part, columns, self._step.schema.names, self._step.keep, counts=counts)

    def _drop_mismatches(self, rows: Rows, start: int, children: list[list[Any]]) -> None:
        """Fail the rows of which a child does not fit the schema; make tuples of the others' children."""
        for index, made in enumerate(children):
            try:
                children[index] = self._writer.tuples(made)
                self._writer.check(children[index])
            except Mismatch as error:
                self._culprits.fail(rows.anchors, start + index, error)
                children[index] = []


class BatchRun:
    """A batch operator in one task."""

    def __init__(self, step: BatchStep, finds_copies: bool) -> None:
        self._step = step
        self._tally = Tally(step.name, finds_copies=finds_copies)
        self._culprits = Culprits(step.name, step.on_error, self._tally)
        self._schema = arrow_schema(step.schema)

    def take(self, rows: Rows) -> Iterator[Rows]:
        if not len(rows):
            return
        try:
            given = self._step.function(rows.data)
        except OperatorError:
            raise
        except Exception as error:
            yield from self._halves(rows, error)
            return
        columns, parents = checked_batch(given, self._schema, len(rows), f"operator {self._step.name!r}")
        names, keep = self._step.schema.names, self._step.keep
        yield derive(self._tally, rows, columns, names, keep, parents=parents, digests_values=self._step.digests_values)

    def reports(self) -> Iterable[Report]:
        return [self._tally.report()]

    def _halves(self, rows: Rows, error: Exception) -> Iterator[Rows]:
        n = len(rows)
        if n == 1 or self._step.on_error == "raise":
            self._culprits.fail(rows.anchors, 0, error)
            self._tally.take(rows.anchors, np.zeros(len(rows.anchors.roots), np.uint64))
            return
        for start, stop in ((0, n // 2), (n // 2, n)):
            yield from self.take(Rows(rows.data.slice(start, stop - start), rows.anchors.slice(start, stop)))


def checked_batch(given: Any, schema: pa.Schema, rows: int, who: str) -> tuple[list[Any], Positions | None]:
    """The declared columns and the parents out of what a batch operator gave for ``rows`` rows. Raises
    :class:`OperatorError`."""
    data, parents = _with_parents(given, who)
    columns, children = checked_columns(data, schema, who)
    if parents is not None:
        return columns, checked_parents(parents, children, rows, who)
    if children != rows:
        raise OperatorError(
            f"{who} returned {children} rows for {rows}, without parents: return (rows, parents), where parents[j] is"
            " the position of the input row that row j descends from"
        )
    return columns, None


def checked_columns(data: Any, schema: pa.Schema, who: str) -> tuple[list[Any], int]:
    """The columns that ``schema`` declares, out of a RecordBatch or Table, and how many rows. Raises
    :class:`OperatorError`."""
    if not isinstance(data, (pa.RecordBatch, pa.Table)):
        hint = _ARROW_HINTS.get(_type(data), _HINTS.get(_type(data), "return a table of the declared columns"))
        raise OperatorError(f"{who} returned {_a(data)} where a pyarrow RecordBatch or Table is due: {hint}")
    batch = _one_batch(data)
    return [_checked_column(batch, field, who) for field in schema], batch.num_rows


def _with_parents(given: Any, who: str) -> tuple[Any, Any]:
    """(what was made, parents or None) of what a batch operator gave."""
    if not isinstance(given, tuple):
        return given, None
    if len(given) != 2:
        raise OperatorError(
            f"{who} returned a tuple of {len(given)}: return the rows alone, or (rows, parents), where parents[j] is"
            " the position of the input row that row j descends from"
        )
    return given


def _one_batch(data: Any) -> pa.RecordBatch:
    if not isinstance(data, pa.Table):
        return data
    columns = [column.combine_chunks() for column in data.columns]
    columns = [pa.concat_arrays(c.chunks) if isinstance(c, pa.ChunkedArray) else c for c in columns]
    return batch_of(columns, data.schema.names, data.num_rows)


def _checked_column(data: pa.RecordBatch, field: pa.Field, who: str) -> Any:
    found = data.schema.names.count(field.name)
    if found != 1:
        lack = "lacks it" if not found else f"has it {found} times"
        raise OperatorError(
            f"{who} declares a column {field.name!r}, and what it returned {lack}: it has {data.schema.names}"
        )
    column = data.column(field.name)
    if column.type != field.type:
        try:
            column = column.cast(field.type)
        except pa.ArrowException as error:
            raise OperatorError(
                f"{who}: column {field.name!r} is declared {field.type}, and is {column.type} in what it returned"
                f" ({_line(error)}); cast it, or declare what it is"
            ) from None
    if not field.nullable and column.null_count:
        raise OperatorError(
            f"{who}: column {field.name!r} is declared not null, and has a null in what it returned; fill it, or drop"
            " 'not null' from the schema"
        )
    return column


# What is given by mistake, and what to do about it.
_HINTS = {
    "NoneType": "return what was made of the rows; for none at all, no rows and parents=[]",
    "generator": "return one, do not yield",
    "list": "return one, of all rows together",
    "tuple": "return one, or (rows, parents)",
}
_ARROW_HINTS = {
    "DataFrame": "use @pandas_operator, or pa.RecordBatch.from_pandas(frame, preserve_index=False)",
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


def _type(value: Any) -> str:
    return type(value).__name__


def _a(value: Any) -> str:
    return "None" if value is None else f"a {_type(value)}"


def _line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def checked_parents(parents: Any, children: int, rows: int, who: str) -> Positions:
    """``parents`` as int64[children], each an index of one of ``rows`` rows. Raises :class:`OperatorError`."""
    if isinstance(parents, (pa.Array, pa.ChunkedArray)) and parents.null_count:
        raise OperatorError(f"{who}: parents has nulls; every row descends from one row of the input")
    try:
        column = np.asarray(parents)
    except ValueError:
        column = np.asarray(None)
    if column.size == 0:
        column = column.astype(np.int64)
    if column.ndim != 1 or column.dtype.kind not in "iu":
        raise OperatorError(
            f"{who}: parents are to be whole numbers, one a row, as a list or an array of ints; got {_a(parents)} of"
            f" {column.dtype}"
        )
    if len(column) != children:
        raise OperatorError(f"{who} returned {children} rows and {len(column)} parents; give one a row")
    positions: Positions = np.ascontiguousarray(column, np.int64)
    if len(positions) and not 0 <= positions.min() <= positions.max() < rows:
        bad = int(positions[(positions < 0) | (positions >= rows)][0])
        raise OperatorError(f"{who}: {bad} is no parent; its input had rows 0 up to {rows - 1}")
    return positions


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Python collects garbage every 700 new objects, which doubles the cost of making rows; here it waits for more."""
    before = gc.get_threshold()
    gc.set_threshold(before[0] and max(before[0], COLLECT_EVERY), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


class Culprits:
    """The rows of one operator in one task that raised: fails their trees, and shows the first traceback."""

    def __init__(self, name: str, on_error: OnError, tally: Tally) -> None:
        self._name = name
        self._on_error = on_error
        self._tally = tally
        self._is_first = True

    def fail(self, anchors: Anchors, row: int, error: Exception) -> None:
        """Fail the trees of one row; raises ``error`` again where the operator is to raise, or the row has no tree."""
        roots = [root for root, _ in anchors.of(row)]
        if self._on_error == "raise" or not roots:
            raise error
        brief = f"{self._name}: {type(error).__name__}"
        reason = f"{brief}: {error}"[:REASON_LENGTH_MAX]
        if self._is_first:
            self._is_first = False
            shown = "".join(traceback.format_exception(error))
            _logger.error("operator %r: a row raised, and its record fails\n%s", self._name, shown)
            reason = f"{reason}\n{shown[-TRACEBACK_LENGTH_MAX:]}"
        for root in roots:
            self._tally.fail(root, reason, brief)


def _over_pandas(function: BatchFunction, schema: StructType, name: str) -> BatchFunction:
    """A function over pandas as one over Arrow."""

    who = f"operator {name!r}"

    def over_arrow(batch: pa.RecordBatch) -> Any:
        frame, parents = _with_parents(function(batch.to_pandas(date_as_object=True)), who)
        fields = arrow_schema(schema)
        if not hasattr(frame, "iloc") or not hasattr(frame, "columns"):
            hint = _PANDAS_HINTS.get(_type(frame), _HINTS.get(_type(frame), "return a frame of the declared columns"))
            column = schema.names[0] if schema.names else "x"
            raise OperatorError(
                f"{who} returned {_a(frame)} where a pandas DataFrame is due: {hint.format(column=column)}"
            )
        names = list(frame.columns)
        for field in fields:
            if names.count(field.name) != 1:
                lack = "lacks it" if field.name not in names else "has it more than once"
                raise OperatorError(f"{who} declares a column {field.name!r}, and the frame {lack}: it has {names}")
        columns = [_pandas_column(frame[field.name], field, who) for field in fields]
        return batch_of(columns, schema.names, len(frame)), parents

    return over_arrow


def _pandas_column(series: Any, field: pa.Field, who: str) -> Any:
    # A column without a value has whatever dtype pandas thought of, and Arrow would go by that.
    if series.isna().all():
        return pa.nulls(len(series), field.type)
    try:
        if pa.types.is_binary(field.type) and getattr(series.dtype, "kind", "O") in "biufmM":
            raise TypeError("numbers are no bytes")
        made = pa.Array.from_pandas(series, type=field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise OperatorError(
            f"{who}: column {field.name!r} is declared {field.type}, and is {series.dtype} in the frame"
            f" ({_line(error)}); cast it, or declare what it is"
        ) from None
    return made.combine_chunks() if isinstance(made, pa.ChunkedArray) else made


def declared_fields(schema: str | StructType, who: str) -> StructType:
    """The columns of a declared schema. ValueError for what is none, and for names that are the acker's or come
    twice."""
    fields = struct_type(schema)
    _refuse_names(fields, who)
    return fields


def check_declared(schema: Any, who: str, example: str) -> None:
    """As :func:`declared_fields`, where it is declared, and as far as one can tell without a session. TypeError too."""
    fields = checked_schema(schema, who, example)
    if fields is not None:
        _refuse_names(fields, who)


def _refuse_names(fields: StructType, who: str) -> None:
    taken = reserved(fields.names)
    if taken:
        raise ValueError(
            f"{who}: the columns {', '.join(TRACKING)} are the acker's own; rename {taken[0]!r} (Spark takes names in"
            " any case)"
        )
    twice = {column for column in fields.names if fields.names.count(column) > 1}
    if twice:
        raise ValueError(f"{who}: the schema names {sorted(twice)} more than once")


def checked_function(function: Any, name: str | None, who: str, takes: str) -> str:
    """The name of a user's function as a step: ``name``, or its own. TypeError or ValueError for what cannot be one.

    ``who``: how it is declared, as ``@operator``; ``takes``: what it is called with.
    """
    if not callable(function):
        raise TypeError(f"{who} is for a function, got {_a(function)}")
    if name is not None and (not isinstance(name, str) or not name):
        raise ValueError(f"{who}: name={name!r}; give a name, which goes into edges and reports")
    chosen = name or getattr(function, "__name__", None)
    if chosen is None:
        raise ValueError(f"{who}: {function!r} has no name of its own; give it one with name=...")
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"{who}: {chosen!r} is async, and is called as a plain function in a worker; write it with def")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return str(chosen)
    try:
        signature.bind(None)
    except TypeError:
        raise TypeError(
            f"{who}: {chosen!r} is called with one argument, {takes}, and takes {signature}; write a plain function"
            " (of a method, wrap it in one)"
        ) from None
    return str(chosen)


def refuse_no_frame(df: Any, what: object, test: str) -> None:
    """TypeError when ``what`` is applied to something else than a DataFrame. ``test``: how to try it without one."""
    if not isinstance(df, DataFrame):
        raise TypeError(f"{what!r} is applied to a DataFrame, got {_a(df)}; to try it without Spark, use {test}")


def _declared(
    kind: Kind,
    schema: str | StructType,
    keep: Sequence[str] | str,
    name: str | None,
    on_error: OnError,
    deterministic: bool,
) -> Declared:
    who = _DECORATORS[kind]
    check_declared(schema, f"@{who}", f"@{who}('word string, count int')")
    if isinstance(keep, str) and keep != "*":
        raise ValueError(f"keep={keep!r}: give a list of column names, or '*' for all")
    if not isinstance(keep, str) and not all(isinstance(column, str) for column in _iterable(keep)):
        raise TypeError(f"@{who}: keep={keep!r}; give a list of column names, or '*' for all")
    kept: tuple[str, ...] | Literal["*"] = "*" if keep == "*" else tuple(keep)
    return Declared(schema, kept, name, on_error, deterministic)


def _iterable(value: Any) -> Iterable[Any]:
    return value if isinstance(value, Iterable) else (value,)
