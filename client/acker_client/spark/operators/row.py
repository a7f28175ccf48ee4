"""The step that calls a user's function with one row. The rows that the function yields are the row's children.

Works in pieces of few rows, and passes children on as soon as there are enough, so that memory stays bounded. If a row
cannot be read or raises, or its children do not fit the schema, its tree fails and the other rows go on.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, pairwise
from types import GeneratorType
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.types import StructType

from acker_client.spark.anchoring import sizes
from acker_client.spark.anchoring.anchors import Anchors, Rows
from acker_client.spark.anchoring.derive import derive_keeping
from acker_client.spark.anchoring.tally import Tally
from acker_client.spark.operators.culprits import Culprits
from acker_client.spark.operators.declared import OnError
from acker_client.spark.worker import chain
from acker_client.spark.worker.chain import TakeRows
from acker_client.spark.worker.rows import Mismatch, RowReader, RowWriter, UnreadableRow

RowFunction = Callable[[Any], Any]

# The most rows of a piece. A piece is made, passed to the function and converted before the next one. Its objects stay
# in the processor's cache, and are freed before the garbage collector visits them.
PIECE_ROWS = 1 << 10
# A piece ends early when its rows have this many children.
PIECE_CHILDREN = 1 << 12
# New objects between two garbage collections while rows are made: a compromise between speed and memory.
COLLECT_EVERY = 50_000


@dataclass(frozen=True, slots=True)
class RowStep:
    """A row operator as a step. ``given``: the schema of its input. ``keep``: input columns to add to the output."""

    name: str
    function: RowFunction
    given: StructType
    schema: StructType
    keep: tuple[str, ...]
    on_error: OnError
    anchored: bool = True

    def start(self, tally: Tally) -> TakeRows:
        return RowTask(self, tally).take_rows


@dataclass(frozen=True, slots=True)
class _Piece:
    """Children of some rows: ``counts``, the number of children of each row, and the ``columns`` of all children."""

    counts: list[int]
    columns: list[Any]


class RowTask:
    """A row operator in one task."""

    def __init__(self, step: RowStep, tally: Tally) -> None:
        self._step = step
        self._tally = tally
        self._culprits = Culprits(step.name, step.on_error, tally)
        self._reader, self._writer = RowReader(step.given), RowWriter(step.schema)

    def take_rows(self, rows: Rows) -> Iterator[Rows]:
        with _rare_collections():
            start = 0
            for pieces in self._together(rows):
                yield from self._anchor_children(rows, start, pieces)
                start += sum(len(each.counts) for each in pieces)

    def _together(self, rows: Rows) -> Iterator[list[_Piece]]:
        """Yield the pieces that make a batch together."""
        pieces, found, size = list[_Piece](), 0, 0
        for piece in self._pieces(rows):
            more = sum(column.nbytes for column in piece.columns)
            # Together with a large piece, they may not fit into one array.
            if pieces and size + more > sizes.BATCH_BYTES:
                yield pieces
                pieces, found, size = [], 0, 0
            pieces.append(piece)
            found, size = found + sum(piece.counts), size + more
            if found >= chain.BATCH_ROWS or size >= sizes.BATCH_BYTES:
                yield pieces
                pieces, found, size = [], 0, 0
        if pieces:
            yield pieces

    def _pieces(self, rows: Rows) -> Iterator[_Piece]:
        """Call the function for every row, and yield the children of the rows, in order."""
        for start in range(0, len(rows), PIECE_ROWS):
            row, stop = start, min(start + PIECE_ROWS, len(rows))
            given, function = self._read(rows.data.slice(start, PIECE_ROWS))
            left = enumerate(given, start)
            while row < stop:
                # No variable here may hold the children: the next piece takes their memory, which is in the cache.
                for piece in self._converted(rows.anchors, row, *self._call(rows.anchors, left, function)):
                    row += len(piece.counts)
                    yield piece

    def _read(self, batch: pa.RecordBatch) -> tuple[list[Any], RowFunction]:
        """Return the Rows of ``batch``, and the function to call for each of them."""
        try:
            return self._reader.rows(batch), self._step.function
        except Exception:  # noqa: BLE001  # Arrow and Spark's converters raise several types of errors
            return self._reader.readable_rows(batch), self._call_if_readable

    def _call_if_readable(self, row: Any) -> Any:
        if isinstance(row, UnreadableRow):
            raise row.error
        return self._step.function(row)

    def _call(
        self, anchors: Anchors, left: Iterator[tuple[int, Any]], function: RowFunction
    ) -> tuple[list[int], list[Any]]:
        """Call ``function`` for the rows that are ``left`` (index and Row), until their children fill a piece. Return
        the number of children of each row, and all children."""
        rows_in = self._writer.rows_in
        fixed, copy = self._writer.fixed, self._writer.copy
        counts, children, before = list[int](), list[Any](), 0
        append = children.append
        for row, given in left:
            try:
                made = function(given)
                # Most functions are generators, and need none of the checks.
                for child in made if type(made) is GeneratorType else rows_in(made):
                    append(child if type(child) in fixed else copy(child))
            except Exception as error:  # noqa: BLE001  # the user's function may raise anything
                # A generator may have yielded children before it raised.
                del children[before:]
                self._culprits.fail_row(anchors, row, error)
            counts.append(len(children) - before)
            before = len(children)
            if before >= PIECE_CHILDREN:
                break
        return counts, children

    def _converted(self, anchors: Anchors, start: int, counts: list[int], children: list[Any]) -> list[_Piece]:
        """Return the children of the rows from ``start`` on as columns. Rows with a child that does not fit fail."""
        try:
            columns = self._writer.columns(children)
        except Exception:  # noqa: BLE001  # Arrow raises several types of errors for unfit values
            counts, children = self._drop_mismatches(anchors, start, counts, children)
            columns = self._writer.columns(children)
        # Arrow makes a chunked array where one array cannot hold the values.
        if not any(isinstance(column, pa.ChunkedArray) for column in columns):
            return [_Piece(counts, columns)]
        if len(counts) == 1:
            self._culprits.fail_row(
                anchors, start, Mismatch("the rows that it became have more than 2 GiB in a column")
            )
            return [_Piece([0], self._writer.columns([]))]
        half = len(counts) // 2
        after = sum(counts[:half])
        return [
            *self._converted(anchors, start, counts[:half], children[:after]),
            *self._converted(anchors, start + half, counts[half:], children[after:]),
        ]

    def _drop_mismatches(
        self, anchors: Anchors, start: int, counts: list[int], children: list[Any]
    ) -> tuple[list[int], list[Any]]:
        """Fail the rows with a child that does not fit the schema. Return the counts and children (as tuples) without
        theirs."""
        fit, fitting = list[int](), list[Any]()
        for row, (first, after) in enumerate(pairwise(accumulate(counts, initial=0)), start):
            try:
                made = self._writer.tuples(children[first:after])
                self._writer.check(made)
            except Mismatch as error:
                self._culprits.fail_row(anchors, row, error)
                made = []
            fit.append(len(made))
            fitting += made
        return fit, fitting

    def _anchor_children(self, rows: Rows, start: int, pieces: list[_Piece]) -> Iterator[Rows]:
        """Return the children of the rows from ``start`` on, anchored to these rows."""
        counts = np.array([count for piece in pieces for count in piece.counts], np.int64)
        columns = [pa.concat_arrays(parts) for parts in zip(*(piece.columns for piece in pieces), strict=True)]
        part = Rows(rows.data.slice(start, len(counts)), rows.anchors.slice(start, start + len(counts)))
        step = self._step
        names, anchored = step.schema.names, step.anchored
        return derive_keeping(self._tally, part, columns, names, step.keep, counts=counts, anchored=anchored)


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Collect garbage less often. Python's default (every 700 new objects) doubles the cost of making rows."""
    before = gc.get_threshold()
    gc.set_threshold(before[0] and max(before[0], COLLECT_EVERY), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
