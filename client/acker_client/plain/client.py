"""AckerClient: the one object through which a program emits, acks, fails and waits.

Decides what a process has of its own (session, buffer, source, channels) and the order in which buffered reports
leave. All calls are synchronous; threads are the caller's. Constructing a client is free: what belongs to a process is
made in it, when first needed, so a client may be made before a fork and used after it, on both sides.
"""

from __future__ import annotations

import logging
import os
import random as random_module
import secrets
import time
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import NamedTuple, Self

import numpy.typing as npt

from acker_client.core.backoff import Clock, Deadline, Patience, Random, Sleep
from acker_client.core.delivery import Delivery, ReportResult
from acker_client.core.registration import Registration, WatchResult, check_number, check_source, limits_of
from acker_client.errors import RETRYABLE, AckerError, Closed, Rejected, Unavailable
from acker_client.members.caller import Call, Caller
from acker_client.members.connection import Connect, Connection
from acker_client.members.retrying import deliver, until_accepted
from acker_client.plain.state import ClientState
from acker_client.settings import Settings, addresses
from acker_protocol.ids import check_column, edge0
from acker_protocol.messages import (
    Entries,
    HelloReply,
    Identity,
    InitScope,
    OpenBatch,
    Settle,
    Settlement,
    SettleReply,
    StatsReply,
    Status,
    Transport,
    Watch,
    WatchReply,
)

log = logging.getLogger("acker_client")

# A watch that was answered early and empty (the server is short of threads, or stops) asks again at this pace.
_POLL_PAUSE_S = 0.05
# What the wire can say: counts of 32 bits.
COUNT_MAX = (1 << 32) - 1


class Anchor(NamedTuple):
    """What ties a record to its tree: the root id, and the edge of the record."""

    root_id: int
    edge: int


