"""Open batches: the batches of a source that are not over, and what its servers have said about them. Pure.

Decides which batches an answer of a server concerns, when a batch is over, and what the next watch returns.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from acker_client.cluster.pinned_batch import PinnedBatch
from acker_client.cluster.registration import Heard
from acker_client.cluster.stream import EmittedBatch
from acker_client.cluster.votes import Merged
from acker_client.cluster.watched import PendingResult, WatchResult, only
from acker_client.errors import UnknownBatch
from acker_client.pins import Pin, Pins, parted
from acker_protocol.ids import MASK, unmix64
from acker_protocol.messages import InitScope, Outcomes, Settlement, SettleReply
from acker_protocol.placement import Member

log = logging.getLogger("acker_client")

# How many ranges of numbers of ended batches are remembered.
_ENDED_MAX = 256


class OpenBatches:
    """The batches of one source by number, oldest first. Not thread-safe.

    ``lock`` is the source's lock. The caller holds it around every method here, and around every method of a batch that
    changes something. Nobody holds it over a call to a server.
    """

    def __init__(self, lock: AbstractContextManager[Any]) -> None:
        self.lock = lock
        self._batches: dict[int, PinnedBatch] = {}
        # The members of the last placement. They are watched even if no batch is open, so that the lease is renewed.
        self._home: tuple[Member, ...] = ()
        # Numbers of ended batches that a user opened, as (first, stop). Adjoining ranges are one range.
        self._ended: tuple[tuple[int, int], ...] = ()
        self._pending = PendingResult()
        self._news: Future[None] = Future()

    # -- which batches there are

    def __len__(self) -> int:
        return len(self._batches)

    @property
    def pins(self) -> Pins:
        return tuple(batch.pin for batch in self._batches.values())

    @property
    def emitted(self) -> list[EmittedBatch]:
        """The batches that emissions draw or drew from."""
        return [batch for batch in self._batches.values() if isinstance(batch, EmittedBatch)]

    @property
    def ended(self) -> tuple[tuple[int, int], ...]:
        """Numbers of ended batches that a user opened, as (first, stop)."""
        return self._ended

    def find_batch(self, number: int) -> PinnedBatch | None:
        return self._batches.get(number)

    def check_open(self, number: int) -> Pin:
        """Return the pin of a batch that a user opened. Raise ``UnknownBatch`` if it is settled or not known here."""
        batch = self._batches.get(number)
        if batch is None or isinstance(batch, EmittedBatch) or batch.settlement is not None:
            raise UnknownBatch(
                f"batch {number!r} is not open on this client: open_batch({number!r}, ...) it first, or start a tree"
                " with emit(), which chooses the root id"
            )
        return batch.pin

    def check_root(self, number: int, root: int) -> None:
        """Raise ``UnknownBatch`` as ``check_open`` does, or ValueError if ``root`` is not of the batch."""
        pin = self.check_open(number)
        if isinstance(root, int | np.integer) and (unmix64(int(root) & MASK) - pin.first) & MASK >= pin.up_to:
            raise ValueError(
                f"root={root}: it is none of the {pin.up_to} roots of batch {number}, whose number i has root id"
                f" mix64({pin.first} + i): ids.root_id({pin.first}, i) makes it, and emit() chooses one itself"
            )

    def add_batch(self, batch: PinnedBatch) -> None:
        """Add a batch that is being opened, in place of an earlier attempt at it."""
        self._batches[batch.number] = batch

    def remove(self, number: int) -> None:
        """Forget a batch that could not be opened, so that the next attempt does not see it as open."""
        self._batches.pop(number, None)

    def forget_batch(self, batch: PinnedBatch) -> None:
        """Forget a batch whose further outcomes are not wanted."""
        del self._batches[batch.number]
        self._remember_numbers(batch)
        differed, saved = batch.votes.differed, batch.votes.saved
        self._pending.add_differences(differed, saved)
        if differed:
            text = "batch %d: the servers differed about %d roots, %d of which a second replica saved"
            log.info(text, batch.number, differed, saved)

    def end_all(self) -> None:
        """Forget all batches, as the source is closed."""
        for batch in self._batches.values():
            self._remember_numbers(batch)
        self._batches.clear()

    # -- their members

    @property
    def members_to_watch(self) -> list[Member]:
        """The members that hold a batch and were not left out of it, and the members of the last placement, by id."""
        holding = {member for batch in self._batches.values() for member in batch.members if member not in batch.out}
        return sorted(holding.union(self._home))

    def members_where(self, is_here: Callable[[Member], bool]) -> set[Member]:
        """Return the members of all batches for which ``is_here`` is true."""
        return set(filter(is_here, {member for batch in self._batches.values() for member in batch.members}))

    def placed_on(self, members: tuple[Member, ...]) -> None:
        self._home = members

    def leave_out_failed_server(self, member: Member, why: str) -> None:
        """Leave ``member`` out of all batches that it has opened. ``open_batch`` checks membership itself, so batches
        that are still being opened there are left alone."""
        self._home = tuple(each for each in self._home if each != member)
        for batch in list(self._batches.values()):
            if batch.is_opened_on(member):
                self.leave_out_member(batch, member, why)

    def is_held_by(self, member: Member) -> bool:
        """Whether ``member`` has opened a batch and was not left out of it."""
        return any(batch.is_opened_on(member) and member not in batch.out for batch in self._batches.values())

    def leave_out_lost(
        self, here: AbstractSet[Member], generation: int | None, why: str
    ) -> list[tuple[PinnedBatch, Member]]:
        """Leave the members ``here`` out of the batches that their server has lost. The server opened these batches
        under an earlier registration than the current one, which has this ``generation``. Return pairs of a batch and a
        member."""
        lost = [(batch, member) for batch, member in self._held_by(here) if batch.was_lost_by(member, generation)]
        for batch, member in lost:
            self.leave_out_member(batch, member, why)
        return lost

    def leave_out_member(self, batch: PinnedBatch, member: Member, why: str) -> None:
        """Leave ``member`` out of a batch: nothing that it says about the batch from now on counts."""
        if member not in batch.out and not isinstance(batch, EmittedBatch):
            self._pending.add_interrupted(batch.number)
        self._add_merged(batch, batch.leave_out_member(member, why))

    # -- what servers say

    @property
    def news(self) -> Future[None]:
        """Done when there is news that no poll has brought."""
        return self._news

    def count_answer(self, here: AbstractSet[Member], heard: Heard) -> None:
        """Count the answer of one server to a poll. ``here``: the members at the server's address."""
        if len(heard.outcomes):
            self._count_outcomes(here, heard.outcomes)
        for batch, member in self._held_by(here):
            self._add_merged(batch, batch.heard_up_to(member, heard.generation, heard.cursor))

    def take_due(self, here: AbstractSet[Member]) -> dict[int, InitScope | None]:
        """Return the emitted batches to end on one server, by number, each with its undrawn numbers, or None if the
        server was left out of it. Returns a batch only once. ``here``: the members at the server's address."""
        due: dict[int, InitScope | None] = {}
        for batch in self.emitted:
            for member in filter(here.__contains__, batch.members):
                if batch.is_due(member):
                    batch.asked_to_settle(member)
                    due[batch.number] = None if member in batch.out else batch.undrawn
        return due

    def inits_answered(self, number: int, count: int) -> None:
        """Note that ``count`` inits of a batch were answered or given up."""
        batch = self._batches.get(number)
        if isinstance(batch, EmittedBatch):
            batch.inits_answered(count)

    def start_settling(self, number: int, settlement: Settlement) -> PinnedBatch:
        """Note how a batch is to be settled, and return it. Raise ``UnknownBatch`` if it is not open here."""
        batch = self._batches.get(number)
        if batch is None or isinstance(batch, EmittedBatch):
            raise UnknownBatch(f"batch {number} is not open on this client: it was settled, or never opened")
        batch.end_as(settlement)
        return batch

    def note_settled(
        self, batch: PinnedBatch, member: Member, reply: SettleReply, heard: tuple[int | None, int]
    ) -> None:
        """Note that ``member`` has settled a batch. ``heard``: the generation and cursor up to which the outcomes of
        this member were counted."""
        batch.settled_on(member, reply)
        self._add_merged(batch, batch.heard_up_to(member, *heard))

    def wake_watch(self, batch: PinnedBatch) -> None:
        """Wake the waiting watch if there is news, or if ``batch`` is over."""
        if (batch.is_over or not self._pending.is_empty) and not self._news.done():
            self._news.set_result(None)

    def take_result(self, *, answered: bool) -> tuple[WatchResult, list[PinnedBatch]]:
        """Return everything that no watch has returned yet, and the batches that have ended. Forget both."""
        settled = [number for number, batch in self._batches.items() if batch.take_settled()]
        ended = [batch for batch in self._batches.values() if batch.is_ended]
        for batch in ended:
            self.forget_batch(batch)
        pending, self._pending, self._news = self._pending, PendingResult(), Future()
        return pending.result(settled, answered=answered), ended

    # -- inside

    def _held_by(self, here: AbstractSet[Member]) -> Iterator[tuple[PinnedBatch, Member]]:
        """Yield each batch with each of its members in ``here``."""
        return ((batch, member) for batch in self._batches.values() for member in batch.members if member in here)

    def _count_outcomes(self, here: AbstractSet[Member], outcomes: Outcomes) -> None:
        """Route outcomes to their batches, and drop outcomes of batches that are over."""
        batches = list(self._batches.values())
        indices = parted(self.pins, outcomes.root_ids)
        for index in np.unique(indices[indices >= 0]).tolist():
            own = indices == index
            # Outcomes count only from members that hold the batch.
            for member in filter(here.__contains__, batches[index].members):
                its = outcomes if own.all() else only(outcomes, own)
                self._add_merged(batches[index], batches[index].count_outcomes(member, its))

    def _add_merged(self, batch: PinnedBatch, merged: Merged) -> None:
        if merged.unheard:
            log.error(
                "batch %d: a server has counted %d outcomes more than it has reported: what it did not report is LOST",
                batch.number,
                merged.unheard,
            )
        self._pending.add(merged.outcomes, merged.absent)
        self.wake_watch(batch)

    def _remember_numbers(self, batch: PinnedBatch) -> None:
        """Remember the numbers of an ended batch that a user opened, so that late updates of its roots are dropped."""
        if isinstance(batch, EmittedBatch):
            return
        first, stop = batch.request.first, batch.request.first + batch.request.up_to
        ended = self._ended
        if ended and ended[-1][1] == first:
            ended, first = ended[:-1], ended[-1][0]
        self._ended = (*ended[1 - _ENDED_MAX :], (first, stop))
