"""The step that calls a user's function with one row. The rows that the function yields are the row's children.

Passes children on as soon as there are enough, so that memory stays bounded. If a row raises, or its children do not
fit the schema, its tree fails and the other rows go on.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from pyspark.sql.types import StructType

from acker_client.spark.anchoring.anchors import Rows
from acker_client.spark.anchoring.derive import derive
from acker_client.spark.anchoring.tally import Tally
from acker_client.spark.operators.culprits import Culprits
from acker_client.spark.operators.declared import OnError
from acker_client.spark.worker import chain
from acker_client.spark.worker.chain import TakeRows
from acker_client.spark.worker.rows import Mismatch, RowReader, RowWriter

RowFunction = Callable[[Any], Any]

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

    def start(self, tally: Tally) -> TakeRows:
        return RowTask(self, tally).take_rows


class RowTask:
    """A row operator in one task."""

    def __init__(self, step: RowStep, tally: Tally) -> None:
        self._step = step
        self._tally = tally
        self._culprits = Culprits(step.name, step.on_error, tally)
        self._reader, self._writer = RowReader(step.given), RowWriter(step.schema)

    def take_rows(self, rows: Rows) -> Iterator[Rows]:
        with _rare_collections():
            given = self._reader.rows(rows.data)
            start = 0
            while start < len(given):
                children = self._children(rows, start, given)
                yield self._anchor_children(rows, start, children)
                start += len(children)

    def _children(self, rows: Rows, start: int, given: list[Any]) -> list[list[Any]]:
        """Return the children of the rows from ``start`` on, a list for each row.

        Stops at the last row, or as soon as the children fill a batch.
        """
        children, found = list[list[Any]](), 0
        for row in range(start, len(given)):
            made = self._call(rows, row, given[row])
            children.append(made)
            found += len(made)
            if found >= chain.BATCH_ROWS:
                break
        return children

    def _call(self, rows: Rows, row: int, given: Any) -> list[Any]:
        try:
            return self._writer.returned_rows(self._step.function(given))
        except Exception as error:  # noqa: BLE001  # the user's function may raise anything
            self._culprits.fail_row(rows.anchors, row, error)
            return []

    def _anchor_children(self, rows: Rows, start: int, children: list[list[Any]]) -> Rows:
        """Return the children of the rows from ``start`` on, anchored to these rows."""
        every = list(itertools.chain.from_iterable(children))
        try:
            columns = self._writer.columns(every)
        except Exception:  # noqa: BLE001  # Arrow raises several types of errors for unfit values
            self._drop_mismatches(rows, start, children)
            columns = self._writer.columns(list(itertools.chain.from_iterable(children)))
        counts = np.fromiter(map(len, children), np.int64, len(children))
        part = Rows(rows.data.slice(start, len(children)), rows.anchors.slice(start, start + len(children)))
        return derive(self._tally, part, columns, self._step.schema.names, self._step.keep, counts=counts)

    def _drop_mismatches(self, rows: Rows, start: int, children: list[list[Any]]) -> None:
        """Fail the rows with a child that does not fit the schema; turn the children of the others into tuples."""
        for index, made in enumerate(children):
            try:
                children[index] = self._writer.tuples(made)
                self._writer.check(children[index])
            except Mismatch as error:
                self._culprits.fail_row(rows.anchors, start + index, error)
                children[index] = []


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Collect garbage less often. Python's default (every 700 new objects) doubles the cost of making rows."""
    before = gc.get_threshold()
    gc.set_threshold(before[0] and max(before[0], COLLECT_EVERY), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
