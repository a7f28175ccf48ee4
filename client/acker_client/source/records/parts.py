"""Parts: map record numbers to positions of partitions, and track which positions are done. Pure.

Decides the record numbers: each position gets the next number when its part is planned, so a run has one sequence of
numbers for all partitions. Positions that are done in the checkpoint get numbers too, but are not read. Positions
between two parts do not exist, and count as done.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic

import numpy as np
import pyarrow as pa

from acker_client.cluster.handed_on import HandedOn
from acker_client.source.records.input import (
    Answered,
    Chosen,
    Input,
    KeyedInput,
    Original,
    P,
    PartlyRemoteInput,
    RemoteInput,
    SparseInput,
    TakingUpInput,
)
from acker_client.source.records.ranges import Ranges
from acker_client.source.records.tracker import NO_RECORDS, RecordNumbers

NOTHING = Ranges()


class Parts(Generic[P]):
    """The open parts of one run. For each partition, over this and earlier runs: the ``done`` positions, and the number
    of ``answered`` records (``all_answered``: their sum)."""

    __slots__ = ("_changed", "_firsts", "_parts", "_planned", "_reach", "all_answered", "answered", "done")

    def __init__(self, done: Mapping[str, Ranges], answered: Mapping[str, Answered] | None = None) -> None:
        self.done = dict(done)
        self.answered = dict(answered or {})
        self.all_answered = sum(self.answered.values(), Answered())
        self._reach = {partition: ranges.prefix for partition, ranges in done.items()}
        self._parts: list[P] = []
        self._firsts: list[int] = []
        self._planned = 0
        self._changed: set[str] = set()

    @property
    def planned(self) -> int:
        """The number that the next planned position gets."""
        return self._planned

    @property
    def most_holes(self) -> int:
        """Number of holes (stretches of open positions before done ones) in the partition with the most holes, among
        the partitions of open parts: a million partitions may be done."""
        partitions = {part.partition for part in self._parts}
        return max((self.done.get(partition, NOTHING).holes for partition in partitions), default=0)

    def reach(self, partition: str) -> int:
        """Return the position of ``partition`` to be planned next."""
        return self._reach[partition]

    def full(self, opened: Callable[[int, int], int], limit: int, holes_max: int) -> set[str]:
        """Return partitions with at least ``limit`` open records, or with an open record and at least ``holes_max``
        holes. ``opened(start, stop)`` returns how many records with these numbers are open."""
        counts: dict[str, int] = {}
        for first, part in zip(self._firsts, self._parts, strict=True):
            counts[part.partition] = counts.get(part.partition, 0) + opened(first, first + part.stop - part.start)
        return {
            partition
            for partition, count in counts.items()
            if count and (count >= limit or self.done.get(partition, NOTHING).holes >= holes_max)
        }

    def assign(self, done: Mapping[str, Ranges], answered: Mapping[str, Answered] | None = None) -> None:
        """Begin partitions with the positions that are ``done`` so far. Drops the run's earlier data about them."""
        for partition, ranges in done.items():
            self.revoke(partition)
            self._add_answered(partition, (answered or {}).get(partition, Answered()))
            self.done[partition] = ranges
            self._reach[partition] = ranges.prefix

    def add_parts(self, parts: Sequence[P]) -> RecordNumbers:
        """Number the positions of ``parts``, and return the numbers of positions that are not done, ascending."""
        return np.concatenate([NO_RECORDS, *(self._add(part) for part in parts)])

    def chosen(self, records: RecordNumbers) -> list[Chosen[P]]:
        """Return the positions of ``records: int64[k]``, ascending. Raises ``LookupError`` for dropped or unknown
        records."""
        return [self._choose(index, records[where]) for index, where in self._by_part(records)]

    def finish(self, records: Ranges) -> None:
        """Count the numbers in ``records`` as done."""
        found: dict[str, list[Ranges]] = {}
        for index in self._touched(records):
            part, first = self._parts[index], self._firsts[index]
            done = records.within(first, first + part.stop - part.start)
            found.setdefault(part.partition, []).append(done.moved(part.start - first))
            self._add_answered(part.partition, Answered(records=int((done.stops - done.starts).sum())))
        for partition, ranges in found.items():
            self._widen(partition, Ranges.joined(ranges))

    def count_dead(self, records: RecordNumbers) -> None:
        """Count ``records: int64[k]``, ascending, as dead letters."""
        for index, where in self._by_part(records):
            self._add_answered(self._parts[index].partition, Answered(dead=len(records[where])))

    def uncount_dead(self, records: RecordNumbers) -> None:
        """Undo ``count_dead`` for ``records``, which are open again."""
        for index, where in self._by_part(records):
            self._add_answered(self._parts[index].partition, Answered(dead=-len(records[where])))

    def numbers_of(self, partitions: Iterable[str]) -> RecordNumbers:
        """Return the numbers of all open parts of some partitions, ascending."""
        wanted = set(partitions)
        numbers = [
            np.arange(first, first + part.stop - part.start)
            for first, part in zip(self._firsts, self._parts, strict=True)
            if part.partition in wanted
        ]
        return np.concatenate([NO_RECORDS, *numbers])

    def revoke(self, partition: str) -> None:
        """Drop the progress of a partition that another source owns now."""
        self.done.pop(partition, None)
        self.all_answered -= self.answered.pop(partition, Answered())
        self._reach.pop(partition, None)
        self._changed.discard(partition)

    def forget_parts(self, done_below: int) -> None:
        """Drop the parts whose numbers are all below ``done_below``."""
        gone = bisect_right(self._firsts, done_below)
        gone = gone if done_below >= self._planned else max(0, gone - 1)
        del self._parts[:gone]
        del self._firsts[:gone]

    def take_changed(self) -> set[str]:
        """Return the partitions in which positions were done since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def _add(self, part: P) -> RecordNumbers:
        before = self._reach.get(part.partition, 0)
        if part.start < before or part.stop <= part.start:
            raise ValueError(f"{part!r} is empty, or begins below {before}, up to where its partition is planned")
        if part.start > before:
            self._widen(part.partition, Ranges.between(before, part.start))
        self._reach[part.partition] = part.stop
        self._parts.append(part)
        self._firsts.append(self._planned)
        numbers = np.arange(self._planned, self._planned + part.stop - part.start)
        self._planned += len(numbers)
        done = self.done.get(part.partition)
        if done is None or done.reach <= part.start:
            return numbers
        return numbers[~done.contains(Chosen(part).positions)]

    def _add_answered(self, partition: str, more: Answered) -> None:
        self.answered[partition] = self.answered.get(partition, Answered()) + more
        self.all_answered += more

    def _widen(self, partition: str, ranges: Ranges) -> None:
        self.done[partition] = self.done.get(partition, Ranges()).union(ranges)
        self._changed.add(partition)

    def _choose(self, index: int, records: RecordNumbers) -> Chosen[P]:
        part, first = self._parts[index], self._firsts[index]
        return Chosen(part) if len(records) == part.stop - part.start else Chosen(part, records - first)

    def _touched(self, records: Ranges) -> list[int]:
        """Return the indices of the parts that contain any of ``records``. Raises ``LookupError`` for unknown ones."""
        if not len(records.starts):
            return []
        if not (self._parts and self._firsts[0] <= records.starts[0] and records.reach <= self._planned):
            raise LookupError("these records are not planned yet, or done and forgotten")
        firsts = np.array(self._firsts, np.int64)
        begun = np.searchsorted(firsts, records.starts, side="right") - 1
        ended = np.searchsorted(firsts, records.stops, side="left")
        # Add 1 where a range begins, and subtract 1 after its end. Parts with a positive running sum overlap a range.
        ups, downs = np.bincount(begun, minlength=len(firsts) + 1), np.bincount(ended, minlength=len(firsts) + 1)
        touched: list[int] = np.flatnonzero(np.cumsum(ups - downs)[: len(firsts)]).tolist()
        return touched

    def _by_part(self, records: RecordNumbers) -> Iterator[tuple[int, slice]]:
        """Yield (index of a part, slice of ``records`` that it contains), in order."""
        if not len(records):
            return
        if not (self._parts and self._firsts[0] <= records[0] <= records[-1] < self._planned):
            raise LookupError("these records are not planned yet, or done and forgotten")
        parts = np.searchsorted(np.array(self._firsts, np.int64), records, side="right") - 1
        starts = np.flatnonzero(np.append(True, parts[1:] != parts[:-1])).tolist()
        for start, stop in zip(starts, [*starts[1:], len(records)], strict=True):
            yield int(parts[start]), slice(start, stop)


@dataclass(frozen=True, slots=True)
class Lookup:
    """Looks records up in the input, by their numbers."""

    input: Input[Any]
    parts: Parts[Any]

    def origins(self, records: RecordNumbers) -> pa.RecordBatch:
        """Return a row for each of ``records``, ascending. See ``Input.origins``."""
        return self.input.origins(self.parts.chosen(records))

    def keys(self, records: RecordNumbers) -> list[Any]:
        """Return the key of each of ``records``, ascending; None for a record without one. See ``KeyedInput``."""
        if not isinstance(self.input, KeyedInput):
            return [None] * len(records)
        return self.input.keys(self.parts.chosen(records))

    def taken_up(self, records: RecordNumbers) -> list[list[HandedOn]]:
        """Return the anchors of other jobs that came with each of ``records``, ascending. See ``TakingUpInput``."""
        assert isinstance(self.input, TakingUpInput)
        return self.input.taken_up(self.parts.chosen(records))

    def are_there(self, records: RecordNumbers) -> list[bool]:
        """Return whether each of ``records`` (ascending) exists; True if that is unknown. See ``SparseInput``."""
        if not isinstance(self.input, SparseInput):
            return [True] * len(records)
        return self.input.are_there(self.parts.chosen(records))

    def is_reachable(self) -> bool:
        """Return whether records can be read now."""
        return not isinstance(self.input, RemoteInput) or self.input.is_reachable()

    def away_records(self) -> RecordNumbers:
        """Return the records, ascending, that cannot be read while others can."""
        away = self.input.away() if isinstance(self.input, PartlyRemoteInput) else ()
        return self.parts.numbers_of(away) if away else NO_RECORDS

    def originals(self, records: RecordNumbers) -> list[Original]:
        """Read each of ``records``, ascending, once more."""
        return self.input.originals(self.parts.chosen(records))
