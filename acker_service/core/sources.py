"""Sources: who emits roots and receives outcomes, for how long it is believed to live, and what was answered to it.

Decides leases and what is remembered of settled batches; knows neither the ledger nor the other sources.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from enum import StrEnum

from acker_protocol.messages import Settlement
from acker_service.core.batches import Batch
from acker_service.core.outbox import Outbox

# Answers to settled batches that are remembered; a driver asks again within seconds, not batches later.
SETTLED_MAX = 1024
# Batches that one source may have open at once, so that it cannot take all indexes.
OPEN_MAX = 1024
NAME_CHARACTERS = 256


@dataclass(frozen=True, slots=True)
class Settled:
    """What a batch was settled as, and what was answered."""

    settlement: Settlement
    cursor: int
    roots: int


class Change(StrEnum):
    """What can become of a source."""

    OPENED = "opened"
    CLOSED = "closed"
    EXPIRED = "expired"  # its lease has run out


@dataclass(frozen=True, slots=True)
class SourceChange:
    """What became of a source, and what it had then: roots ``pending``, outcomes ``unconfirmed``, batches open."""

    change: Change
    name: str
    session: int
    pending: int = 0
    unconfirmed: int = 0
    open_batches: int = 0


@dataclass(eq=False, slots=True)
class Source:
    """One session of a source. ``lease_s``: as granted last. ``batches``: by number, 0 included; closed ones stay while
    roots of theirs are pending. ``generation``: token of this registration; a session that is registered anew has
    another. ``watched``: when its last Watch came."""

    name: str
    session: int
    expires: float
    generation: int
    lease_s: float = 0.0
    outbox: Outbox = field(default_factory=Outbox)
    batches: dict[int, Batch] = field(default_factory=dict)
    settled: OrderedDict[int, Settled] = field(default_factory=OrderedDict)
    last_settled: int = 0
    watched: float = 0.0

    @property
    def stream(self) -> Batch:
        return self.batches[0]

    def remember(self, number: int, settled: Settled) -> None:
        self.settled[number] = settled
        self.last_settled = max(self.last_settled, number)
        if len(self.settled) > SETTLED_MAX:
            self.settled.popitem(last=False)
