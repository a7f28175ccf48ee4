"""Operators: the user's functions as steps of a tracked pipeline. Storm's bolts.

Decides how a function is called (row by row, or a batch at a time), how what it gives is held against the declared
schema, which rows of its input its output descends from, and what becomes of a row that raises: its tree fails, with
the exception as reason, and the rest goes on. Every output is anchored to its input, and the input is acked, in one
breath. The function sees no tracking columns.
"""

from __future__ import annotations

import gc
import logging
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, overload

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from acker_client.spark import stage
from acker_client.spark.anchors import TRACKING, Anchors, Positions, Rows
from acker_client.spark.derive import batch_of, derive
from acker_client.spark.rows import Mismatch, RowReader, RowWriter, arrow_schema, struct_type
from acker_client.spark.tally import REASON_LENGTH_MAX, TRACEBACK_LENGTH_MAX, Report, Tally

OnError = Literal["fail", "raise"]
RowFunction = Callable[[Any], Any]
BatchFunction = Callable[[Any], Any]

# Spark's own check that a task which is run again gives the same rows; with it off, batch operators digest values too.
RETRY_ON_MISMATCH = "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch"

# Objects between two collections of garbage while rows are made: enough to be quick, few enough to hold in memory.
COLLECT_EVERY = 50_000

_logger = logging.getLogger("acker.spark")


class OperatorError(TypeError):
    """A batch operator broke its contract: what it returned fits neither its schema nor its input. The task fails."""


class Operator:
    """A function as a step: ``df.transform(op)`` or ``op(df)`` applies it to a tracked frame.

    ``function`` is the user's, untouched: call it to test it.
    """

    def __init__(
        self, function: Callable[[Any], Any], declared: Declared, kind: Literal["row", "pandas", "arrow"]
    ) -> None:
        self.function = function
        self.name = declared.name or function.__name__
        self.__doc__ = function.__doc__
        self.__name__ = self.name
        self._declared = declared
        self._kind = kind

    def __call__(self, df: DataFrame) -> DataFrame:
        """The frame of what this operator makes of ``df``: declared columns, kept ones, and anchors."""
        given, schema = stage.user_schema(df), self._declared.fields(self.name)
        keep = self._declared.kept_of(given, schema, self.name)
        kept = StructType([field for field in given.fields if field.name in keep])
        step = self._step(df.sparkSession, given, schema, tuple(kept.names))
        return stage.apply(df, step, "operator", StructType([*schema.fields, *kept.fields]))

    def __repr__(self) -> str:
        return f"<operator {self.name!r}>"

    def _step(self, spark: SparkSession, given: StructType, schema: StructType, keep: tuple[str, ...]) -> stage.Step:
        declared = self._declared
        if self._kind == "row":
            return RowStep(self.name, self.function, given, schema, keep, declared.on_error)
        function = _over_pandas(self.function, schema, self.name) if self._kind == "pandas" else self.function
        digests_values = not declared.deterministic or not spark_checks_reruns(spark)
        return BatchStep(self.name, function, schema, keep, declared.on_error, digests_values)


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
        """The schema. DDL is Spark's to read, so this needs a session."""
        fields = struct_type(self.schema)
        taken = [column for column in fields.names if column in TRACKING]
        if taken:
            raise ValueError(
                f"operator {name!r}: the columns {', '.join(TRACKING)} are the acker's own; rename {taken[0]!r}"
            )
        twice = {column for column in fields.names if fields.names.count(column) > 1}
        if twice:
            raise ValueError(f"operator {name!r}: the schema names {sorted(twice)} more than once")
        return fields

    def kept_of(self, given: StructType, schema: StructType, name: str) -> tuple[str, ...]:
        """The columns to keep of an input with these columns. ValueError that says which cannot be."""
        keep = tuple(given.names) if self.keep == "*" else self.keep
        missing = [column for column in keep if column not in given.names]
        if missing:
            raise ValueError(f"operator {name!r} keeps {missing}, which its input does not have: it has {given.names}")
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
    declared = _declared(schema, keep, name, on_error, True)
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
    declared = _declared(schema, keep, name, on_error, deterministic)
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
    declared = _declared(schema, keep, name, on_error, deterministic)
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
        columns, parents = self._checked(given, len(rows))
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

    def _checked(self, given: Any, rows: int) -> tuple[list[Any], Positions | None]:
        data, parents = given if isinstance(given, tuple) else (given, None)
        columns, children = checked_columns(data, self._schema, f"operator {self._step.name!r}")
        return columns, self._parents(parents, children, rows)

    def _parents(self, parents: Any, children: int, rows: int) -> Positions | None:
        if parents is None:
            if children != rows:
                raise OperatorError(
                    f"operator {self._step.name!r} returned {children} rows for {rows}, without parents: return"
                    " (rows, parents), where parents[j] is the position of the input row that row j descends from"
                )
            return None
        return checked_parents(parents, children, rows, f"operator {self._step.name!r}")


