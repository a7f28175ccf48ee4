"""Sources: who emits roots and receives outcomes, for how long it is believed to live, and what was answered to it.

Decides leases and what is remembered of settled batches; knows neither the ledger nor the other sources.
"""

from __future__ import annotations

import base64
import zlib
from collections import OrderedDict
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from acker_protocol.messages import Settlement
from acker_service.core.batches import BatchState
from acker_service.core.outbox import Outbox

# Answers to settled batches that are remembered; a driver asks again within seconds, not batches later.
SETTLED_MAX = 1024
# Batches that one source may have open at once, so that it cannot take all indexes.
OPEN_MAX = 1024
# Numbers that batches with some of the slots may have for each root that a server holds: maps have a bit for each.
NUMBERS_A_ROOT = 16
NAME_CHARACTERS = 256


@dataclass(frozen=True, slots=True)
class SettleAnswer:
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
class SourceState:
    """One session of a source. ``lease_s``: as granted last. ``batches``: by number, 0 included; closed ones stay while
    roots of theirs are pending. ``generation``: token of this registration; a session that is registered anew has
    another. ``watched_at``: when its last Watch came. ``pins``: as a Watch brought them last, and
    their ``pins_crc32``."""

    name: str
    session: int
    expires: float
    generation: int
    lease_s: float = 0.0
    outbox: Outbox = field(default_factory=Outbox)
    batches: dict[int, BatchState] = field(default_factory=dict)
    settled: OrderedDict[int, SettleAnswer] = field(default_factory=OrderedDict)
    last_settled: int = 0
    watched_at: float = 0.0
    pins: bytes = b""
    pins_crc32: int = 0

    @property
    def stream(self) -> BatchState:
        return self.batches[0]

    def changed(self, change: Change, pending: int) -> SourceChange:
        """What becomes of it, with what it has; ``pending``: its roots that have no outcome."""
        open_batches = sum(bool(batch.number and batch.is_open) for batch in self.batches.values())
        return SourceChange(change, self.name, self.session, pending, len(self.outbox), open_batches)

    def keep(self, pins: bytes) -> None:
        self.pins, self.pins_crc32 = pins, zlib.crc32(pins)

    def remember(self, number: int, settled: SettleAnswer) -> None:
        self.settled[number] = settled
        self.last_settled = max(self.last_settled, number)
        if len(self.settled) > SETTLED_MAX:
            self.settled.popitem(last=False)

    # -- state

    def dump(self, now: float) -> dict[str, Any]:
        """What is small of it, with its batches; the columns of these and of its outbox come in parts of their own."""
        return {
            "name": self.name,
            "session": self.session,
            "generation": self.generation,
            "lease_s": self.lease_s,
            "silent_s": now - self.watched_at,
            "freed": self.outbox.freed,
            "outbox": self.outbox.stretches(),
            "last_settled": self.last_settled,
            "settled": [[number, int(s.settlement), s.cursor, s.roots] for number, s in self.settled.items()],
            "batches": [batch.dump(now) for batch in self.batches.values()],
            "pins": base64.b64encode(self.pins).decode(),
        }

    @classmethod
    def load(cls, content: dict[str, Any], now: float) -> SourceState:
        """What `dump` gave, without its batches and outcomes."""
        # Anew: for as long as nobody served, nobody could renew it.
        lease_s = content["lease_s"]
        source = cls(content["name"], content["session"], now + lease_s, content["generation"], lease_s)
        source.outbox = Outbox(content["freed"])
        source.last_settled = content["last_settled"]
        source.watched_at = now - content.get("silent_s", 0.0)
        source.keep(base64.b64decode(content.get("pins", "")))
        for number, settlement, cursor, roots in content["settled"]:
            source.settled[number] = SettleAnswer(Settlement(settlement), cursor, roots)
        return source
