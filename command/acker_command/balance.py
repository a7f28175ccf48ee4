"""Balance: how many slots of a batch each member holds. Pure.

Where all members fit on one batch, every batch is placed alike; else batches are drawn, and the mean of many is shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from acker_protocol.ids import SLOTS
from acker_protocol.placement import SPREAD, Replicas, View, place

# The mean of so many differs from the long run's by some 10 % where there are 100 members.
BATCHES = 1000
SESSION = 1


@dataclass(frozen=True, slots=True)
class Balance:
    """``slots``: of a batch, held by each member, by id; the mean of ``batches`` batches (1: each has the same)."""

    replicas: int
    batches: int
    slots: Mapping[int, float]

    @property
    def fullest(self) -> float:
        """What the fullest holds, in means."""
        return max(self.slots.values()) * len(self.slots) / (SLOTS * self.replicas)


def balance(view: View, replicas: int) -> Balance | None:
    """None where there are fewer members than replicas."""
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
    """The server of each slot where a root lives on one, uint16[1024], as an index into the members of ``view``; None
    where batches are not all placed alike, and where there is no member."""
    if not 0 < len(view.members) <= SPREAD:
        return None
    first: Replicas = place(view, SESSION, 1, 1).replicas[:, 0]
    return first
