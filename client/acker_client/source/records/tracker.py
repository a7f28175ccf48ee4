"""Tracker: maps emissions to records, and tracks how each emission ended and which records are done.

Decides that exactly one outcome counts for each emission, and up to where every emitted record is done. It has two
windows of arrays, one indexed by emission number (`unmix64(root id) - base`) and one by record. So ten million outcomes
take a few passes over arrays, without an object per record. `retry` decides what to do about a failure, and `parts`
knows what a record number means. This module knows no clock and no server.

Record numbers ascend in the order of reading and may have gaps. A number that was never emitted (an offset that a log
compacted away) counts as done.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from acker_client.source.records.ranges import Ranges
from acker_client.source.records.window import Window, blocks
from acker_protocol.ids import BASE_MAX, Column, numbers_of, root_ids
from acker_protocol.messages import Kinds, Verdict

RecordNumbers = npt.NDArray[np.int64]

# States of an emission in addition to the protocol's verdicts (1 to 4). PENDING: no outcome yet. ABSENT: its record
# does not exist. DROPPED: its record belongs to another source.
PENDING = 0
ABSENT = 5
DROPPED = 6

# States of a record. GAP: never emitted.
GAP = 0
OPEN = 1
DONE = 2
# Done since the last take_finished.
FINISHED = 3

NO_RECORDS: RecordNumbers = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Counted:
    """The outcomes that counted: ``records: int64[m]``, ``roots: uint64[m]``, ``verdicts: uint8[m]``, and ``indices:
    int64[m]`` into all outcomes of the call. Numbers of outcomes that did not count: ``repeated`` (the emission had an
    outcome before) and ``foreign`` (the emission is not of this source)."""

    records: RecordNumbers
    roots: Column
    verdicts: Kinds
    indices: RecordNumbers
    repeated: int = 0
    foreign: int = 0


@dataclass(frozen=True, slots=True)
class EmissionRange:
    """Emissions from number ``start`` to ``stop``. The k-th emits record ``records[k]`` with root id ``roots[k]``."""

    start: int
    stop: int
    records: RecordNumbers
    roots: Column = field(repr=False)

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class _Applied:
    """The ``records`` of the outcomes that counted, and ``where``: their indices among all outcomes of the call."""

    records: RecordNumbers
    where: RecordNumbers
    foreign: int


class Tracker:
    """The in-flight window of one source session, whose ``base`` is random and below ``ids.BASE_MAX``."""

    __slots__ = ("_emission_record", "_emission_state", "_pending", "_record_state", "base")

    def __init__(self, base: int) -> None:
        if not 0 < base < BASE_MAX:
            raise ValueError(
                f"base is {base}: draw it between 1 and 2**62, so that base + n is never 0 and never wraps"
            )
        self.base = base
        self._emission_state: Window[np.uint8] = Window(np.uint8)
        self._emission_record: Window[np.int64] = Window(np.int64)
        self._record_state: Window[np.uint8] = Window(np.uint8)
        self._pending = 0

    @property
    def emitted(self) -> int:
        """The number of emissions so far. It is also the number of the next emission."""
        return self._emission_state.stop

    @property
    def pending(self) -> int:
        """Emissions without an outcome."""
        return self._pending

    @property
    def done_below(self) -> int:
        """Every emitted record below this number is done."""
        return self._record_state.start

    @property
    def open_records(self) -> int:
        """Records that were emitted or are held back, and are not done."""
        return self._record_state.count(OPEN, self._record_state.start, self._record_state.stop)

    @property
    def finished_records(self) -> int:
        """Records that are done since the last ``take_finished``."""
        return self._record_state.count(FINISHED, self._record_state.start, self._record_state.stop)

    def open_between(self, start: int, stop: int) -> int:
        """Return how many records of ``start <= number < stop`` were emitted or are held back, and are not done."""
        return self._record_state.count(OPEN, start, stop)

    @property
    def reach(self) -> int:
        """One more than the highest record ever emitted."""
        return self._record_state.stop

    @property
    def nbytes(self) -> int:
        return self._emission_state.nbytes + self._emission_record.nbytes + self._record_state.nbytes

    def emit(self, records: RecordNumbers) -> EmissionRange:
        """Emit ``records: int64[k]`` (ascending), new ones or replays. None of them may be done or pending. Returns the
        emissions."""
        start, stop = self.emitted, self.emitted + len(records)
        self._emission_state.extend(stop)
        self._emission_record.extend(stop)[:] = records
        self._pending += len(records)
        self.hold_back(records)
        return EmissionRange(start, stop, records, root_ids(self.base, np.arange(start, stop, dtype=np.uint64)))

    def hold_back(self, records: RecordNumbers) -> None:
        """Count ``records: int64[k]`` (ascending) as open before they are emitted."""
        if len(records):
            self._record_state.extend(int(records[-1]) + 1)
            self._record_state.set_value(records, OPEN)

    def apply_outcomes(self, roots: Column, verdicts: Kinds) -> Counted:
        """Apply outcomes. Only the first outcome of each emission has an effect: ACKED records are done. Later outcomes
        and foreign roots are only counted."""
        kernel = compiled()
        applied = (
            self._apply_in_blocks(roots, verdicts) if kernel is None else self._apply_compiled(kernel, roots, verdicts)
        )
        self._pending -= len(applied.records)
        repeated = len(roots) - len(applied.records) - applied.foreign
        if len(applied.records) < len(roots):
            roots, verdicts = roots[applied.where], verdicts[applied.where]
        return Counted(applied.records, roots, verdicts, applied.where, repeated, applied.foreign)

    def _apply_compiled(self, kernel: Any, roots: Column, verdicts: Kinds) -> _Applied:
        records, where = np.empty(len(roots), np.int64), np.empty(len(roots), np.int64)
        states = self._emission_state
        counted, foreign = kernel(
            np.ascontiguousarray(roots),
            np.ascontiguousarray(verdicts),
            self.base,
            self.emitted,
            states.start,
            states.values,
            self._emission_record.values,
            self._record_state.start,
            self._record_state.values,
            records,
            where,
        )
        return _Applied(records[:counted], where[:counted], foreign)

    def _apply_in_blocks(self, roots: Column, verdicts: Kinds) -> _Applied:
        applied = [self._apply_block(roots[at], verdicts[at]) for at in blocks(len(roots))]
        starts = (at.start for at in blocks(len(roots)))
        where = [block.where + start for block, start in zip(applied, starts, strict=True)]
        records = [block.records for block in applied]
        foreign = sum(block.foreign for block in applied)
        return _Applied(np.concatenate([NO_RECORDS, *records]), np.concatenate([NO_RECORDS, *where]), foreign)

    def _apply_block(self, roots: Column, verdicts: Kinds) -> _Applied:
        numbers = numbers_of(self.base, roots)
        foreign = int(np.count_nonzero(numbers >= np.uint64(self.emitted)))
        numbers -= np.uint64(self._emission_state.start)
        index, where = numbers.view(np.int64), np.arange(len(numbers))
        # Nearly always these filters keep everything: each outcome is the first one of an emission of this source.
        index, where = _only(numbers < np.uint64(len(self._emission_state)), index, where)
        index, where = _only(self._emission_state.values[index] == PENDING, index, where)
        index, where = _firsts(index, where)
        self._emission_state.values[index] = verdicts[where]
        records = self._emission_record.values[index]
        self.finish(records[verdicts[where] == Verdict.ACKED])
        return _Applied(records, where, foreign)

    def are_of(self, roots: Column, emitted: EmissionRange) -> npt.NDArray[np.bool_]:
        """Return which of ``roots: uint64[n]`` are of these emissions."""
        # Unsigned numbers, so those below the first are huge.
        are_of: npt.NDArray[np.bool_] = numbers_of(self.base, roots) - np.uint64(emitted.start) < len(emitted)
        return are_of

    def end_emissions(self, start: int, stop: int, ending: int) -> Counted:
        """End each emission of ``start <= number < stop`` that is pending. ``ending``: a verdict or ``ABSENT``."""
        where = self._where_pending(start, stop)
        verdicts = np.full(len(where), ending, np.uint8)
        self._emission_state.values[where] = verdicts
        self._pending -= len(where)
        numbers = (where + self._emission_state.start).astype(np.uint64)
        return Counted(self._emission_record.values[where], root_ids(self.base, numbers), verdicts, where)

    def pending_among(self, start: int, stop: int) -> tuple[RecordNumbers, Column]:
        """Return (records, roots) of the emissions of ``start <= number < stop`` that have no outcome."""
        where = self._where_pending(start, stop)
        numbers = (where + self._emission_state.start).astype(np.uint64)
        return self._emission_record.values[where], root_ids(self.base, numbers)

    def open_among(self, records: RecordNumbers) -> RecordNumbers:
        """Return the ``records: int64[k]`` that were emitted or are held back, and are not done."""
        inside = records[(records >= self._record_state.start) & (records < self._record_state.stop)]
        is_open: npt.NDArray[np.bool_] = self._record_state.values[self._record_state.index(inside)] == OPEN
        opened: RecordNumbers = inside[is_open]
        return opened

    def finish(self, records: RecordNumbers) -> None:
        """Count ``records`` as done: acked, absent, given up, or safely in the dead letters."""
        self._record_state.set_value(records, FINISHED)

    def reopen(self, records: RecordNumbers) -> None:
        """Count ``records`` as open again. They were done since the last ``take_finished``."""
        self._record_state.set_value(records, OPEN)

    def drop_records(self, records: RecordNumbers) -> None:
        """Drop ``records`` that another source owns now. They count as done, and later outcomes do not count."""
        self._record_state.set_value(records, DONE)
        dropped = self._where_pending(self._emission_state.start, self.emitted)
        dropped = dropped[np.isin(self._emission_record.values[dropped], records)]
        self._emission_state.values[dropped] = DROPPED
        self._pending -= len(dropped)

    def _where_pending(self, start: int, stop: int) -> RecordNumbers:
        """Return window indices of the emissions of ``start <= number < stop`` that have no outcome."""
        start, stop = max(start, self._emission_state.start), min(stop, self.emitted)
        first = start - self._emission_state.start
        return first + np.flatnonzero(self._emission_state.values[first : first + max(0, stop - start)] == PENDING)

    def take_finished(self) -> Ranges:
        """Return the records done since the last call. Call it before ``compact``, which drops them."""
        states, ranges = self._record_state.values, []
        for at in blocks(len(states)):
            finished = states[at] == FINISHED
            if finished.any():
                states[at][finished] = DONE
                ranges.append(Ranges.where(finished, self._record_state.start + at.start))
        return Ranges.joined(ranges)

    def compact(self) -> None:
        """Drop the prefix of records that are done, and the prefix of emissions that have an outcome."""
        self._record_state.forget_below(self._record_state.first(OPEN))
        ended = self._emission_state.first(PENDING)
        self._emission_state.forget_below(ended)
        self._emission_record.forget_below(ended)


@functools.cache
def compiled() -> Any:
    """Return the compiled loop, or None without numba. Imported on first use, because the import is slow."""
    try:
        from acker_client.source.records import kernels
    except ImportError:
        return None
    return kernels.apply_outcomes


def _only(
    chosen: npt.NDArray[np.bool_], index: RecordNumbers, where: RecordNumbers
) -> tuple[RecordNumbers, RecordNumbers]:
    """Filter two columns by ``chosen: bool[n]``. Copies nothing if all are chosen."""
    return (index, where) if chosen.all() else (index[chosen], where[chosen])


def _firsts(index: RecordNumbers, where: RecordNumbers) -> tuple[RecordNumbers, RecordNumbers]:
    """Filter two columns to the first occurrence of each ``index``."""
    ascending = np.sort(index)
    if not (ascending[1:] == ascending[:-1]).any():
        return index, where
    firsts = np.unique(index, return_index=True)[1]
    firsts.sort()
    return index[firsts], where[firsts]
