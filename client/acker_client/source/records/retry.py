"""Retry: which records are replayed, when, and when their retries are spent.

Decides the delays: exponential, with full jitter and a cap, unless a ``RetryPolicy`` of the user decides. Counts
*failed* attempts apart from *interrupted* ones. A failed attempt is probably the record's own fault: FAILED, TIMED_OUT,
or a failed batch of that record alone. An interrupted attempt (LOST) ended because a server or the job failed. Pure:
the caller passes ``now`` and ``draw``.

A few records that failed together stay in one group with one due time. Many records are spread over at most
``GROUPS_MAX`` groups, because at the end of the input each group becomes a batch, and small batches cost as much as
large ones. A piece of a failed batch is never mixed with other groups: if it succeeds, its records were not at fault.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from acker_client.backoff import Backoff
from acker_client.source.records.tracker import NO_RECORDS, RecordNumbers
from acker_client.source.records.window import Window
from acker_protocol.messages import Verdict

Draw = Callable[[], float]
Counts = npt.NDArray[np.uint16]
Delays = npt.NDArray[np.float64]
# Returns the delay of each record after so many bad attempts; NaN gives the record up.
Decide = Callable[[Counts], Delays]

COUNT_MAX = np.iinfo(np.uint16).max
PIECES = 16
# For records that fail for the k-th time together: the maximum number of groups, and the minimum size of each.
GROUPS_MAX, GROUP_MIN = 4, 250
# Decided delays within the same of so many steps from one power of two to the next share a group.
STEPS = 8
SHORTEST_S = 0.001


@runtime_checkable
class RetryPolicy(Protocol):
    """Decides whether, and when, a record that was not acked is tried again. ``Retry`` is one."""

    def decide(self, attempts: int, verdict: Verdict, reason: str, origin: Mapping[str, Any]) -> float | None:
        """Return the seconds until the record is tried again, or None to give it up.

        ``attempts``, from 1: how often the record has failed (FAILED, TIMED_OUT), or was interrupted (LOST). A batch
        that failed as a whole counts only if the record was alone in it. ``reason``: why, without a traceback.
        ``origin``: the names and values that locate the record (``Emissions.origins``). Called once for each failed
        record, so return quickly.
        """
        ...


@dataclass(frozen=True, slots=True)
class Retry:
    """How a record that was not acked is tried again.

    ``max_retries``: a record that fails more often than this goes to the dead letters. ``max_interruptions``: the same
    for interrupted attempts, which say little about the record. ``initial_s`` and ``cap_s``: the k-th replay waits
    ``draw() * min(cap_s, initial_s * 2 ** (k - 1))`` seconds. ``draw`` is uniform in [0, 1) (full jitter).
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

    def decide(self, attempts: int, verdict: Verdict, reason: str, origin: Mapping[str, Any]) -> float | None:
        """Return the longest delay, without jitter; None if the retries are spent. See ``RetryPolicy``."""
        limit = self.max_interruptions if verdict is Verdict.LOST else self.max_retries
        return None if attempts > limit else self.delay_s(attempts, lambda: 1.0)

    def delay_s(self, attempts: int, draw: Draw) -> float:
        """Return the seconds to wait after the ``attempts``-th bad attempt, counted from 1."""
        return Backoff(self.initial_s, self.cap_s).wait_s(max(0, attempts - 1), draw)


@dataclass(frozen=True, slots=True, order=True)
class ReplayGroup:
    """Records (ascending) to replay from ``due_s`` on. ``depth``: how many batches in a row failed with these records.
    Groups of depth 0 may be mixed; any other group stays alone."""

    due_s: float
    order: int
    records: RecordNumbers = field(compare=False)
    depth: int = field(compare=False, default=0)


