"""Orphans: how long an entry without an init (an early or late ack, a tombstone) may wait for its init.

The number of orphans is bounded. The more there are, the shorter acks of unknown roots live; above seven eighths of the
bound they are dropped and counted. Dropping an ack is safe. It can stall a tree, and then the record is replayed. It
can never make a tree look done: an update holds a record's own edge and its children's edges, and the edges that the
dropped update would have cancelled stay in the ack val. If a fail without an edge were dropped, its root could be
ACKED. So it is kept; if there is no room, its message is refused. Tombstones live for the whole time. The same holds
for unknown roots about which two attempts differ (`Ledger.block`).
"""

from __future__ import annotations

from acker_service.core import kernels
from acker_service.core.ledger import Ledger

# (share of the bound, factor by which the lifetime of orphans shrinks above this share)
PRESSURE = ((0.9, 64), (0.75, 16), (0.5, 4))


class Orphans:
    """The orphans of one ledger. ``timeout_s``: how long an orphan may wait while there are few orphans."""

    def __init__(self, ledger: Ledger, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._ledger = ledger
        self._pressure = 1

    @property
    def ticks(self) -> int:
        """How long an ack may wait for its init at present, in ticks."""
        return int(self.timeout_s * kernels.TICKS_A_SECOND / self._pressure) + 1

    @property
    def tombstone_ticks(self) -> int:
        """How long a fail, or a blocked orphan, may wait for its init, in ticks."""
        return int(self.timeout_s * kernels.TICKS_A_SECOND) + 1

    def update_pressure(self) -> None:
        """Adjust the lifetime of orphans to their number."""
        share = self._ledger.orphans / self._ledger.acks_max
        pressure = next((factor for bound, factor in PRESSURE if share > bound), 1)
        if pressure > self._pressure:
            self._ledger.recheck_expiry()
        self._pressure = pressure
