"""Votes of the open stream (batch 0): any root ids, never settled. Pure.

Decides what is remembered: a root from when one of its replicas has spoken of it, or has missed its init, until each of
them has spoken, missed it or left. What replicas say, and how strong it is, is what ``votes`` has in its table; nobody
settles, so nothing is absent. With one replica a slot nothing is remembered, and what it says is final as it stands.

Beyond ``remembered_max`` roots an eighth of them is forgotten: those that have ended first, then those that wait, the
oldest of each first. One that waits ends with the no that it has. What a replica says of a root that is forgotten is
taken for the first word on it: an outcome may come twice, of which the source's tracker takes the first; and a no waits
for the others until they leave, or until it is forgotten in its turn.
"""

from __future__ import annotations

import numpy as np

from acker_client.core.votes import (
    OUT,
    Bits,
    Mask,
    Rows,
    Votes,
    bits_of,
    checked,
    chosen,
    kinds_of,
    lost_for,
    slots_of,
)
from acker_protocol.ids import SLOTS, Column, check_column
from acker_protocol.messages import Kinds, Outcomes
from acker_protocol.placement import Replicas

REMEMBERED_MAX = 1 << 20
# The reason of a root of which every replica that has not left has missed the init.
MISSED = "its init reached no server"


class StreamVotes:
    """The votes of an open stream.

    ``replicas``: uint16[1024, R] of its placement, for each slot R different members, 1 to 8; a member is an index into
    the placement's. Raises ValueError for any other shape. A root that is remembered takes some 150 bytes.
    """

    __slots__ = ("_everybody", "_free", "_out", "_remembered_max", "_replicas", "_rows", "_votes", "differed", "saved")

    def __init__(self, replicas: Replicas, remembered_max: int = REMEMBERED_MAX) -> None:
        # As of BatchVotes, of the roots that are forgotten.
        self.differed = 0
        self.saved = 0
        self._replicas = checked(replicas)
        self._everybody = (1 << replicas.shape[1]) - 1
        self._remembered_max = remembered_max
        self._votes = Votes(0, replicas.shape[1])
        self._rows: dict[int, int] = {}
        self._free: list[int] = []
        # By slot, the replicas that have left.
        self._out: Bits = np.zeros(SLOTS, np.uint8)

    @property
    def remembered(self) -> int:
        """Roots of which some replica has spoken, or has missed them, and another one, which is in, has not."""
        return len(self._rows)

    @property
    def nbytes(self) -> int:
        """Bytes of its columns, for the most roots that were remembered at once; its dictionary is apart."""
        return self._votes.nbytes

    def hear(self, member: int, outcomes: Outcomes) -> Outcomes:
        """``member`` reports ``outcomes``; what is final because of them, in their order. What it says of slots that it
        does not hold is ignored, and so is all that it says after it left."""
        slots = slots_of(outcomes.root_ids)
        bits = self._bits_of(member)[slots]
        holds = bits != 0
        if not holds.all():
            outcomes, bits, slots = chosen(outcomes, holds), bits[holds], slots[holds]
        if self._replicas.shape[1] == 1:
            return outcomes
        return self._merge(bits, slots, kinds_of(outcomes), outcomes)

    def missed(self, member: int, roots: Column) -> Outcomes:
        """The inits of ``roots: uint64[n]`` did not reach ``member``: nothing is waited for from it. What is final
        because of that; LOST for `MISSED` where nobody who has not left has the init."""
        check_column("roots", roots)
        return self._excuse(self._bits_of(member), roots, MISSED)

    def leave(self, member: int, why: str) -> tuple[Outcomes, Mask]:
        """``member`` is out for good; ``why``: the reason of what is LOST by that.

        Returns what is final because of it, and the slots, bool[1024], that have lost the last of their replicas by it:
        what is still pending there after these outcomes is LOST.
        """
        bits = self._bits_of(member)
        self._out |= bits
        lost: Mask = (self._out == self._everybody) & (bits != 0)
        return self._excuse(bits, np.fromiter(self._rows, np.uint64, len(self._rows)), why), lost

    def _bits_of(self, member: int) -> Bits:
        """The bit of ``member`` in each slot that it holds; none (0) once it has left."""
        bits: Bits = bits_of(self._replicas, member) & ~self._out
        return bits

    def _excuse(self, bits: Bits, roots: Column, why: str) -> Outcomes:
        """The replica of ``bits``, uint8[1024], has nothing to say of ``roots``."""
        slots = slots_of(roots)
        holds = bits[slots] != 0
        roots, slots = roots[holds], slots[holds]
        return self._merge(bits[slots], slots, np.full(len(roots), OUT, np.uint8), lost_for(why, roots))

    def _merge(self, bits: Bits, slots: Rows, kinds: Kinds, outcomes: Outcomes) -> Outcomes:
        rows = self._rows_of(outcomes.root_ids, slots)
        is_first = self._votes.first_heard(rows, bits)
        if not is_first.all():
            rows, bits, kinds, outcomes = rows[is_first], bits[is_first], kinds[is_first], chosen(outcomes, is_first)
        final = self._votes.count(rows, bits, kinds, outcomes).outcomes
        is_complete = self._votes.is_complete(rows)
        self._forget(rows[is_complete], outcomes.root_ids[is_complete])
        return _joined(final, self._make_room()) if len(self._rows) > self._remembered_max else final

    def _rows_of(self, roots: Column, slots: Rows) -> Rows:
        """The rows of ``roots``, which are remembered from now on."""
        keys = roots.tolist()
        slots_by_root = dict(zip(keys, slots.tolist(), strict=True))
        added = [root for root in slots_by_root if root not in self._rows]
        if added:
            rows = self._take_rows(len(added))
            self._rows.update(zip(added, rows, strict=True))
            self._votes.begin(np.array(rows), self._out[[slots_by_root[root] for root in added]])
        return np.fromiter(map(self._rows.__getitem__, keys), np.int64, len(keys))

    def _take_rows(self, count: int) -> list[int]:
        if len(self._free) < count:
            rows = len(self._votes)
            self._votes.extend(max(rows, count))
            self._free += range(rows, len(self._votes))
        taken = self._free[-count:]
        del self._free[-count:]
        return taken

    def _forget(self, rows: Rows, roots: Column) -> None:
        self.differed += self._votes.differed(rows)
        self.saved += self._votes.saved(rows)
        for root in roots.tolist():
            del self._rows[root]
        self._free += rows.tolist()

    def _make_room(self) -> Outcomes:
        """Forget an eighth of what may be remembered, and all that is above it; what ends by that."""
        roots = np.fromiter(self._rows, np.uint64, len(self._rows))
        rows = np.fromiter(self._rows.values(), np.int64, len(self._rows))
        has_ended = self._votes.has_ended(rows)
        order = np.concatenate((np.flatnonzero(has_ended), np.flatnonzero(~has_ended)))
        oldest = order[: len(rows) - self._remembered_max * 7 // 8]
        ended = self._votes.end(rows[oldest], roots[oldest])
        self._forget(rows[oldest], roots[oldest])
        return ended


def _joined(one: Outcomes, other: Outcomes) -> Outcomes:
    shifted = np.where(other.reason_ids, other.reason_ids + len(one.reasons), 0).astype(np.uint32)
    return Outcomes(
        np.concatenate((one.root_ids, other.root_ids)),
        np.concatenate((one.verdicts, other.verdicts)),
        np.concatenate((one.reason_ids, shifted)),
        one.reasons + other.reasons,
    )
