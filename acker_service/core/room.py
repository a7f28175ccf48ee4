"""Room: the one account of what a server has room for: roots pending, roots reserved, outcomes not confirmed.

Decides whether so many more roots fit, into the server and of one source; every change of the three goes through here.
Knows neither roots nor sources: who asks says how many it has.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Room:
    """``max_pending`` bounds all three together, ``max_per_source`` those of one source."""

    max_pending: int
    max_per_source: int
    pending: int = 0  # roots that were initialised and have no outcome
    reserved: int = 0  # roots of open batches that were not initialised yet
    unconfirmed: int = 0  # outcomes that their source has not confirmed

    @property
    def batch_max(self) -> int:
        """The largest batch that ever fits."""
        return min(self.max_pending, self.max_per_source)

    def lacks(self, roots: int, of_source: int) -> str:
        """Why ``roots`` more do not fit, of a source that has ``of_source`` of the three; nothing ("") when they do."""
        if self.pending + self.reserved + self.unconfirmed + roots > self.max_pending:
            return f"no room for {roots} more roots: max_pending is {self.max_pending}"
        if of_source + roots > self.max_per_source:
            return f"no room for {roots} more roots of one source: max_pending_per_source is {self.max_per_source}"
        return ""

    def reserve(self, roots: int) -> None:
        """A batch was opened for so many."""
        self.reserved += roots

    def initialise(self, roots: int, *, were_reserved: bool) -> None:
        """Roots are pending now; those of a batch were reserved before."""
        self.pending += roots
        if were_reserved:
            self.reserved -= roots

    def finish(self, roots: int) -> None:
        """Pending roots have their outcomes."""
        self.pending -= roots
        self.unconfirmed += roots

    def close(self, reserved: int, unread: int) -> None:
        """A batch that had ``reserved`` left was settled, and ``unread`` of them got an outcome."""
        self.reserved -= reserved
        self.unconfirmed += unread

    def confirm(self, outcomes: int) -> None:
        """Outcomes were confirmed."""
        self.unconfirmed -= outcomes

    def drop(self, pending: int, reserved: int, unconfirmed: int) -> None:
        """Sources are gone, with all that they had."""
        self.pending -= pending
        self.reserved -= reserved
        self.unconfirmed -= unconfirmed
