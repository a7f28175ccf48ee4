"""Watched: what one watch of a source brings. A value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from acker_protocol.ids import SLOT_SHIFT, SLOTS, Column, mix64_column
from acker_protocol.messages import NO_IDS, Outcomes

Mask = npt.NDArray[np.bool_]

NO_SLOTS: Mask = np.zeros(SLOTS, np.bool_)
NO_SLOTS.setflags(write=False)


@dataclass(frozen=True, slots=True)
class WatchResult:
    """What one watch brought; each of it is said once.

    ``outcomes``: how roots have ended, each root of a numbered batch once. ``absent: uint64[n]``: roots of settled
    batches that were never initialised, though their numbers were read: no such record exists. ``settled``: batches
    each of whose roots has had its outcome by now, or is absent. ``interrupted``: open batches that a server has lost,
    so that what fails in them may fail for that. ``lost_slots: bool[1024]``: of the open stream (batch 0), the slots
    of which all servers have lost what they knew: what is pending there is LOST, now (:meth:`lost` asks it of roots).
    ``answered``: False when no server answered during the whole call. ``differed``: roots of batches that are over now
    of which the servers had said different things; ``saved``: those that a second server saved from a replay.
    """

    outcomes: Outcomes = field(default_factory=Outcomes)
    absent: Column = field(default_factory=lambda: NO_IDS)
    settled: tuple[int, ...] = ()
    interrupted: tuple[int, ...] = ()
    lost_slots: Mask = field(default_factory=lambda: NO_SLOTS)
    answered: bool = False
    differed: int = 0
    saved: int = 0

    @property
    def generation_changed(self) -> bool:
        """Whether roots of the open stream were lost."""
        return bool(self.lost_slots.any())

    @property
    def says_something(self) -> bool:
        """Whether there is anything in it that a watch before it has not said."""
        return bool(
            len(self.outcomes) or len(self.absent) or self.settled or self.interrupted or self.generation_changed
        )

    def lost(self, root_ids: Column) -> Mask:
        """Which of the pending ``root_ids: uint64[n]`` of the open stream are LOST: bool[n]."""
        found: Mask = self.lost_slots[(mix64_column(root_ids) >> np.uint64(SLOT_SHIFT)).astype(np.intp)]
        return found


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