class Schedule:
    """The attempts of every record in flight, and the groups that wait for their replay."""

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
        """Number of records that wait for their replay."""
        return self._waiting

    @property
    def next_due_s(self) -> float | None:
        return self._groups[0].due_s if self._groups else None

    def failed(self, records: RecordNumbers) -> Counts:
        """Return how often each of ``records`` has failed."""
        return _counts_of(self._failed, records)

    def interrupted(self, records: RecordNumbers) -> Counts:
        """Return how often each of ``records`` was interrupted."""
        return _counts_of(self._interrupted, records)

    def count_failures(
        self, records: RecordNumbers, now: float, depth: int = 0, decide: Decide | None = None
    ) -> RecordNumbers:
        """Count a failure of each of ``records`` (ascending), and schedule retries. Returns the records that have no
        retry left. ``decide`` decides on them in place of ``retry``."""
        return self._count_attempt(self._failed, records, self.retry.max_retries, now, depth, decide)

    def interrupt(self, records: RecordNumbers, now: float, decide: Decide | None = None) -> RecordNumbers:
        """Count an interruption of each of ``records`` (ascending), and schedule retries. Returns the records that were
        interrupted too often. ``decide``: as for ``count_failures``."""
        return self._count_attempt(self._interrupted, records, self.retry.max_interruptions, now, 0, decide)

    def isolate(self, records: RecordNumbers, depth: int, now: float, suspects: RecordNumbers = NO_RECORDS) -> None:
        """Schedule ``records`` of a batch that failed as a whole: first all together again, then in smaller and smaller
        pieces, each in its own batch. Counts no failure. ``depth``: how many batches in a row had failed with
        these records before this one. ``suspects``: those of the records among which the cause probably is; the others
        stay in one piece."""
        others = records[~np.isin(records, suspects)]
        if len(suspects) and len(others):
            self._spread(others, 1, depth + 1, now, depth + 1)
            self._spread(suspects, min(PIECES - 1, len(suspects)), depth + 1, now, depth + 1)
            return
        pieces = 1 if depth == 0 else min(PIECES, len(records))
        self._spread(records, pieces, depth + 1, now, depth + 1)

    def take_due(self, now: float, records_max: int) -> ReplayGroup | None:
        """Return the next due records, or None. Returns at most ``records_max``, except for a group that must stay
        together.

        Mixes due groups of depth 0. Records that do not fit stay scheduled.
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

    def cancel_replays(self, records: RecordNumbers) -> None:
        """Remove ``records`` from the schedule."""
        groups, self._groups, self._waiting = self._groups, [], 0
        for group in groups:
            kept = group.records[~np.isin(group.records, records)]
            if len(kept):
                self._push(kept, group.due_s, group.depth)

    def postpone(self, records: RecordNumbers, now: float, until_s: float) -> None:
        """Let the replays of ``records`` that are due wait until ``until_s``."""
        due: list[ReplayGroup] = []
        while self._groups and self._groups[0].due_s <= now:
            due.append(self._pop())
        for group in due:
            is_later = np.isin(group.records, records)
            for some, due_s in ((group.records[~is_later], group.due_s), (group.records[is_later], until_s)):
                if len(some):
                    self._push(some, due_s, group.depth)

    def forget_attempts(self, below: int) -> None:
        """Drop the attempts of records below ``below``, because these records are done."""
        self._failed.forget_below(below)
        self._interrupted.forget_below(below)

    def _count_attempt(
        self,
        window: Window[np.uint16],
        records: RecordNumbers,
        limit: int,
        now: float,
        depth: int,
        decide: Decide | None,
    ) -> RecordNumbers:
        if not len(records):
            return NO_RECORDS
        window.extend(int(records[-1]) + 1)
        index = window.index(records)
        # A policy of the user may retry without a limit, and the count must not wrap around.
        attempts = np.minimum(window.values[index], np.uint16(COUNT_MAX - 1)) + np.uint16(1)
        window.values[index] = attempts
        if decide is not None:
            return self._follow_decision(records, decide(attempts), now, depth)
        for attempt in np.unique(attempts[attempts <= limit]):
            alike = records[attempts == attempt]
            self._spread(alike, min(GROUPS_MAX, max(1, len(alike) // GROUP_MIN)), int(attempt), now, depth)
        return records[attempts > limit]

    def _follow_decision(self, records: RecordNumbers, delays: Delays, now: float, depth: int) -> RecordNumbers:
        """Schedule ``records`` after their ``delays``. Returns those that are given up."""
        is_spent = np.isnan(delays)
        again, delays = records[~is_spent], delays[~is_spent]
        for alike in _alike(delays):
            self._push(again[alike], now + float(delays[alike].max()), depth)
        return records[is_spent]

    def _spread(self, records: RecordNumbers, groups: int, attempts: int, now: float, depth: int) -> None:
        """Schedule ``records``, after their ``attempts``-th bad attempt, in ``groups`` groups with different delays."""
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


def _alike(delays: Delays) -> Iterator[npt.NDArray[np.bool_]]:
    """Yield masks of delays that differ by less than a tenth, because each group becomes a batch."""
    steps = np.floor(STEPS * np.log2(np.maximum(delays, SHORTEST_S)))
    for step in np.unique(steps):
        yield steps == step


def _counts_of(window: Window[np.uint16], records: RecordNumbers) -> Counts:
    """Return the counts of ``records``; 0 for records outside the window."""
    counts = np.zeros(len(records), np.uint16)
    inside = (records >= window.start) & (records < window.stop)
    counts[inside] = window.values[window.index(records[inside])]
    return counts
