"""Balance: how many slots of a batch each member holds. Pure.

If a batch is placed on all members, all batches are placed alike. Otherwise each batch is placed on some members only,
so this module places many batches and returns the mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from acker_protocol.ids import SLOTS
from acker_protocol.placement import SPREAD, Replicas, View, place

# With 100 members, the mean of this many batches is within some 10 % of the expected value.
BATCHES = 1000
SESSION = 1


@dataclass(frozen=True, slots=True)
class Balance:
    """``slots``: the number of slots that each member holds, by its id, as the mean over several batches. ``batches``:
    the number of these batches. It is 1 if all batches are placed alike."""

    replicas: int
    batches: int
    slots: Mapping[int, float]

    @property
    def fullest(self) -> float:
        """The slots of the fullest member, as a multiple of the mean."""
        return max(self.slots.values()) * len(self.slots) / (SLOTS * self.replicas)


def balance(view: View, replicas: int) -> Balance | None:
    """Return the balance; None if there are fewer members than replicas."""
    if len(view.members) < replicas:
        return None
    batches = 1 if len(view.members) <= SPREAD else BATCHES
    held = {member.id: 0 for member in view.members}
    for number in range(1, batches + 1):
        placement = place(view, SESSION, number, replicas)
        counts = np.bincount(placement.replicas.ravel(), minlength=len(placement.members)).tolist()
        for member, count in zip(placement.members, counts, strict=True):
            held[member.id] += count
    return Balance(replicas, batches, {id: count / batches for id, count in held.items()})


def owners(view: View) -> Replicas | None:
    """Return the server of each slot with one replica: uint16[1024], indices into the members of ``view``. None if
    batches are not all placed alike, or there is no member."""
    if not 0 < len(view.members) <= SPREAD:
        return None
    first: Replicas = place(view, SESSION, 1, 1).replicas[:, 0]
    return first
