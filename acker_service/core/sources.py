"""Sources: the lease, the batches and the outbox of one session, which emits roots and receives their outcomes.

Decides what is remembered of settled batches. Knows neither the ledger nor other sources.
"""

from __future__ import annotations

import sys
import zlib
from collections import OrderedDict
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from acker_protocol.messages import Settlement
from acker_service.core.batches import BatchState
from acker_service.core.outbox import Outbox
from acker_service.core.room import Room

# How many answers to Settle are remembered per source. A driver retries within seconds, so older ones are not needed.
SETTLED_MAX = 1024
# How many batches one source may have open at once, so that it cannot use up all batch indexes.
OPEN_MAX = 1024
# The bit maps of a batch need one bit per number, even if this server has only some of its slots and so fewer roots.
# Such a batch may have at most this many numbers for each root that fits on the server.
NUMBERS_A_ROOT = 16


@dataclass(frozen=True, slots=True)
class SettleAnswer:
    """How a batch was settled, and the answer: the outbox cursor at that time, and the batch's number of outcomes."""

    settlement: Settlement
    cursor: int
    roots: int


class Change(StrEnum):
    """A change in the life of a source."""

    OPENED = "opened"
    CLOSED = "closed"
    EXPIRED = "expired"  # its lease has run out


@dataclass(frozen=True, slots=True)
class SourceChange:
    """A change of a source, with its pending roots, unconfirmed outcomes and open batches at that moment."""

    change: Change
    name: str
    session: int
    pending: int = 0
    unconfirmed: int = 0
    open_batches: int = 0


@dataclass(eq=False, slots=True)
class SourceState:
    """One session of a source.

    ``expires``: when the lease ends. ``lease_s``: the lease granted last. ``batches``: maps numbers to batches,
    with the open stream as 0. A closed batch stays while it has pending roots. ``generation``: token of this
    registration; it changes when the session registers again. ``watched_at``: when its last Watch came. ``pins``: the
    pins of the last Watch that had any. ``owner``: the only caller that may use the session; "" for everybody.
    ``emitted``: the numbers of all its batches that are not held, from the first one up to the end of the last one,
    (0, 0) before the first.
    """

    name: str
    session: int
    expires: float
    generation: int
    outbox: Outbox
    lease_s: float = 0.0
    batches: dict[int, BatchState] = field(default_factory=dict)
    settled: OrderedDict[int, SettleAnswer] = field(default_factory=OrderedDict)
    last_settled: int = 0
    watched_at: float = 0.0
    pins: bytes = b""
    pins_crc32: int = 0
    owner: str = ""
    emitted: tuple[int, int] = (0, 0)

    @property
    def stream(self) -> BatchState:
        return self.batches[0]

    def changed(self, change: Change, pending: int) -> SourceChange:
        """Return the change with the counts of this source. ``pending``: its roots without an outcome."""
        open_batches = sum(bool(batch.number and batch.is_open) for batch in self.batches.values())
        return SourceChange(change, self.name, self.session, pending, len(self.outbox), open_batches)

    def keep_pins(self, pins: bytes) -> None:
        """Keep ``pins`` instead of the earlier ones."""
        pins_crc32 = zlib.crc32(pins)
        self.pins, self.pins_crc32 = pins, pins_crc32

    def emitted_with(self, batch: BatchState) -> tuple[int, int]:
        """Return the numbers ``emitted`` with those of a batch that is not held."""
        first, stop = batch.first, batch.first + batch.up_to
        known = self.emitted if any(self.emitted) else (first, stop)
        return min(known[0], first), max(known[1], stop)

    def has_emitted(self, number: int) -> bool:
        """Whether the source may have emitted the root with this number."""
        return self.emitted[0] <= number < self.emitted[1]

    def remember_settled(self, number: int, settled: SettleAnswer) -> None:
        is_full = len(self.settled) >= SETTLED_MAX and number not in self.settled
        oldest, last_settled = next(iter(self.settled), 0), max(self.last_settled, number)
        self.settled[number] = settled
        # Nothing below can fail.
        if is_full:
            del self.settled[oldest]
        self.last_settled = last_settled

    # -- state

    def dump(self, now: float) -> dict[str, Any]:
        """Return JSON fields of the source and its batches. Other parts of the dump hold the pins, the maps of batches,
        and the outcomes."""
        return {
            "name": self.name,
            "session": self.session,
            "owner": self.owner,
            "generation": self.generation,
            "lease_s": self.lease_s,
            "silent_s": now - self.watched_at,
            "freed": self.outbox.freed,
            "pieces": self.outbox.pieces,
            "pins_bytes": len(self.pins),
            "last_settled": self.last_settled,
            "emitted": list(self.emitted),
            "settled": [[number, int(s.settlement), s.cursor, s.roots] for number, s in self.settled.items()],
            "batches": [batch.dump(now) for batch in self.batches.values()],
        }

    @classmethod
    def load(cls, content: dict[str, Any], pins: bytes, held: Room, now: float) -> SourceState:
        """Restore a source from the result of `dump` and its pins, without batches and outcomes."""
        lease_s, outbox = content["lease_s"], Outbox(held, content["freed"])
        # The lease starts again, since the source could not renew it while no server ran.
        source = cls(content["name"], content["session"], now + lease_s, content["generation"], outbox, lease_s)
        source.last_settled = content["last_settled"]
        # All sources of one owner share the text.
        source.owner = sys.intern(content.get("owner", ""))
        source.watched_at = now - content.get("silent_s", 0.0)
        source.keep_pins(pins)
        first, stop = content.get("emitted", (0, 0))
        source.emitted = first, stop
        for number, settlement, cursor, roots in content["settled"]:
            source.settled[number] = SettleAnswer(Settlement(settlement), cursor, roots)
        return source


def pins_bytes(pins: bytes) -> int:
    """Return the memory of the pins of one source. Sources without pins share one empty object."""
    return sys.getsizeof(pins) if pins else 0
