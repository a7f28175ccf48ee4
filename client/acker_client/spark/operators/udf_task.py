"""The task of an ``acker_udf``: calls the user's function with the columns of each batch, and counts the rows' edges.

Decides which rows fail when the function raises, or returns a value that does not fit. A row function is called row by
row. A function over batches is called again with each half, down to the single rows that cause the error. A function
over an iterator is started again behind the batches for which it raised, and these are given to it one half after the
other.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from acker_client.spark import compat
from acker_client.spark.anchoring.anchors import Anchors, Positions, Rows, of_columns, pack
from acker_client.spark.anchoring.derive import batch_of, derive
from acker_client.spark.anchoring.tally import Tally
from acker_client.spark.operators.culprits import Culprits
from acker_client.spark.operators.declared import OnError
from acker_client.spark.worker.returns import OperatorError, checked_columns, columns_of_frame, kind_of, to_pandas
from acker_client.spark.worker.rows import RowReader, RowWriter, UnreadableRow, arrow_schema
from acker_client.spark.worker.snapshots import snapshot

log = logging.getLogger("acker.spark")

Kind = Literal["row", "arrow", "pandas"]
Columns = list[Any]


@dataclass(frozen=True, slots=True)
class Udf:
    """An ``acker_udf``, as a task needs it. Picklable. ``fields``: the columns of a result; if ``is_single``,
    the only one. ``emits``: whether a result is a record of its own."""

    name: str
    function: Callable[..., Any]
    kind: Kind
    is_iterator: bool
    fields: StructType
    is_single: bool
    emits: bool
    on_error: OnError


@dataclass(frozen=True, slots=True)
class Given:
    """A batch of rows: the user's columns, and the anchors."""

    columns: Columns
    anchors: Anchors

    def __len__(self) -> int:
        return self.anchors.rows

    def slice(self, start: int, stop: int) -> Given:
        columns = [column.slice(start, stop - start) for column in self.columns]
        return Given(columns, self.anchors.slice(start, stop))


@dataclass(frozen=True, slots=True)
class Made:
    """The results of a batch. ``columns``: m results; ``rows``: int64[m], ascending, the rows that they are of. The
    other rows have failed, or their result is null."""

    columns: Columns
    rows: Positions


class _Feed:
    """The iterator that a user's function gets. ``taken``: the batches that it took and has not answered. ``error``:
    why the input could not be read on; the function may have swallowed it."""

    def __init__(self, batches: Iterator[Given], arguments: Callable[[Given], Columns]) -> None:
        self.taken = deque[Given]()
        self.is_read = False
        self.error: BaseException | None = None
        self._batches = batches
        self._arguments = arguments

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            given = next(self._batches)
        except StopIteration:
            self.is_read = True
            raise
        except BaseException as error:
            self.error = error
            raise
        self.taken.append(given)
        return _as_one(self._arguments(given))