class AckerClient:
    """A client of the acker.

    ``servers``: 'host:port', several of them, or :class:`Settings`; None reads ``ACKER_SERVERS``. ``connect`` makes
    the transport to an address (``acker_testing`` has one without sockets); ``clock``, ``sleep`` and ``random``
    are for tests. Thread-safe; only ``watch`` is for one thread at a time.

    >>> with AckerClient("localhost:7070") as client:
    ...     client.open_source("orders")
    ...     root, edge = client.emit()
    ...     child = client.new_edge()
    ...     client.ack(root, edge, emitted=[child])
    ...     client.ack(root, child)
    """

    def __init__(
        self,
        servers: str | Sequence[str] | Settings | None = None,
        *,
        token: str | None = None,
        connect: Connect | None = None,
        clock: Clock = time.monotonic,
        sleep: Sleep = time.sleep,
        random: Random | None = None,
    ) -> None:
        self.settings = _settings(servers, token, is_local=connect is not None)
        self._connect = connect
        self._clock = clock
        self._sleep = sleep
        # Forked processes share the state of the module's generator; the system's they do not.
        self._random = random or random_module.SystemRandom().random
        self._states: dict[int, ClientState] = {}

    # -- the plain API: buffered, folded per root, sent by flush

    def emit(self) -> Anchor:
        """Start the tree of a new record, in the open stream of this client's source; returns its root id and its edge.

        For root ids of your own, or those of a batch, call ``init``.
        """
        state = self._state()
        root = state.new_root()
        edge = edge0(root)
        self.init(root, edge)
        return Anchor(root, edge)

    def new_edge(self) -> int:
        """An edge for a record that is derived from another one: a random number of 64 bits, not 0."""
        return secrets.randbits(64) or 1

    def init(self, root: int, edges: int | Iterable[int], *, batch: int = 0) -> None:
        """The tree of ``root`` starts with these edges, or with their XOR. Needs an open source. Ids have 64 bits.

        This and the calls below are buffered. One that finds the buffer full flushes it first, and raises what
        ``flush`` raises; a call that raises has not counted.
        """
        state = self._with_room()
        state.source()
        with state.lock:
            state.accumulator.init(root, edges, batch)

    def ack(self, root: int, edge: int, emitted: Iterable[int] = ()) -> None:
        """The record of ``edge`` is done, and ``emitted`` are the edges of its children."""
        state = self._with_room()
        with state.lock:
            state.accumulator.ack(root, edge, emitted)

    def fail(self, root: int, reason: str = "", *, edge: int = 0) -> None:
        """The tree of ``root`` fails. ``edge``: the edge of the record that failed, where there is one."""
        state = self._with_room()
        with state.lock:
            state.accumulator.fail(root, reason, edge)

    def reset_timeout(self, root: int) -> None:
        """The timeout of ``root`` starts anew."""
        state = self._with_room()
        with state.lock:
            state.accumulator.reset_timeout(root)

    def init_columns(self, roots: npt.ArrayLike, vals: npt.ArrayLike, *, batch: int = 0) -> None:
        """``init`` in columns (uint64 or int64, [n]); rows of the same root are its edges and XOR together."""
        state = self._with_room()
        state.source()
        with state.lock:
            state.accumulator.init_columns(roots, vals, batch)

    def ack_columns(self, roots: npt.ArrayLike, vals: npt.ArrayLike) -> None:
        """``ack`` in columns (uint64 or int64, [n]): ``vals`` are edges, or edge XOR the children's edges."""
        state = self._with_room()
        with state.lock:
            state.accumulator.ack_columns(roots, vals)

    def fail_columns(
        self, roots: npt.ArrayLike, reasons: str | Sequence[str] = "", vals: npt.ArrayLike | None = None
    ) -> None:
        """``fail`` in columns; one reason for all, or one a row. ``vals``: the edges of the records that failed."""
        state = self._with_room()
        with state.lock:
            state.accumulator.fail_columns(roots, reasons, vals)

    def flush(self) -> None:
        """Send what is buffered, and wait until it is answered.

        Raises one of ``errors.RETRYABLE`` when the budget is spent: what is unanswered is kept as it was, and the next
        flush sends it again, under the same identity. Raises :class:`Rejected` or :class:`UnknownBatch` when the server
        refuses a report for good: that report is dropped, and its roots time out.
        """
        state = self._state()
        patience = state.caller.patience()
        # Reports go one after the other, so no more than one sequence is ever unanswered at the server.
        with state.sending:
            while state.unanswered or state.seal():
                self._send_oldest(state, patience)

    # -- whole reports

    def report(self, identity: Identity, entries: Entries, inits: InitScope | None = None) -> ReportResult:
        """Send one whole report and wait until every section of it has its answer; what a Spark task calls.

        ``entries`` are in wire order (``reports.fold`` makes them). CONFLICT is no error here: another attempt at the
        same work was counted. Raises one of ``errors.RETRYABLE`` when the budget is spent (the same report may be sent
        again); :class:`Rejected` and :class:`UnknownBatch` at once.
        """
        state = self._state()
        check_column("entries.root_ids", entries.root_ids)
        check_column("entries.ack_vals", entries.ack_vals)
        delivery = Delivery(identity, entries, inits)
        try:
            deliver(state.caller, delivery, state.caller.patience(), self._renewal(state, delivery))
        except RETRYABLE as error:
            if self.settings.on_unreachable == "fail":
                raise
            state.go_on_without(delivery, error)
        return state.counted(delivery.result)

    # -- sources

    def open_source(
        self,
        name: str,
        *,
        session: int | None = None,
        lease_s: float = 30.0,
        message_timeout_s: float | None = 30.0,
        progress_timeout_s: float | None = None,
    ) -> int:
        """Open this client's source and return its session, a random number unless one is given.

        The server drops the source's roots when it was not watched for ``lease_s``, or for its own ``--max-lease-s``
        where that is shorter. A root is TIMED_OUT ``message_timeout_s`` after its init, or when nothing was heard of it
        for ``progress_timeout_s``; None turns it off. The batches of ``open_batch`` have timeouts of their own.
        """
        state = self._state()
        if state.registration is not None:
            raise ValueError(
                f"source {state.registration.name!r} is open on this client, and one client has one source: make"
                " another AckerClient, or close_source() first"
            )
        check_source(name, session, lease_s)
        timeouts = limits_of(message_timeout_s, progress_timeout_s)
        drawn = session if session is not None else secrets.randbits(63) + 1
        registration = Registration(name, drawn, lease_s, timeouts, self._clock())
        self._renew(state, registration, state.caller.patience())
        state.registration = registration
        state.source_session = drawn
        return drawn

    def close_source(self) -> None:
        """End the session: the server drops the source's roots. Tried for a second; else the lease ends it."""
        state = self._state()
        registration, state.registration = state.registration, None
        if registration is None:
            return
        with state.lock:
            request = registration.request(0.0, 1, close=True)
        try:
            state.caller.answer(_watch(request), state.caller.patience(1.0))
        except AckerError as error:
            log.info("source %r could not be closed, and ends with its lease: %s", registration.name, error)

    def open_batch(
        self,
        number: int,
        first: int,
        up_to: int,
        *,
        held: bool = True,
        message_timeout_s: float | None = None,
        progress_timeout_s: float | None = None,
        budget_s: float | None = None,
    ) -> None:
        """Reserve room for ``up_to`` roots; number i of the batch has root id ``mix64(first + i)``.

        ``held``: no root of it is reported ACKED before the batch is settled. Waits while the server is overloaded,
        within ``budget_s`` (None: that of the settings): this is the backpressure. Raises ``Overloaded`` after it. The
        timeouts are as those of ``open_source``, and off unless given; a held root that is done has none.
        """
        state = self._state()
        check_number("number", number, least=1)
        check_number("first", first, least=1)
        check_number("up_to", up_to)
        timeouts = limits_of(message_timeout_s, progress_timeout_s)
        request = OpenBatch(state.source().session, number, first, up_to, held, timeouts)
        until_accepted(
            state.caller,
            lambda transport, timeout_s: transport.open_batch(request, timeout_s),
            f"open batch {number}",
            state.caller.patience(budget_s),
            self._renewal(state),
        )

    def settle(self, number: int, settlement: Settlement) -> SettleReply:
        """End a batch; every root of it has its outcome once ``watch`` has passed the reply's cursor.

        ``UnknownBatch`` when the server does not know it: it has lost its state, or the batch was never opened.
        """
        state = self._state()
        check_number("number", number, least=1)
        request = Settle(state.source().session, number, Settlement(settlement))
        return until_accepted(
            state.caller,
            lambda transport, timeout_s: transport.settle(request, timeout_s),
            f"settle batch {number}",
            state.caller.patience(),
            self._renewal(state),
        )

    def watch(self, wait_s: float = 0.0, *, max_outcomes: int = 1_000_000) -> WatchResult:
        """Outcomes of this source, waiting up to ``wait_s`` for the first of them. Confirms those of the call before.

        Also renews the lease, so call it again and again. A silent server is no error here: the call keeps trying for
        its time and comes back with nothing; ``silent_for_s`` has for how long.
        """
        state = self._state()
        registration = state.source()
        check_number("max_outcomes", max_outcomes, most=COUNT_MAX)
        patience = state.caller.patience(wait_s)
        watched: WatchResult | None = None
        while True:
            asked_at = self._clock()
            polled = self._poll(state, registration, patience.deadline, max_outcomes)
            watched = polled or watched
            if polled is not None and (len(polled.outcomes) or polled.generation_changed):
                return polled
            if not patience.deadline.left_s or (polled is None and not patience.wait()):
                break
            if polled is not None and self._clock() - asked_at < _POLL_PAUSE_S:
                self._sleep(min(_POLL_PAUSE_S, patience.deadline.left_s))
        with state.lock:
            return watched or registration.nothing()

    @property
    def silent_for_s(self) -> float:
        """Seconds since the server last answered for this source. The source decides when that is too long."""
        return self._clock() - self._state().source().heard_at

    @property
    def lease_s(self) -> float:
        """Seconds without a watch after which the server drops the source, as it was opened."""
        return self._state().source().lease_ms / 1000

    @property
    def generation(self) -> int | None:
        """Which registration of this source the server knows, as of its last answer: another one has lost what the one
        before it knew (``WatchResult.generation_changed``)."""
        return self._state().source().generation

    # -- the server

    def hello(self) -> HelloReply:
        """Do the handshake within the budget; returns the server's version and limits."""
        caller = self._state().caller
        return caller.greeted(caller.patience()).hello

    def stats(self) -> StatsReply:
        """The server's own figures, as its /metrics names them."""
        caller = self._state().caller
        return caller.answer(lambda transport, timeout_s: transport.stats(timeout_s), caller.patience())

    @property
    def totals(self) -> ReportResult:
        """What became of everything that this process has reported so far, in sections."""
        return self._state().totals

    def close(self) -> None:
        """Close this process's channels. What was not flushed is dropped, with a warning."""
        state = self._states.setdefault(os.getpid(), self._new_state())
        if state.is_closed:
            return
        state.is_closed = True
        dropped = state.buffered() + len(state.unanswered)
        if dropped:
            log.warning("closed with %d updates or reports not flushed: their roots will time out", dropped)
        state.caller.connection.close()

    @property
    def is_closed(self) -> bool:
        """Whether ``close`` was called in this process."""
        state = self._states.get(os.getpid())
        return state is not None and state.is_closed

    def __repr__(self) -> str:
        """Where its server is, whether it is connected in this process, and its source. Never the token."""
        state = self._states.get(os.getpid())
        source = None if state is None else state.registration
        words = ["AckerClient", ", ".join(self.settings.servers), self._standing(state)]
        return f"<{' '.join(words)}{f', source {source.name!r}' if source else ''}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if kind is None:
                self.flush()
        finally:
            self.close()

    def __reduce__(self) -> tuple[type[AckerClient], tuple[Settings]]:
        """Only the settings travel: whoever unpickles has its own session, buffer and channels."""
        if self._connect is not None:
            raise TypeError(
                "a client with its own `connect` reaches its server in this process only: it is not pickled"
            )
        return AckerClient, (self.settings,)

    # -- inside

    def _standing(self, state: ClientState | None) -> str:
        if state is None:
            return "not connected yet"
        if state.is_closed:
            return "closed"
        since = state.caller.silent_since
        if since is not None:
            return f"silent for {self._clock() - since:.0f} s"
        return "connected" if state.caller.connection.is_greeted else "not connected yet"

    def _state(self) -> ClientState:
        state = self._states.get(os.getpid())
        if state is None:
            # Atomic, as two threads may come here at once; no lock, as a fork may leave one locked for ever.
            state = self._states.setdefault(os.getpid(), self._new_state())
        if state.is_closed:
            raise Closed("this client was closed: make another AckerClient")
        return state

    def _new_state(self) -> ClientState:
        connection = Connection(self.settings, self._connect or _grpc(self.settings))
        return ClientState(Caller(self.settings, connection, self._clock, self._sleep, self._random))

    def _with_room(self) -> ClientState:
        state = self._state()
        if state.buffered() >= self.settings.buffer_entries:
            self.flush()
        return state

    def _send_oldest(self, state: ClientState, patience: Patience) -> None:
        delivery = state.unanswered[0]
        try:
            deliver(state.caller, delivery, patience, self._renewal(state, delivery))
        except RETRYABLE as error:
            if self.settings.on_unreachable == "fail":
                raise
            state.go_on_without(delivery, error)
        except AckerError:
            state.unanswered.popleft()
            raise
        state.unanswered.popleft()
        if state.counted(delivery.result).stale:
            raise _stale(delivery.identity)

    def _renewal(self, state: ClientState, delivery: Delivery | None = None) -> _Renewal:
        return _Renewal(self, state, delivery)

    def _renew(self, state: ClientState, registration: Registration, patience: Patience) -> None:
        while True:
            with state.lock:
                request = registration.request(0.0, 1)
            reply = state.caller.answer(_watch(request), patience)
            with state.lock:
                is_current = registration.renewed(request, reply, self._clock())
            if is_current:
                _raise_unless_applied(reply, registration.name)
                return

    def _poll(
        self, state: ClientState, registration: Registration, deadline: Deadline, max_outcomes: int
    ) -> WatchResult | None:
        with state.lock:
            request = registration.request(deadline.left_s, max_outcomes)
        # The answer needs time to travel, and the handshake too, also when the caller will not wait.
        answer_by = Deadline(request.wait_ms / 1000 + self.settings.call_timeout_s / 2, self._clock)
        try:
            reply = state.caller.once(_watch(request), answer_by, answer_by.budget_s)
        except Unavailable:
            return None
        with state.lock:
            watched = registration.heard(request, reply, self._clock())
        if watched is not None:
            _raise_unless_applied(reply, registration.name)
        return watched


