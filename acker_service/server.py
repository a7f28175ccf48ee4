"""Server: builds the parts, starts them, stops them in order.

Decides the order of start (state is consumed before the first call is answered) and of stop (health says NOT_SERVING
before anything else; the state is written when no call can change it any more), and gRPC's settings.
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
# How often freed memory is looked for.
TRIM_S = 5.0
# A ticker that has not ticked for so long is stuck, and the server with it.
STUCK_S = 10.0
STOP_POLL_S = 0.02
# How often a server that drains looks whether anything is left.
DRAIN_LOOK_S = 0.1

# A client pings every 30 s, also between calls; the server takes pings down to 10 s apart (gRPC's own minimum is five
# minutes: a client that pings oftener is sent away with "too many pings") and pings a silent connection itself.
KEEPALIVE_MS = 30_000
KEEPALIVE_TIMEOUT_MS = 10_000
PING_INTERVAL_MIN_MS = 10_000

# How soon a thread that waits for the interpreter gets it: the answer to a watch must not stand behind a decoding.
SWITCH_INTERVAL_S = 0.001

# Threads for calls that are neither reports nor watches: settlements, the figures.
OTHER_CALLS = 8
HEALTH_CALLS = 2

# How long a server tries to reach itself at the address that it advertises.
ADVERTISED_S = 10.0
# A server that has not got at its shard by then, or lets a call wait for longer, is not ready. Probes give it a second.
ANSWER_S = 0.75
WAITED_S = 5.0
# A connection that has not said which protocol it speaks by then is closed.
HANDSHAKE_MS = 10_000

log = Log("acker.server")


class StartError(Exception):
    """A server that cannot start; the text says what to do."""


class Server:
    """One acker server in this process. ``start`` it once, ``stop`` it once."""

    def __init__(self, options: Config, on_drained: Callable[[], object] = lambda: None) -> None:
        """Take the state and the ports; answers nothing yet. Raises :class:`StartError`, :class:`StateError`.

        ``on_drained``: called once when a drain is over, from a thread that :meth:`stop` waits for.
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
        self._state_dir = _claim(options)
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
            # Apart: a tick waits for the shard's lock.
            self._overdue_lines = RateLimit(time.monotonic)
            self._relief = _Ticker("acker-relief", self._relieve)
            self._heap = Heap()
            self._giving_back = _Ticker("acker-heap", self._give_back, TRIM_S)
            self._draining = _Ticker("acker-drain", self._look_for_end, DRAIN_LOOK_S)
            self._drains_until: float | None = None
            self._is_drained = False
            self._metrics = Metrics(self._shared, self._overdue, self.view, self._is_connected)
            self._workers = {
                "apply": self._make_workers("apply", options.workers),
                "call": self._make_workers("call", OTHER_CALLS + options.max_watches),
                "health": self._make_workers("health", HEALTH_CALLS),
            }
            self._health = Health(self._workers["health"], self._trouble)
            self.servicer = self._make_servicer()
            self._grpc, self.address = self._bind()
            self._http = self._bind_http()
            self._ready_file = _ReadyFile(options.ready_file)
            self._ready_file.write(self._places | {"pid": os.getpid()})
            self._check_advertised()
            self._registry = self._register()
            # Last, when nothing can fail any more: a start that fails leaves the state to the next one.
            self._consume_state()
        except BaseException:
            self._release()
            raise
        self._is_stopped = False

    @property
    def http_address(self) -> str | None:
        return None if self._http is None else _address(self._options.host, self._http.port)

    @property
    def _places(self) -> dict[str, Any]:
        return {"address": self.address, "http_address": self.http_address, "version": VERSION}

    def start(self) -> None:
        """Serve."""
        self._ticker.start()
        self._relief.start()
        self._giving_back.start()
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
        """Stop: health first, calls under way may finish, then the state is written. Raises :class:`StateError`.

        A second stop does nothing.
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
            self._release()
        log.info("stopped")

    def drain(self) -> DrainReply:
        """From now on take no new batches and no new sources; ``on_drained`` is called once nothing is left of those
        that are here, or after ``drain_s``."""
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

    def _look_for_end(self) -> None:
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
        """The servers there are, as this one saw them last; itself alone where it knows of no other."""
        incarnation = self.shard.incarnation
        if self._registry is not None:
            return ViewReply(incarnation, *self._registry.view())
        member = Member(self._options.id or 0, self.shard.generation, self._options.advertise or self.address)
        state = MemberState.DRAINING if self._shared.is_draining else MemberState.ACTIVE
        return ViewReply(incarnation, 0, (ListedMember(member, state),))

    def hurry(self) -> None:
        """Cut the grace of a stop short: calls under way are cancelled. The state is written all the same."""
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
        # Streams of health checks never end by themselves: they do not hold up a stop once the calls are answered.
        while not stopped.wait(STOP_POLL_S) and self.servicer.calls_under_way and not self._hurried.is_set():
            pass
        self._grpc.stop(None).wait()
        for ticker in (self._ticker, self._relief, self._giving_back, self._draining):
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
        # Closed also where the writing fails: it holds the shard's lock.
        with contextlib.closing(self._shared.dump()) as parts:
            size = self._state_dir.write(parts)
        duration_s = round(time.monotonic() - started, 3)
        log.info("state_written", bytes=size, duration_s=duration_s, pending=stats.pending)

    def _release(self) -> None:
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
        """Take calls, if that is not so yet."""
        if self._listening is None:
            self._grpc.start()
            self._listening = self._grpc

    def _check_advertised(self) -> None:
        """See that clients whom the registry sends to this server reach it. Raises :class:`StartError`.

        Without a registry nobody is sent anywhere: clients have a list of their own.
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
                f"{config.label('advertise')}: {trouble}, and clients would be sent there: give the host:port at which "
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
        # Every call has workers of its own; these threads are left with reflection.
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

    def _relieve(self) -> None:
        before = self._overdue()
        for workers in self._workers.values():
            workers.relieve()
        calls = self._overdue() - before
        left_out = self._overdue_lines.admit("calls_overdue") if calls else None
        if left_out is not None:
            # Their callers see CANCELLED, which says nothing; an honest one on a slow line needs a longer --receive-s.
            log.warning("calls_overdue", calls=calls, receive_s=self._options.receive_s, left_out=left_out)

    def _give_back(self) -> None:
        stats = self._shared.stats
        self._heap.note(stats.ledger_bytes + stats.identity_bytes + OUTCOME_BYTES * stats.unconfirmed)

    def _trouble(self) -> str:
        """Why no call should be sent here now, or nothing. Asks the shard, and waits for it for a moment."""
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
        # While it stops there are no ticks: to write a large state takes as long as it takes.
        silent_s = self._ticker.silent_s if self._is_serving else 0.0
        if silent_s > STUCK_S:
            return text(HTTPStatus.SERVICE_UNAVAILABLE, f"stuck: no tick for {silent_s:.1f} s")
        return text(HTTPStatus.OK, "ok")

    def _readyz(self) -> Page:
        trouble = self._trouble()
        return text(HTTPStatus.SERVICE_UNAVAILABLE, trouble) if trouble else text(HTTPStatus.OK, "ok")


