"""Source session: one source at all servers that its roots live on.

Decides where a batch is placed when it is opened, which servers are watched, and that what they say comes out as one
outcome a root. A server that has lost what it knew, or is gone, is out for what was pinned to it, and heard no more.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Future
from functools import partial

import numpy as np

from acker_client.core.backoff import Clock, Patience
from acker_client.core.ended import Ended
from acker_client.core.pinned_batch import PinnedBatch
from acker_client.core.pins import Pin, Pins, encode
from acker_client.core.registration import Registration
from acker_client.core.replication import Replication
from acker_client.core.stream import Stream
from acker_client.core.votes import Merged
from acker_client.core.watched import NO_SLOTS, Mask, WatchResult, joined, only
from acker_client.errors import RETRYABLE, AckerError, Draining, Unavailable, UnknownBatch, UnknownSource
from acker_client.members.cluster import Cluster
from acker_client.members.conversation import Conversation, Polled
from acker_client.members.replicas import ask
from acker_protocol.ids import Column
from acker_protocol.messages import NO_IDS, Limits, OpenBatch, Outcomes, Settle, Settlement
from acker_protocol.placement import Member, Placement, View, place

log = logging.getLogger("acker_client")

# A poll that was answered early and empty (the server is short of threads, or stops) is made again at this pace.
_POLL_PAUSE_S = 0.05
# A server that did not answer a poll is polled again no sooner, while others are waited for.
_SILENT_PAUSE_S = 0.25
# How long several polls are waited for before it is looked who else is to be polled.
_LOOK_S = 0.5
# How long one server is asked to open a batch again that it has lost.
_REOPEN_S = 3.0
_CLOSE_S = 1.0

LOST_STATE = "the server lost its state"
WENT_WITHOUT = "a task went on without it"


class SourceSession:
    """Thread-safe; ``watch`` is for one thread at a time. No lock is held over a call."""

    def __init__(
        self, cluster: Cluster, name: str, session: int, lease_s: float, limits: Limits, base: int, clock: Clock
    ) -> None:
        self.name = name
        self.session = session
        self.lease_s = lease_s
        self._limits = limits
        self._cluster = cluster
        self._clock = clock
        self._lock = threading.Lock()
        self._stream = Stream(session, base)
        # By address: a server that comes back without its state is another member, and the same conversation.
        self._conversations: dict[str, Conversation] = {}
        self._batches: dict[int, PinnedBatch] = {}
        # How many there were when something was placed last.
        self._members_placed_on = 0
        # Where each server, by id and generation, was met last.
        self._addresses: dict[tuple[int, int], str] = {}
        # Up to which outcome of which registration has been heard, by address.
        self._reached: dict[str, tuple[int | None, int]] = {}
        self._polls: dict[str, Future[Polled | None]] = {}
        self._poll_again_at: dict[str, float] = {}
        # By address, batches that are over here and may still be open there: it was left out, or asked in vain.
        self._leftovers: dict[str, set[int]] = {}
        # The members at which a batch may be open that has no placement yet.
        self._asked: dict[int, set[Member]] = {}
        # Done when there is something to say that no poll has brought.
        self._news: Future[None] = Future()
        self._ended = Ended()
        self._unsaid = _Unsaid()
        self._opened_at = clock()

    # -- where things live

    @property
    def pins(self) -> Pins:
        """Of the batches that are not over, and of the open stream, oldest first."""
        with self._lock:
            return (*(batch.pin for batch in self._batches.values()), *self._stream.pins)

    @property
    def heard_at(self) -> float:
        """When a server last answered for this source."""
        heard = [each.registration.heard_at for each in list(self._conversations.values())]
        return max(heard, default=self._opened_at)

    def open(self, patience: Patience) -> None:
        """Open the source at the servers of its open stream; where the view has changed, pin the stream anew."""
        tried = set[Member]()

        def attempt(silent: AbstractSet[Member], budget_s: float) -> AbstractSet[Member]:
            placement = self._place(_answering(self._cluster.view(patience), silent), 0)
            with self._lock:
                if self._stream.is_placed_on(placement):
                    return set()
            opening = self._opening(placement.members, tried)
            self._open_at_members(opening, self._open_stream_at, budget_s)
            if not opening.out:
                log.debug("source %r: what is emitted now lives on servers %s", self.name, _ids(placement.members))
                self._pin_stream(placement, opening.opened, patience)
            return opening.out

        _until_opened(attempt, patience)

    def new_root(self) -> int:
        """The root id of the next emission in the open stream."""
        return self._stream.new_root()

    def initialised(self, replication: Replication) -> None:
        """Inits of the open stream have been answered by those members that are in."""
        with self._lock:
            missed = {member: replication.missed_by(member).root_ids for member in replication.out}
            self._unsaid.outcomes += self._stream.initialised(replication.root_ids, missed)

    def renew(self, member: Member, patience: Patience) -> None:
        """``member`` does not know this source: nobody may be watching while a report waits. What it has lost by then
        comes with the next watch."""
        try:
            self._conversation(member).renew(patience)
        except Draining as error:
            # It will not know it again: nothing but another server, or its end, helps a report.
            raise UnknownSource(str(error)) from error

    # -- batches

    def open_batch(self, request: OpenBatch, budget_s: float | None) -> Pin:
        """Place a batch, and open it at all its members; placed anew where one of them is gone or takes nothing new."""
        with self._lock:
            known = self._batches.get(request.number)
        if known is not None and known.request == request:
            return known.pin
        try:
            return self._opened(request, budget_s)
        except BaseException:
            # Else the next try would take it for open.
            with self._lock:
                self._batches.pop(request.number, None)
            raise

    def _opened(self, request: OpenBatch, budget_s: float | None) -> Pin:
        patience = self._cluster.patience(budget_s)
        # A try that fails leaves it open where it was opened, and the next may place it elsewhere.
        asked = self._asked.setdefault(request.number, set())
        tried = set[Member]()

        def attempt(silent: AbstractSet[Member], budget_s: float) -> AbstractSet[Member]:
            batch = self._placed(request, self._cluster.view(patience), silent)
            with self._lock:
                self._batches[request.number] = batch
            opening = self._opening(batch.members, tried)
            asked.update(batch.members)
            self._open_at_members(opening, partial(self._open_batch_at, batch), budget_s)
            return opening.out

        _until_opened(attempt, patience)
        del self._asked[request.number]
        with self._lock:
            batch = self._batches[request.number]
            here = set(map(self._cluster.address_of, batch.members))
            for address in set(map(self._cluster.address_of, asked)) - here:
                self._leftovers.setdefault(address, set()).add(request.number)
        return batch.pin

    def settle(self, number: int, settlement: Settlement, budget_s: float | None) -> None:
        """Settle a batch at all its members. Raises ``UnknownBatch`` for one that is not open here."""
        with self._lock:
            batch = self._batches.get(number)
        if batch is None:
            raise UnknownBatch(f"batch {number} is not open on this client: it was settled, or never opened")
        batch.settlement = settlement
        request = Settle(self.session, number, settlement)

        def call(member: Member, patience: Patience) -> None:
            try:
                reply = self._conversation(member).settle(request, patience)
            except (UnknownBatch, Draining) as error:
                log.warning("batch %d is not known to the server at %s any more: %s", number, member.address, error)
                self._leave(batch, member, "the server lost the batch")
            else:
                with self._lock:
                    batch.settled_at(member, reply)
                    reached = self._reached.get(self._cluster.address_of(member), (None, 0))
                    self._note(batch, batch.reached(member, *reached))

        if batch.left:
            ask(self._cluster, _BatchParty(self, batch), call, budget_s)
        with self._lock:
            self._tell(batch)

    def leave_out(self, number: int, ids: AbstractSet[int]) -> None:
        """Members of a batch that a task has reported without are out for it."""
        with self._lock:
            batch = self._batches.get(number)
        if batch is not None:
            for member in batch.members:
                if member.id in ids:
                    self._leave(batch, member, WENT_WITHOUT)

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
            if not heard and not self._polls and not patience.wait():
                return watched
            if heard and self._clock() - asked_at < _POLL_PAUSE_S:
                self._cluster.sleep(min(_POLL_PAUSE_S, patience.deadline.left_s))

    def close(self) -> None:
        """End the session: servers drop its roots. Tried for a second; else the lease ends it."""
        with self._lock:
            conversations, self._conversations = dict(self._conversations), {}
            self._addresses.clear()
        calls = [self._cluster.side_by_side.start(partial(self._close, each)) for each in conversations.values()]
        deadline = self._cluster.patience(_CLOSE_S).deadline
        while deadline.left_s and (left := [call for call in calls if not call.done()]):
            self._cluster.side_by_side.wait(left, deadline.left_s)

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
        return placement

    def _pin_stream(self, placement: Placement, generations: Mapping[Member, int | None], patience: Patience) -> None:
        with self._lock:
            self._stream.pin(placement, generations)
            pins = encode(self._stream.pins).encode("ascii")
            for conversation in self._conversations.values():
                conversation.registration.pins = pins
        if len(placement.members) > 1:
            # Before anything is emitted: others may be asked to ack it.
            for member in placement.members:
                with contextlib.suppress(*RETRYABLE):
                    self._conversation(member).renew(patience)

    def _placed(self, request: OpenBatch, view: View, silent: AbstractSet[Member]) -> PinnedBatch:
        placement = self._place(_answering(view, silent), request.number)
        pin = Pin(self.session, request.number, request.first, request.up_to, placement)
        return PinnedBatch(pin, request)

    def _opening(self, members: tuple[Member, ...], tried: set[Member]) -> _Opening:
        """What is to be opened at ``members``, who are ``tried`` from now on, and instead of a silent one at somebody
        who was not."""
        tried.update(members)
        return _Opening(members, lambda member: not self._cluster.answering_instead_of(member) <= tried)

    def _open_at_members(
        self, opening: _Opening, open_at: Callable[[Member, Patience], int | None], budget_s: float | None
    ) -> None:
        def call(member: Member, patience: Patience) -> None:
            try:
                opening.opened[member] = open_at(member, patience)
            except Draining:
                self._cluster.drains(member)
                raise

        ask(self._cluster, opening, call, budget_s)

    def _open_stream_at(self, member: Member, patience: Patience) -> int | None:
        conversation = self._conversation(member)
        conversation.renew(patience)
        return conversation.registration.generation

    def _open_batch_at(self, batch: PinnedBatch, member: Member, patience: Patience) -> int | None:
        generation = self._conversation(member).open_batch(batch.request_for(member), patience)
        address = self._cluster.address_of(member)
        with self._lock:
            batch.opened(member, generation)
            if self._reached.get(address, (None, 0))[0] != generation:
                self._reached[address] = generation, 0
        return generation

    def _conversation(self, member: Member) -> Conversation:
        address = self._cluster.address_of(member)
        with self._lock:
            known_at = self._addresses.get((member.id, member.generation), address)
            self._addresses[member.id, member.generation] = address
            conversation = self._conversations.get(address)
            if conversation is None:
                registration = self._moved(known_at, address) or Registration(
                    self.name, self.session, self.lease_s, self._limits, self._clock()
                )
                conversation = self._conversations[address] = Conversation(
                    address, self._cluster.caller, registration, self._cluster.settings, self._clock
                )
            return conversation

    def _moved(self, known_at: str, address: str) -> Registration | None:
        """The registration at a server that was at ``known_at`` and went, with its state, to ``address``. Under the
        lock."""
        before = self._conversations.pop(known_at, None)
        if before is None:
            return None
        self._reached[address] = self._reached.pop(known_at, (None, 0))
        return before.registration

    def _is_at(self, address: str) -> Callable[[Member], bool]:
        return lambda member: self._cluster.address_of(member) == address

    def _close(self, conversation: Conversation) -> None:
        try:
            conversation.close(self._cluster.patience(_CLOSE_S))
        except AckerError as error:
            log.info(
                "source %r could not be closed at %s, and ends with its lease: %s",
                self.name,
                conversation.address,
                error,
            )

    # -- inside: hearing

    def _pinned(self) -> set[Member]:
        """The members that something is pinned to. Under the lock."""
        pinned = {member for batch in self._batches.values() for member in batch.members if member not in batch.out}
        return pinned | self._stream.members

    def _watched(self) -> list[Conversation]:
        """The conversations with those members that were met."""
        with self._lock:
            met = [member for member in sorted(self._pinned()) if (member.id, member.generation) in self._addresses]
        return list(dict.fromkeys(map(self._conversation, met)))

    def _poll(self, wait_s: float, max_outcomes: int) -> bool:
        """Poll every server that is to be watched, until one has answered or there is news; whether one has."""
        conversations = self._watched()
        if not wait_s and len(conversations) == 1 and not self._polls:
            polled = conversations[0].poll(0.0, max_outcomes)
            return polled is not None and self._hear(conversations[0], polled)
        now = self._clock()
        for each in conversations:
            may_poll = len(conversations) == 1 or self._poll_again_at.get(each.address, now) <= now
            if each.address not in self._polls and may_poll:
                poll = partial(each.poll, wait_s, max_outcomes)
                self._polls[each.address] = self._cluster.side_by_side.start(poll)
        # One that was begun with more time to wait may still be under way.
        least_s = 0.0 if wait_s else self._cluster.settings.call_timeout_s
        self._cluster.side_by_side.wait([*self._polls.values(), self._news], max(least_s, min(wait_s, _LOOK_S)))
        heard = False
        for address in [address for address, poll in self._polls.items() if poll.done()]:
            polled = self._polls.pop(address).result()
            conversation = self._conversations.get(address)
            if polled is None:
                self._poll_again_at[address] = self._clock() + _SILENT_PAUSE_S
            elif conversation is not None:
                heard = self._hear(conversation, polled) or heard
        return heard

    def _hear(self, conversation: Conversation, polled: Polled) -> bool:
        heard = conversation.take(polled)
        if heard is None:
            return False
        if heard.generation_changed:
            self._lost(conversation)
        is_here = self._is_at(conversation.address)
        with self._lock:
            if len(heard.outcomes):
                self._distribute(is_here, heard.outcomes)
            self._reached[conversation.address] = heard.generation, heard.cursor
            for batch in self._batches.values():
                for member in filter(is_here, batch.members):
                    self._note(batch, batch.reached(member, heard.generation, heard.cursor))
            leftovers = self._leftovers.pop(conversation.address, set())
        for number in leftovers:
            self._cluster.side_by_side.start(partial(self._abandon, conversation, number))
        return True

    def _abandon(self, conversation: Conversation, number: int) -> None:
        """End a batch that is over here at a server that may still have it open, with room kept for it."""
        request = Settle(self.session, number, Settlement.ABANDON)
        try:
            conversation.settle(request, self._cluster.patience(self.lease_s / 3))
        except RETRYABLE as error:
            log.debug("batch %d may still be open at %s: %s", number, conversation.address, error)
            with self._lock:
                self._leftovers.setdefault(conversation.address, set()).add(number)
        except AckerError as error:
            # Not open there, or settled otherwise.
            log.debug("batch %d is not open at %s: %s", number, conversation.address, error)

    def _distribute(self, is_here: Callable[[Member], bool], outcomes: Outcomes) -> None:
        """Outcomes to the batches that they are of, and the rest to the open stream. Under the lock."""
        for batch in self._batches.values():
            own = batch.pin.has(outcomes.root_ids)
            if not own.any():
                continue
            # A server that the batch is not placed on any more has no say in it.
            for member in filter(is_here, batch.members):
                self._note(batch, batch.hear(member, outcomes if own.all() else only(outcomes, own)))
            if own.all():
                return
            outcomes = only(outcomes, ~own)
        ended = self._ended.has(outcomes.root_ids)
        if ended.any():
            outcomes = only(outcomes, ~ended)
        self._unsaid.outcomes += self._stream.hear(is_here, outcomes)

    def _lost(self, conversation: Conversation) -> None:
        """A server has another registration of this source: what was pinned to the one before is lost there."""
        is_here, generation = self._is_at(conversation.address), conversation.registration.generation
        with self._lock:
            self._leftovers.pop(conversation.address, None)
            lost = [
                (batch, member)
                for batch in self._batches.values()
                for member in filter(is_here, batch.members)
                if batch.was_lost_by(member, generation)
            ]
            self._unsaid.lose(*self._stream.lose(is_here, generation, LOST_STATE))
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
        if batch.settlement is not None or len(batch.members) > 1:
            return
        # Whoever watches, and this is its thread, has the lease to renew meanwhile.
        patience = self._cluster.patience(min(_REOPEN_S, self.lease_s / 3))
        try:
            conversation.open_batch(batch.request_for(member), patience)
        except AckerError as error:
            log.warning("batch %d could not be opened again: %s", batch.request.number, error)

    def _look_around(self) -> None:
        """Who is gone is out."""
        if self._cluster.is_alone:
            return
        self._cluster.refresh()
        with self._lock:
            pinned = self._pinned()
        for member in pinned:
            why = self._cluster.gone(member)
            if not why:
                continue
            log.warning("source %r: the server %d at %s is out: %s", self.name, member.id, member.address, why)
            with self._lock:
                # Whoever opens a batch sees for itself who is gone, and places it anew.
                held = [batch for batch in self._batches.values() if batch.is_opened(member)]
                self._unsaid.lose(*self._stream.leave(member, why))
            for batch in held:
                self._leave(batch, member, why)

    def _leave(self, batch: PinnedBatch, member: Member, why: str) -> None:
        with self._lock:
            if member not in batch.out:
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
            for batch in [batch for batch in self._batches.values() if batch.is_ended]:
                self._end(batch)
            for pin in self._stream.forget_ended():
                self._ended.add(pin)
            self._drop_unneeded()
            unsaid, self._unsaid, self._news = self._unsaid, _Unsaid(), Future()
        return unsaid.said(over, answered=answered)

    def _drop_unneeded(self) -> None:
        """Forget the servers that nothing has been pinned to for a lease, as they have forgotten the source. Under the
        lock."""
        needed = set(map(self._cluster.address_of, self._pinned()))
        for address, conversation in list(self._conversations.items()):
            silent_s = self._clock() - conversation.registration.heard_at
            if address not in needed and address not in self._polls and silent_s > self.lease_s:
                del self._conversations[address]
                self._reached.pop(address, None)
                self._leftovers.pop(address, None)
        self._addresses = {
            server: address for server, address in self._addresses.items() if address in self._conversations
        }

    def _end(self, batch: PinnedBatch) -> None:
        """Under the lock."""
        del self._batches[batch.request.number]
        self._ended.add(batch.pin)
        for member in batch.not_settled:
            self._leftovers.setdefault(self._cluster.address_of(member), set()).add(batch.request.number)
        self._unsaid.differed += batch.votes.differed
        self._unsaid.saved += batch.votes.saved
        self._report_differing(batch)

    def _report_differing(self, batch: PinnedBatch) -> None:
        votes = batch.votes
        if votes.differed:
            log.info(
                "batch %d: the servers differed about %d roots, %d of which a second replica saved",
                batch.request.number,
                votes.differed,
                votes.saved,
            )


class _Unsaid:
    """What has come and was not handed over yet."""

    def __init__(self) -> None:
        self.outcomes: list[Outcomes] = []
        self.absent: list[Column] = []
        self.interrupted: set[int] = set()
        self.lost_slots: Mask = NO_SLOTS
        self.differed = self.saved = 0

    @property
    def is_empty(self) -> bool:
        return not (self.outcomes or self.absent or self.interrupted or self.lost_slots.any())

    def lose(self, outcomes: list[Outcomes], slots: Mask) -> None:
        """Of the open stream."""
        self.outcomes += outcomes
        self.lost_slots = self.lost_slots | slots

    def said(self, over: Sequence[int], *, answered: bool) -> WatchResult:
        absent = np.concatenate(self.absent) if self.absent else NO_IDS
        return WatchResult(
            joined(self.outcomes),
            absent,
            tuple(over),
            tuple(sorted(self.interrupted)),
            self.lost_slots,
            answered,
            self.differed,
            self.saved,
        )


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


class _Opening:
    """Something that is to be opened at its members. ``opened``: under which registration it is, by member;
    ``is_there_another``: whether it might be placed on somebody else instead of one."""

    def __init__(self, members: tuple[Member, ...], is_there_another: Callable[[Member], bool]) -> None:
        self.left = members
        self._is_there_another = is_there_another
        self.opened: dict[Member, int | None] = {}
        self.out: set[Member] = set()

    def covers(self, member: Member) -> bool:
        # It is placed anew then, without those that are silent.
        return any(other != member for other in self.opened) or self._is_there_another(member)

    def leave(self, member: Member, why: str) -> None:
        self.out.add(member)


def _until_opened(attempt: Callable[[AbstractSet[Member], float], AbstractSet[Member]], patience: Patience) -> None:
    """Make attempts until one leaves nobody out, each without the members that were silent so far; when those that are
    left do not answer either, half of the time goes to all of them again.

    ``attempt(silent, budget_s)`` returns who was silent in it."""
    silent: AbstractSet[Member] = set()
    while True:
        left_s = patience.deadline.left_s
        try:
            out = attempt(silent, left_s / 2 if silent else left_s)
        except Draining:
            continue
        except Unavailable:
            if not silent:
                raise
            silent = set()
            continue
        if not out:
            return
        silent = silent | out


def _answering(view: View, silent: AbstractSet[Member]) -> View:
    """The view without those that are silent, unless all are."""
    answering = tuple(member for member in view.members if member not in silent)
    return View(view.epoch, answering or view.members)


def _ids(members: Sequence[Member]) -> str:
    return ", ".join(str(member.id) for member in members)
