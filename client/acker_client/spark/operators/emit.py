"""Emits the records that a task reads: gives their rows anchors, and reports their inits.

Decides which records are tracked. An untracked record is one that a task has covered and never initialised. So the
server counts it as absent: it has no outcome and is never replayed, and its row has no anchors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import Column as SparkColumn

from acker_client.cluster.scope import BatchScope
from acker_client.spark.anchoring.anchors import Anchors, Rows, unpack
from acker_client.spark.anchoring.tally import Report, Tally
from acker_client.spark.operators.flags import without_flag
from acker_client.spark.worker.chain import renamed
from acker_client.spark.worker.returns import OperatorError, kind_of
from acker_protocol.ids import Column, edge0_column, identity_term, mix64_column, numbers_of, root_ids
from acker_protocol.messages import InitScope

READ = "read"

Mask = npt.NDArray[np.bool_]
# The option ``track`` of a source: a function that returns for each row of a batch whether its record is tracked, or a
# condition (SQL, or a Column).
Chooser = Callable[[pa.RecordBatch], Any]
Track = str | SparkColumn | Chooser | None
# The records that a read task emits: all, none (tracking is off), those that a function chooses, or all of them for
# now, because the next chain of operators chooses.
Emits = Literal["all", "none", "later"] | Chooser


class Emitter:
    """The records that one task emits for one report."""

    def __init__(self, scope: BatchScope, emits: Emits = "all") -> None:
        self._scope = scope
        self._emits = emits
        self._tally = Tally(READ)
        # Numbers of rows whose inits the next chain reports.
        self._left: list[Column] = [np.empty(0, np.uint64)]

    @property
    def tracking(self) -> bool:
        return self._emits != "none"

    def emit(self, numbers: Column, columns: pa.RecordBatch, digests: Column | None = None) -> Anchors:
        """Return the anchors of rows. ``numbers: uint64[n]``: the records' numbers in the batch; ``columns``: their
        values; ``digests: uint64[n]``: digests of the rows that go into their edges."""
        if not self.tracking:
            return Anchors.none(len(numbers))
        anchors = self._anchors(numbers, digests)
        if self._emits == "later":
            self._left.append(numbers)
            return anchors
        if callable(self._emits) and len(numbers):
            anchors = only(anchors, _chosen(self._emits(columns), columns.num_rows))
        self._tally.consume(anchors, np.zeros(len(numbers), np.uint64))
        return anchors

    def emit_tracked(self, numbers: Column) -> Anchors:
        """Return the anchors of records that are tracked, whatever the option says."""
        anchors = self._anchors(numbers, None)
        self._tally.consume(anchors, np.zeros(len(numbers), np.uint64))
        return anchors

    def take_over(self, anchors: Anchors, is_tracked: Mask) -> Anchors:
        """Emit rows that the chain before has left to this one. Return the anchors of the tracked rows."""
        self._left.append(numbers_of(self._scope.first, anchors.roots))
        anchors = only(anchors, is_tracked)
        self._tally.consume(anchors, np.zeros(len(anchors.roots), np.uint64))
        return anchors

    def reports(self, ranges: Iterable[tuple[int, int]]) -> list[Report]:
        """Return the report of the inits. ``ranges``: the numbers that the task has read, without those that it leaves
        to the next chain."""
        if not self.tracking:
            return []
        return [self._report([kept for start, stop in ranges for kept in self._without_left(start, stop)])]

    def reports_of_taken(self) -> list[Report]:
        """Return the report of the inits of the rows that this chain took over."""
        return [self._report(_ranges(np.sort(np.concatenate(self._left))))]

    def _anchors(self, numbers: Column, digests: Column | None) -> Anchors:
        roots = root_ids(self._scope.first, numbers)
        return Anchors(roots, edge0_column(roots) if digests is None else initial_edges(roots, digests))

    def _without_left(self, start: int, stop: int) -> list[tuple[int, int]]:
        left = np.sort(np.concatenate(self._left)).astype(np.int64)
        bounds = np.concatenate(([start - 1], left[(left >= start) & (left < stop)], [stop]))
        gaps = np.flatnonzero(np.diff(bounds) > 1)
        return [(int(bounds[gap]) + 1, int(bounds[gap + 1])) for gap in gaps]

    def _report(self, covered: Sequence[tuple[int, int]]) -> Report:
        # The salt gives the reports of different empty slices different identities.
        scope = self._scope
        report = self._tally.report(salt=sum(identity_term(scope.first + a, scope.first + b) for a, b in covered))
        ranges = np.array(covered, np.uint64).reshape(-1, 2)
        return Report(report.identity, report.entries, InitScope(scope.session, scope.number, ranges))


@dataclass(frozen=True, slots=True)
class Choosing:
    """Start of a chain behind a read chain that leaves its inits to this one. The flag of a row says whether its record
    is tracked. ``names``: as in ``Arriving``."""

    scope: BatchScope
    names: tuple[str, ...] = ()

    @property
    def from_outside(self) -> bool:
        return True

    def rows(self, batches: Iterable[pa.RecordBatch], reports: list[Report]) -> Iterator[Rows]:
        emitter = Emitter(self.scope)
        for batch in batches:
            rows, is_tracked = without_flag(unpack(renamed(batch, self.names)))
            yield Rows(rows.data, emitter.take_over(rows.anchors, is_tracked))
        reports += emitter.reports_of_taken()


def initial_edges(roots: Column, digests: Column) -> Column:
    """Return initial edges that hold the digests of their rows."""
    return mix64_column(edge0_column(roots) ^ digests)


def emits_of(track: Track, *, tracking: bool) -> Emits:
    """Return what the read tasks of a batch emit."""
    if not tracking:
        return "none"
    if isinstance(track, str | SparkColumn):
        return "later"
    return "all" if track is None else track


def only(anchors: Anchors, chosen: Mask) -> Anchors:
    """Return thin anchors without those of rows that are not ``chosen: bool[n]``."""
    return Anchors(np.where(chosen, anchors.roots, np.uint64(0)), np.where(chosen, anchors.edges, np.uint64(0)))


def _chosen(given: Any, rows: int) -> Mask:
    """Return the answer of the user's function as a mask. Raises :class:`OperatorError`."""
    try:
        answers = pa.array(given, from_pandas=True) if not isinstance(given, pa.Array | pa.ChunkedArray) else given
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError):
        answers = pa.array([])
    if not pa.types.is_boolean(answers.type) or len(answers) != rows:
        raise OperatorError(
            f"track returned {kind_of(given)}: return one boolean for each of the {rows} rows, as"
            ' pc.greater(batch["qty"], 100)'
        )
    mask: Mask = answers.fill_null(False).to_numpy(zero_copy_only=False)
    return mask


def _ranges(numbers: Column) -> list[tuple[int, int]]:
    """Return the ranges [start, stop) of ascending ``numbers``."""
    if not len(numbers):
        return []
    cuts = np.flatnonzero(np.diff(numbers) > 1)
    starts, stops = numbers[np.append(0, cuts + 1)], numbers[np.append(cuts, len(numbers) - 1)] + np.uint64(1)
    return list(zip(starts.tolist(), stops.tolist(), strict=True))
