"""AckerClient: the one object through which a program emits, acks, fails and waits.

Decides which parts each process has for itself (session, buffer, source, channels) and the order in which buffered
reports are sent. All calls are synchronous: a program that does several things at once brings its own threads.
Constructing a client is free: each process makes its own parts when they are first needed. So a client may be made
before a fork and used after it, in both processes.
"""

from __future__ import annotations

import logging
import os
import random as random_module
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from acker_client.anchor import UNANCHORED, Anchor
from acker_client.backoff import Clock, Patience, Random, Sleep
from acker_client.cluster.membership import Cluster
from acker_client.cluster.published import issued
from acker_client.cluster.registration import check_number, check_source, limits_of
from acker_client.cluster.replicas import ask_members
from acker_client.cluster.source_session import SourceSession
from acker_client.cluster.watched import WatchResult
from acker_client.errors import RETRYABLE, AckerError, Closed, Rejected, Unavailable
from acker_client.open_source import OnAck, OnFail, OpenSource
from acker_client.pins import Pin
from acker_client.reports.accumulator import root_id
from acker_client.reports.replication import Replication
from acker_client.reports.sending import Sending
from acker_client.reports.state import ClientState
from acker_client.rpc.connection import Connect
from acker_client.rpc.delivery import ReportResult
from acker_client.rpc.retrying import deliver
from acker_client.rpc.side_by_side import InTurn, SideBySide, Threads
from acker_client.settings import Settings, Tls, addresses
from acker_protocol.ids import BASE_MAX, Column, check_column, edge0, edge0_column, root_ids
from acker_protocol.messages import (
    Entries,
    HelloReply,
    Identity,
    InitScope,
    OpenBatch,
    Settlement,
    StatsReply,
    Transport,
)
from acker_protocol.placement import Member

log = logging.getLogger("acker_client")

# Counts are 32-bit on the wire.
COUNT_MAX = (1 << 32) - 1


