"""Server: builds the parts of a server, and starts and stops them in order.

Decides the order of the start (the state is consumed before the first call is answered) and of the stop (health reports
NOT_SERVING first, and the state is written once no call can change it), and the settings of gRPC.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health as grpc_health
from grpc_reflection.v1alpha import reflection

from acker_protocol.messages import PROTOCOL_VERSION, DrainReply, HelloReply, ListedMember, MemberState, ViewReply
from acker_protocol.placement import Member
from acker_protocol.version import VERSION
from acker_service import config
from acker_service.config import Config
from acker_service.core import members
from acker_service.core.outbox import OUTCOME_BYTES
from acker_service.core.shard import Shard
from acker_service.grpc import advertised
from acker_service.grpc.health_service import Health
from acker_service.grpc.servicer import SERVICE, Servicer
from acker_service.http.metrics import CONTENT_TYPE, Metrics
from acker_service.http.server import HttpServer, Page, text
from acker_service.locked_shard import SharedShard
from acker_service.process import logs
from acker_service.process.heap import Heap
from acker_service.process.logs import Log, RateLimit
from acker_service.process.signals import Signals
from acker_service.process.workers import Workers
from acker_service.state.state_file import StateDir, StateError
from acker_service.zookeeper.registry import Registry, RegistryError, ZooKeeper

TICK_S = 0.05
# How often the server checks whether freed memory should be returned to the system.
TRIM_S = 5.0
# If no tick came for this time, the server is stuck.
STUCK_S = 10.0
STOP_POLL_S = 0.02
# How often a draining server checks whether it has finished.
DRAIN_POLL_S = 0.1

# A client pings every 30 s, also between calls, so the server allows pings 10 s apart. (gRPC's default minimum is five
# minutes, and it closes connections with more frequent pings: "too many pings".) The server also pings silent clients.
KEEPALIVE_MS = 30_000
KEEPALIVE_TIMEOUT_MS = 10_000
PING_INTERVAL_MIN_MS = 10_000

# After so long the interpreter switches threads, so that the reply to a watch does not wait for a long decoding.
SWITCH_INTERVAL_S = 0.001

# Threads for calls that are neither reports nor watches, for example Settle and Stats.
OTHER_CALLS = 8
HEALTH_CALLS = 2

# How long a server tries to reach itself at its advertised address.
ADVERTISED_S = 10.0
# A server is not ready if the shard's lock is not free within ANSWER_S, or if a call has waited WAITED_S for a thread.
# Probes time out after a second.
ANSWER_S = 0.75
WAITED_S = 5.0
# A connection without a complete HTTP/2 handshake by then is closed.
HANDSHAKE_MS = 10_000

log = Log("acker.server")


class StartError(Exception):
    """The server cannot start; the text says what to do."""


class Server:
    """One acker server in this process. Call ``start`` once and ``stop`` once."""

    def __init__(self, options: Config, on_drained: Callable[[], object] = lambda: None) -> None:
        """Read the state, bind the ports and register, but answer no calls yet.

        ``on_drained``: called once when a drain is over, from a thread that :meth:`stop` waits for. Raises
        :class:`StartError` and :class:`StateError`.
        """
        self._options = options
        self._on_drained = on_drained
        _check_host(options.host)
        self._is_serving = False
        self._hurried = threading.Event()
        self._drain_lock = threading.Lock()
        self._workers: dict[str, Workers] = {}
        self._http: HttpServer | None = None
        self._registry: Registry | None = None
        self._listening: grpc.Server | None = None
        self._state_dir = _open_state_dir(options)
        try:
            opened = time.monotonic()
            self.shard = self._open_shard(opened)
            self._shared = SharedShard(
                self.shard,
                clock=time.monotonic,
                max_watches=options.max_watches,
                linger_s=options.linger_s,
                since=opened,
            )
            self._ticker = _Ticker("acker-tick", self._tick)
            self._overdue_lines = RateLimit(time.monotonic)
            # In a ticker of its own, since a tick waits for the shard's lock.
            self._relief = _Ticker("acker-relief", self._relieve_workers)
            self._heap = Heap()
            self._trimming = _Ticker("acker-heap", self._trim_heap, TRIM_S)
            self._draining = _Ticker("acker-drain", self._check_drain, DRAIN_POLL_S)
            self._drains_until: float | None = None
            self._is_drained = False
            self._metrics = Metrics(self._shared, self._overdue, self.view, self._is_connected)
            self._workers = {
                "apply": self._make_workers("apply", options.workers),
                "call": self._make_workers("call", OTHER_CALLS + options.max_watches),
                "health": self._make_workers("health", HEALTH_CALLS),
            }
            self._health = Health(self._workers["health"], self._not_ready_reason)
            self.servicer = self._make_servicer()
            self._grpc, self.address = self._bind()
            self._http = self._bind_http()
            self._ready_file = _ReadyFile(options.ready_file)
            self._ready_file.write(self._places | {"pid": os.getpid()})
            self._check_advertised()
            self._registry = self._register()
            # Comes last, when nothing can fail any more: after a failed start the next one finds the state.
            self._consume_state()
        except BaseException:
            self._close_all()
            raise
        self._is_stopped = False

    @property
    def http_address(self) -> str | None:
        return None if self._http is None else _address(self._options.host, self._http.port)

    @property
    def _places(self) -> dict[str, Any]:
        return {"address": self.address, "http_address": self.http_address, "version": VERSION}

    def start(self) -> None:
        """Start to answer calls, and publish the ready file."""
        self._ticker.start()
        self._relief.start()
        self._trimming.start()
        if self._http is not None:
            self._http.start()
        self._listen()
        self.servicer.answers_only = None
        self._is_serving = True
        self._health.set(True)
        stats = self._shared.stats
        log.info("ready", **self._places, pid=os.getpid(), pending=stats.pending, sources=stats.sources)
        try:
            self._ready_file.publish()
        except StartError:
            self.stop(0.0)
            raise

    def stop(self, grace_s: float | None = None) -> None:
        """Report NOT_SERVING, let calls under way finish for ``grace_s``, then write the state.

        A second call does nothing. Raises :class:`StateError`.
        """
        if self._is_stopped:
            return
        self._is_stopped = True
        if self._is_serving:
            self._stop_serving(self._options.grace_s if grace_s is None else grace_s)
        try:
            self._write_state()
        except BaseException:
            if self._registry is not None:
                self._registry.withdraw()
            raise
        finally:
            self._close_all()
        log.info("stopped")

    def drain(self) -> DrainReply:
        """Take no new batches and no new sources from now on.

        ``on_drained`` is called when the present ones have ended, or after ``drain_s``.
        """
        with self._drain_lock:
            is_first = not self._shared.is_draining
            reply = self._shared.drain()
            if is_first:
                self._drains_until = time.monotonic() + self._options.drain_s
                if self._registry is not None:
                    self._registry.drain()
                log.info("drain_began", left=reply.detail, drain_s=self._options.drain_s)
                self._draining.start()
        return reply

    def _check_drain(self) -> None:
        left = self._shared.left
        if self._drains_until is None or (left and time.monotonic() < self._drains_until):
            return
        self._drains_until, self._is_drained = None, True
        if left:
            log.warning("drained", left=left, drain_s=self._options.drain_s)
        else:
            log.info("drained")
        self._on_drained()

    def view(self) -> ViewReply:
        """Return the latest view of the servers; this server alone if there is no registry."""
        incarnation = self.shard.incarnation
        if self._registry is not None:
            return ViewReply(incarnation, *self._registry.view())
        member = Member(self._options.id or 0, self.shard.generation, self._options.advertise or self.address)
        state = MemberState.DRAINING if self._shared.is_draining else MemberState.ACTIVE
        return ViewReply(incarnation, 0, (ListedMember(member, state),))

    def hurry(self) -> None:
        """End the grace period of a stop now, and cancel the calls under way. The state is still written."""
        self._hurried.set()

    def _stop_serving(self, grace_s: float) -> None:
        self._is_serving = False
        self._health.set(False)
        log.info("stopping", grace_s=grace_s, watches=self._shared.watches)
        if self._registry is not None:
            will_be_back = self._state_dir is not None and not self._is_drained
            self._registry.leave(self._options.away_s if will_be_back else None)
        self._shared.stop_waiting()
        stopped = self._grpc.stop(grace_s)
        # Does not wait for streams of health checks, since these never end by themselves.
        while not stopped.wait(STOP_POLL_S) and self.servicer.calls_under_way and not self._hurried.is_set():
            pass
        self._grpc.stop(None).wait()
        for ticker in (self._ticker, self._relief, self._trimming, self._draining):
            ticker.stop()

    def _write_state(self) -> None:
        stats = self._shared.stats
        if self._state_dir is None:
            if stats.pending or stats.unconfirmed:
                reason = "no --state-dir: sources replay what was pending"
                had = {"pending": stats.pending, "unconfirmed": stats.unconfirmed, "sources": stats.sources}
                log.warning("state_lost", reason=reason, **had)
            return
        started = time.monotonic()
        # The dump holds the shard's lock, so it is closed even if writing fails.
        with contextlib.closing(self._shared.dump()) as parts:
            size = self._state_dir.write(parts)
        duration_s = round(time.monotonic() - started, 3)
        log.info("state_written", bytes=size, duration_s=duration_s, pending=stats.pending)

    def _close_all(self) -> None:
        if self._listening is not None:
            self._listening.stop(None).wait()
        if self._registry is not None:
            self._registry.close()
        if self._http is not None:
            self._http.stop()
        for workers in self._workers.values():
            workers.shutdown()
        if self._state_dir is not None:
            self._state_dir.close()

    def _open_shard(self, now: float) -> Shard:
        options = self._options
        incarnation = secrets.randbits(64) or 1
        limits: dict[str, Any] = {
            "max_pending": options.max_pending,
            "max_pending_per_source": options.max_pending_per_source,
            "sequence_window": options.sequence_window,
            "orphan_timeout_s": options.orphan_timeout_s,
            "memory_s": options.memory_s,
            "max_identity_bytes": options.max_identity_bytes,
            "max_lease_s": options.max_lease_s,
        }
        state = None if self._state_dir is None else self._state_dir.read()
        self._is_restored = state is not None
        if self._state_dir is None or state is None:
            return Shard(incarnation=incarnation, generation=secrets.randbits(64) or 1, version=VERSION, **limits)
        try:
            shard = Shard.restore(state, incarnation=incarnation, now=now, **limits)
        except ValueError as error:
            raise self._state_dir.refusal(f"is not a state of this version ({error})") from None
        return shard

    def _consume_state(self) -> None:
        if self._state_dir is None:
            return
        if self._state_dir.was_lost:
            reason = "the last server with this --state-dir ended without writing it: sources replay what was pending"
            log.warning("state_lost", reason=reason)
        self._state_dir.mark_serving()
        if self._is_restored:
            self._state_dir.consume()
            stats = self._shared.stats
            log.info("state_restored", pending=stats.pending, sources=stats.sources)

    def _listen(self) -> None:
        """Start the gRPC server, unless it is running."""
        if self._listening is None:
            self._grpc.start()
            self._listening = self._grpc

    def _check_advertised(self) -> None:
        """Check that the advertised address leads to this server. Raises :class:`StartError`.

        Only needed with a registry, which tells clients this address. Without one, clients have their own list.
        """
        options = self._options
        if options.zookeeper is None or options.advertise is None:
            return
        self.servicer.answers_only = greeting = f"itself {secrets.token_hex(16)}"
        self._listen()
        budget_s = 0.0 if options.advertise_unchecked else ADVERTISED_S
        try:
            advertised.check(options.advertise, self.shard.incarnation, greeting, budget_s)
        except advertised.Misdirected as trouble:
            if options.advertise_unchecked and not trouble.is_another:
                log.warning("advertise_unreachable", address=options.advertise, reason=str(trouble))
                return
            unchecked = f", or add {config.flag('advertise_unchecked')} if only this machine does not reach it there"
            raise StartError(
                f"{config.label('advertise')}: {trouble}, but clients would connect there: give the host:port at which "
                f"they reach this server, which listens on {self.address}{'' if trouble.is_another else unchecked}"
            ) from None

    def _register(self) -> Registry | None:
        options = self._options
        if options.zookeeper is None:
            return None
        host, _, port = (options.advertise or self.address).rpartition(":")
        shard = self.shard
        server = members.Registered(options.id or 0, host, int(port), VERSION, shard.generation, shard.incarnation)
        zookeeper = ZooKeeper(
            options.zookeeper,
            options.zookeeper_session_s,
            options.zookeeper_digest,
            options.zookeeper_ca,
            options.zookeeper_cert,
            options.zookeeper_key,
        )
        registry = Registry(zookeeper, server, on_taken=self.drain)
        try:
            registry.register()
        except RegistryError as error:
            raise StartError(f"{config.label('zookeeper')}: {error}") from None
        return registry

    def _make_servicer(self) -> Servicer:
        return Servicer(
            self._shared,
            hello=HelloReply(
                PROTOCOL_VERSION,
                VERSION,
                self.shard.incarnation,
                self._options.max_message_bytes,
                self._options.sequence_window,
                self._options.id or 0,
                self.shard.generation,
            ),
            view=self.view,
            epoch=lambda: 0 if self._registry is None else self._registry.epoch,
            drain=self.drain,
            values=self._metrics.values,
            observe=self._metrics.observe,
            reporters=self._workers["apply"],
            others=self._workers["call"],
        )

    def _make_workers(self, name: str, size: int) -> Workers:
        workers = Workers(name, size, receive_s=self._options.receive_s, clock=time.monotonic)
        self._metrics.watch_pool(workers)
        return workers

    def _bind(self) -> tuple[grpc.Server, str]:
        options = self._options
        # All calls have their own workers. Only reflection uses these threads.
        server = grpc.server(ThreadPoolExecutor(2, thread_name_prefix="acker-grpc"), options=_grpc_options(options))
        server.add_generic_rpc_handlers((self.servicer.handler(), self._health.handler()))
        if options.reflection:
            names = (SERVICE, grpc_health.SERVICE_NAME, reflection.SERVICE_NAME)
            reflection.enable_server_reflection(names, server)
        try:
            port = server.add_insecure_port(_address(options.host, options.port))
        except RuntimeError:
            raise _port_error("port", options.host, options.port) from None
        return server, _address(options.host, port)

    def _bind_http(self) -> HttpServer | None:
        port = self._options.http_port
        if port is None:
            return None
        pages = {"/metrics": self._metrics_page, "/livez": self._livez, "/readyz": self._readyz}
        try:
            return HttpServer(self._options.host, port, pages)
        except OSError:
            raise _port_error("http_port", self._options.host, port) from None

    def _tick(self) -> None:
        pauses = self._shared.pauses
        self._shared.tick()
        if self._shared.pauses > pauses:
            log.warning("paused", pauses=self._shared.pauses, paused_s=round(self._shared.paused_s, 3))

    def _overdue(self) -> int:
        return sum(workers.cancelled for workers in self._workers.values())

    def _is_connected(self) -> bool:
        return self._registry is not None and self._registry.is_connected

    def _relieve_workers(self) -> None:
        before = self._overdue()
        for workers in self._workers.values():
            workers.relieve()
        calls = self._overdue() - before
        left_out = self._overdue_lines.admit("calls_overdue") if calls else None
        if left_out is not None:
            # Callers only see CANCELLED, without a reason. A caller on a slow line needs a longer --receive-s.
            log.warning("calls_overdue", calls=calls, receive_s=self._options.receive_s, left_out=left_out)

    def _trim_heap(self) -> None:
        stats = self._shared.stats
        self._heap.note(stats.ledger_bytes + stats.identity_bytes + OUTCOME_BYTES * stats.unconfirmed)

    def _not_ready_reason(self) -> str:
        """Return why this server should get no calls now, or "". Waits up to ANSWER_S for the shard's lock."""
        if not self._is_serving:
            return "stopping"
        if self._shared.is_draining:
            return "draining"
        if not self._shared.answers(ANSWER_S):
            return f"the shard did not answer within {ANSWER_S} s"
        waited_s = max(workers.waited_s for workers in self._workers.values())
        return f"a call has waited for a thread for {waited_s:.1f} s" if waited_s > WAITED_S else ""

    def _metrics_page(self) -> Page:
        return HTTPStatus.OK, CONTENT_TYPE, self._metrics.render()

    def _livez(self) -> Page:
        # A stopping server has no ticks, and writing a large state may take long.
        silent_s = self._ticker.silent_s if self._is_serving else 0.0
        if silent_s > STUCK_S:
            return text(HTTPStatus.SERVICE_UNAVAILABLE, f"stuck: no tick for {silent_s:.1f} s")
        return text(HTTPStatus.OK, "ok")

    def _readyz(self) -> Page:
        trouble = self._not_ready_reason()
        return text(HTTPStatus.SERVICE_UNAVAILABLE, trouble) if trouble else text(HTTPStatus.OK, "ok")


