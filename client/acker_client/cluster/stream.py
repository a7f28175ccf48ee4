"""Stream: the emissions of a source, as a sequence of batches that are not held. Pure.

Decides which numbers the next batch gets, how many of them, and which batch an emission draws its number from. Numbers
are never used twice: each batch begins behind the one before, also where that one could not be opened.
"""

from __future__ import annotations

import numpy as np

from acker_client.cluster.pinned_batch import PinnedBatch
from acker_client.cluster.votes import Merged
from acker_client.pins import Pin
from acker_protocol.ids import root_id
from acker_protocol.messages import InitScope, Limits, OpenBatch
from acker_protocol.placement import Member

# A server keeps room for every number of an open batch, so a source that emits little asks for little.
NUMBERS_FIRST = 1024
NUMBERS_MAX = 65_536
_GROWTH = 4
# A server takes 1024 batches of a source at once: whenever so many more are open, batches get twice as large.
_OPEN_A_DOUBLING = 256


class EmittedBatch(PinnedBatch):
    """A batch that emissions draw their numbers from, until it ``is_closed``. Numbers not drawn by then are no records.

    ``is_placed``: it is open at all its members, so that others may learn of it. ``unreported``: drawn numbers whose
    inits are still to be answered. ``settled``: the members that have settled it, or are being asked to.
    """

    __slots__ = ("_drawn", "is_closed", "is_placed", "settled", "unreported")

    def __init__(self, pin: Pin, request: OpenBatch) -> None:
        super().__init__(pin, request)
        self._drawn = 0
        self.is_closed = self.is_placed = False
        self.unreported = 0
        self.settled: set[Member] = set()

    def draw(self) -> int:
        """Return the root id of the next number; only while it is not closed."""
        root = root_id(self.request.first, self._drawn)
        self._drawn += 1
        self.unreported += 1
        if self._drawn == self.request.up_to:
            self.close()
        return root

    def close(self) -> None:
        """Draw no more numbers."""
        if not self.is_closed:
            self.is_closed = True
            self.votes.keep(self._drawn)

    def leave(self, member: Member, why: str) -> Merged:
        """``member`` is out for good: new numbers are drawn from a batch with all its replicas."""
        self.close()
        return super().leave(member, why)

    @property
    def undrawn(self) -> InitScope:
        """Says at a server that no inits come of the numbers that were not drawn."""
        ranges = np.array([[self._drawn, self.request.up_to]], np.uint64)
        return InitScope(self.request.session, self.request.number, ranges)

    def is_due(self, member: Member) -> bool:
        """Whether ``member`` is to be asked to settle it: every init has been answered there, or never will be."""
        return self.is_closed and not self.unreported and member not in self.settled

    @property
    def is_used_up(self) -> bool:
        return self._drawn == self.request.up_to

    @property
    def is_over(self) -> bool:
        # Only batches that a user has opened are named as settled.
        return False

    @property
    def is_ended(self) -> bool:
        return self.is_closed and self.votes.is_over and all(m in self.out or m in self.settled for m in self.members)

    @property
    def may_go_on(self) -> bool:
        return True

    @property
    def not_settled(self) -> list[Member]:
        return [member for member in self.members if member not in self.settled]


class Stream:
    """Not thread-safe: the caller holds a lock around every method.

    ``base``: the number of the first emission. ``stop``: the first that no batch has had that was drawn from.
    """

    __slots__ = ("_limits", "_next_number", "_numbers", "_session", "base", "batches", "current", "stop")

    def __init__(self, session: int, base: int, limits: Limits) -> None:
        self._session = session
        self._limits = limits
        self._numbers = NUMBERS_FIRST
        self.base = self.stop = self._next_number = base
        # How many batches there were so far, and which one is drawn from.
        self.batches = 0
        self.current: EmittedBatch | None = None

    def draw(self) -> tuple[int, int] | None:
        """Return the root id of the next emission and the number of its batch; None: the next batch is to be opened."""
        batch = self.current
        if batch is None or batch.is_closed:
            return None
        return batch.draw(), batch.request.number

    def next_request(self, open_batches: int) -> OpenBatch:
        """What the next batch is to be opened with, while ``open_batches`` of them are not over. Each call gives other
        numbers: an attempt that failed may have opened a batch somewhere."""
        if self.current is not None and self.current.is_used_up:
            self._numbers = min(self._numbers * _GROWTH, NUMBERS_MAX)
            self.current = None
        up_to = self._numbers << open_batches // _OPEN_A_DOUBLING
        first, self._next_number = self._next_number, self._next_number + up_to
        self.batches += 1
        return OpenBatch(self._session, self.batches, first, up_to, held=False, limits=self._limits)

    def shrink(self) -> bool:
        """There was no room for the last request: ask for less; False where that cannot be."""
        if self._numbers == 1:
            return False
        self._numbers = max(1, self._numbers // _GROWTH)
        return True

    def place(self, batch: EmittedBatch) -> None:
        """``batch`` is open at all its members: others may learn of it, and then it is drawn from."""
        batch.is_placed = True
        self.stop = batch.request.first + batch.request.up_to

    def begin(self, batch: EmittedBatch) -> None:
        """Draw from ``batch`` from now on."""
        self.current = batch

    def end(self) -> None:
        """Draw nothing more from the batch that is drawn from."""
        if self.current is not None:
            self.current.close()
