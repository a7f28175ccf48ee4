"""Source session: one source at all servers that its roots live on.

Decides where a batch is placed when it is opened, when emissions go on in the next batch, which servers are watched,
and that what they say comes out as one outcome a root. A server that has lost what it knew, or is gone, is out for the
batches that live on it, and heard no more.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from acker_client.backoff import Clock, Patience
from acker_client.cluster.conversation import Conversation, Polled
from acker_client.cluster.membership import Cluster
from acker_client.cluster.opening import Opening, answering, until_opened
from acker_client.cluster.pinned_batch import PinnedBatch
from acker_client.cluster.published import Published, issued
from acker_client.cluster.registration import Registration
from acker_client.cluster.replicas import ask
from acker_client.cluster.stream import EmittedBatch, Stream
from acker_client.cluster.votes import Merged
from acker_client.cluster.watched import Unsaid, WatchResult, only
from acker_client.errors import RETRYABLE, AckerError, Draining, Overloaded, Rejected, UnknownBatch
from acker_client.pins import Mask, Pin, Pins, parted
from acker_client.rpc.delivery import Delivery
from acker_client.rpc.retrying import deliver
from acker_client.rpc.side_by_side import do_all
from acker_protocol.ids import MASK, Column, unmix64
from acker_protocol.messages import (
    NO_IDS,
    Entries,
    Identity,
    InitScope,
    Limits,
    OpenBatch,
    Outcomes,
    Settle,
    Settlement,
)
from acker_protocol.placement import Member, Placement, View, place

log = logging.getLogger("acker_client")

Batch = TypeVar("Batch", bound=PinnedBatch)

# A poll that was answered early and empty (the server is short of threads, or stops) is made again at this pace.
_POLL_PAUSE_S = 0.05
# A server that did not answer a poll is polled again no sooner, while others are waited for.
_SILENT_PAUSE_S = 0.25
# How long several polls are waited for before it is looked who else is to be polled.
_LOOK_S = 0.5
# How long one server is asked to open a batch again that it has lost.
_REOPEN_S = 3.0
_CLOSE_S = 1.0
# How long emissions draw from one batch, as servers remember identities of reports as long as it is open. Where so many
# are open, a root of each has not ended, and time opens no more of them.
_BATCH_S = 10.0
_OPEN_FEW = 16
# How long it is tried to have room for a batch before a smaller one is asked for.
_ROOM_S = 1.0
_PUBLISH_S = 1.0
# How many ranges of numbers of ended batches are remembered.
_ENDED_MAX = 256

LOST_STATE = "the server lost its state"
LOST_BATCH = "the server lost the batch"
WENT_WITHOUT = "a task went on without it"


class SourceSession:
    """Thread-safe; ``watch`` is for one thread at a time. No lock is held over a call."""

    def __init__(
        self, cluster: Cluster, name: str, session: int, lease_s: float, limits: Limits, base: int, clock: Clock
    ) -> None:
        """``limits``: of what is emitted, which is numbered from ``base``."""
        self.name = name
        self.session = session
        self.lease_s = lease_s
        self._cluster = cluster
        self._clock = clock
        self._lock = threading.Lock()
        # Held while the next batch for emissions is opened: who waits for it needs that batch.
        self._beginning = threading.Lock()
        self._stream = Stream(session, base, limits)
        # The members of the view under which emissions draw from their batch, and since when.
        self._stream_view: tuple[Member, ...] = ()
        self._stream_since = clock()
        self._has_own_batches = False
        # Numbers, as (first, stop), of batches of `open_batch` that are over. Those that adjoin are one.
        self._ended: tuple[tuple[int, int], ...] = ()
        # By address: a server that comes back without its state is another member, and the same conversation.
        self._conversations: dict[str, Conversation] = {}
        # Batches that are not over, by number, oldest first.
        self._batches: dict[int, PinnedBatch] = {}
        # Where something was placed last: watched also while no batch is open, so that the lease is renewed.
        self._home: tuple[Member, ...] = ()
        # How many members there were when something was placed last.
        self._members_placed_on = 0
        # Where each server, by id and generation, was met last.
        self._addresses: dict[tuple[int, int], str] = {}
        # The members at which a batch may be open that has no placement yet.
        self._asked: dict[int, dict[Member, None]] = {}
        # Done when there is something to say that no poll has brought.
        self._news: Future[None] = Future()
        self._unsaid = Unsaid()
        self._published = Published(session, 0, base, base)
        self._is_published = True
        self._opened_at = clock()

    # -- where things live

    @property
    def pins(self) -> Pins:
        """Of the batches that are not over, oldest first."""
        with self._lock:
            return tuple(batch.pin for batch in self._batches.values())

    def batch(self, number: int) -> PinnedBatch | None:
        """A batch that is not over."""
        with self._lock:
            return self._batches.get(number)

    def check_open(self, number: int) -> Pin:
        """Raise ``UnknownBatch`` unless a batch was opened here, and is not settled. Returns where it lives."""
        batch = self.batch(number)
        if batch is None or isinstance(batch, EmittedBatch) or batch.settlement is not None:
            raise UnknownBatch(
                f"batch {number!r} is not open on this client: open_batch({number!r}, ...) it first, or start a tree"
                " with emit(), which chooses the root id"
            )
        return batch.pin

    def check_root(self, number: int, root: int) -> None:
        """Raise ``UnknownBatch``, or ValueError where ``root`` is not of the batch."""
        pin = self.check_open(number)
        if isinstance(root, int) and (unmix64(root & MASK) - pin.first) & MASK >= pin.up_to:
            raise ValueError(
                f"root={root}: it is none of the {pin.up_to} roots of batch {number}, whose number i has root id"
                f" mix64({pin.first} + i): ids.root_id({pin.first}, i) makes it, and emit() chooses one itself"
            )

    def has_issued(self, root_ids: Column) -> Mask:
        """Which of ``root_ids: uint64[n]`` were emitted, or are of a batch of ``open_batch`` that is over."""
        return issued(root_ids, ((self._stream.base, self._stream.stop), *self._ended))

    @property
    def heard_at(self) -> float:
        """When a server last answered for this source."""
        heard = [each.registration.heard_at for each in list(self._conversations.values())]
        return max(heard, default=self._opened_at)

    def open(self, patience: Patience) -> None:
        """Open the source at some servers, where other processes learn of it."""
        tried = set[Member]()

        def attempt(silent: AbstractSet[Member], budget_s: float) -> AbstractSet[Member]:
            placement = self._place(answering(self._cluster.view(patience), silent), 0)
            opening = self._opening(placement.members, tried)
            self._open_at_members(opening, self.renew, budget_s)
            return opening.out

        until_opened(attempt, patience)

    # -- emissions

    def draw(self) -> tuple[int, int] | None:
        """Return the root id of the next emission and the number of its batch; None: ``begin_batch`` comes first."""
        with self._lock:
            return self._stream.draw()

    def begin_batch(self, budget_s: float | None) -> None:
        """Open the batch that emissions draw from next, and tell other processes where it lives."""
        with self._beginning:
            with self._lock:
                if self._stream.current is not None and not self._stream.current.is_closed:
                    return
                if self._has_own_batches:
                    raise ValueError(
                        f"source {self.name!r} has batches of open_batch(), whose numbers emit() needs too: emit from"
                        " another AckerClient, with a source of its own"
                    )
            patience = self._cluster.patience(budget_s)
            members = self._cluster.view(patience).members
            batch = self._batch_with_room(patience)
            with self._lock:
                self._stream.place(batch)
                self._publish()
            self._send_published(batch.members)
            with self._lock:
                self._stream.begin(batch)
                self._stream_view, self._stream_since = members, self._clock()

    def follow_view(self) -> None:
        """Emissions go on in another batch where the view has changed, or this one is old."""
        self._cluster.refresh()
        with self._lock:
            batch = self._stream.current
            if batch is None or batch.is_closed:
                return
            is_old = self._clock() - self._stream_since >= _BATCH_S and len(self._batches) < _OPEN_FEW
        with contextlib.suppress(Rejected):
            if is_old or self._cluster.known_members != self._stream_view:
                with self._lock:
                    batch.close()

    def reported(self, number: int, roots: int) -> None:
        """So many inits of a batch have been answered, or given up."""
        with self._lock:
            batch = self._batches.get(number)
            if isinstance(batch, EmittedBatch):
                batch.unreported -= roots

    def renew(self, member: Member, patience: Patience) -> None:
        """``member`` does not know this source: nobody may be watching while a report waits. What it has lost by then
        comes with the next watch. Raises ``Draining`` where it will not know it again."""
        self._conversation(member).renew(patience)

    def keep(self) -> None:
        """Renew leases that are about to run out: while this client waits for one server, nobody polls the others."""
        for each in self._watched():
            if each.is_due(self._clock()):
                patience = self._cluster.patience(self._cluster.settings.call_timeout_s)
                each.renewing = self._cluster.side_by_side.start(partial(each.renew, patience))

    # -- batches

    def open_batch(self, request: OpenBatch, budget_s: float | None) -> Pin:
        """Place a batch, and open it at all its members; placed anew where one of them is gone or takes nothing new."""
        with self._lock:
            known = self._batches.get(request.number)
            if self._stream.batches:
                raise ValueError(
                    f"source {self.name!r} has emitted, and emit() numbers its batches by itself: open others on"
                    " another AckerClient, with a source of its own"
                )
            self._has_own_batches = True
        if known is not None and known.request == request:
            return known.pin
        return self._opened(PinnedBatch, request, self._cluster.patience(budget_s)).pin

    def settle(self, number: int, settlement: Settlement, budget_s: float | None) -> None:
        """Settle a batch at all its members. Raises ``UnknownBatch`` for one that is not open here."""
        batch = self.batch(number)
        if batch is None or isinstance(batch, EmittedBatch):
            raise UnknownBatch(f"batch {number} is not open on this client: it was settled, or never opened")
        batch.settlement = settlement
        request = Settle(self.session, number, settlement)

        def call(member: Member, patience: Patience) -> None:
            conversation = self._conversation(member)
            try:
                reply = conversation.settle(request, patience)
            except (UnknownBatch, Draining) as error:
                log.warning("batch %d is not known to the server at %s any more: %s", number, member.address, error)
                self._leave(batch, member, LOST_BATCH)
            else:
                with self._lock:
                    batch.settled_at(member, reply)
                    self._note(batch, batch.reached(member, *conversation.reached))

        if batch.left:
            ask(self._cluster, _BatchParty(self, batch), call, budget_s, excuse=lambda _: self.keep())
        with self._lock:
            self._tell(batch)

    def leave_out(self, number: int, ids: AbstractSet[int], why: str = WENT_WITHOUT) -> None:
        """Members of a batch, by their ids, are out for it: somebody reports without them."""
        batch = self.batch(number)
        if batch is not None:
            for member in batch.members:
                if member.id in ids:
                    self._leave(batch, member, why)

    def forget(self, number: int) -> None:
        """Nothing more is to be heard of a batch."""
        with self._lock:
            if number in self._batches:
                self._end(self._batches[number])

    # -- outcomes

    def watch(self, wait_s: float, max_outcomes: int) -> WatchResult:
        """What has come, waiting up to ``wait_s`` for the first of it. Confirms what earlier calls have brought."""
        patience = self._cluster.patience(wait_s)
        answered = False
        while True:
            asked_at = self._clock()
            heard = self._poll(0.0 if self._news.done() else patience.deadline.left_s, max_outcomes)
            answered = answered or heard
            self._look_around()
            watched = self._take(answered=answered)
            if watched.says_something or not patience.deadline.left_s:
                return watched
            # While others may still answer, `_poll` has waited.
            if not heard and not self._polling() and not patience.wait():
                return watched
            if heard and self._clock() - asked_at < _POLL_PAUSE_S:
                self._cluster.sleep(min(_POLL_PAUSE_S, patience.deadline.left_s))

    def close(self) -> Published:
        """End the session: servers drop its roots. Tried for a second; else the lease ends it. Returns what was
        emitted, all of it over now."""
        with self._lock:
            conversations, self._conversations = dict(self._conversations), {}
            self._addresses.clear()
            for batch in self._batches.values():
                self._remember(batch)
            self._batches.clear()
            ended = replace(self._current_pins(), ended=self._ended)
        self._do_all([partial(self._close, each) for each in conversations.values()], _CLOSE_S)
        return ended

    # -- inside: placing and opening

    def _place(self, view: View, number: int) -> Placement:
        settings = self._cluster.settings
        members = len(view.members)
        wanted = min(2, members) if settings.replicas is None else settings.replicas
        spread = max(settings.spread, wanted)
        if wanted > members and members != self._members_placed_on:
            log.warning("%d replicas are asked for, servers there are %d: going on with fewer", wanted, members)
        self._members_placed_on = members
        placement = place(view, self.session, number, min(wanted, members), spread)
        self._cluster.hear_of(placement)
        self._home = placement.members
        return placement

    def _batch_with_room(self, patience: Patience) -> EmittedBatch:
        """Open the next batch for emissions, a smaller one where there is no room."""
        while True:
            with self._lock:
                request = self._stream.next_request(len(self._batches))
            left_s = patience.deadline.left_s
            budget_s = left_s if request.up_to == 1 else min(left_s, max(_ROOM_S, left_s / 8))
            try:
                return self._opened(EmittedBatch, request, self._cluster.patience(budget_s))
            except AckerError as error:
                # End it where it is open.
                undrawn = InitScope(self.session, request.number, np.array([[0, request.up_to]], np.uint64))
                with self._lock:
                    self._leave_over(self._asked.pop(request.number, ()), request.number, undrawn)
                    is_full = isinstance(error, Overloaded | Rejected)
                    if is_full and not (patience.deadline.left_s and self._stream.shrink()):
                        raise
                # A try may end before its budget is spent: without a wait the last moment would be spent on tries.
                if not is_full and not (isinstance(error, RETRYABLE) and patience.wait()):
                    raise

    def _opened(self, kind: type[Batch], request: OpenBatch, patience: Patience) -> Batch:
        # A try that fails leaves it open where it was opened, and the next may place it elsewhere.
        asked = self._asked.setdefault(request.number, {})
        tried = set[Member]()
        batches: list[Batch] = []

        def attempt(silent: AbstractSet[Member], budget_s: float) -> AbstractSet[Member]:
            placement = self._place(answering(self._cluster.view(patience), silent), request.number)
            batch = kind(Pin(self.session, request.number, request.first, request.up_to, placement), request)
            batches.append(batch)
            with self._lock:
                self._batches[request.number] = batch
            opening = self._opening(batch.members, tried)
            asked.update(dict.fromkeys(batch.members))
            self._open_at_members(opening, partial(self._open_batch_at, batch), budget_s)
            return opening.out

        try:
            until_opened(attempt, patience)
        except BaseException:
            # Else the next try would take it for open.
            with self._lock:
                self._batches.pop(request.number, None)
            raise
        batch = batches[-1]
        with self._lock:
            del self._asked[request.number]
            here = set(map(self._cluster.address_of, batch.members))
            elsewhere = [member for member in asked if self._cluster.address_of(member) not in here]
            self._leave_over(elsewhere, request.number, None)
        return batch

    def _opening(self, members: tuple[Member, ...], tried: set[Member]) -> Opening:
        """What is to be opened at ``members``, who are ``tried`` from now on, and instead of a silent one at somebody
        who was not."""
        tried.update(members)
        return Opening(members, lambda member: not self._cluster.answering_instead_of(member) <= tried)

    def _open_at_members(
        self, opening: Opening, open_at: Callable[[Member, Patience], None], budget_s: float | None
    ) -> None:
        def call(member: Member, patience: Patience) -> None:
            try:
                open_at(member, patience)
            except Draining:
                self._cluster.drains(member)
                raise
            if self._cluster.is_replaced(member, patience):
                # What is opened there would count as lost with what the member knew.
                opening.leave(member, "its server came back without its state")
            else:
                opening.opened.add(member)

        ask(self._cluster, opening, call, budget_s, excuse=lambda _: self.keep())

    def _open_batch_at(self, batch: PinnedBatch, member: Member, patience: Patience) -> None:
        conversation = self._conversation(member)
        generation = conversation.open_batch(batch.request_for(member), patience)
        with self._lock:
            batch.opened(member, generation)
            if conversation.reached[0] != generation:
                conversation.reached = generation, 0

    def _conversation(self, member: Member) -> Conversation:
        address = self._cluster.address_of(member)
        with self._lock:
            known_at = self._addresses.get((member.id, member.generation), address)
            self._addresses[member.id, member.generation] = address
            conversation = self._conversations.get(address)
            if conversation is None and (conversation := self._conversations.pop(known_at, None)) is not None:
                # It went, with its state, to another address.
                self._conversations[address] = conversation
            if conversation is None:
                pins = self._published.encode()
                registration = Registration(self.name, self.session, self.lease_s, pins, self._clock())
                conversation = self._conversations[address] = Conversation(
                    member, self._cluster.caller_of, registration, self._cluster.settings, self._clock
                )
            conversation.member, conversation.address = member, address
            return conversation

    def _do_all(self, calls: Iterable[Callable[[], None]], timeout_s: float) -> None:
        do_all(self._cluster.side_by_side, calls, self._cluster.patience(timeout_s).deadline)

    def _close(self, conversation: Conversation) -> None:
        try:
            conversation.close(self._cluster.patience(_CLOSE_S))
        except AckerError as error:
            at = conversation.address
            log.info("source %r could not be closed at %s, and ends with its lease: %s", self.name, at, error)

    # -- inside: publishing

    def _current_pins(self) -> Published:
        """Where emissions live as of now. Under the lock."""
        batches = [batch for batch in self._batches.values() if isinstance(batch, EmittedBatch) and batch.is_placed]
        out = {batch.request.number: frozenset(member.id for member in batch.out) for batch in batches if batch.out}
        pins, stream = tuple(batch.pin for batch in batches), self._stream
        return Published(self.session, self._published.version + 1, stream.base, stream.stop, pins, out)

    def _publish(self) -> None:
        """Under the lock."""
        self._published, self._is_published = self._current_pins(), True
        pins = self._published.encode()
        for conversation in self._conversations.values():
            conversation.publish(pins)

    def _send_published(self, members: Iterable[Member]) -> None:
        """Tell other processes now, and wait a moment for it; else they learn it with the next poll."""

        def send(member: Member) -> None:
            with contextlib.suppress(AckerError):
                self._conversation(member).renew(self._cluster.patience(_PUBLISH_S))

        self._do_all([partial(send, member) for member in members], _PUBLISH_S)

    # -- inside: hearing

    def _pinned(self) -> list[Member]:
        """The members that a batch is pinned to, or was last, in the order of their ids. Under the lock."""
        pinned = {member for batch in self._batches.values() for member in batch.members if member not in batch.out}
        return sorted(pinned.union(self._home))

    def _members_at(self, address: str) -> set[Member]:
        """Under the lock."""
        members = {member for batch in self._batches.values() for member in batch.members}
        return {member for member in members if self._cluster.address_of(member) == address}

    def _watched(self) -> list[Conversation]:
        """The conversations with those members that were met."""
        with self._lock:
            met = [member for member in self._pinned() if (member.id, member.generation) in self._addresses]
        return list(dict.fromkeys(map(self._conversation, met)))

    def _polling(self) -> list[Conversation]:
        """Those with a poll under way."""
        return [each for each in list(self._conversations.values()) if each.polling is not None]

    def _poll(self, wait_s: float, max_outcomes: int) -> bool:
        """Poll every server that is to be watched, until one has answered or there is news; whether one has."""
        conversations = self._watched()
        if not wait_s and len(conversations) == 1 and not self._polling():
            polled = conversations[0].poll(0.0, max_outcomes)
            return polled is not None and self._hear(conversations[0], polled)
        now = self._clock()
        for each in conversations:
            if each.polling is None and (len(conversations) == 1 or each.poll_again_at <= now):
                each.polling = self._cluster.side_by_side.start(partial(each.poll, wait_s, max_outcomes))
        # One that was begun with more time to wait may still be under way.
        least_s = 0.0 if wait_s else self._cluster.settings.call_timeout_s
        polls = [(each, each.polling) for each in self._polling() if each.polling is not None]
        waited_for: list[Future[Any]] = [*(poll for _, poll in polls), self._news]
        self._cluster.side_by_side.wait(waited_for, max(least_s, min(wait_s, _LOOK_S)))
        heard = False
        for each, poll in polls:
            if poll.done():
                each.polling = None
                polled = poll.result()
                if polled is None:
                    each.poll_again_at = self._clock() + _SILENT_PAUSE_S
                else:
                    heard = self._hear(each, polled) or heard
        return heard

    def _hear(self, conversation: Conversation, polled: Polled) -> bool:
        heard = conversation.take(polled)
        if heard is None:
            return False
        if heard.generation_changed:
            self._lost(conversation)
        with self._lock:
            here = self._members_at(conversation.address)
            if len(heard.outcomes):
                self._distribute(here, heard.outcomes)
            conversation.reached = heard.generation, heard.cursor
            for batch in self._batches.values():
                for member in filter(here.__contains__, batch.members):
                    self._note(batch, batch.reached(member, heard.generation, heard.cursor))
                    if isinstance(batch, EmittedBatch) and batch.is_due(member):
                        batch.settled.add(member)
                        conversation.leftovers[batch.request.number] = batch.undrawn
            leftovers, conversation.leftovers = conversation.leftovers, {}
        for number, undrawn in leftovers.items():
            self._cluster.side_by_side.start(partial(self._finish, conversation, number, undrawn))
        return True

    def _finish(self, conversation: Conversation, number: int, undrawn: InitScope | None) -> None:
        """End a batch at a server where it may be open, with room kept for it."""
        request = Settle(self.session, number, Settlement.ABANDON if undrawn is None else Settlement.DONE)
        patience = self._cluster.patience(self.lease_s / 3)
        try:
            if undrawn is not None:
                # Else the server would say of every number that it is unread.
                delivery = Delivery(Identity(self.session, number), Entries(NO_IDS, NO_IDS), undrawn)
                deliver(conversation.caller, delivery, patience, conversation.renew)
            conversation.settle(request, patience)
        except RETRYABLE as error:
            log.debug("batch %d may still be open at %s: %s", number, conversation.address, error)
            with self._lock:
                conversation.leftovers[number] = undrawn
        except AckerError as error:
            # Not open there, or settled otherwise.
            log.debug("batch %d is not open at %s: %s", number, conversation.address, error)

    def _leave_over(self, members: Iterable[Member], number: int, undrawn: InitScope | None) -> None:
        """A batch is to be ended at ``members`` when they answer next. Under the lock."""
        for address in map(self._cluster.address_of, members):
            # Where nobody talks to it any more it has forgotten the source.
            if address in self._conversations:
                self._conversations[address].leftovers[number] = undrawn

    def _distribute(self, here: AbstractSet[Member], outcomes: Outcomes) -> None:
        """Outcomes to the batches that they are of; those of batches that are over are dropped. Under the lock."""
        batches = list(self._batches.values())
        indices = parted([batch.pin for batch in batches], outcomes.root_ids)
        for index in np.unique(indices[indices >= 0]).tolist():
            own = indices == index
            # A server that the batch is not placed on any more has no say in it.
            for member in filter(here.__contains__, batches[index].members):
                its = outcomes if own.all() else only(outcomes, own)
                self._note(batches[index], batches[index].hear(member, its))

    def _lost(self, conversation: Conversation) -> None:
        """A server has another registration of this source: what was pinned to the one before is lost there."""
        generation = conversation.registration.generation
        with self._lock:
            here = self._members_at(conversation.address)
            conversation.leftovers.clear()
            lost = [
                (batch, member)
                for batch in self._batches.values()
                for member in filter(here.__contains__, batch.members)
                if batch.was_lost_by(member, generation)
            ]
        if lost:
            log.warning(
                "the server at %s has lost its state: what it had pending of source %r is LOST there",
                conversation.address,
                self.name,
            )
        for batch, member in lost:
            self._leave(batch, member, LOST_STATE)
            self._reopen(batch, member, conversation)

    def _reopen(self, batch: PinnedBatch, member: Member, conversation: Conversation) -> None:
        """Open a batch again where it was lost while Spark may be at work on it, so that its tasks can end. Its roots
        are LOST all the same, whatever becomes of them there."""
        if batch.settlement is not None or len(batch.members) > 1 or isinstance(batch, EmittedBatch):
            return
        # Whoever watches, and this is its thread, has the lease to renew meanwhile.
        patience = self._cluster.patience(min(_REOPEN_S, self.lease_s / 3))
        try:
            conversation.open_batch(batch.request_for(member), patience)
        except AckerError as error:
            log.warning("batch %d could not be opened again: %s", batch.request.number, error)

    def _look_around(self) -> None:
        """Servers that are gone are out."""
        self.follow_view()
        if not self._cluster.is_alone:
            with self._lock:
                pinned = self._pinned()
            for member in pinned:
                if why := self._cluster.gone(member):
                    self._drop_member(member, why)
        with self._lock:
            if self._is_published:
                return
            self._publish()
            members = self._pinned()
        self._send_published(members)

    def _drop_member(self, member: Member, why: str) -> None:
        log.warning("source %r: the server %d at %s is out: %s", self.name, member.id, member.address, why)
        with self._lock:
            self._home = tuple(each for each in self._home if each != member)
            # Whoever opens a batch sees for itself who is gone, and places it anew.
            held = [batch for batch in self._batches.values() if batch.is_opened(member)]
        for batch in held:
            self._leave(batch, member, why)

    def _leave(self, batch: PinnedBatch, member: Member, why: str) -> None:
        with self._lock:
            if member not in batch.out and isinstance(batch, EmittedBatch):
                self._is_published = False
            elif member not in batch.out:
                self._unsaid.interrupted.add(batch.request.number)
            self._note(batch, batch.leave(member, why))

    def _note(self, batch: PinnedBatch, merged: Merged) -> None:
        """Under the lock."""
        if merged.unheard:
            log.error(
                "batch %d: a server has counted %d outcomes more than it has reported: what it did not report is LOST",
                batch.request.number,
                merged.unheard,
            )
        if len(merged.outcomes):
            self._unsaid.outcomes.append(merged.outcomes)
        if len(merged.absent):
            self._unsaid.absent.append(merged.absent)
        self._tell(batch)

    def _tell(self, batch: PinnedBatch) -> None:
        """Wake a watch that waits, if there is something to say. Under the lock."""
        if (batch.is_over or not self._unsaid.is_empty) and not self._news.done():
            self._news.set_result(None)

    def _take(self, *, answered: bool) -> WatchResult:
        """All that was not said yet."""
        with self._lock:
            over = [number for number, batch in self._batches.items() if batch.is_over and not batch.is_said]
            for number in over:
                self._batches[number].is_said = True
            ended = [batch for batch in self._batches.values() if batch.is_ended]
            for batch in ended:
                self._end(batch)
            if any(isinstance(batch, EmittedBatch) for batch in ended):
                # With the next poll: else other processes would wait for servers of a batch that is over.
                self._publish()
            self._drop_unneeded()
            unsaid, self._unsaid, self._news = self._unsaid, Unsaid(), Future()
        return unsaid.said(over, answered=answered)

    def _drop_unneeded(self) -> None:
        """Forget the servers that nothing has been pinned to for a lease, as they have forgotten the source. Under the
        lock."""
        needed = set(map(self._cluster.address_of, self._pinned()))
        for address, conversation in list(self._conversations.items()):
            silent_s = self._clock() - conversation.registration.heard_at
            if address not in needed and conversation.polling is None and silent_s > self.lease_s:
                del self._conversations[address]
        self._addresses = {
            server: address for server, address in self._addresses.items() if address in self._conversations
        }

    def _end(self, batch: PinnedBatch) -> None:
        """Under the lock."""
        del self._batches[batch.request.number]
        self._remember(batch)
        undrawn = batch.undrawn if isinstance(batch, EmittedBatch) else None
        self._leave_over(batch.not_settled, batch.request.number, undrawn)
        differed, saved = batch.votes.differed, batch.votes.saved
        self._unsaid.differed += differed
        self._unsaid.saved += saved
        if differed:
            text = "batch %d: the servers differed about %d roots, %d of which a second replica saved"
            log.info(text, batch.request.number, differed, saved)

    def _remember(self, batch: PinnedBatch) -> None:
        """A batch of ``open_batch`` is over: late updates of its roots wait for nobody. Under the lock."""
        if isinstance(batch, EmittedBatch):
            return
        first, stop = batch.request.first, batch.request.first + batch.request.up_to
        ended = self._ended
        if ended and ended[-1][1] == first:
            ended, first = ended[:-1], ended[-1][0]
        self._ended = (*ended[1 - _ENDED_MAX :], (first, stop))


class _BatchParty:
    """A batch that is to be settled at its members."""

    def __init__(self, session: SourceSession, batch: PinnedBatch) -> None:
        self._session, self._batch = session, batch

    @property
    def left(self) -> list[Member]:
        return self._batch.left

    def covers(self, member: Member) -> bool:
        return self._batch.covers(member)

    def leave(self, member: Member, why: str) -> None:
        self._session._leave(self._batch, member, why)
