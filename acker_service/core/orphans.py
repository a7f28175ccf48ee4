"""Orphans: for how long an entry without an init (an early or late ack, a tombstone) may wait for one.

They are bounded: they live shorter the more there are, and beyond the bound acks of unknown roots are dropped and
counted. That is safe: a lost ack can stall a tree, whose record is then replayed; it can never make it look done, since
every update is "my edge and my children's edges" and the edges it would have cancelled stay in the ack val.
"""

from __future__ import annotations

from acker_service.core import kernels
from acker_service.core.ledger import Ledger

# A share of the bound on orphans, and by how much they live shorter above it.
PRESSURE = ((0.9, 64), (0.75, 16), (0.5, 4))


class Orphans:
    """Those of one ledger, which may wait for ``timeout_s`` while there are few of them."""

    def __init__(self, ledger: Ledger, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._ledger = ledger
        self._pressure = 1

    @property
    def ticks(self) -> int:
        """For how long one may wait now."""
        return int(self.timeout_s * kernels.TICKS_A_SECOND / self._pressure) + 1

    def press(self) -> None:
        """They live shorter while there are many."""
        share = self._ledger.orphans / self._ledger.orphans_max
        pressure = next((factor for bound, factor in PRESSURE if share > bound), 1)
        if pressure > self._pressure:
            self._ledger.hasten()
        self._pressure = pressure
