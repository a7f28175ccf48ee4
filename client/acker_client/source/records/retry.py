"""Retry: which records are replayed, when, and when one has been tried often enough.

Decides the delays (exponential, full jitter, a cap that cannot overflow), counts *failed* attempts (the record's own
fault, as far as anybody knows: FAILED, TIMED_OUT, a batch of its own that broke) apart from *interrupted* ones (LOST:
the server or the job died around it), and hands out due groups before new records are read. Never sleeps, never reads
a clock, never draws a random number by itself: ``now`` and ``draw`` come in.

Records that failed together stay together as long as they are few: a group has one due time. Many are spread over a
few groups, and no more: where nothing new is left to read, each is a batch, which costs the same however small it is.
A group that must be alone (a piece of a batch that broke as a whole) is never mixed with others, so that a piece that
works proves its records innocent.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from acker_client.backoff import Backoff
from acker_client.source.records.tracker import NO_RECORDS, RecordNumbers
from acker_client.source.records.window import Window

Draw = Callable[[], float]
Counts = npt.NDArray[np.uint16]

COUNT_MAX = np.iinfo(np.uint16).max
PIECES = 16
# Of records that fail for the k-th time at one moment: into how many groups they go at most, and how many at least are
# in each.
GROUPS_MAX, GROUP_MIN = 4, 250


@dataclass(frozen=True, slots=True)
class Retry:
    """How a record that was not acked is tried again.

    ``max_retries``: a record that failed once more than this goes to the dead letters. ``max_interruptions``: likewise
    for attempts that were interrupted, which say little about the record. ``initial_s`` and ``cap_s``: the k-th replay
    waits ``draw() * min(cap_s, initial_s * 2 ** (k - 1))`` seconds, ``draw`` being uniform in [0, 1) (full jitter).
    """

    max_retries: int = 3
    max_interruptions: int = 10
    initial_s: float = 1.0
    cap_s: float = 60.0

    def __post_init__(self) -> None:
        for name in ("max_retries", "max_interruptions"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < COUNT_MAX:
                raise ValueError(
                    f"Retry({name}={value!r}): give a whole number from 0 (never again) to {COUNT_MAX - 1}"
                )
        if not 0 <= self.initial_s <= self.cap_s < float("inf"):
            raise ValueError(
                f"Retry(initial_s={self.initial_s}, cap_s={self.cap_s}): give seconds with 0 <= initial_s <= cap_s"
            )

    def delay_s(self, attempts: int, draw: Draw) -> float:
        """Seconds to wait after the ``attempts``-th attempt went wrong, counted from 1."""
        return Backoff(self.initial_s, self.cap_s).wait_s(max(0, attempts - 1), draw)


@dataclass(frozen=True, slots=True, order=True)
class ReplayGroup:
    """Records to replay from ``due_s`` on, ascending. ``depth``: 0 may be mixed with other groups; else it stays
    alone, and so often its records have been in a batch that broke as a whole."""

    due_s: float
    order: int
    records: RecordNumbers = field(compare=False)
    depth: int = field(compare=False, default=0)


class Schedule:
    """Attempts of every record in flight, and the groups that wait for their replay."""

    __slots__ = ("_draw", "_failed", "_groups", "_interrupted", "_order", "_waiting", "retry")

    def __init__(self, retry: Retry, draw: Draw) -> None:
        self.retry = retry
        self._draw = draw
        self._failed: Window[np.uint16] = Window(np.uint16)
        self._interrupted: Window[np.uint16] = Window(np.uint16)
        self._groups: list[ReplayGroup] = []
        self._order = 0
        self._waiting = 0

    @property
    def waiting(self) -> int:
        """Records that wait for their replay."""
        return self._waiting

    @property
    def next_due_s(self) -> float | None:
        return self._groups[0].due_s if self._groups else None

    def failed(self, records: RecordNumbers) -> Counts:
        """How often each of ``records`` failed."""
        return _read(self._failed, records)

    def interrupted(self, records: RecordNumbers) -> Counts:
        """How often each of ``records`` was interrupted."""
        return _read(self._interrupted, records)

    def fail(self, records: RecordNumbers, now: float, depth: int = 0) -> RecordNumbers:
        """Count a failure of each of ``records`` (ascending); schedule what may be tried again, return the others."""
        return self._count(self._failed, records, self.retry.max_retries, now, depth)

    def interrupt(self, records: RecordNumbers, now: float) -> RecordNumbers:
        """Count an interruption of each of ``records`` (ascending); schedule what may be tried again, return the
        others."""
        return self._count(self._interrupted, records, self.retry.max_interruptions, now, 0)

    def isolate(self, records: RecordNumbers, depth: int, now: float) -> None:
        """Schedule ``records`` of a batch that broke as a whole: first once more as they are, then in ever smaller
        pieces, each alone. Nothing is counted against them. ``depth``: of the batch that broke, 0 for an ordinary
        one."""
        pieces = 1 if depth == 0 else min(PIECES, len(records))
        self._spread(records, pieces, depth + 1, now, depth + 1)

    def take(self, now: float, records_max: int) -> ReplayGroup | None:
        """The next records whose replay is due, at most ``records_max`` unless they must stay together; None: nothing
        is.

        Due groups that may be mixed are handed out as one; what does not fit stays scheduled.
        """
        if not self._groups or self._groups[0].due_s > now:
            return None
        group = self._pop()
        if group.depth:
            return group
        taken, records = [group.records], len(group.records)
        while records < records_max and self._groups and self._groups[0].due_s <= now and not self._groups[0].depth:
            taken.append(self._pop().records)
            records += len(taken[-1])
        merged = np.sort(np.concatenate(taken))
        if len(merged) > records_max:
            self._push(merged[records_max:], group.due_s, 0)
        return ReplayGroup(group.due_s, group.order, merged[:records_max])

    def drop(self, records: RecordNumbers) -> None:
        """Replay none of ``records``."""
        groups, self._groups, self._waiting = self._groups, [], 0
        for group in groups:
            kept = group.records[~np.isin(group.records, records)]
            if len(kept):
                self._push(kept, group.due_s, group.depth)

    def forget(self, below: int) -> None:
        """Forget the attempts of records under ``below``, which are done."""
        self._failed.forget(below)
        self._interrupted.forget(below)

    def _count(
        self, window: Window[np.uint16], records: RecordNumbers, limit: int, now: float, depth: int
    ) -> RecordNumbers:
        if not len(records):
            return NO_RECORDS
        window.extend(int(records[-1]) + 1)
        index = window.index(records)
        attempts = window.values[index] + np.uint16(1)
        window.values[index] = attempts
        for attempt in np.unique(attempts[attempts <= limit]):
            alike = records[attempts == attempt]
            self._spread(alike, min(GROUPS_MAX, max(1, len(alike) // GROUP_MIN)), int(attempt), now, depth)
        return records[attempts > limit]

    def _spread(self, records: RecordNumbers, groups: int, attempts: int, now: float, depth: int) -> None:
        """Schedule ``records``, which went wrong for the ``attempts``-th time, in so many groups, each with a wait of
        its own."""
        for group in np.array_split(records, groups):
            self._push(group, now + self.retry.delay_s(attempts, self._draw), depth)

    def _push(self, records: RecordNumbers, due_s: float, depth: int) -> None:
        heapq.heappush(self._groups, ReplayGroup(due_s, self._order, records, depth))
        self._order += 1
        self._waiting += len(records)

    def _pop(self) -> ReplayGroup:
        group = heapq.heappop(self._groups)
        self._waiting -= len(group.records)
        return group


def _read(window: Window[np.uint16], records: RecordNumbers) -> Counts:
    """Counts of ``records``; 0 for those that the window does not reach."""
    counts = np.zeros(len(records), np.uint16)
    inside = (records >= window.start) & (records < window.stop)
    counts[inside] = window.values[window.index(records[inside])]
    return counts
