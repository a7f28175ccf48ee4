"""HTTP server of /metrics, /livez and /readyz, for monitoring.

Decides paths, status codes and limits. The caller gives the pages as functions. The standard library's HTTP server has
no limits, so this module adds them:

- There are at most CONNECTIONS_MAX connections, each with a thread. A further one takes the place of the oldest, so
  clients that hold connections open cannot keep out a probe.
- A connection serves one request of at most HEAD_BYTES, and is closed REQUEST_S after it was accepted.
- One thread at a time renders each page. Many scrapers together therefore use only one thread's share of the
  interpreter, and a slow page delays no other page. Requests get their turn in the order in which they came.
"""

from __future__ import annotations

import contextlib
import io
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import Any

from acker_service.access.access import Access
from acker_service.access.certificates import Certificates
from acker_service.access.roles import AccessDenied
from acker_service.process.logs import Log

CONNECTIONS_MAX = 128
BACKLOG = 1024
# From accepting a connection to the last byte of its answer.
REQUEST_S = 10.0
# Request line and headers.
HEAD_BYTES = 8192
# After the answer, the rest of the request is read for at most this long: closing a connection with unread bytes resets
# it, and the client loses the answer.
LINGER_S = 1.0
LINGER_BYTES = 1 << 16
# Pause after an accept that failed, most likely for lack of file descriptors.
ACCEPT_PAUSE_S = 0.5
# How often the server looks for overdue connections and for a stop.
POLL_S = 0.05
# How long a stop waits for answers that are being sent.
SEND_S = 1.0
# How long a new connection waits until the connection that it replaces is closed.
CLOSE_S = 5.0

METHODS = ("GET", "HEAD")

log = Log("acker.http")

# Status, content type, body.
Page = tuple[HTTPStatus, str, bytes]


class _Rendered:
    """A page, the request (``user``) that has the turn to render the page, and the requests that wait for a turn."""

    def __init__(self, render: Callable[[], Page]) -> None:
        self.render = render
        self.user: socket.socket | None = None
        self.waiting: deque[socket.socket] = deque()


