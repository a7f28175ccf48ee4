"""Server: builds the parts, starts them, stops them in order.

Decides the order of start (state is consumed before the first call is answered) and of stop (health says NOT_SERVING
before anything else; the state is written when no call can change it any more), and gRPC's settings.
"""

from __future__ import annotations

import gc
import json
import os
import secrets
import signal
import socket
import sys
import threading
import time
from http import HTTPStatus
from pathlib import Path
from types import FrameType
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from acker_protocol.version import VERSION
from acker_service import config, logs
from acker_service.config import Config
from acker_service.http import HttpDoor, Page, text
from acker_service.logs import Log
from acker_service.membership import Member, StaticMembership
from acker_service.metrics import CONTENT_TYPE, Metrics
from acker_service.pool import Pool
from acker_service.servicer import SERVICE, Servicer
from acker_service.shard import Shard
from acker_service.shared import SharedShard
from acker_service.state_file import StateDir, StateError

TICK_S = 0.05
# A ticker that has not ticked for so long is stuck, and the server with it.
STUCK_S = 10.0
DRAIN_POLL_S = 0.02

# A client pings every 30 s, also between calls; the server takes pings down to 10 s apart (gRPC's own minimum is five
# minutes: a client that pings oftener is sent away with "too many pings") and pings a silent connection itself.
KEEPALIVE_MS = 30_000
KEEPALIVE_TIMEOUT_MS = 10_000
PING_INTERVAL_MIN_MS = 10_000

# How soon a thread that waits for the interpreter gets it: the answer to a watch must not stand behind a decoding.
SWITCH_INTERVAL_S = 0.001

# Threads for calls that are neither reports nor watches: health, settlements, the figures.
OTHER_CALLS = 8

log = Log("acker.server")


class StartError(Exception):
    """A server that cannot start; the text says what to do."""


