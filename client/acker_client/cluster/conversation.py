"""Conversation: the registration, polls and batch calls of one source at one server.

Decides how a lease is renewed, and how a poll is made and its answer processed. Does not merge the outcomes of several
servers.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from acker_client.backoff import Clock, Deadline, Patience
from acker_client.cluster.registration import Heard, Registration
from acker_client.errors import RETRYABLE, AckerError, Draining, Overloaded, Rejected, Unavailable
from acker_client.rpc.caller import Call, Caller, Retrying
from acker_client.rpc.delivery import Delivery
from acker_client.rpc.retrying import deliver, until_accepted
from acker_client.rpc.side_by_side import SideBySide
from acker_client.settings import Settings
from acker_protocol.messages import (
    NO_IDS,
    Entries,
    Identity,
    InitScope,
    OpenBatch,
    Settle,
    Settlement,
    SettleReply,
    Status,
    Watch,
    WatchReply,
)
from acker_protocol.placement import Member

log = logging.getLogger("acker_client")

# Pause after a poll without an answer, if polls of other servers are running.
_SILENT_PAUSE_S = 0.25

# After one of these answers the source may be opened at another server, or later.
_ELSEWHERE = {Status.DRAINING: Draining, Status.OVERLOADED: Overloaded}


@dataclass(frozen=True, slots=True)
class Polled:
    """An answer to a poll that was not processed yet. ``at``: when it came."""

    request: Watch
    reply: WatchReply
    at: float


class Conversation:
    """Thread-safe, except that one thread at a time makes polls.

    Its own lock guards the registration and the batches to end. The source's lock (``OpenBatches.lock``) guards
    ``progress``, which has to change together with what the batches have counted. No lock is held over a call.
    """

    def __init__(
        self,
        member: Member,
        find: Callable[[Member], Caller],
        registration: Registration,
        settings: Settings,
        clock: Clock,
    ) -> None:
        """``member``: the member to talk to. ``find`` returns the member's caller, and is called before each try."""
        self._member = member
        self._address = member.address
        self._registration = registration
        self._settings = settings
        self._clock = clock
        self._caller = Retrying(lambda: find(self._member))
        self._lock = threading.Lock()
        # The generation of a registration, and the cursor of its last outcome that was counted.
        self._progress: tuple[int | None, int] = (None, 0)
        # The batches to end on the server, by number. The value holds the numbers in the batch that no emission has
        # drawn, or is None if the server was left out of the batch or did not open it.
        self._to_end: dict[int, InitScope | None] = {}
        self._running_poll: Future[Polled | None] | None = None
        self._poll_again_at = clock()
        # A renewal of the lease beside the polls.
        self._renewal: Future[None] | None = None
        # The incarnation of the server that answered this source last; None before the first answer.
        self._known_to: int | None = None
        # Text of the server's last answer to a watch, beside its outcomes.
        self._detail = ""

    # -- the server

    @property
    def address(self) -> str:
        """The last known address of the member."""
        return self._address

    @property
    def generation(self) -> int | None:
        """The generation of the registration; None before the first answer."""
        return self._registration.generation

    @property
    def heard_at(self) -> float:
        """When the server answered last."""
        return self._registration.heard_at

    def now_with(self, member: Member, address: str) -> None:
        """Call ``member`` at ``address`` from now on. It is the same server, or its replacement."""
        self._member, self._address = member, address

    # -- the lease

    def renew_lease(self, patience: Patience) -> None:
        """Register the source or renew its lease, and note whether the server still has its state."""
        incarnation = self._caller.greeted(patience).hello.incarnation
        while True:
            with self._lock:
                request = self._registration.request(0.0, 1)
            reply = self._caller.answer(_watch(request), patience)
            with self._lock:
                is_current = self._registration.renewed(request, reply, self._clock())
            if is_current:
                _raise_unless_applied(reply, self._registration.name)
                self._log_detail(reply)
                self._known_to = incarnation
                return

    def start_renewal(self, side_by_side: SideBySide, patience: Patience) -> None:
        """Renew the lease beside other work."""
        self._renewal = side_by_side.start(partial(self.renew_lease, patience))

    def is_lease_due(self, now: float) -> bool:
        """Whether the lease has to be renewed, and no running poll or renewal does it."""
        if self._registration.generation is None or self._registration.is_fresh(now):
            return False
        return all(each is None or each.done() for each in (self._running_poll, self._renewal))

    def publish(self, pins: bytes) -> None:
        """Send ``pins`` to the server with the next poll."""
        with self._lock:
            self._registration.publish(pins)

    def end_session(self, patience: Patience) -> None:
        """End the source on the server, which drops the roots of the source."""
        with self._lock:
            request = self._registration.request(0.0, 1, close=True)
        self._caller.answer(_watch(request), patience)

    # -- batches

    def open_on_server(self, request: OpenBatch, patience: Patience) -> int | None:
        """Open a batch. Return the generation of the registration under which it is open."""
        # Without polls the lease may be about to run out. After a restart the server may have a newer registration than
        # this client knows of, and a batch opened now would be noted under the old one, and count as lost with it.
        is_known = self._caller.greeted(patience).hello.incarnation == self._known_to
        if not is_known or not self._registration.is_fresh(self._clock()):
            self.renew_lease(patience)
        while True:
            generation = self._registration.generation
            until_accepted(
                self._caller,
                lambda transport, timeout_s: transport.open_batch(request, timeout_s),
                f"open batch {request.number}",
                patience,
                self.renew_lease,
            )
            # If the generation changed during the call, it is unknown under which generation the batch was opened.
            if self._registration.generation == generation:
                return generation

    def settle_on_server(self, request: Settle, patience: Patience) -> SettleReply:
        """Settle a batch. Raises ``UnknownBatch`` if the server does not know it."""
        return until_accepted(
            self._caller,
            lambda transport, timeout_s: transport.settle(request, timeout_s),
            f"settle batch {request.number}",
            patience,
            self.renew_lease,
        )

    def end_on_server(self, number: int, undrawn: InitScope | None, patience: Patience) -> None:
        """End a batch that may be open on the server, so that its room becomes free. If the server does not answer,
        the batch is ended after the next answer."""
        session = self._registration.session
        request = Settle(session, number, Settlement.ABANDON if undrawn is None else Settlement.DONE)
        try:
            if undrawn is not None:
                # Else the server would report `unread` for every number that was not drawn.
                delivery = Delivery(Identity(session, number), Entries(NO_IDS, NO_IDS), undrawn)
                deliver(self._caller, delivery, patience, self.renew_lease)
            self.settle_on_server(request, patience)
        except RETRYABLE as error:
            log.debug("batch %d may still be open at %s: %s", number, self._address, error)
            self.end_later(number, undrawn)
        except AckerError as error:
            # The batch is not open there, or was settled in another way.
            log.debug("batch %d is not open at %s: %s", number, self._address, error)

    def end_later(self, number: int, undrawn: InitScope | None) -> None:
        """End a batch when the server answers next."""
        with self._lock:
            self._to_end[number] = undrawn

    def take_to_end(self) -> dict[int, InitScope | None]:
        """Return the batches to end on the server, and forget them."""
        with self._lock:
            to_end, self._to_end = self._to_end, {}
        return to_end

    # -- outcomes

    @property
    def progress(self) -> tuple[int | None, int]:
        """The generation of a registration, and the cursor up to which its outcomes were counted."""
        return self._progress

    def counted_up_to(self, generation: int | None, cursor: int) -> None:
        """Note that all outcomes of this generation up to ``cursor`` were counted."""
        self._progress = generation, cursor

    def start_counting(self, generation: int | None) -> None:
        """Count outcomes of this generation from the first on, if they are not counted yet."""
        if self._progress[0] != generation:
            self._progress = generation, 0

    @property
    def running_poll(self) -> Future[Polled | None] | None:
        return self._running_poll

    def may_poll(self, now: float) -> bool:
        """Whether enough time has passed since a poll without an answer."""
        return self._poll_again_at <= now

    def start_poll(self, side_by_side: SideBySide, wait_s: float, max_outcomes: int) -> None:
        """Start a poll beside other work."""
        self._running_poll = side_by_side.start(partial(self.poll, wait_s, max_outcomes))

    def finish_poll(self) -> Polled | None:
        """Return the answer of the poll, which has ended; None if there was none."""
        poll, self._running_poll = self._running_poll, None
        polled = None if poll is None else poll.result()
        if polled is None:
            self._poll_again_at = self._clock() + _SILENT_PAUSE_S
        return polled

    def poll(self, wait_s: float, max_outcomes: int) -> Polled | None:
        """Ask for outcomes once. The server waits up to ``wait_s`` for the first one. None if there was no answer."""
        with self._lock:
            request = self._registration.request(wait_s, max_outcomes)
        # The answer needs time to travel, and so does the handshake, even if the caller does not want to wait.
        answer_by = Deadline(request.wait_ms / 1000 + self._settings.call_timeout_s / 2, self._clock)
        try:
            reply = self._caller.find().once(_watch(request), answer_by, answer_by.budget_s)
        except Unavailable:
            return None
        polled = Polled(request, reply, self._clock())
        with self._lock:
            # Done now, as batches may be opened before the answer is processed.
            self._registration.renewed(request, reply, polled.at)
        return polled

    def take_answer(self, polled: Polled) -> Heard | None:
        """Return the content of an answer. The next poll confirms it. None if the poll has to be made again."""
        with self._lock:
            if polled.reply.generation != self._registration.generation:
                # A newer answer has come, from another registration.
                return None
            heard = self._registration.heard(polled.request, polled.reply, polled.at)
        # A server that drains or is full does not register the source again. The source's roots are lost there, which
        # is no error. The next batch that is to be opened there raises it.
        if heard is not None and polled.reply.status not in _ELSEWHERE:
            _raise_unless_applied(polled.reply, self._registration.name)
        self._log_detail(polled.reply)
        return heard

    def _log_detail(self, reply: WatchReply) -> None:
        """Log, once, what the server says: it has no room for the pins, which the next poll brings again, or for the
        source."""
        detail, before = reply.detail, self._detail
        self._detail = detail
        if detail and detail != before:
            name = self._registration.name
            log.warning("source %r: the server at %s answered %s (%s)", name, self._address, reply.status.name, detail)


def _watch(request: Watch) -> Call[WatchReply]:
    return lambda transport, timeout_s: transport.watch(request, timeout_s)


def _raise_unless_applied(reply: WatchReply, name: str) -> None:
    if reply.status not in (Status.APPLIED, Status.DUPLICATE):
        kind = _ELSEWHERE.get(reply.status, Rejected)
        raise kind(f"watch of source {name[:100]!r}: the server answered {reply.status.name} ({reply.detail})")
