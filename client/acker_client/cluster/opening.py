"""Opening: places a source or a batch on members and opens it there. Places it again if a member does not answer.

Decides on which members a batch is placed, which are tried next, and how attempts share the time.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from functools import partial
from typing import TypeVar

from acker_client.backoff import Patience
from acker_client.cluster.conversations import Conversations
from acker_client.cluster.membership import Cluster
from acker_client.cluster.open_batches import OpenBatches
from acker_client.cluster.pinned_batch import PinnedBatch
from acker_client.cluster.replicas import ask_members
from acker_client.errors import AckerError, Draining, Overloaded, Unavailable
from acker_client.pins import Pin
from acker_protocol.messages import InitScope, OpenBatch
from acker_protocol.placement import Member, Placement, View, place

log = logging.getLogger("acker_client")

# How long to wait before full servers are asked again for room for a source: their answer has no delay.
_FULL_S = 0.2

Batch = TypeVar("Batch", bound=PinnedBatch)
OpenOn = Callable[[Member, Patience], None]


class Opener:
    """Opens one source and its batches. Takes the source's lock (``OpenBatches.lock``) where it changes batches
    and ``_asked``. Only one thread at a time opens the batch of a number.
    """

    def __init__(self, cluster: Cluster, session: int, batches: OpenBatches, conversations: Conversations) -> None:
        self._cluster = cluster
        self._session = session
        self._batches = batches
        self._conversations = conversations
        # How many members there were at the last placement.
        self._members_placed_on = 0
        # By batch number, the members where a batch without a final placement may be open.
        self._asked: dict[int, dict[Member, None]] = {}

    def open_source(self, patience: Patience) -> None:
        """Open the source on some servers, where other processes learn of it."""
        tried = set[Member]()

        def attempt(silent: AbstractSet[Member], budget_s: float) -> AbstractSet[Member]:
            placement = self._place_batch(answering(self._cluster.view(patience), silent), 0)
            return self._open_on_members(placement.members, tried, self._renew_lease_on, budget_s)

        until_opened(attempt, patience)

    def move_source(self) -> None:
        """Place the source on other members, once all its members are gone and it has no batch. The next polls register
        it there. Does not wait: while the view has no members, the source stays where it was."""
        with contextlib.suppress(AckerError):
            placement = self._place_batch(self._cluster.view(self._cluster.patience(0.0)), 0)
            for member in placement.members:
                self._conversations.with_member(member)

    def open_batch(self, kind: type[Batch], request: OpenBatch, patience: Patience) -> Batch:
        """Place a batch and open it on all its members. Place it again if one of them is gone or takes nothing new."""
        # A failed attempt leaves the batch open on some members, and the next attempt may place it elsewhere.
        with self._batches.lock:
            asked = self._asked.setdefault(request.number, {})
        tried = set[Member]()
        batches: list[Batch] = []

        def attempt(silent: AbstractSet[Member], budget_s: float) -> AbstractSet[Member]:
            placement = self._place_batch(answering(self._cluster.view(patience), silent), request.number)
            batch = kind(Pin(self._session, request.number, request.first, request.up_to, placement), request)
            batches.append(batch)
            with self._batches.lock:
                self._batches.add_batch(batch)
                asked.update(dict.fromkeys(batch.members))
            return self._open_on_members(batch.members, tried, partial(self._open_batch_on, batch), budget_s)

        try:
            until_opened(attempt, patience)
        except BaseException:
            with self._batches.lock:
                self._batches.remove(request.number)
            raise
        batch = batches[-1]
        with self._batches.lock:
            self._asked.pop(request.number, None)
            here = set(map(self._cluster.address_of, batch.members))
            elsewhere = [member for member in asked if self._cluster.address_of(member) not in here]
            self._conversations.end_batch_on(elsewhere, request.number, None)
        return batch

    def end_unopened(self, number: int, undrawn: InitScope | None) -> bool:
        """End a batch that could not be opened, on the members where it may be open. Return whether there are any.
        Caller holds the source's lock."""
        asked = self._asked.pop(number, {})
        self._conversations.end_batch_on(asked, number, undrawn)
        return bool(asked)

    def _place_batch(self, view: View, number: int) -> Placement:
        settings = self._cluster.settings
        members = len(view.members)
        wanted = min(2, members) if settings.replicas is None else settings.replicas
        spread = max(settings.spread, wanted)
        if wanted > members and members != self._members_placed_on:
            log.warning("%d replicas are asked for, but there are %d servers: going on with fewer", wanted, members)
        self._members_placed_on = members
        placement = place(view, self._session, number, min(wanted, members), spread)
        self._cluster.hear_of(placement)
        with self._batches.lock:
            self._batches.placed_on(placement.members)
        return placement

    def _open_on_members(
        self, members: tuple[Member, ...], tried: set[Member], open_on: OpenOn, budget_s: float
    ) -> AbstractSet[Member]:
        """Call ``open_on`` for all ``members``, and add them to ``tried``. Return the members that were left out."""
        tried.update(members)
        opening = Opening(members, lambda member: not self._cluster.answering_instead_of(member) <= tried)

        def open_on_member(member: Member, patience: Patience) -> None:
            try:
                open_on(member, patience)
            except Draining:
                self._cluster.drains(member)
                raise
            if self._cluster.is_replaced(member, patience):
                # A batch that is opened on this server would count as lost, like everything that the member had.
                opening.drop_member(member, "its server came back without its state")
            else:
                opening.opened_on(member)

        def why_dispensable(member: Member) -> str | None:
            self._conversations.keep_leases()
            # No root lives on this member yet, so nobody has to wait until the server is back.
            is_free = self._cluster.is_away(member) and opening.can_do_without(member)
            return "its server is away" if is_free else None

        ask_members(self._cluster, opening, open_on_member, budget_s, excuse=why_dispensable)
        return opening.out

    def _open_batch_on(self, batch: PinnedBatch, member: Member, patience: Patience) -> None:
        conversation = self._conversations.with_member(member)
        generation = conversation.open_on_server(batch.request_for(member), patience)
        with self._batches.lock:
            batch.opened_on(member, generation)
            conversation.start_counting(generation)

    def _renew_lease_on(self, member: Member, patience: Patience) -> None:
        self._conversations.with_member(member).renew_lease(patience)