class _Ticker:
    """A thread that calls ``tick`` every ``every_s`` seconds, measured from start to start."""

    def __init__(self, name: str, tick: Callable[[], None], every_s: float = TICK_S) -> None:
        self._tick, self._every_s = tick, every_s
        self._stop = threading.Event()
        self._ticked = time.monotonic()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def silent_s(self) -> float:
        return time.monotonic() - self._ticked

    def start(self) -> None:
        self._ticked = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            try:
                self._tick()
                self._ticked = time.monotonic()
            except Exception:
                log.exception("tick_failed")
            due = max(due + self._every_s, time.monotonic())


def run(options: Config, signals: Signals) -> int:
    """Serve until SIGTERM, SIGINT or the end of a drain. Returns the exit status: 0, or 1 if the state was not written.

    A second signal only ends the grace period; the state is still written. Raises :class:`StartError` or
    :class:`StateError` if the server cannot start.
    """
    logs.configure(sys.stderr, format=options.log_format, level=options.log_level)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    _raise_descriptors()
    server = Server(options, on_drained=signals.interrupt)
    # Loaded modules stay loaded, so the garbage collector need not scan them while calls wait.
    gc.freeze()
    server.start()
    _log_signal(signals.wait())
    threading.Thread(target=_hurry_on_signal, args=(signals, server), name="acker-signals", daemon=True).start()
    try:
        server.stop()
    except StateError as error:
        log.error("state_lost", error=str(error))  # noqa: TRY400  # no traceback, since a full disk is not a bug
        return 1
    finally:
        signals.ignore()
    return 0