class _Ticker:
    """Calls ``tick`` every so many seconds by the clock, whatever a tick takes."""

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
    """Serve until SIGTERM, SIGINT or the end of a drain and return the exit status: 0, or 1 when the state could not be
    written.

    Raises :class:`StartError` or :class:`StateError` when it cannot start. A second signal cuts the grace short, and
    nothing else: the state is written all the same.
    """
    logs.configure(sys.stderr, format=options.log_format, level=options.log_level)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    _raise_descriptors()
    server = Server(options, on_drained=signals.interrupt)
    # What has been loaded stays; the collector need not look at it again and again while calls wait.
    gc.freeze()
    server.start()
    _log_signal(signals.wait())
    threading.Thread(target=_hurry, args=(signals, server), name="acker-signals", daemon=True).start()
    try:
        server.stop()
    except StateError as error:
        log.error("state_lost", error=str(error))  # noqa: TRY400  # a full disk is no bug: no traceback
        return 1
    finally:
        signals.ignore()
    return 0


def _hurry(signals: Signals, server: Server) -> None:
    while True:
        sent = signals.wait()
        _log_signal(sent)
        if sent is not None:
            server.hurry()


def _log_signal(sent: signal.Signals | None) -> None:
    if sent is not None:
        log.info("signal", name=sent.name)


def _raise_descriptors() -> None:
    """As many descriptors as this process may have: a connection takes one, and systems begin with 1024."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _claim(options: Config) -> StateDir | None:
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
        # Two servers on one port would each see half of the calls: a port in use has to be an error.
        ("grpc.so_reuseport", 0),
        # What one connection may take of the threads and of the memory for requests, and how many there may be.
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
    """Raise :class:`StartError` where nothing can listen on ``host``, whatever the port."""
    try:
        HttpServer(host, 0, {}).stop()
    except OSError as error:
        raise StartError(
            f"{config.label('host')}: {host}: {(error.strerror or str(error)).lower()}. "
            "Give an address or a name of this machine; 0.0.0.0 listens on all of its addresses"
        ) from None


def _port_error(name: str, host: str, port: int) -> StartError:
    """Why a port cannot be had: gRPC does not say, so ask the system."""
    reason = "it cannot be bound"
    try:
        HttpServer(host, port, {}).stop()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
    return StartError(
        f"{config.label(name)}: {_address(host, port)}: {reason}. "
        f"Stop whoever has the port, or choose another with {config.flag(name)} (0 takes a free one)"
    )


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


class _ReadyFile:
    """The file that says where this server serves: written before the state is consumed, in its place once it does."""

    def __init__(self, name: str | None) -> None:
        self._path = None if name is None else Path(name)

    def write(self, fields: dict[str, Any]) -> None:
        """Beside its place. Raises :class:`StartError`."""
        if self._path is not None:
            with self._complaining(self._path):
                self._beside(self._path).write_text(json.dumps(fields) + "\n")

    def publish(self) -> None:
        """Into its place. Raises :class:`StartError`."""
        if self._path is not None:
            with self._complaining(self._path):
                self._beside(self._path).replace(self._path)

    @staticmethod
    def _beside(path: Path) -> Path:
        return path.with_name(path.name + ".tmp")

    @contextlib.contextmanager
    def _complaining(self, path: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            with contextlib.suppress(OSError):
                self._beside(path).unlink()
            raise StartError(
                f"--ready-file {path}: cannot be written ({error.strerror}); name a file in a directory that can be"
            ) from None