class AckerClient:
    """A client of the acker.

    ``servers``: 'host:port', several of them, or :class:`Settings`; None reads ``ACKER_SERVERS`` or
    ``ACKER_ACCESS_FILE``. ``token`` and ``tls``: see :class:`Settings`. ``access_file``: the access.json of a server
    with ``--own-access``, instead of those three. ``replicas``: the number of servers that each root lives on (None:
    two if there are two). ``spread``: the largest number of servers that a batch lives on. ``connect`` makes the
    transport to an address (``acker_testing`` has one without sockets). ``clock``, ``sleep``, ``random`` and
    ``side_by_side`` are for tests. With a simulated clock, calls to several servers are made in turn. Thread-safe,
    except that only one thread at a time may ``watch``.

    >>> with AckerClient("localhost:7070") as client:
    ...     source = client.open_source("orders")
    ...     root, edge = source.emit("order 17")
    ...     child = client.new_edge()
    ...     client.ack(root, edge, emitted=[child])
    ...     client.ack(root, child)
    ...     for outcome in source.outcomes():
    ...         print(outcome.message_id, outcome.verdict.name)
    ...         if not source.pending:
    ...             break
    """

    def __init__(
        self,
        servers: str | Sequence[str] | Settings | None = None,
        *,
        token: str | None = None,
        tls: Tls | bool | None = None,
        access_file: str | Path | None = None,
        replicas: int | None = None,
        spread: int | None = None,
        connect: Connect | None = None,
        clock: Clock = time.monotonic,
        sleep: Sleep = time.sleep,
        random: Random | None = None,
        side_by_side: SideBySide | None = None,
    ) -> None:
        given = {"token": token, "tls": tls, "replicas": replicas, "spread": spread}
        given = {name: value for name, value in given.items() if value is not None}
        self.settings = _settings(servers, access_file, given, is_local=connect is not None)
        if not self.settings.tracking:
            raise ValueError("tracking is off in these settings, so there is no server to talk to")
        self._side_by_side = side_by_side or (Threads() if clock is time.monotonic else InTurn())
        self._connect = connect
        self._clock = clock
        self._sleep = sleep
        # Not the module's generator, whose state forked processes share.
        self._random = random or random_module.SystemRandom().random
        self._states: dict[int, ClientState] = {}
        self._has_to_be_entered = False

    # -- the plain API: buffered, folded per root, sent by flush

    def emit(self) -> Anchor:
        """Start the tree of a new record of this client's source. Return its root id and its edge.

        Emissions draw their numbers from a batch. If it is closed or used up, this call opens the next one: it waits
        while the servers are full, and raises what ``open_batch`` raises. For a root of ``open_batch`` call ``init``.
        """
        return self._emit(None)

    def _emit(self, note: Callable[[int], object] | None) -> Anchor:
        state = self._with_room()
        source = state.source()
        while True:
            with state.lock:
                state.refuse_closed(source)
                drawn = source.emissions.draw_root(note)
                if drawn is not None:
                    root, batch = drawn
                    edge = edge0(root)
                    state.accumulator.init(root, edge, (source.session, batch))
                    return Anchor(root, edge)
            source.emissions.open_next_batch(None)

    def _emit_columns(
        self, count: int, note: Callable[[int, int], object], forget: Callable[[int], object]
    ) -> tuple[Column, Column]:
        state = self._with_room()
        source = state.source()
        drawn = source.emissions.draw_roots(count, note, forget)
        columns = [root_ids(first, np.arange(length, dtype=np.uint64)) for first, length, _ in drawn]
        edges = [edge0_column(roots) for roots in columns]
        for index, (_, _, batch) in enumerate(drawn):
            try:
                self._with_room()
                with state.lock:
                    state.refuse_closed(source)
                    state.accumulator.init_columns(columns[index], edges[index], (source.session, batch))
            except BaseException:
                for _, length, later in drawn[index:]:
                    source.inits_answered(later, length)
                raise
        return np.concatenate(columns), np.concatenate(edges)

    def new_edge(self) -> int:
        """Return an edge for a record that is derived from another one: a random 64-bit number, never 0."""
        return secrets.randbits(64) or 1

    def init(self, root: int, edges: int | Iterable[int], *, batch: int) -> None:
        """Start the tree of ``root``, which belongs to a batch of ``open_batch``, with these edges or with their XOR.

        This call and those below are buffered. If the buffer is full, a call flushes it first and raises what ``flush``
        raises. A call that raises has not buffered its update.
        """
        state = self._with_room()
        source = state.source()
        source.check_root(batch, root)
        with state.lock:
            state.accumulator.init(root, edges, (source.session, batch))

    def ack(self, root: int, edge: int, emitted: Iterable[int] = ()) -> None:
        """Ack the record of ``edge``. ``emitted``: the edges of its children. Does nothing for ``UNANCHORED``."""
        if not root and (root, edge) == UNANCHORED:
            return
        state = self._with_room()
        with state.lock:
            state.accumulator.ack(root, edge, emitted)

    def fail(self, root: int, reason: str = "", *, edge: int = 0) -> None:
        """Fail the tree of ``root``. ``edge``: the edge of the record that failed, if there is one. Does nothing for
        ``UNANCHORED``."""
        if not root and (root, edge) == UNANCHORED:
            return
        state = self._with_room()
        with state.lock:
            state.accumulator.fail(root, reason, edge)

    def reset_timeout(self, root: int) -> None:
        """Restart the timeout of ``root``. Does nothing for the root of ``UNANCHORED``."""
        if root == 0:
            return
        state = self._with_room()
        with state.lock:
            state.accumulator.reset_timeout(root)

    def init_columns(self, roots: npt.ArrayLike, vals: npt.ArrayLike, *, batch: int) -> None:
        """``init`` for columns (uint64 or int64, [n]). The values of rows with the same root XOR together."""
        state = self._with_room()
        source = state.source()
        source.check_open(batch)
        with state.lock:
            state.accumulator.init_columns(roots, vals, (source.session, batch))

    def ack_columns(self, roots: npt.ArrayLike, vals: npt.ArrayLike) -> None:
        """``ack`` for columns (uint64 or int64, [n]). ``vals``: edges, or edges XOR the edges of their children. Raises
        ValueError for the root of ``UNANCHORED``: leave such rows out."""
        state = self._with_room()
        with state.lock:
            state.accumulator.ack_columns(roots, vals)

    def fail_columns(
        self, roots: npt.ArrayLike, reasons: str | Sequence[str] = "", vals: npt.ArrayLike | None = None
    ) -> None:
        """``fail`` for columns. One reason for all, or one a row. ``vals``: the edges of the records that failed.
        Raises ValueError as ``ack_columns`` does."""
        state = self._with_room()
        with state.lock:
            state.accumulator.fail_columns(roots, reasons, vals)

    def flush(self) -> None:
        """Send everything that is buffered, and wait until it is answered.

        Waits until every server of these roots has answered, or was left out by their source. If the budget runs out,
        raises one of ``errors.RETRYABLE`` and keeps the unanswered updates: the next flush sends them again, under the
        same identity. With ``on_unreachable="continue"``, flush drops and counts the unanswered updates instead, unless
        that could cause a false ACK. It therefore keeps two kinds of updates: all updates for a source that this client
        has joined, and fails without an edge for any source except this client's own. Raises :class:`Rejected` or
        :class:`UnknownBatch` when the server refuses a report for good: that report is dropped, and its roots time out.
        Updates of roots that this client cannot place stay in the buffer. :class:`UnknownSource` is raised for them
        after everything else was sent. They are dropped and counted as unreported once all servers have disowned their
        roots for ten minutes. Fails without an edge are not dropped.
        """
        state = self._state()
        patience = state.cluster.patience()
        # Reports go one after the other, so no more than one sequence is ever unanswered at a server.
        with state.sending:
            if state.source_or_none is not None:
                state.source_or_none.emissions.end_outdated_batch()
            while True:
                while state.unanswered:
                    self._send_oldest(state, patience.deadline.left_s)
                why = state.seal()
                if state.unanswered:
                    continue
                if why is None:
                    return
                if isinstance(why, Unavailable) and state.wait_to_learn(patience):
                    continue
                # A joined source runs in another process, and cannot learn that updates for its roots were dropped.
                if not isinstance(why, Unavailable) or self.settings.on_unreachable == "fail" or state.others.joined:
                    raise why
                why = state.seal(may_drop=True)
                if why is not None:
                    raise why

    # -- whole reports

    def report(self, identity: Identity, entries: Entries, inits: InitScope | None = None) -> ReportResult:
        """Send one whole report, and wait until every section of it has its answer. Spark tasks call this.

        ``entries`` are in wire order (``reports.fold`` makes them). CONFLICT is no error here: another attempt at the
        same work was counted. Raises one of ``errors.RETRYABLE`` when the budget is spent, after which the same report
        may be sent again. Raises :class:`Rejected` and :class:`UnknownBatch` at once.
        """
        return self.report_pinned(identity, entries, inits, self.settings.pins)

    def _report_placed(self, identity: Identity, entries: Entries) -> ReportResult:
        """Send a report of updates to the servers of its roots, as the roots' sources have published them."""
        state = self._state()
        patience = state.cluster.patience()
        while (why := (placed := state.place(entries.root_ids)).why) is not None:
            if not isinstance(why, Unavailable) or not state.wait_to_learn(patience):
                raise why
        if not placed.pins:
            # All roots are over.
            return ReportResult()
        # Entries of roots that are over stay in, as all attempts at one piece of work have to send the same report.
        replication = Replication(identity, entries, None, placed.pins)
        self._send(Sending(state, replication), patience.deadline.left_s)
        return state.add_to_totals(replication.result)

    def report_pinned(
        self,
        identity: Identity,
        entries: Entries,
        inits: InitScope | None,
        pins: Sequence[Pin],
        *,
        may_leave: bool = False,
    ) -> ReportResult:
        """``report`` for roots that live on the servers of ``pins``. Without pins, the servers say where they live.

        ``may_leave``: go on without a server that does not answer while its replicas do. The caller then has to make
        the source leave out the servers in ``ReportResult.without`` (``leave_out``), as another attempt at the same
        work may have reached such a server with other content.
        """
        state = self._state()
        check_column("entries.root_ids", entries.root_ids)
        check_column("entries.ack_vals", entries.ack_vals)
        for pin in pins:
            state.cluster.hear_of(pin.placement)
        if not pins and inits is None:
            return self._report_placed(identity, entries)
        pins = pins or state.pins() or (state.pin_of_the_only_server(state.cluster.patience()),)
        replication = Replication(identity, entries, inits, pins)
        source = state.source_or_none
        # This client must not renew the lease of another client's source.
        own = source if source is not None and (inits is None or inits.session == source.session) else None

        def report_to_member(member: Member, patience: Patience) -> None:
            def renew_lease(patience: Patience) -> None:
                if own is not None:
                    own.renew_lease(member, patience)

            deliver(state.cluster.calls_to(member), replication.deliveries[member], patience, renew_lease)

        try:
            ask_members(state.cluster, replication, report_to_member, may_leave=may_leave)
        except RETRYABLE as error:
            if self.settings.on_unreachable == "fail":
                raise
            state.go_on_without(error)
            # These servers may have another attempt at this work, so their outcomes for its roots must not count.
            for member in replication.unanswered_members:
                replication.drop_member(member, str(error))
        return state.add_to_totals(replication.result)

    # -- sources

    def open_source(
        self,
        name: str,
        *,
        session: int | None = None,
        lease_s: float = 30.0,
        message_timeout_s: float | None = 30.0,
        progress_timeout_s: float | None = None,
        on_ack: OnAck | None = None,
        on_fail: OnFail | None = None,
    ) -> OpenSource:
        """Open this client's source. Return it: it is also its session as a number, random unless one is given.

        ``on_ack(message_id)`` and ``on_fail(message_id, reason)`` are called by the thread that reads the source's
        ``outcomes()``.
        A server drops the roots of a source that was not watched for ``lease_s``, or for the server's own
        ``--max-lease-s`` if that is shorter. An emission is TIMED_OUT ``message_timeout_s`` after its init, or after
        ``progress_timeout_s`` without an update; None turns a timeout off. The batches of ``open_batch`` have timeouts
        of their own. A client either emits or opens batches, since both number the source's batches. While the servers
        have no room for another source, this call waits within ``Settings.budget_s``, and then raises ``Overloaded``.
        """
        state = self._state()
        if state.source_or_none is not None:
            raise ValueError(
                f"source {state.source_or_none.name!r} is open on this client, and one client has one source: make"
                " another AckerClient, or close_source() first"
            )
        check_source(name, session, lease_s)
        timeouts = limits_of(message_timeout_s, progress_timeout_s)
        drawn = session if session is not None else secrets.randbits(63) + 1
        # The number of the first emission.
        base = 1 + secrets.randbelow(BASE_MAX - 1)
        source = SourceSession(state.cluster, name, drawn, lease_s, timeouts, base)
        source.open_on_servers(state.cluster.patience())
        state.source_or_none = source
        return OpenSource(drawn, self, name, on_ack, on_fail)

    @property
    def _source(self) -> SourceSession | None:
        state = self._states.get(os.getpid())
        return None if state is None or state.is_closed else state.source_or_none

    def join(self, session: int) -> None:
        """Make this client know the source of another process. ``session``: the number that ``open_source`` returned
        there. Not needed to ack records: a client finds the source of a root by itself, from the first flush on.

        Raises :class:`UnknownSource` if no server knows the session.
        """
        check_number("session", session, least=1)
        self._state().join(session)

    def has_emitted(self, root: int) -> bool:
        """Whether some source, here or in another process, has emitted ``root``. False for a root of a held batch, and
        if no server answers within the budget."""
        state, roots = self._state(), np.array([root_id(root)], np.uint64)
        source = state.source_or_none
        if source is not None and issued(roots, (source.emissions.numbers,)).all():
            # The servers' answer would make this client take its own source for one of another process.
            return True
        patience = state.cluster.patience()
        while not state.others.has_emitted(roots):
            if state.others.find(roots) or not state.wait_to_learn(patience):
                break
        return state.others.has_emitted(roots)

    def close_source(self) -> None:
        """End the source on the servers, which drop its roots. Tries for a second. A server that was not reached ends
        the source when the lease expires."""
        self._state().close_source()

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
    ) -> Pin:
        """Place a batch on servers, and reserve room for ``up_to`` roots. Number i has root id ``mix64(first + i)``.

        Returns where the roots live. Every process that reports these roots needs that pin (``Settings.pins``).
        ``held``: no root of the batch is reported ACKED before the batch is settled. For backpressure, waits while a
        server is overloaded, up to ``budget_s`` (None: ``Settings.budget_s``), and then raises ``Overloaded``. The
        timeouts mean the same as in ``open_source``; None turns them off. They do not apply to held roots that are
        done. Raises ValueError if another batch has this number and is not over, or was forgotten. After another error
        some servers may keep the room: call it again with the same parameters, or ``forget_batch`` and open a batch of
        another number.
        """
        state = self._state()
        check_number("number", number, least=1)
        check_number("first", first, least=1)
        check_number("up_to", up_to)
        timeouts = limits_of(message_timeout_s, progress_timeout_s)
        source = state.source()
        return source.open_batch(OpenBatch(source.session, number, first, up_to, held, timeouts), budget_s)

    def settle(self, number: int, settlement: Settlement) -> None:
        """End a batch. Each of its roots has had its outcome once ``watch`` names the batch in ``settled``.

        Raises ``UnknownBatch`` if the batch is not open on this client. If a server has lost the batch meanwhile,
        its roots there are LOST. Raises one of ``errors.RETRYABLE`` when the budget is spent: call it again then.
        """
        state = self._state()
        check_number("number", number, least=1)
        state.source().settle_batch(number, Settlement(settlement), None)

    def leave_out(self, number: int, servers: Iterable[int]) -> None:
        """Leave the servers with these ids out of a batch, because a report was sent without them. From now on their
        outcomes for the batch do not count."""
        self._state().source().leave_out_servers(number, frozenset(servers))

    def forget_batch(self, number: int) -> None:
        """Stop returning outcomes of a batch, whatever happens to it on the servers. If ``open_batch`` has raised, the
        room that it may have reserved becomes free."""
        self._state().source().abandon_batch(number)

    def watch(self, wait_s: float = 0.0, *, max_outcomes: int = 1_000_000) -> WatchResult:
        """Return news of this source's roots, and wait up to ``wait_s`` for the first. Confirms what the previous call
        returned.

        Also renews the leases, so keep calling it. A silent server is no error here: the call keeps trying for its time
        and then returns nothing. ``silent_for_s`` says how long the servers have been silent.
        """
        check_number("max_outcomes", max_outcomes, most=COUNT_MAX)
        return self._state().source().watch(wait_s, max_outcomes)

    @property
    def silent_for_s(self) -> float:
        """Seconds since a server last answered for this source. The caller decides when that is too long."""
        return self._clock() - self._state().source().heard_at

    @property
    def lease_s(self) -> float:
        """Seconds without a watch after which a server drops the source, as given to ``open_source``."""
        return self._state().source().lease_s

    # -- the server

    def hello(self) -> HelloReply:
        """Do the handshake within the budget. Return the version and limits of a server."""
        cluster = self._state().cluster
        patience = cluster.patience()
        return cluster.calls_to_any(patience).greeted(patience).hello

    def stats(self) -> StatsReply:
        """Return the figures of a server, by the names of its /metrics."""
        cluster = self._state().cluster
        patience = cluster.patience()
        return cluster.calls_to_any(patience).answer(lambda transport, timeout_s: transport.stats(timeout_s), patience)

    def members(self) -> tuple[Member, ...]:
        """Return the servers on which new batches are placed now."""
        cluster = self._state().cluster
        return cluster.view(cluster.patience()).members

    @property
    def totals(self) -> ReportResult:
        """Counts of all sections that this process has reported so far, by their results."""
        return self._state().totals

    def close(self) -> None:
        """Close this process's channels. Drops updates that were not flushed, with a warning."""
        state = self._states.setdefault(os.getpid(), self._new_state())
        if state.is_closed:
            return
        with state.lock:
            state.is_closed = True
        dropped = state.buffered() + len(state.unanswered)
        if dropped:
            log.warning("closed with %d updates or reports not flushed: their roots will time out", dropped)
        state.cluster.callers.close()

    @property
    def is_closed(self) -> bool:
        """Whether ``close`` was called in this process."""
        state = self._states.get(os.getpid())
        return state is not None and state.is_closed

    def __repr__(self) -> str:
        """Show the servers, whether this process is connected, and the source. Never show the token."""
        state = self._states.get(os.getpid())
        source = None if state is None else state.source_or_none
        words = ["AckerClient", ", ".join(self.settings.servers), self._standing(state)]
        return f"<{' '.join(words)}{f', source {source.name!r}' if source else ''}>"

    def __enter__(self) -> Self:
        self._has_to_be_entered = False
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if kind is None:
                self.flush()
        finally:
            self.close()

    def __reduce__(self) -> tuple[Callable[[Settings], AckerClient], tuple[Settings]]:
        """Pickle the settings alone. A client that is unpickled has its own session, buffer and channels. It takes acks
        only inside ``with``, which sends them."""
        if self._connect is not None:
            raise TypeError(
                "a client with its own `connect` reaches its server in this process only: it is not pickled"
            )
        return _unpickled, (self.settings,)

    # -- inside

    def _standing(self, state: ClientState | None) -> str:
        if state is None:
            return "not connected yet"
        if state.is_closed:
            return "closed"
        since = state.cluster.callers.silent_since
        if since is not None:
            return f"silent for {self._clock() - since:.0f} s"
        return "connected" if state.cluster.callers.is_greeted else "not connected yet"

    def _state(self) -> ClientState:
        state = self._states.get(os.getpid())
        if state is None:
            # Atomic, as two threads may come here at once. A lock could stay locked for ever after a fork.
            state = self._states.setdefault(os.getpid(), self._new_state())
        if state.is_closed:
            raise Closed("this client was closed: make another AckerClient")
        return state

    def _new_state(self) -> ClientState:
        connect = self._connect or _grpc(self.settings)
        return ClientState(Cluster(self.settings, connect, self._clock, self._sleep, self._random, self._side_by_side))

    def _with_room(self) -> ClientState:
        state = self._state()
        if self._has_to_be_entered:
            raise AckerError(
                "this client came into this process by pickle, and nothing here would send what it buffers: use it as"
                " `with client:`, which sends at the end; in a Spark task use Collector, process_client() or acker_udf,"
                " which count a task once that Spark runs again"
            )
        if state.buffered() >= self.settings.buffer_entries:
            self.flush()
        return state

    def _send_oldest(self, state: ClientState, budget_s: float) -> None:
        replication = state.unanswered[0]
        try:
            self._send(Sending(state, replication), budget_s)
        except RETRYABLE:
            raise
        except AckerError:
            state.drop_oldest()
            raise
        state.drop_oldest()
        if state.add_to_totals(replication.result).stale:
            raise _stale(replication.identity)

    def _send(self, sending: Sending, budget_s: float) -> None:
        try:
            sending.send_report(budget_s)
        except RETRYABLE as error:
            if self.settings.on_unreachable == "fail" or sending.has_to_arrive:
                raise
            self._state().go_on_without(error)
            sending.drop_unanswered(str(error))