class Server:
    """One acker server in this process. ``start`` it once, ``stop`` it once."""

    def __init__(self, options: Config) -> None:
        """Take the state and the ports; answers nothing yet. Raises :class:`StartError`, :class:`StateError`."""
        self._options = options
        self._state_dir = _claim(options)
        try:
            self.shard = self._open_shard()
            self._shared = SharedShard(
                self.shard, clock=time.monotonic, max_watches=options.max_watches, linger_s=options.linger_s
            )
            self._metrics = Metrics(self._shared)
            self._health = health.HealthServicer()
            self.servicer = self._make_servicer()
            self._grpc, self.address = self._bind()
            self._http = self._bind_http()
            # Last, when nothing can fail any more: a start that fails leaves the state to the next one.
            self._consume_state()
        except BaseException:
            self._release()
            raise
        self._ticker = _Ticker(self._shared)
        self._is_serving = False
        self._is_stopped = False

    @property
    def http_address(self) -> str | None:
        return None if self._http is None else _address(self._options.host, self._http.port)

    def start(self) -> None:
        """Serve."""
        self._ticker.start()
        if self._http is not None:
            self._http.start()
        self._grpc.start()
        self._set_health(health_pb2.HealthCheckResponse.SERVING)
        self._is_serving = True
        stats = self._shared.stats
        fields = {"address": self.address, "http_address": self.http_address, "version": VERSION}
        log.info("ready", **fields, pid=os.getpid(), pending=stats.pending, sources=stats.sources)
        if self._options.ready_file is not None:
            self._tell_ready(Path(self._options.ready_file), {**fields, "pid": os.getpid()})

    def _tell_ready(self, path: Path, fields: dict[str, Any]) -> None:
        try:
            _write_ready_file(path, fields)
        except OSError as error:
            self.stop(0.0)
            raise StartError(
                f"--ready-file {path}: cannot be written ({error.strerror}); name a file in a directory that can be"
            ) from error

    def stop(self, grace_s: float | None = None) -> None:
        """Stop: health first, calls under way may finish, then the state is written. Raises :class:`StateError`.

        A second stop does nothing.
        """
        if self._is_stopped:
            return
        self._is_stopped = True
        if self._is_serving:
            self._drain(self._options.grace_s if grace_s is None else grace_s)
        try:
            self._write_state()
        finally:
            self._release()
        log.info("stopped")

    def _drain(self, grace_s: float) -> None:
        self._is_serving = False
        self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        log.info("stopping", grace_s=grace_s, watches=self._shared.watches)
        self._shared.stop_waiting()
        stopped = self._grpc.stop(grace_s)
        # Streams of health checks never end by themselves: they do not hold up a stop once the calls are answered.
        while not stopped.wait(DRAIN_POLL_S) and self.servicer.calls_under_way:
            pass
        self._grpc.stop(None).wait()
        self._ticker.stop()
        if self._http is not None:
            self._http.stop()

    def _write_state(self) -> None:
        stats = self._shared.stats
        if self._state_dir is None:
            if stats.pending or stats.unconfirmed:
                reason = "no --state-dir: sources replay what was pending"
                had = {"pending": stats.pending, "unconfirmed": stats.unconfirmed, "sources": stats.sources}
                log.warning("state_lost", reason=reason, **had)
            return
        started = time.monotonic()
        try:
            size = self._state_dir.write(self._shared.dump())
        except OSError as error:
            raise StateError(
                f"--state-dir {self._options.state_dir}: the state could not be written ({error.strerror}); "
                "after the next start sources replay what was pending"
            ) from error
        duration_s = round(time.monotonic() - started, 3)
        log.info("state_written", bytes=size, duration_s=duration_s, pending=stats.pending)

    def _release(self) -> None:
        if self._state_dir is not None:
            self._state_dir.close()

    def _open_shard(self) -> Shard:
        options = self._options
        me = Member(id=0, incarnation=secrets.randbits(64) or 1, address=f"{options.host}:{options.port}")
        self.membership = StaticMembership(me)
        limits: dict[str, Any] = {
            "max_pending": options.max_pending,
            "max_pending_per_source": options.max_pending_per_source,
            "sequence_window": options.sequence_window,
            "orphan_timeout_s": options.orphan_timeout_s,
            "memory_s": options.memory_s,
            "max_lease_s": options.max_lease_s,
        }
        state = None if self._state_dir is None else self._state_dir.read()
        self._is_restored = state is not None
        if self._state_dir is None or state is None:
            return Shard(incarnation=me.incarnation, generation=secrets.randbits(64) or 1, version=VERSION, **limits)
        try:
            shard = Shard.restore(state, incarnation=me.incarnation, now=time.monotonic(), **limits)
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

    def _make_servicer(self) -> Servicer:
        return Servicer(
            self._shared,
            incarnation=self.shard.incarnation,
            max_message_bytes=self._options.max_message_bytes,
            sequence_window=self._options.sequence_window,
            values=self._metrics.values,
            observe=self._metrics.observe,
            workers=self._pool("apply", self._options.workers),
        )

    def _pool(self, name: str, threads: int) -> Pool:
        pool = Pool(name, threads)
        self._metrics.watch_pool(pool)
        return pool

    def _bind(self) -> tuple[grpc.Server, str]:
        options = self._options
        pool = self._pool("call", OTHER_CALLS + options.max_watches)
        server = grpc.server(pool, options=_grpc_options(options))
        server.add_generic_rpc_handlers((self.servicer.handler(),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        if options.reflection:
            names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
            reflection.enable_server_reflection(names, server)
        try:
            port = server.add_insecure_port(_address(options.host, options.port))
        except RuntimeError:
            raise _port_error("port", options.host, options.port) from None
        return server, _address(options.host, port)

    def _bind_http(self) -> HttpDoor | None:
        port = self._options.http_port
        if port is None:
            return None
        pages = {"/metrics": self._metrics_page, "/livez": self._livez, "/readyz": self._readyz}
        try:
            return HttpDoor(self._options.host, port, pages)
        except OSError:
            raise _port_error("http_port", self._options.host, port) from None

    def _set_health(self, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        for name in ("", SERVICE):
            self._health.set(name, status)

    def _metrics_page(self) -> Page:
        return HTTPStatus.OK, CONTENT_TYPE, self._metrics.render()

    def _livez(self) -> Page:
        silent_s = self._ticker.silent_s
        if silent_s > STUCK_S:
            return text(HTTPStatus.SERVICE_UNAVAILABLE, f"stuck: no tick for {silent_s:.1f} s")
        return text(HTTPStatus.OK, "ok")

    def _readyz(self) -> Page:
        if self._is_serving:
            return text(HTTPStatus.OK, "ok")
        return text(HTTPStatus.SERVICE_UNAVAILABLE, "stopping")


class _Ticker:
    """Lets time pass for the shard, every TICK_S by the clock whatever a tick takes."""

    def __init__(self, shared: SharedShard) -> None:
        self._shared = shared
        self._stop = threading.Event()
        self._ticked = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="acker-tick", daemon=True)

    @property
    def silent_s(self) -> float:
        return time.monotonic() - self._ticked

    def start(self) -> None:
        self._ticked = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            try:
                self._shared.tick()
                self._ticked = time.monotonic()
            except Exception:
                log.exception("tick_failed")
            due = max(due + TICK_S, time.monotonic())


def run(options: Config) -> int:
    """Serve until SIGTERM or SIGINT and return the exit status: 0, or 1 when the state could not be written.

    Raises :class:`StartError` or :class:`StateError` when it cannot start. A second signal cuts the grace short.
    """
    logs.configure(sys.stderr, format=options.log_format, level=options.log_level)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    asked = threading.Event()

    def ask(number: int, frame: FrameType | None) -> None:
        log.info("signal", name=signal.Signals(number).name)
        if asked.is_set():
            raise SystemExit(1)
        asked.set()

    signal.signal(signal.SIGTERM, ask)
    signal.signal(signal.SIGINT, ask)
    server = Server(options)
    # What has been loaded stays; the collector need not look at it again and again while calls wait.
    gc.freeze()
    server.start()
    asked.wait()
    try:
        server.stop()
    except StateError as error:
        log.error("state_lost", error=str(error))
        return 1
    return 0


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
        ("grpc.keepalive_time_ms", KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", PING_INTERVAL_MIN_MS),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def _port_error(name: str, host: str, port: int) -> StartError:
    """Why a port cannot be had: gRPC does not say, so ask the system."""
    reason = "it cannot be bound"
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
            probe.listen()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
    return StartError(
        f"{config.label(name)}: {_address(host, port)}: {reason}. "
        f"Stop whoever has the port, choose another with {config.flag(name)} (0 takes a free one), or correct --host"
    )


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def _write_ready_file(path: Path, fields: dict[str, Any]) -> None:
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(fields) + "\n")
    temporary.replace(path)