def _hurry_on_signal(signals: Signals, server: Server) -> None:
    while True:
        sent = signals.wait()
        _log_signal(sent)
        if sent is not None:
            server.hurry()


def _log_signal(sent: signal.Signals | None) -> None:
    if sent is not None:
        log.info("signal", name=sent.name)


def _raise_descriptors() -> None:
    """Raise the limit of file descriptors, since each connection needs one and the default is often 1024."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _open_state_dir(options: Config) -> StateDir | None:
    if options.state_dir is None:
        return None
    state_dir = StateDir(options.state_dir)
    if options.discard_state:
        state_dir.discard()
    return state_dir


def _grpc_options(options: Config) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", options.max_message_bytes),
        ("grpc.max_send_message_length", -1),
        # A port in use must be an error, since two servers on one port would each get half of the calls.
        ("grpc.so_reuseport", 0),
        # Bound the calls per connection, and so the threads and memory it uses, and the number of connections.
        ("grpc.max_concurrent_streams", options.max_calls_per_connection),
        ("grpc.max_allowed_incoming_connections", options.max_connections),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
        ("grpc.keepalive_time_ms", KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", PING_INTERVAL_MIN_MS),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def _check_host(host: str) -> None:
    """Raise :class:`StartError` if this machine cannot listen on ``host``."""
    try:
        HttpServer(host, 0, {}).stop()
    except OSError as error:
        raise StartError(
            f"{config.label('host')}: {host}: {(error.strerror or str(error)).lower()}. "
            "Give an address or a name of this machine; 0.0.0.0 listens on all of its addresses"
        ) from None


def _port_error(name: str, host: str, port: int) -> StartError:
    """Return the error for a port that cannot be bound. gRPC gives no reason, so this tries to bind the port itself."""
    reason = "it cannot be bound"
    try:
        HttpServer(host, port, {}).stop()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
    return StartError(
        f"{config.label(name)}: {_address(host, port)}: {reason}. "
        f"Stop the process that uses the port, or choose another with {config.flag(name)} (0 takes a free one)"
    )


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


class _ReadyFile:
    """The file with the server's addresses. It is written under a temporary name before the state is consumed, and
    renamed once the server serves."""

    def __init__(self, name: str | None) -> None:
        self._path = None if name is None else Path(name)

    def write(self, fields: dict[str, Any]) -> None:
        """Write the file under its temporary name. Raises :class:`StartError`."""
        if self._path is not None:
            with self._naming_errors(self._path):
                self._temporary(self._path).write_text(json.dumps(fields) + "\n")

    def publish(self) -> None:
        """Rename the file to its final name. Raises :class:`StartError`."""
        if self._path is not None:
            with self._naming_errors(self._path):
                self._temporary(self._path).replace(self._path)

    @staticmethod
    def _temporary(path: Path) -> Path:
        return path.with_name(path.name + ".tmp")

    @contextlib.contextmanager
    def _naming_errors(self, path: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            with contextlib.suppress(OSError):
                self._temporary(path).unlink()
            raise StartError(
                f"--ready-file {path}: cannot be written ({error.strerror}); name a file in a writable directory"
            ) from None
