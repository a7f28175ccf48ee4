"""Watched: the result of one watch of a source, and what is collected for the next one. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from acker_protocol.ids import Column
from acker_protocol.messages import NO_IDS, Outcomes, Reason

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class WatchResult:
    """The result of one watch. No news comes in two results.

    ``outcomes``: how roots have ended, each root once, including LOST ones. ``absent: uint64[n]``: roots of settled
    batches that were never initialised although a task has read their numbers: no such record exists. ``settled``:
    batches whose roots have all had their outcomes by now, or are absent. ``interrupted``: open batches that a server
    has lost, which may make their tasks fail. ``settled`` and ``interrupted`` name only batches of ``open_batch``.
    ``answered``: False if no server answered during the whole call. ``differed``: how many roots of ended batches the
    servers disagreed about. ``saved``: how many roots a second server saved from a replay.
    """

    outcomes: Outcomes = field(default_factory=Outcomes)
    absent: Column = field(default_factory=lambda: NO_IDS)
    settled: tuple[int, ...] = ()
    interrupted: tuple[int, ...] = ()
    answered: bool = False
    differed: int = 0
    saved: int = 0

    @property
    def says_something(self) -> bool:
        """Whether the result has news."""
        return bool(len(self.outcomes) or len(self.absent) or self.settled or self.interrupted)


class PendingResult:
    """Collects the news since the last watch. Not thread-safe: the caller holds the source's lock."""

    def __init__(self) -> None:
        self._outcomes: list[Outcomes] = []
        self._absent: list[Column] = []
        self._interrupted: set[int] = set()
        self._differed = self._saved = 0

    @property
    def is_empty(self) -> bool:
        """Whether there is no news for which a waiting watch would return."""
        return not (self._outcomes or self._absent or self._interrupted)

    def add(self, outcomes: Outcomes, absent: Column) -> None:
        """Add final outcomes, and roots that have no record."""
        if len(outcomes):
            self._outcomes.append(outcomes)
        if len(absent):
            self._absent.append(absent)

    def add_interrupted(self, number: int) -> None:
        """Add an open batch that a server has lost."""
        self._interrupted.add(number)

    def add_differences(self, differed: int, saved: int) -> None:
        """Add how many roots of an ended batch the servers differed about, and how many a second replica saved."""
        self._differed += differed
        self._saved += saved

    def result(self, settled: Sequence[int], *, answered: bool) -> WatchResult:
        """Return everything that was added. ``settled``: the batches that are over by now."""
        absent = np.concatenate(self._absent) if self._absent else NO_IDS
        interrupted = tuple(sorted(self._interrupted))
        outcomes = joined(self._outcomes)
        return WatchResult(outcomes, absent, tuple(settled), interrupted, answered, self._differed, self._saved)


def only(outcomes: Outcomes, chosen: Mask) -> Outcomes:
    """Return the outcomes where ``chosen: bool[n]`` is true."""
    reason_ids = outcomes.reason_ids[chosen] if len(outcomes.reason_ids) else outcomes.reason_ids
    return Outcomes(outcomes.root_ids[chosen], outcomes.verdicts[chosen], reason_ids, outcomes.reasons)


def joined(parts: Sequence[Outcomes]) -> Outcomes:
    """Join ``parts`` in their order."""
    parts = [part for part in parts if len(part)]
    if len(parts) < 2:
        return parts[0] if parts else Outcomes()
    reasons: dict[Reason, int] = {}
    ids = []
    for part in parts:
        own = np.array([0, *(1 + reasons.setdefault(reason, len(reasons)) for reason in part.reasons)], np.uint32)
        ids.append(own[part.reason_ids] if len(part.reason_ids) else np.zeros(len(part), np.uint32))
    return Outcomes(
        np.concatenate([part.root_ids for part in parts]),
        np.concatenate([part.verdicts for part in parts]),
        np.concatenate(ids),
        tuple(reasons),
    )
