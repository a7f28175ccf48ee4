"""Server: builds the parts of a server, and starts and stops them in order.

Decides the order of the start (the state is consumed before the first call is answered) and of the stop (health reports
NOT_SERVING first, and the state is written once no call can change it). Everything else is decided by the parts.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

from acker_protocol.messages import PROTOCOL_VERSION, DrainReply, HelloReply, ListedMember, MemberState, ViewReply
from acker_protocol.placement import Member
from acker_protocol.version import VERSION
from acker_service import config
from acker_service.access.access import Access
from acker_service.access.certificates import CertificateError, Certificates
from acker_service.access.tokens import Tokens, TokensError
from acker_service.config import Config
from acker_service.core import members
from acker_service.draining import Drain
from acker_service.grpc import advertised, listener
from acker_service.grpc.credentials import own_credentials, server_credentials
from acker_service.grpc.health_service import Health
from acker_service.grpc.servicer import Servicer, connection_of
from acker_service.http.metrics import CONTENT_TYPE, Metrics
from acker_service.http.probes import Probes
from acker_service.http.server import HttpServer, Page, text
from acker_service.namespaces import Namespaces
from acker_service.ports import StartError, address, check_host, port_error
from acker_service.process.heap import Heap
from acker_service.process.logs import LineLimit, Log, RateLimit
from acker_service.process.replies import Replies
from acker_service.process.signals import Signals
from acker_service.process.ticker import Ticker
from acker_service.process.workers import Workers
from acker_service.ready_file import ReadyFile
from acker_service.state.saved_state import SavedState
from acker_service.state.state_file import StateError
from acker_service.zookeeper.cluster_config import RegistryError
from acker_service.zookeeper.nodes import ZooKeeper
from acker_service.zookeeper.registry import Registry

if TYPE_CHECKING:
    from acker_service.access.own_access import OwnAccess

TICK_S = 0.05
# How often the server checks whether freed memory should be returned to the system.
TRIM_S = 5.0
# How long a stop lets gRPC send the last replies.
SENDING_S = 0.2
STOP_POLL_S = 0.02

# The interpreter switches threads after this time, so that the reply to a watch does not wait for a long decoding.
SWITCH_INTERVAL_S = 0.001

# Threads for calls that are neither reports nor watches, for example Settle and Stats.
OTHER_CALLS = 8
HEALTH_CALLS = 2

# How long a server tries to reach itself at its advertised address.
ADVERTISED_S = 10.0

log = Log("acker.server")


class Server:
    """One acker server in this process. Call ``start`` once and ``stop`` once."""

    def __init__(
        self,
        options: Config,
        on_drained: Callable[[], object] = lambda: None,
        left_out: Callable[[], int] = lambda: 0,
    ) -> None:
        """Read the state, bind the ports and register, but answer no calls yet.

        ``on_drained``: called once when a drain is over, from a thread that :meth:`stop` waits for. ``left_out``:
        returns how many log lines were left out. Raises :class:`StartError` and :class:`StateError`.
        """
        check_host(options.host)
        self._own, self._options = _own_access(options)
        options = self._options
        self._hurried = threading.Event()
        self._workers: dict[str, Workers] = {}
        self._http: HttpServer | None = None
        self._registry: Registry | None = None
        self._listening: grpc.Server | None = None
        self._saved = SavedState(options)
        try:
            opened = time.monotonic()
            self.namespaces = Namespaces(self._saved.open_shards(opened), options, time.monotonic, since=opened)
            # The shard of callers without a namespace. Its generation names the whole server's state.
            self.shard = self.namespaces.default.shared.shard
            self._ticker = Ticker("acker-tick", self._tick, TICK_S)
            self._overdue_lines = RateLimit(time.monotonic)
            # In a ticker of its own, since a tick waits for the shard's lock.
            self._relief = Ticker("acker-relief", self._relieve_workers, TICK_S)
            self._heap = Heap()
            self._trimming = Ticker("acker-heap", self._trim_heap, TRIM_S)
            self._draining = Drain(self.namespaces, options.drain_s, on_drained)
            self._replies = Replies(send_s=options.send_s, max_bytes=options.max_unread_bytes, clock=time.monotonic)
            self._metrics = Metrics(
                self.namespaces,
                self._overdue,
                self.view,
                self._is_connected,
                self._disconnected,
                left_out,
                lambda: self._replies.cut,
                lambda: self._replies.unread_bytes,
            )
            self._workers = {
                "apply": self._make_workers("apply", options.workers),
                "call": self._make_workers("call", OTHER_CALLS + options.max_watches, is_shared=True),
                "health": self._make_workers("health", HEALTH_CALLS),
            }
            self._probes = Probes(self.namespaces, tuple(self._workers.values()), self._ticker)
            self._certificates = self._read_certificates()
            self._access = self._read_tokens()
            self._health = Health(self._workers["health"], self._probes.not_ready_reason)
            self.servicer = self._make_servicer()
            self._grpc, self.address = self._bind()
            self._http = self._bind_http()
            self._ready_file = ReadyFile(options.ready_file)
            self._ready_file.write(self._places | {"pid": os.getpid()})
            self._check_advertised()
            self._registry = self._register()
            # Must come last, when nothing can fail any more: after a failed start, the next start finds the state.
            self._saved.consume(self.namespaces)
        except BaseException:
            self._close_all()
            raise
        self._is_stopped = False

    @property
    def http_address(self) -> str | None:
        return None if self._http is None else address(self._options.host, self._http.port)

    @property
    def _places(self) -> dict[str, Any]:
        return {
            "address": self.address,
            "http_address": self.http_address,
            "tls": self._certificates is not None,
            "http_tls": self._http_certificates is not None,
            "version": VERSION,
        }

    @property
    def _advertised(self) -> str:
        """The address at which clients reach this server."""
        given = self._options.advertise or self.address
        return given if not given.endswith(":0") else given[:-1] + self.address.rpartition(":")[2]

    @property
    def _http_certificates(self) -> Certificates | None:
        # Only clients with the server's access file could verify a certificate that the server has made itself.
        return self._certificates if self._own is None else None

    def start(self) -> None:
        """Start to answer calls, and publish the ready file. Raises :class:`StartError`; the state is then kept."""
        try:
            self._start()
        except RuntimeError as error:
            self.stop(0.0)
            raise _no_threads(error) from None
        except StartError:
            self.stop(0.0)
            raise

    def _start(self) -> None:
        # First all threads without which calls would wait for ever. A stop starts none, so it always ends.
        for workers in self._workers.values():
            workers.start()
        self._ticker.start()
        self._relief.start()
        self._trimming.start()
        if self._http is not None:
            self._http.start()
        self._listen()
        self.servicer.answers_only = None
        self._probes.is_serving = True
        self._health.set(True)
        stats = self.namespaces.stats
        log.info("ready", **self._places, pid=os.getpid(), pending=stats.pending, sources=stats.sources)
        self._publish_access()
        self._ready_file.publish()

    def _publish_access(self) -> None:
        if self._own is not None:
            try:
                self._own.publish(self._advertised, self.address, self.http_address)
            except OSError as error:
                raise StartError(f"{config.label('own_access')}: {error}") from None

    def stop(self, grace_s: float | None = None) -> None:
        """Report NOT_SERVING, let calls under way finish for ``grace_s``, then write the state.

        A second call does nothing. Raises :class:`StateError`.
        """
        if self._is_stopped:
            return
        self._is_stopped = True
        if self._listening is not None:
            self._stop_serving(self._options.grace_s if grace_s is None else grace_s)
        for ticker in (self._ticker, self._relief, self._trimming):
            ticker.stop()
        try:
            self._saved.write(self.namespaces)
        except BaseException:
            if self._registry is not None:
                self._registry.withdraw()
            raise
        finally:
            self._close_all()
        log.info("stopped")

    def stay_drained(self, until: threading.Event) -> None:
        """Only answer probes, as a live server that is not ready, until the event is set. Call it after :meth:`stop`.

        Raises :class:`StartError` if the port is taken.
        """
        http: HttpServer | None = None
        if self._http is not None:
            pages: dict[str, Callable[[], Page]] = {
                "/livez": lambda: text(HTTPStatus.OK, "ok"),
                "/readyz": lambda: text(HTTPStatus.SERVICE_UNAVAILABLE, "drained"),
                # Without it, the server would count as down.
                "/metrics": lambda: (HTTPStatus.OK, CONTENT_TYPE, b""),
            }
            host, port = self._options.host, self._http.port
            try:
                http = HttpServer(host, port, pages, certificates=self._http_certificates)
            except OSError:
                raise port_error("http_port", host, port) from None
            http.start()
        log.info("stays_drained", http_address=self.http_address)
        until.wait()
        if http is not None:
            http.stop()

    def drain(self) -> DrainReply:
        """Take no new batches and no new sources from now on.

        ``on_drained`` is called when the present batches and sources have ended, or after ``drain_s``.
        """
        return self._draining.begin(announce=self._list_as_draining)

    def _list_as_draining(self) -> None:
        if self._registry is not None:
            self._registry.drain()

    def view(self) -> ViewReply:
        """Return the latest view of the servers; this server alone if there is no registry."""
        incarnation = self.shard.incarnation
        if self._registry is not None:
            return ViewReply(incarnation, *self._registry.view())
        member = Member(self._options.id or 0, self.shard.generation, self._advertised)
        state = MemberState.DRAINING if self.namespaces.is_draining else MemberState.ACTIVE
        return ViewReply(incarnation, 0, (ListedMember(member, state),))

    def hurry(self) -> None:
        """End the grace period of a stop now, and cancel the calls under way. The state is still written."""
        self._hurried.set()

    def _stop_serving(self, grace_s: float) -> None:
        self._probes.is_serving = False
        self._health.set(False)
        log.info("stopping", grace_s=grace_s, watches=self.namespaces.watches)
        if self._registry is not None:
            # A drain removes a server, also if it ends early.
            will_be_back = self._saved.is_kept and not self.namespaces.is_draining
            self._registry.leave(self._options.away_s if will_be_back else None)
        self.namespaces.stop_waiting()
        until = time.monotonic() + grace_s
        # gRPC takes no new calls, and then starts a thread that would end the calls after the grace period.
        with contextlib.suppress(RuntimeError):
            self._grpc.stop(grace_s)
        # Does not wait for streams of health checks, since these never end by themselves.
        while self.servicer.calls_under_way and time.monotonic() < until and not self._hurried.wait(STOP_POLL_S):
            pass
        # A call is over before gRPC has sent its reply.
        sending_s = min(SENDING_S, until - time.monotonic())
        if sending_s > 0 and not self._hurried.is_set():
            with contextlib.suppress(RuntimeError):
                self._grpc.stop(sending_s).wait()
        self._grpc.stop(None).wait()

    def _close_all(self) -> None:
        if self._listening is not None:
            self._listening.stop(None).wait()
        if self._registry is not None:
            self._registry.close()
        if self._http is not None:
            self._http.stop()
        for workers in self._workers.values():
            workers.shutdown()
        self._saved.close()

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
            own = None if self._certificates is None else own_credentials(self._certificates)
            advertised.check(self._advertised, self.shard.incarnation, greeting, budget_s, own)
        except advertised.Misdirected as trouble:
            if options.advertise_unchecked and not trouble.is_another:
                log.warning("advertise_unreachable", address=self._advertised, reason=str(trouble))
                return
            unchecked = f", or add {config.flag('advertise_unchecked')} if only this machine does not reach it there"
            as_caller = (
                f". With {config.flag('tls_client_ca')} the server shows {config.flag('tls_cert')} as its own caller: "
                "take a certificate for callers too, from one of these CAs"
            )
            more = "" if trouble.is_another else unchecked + (as_caller if options.tls_client_ca is not None else "")
            raise StartError(
                f"{config.label('advertise')}: {trouble}, but clients would connect there: give the host:port at which "
                f"they reach this server, which listens on {self.address}{more}"
            ) from None

    def _register(self) -> Registry | None:
        options = self._options
        if options.zookeeper is None:
            return None
        host, _, port = self._advertised.rpartition(":")
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

    def _read_certificates(self) -> Certificates | None:
        options = self._options
        if options.tls_cert is None or options.tls_key is None:
            return None
        try:
            return Certificates(options.tls_cert, options.tls_key, options.tls_client_ca)
        except CertificateError as error:
            raise StartError(f"{config.label('tls_cert')}: {error}") from None

    def _read_tokens(self) -> Access:
        path = self._options.tokens
        try:
            tokens = None if path is None else Tokens(path, time.monotonic, self.namespaces.set_quotas)
            return Access(tokens, time.monotonic)
        except TokensError as error:
            raise StartError(f"{config.label('tokens')}: {error}") from None

    def _make_servicer(self) -> Servicer:
        return Servicer(
            self.namespaces,
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
            replies=self._replies,
            access=self._access,
        )

    def _make_workers(self, name: str, size: int, *, is_shared: bool = False) -> Workers:
        workers = Workers(
            name,
            size,
            receive_s=self._options.receive_s,
            clock=time.monotonic,
            connection_of=connection_of,
            is_shared=is_shared,
        )
        self._metrics.watch_pool(workers)
        return workers

    def _bind(self) -> tuple[grpc.Server, str]:
        options = self._options
        server = listener.new_server(options, (self.servicer.handler(), self._health.handler()), self._access)
        place = address(options.host, options.port)
        try:
            if self._certificates is None:
                port = server.add_insecure_port(place)
            else:
                port = server.add_secure_port(place, server_credentials(self._certificates))
        except RuntimeError:
            raise port_error("port", options.host, options.port) from None
        return server, address(options.host, port)

    def _bind_http(self) -> HttpServer | None:
        port = self._options.http_port
        if port is None:
            return None
        pages = {"/metrics": self._metrics_page, "/livez": self._probes.livez, "/readyz": self._probes.readyz}
        try:
            access = self._access if self._own is None else None
            return HttpServer(self._options.host, port, pages, certificates=self._http_certificates, access=access)
        except OSError:
            raise port_error("http_port", self._options.host, port) from None

    def _tick(self) -> None:
        pauses = self.namespaces.pauses
        try:
            self.namespaces.tick()
        finally:
            self._draining.check()
        if self.namespaces.pauses > pauses:
            log.warning("paused", pauses=self.namespaces.pauses, paused_s=round(self.namespaces.paused_s, 3))

    def _overdue(self) -> int:
        return sum(workers.cancelled for workers in self._workers.values())

    def _disconnected(self) -> int:
        return 0 if self._http is None else self._http.disconnected

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
        before = self._replies.cut
        self._replies.relieve()
        replies = self._replies.cut - before
        left_out = self._overdue_lines.admit("replies_cut") if replies else None
        if left_out is not None:
            # Callers see CANCELLED. A caller on a slow line needs a longer --send-s.
            log.warning("replies_cut", replies=replies, send_s=self._options.send_s, left_out=left_out)

    def _trim_heap(self) -> None:
        self._heap.note(sum(self.namespaces.stats.memory.values()))

    def _metrics_page(self) -> Page:
        return HTTPStatus.OK, CONTENT_TYPE, self._metrics.render()


def run(options: Config, signals: Signals, lines: LineLimit) -> int:
    """Serve until SIGTERM, SIGINT or, without ``stay_drained``, the end of a drain. ``lines``: the limit of the log's
    lines. Returns the exit status: 0, or 1 if the state was not written.

    A second signal only ends the grace period; the state is still written. Raises :class:`StartError` or
    :class:`StateError` if the server cannot start, or if its port for HTTP is taken after a drain.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    _raise_descriptors()
    # Must start before the state is read, because a stop must not need a new thread.
    stopping: Future[Server] = Future()
    signalled = threading.Event()
    try:
        threading.Thread(
            target=_hurry_on_signal, args=(signals, stopping, signalled), name="acker-signals", daemon=True
        ).start()
    except RuntimeError as error:
        raise _no_threads(error) from None
    server = Server(options, on_drained=signals.interrupt, left_out=lambda: lines.left_out)
    # Loaded modules stay loaded, so the garbage collector need not scan them while calls wait.
    gc.freeze()
    server.start()
    sent = signals.wait()
    _log_signal(sent)
    stopping.set_result(server)
    status = 0
    try:
        try:
            server.stop()
        except (StateError, MemoryError) as error:
            # No traceback, since neither a full disk nor a lack of memory is a bug.
            log.error("state_lost", error=str(error) or "no memory")  # noqa: TRY400
            status = 1
        if sent is None and options.stay_drained:
            server.stay_drained(signalled)
    finally:
        signals.ignore()
    return status


