"""Stream: the emissions of a source, as a sequence of batches opened with ``held=False``. Pure.

Decides the numbers of the next batch, its size, and the batch from which an emission draws its number. No number is
used twice: each batch begins after the previous one, even if that one could not be opened.
"""

from __future__ import annotations

import numpy as np

from acker_client.cluster.pinned_batch import PinnedBatch
from acker_client.cluster.votes import Merged
from acker_client.pins import Pin
from acker_protocol.ids import root_id
from acker_protocol.messages import InitScope, Limits, OpenBatch
from acker_protocol.placement import Member

# A server reserves room for every number of an open batch, so a source that emits little asks for little.
NUMBERS_FIRST = 1024
NUMBERS_MAX = 65_536
# The most numbers of a batch for emissions that are made as columns.
WANTED_MAX = 1 << 20
_GROWTH = 4
# A server takes 1024 open batches of a source. For each 256 open batches, the next one gets twice as large.
_OPEN_A_DOUBLING = 256


class EmittedBatch(PinnedBatch):
    """A batch from which emissions draw their numbers until it ``is_closed``.

    Numbers not drawn by then belong to no record.

    ``is_placed``: the batch is open at all its members, so other processes may learn of it. ``is_published``: other
    processes can learn from the servers which members were left out of it.
    """

    __slots__ = ("_asked_to_settle", "_drawn", "_unanswered_inits", "is_closed", "is_placed", "is_published")

    def __init__(self, pin: Pin, request: OpenBatch) -> None:
        super().__init__(pin, request)
        self.is_closed = self.is_placed = False
        self.is_published = True
        self._drawn = 0
        # How many drawn numbers have an init that is not answered yet.
        self._unanswered_inits = 0
        # The members that have settled the batch, or were asked to.
        self._asked_to_settle: set[Member] = set()

    def draw_root(self) -> int:
        """Return the root id of the next number. Call it only while the batch is not closed."""
        root = root_id(self.request.first, self._drawn)
        self._drawn += 1
        self._unanswered_inits += 1
        if self.is_used_up:
            self.stop_drawing()
        return root

    def draw_roots(self, count: int) -> tuple[int, int]:
        """Draw up to ``count`` numbers. Return the first one, and how many there are."""
        count = min(count, self.request.up_to - self._drawn)
        first = self.request.first + self._drawn
        self._drawn += count
        self._unanswered_inits += count
        if self.is_used_up:
            self.stop_drawing()
        return first, count

    def stop_drawing(self) -> None:
        """Draw no more numbers."""
        if not self.is_closed:
            self.is_closed = True
            self.votes.keep_first(self._drawn)

    def inits_answered(self, count: int) -> None:
        """Note that ``count`` inits were answered or given up."""
        self._unanswered_inits -= count

    def mark_published(self) -> None:
        """Note that other processes can learn which members were left out so far."""
        self.is_published = True

    def leave_out_member(self, member: Member, why: str) -> Merged:
        """Leave ``member`` out for good. New numbers are then drawn from another batch, which has all its replicas."""
        self.stop_drawing()
        if member not in self.out:
            self.is_published = False
        return super().leave_out_member(member, why)

    @property
    def undrawn(self) -> InitScope:
        """The numbers that were not drawn, to tell a server that they get no inits."""
        ranges = np.array([[self._drawn, self.request.up_to]], np.uint64)
        return InitScope(self.request.session, self.request.number, ranges)

    def is_due(self, member: Member) -> bool:
        """Whether to ask ``member`` to settle the batch: it is closed, all its inits were answered or given up, and
        ``member`` was not asked yet."""
        return self.is_closed and not self._unanswered_inits and member not in self._asked_to_settle

    def asked_to_settle(self, member: Member) -> None:
        self._asked_to_settle.add(member)

    @property
    def is_used_up(self) -> bool:
        return self._drawn == self.request.up_to

    @property
    def is_over(self) -> bool:
        # A watch returns as settled only batches that a user opened.
        return False

    @property
    def is_ended(self) -> bool:
        is_settled = all(member in self.out or member in self._asked_to_settle for member in self.members)
        return self.is_closed and self.votes.is_over and is_settled

    @property
    def may_go_on(self) -> bool:
        return True

    @property
    def members_not_settled(self) -> list[Member]:
        return [member for member in self.members if member not in self._asked_to_settle]


class Stream:
    """Not thread-safe: the caller holds the source's lock around every method.

    ``base``: the number of the first emission. ``stop``: the first number after the batches placed so far.
    ``batches``: how many batches were requested so far. ``current``: the batch that emissions draw from.
    """

    __slots__ = ("_limits", "_next_number", "_numbers", "_session", "base", "batches", "current", "stop")

    def __init__(self, session: int, base: int, limits: Limits) -> None:
        self.base = self.stop = base
        self.batches = 0
        self.current: EmittedBatch | None = None
        self._session = session
        self._limits = limits
        self._numbers = NUMBERS_FIRST
        self._next_number = base

    def draw_root(self) -> tuple[int, int] | None:
        """Return the root id of the next emission and the number of its batch; None if a batch has to be opened."""
        batch = self.current
        if batch is None or batch.is_closed:
            return None
        return batch.draw_root(), batch.number

    def draw_roots(self, count: int) -> tuple[int, int, int] | None:
        """Draw up to ``count`` numbers of one batch. Return the first number, how many there are, and the batch. None
        if a batch has to be opened."""
        batch = self.current
        if batch is None or batch.is_closed:
            return None
        return *batch.draw_roots(count), batch.number

    def next_request(self, open_batches: int, wanted: int = 0) -> OpenBatch:
        """Return the request for the next batch, while ``open_batches`` are open. Each call gives other numbers, as a
        failed attempt may have opened its batch on some server. ``wanted``: how many numbers it should have at least.
        """
        if self.current is not None and self.current.is_used_up:
            self._numbers = min(self._numbers * _GROWTH, NUMBERS_MAX)
            self.current = None
        up_to = max(self._numbers << open_batches // _OPEN_A_DOUBLING, min(wanted, WANTED_MAX))
        first, self._next_number = self._next_number, self._next_number + up_to
        self.batches += 1
        return OpenBatch(self._session, self.batches, first, up_to, held=False, limits=self._limits)

    def shrink(self) -> bool:
        """Ask for a smaller batch next time, because servers had no room. False if it cannot be smaller."""
        if self._numbers == 1:
            return False
        self._numbers = max(1, self._numbers // _GROWTH)
        return True

    def mark_placed(self, batch: EmittedBatch) -> None:
        """Note that ``batch`` is open at all its members. Other processes may learn of it before it is drawn from."""
        batch.is_placed = True
        self.stop = batch.request.first + batch.request.up_to

    def draw_from(self, batch: EmittedBatch) -> None:
        self.current = batch