_CLIENTS: dict[tuple[int, Settings], AckerClient] = {}


def shared_client(settings: Settings) -> AckerClient:
    """The one client of this process for these settings, made after fork; what Spark tasks use."""
    key = (os.getpid(), settings)
    client = _CLIENTS.get(key)
    if client is None or client.is_closed:
        # What a parent process left here is kept and never touched: its channels are not ours to close.
        client = _CLIENTS[key] = AckerClient(settings)
    return client


class _Renewal:
    """Renews the client's own source when the server does not know it: nobody may be watching while a report waits.

    What the server has lost by then is reported by the next watch. Another client's source is not ours to renew.
    """

    __slots__ = ("_client", "_delivery", "_state")

    def __init__(self, client: AckerClient, state: ClientState, delivery: Delivery | None) -> None:
        self._client = client
        self._state = state
        self._delivery = delivery

    def __call__(self, patience: Patience) -> None:
        registration = self._state.registration
        if registration is None:
            return
        inits = None if self._delivery is None else self._delivery.inits
        if inits is None or inits.session == registration.session:
            self._client._renew(self._state, registration, patience)


def _settings(servers: str | Sequence[str] | Settings | None, token: str | None, *, is_local: bool) -> Settings:
    if isinstance(servers, Settings):
        if token is not None:
            raise ValueError("token: give it in the Settings")
        return servers
    if servers is None:
        return Settings(("in-memory",), token=token) if is_local else Settings.from_environment()
    return Settings(addresses(servers), token=token)


def _grpc(settings: Settings) -> Connect:
    def connect(address: str) -> Transport:
        # Here, and not above: grpc is loaded by the process that makes a channel, after its fork.
        from acker_client.members.transport import GrpcTransport

        return GrpcTransport(address, settings.token)

    return connect


def _watch(request: Watch) -> Call[WatchReply]:
    return lambda transport, timeout_s: transport.watch(request, timeout_s)


def _raise_unless_applied(reply: WatchReply, name: str) -> None:
    if reply.status not in (Status.APPLIED, Status.DUPLICATE):
        raise Rejected(f"watch of source {name[:100]!r}: the server answered {reply.status.name} ({reply.detail})")


def _stale(identity: Identity) -> Rejected:
    return Rejected(
        f"report {identity.low} of this client came too late: the server has forgotten which of its sections were "
        "counted, and counted none now. Its roots will time out. This happens when two processes share one "
        "session, or when a report is sent again after many later ones: make a new AckerClient"
    )
