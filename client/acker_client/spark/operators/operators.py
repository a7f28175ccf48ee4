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
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import StructType

from acker_client.spark.core.anchors import Anchors, Rows
from acker_client.spark.core.derive import batch_of, derive
from acker_client.spark.core.tally import REASON_LENGTH_MAX, TRACEBACK_LENGTH_MAX, Report, Tally
from acker_client.spark.guard import plan, stage
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
from acker_client.spark.task.returns import BatchFunction, OperatorError, checked_batch, one_batch, over_pandas
from acker_client.spark.task.rows import Mismatch, RowReader, RowWriter, arrow_schema

__all__ = ["Operator", "OperatorError", "arrow_operator", "operator", "pandas_operator"]

RowFunction = Callable[[Any], Any]

# Spark's own check that a task which is run again gives the same rows; with it off, batch operators digest values too.
RETRY_ON_MISMATCH = "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch"

# Objects between two collections of garbage while rows are made: enough to be quick, few enough to hold in memory.
COLLECT_EVERY = 50_000

_TESTED: dict[Kind, str] = {"row": "Row(...)", "pandas": "frame", "arrow": "batch"}

_logger = logging.getLogger("acker.spark")


class Operator:
    """A function as a step: ``df.transform(op)`` or ``op(df)`` applies it to a tracked frame.

    ``function`` is the user's, untouched; :meth:`test` calls it and holds what it gives against the schema.
    """

    def __init__(self, function: Callable[[Any], Any], declared: Declared, kind: Kind) -> None:
        self.name = checked_function(function, declared.name, f"@{DECORATORS[kind]}", TAKES[kind])
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

        Raises what the function raises, :class:`~acker_client.spark.task.rows.Mismatch` or :class:`OperatorError` where
        what it gives does not fit the schema, and ValueError where ``given`` lacks a column to keep. DDL beyond the
        usual types needs a session.
        """
        schema = self._declared.fields(self.name)
        if self._kind == "row":
            return self._test_row(given, schema)
        is_frame = hasattr(given, "iloc")
        batch = pa.RecordBatch.from_pandas(given, preserve_index=False) if is_frame else one_batch(given)
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
        return over_pandas(self.function, schema, self.name) if self._kind == "pandas" else self.function

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
    declaration = declared("row", schema, keep, name, on_error, True)
    if function is not None:
        return Operator(function, declaration, "row")
    return lambda function: Operator(function, declaration, "row")


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
    declaration = declared("pandas", schema, keep, name, on_error, deterministic)
    return lambda function: Operator(function, declaration, "pandas")


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
    declaration = declared("arrow", schema, keep, name, on_error, deterministic)
    return lambda function: Operator(function, declaration, "arrow")


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
