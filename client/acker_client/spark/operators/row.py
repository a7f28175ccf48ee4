"""Row: a user's function over one row, as a step: what it yields becomes the row's children.

Decides when children are handed on (as soon as there are enough, so that memory stays bounded), and that a row which
raises, or gives what does not fit the schema, fails its tree while the rest goes on.
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

# Objects between two collections of garbage while rows are made: enough to be quick, few enough to hold in memory.
COLLECT_EVERY = 50_000


@dataclass(frozen=True, slots=True)
class RowStep:
    """A row operator as a step. ``given``: schema of its input; ``keep``: columns handed on."""

    name: str
    function: RowFunction
    given: StructType
    schema: StructType
    keep: tuple[str, ...]
    on_error: OnError

    def start(self, tally: Tally) -> TakeRows:
        return RowTask(self, tally).take


class RowTask:
    """A row operator in one task."""

    def __init__(self, step: RowStep, tally: Tally) -> None:
        self._step = step
        self._tally = tally
        self._culprits = Culprits(step.name, step.on_error, tally)
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

    def _children(self, rows: Rows, start: int, given: list[Any]) -> list[list[Any]]:
        """What the rows from ``start`` on become: a list for each, up to the end or to a full batch of children."""
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
            return self._writer.listed(self._step.function(given))
        except Exception as error:  # noqa: BLE001  # the user's function may raise anything
            self._culprits.fail(rows.anchors, row, error)
            return []

    def _made(self, rows: Rows, start: int, children: list[list[Any]]) -> Rows:
        """The children of the rows from ``start`` on, anchored to them."""
        every = list(itertools.chain.from_iterable(children))
        try:
            columns = self._writer.columns(every)
        except Exception:  # noqa: BLE001  # what Arrow raises for a value is not one type
            self._drop_mismatches(rows, start, children)
            columns = self._writer.columns(list(itertools.chain.from_iterable(children)))
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


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Python collects garbage every 700 new objects, which doubles the cost of making rows; here it waits for more."""
    before = gc.get_threshold()
    gc.set_threshold(before[0] and max(before[0], COLLECT_EVERY), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
