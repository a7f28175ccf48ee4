"""Conversation: one source with one server: its registration there, and the calls about batches.

Decides how a registration is renewed, and how one poll is made and taken. Outcomes are handed over as they come: what
they mean beside those of other servers is not decided here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from acker_client.backoff import Clock, Deadline, Patience
from acker_client.cluster.registration import Heard, Registration
from acker_client.errors import Draining, Overloaded, Rejected, Unavailable
from acker_client.rpc.caller import Call, Caller, Retrying
from acker_client.rpc.retrying import until_accepted
from acker_client.settings import Settings
from acker_protocol.messages import InitScope, OpenBatch, Settle, SettleReply, Status, Watch, WatchReply
from acker_protocol.placement import Member

# After one of these a source may be opened at another server, or later.
_ELSEWHERE = {Status.DRAINING: Draining, Status.OVERLOADED: Overloaded}


@dataclass(frozen=True, slots=True)
class Polled:
    """An answer that was not taken yet. ``at``: when it came."""

    request: Watch
    reply: WatchReply
    at: float


class Conversation:
    """Thread-safe; polls are for one thread at a time. The source's lock is held over what is public and changes."""

    def __init__(
        self,
        member: Member,
        find: Callable[[Member], Caller],
        registration: Registration,
        settings: Settings,
        clock: Clock,
    ) -> None:
        """``member``: the one that answers there now; ``find``: how it is called, asked anew for each try."""
        self.member = member
        # Where that was when it was looked last.
        self.address = member.address
        # The poll under way, and when the next one may be made.
        self.polling: Future[Polled | None] | None = None
        self.poll_again_at = clock()
        # A renewal beside the polls.
        self.renewing: Future[None] | None = None
        # Up to which outcome of which registration has been heard.
        self.reached: tuple[int | None, int] = (None, 0)
        # Batches that are to be ended there, by number: with what was not drawn of one for emissions; None for another
        # one, where the server was left out or asked in vain.
        self.leftovers: dict[int, InitScope | None] = {}
        # The incarnation of the server that has answered this source last; None: none has.
        self._known_to: int | None = None
        self.caller = Retrying(lambda: find(self.member))
        self.registration = registration
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()

    def renew(self, patience: Patience) -> None:
        """Make the server know this source, and learn whether it still knows what it knew."""
        incarnation = self.caller.greeted(patience).hello.incarnation
        while True:
            with self._lock:
                request = self.registration.request(0.0, 1)
            reply = self.caller.answer(_watch(request), patience)
            with self._lock:
                is_current = self.registration.renewed(request, reply, self._clock())
            if is_current:
                _raise_unless_applied(reply, self.registration.name)
                self._known_to = incarnation
                return

    def is_due(self, now: float) -> bool:
        """Whether the lease there is to be renewed, and nothing under way does it."""
        if self.registration.generation is None or self.registration.is_fresh(now):
            return False
        return all(each is None or each.done() for each in (self.polling, self.renewing))

    def open_batch(self, request: OpenBatch, patience: Patience) -> int | None:
        """Returns the generation of this registration in which the batch is open."""
        # The lease of a source that has had nothing here for long is about to run out. After a restart the registration
        # may be newer than the last answer that was taken: a batch opened now would count as lost with the old one.
        is_known = self.caller.greeted(patience).hello.incarnation == self._known_to
        if not is_known or not self.registration.is_fresh(self._clock()):
            self.renew(patience)
        while True:
            generation = self.registration.generation
            until_accepted(
                self.caller,
                lambda transport, timeout_s: transport.open_batch(request, timeout_s),
                f"open batch {request.number}",
                patience,
                self.renew,
            )
            # One that was opened in two generations is opened again.
            if self.registration.generation == generation:
                return generation

    def settle(self, request: Settle, patience: Patience) -> SettleReply:
        """Settle a batch. Raises ``UnknownBatch`` where the server does not know it."""
        return until_accepted(
            self.caller,
            lambda transport, timeout_s: transport.settle(request, timeout_s),
            f"settle batch {request.number}",
            patience,
            self.renew,
        )

    def publish(self, pins: bytes) -> None:
        """``pins`` are to be at the server with the next poll."""
        with self._lock:
            self.registration.publish(pins)

    def poll(self, wait_s: float, max_outcomes: int) -> Polled | None:
        """Ask for outcomes once, waiting for the first up to ``wait_s``. None: there was no answer."""
        with self._lock:
            request = self.registration.request(wait_s, max_outcomes)
        # The answer needs time to travel, and the handshake too, also when the caller will not wait.
        answer_by = Deadline(request.wait_ms / 1000 + self._settings.call_timeout_s / 2, self._clock)
        try:
            reply = self.caller.find().once(_watch(request), answer_by, answer_by.budget_s)
        except Unavailable:
            return None
        polled = Polled(request, reply, self._clock())
        with self._lock:
            # It may be taken much later, and batches are opened meanwhile.
            self.registration.renewed(request, reply, polled.at)
        return polled

    def take(self, polled: Polled) -> Heard | None:
        """What a poll brought; it is confirmed by the next one. None when the poll has to be made again."""
        with self._lock:
            if polled.reply.generation != self.registration.generation:
                # Another answer came since, and the server has another registration now.
                return None
            heard = self.registration.heard(polled.request, polled.reply, polled.at)
        # A server that drains takes no source back: what it had of this one is lost there, and that is all.
        if heard is not None and polled.reply.status != Status.DRAINING:
            _raise_unless_applied(polled.reply, self.registration.name)
        return heard

    def close(self, patience: Patience) -> None:
        """End the session there: the server drops the source's roots."""
        with self._lock:
            request = self.registration.request(0.0, 1, close=True)
        self.caller.answer(_watch(request), patience)


def _watch(request: Watch) -> Call[WatchReply]:
    return lambda transport, timeout_s: transport.watch(request, timeout_s)


def _raise_unless_applied(reply: WatchReply, name: str) -> None:
    if reply.status not in (Status.APPLIED, Status.DUPLICATE):
        kind = _ELSEWHERE.get(reply.status, Rejected)
        raise kind(f"watch of source {name[:100]!r}: the server answered {reply.status.name} ({reply.detail})")