class HttpServer(ThreadingMixIn, TCPServer):
    """Serves pages by path, from a thread that accepts and a pool of threads that answer. ``start`` and ``stop`` it
    once."""

    allow_reuse_address = True
    request_queue_size = BACKLOG

    def __init__(
        self,
        host: str,
        port: int,
        pages: dict[str, Callable[[], Page]],
        *,
        certificates: Certificates | None = None,
        access: Access | None = None,
    ) -> None:
        """Bind. Port 0 takes a free one. ``certificates``: None serves without TLS. ``access``: None lets everybody see
        every page. Raises :class:`OSError`."""
        self.certificates, self.access = certificates, access
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, *_, place = found[0]
        super().__init__(place, _Handler)  # type: ignore[arg-type]  # for mypy, ``place`` may be no IP address
        self.pages = {path: _Rendered(render) for path, render in pages.items()}
        # A page that is being rendered keeps its thread when its client is disconnected.
        self._threads_max = CONNECTIONS_MAX + len(pages)
        self._pool = ThreadPoolExecutor(self._threads_max, thread_name_prefix="acker-http")
        self._thread = threading.Thread(target=self.serve_forever, args=(POLL_S,), name="acker-http", daemon=True)
        # When each connection was accepted, the oldest first. Contains no connection that this server has disconnected.
        self._accepted: dict[socket.socket, float] = {}
        # Sockets that are not closed yet.
        self._open: set[socket.socket] = set()
        # Wakes each request that waits for its turn at a page.
        self._wakes: dict[socket.socket, threading.Event] = {}
        # Also held while a connection is closed or disconnected. Otherwise a disconnect could hit a new connection that
        # got the descriptor of the closed one.
        self._lock = threading.Lock()
        # Notified when a connection is closed or its answer is sent. Only one thread at a time waits: the accepting
        # thread until a connection is closed, or, after its end, ``stop`` until the answers are sent.
        self._has_ended = threading.Condition(self._lock)
        # Connections on which an answer is being sent.
        self._sending: set[socket.socket] = set()
        self._has_failed = False

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Close the port and all connections. Waits for answers that are being sent, but not for pages that are being
        rendered."""
        if self._thread.ident is not None:
            self.shutdown()
            self._thread.join()
        self.server_close()
        with self._lock:
            self._has_ended.wait_for(lambda: not self._sending, SEND_S)
        while self._accepted:
            self._disconnect_oldest()
        self._pool.shutdown(wait=False)

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            accepted = super().get_request()
        except OSError as error:
            if not self._has_failed:
                log.warning("http_accept_failed", error=error.strerror or str(error), connections=len(self._accepted))
            self._has_failed = True
            self._disconnect_oldest()
            time.sleep(ACCEPT_PAUSE_S)
            raise
        self._has_failed = False
        return self._with_tls(accepted)

    def _with_tls(self, accepted: tuple[socket.socket, Any]) -> tuple[socket.socket, Any]:
        if self.certificates is None:
            return accepted
        self.certificates.renew()
        request, place = accepted
        # The thread that answers makes the handshake, so that a silent client delays no other connection.
        return self.certificates.http.wrap_socket(request, server_side=True, do_handshake_on_connect=False), place

    def process_request(self, request: Any, client_address: Any) -> None:
        if len(self._accepted) >= CONNECTIONS_MAX:
            self._disconnect_oldest()
        with self._lock:
            # Without this wait, a flood of connections would take all descriptors and all time of the interpreter.
            if not self._has_ended.wait_for(lambda: len(self._open) < self._threads_max, CLOSE_S):
                raise ConnectionAbortedError
            self._accepted[request] = time.monotonic()
            self._open.add(request)
        self._pool.submit(self.process_request_thread, request, client_address)

    def service_actions(self) -> None:
        """Disconnect overdue clients. Called after each accept, and every POLL_S."""
        overdue = time.monotonic() - REQUEST_S
        with self._lock:
            late = [request for request, accepted in self._accepted.items() if accepted < overdue]
        for request in late:
            self._disconnect(request)

    @contextlib.contextmanager
    def turn(self, page: _Rendered, request: socket.socket) -> Iterator[None]:
        """Wait for the request's turn to render a page. Raises ConnectionAbortedError if its client is disconnected."""
        with self._lock:
            # Nothing would wake a request that is disconnected already.
            if request not in self._accepted:
                raise ConnectionAbortedError
            if page.user is None:
                page.user = request
            else:
                page.waiting.append(request)
                self._wakes[request] = threading.Event()
            wake = self._wakes.get(request)
        if wake is not None:
            wake.wait()
        try:
            if request not in self._accepted:
                raise ConnectionAbortedError
            yield
        finally:
            with self._lock:
                if page.user is request:
                    self._give_turn(page)

    def _give_turn(self, page: _Rendered) -> None:
        """Give the turn to the next request that is still connected. The caller holds the lock."""
        page.user = None
        while page.user is None and page.waiting:
            next_one = page.waiting.popleft()
            if next_one in self._accepted:
                page.user = next_one
                self._wakes[next_one].set()

    @contextlib.contextmanager
    def sending(self, request: socket.socket) -> Iterator[None]:
        """Let :meth:`stop` wait while the answer is sent inside this context."""
        with self._lock:
            self._sending.add(request)
        try:
            yield
        finally:
            with self._lock:
                self._sending.discard(request)
                self._has_ended.notify()

    def close_request(self, request: Any) -> None:
        with self._lock:
            self._accepted.pop(request, None)
            self._wakes.pop(request, None)
            request.close()
            self._open.discard(request)
            self._has_ended.notify()

    def handle_error(self, request: Any, client_address: Any) -> None:
        # An OSError means that the client has gone or was disconnected, which is no fault of this server.
        if not isinstance(sys.exception(), OSError):
            log.exception("http_failed")  # noqa: LOG004  # socketserver calls this while it handles an exception

    def _disconnect_oldest(self) -> None:
        with self._lock:
            oldest = next(iter(self._accepted), None)
        if oldest is not None:
            self._disconnect(oldest)

    def _disconnect(self, request: socket.socket) -> None:
        """Interrupt the thread of a connection in its read or write. That thread then closes the connection."""
        with self._lock, contextlib.suppress(OSError):
            self._accepted.pop(request, None)
            if request in self._wakes:
                self._wakes[request].set()
            request.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    """Serves one request of one connection."""

    protocol_version = default_request_version = "HTTP/1.1"
    command, request_version = "", protocol_version
    server: HttpServer

    def handle(self) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            if len(head) == HEAD_BYTES:
                self.send_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "The request is too long")
                return
            if not (some := self.connection.recv(HEAD_BYTES - len(head))):
                return
            head += some
        self.rfile.close()
        self.rfile = io.BytesIO(head)
        self.raw_requestline = self.rfile.readline()
        if self.parse_request():
            self._send(self._page())

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a request that the standard library cannot read, in plain text instead of HTML."""
        self._send(text(HTTPStatus(code), f"{message}; this is the acker's HTTP port"))

    def _page(self) -> Page:
        if self.command not in METHODS:
            return text(HTTPStatus.METHOD_NOT_ALLOWED, f"{self.command}: this port answers GET and HEAD only")
        path = self.path.partition("?")[0]
        if path not in self.server.pages:
            return text(HTTPStatus.NOT_FOUND, f"no such page; the pages are {', '.join(self.server.pages)}")
        refusal = self._refusal(path)
        if refusal is not None:
            return refusal
        page = self.server.pages[path]
        with self.server.turn(page, self.request):
            try:
                return page.render()
            except Exception:
                log.exception("page_failed", path=self.path)
                return text(HTTPStatus.INTERNAL_SERVER_ERROR, "a bug in the server; see its log")

    def _refusal(self, path: str) -> Page | None:
        if self.server.access is None:
            return None
        try:
            self.server.access.check(path, self.client_address[0], self.headers["Authorization"])
        except AccessDenied as refused:
            status = HTTPStatus.FORBIDDEN if refused.is_known else HTTPStatus.UNAUTHORIZED
            return text(status, str(refused))
        return None

    def _send(self, page: Page) -> None:
        status, content_type, body = page
        self.send_response_only(status)
        self.send_header("Server", "acker")
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        if status == HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", "Bearer")
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", ", ".join(METHODS))
        with self.server.sending(self.request):
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)
            self.connection.shutdown(socket.SHUT_WR)
        deadline, left = time.monotonic() + LINGER_S, LINGER_BYTES
        while left > 0 and (rest_s := deadline - time.monotonic()) > 0:
            self.connection.settimeout(rest_s)
            some = self.connection.recv(left)
            left = left - len(some) if some else 0


def text(status: HTTPStatus, body: str) -> Page:
    """Return a page of plain text."""
    return status, "text/plain; charset=utf-8", f"{body}\n".encode()