_CLIENTS: dict[tuple[int, Settings], AckerClient] = {}


def shared_client(settings: Settings) -> AckerClient:
    """Return the one client of this process for these settings, made after a fork. Spark tasks use it."""
    key = (os.getpid(), settings)
    client = _CLIENTS.get(key)
    if client is None or client.is_closed:
        # Clients of a parent process stay here untouched, because this process must not close their channels.
        client = _CLIENTS[key] = AckerClient(settings)
    return client


def _unpickled(settings: Settings) -> AckerClient:
    client = AckerClient(settings)
    client._has_to_be_entered = True
    return client


def _settings(
    servers: str | Sequence[str] | Settings | None,
    access_file: str | Path | None,
    given: dict[str, Any],
    *,
    is_local: bool,
) -> Settings:
    if access_file is not None:
        if servers is not None or {"token", "tls"} & given.keys():
            raise ValueError(
                "access_file: has the servers, the token and the certificate: leave out servers, token, tls"
            )
        return Settings.from_access_file(access_file, **given)
    if isinstance(servers, Settings):
        if given:
            raise ValueError(f"{', '.join(given)}: give it in the Settings")
        return servers
    if servers is None:
        return Settings(("in-memory",), **given) if is_local else replace(Settings.from_environment(), **given)
    return Settings(addresses(servers), **given)


def _grpc(settings: Settings) -> Connect:
    def connect(address: str) -> Transport:
        # Imported here so that the process that makes a channel loads grpc after its fork.
        from acker_client.rpc.transport import GrpcTransport

        return GrpcTransport(address, settings)

    return connect


def _stale(identity: Identity) -> Rejected:
    return Rejected(
        f"report {identity.low} of this client came too late: the server has forgotten which of its sections were "
        "counted, and counted none now. Its roots will time out. This happens when two processes share one "
        "session, or when a report is sent again after many later ones: make a new AckerClient"
    )
