"""Room: counts pending roots, reserved roots and unconfirmed outcomes against the limits of the server.

Decides whether more roots fit, both in the server and for one source. Knows neither roots nor sources: the caller says
how many a source has. Also counts the bytes that clients make the server keep beside the ledger. A count changes
at the same moment as what it counts (`accounts`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

# Bound of the reasons and of the pins of all sources, unless the server is configured otherwise.
BYTES_MAX = 64 << 20


@dataclass(slots=True)
class HeldBytes:
    """The memory of one kind of data, in bytes. ``max_bytes`` bounds it; None: something else does."""

    max_bytes: int | None = None
    bytes: int = 0

    def fits(self, size: int) -> bool:
        return self.max_bytes is None or self.bytes + size <= self.max_bytes


@dataclass(slots=True)
class Room:
    """``max_pending`` bounds the sum of the three counts; ``max_per_source`` bounds their sum for one source."""

    max_pending: int
    max_per_source: int
    pending: int = 0  # roots that were initialised and whose outcome is in no outbox yet
    reserved: int = 0  # roots of open batches that were not initialised yet
    unconfirmed: int = 0  # outcomes that their source has not confirmed
    outcomes: HeldBytes = field(default_factory=HeldBytes)  # the columns of all outboxes
    reasons: HeldBytes = field(
        default_factory=lambda: HeldBytes(BYTES_MAX)
    )  # texts in outboxes, and those of tombstones
    pins: HeldBytes = field(default_factory=lambda: HeldBytes(BYTES_MAX))
    maps: HeldBytes = field(default_factory=HeldBytes)  # the bit maps of open batches
    sources: HeldBytes = field(default_factory=HeldBytes)  # sources, batches and answers to Settle

    @property
    def orphans_max(self) -> int:
        """How many entries without an init are kept at most."""
        return max(1024, self.max_pending // 2)

    @property
    def batch_max(self) -> int:
        """The largest batch that can ever fit."""
        return min(self.max_pending, self.max_per_source)

    def shortage(self, roots: int, of_source: int) -> str:
        """Return why there is no room for more roots, or "" if there is.

        ``roots``: how many more; ``of_source``: how many roots and outcomes the source has already.
        """
        if self.pending + self.reserved + self.unconfirmed + roots > self.max_pending:
            return f"no room for {roots} more roots: max_pending is {self.max_pending}"
        if of_source + roots > self.max_per_source:
            return f"no room for {roots} more roots of one source: max_pending_per_source is {self.max_per_source}"
        return ""
