"""Votes: what the replicas of a root say of it, merged into one outcome. Pure.

Decides when a root has ended, and how. A replica says of a root what its server reports, once; a replica that is *out*
(its server is gone, or has lost what it knew) has said LOST of every root, and is not listened to any more.

| said so far | outcome |
|---|---|
| ACKED, by any replica | ACKED, at once: no replica alone acks falsely |
| FAILED for a reason of the user's, by any replica | FAILED, at once: one that missed it can only say no |
| a *no* (FAILED ``unfinished``, TIMED_OUT, LOST), and another replica that is in is silent | none yet |
| a no by every replica, those that are out included | the strongest: FAILED, TIMED_OUT, LOST; of equals the first |
| nothing, and every replica is out | LOST: `Merged.lost` has the slots |
| anything by a replica that is out, or of an ended root | nothing: late and repeated answers change nothing |

A server that restarts with its state says again what was not confirmed: the connection to it drops what was heard
before. One that restarts without is out, for every placement that was pinned to it before.

Knows slots and positions of replicas, neither servers nor views; which roots there are is the source's to know.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from acker_protocol.ids import SLOT_SHIFT, SLOTS, Column, mix64_column
from acker_protocol.messages import Outcomes, Verdict

# Of a slot: which member stands at which position, uint16[1024, R].
Replicas = npt.NDArray[np.uint16]
Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]

UNFINISHED = "unfinished"
# How strong a no is, by its verdict.
_STRENGTH = np.zeros(max(Verdict) + 1, np.uint8)
_STRENGTH[[Verdict.LOST, Verdict.TIMED_OUT, Verdict.FAILED]] = 1, 2, 3
NO_SLOTS: Mask = np.zeros(SLOTS, np.bool_)


@dataclass(frozen=True, slots=True)
class Merged:
    """What votes came to: ``outcomes`` that are final, and the slots (bool[1024]) that are ``lost`` as of now."""

    outcomes: Outcomes = field(default_factory=Outcomes)
    lost: Mask = field(default_factory=lambda: NO_SLOTS)


class Votes:
    """The votes of one placement. ``replicas``: uint16[1024, R], for each slot the members of its R replicas."""

    __slots__ = ("_are_out", "_ended", "_lost", "_reason_ids", "_reasons", "_replicas", "_roots", "_said", "_verdicts")

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas
        # By slot, a bit for each replica that is out.
        self._are_out = np.zeros(SLOTS, np.uint8)
        self._lost = NO_SLOTS.copy()
        # Roots of which some replica has spoken and another, which is in, has not; ascending.
        self._roots = np.empty(0, np.uint64)
        self._said = np.empty(0, np.uint8)
        self._ended = np.empty(0, np.bool_)
        self._verdicts = np.empty(0, np.uint8)
        self._reason_ids = np.empty(0, np.int64)
        self._reasons: dict[str, int] = {"": 0}

    @property
    def waiting(self) -> int:
        """Roots that are remembered, as not every replica that is in has spoken of them."""
        return len(self._roots)

    def hear(self, member: int, outcomes: Outcomes) -> Merged:
        """``member`` reports ``outcomes``, each root once."""
        if not self.waiting:
            self._reasons = {"": 0}
        slots = _slots_of(outcomes.root_ids)
        places = self._replicas[slots] == member
        bits = _bits(places)
        counts = (bits != 0) & (bits & self._are_out[slots] == 0)
        return self._merge(outcomes.root_ids[counts], bits[counts], outcomes, np.flatnonzero(counts))

    def leave(self, member: int) -> Merged:
        """``member`` is out, for good."""
        self._are_out |= _bits(self._replicas == member)
        everybody = (1 << self._replicas.shape[1]) - 1
        lost = (self._are_out == everybody) & ~self._lost
        self._lost |= lost
        return Merged(self._finished(), lost)

    def _merge(self, roots: Column, bits: npt.NDArray[np.uint8], outcomes: Outcomes, index: Numbers) -> Merged:
        at = self._places_of(roots)
        verdicts = outcomes.verdicts[index]
        reason_ids = self._interned(outcomes)[index]
        is_yes = (verdicts == Verdict.ACKED) | (
            (verdicts == Verdict.FAILED) & (reason_ids != self._reasons.get(UNFINISHED, -1))
        )
        is_open = ~self._ended[at] & (self._said[at] & bits == 0)
        # A yes ends a root whatever was said before; of two noes the stronger one stays.
        counts = is_open & (is_yes | (_STRENGTH[verdicts] > _STRENGTH[self._verdicts[at]]))
        self._verdicts[at[counts]], self._reason_ids[at[counts]] = verdicts[counts], reason_ids[counts]
        self._said[at] |= bits
        ended = at[is_open & is_yes]
        first = self._outcomes_at(ended)
        self._ended[ended] = True
        return Merged(_joined(first, self._finished()))

    def _places_of(self, roots: Column) -> Numbers:
        """Where ``roots`` stand among those that are remembered; adds what is not."""
        known = len(self._roots)
        self._roots, order = np.unique(np.concatenate((self._roots, roots)), return_inverse=True)
        size, places = len(self._roots), order[:known]
        self._said, self._ended = _grown(self._said, places, size), _grown(self._ended, places, size)
        self._verdicts = _grown(self._verdicts, places, size)
        self._reason_ids = _grown(self._reason_ids, places, size)
        return order[known:].astype(np.int64)

    def _finished(self) -> Outcomes:
        """The outcomes of roots to which every replica has said no; forgets the roots of which nothing more comes."""
        everybody = (1 << self._replicas.shape[1]) - 1
        is_complete = (self._said | self._are_out[_slots_of(self._roots)]) == everybody
        outcomes = self._outcomes_at(np.flatnonzero(is_complete & ~self._ended))
        kept = ~is_complete
        self._roots, self._said, self._ended = self._roots[kept], self._said[kept], self._ended[kept]
        self._verdicts, self._reason_ids = self._verdicts[kept], self._reason_ids[kept]
        return outcomes

    def _outcomes_at(self, at: Numbers) -> Outcomes:
        reason_ids = self._reason_ids[at].astype(np.uint32)
        return Outcomes(self._roots[at], self._verdicts[at], reason_ids, tuple(self._reasons)[1:])

    def _interned(self, outcomes: Outcomes) -> Numbers:
        """Of each outcome the id that its reason has here; 0 for none."""
        ids = np.array(
            [0, *(self._reasons.setdefault(text, len(self._reasons)) for text in outcomes.reasons)], np.int64
        )
        return ids[outcomes.reason_ids] if len(outcomes.reason_ids) else np.zeros(len(outcomes), np.int64)


def _slots_of(roots: Column) -> Column:
    return mix64_column(roots) >> np.uint64(SLOT_SHIFT)


def _bits(places: Mask) -> npt.NDArray[np.uint8]:
    """A bit for each true column, uint8[n] of bool[n, R]."""
    bits: npt.NDArray[np.uint8] = np.packbits(places, axis=1, bitorder="little")[:, 0]
    return bits


def _grown(column: Any, places: Any, size: int) -> Any:
    """``column`` at ``places`` of a column of ``size``, zeros elsewhere."""
    grown = np.zeros(size, column.dtype)
    grown[places] = column
    return grown


def _joined(one: Outcomes, other: Outcomes) -> Outcomes:
    # Both are of one table of reasons.
    return Outcomes(
        np.concatenate((one.root_ids, other.root_ids)),
        np.concatenate((one.verdicts, other.verdicts)),
        np.concatenate((one.reason_ids, other.reason_ids)),
        other.reasons,
    )