class UdfTask:
    """An ``acker_udf`` in one task. ``width``: how many tracking columns a batch has. ``is_tracked``: whether the rows
    of the job are tracked, apart from single ones. ``tally``: the edges so far."""

    def __init__(self, udf: Udf, width: int, *, is_tracked: bool) -> None:
        self.tally = Tally(udf.name, finds_copies=True)
        self._udf = udf
        self._width = width
        self._is_tracked = is_tracked
        self._culprits = Culprits(udf.name, udf.on_error, self.tally)
        self._schema = arrow_schema(udf.fields)
        self._writer = RowWriter(udf.fields)
        self._subject = f"acker_udf {udf.name!r}"

    def run(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the column of results for each batch of columns."""
        every = map(self._given, batches)
        made = self._streamed(every) if self._udf.is_iterator else ((given, self._called(given)) for given in every)
        for given, results in made:
            yield self._column(given, results)
        if self.tally.dropped:
            log.warning(
                "%s: %d rows without anchors raised, the first: %s",
                self._subject,
                self.tally.dropped,
                self.tally.dropped_because,
            )

    def _given(self, batch: Any) -> Given:
        columns = list(batch) if isinstance(batch, (tuple, list)) else [batch]
        return Given(columns[: -self._width], of_columns(columns[-self._width :]))

    # -- calls

    def _called(self, given: Given) -> Made:
        """Call the function for a batch. Rows for which it raises fail."""
        if self._udf.kind == "row":
            return self._called_by_row(given)
        try:
            made = self._call(given)
        except OperatorError:
            raise
        except Exception as error:  # noqa: BLE001  # the user's function may raise anything
            return self._called_in_halves(given, error)
        self._culprits.note_fit()
        return made

    def _called_in_halves(self, given: Given, error: Exception) -> Made:
        count = len(given)
        if count == 1 or self._udf.on_error == "raise":
            self._raise_untracked(given.anchors, 0, error)
            self._culprits.fail_single_row(given.anchors, error)
            return Made([pa.nulls(0, field.type) for field in self._schema], np.arange(0))
        # Copied, because the function may fill the memory of the first half's results again for the second half.
        parts = [
            (start, _copied(self._called(given.slice(start, stop))))
            for start, stop in ((0, count // 2), (count // 2, count))
        ]
        columns = [pa.concat_arrays(pieces) for pieces in zip(*(made.columns for _, made in parts), strict=True)]
        return Made(columns, np.concatenate([made.rows + start for start, made in parts]))

    def _call(self, given: Given) -> Made:
        """Call a function over batches once."""
        arguments = self._arguments(given)
        if not self._udf.is_iterator:
            return self._checked(self._udf.function(*arguments), len(given))
        results = list(self._udf.function(iter([_as_one(arguments)])))
        if len(results) != 1:
            raise OperatorError(f"{self._subject} yielded {len(results)} times for one batch: yield once for each")
        return self._checked(results[0], len(given))

    def _streamed(self, batches: Iterator[Given]) -> Iterator[tuple[Given, Made]]:
        """Call a function over an iterator. It is started once, and again after it has raised."""
        feed = _Feed(batches, self._arguments)
        while True:
            try:
                yield from self._answers(feed)
            except OperatorError:
                raise
            except Exception:
                # Without a batch in its hands it would raise again.
                if feed.error is not None or not feed.taken:
                    raise
                while feed.taken:
                    given = feed.taken.popleft()
                    yield given, self._called(given)
            else:
                break
        if feed.error is not None:
            raise feed.error
        if feed.taken or not feed.is_read:
            raise OperatorError(f"{self._subject} ended before its input: take every batch, and yield once for each")

    def _answers(self, feed: _Feed) -> Iterator[tuple[Given, Made]]:
        for result in self._udf.function(feed):
            if not feed.taken:
                raise OperatorError(f"{self._subject} yielded more often than it took a batch: yield once for each")
            given = feed.taken[0]
            # Stays in the feed until its result fits, because a batch without a result is given to the function again.
            made = self._checked(result, len(given))
            self._culprits.note_fit()
            feed.taken.popleft()
            yield given, made

    def _called_by_row(self, given: Given) -> Made:
        values, rows = list[Any](), list[int]()
        for row, arguments in enumerate(self._rows_of(given)):
            try:
                if isinstance(arguments, UnreadableRow):
                    raise arguments.error
                value = snapshot(self._udf.function(*arguments))
                if value is not None or self._udf.is_single:
                    values.append(self._row_of(value))
                    rows.append(row)
            except Exception as error:  # noqa: BLE001  # the user's function may raise anything
                self._fail_row(given.anchors, row, error)
        try:
            columns = self._writer.columns(values)
        except Exception:  # noqa: BLE001  # Arrow raises several types of errors for unfit values
            fit = [index for index, value in enumerate(values) if self._fits(value, given.anchors, rows[index])]
            values, rows = [values[index] for index in fit], [rows[index] for index in fit]
            columns = self._writer.columns(values)
        return Made(columns, np.array(rows, np.int64))

    def _raise_untracked(self, anchors: Anchors, row: int, error: Exception) -> None:
        # A row without anchors in a job that is tracked may stand for a record that has failed before.
        if not anchors.of(row) and not self._is_tracked:
            raise error

    def _fail_row(self, anchors: Anchors, row: int, error: Exception) -> None:
        self._raise_untracked(anchors, row, error)
        self._culprits.fail_row(anchors, row, error)

    def _row_of(self, value: Any) -> Any:
        # In a tuple, so that a value that is itself a tuple or a dict is not taken for a row.
        return (value,) if self._udf.is_single else value

    def _fits(self, value: Any, anchors: Anchors, row: int) -> bool:
        try:
            self._writer.check(self._writer.tuples([value]))
        except Exception as error:  # noqa: BLE001
            self._fail_row(anchors, row, error)
            return False
        return True

    # -- arguments and results

    def _arguments(self, given: Given) -> Columns:
        return [_series(column) for column in given.columns] if self._udf.kind == "pandas" else given.columns

    def _rows_of(self, given: Given) -> Iterator[tuple[Any, ...] | UnreadableRow]:
        names = [f"_{index}" for index in range(len(given.columns))]
        fields = [
            StructField(name, compat.spark_type(pa.field(name, column.type)))
            for name, column in zip(names, given.columns, strict=True)
        ]
        return iter(RowReader(StructType(fields)).readable_rows(batch_of(given.columns, names, len(given))))

    def _checked(self, result: Any, rows: int) -> Made:
        """Return the declared columns of a result for ``rows`` rows. Raises :class:`OperatorError` and
        :class:`~acker_client.spark.worker.rows.Mismatch`."""
        made = np.arange(rows)
        is_array = isinstance(result, (pa.Array, pa.ChunkedArray))
        if is_array and not self._udf.is_single and result.null_count and len(result) == rows:
            # A null struct makes no record, so its fields need not fit.
            is_valid = result.is_valid()
            result, made = result.filter(is_valid), np.flatnonzero(is_valid.to_numpy(zero_copy_only=False))
        if self._udf.kind == "pandas":
            frame = result.to_frame(self._schema.names[0]) if hasattr(result, "to_frame") else result
            columns = columns_of_frame(frame, self._schema, self._subject)
        else:
            columns, _ = checked_columns(self._batch_of(result), self._schema, self._subject)
        found = len(columns[0])
        if found != len(made):
            raise OperatorError(f"{self._subject} returned {found} results for {rows} rows: return one for each row")
        return Made(columns, made)

    def _batch_of(self, result: Any) -> Any:
        if isinstance(result, pa.ChunkedArray):
            result = result.combine_chunks()
        if not isinstance(result, pa.Array):
            if isinstance(result, (pa.RecordBatch, pa.Table)):
                return result
            raise OperatorError(f"{self._subject} returned {kind_of(result)} where a pyarrow Array is expected")
        if self._udf.is_single:
            return pa.RecordBatch.from_arrays([result], names=self._schema.names)
        return pa.RecordBatch.from_struct_array(result)

    def _column(self, given: Given, made: Made) -> Any:
        """Count the rows as consumed, and return the column of results; null for rows without one."""
        count, names = len(given), self._schema.names
        if self._udf.emits:
            parents = Rows(batch_of([], [], count), given.anchors)
            records = pack(derive(self.tally, parents, made.columns, names, parents=made.rows))
            found = pa.StructArray.from_arrays(records.columns, names=records.schema.names)
        else:
            self.tally.consume(given.anchors, np.zeros(len(given.anchors.roots), np.uint64))
            is_single = self._udf.is_single
            found = made.columns[0] if is_single else pa.StructArray.from_arrays(made.columns, names=names)
        if len(made.rows) == count:
            return found
        indices = np.full(count, -1, np.int64)
        indices[made.rows] = np.arange(len(made.rows))
        return found.take(pa.array(indices, mask=indices < 0))


def _copied(made: Made) -> Made:
    # Arrow copies the values even if there is one array.
    return Made([pa.concat_arrays([column]) for column in made.columns], made.rows)


def _as_one(arguments: Sequence[Any]) -> Any:
    """Return what an iterator of the user's gives: one column alone, or several as a tuple."""
    return arguments[0] if len(arguments) == 1 else tuple(arguments)


def _series(column: Any) -> Any:
    """Return a column as pandas: a frame for a struct, as Spark does."""
    if pa.types.is_struct(column.type):
        return to_pandas(pa.RecordBatch.from_struct_array(column))
    return to_pandas(column)