def _own_access(options: Config) -> tuple[OwnAccess | None, Config]:
    """Return the server's own access if it is to have one, and the options with its files. Raises
    :class:`StartError`."""
    if options.own_access is None:
        return None, options
    # Not at the top: few servers need it, and it takes long to import.
    from acker_service.access import own_access

    hosts = {options.host, (options.advertise or "").rpartition(":")[0]} - {""}
    names = [host.strip("[]") for host in hosts if not config.is_everywhere(host)]
    try:
        own = own_access.prepare(Path(options.own_access), names)
    except OSError as error:
        raise StartError(f"{config.label('own_access')}: {error}") from None
    return own, replace(options, own_access=None, tls_cert=own.certificate, tls_key=own.key, tokens=own.tokens)


def _hurry_on_signal(signals: Signals, stopping: Future[Server], signalled: threading.Event) -> None:
    """End the grace period of the server that stops, at each signal from then on, and set ``signalled``."""
    server = stopping.result()
    while True:
        sent = signals.wait()
        _log_signal(sent)
        if sent is not None:
            server.hurry()
            signalled.set()


def _log_signal(sent: signal.Signals | None) -> None:
    if sent is not None:
        log.info("signal", name=sent.name)


def _no_threads(error: RuntimeError) -> StartError:
    return StartError(
        f"the system starts no more threads ({error}): raise its limit (ulimit -u, or pids.max of the cgroup)"
    )


def _raise_descriptors() -> None:
    """Raise the limit of file descriptors, since each connection needs one and the default is often 1024."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
