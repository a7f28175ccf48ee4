"""Watched: what one watch of a source brings. A value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from acker_protocol.ids import Column
from acker_protocol.messages import NO_IDS, Outcomes

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class WatchResult:
    """What one watch brought; each of it is said once.

    ``outcomes``: how roots have ended, each of them once, LOST ones included. ``absent: uint64[n]``: roots of settled
    batches that were never initialised, though their numbers were read: no such record exists. ``settled``: batches
    each of whose roots has had its outcome by now, or is absent. ``interrupted``: open batches that a server has lost,
    so that what fails in them may fail for that. ``settled`` and ``interrupted`` name batches of ``open_batch`` alone.
    ``answered``: False when no server answered during the whole call. ``differed``: roots of batches that are over now
    of which the servers had said different things; ``saved``: those that a second server saved from a replay.
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
        """Whether there is anything in it that a watch before it has not said."""
        return bool(len(self.outcomes) or len(self.absent) or self.settled or self.interrupted)


class Unsaid:
    """What has come and was not handed over yet."""

    def __init__(self) -> None:
        self.outcomes: list[Outcomes] = []
        self.absent: list[Column] = []
        self.interrupted: set[int] = set()
        self.differed = self.saved = 0

    @property
    def is_empty(self) -> bool:
        return not (self.outcomes or self.absent or self.interrupted)

    def said(self, settled: Sequence[int], *, answered: bool) -> WatchResult:
        """All of it; ``settled``: the batches that are over by now."""
        absent = np.concatenate(self.absent) if self.absent else NO_IDS
        interrupted = tuple(sorted(self.interrupted))
        outcomes = joined(self.outcomes)
        return WatchResult(outcomes, absent, tuple(settled), interrupted, answered, self.differed, self.saved)


def only(outcomes: Outcomes, chosen: Mask) -> Outcomes:
    """Those where ``chosen: bool[n]``."""
    reason_ids = outcomes.reason_ids[chosen] if len(outcomes.reason_ids) else outcomes.reason_ids
    return Outcomes(outcomes.root_ids[chosen], outcomes.verdicts[chosen], reason_ids, outcomes.reasons)


def joined(parts: Sequence[Outcomes]) -> Outcomes:
    """All of ``parts`` in one, in their order."""
    parts = [part for part in parts if len(part)]
    if len(parts) < 2:
        return parts[0] if parts else Outcomes()
    reasons: dict[str, int] = {}
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