def checked_columns(data: Any, schema: pa.Schema, who: str) -> tuple[list[Any], int]:
    """The columns that ``schema`` declares, out of a RecordBatch or Table, and how many rows. Raises
    :class:`OperatorError`."""
    if isinstance(data, pa.Table):
        columns = [column.combine_chunks() for column in data.columns]
        columns = [pa.concat_arrays(c.chunks) if isinstance(c, pa.ChunkedArray) else c for c in columns]
        data = batch_of(columns, data.schema.names, data.num_rows)
    if not isinstance(data, pa.RecordBatch):
        raise OperatorError(
            f"{who} is to return a pyarrow RecordBatch or Table, or that and parents; got {_type(data)}"
        )
    return [_checked_column(data, field, who) for field in schema], data.num_rows


def _checked_column(data: pa.RecordBatch, field: pa.Field, who: str) -> Any:
    if data.schema.names.count(field.name) != 1:
        raise OperatorError(f"{who} declares a field {field.name!r}, and returned {data.schema.names}")
    column = data.column(field.name)
    if column.type != field.type:
        try:
            column = column.cast(field.type)
        except pa.ArrowException as error:
            raise OperatorError(f"{who}: field {field.name!r} is {field.type}, got {column.type} ({error})") from None
    if not field.nullable and column.null_count:
        raise OperatorError(f"{who}: field {field.name!r} is declared not null, got a null")
    return column


def _type(value: Any) -> str:
    return type(value).__name__


def checked_parents(parents: Any, children: int, rows: int, who: str) -> Positions:
    """``parents`` as int64[children], each an index of one of ``rows`` rows. Raises :class:`OperatorError`."""
    if isinstance(parents, (pa.Array, pa.ChunkedArray)) and parents.null_count:
        raise OperatorError(f"{who}: parents has nulls; every row descends from one row of the input")
    column = np.asarray(parents)
    if column.size == 0:
        column = column.astype(np.int64)
    if column.ndim != 1 or column.dtype.kind not in "iu":
        raise OperatorError(f"{who}: parents are to be whole numbers, one a row; got {column.dtype} {column.shape}")
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

    def over_arrow(batch: pa.RecordBatch) -> Any:
        given = function(batch.to_pandas(date_as_object=True))
        frame, parents = given if isinstance(given, tuple) else (given, None)
        if not hasattr(frame, "iloc") or not hasattr(frame, "columns"):
            return given
        fields = arrow_schema(schema)
        missing = [field.name for field in fields if field.name not in frame.columns]
        if missing:
            raise OperatorError(f"operator {name!r} declares {missing}, and returned {list(frame.columns)}")
        columns = [_pandas_column(frame[field.name], field, name) for field in fields]
        return pa.RecordBatch.from_arrays(columns, schema=fields), parents

    return over_arrow


def _pandas_column(series: Any, field: pa.Field, name: str) -> Any:
    try:
        return pa.Array.from_pandas(series, type=field.type)
    except pa.ArrowException as error:
        raise OperatorError(
            f"operator {name!r}: field {field.name!r} is {field.type}, got {series.dtype} ({error})"
        ) from None


def _declared(
    schema: str | StructType, keep: Sequence[str] | str, name: str | None, on_error: OnError, deterministic: bool
) -> Declared:
    if isinstance(keep, str) and keep != "*":
        raise ValueError(f"keep={keep!r}: give a list of column names, or '*' for all")
    kept: tuple[str, ...] | Literal["*"] = "*" if keep == "*" else tuple(keep)
    return Declared(schema, kept, name, on_error, deterministic)