class Opening:
    """Something that is to be opened on its members: see :class:`acker_client.cluster.replicas.Party`.

    ``is_there_another``: whether another member might take the place of the given one. ``out``: the members that were
    left out. The next attempt avoids these members.
    """

    def __init__(self, members: tuple[Member, ...], is_there_another: Callable[[Member], bool]) -> None:
        self.unanswered_members = members
        self.out: set[Member] = set()
        self._is_there_another = is_there_another
        self._opened: set[Member] = set()

    def opened_on(self, member: Member) -> None:
        self._opened.add(member)

    def can_do_without(self, member: Member) -> bool:
        # The next attempt then places it without the silent members.
        return any(other != member for other in self._opened) or self._is_there_another(member)

    def drop_member(self, member: Member, why: str) -> None:
        self.out.add(member)


def until_opened(attempt: Callable[[AbstractSet[Member], float], AbstractSet[Member]], patience: Patience) -> None:
    """Make attempts until one leaves no member out. Each attempt avoids the members that were silent so far. An
    attempt that avoids some has only half of the time left. If the others do not answer either, the other half is for
    trying all members again.

    ``attempt(silent, budget_s)`` returns the members that were silent in it."""
    silent: AbstractSet[Member] = set()
    while True:
        left_s = patience.deadline.left_s
        try:
            out = attempt(silent, left_s / 2 if silent else left_s)
        except Draining:
            continue
        except Overloaded:
            # No server has room for the source. A batch has waited for room already, for all of its time.
            if not patience.wait(_FULL_S):
                raise
            continue
        except Unavailable:
            if not silent:
                raise
            silent = set()
            continue
        if not out:
            return
        if out <= silent and not patience.wait():
            raise Unavailable("no server accepted it in time: they do not answer, or have lost their state")
        silent = silent | out


def answering(view: View, silent: AbstractSet[Member]) -> View:
    """Return the view without the ``silent`` members, unless all are silent."""
    left = tuple(member for member in view.members if member not in silent)
    return View(view.epoch, left or view.members)
