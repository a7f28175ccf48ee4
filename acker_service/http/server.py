"""HTTP server of /metrics, /livez and /readyz, for monitoring.

Decides paths, status codes and limits. The caller gives the pages as functions. One thread has all connections, and
each page has a thread that renders it, so a slow page delays no other page. Another thread checks callers, since tokens
may wait for the shards. The limits:

- There are at most CONNECTIONS_MAX connections. A further one takes the place of the oldest of those that ask for the
  same page as most others, or of those that have not asked yet, if they are most. So neither scrapers nor clients that
  hold connections open can keep out a probe.
- A connection serves one request of at most HEAD_BYTES, and is closed REQUEST_S after it was accepted.
- All requests that come before a rendering begins get this rendering. Many scrapers together therefore cost little more
  than one.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from acker_service.access.access import Access
from acker_service.access.certificates import Certificates
from acker_service.access.roles import OPEN, AccessDenied
from acker_service.http.streams import PlainStream, TlsStream
from acker_service.process.logs import Log
from acker_service.process.workers import Workers

CONNECTIONS_MAX = 512
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
# How long a stop waits for answers that are being sent.
SEND_S = 1.0

METHODS = ("GET", "HEAD")

# How the system writes the address of an IPv4 client of a listener for both families.
_MAPPED = "::ffff:"

log = Log("acker.http")

# Status, content type, body.
Page = tuple[HTTPStatus, str, bytes]


class _Rendered:
    """A page. ``next``: its rendering that has not begun yet. ``lock``: held by its rendering that has begun."""

    def __init__(self, render: Callable[[], Page]) -> None:
        self.render = render
        self.lock = asyncio.Lock()
        self.next: asyncio.Task[Page] | None = None


class HttpServer:
    """Serves pages by path. ``start`` and ``stop`` it once. ``disconnected`` counts the clients that were disconnected,
    because there were too many, or because they were too slow."""

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
        self._certificates, self._access = certificates, access
        self._listener = _listen(host, port)
        self.port = int(self._listener.getsockname()[1])
        self.disconnected = 0
        self._pages = {path: _Rendered(render) for path, render in pages.items()}
        # Unlike ThreadPoolExecutor, it lets a page wait when the system has no more threads.
        self._rendering = Workers("http", max(1, len(pages)), receive_s=REQUEST_S, clock=time.monotonic)
        # None if there is nothing to check.
        self._checking = (
            None if access is None else Workers("http-access", 1, receive_s=REQUEST_S, clock=time.monotonic)
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="acker-http", daemon=True)
        self._is_stopping = asyncio.Event()
        # The request of each connection: a path, or "" until its request is here. The oldest connection is first.
        self._asked: dict[asyncio.Task[None], str] = {}
        # Answers that are being sent.
        self._sending: set[asyncio.Future[None]] = set()

    def start(self) -> None:
        """Raises RuntimeError if the system has no threads."""
        self._rendering.start()
        if self._checking is not None:
            self._checking.start()
        self._thread.start()

    def stop(self) -> None:
        """Close the port and all connections. Waits for answers that are being sent, but not for pages that are being
        rendered."""
        if self._thread.ident is None:
            self._loop.close()
        else:
            self._loop.call_soon_threadsafe(self._is_stopping.set)
            self._thread.join()
        self._listener.close()
        self._rendering.shutdown(wait=False)
        if self._checking is not None:
            self._checking.shutdown(wait=False)

    def _run(self) -> None:
        with contextlib.closing(self._loop):
            self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        accepting = self._loop.create_task(self._accept())
        await self._is_stopping.wait()
        accepting.cancel()
        self._listener.close()
        if self._sending:
            await asyncio.wait(self._sending, timeout=SEND_S)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        # Lets the tasks close their connections.
        await asyncio.gather(*others, return_exceptions=True)

    async def _accept(self) -> None:
        has_failed = False
        while True:
            try:
                connection, _ = await self._loop.sock_accept(self._listener)
            except OSError as error:
                if not has_failed:
                    log.warning("http_accept_failed", error=error.strerror or str(error), connections=len(self._asked))
                has_failed = True
                self._disconnect_one()
                await asyncio.sleep(ACCEPT_PAUSE_S)
                continue
            has_failed = False
            if len(self._asked) >= CONNECTIONS_MAX:
                self._disconnect_one()
            task = self._loop.create_task(self._answer(connection))
            self._asked[task] = ""
            # Gives the other connections their turn. An accept does not, while clients wait to be accepted.
            await asyncio.sleep(0)

    def _disconnect_one(self) -> None:
        if self._asked:
            (crowd, _), *_ = Counter(self._asked.values()).most_common(1)
            oldest = next(task for task, asked in self._asked.items() if asked == crowd)
            del self._asked[oldest]
            oldest.cancel()
            self.disconnected += 1

    async def _answer(self, connection: socket.socket) -> None:
        """Serve the one request of a connection."""
        task = asyncio.current_task()
        assert task is not None
        with contextlib.closing(connection):
            try:
                stream = self._stream(connection)
                async with asyncio.timeout(REQUEST_S):
                    head = await _read_head(stream)
                    if not head:
                        return
                    method, path, page = _parsed(head)
                    if path in self._pages and task in self._asked:
                        self._asked[task] = path
                    page = page or await self._refusal(connection, path, head)
                    if page is None:
                        page = await self._page(method, path)
                    await self._send(stream, method, page)
                await self._linger(stream)
            except TimeoutError:
                self.disconnected += 1
            except OSError:
                # The client has gone, which is no fault of this server.
                pass
            except Exception:
                log.exception("http_failed")
            finally:
                self._asked.pop(task, None)

    def _stream(self, connection: socket.socket) -> PlainStream:
        if self._certificates is None:
            return PlainStream(connection)
        self._certificates.renew()
        return TlsStream(connection, self._certificates.http)

    async def _refusal(self, connection: socket.socket, path: str, head: bytes) -> Page | None:
        """Return the answer to a caller that may not see this page; None if it may."""
        # Probes do not wait for the checks of others.
        if self._access is None or path in OPEN:
            return None
        address = connection.getpeername()[0].removeprefix(_MAPPED)
        try:
            await self._loop.run_in_executor(self._checking, self._access.check, path, address, _authorization(head))
        except AccessDenied as denied:
            status = HTTPStatus.FORBIDDEN if denied.is_known else HTTPStatus.UNAUTHORIZED
            return text(status, str(denied))
        return None

    async def _page(self, method: str, path: str) -> Page:
        if method not in METHODS:
            return text(HTTPStatus.METHOD_NOT_ALLOWED, f"{method}: this port answers GET and HEAD only")
        page = self._pages.get(path)
        if page is None:
            return text(HTTPStatus.NOT_FOUND, f"no such page; the pages are {', '.join(self._pages)}")
        if page.next is None:
            page.next = self._loop.create_task(self._render(page, path))
        # Others wait for the same rendering when this client is disconnected.
        return await asyncio.shield(page.next)

    async def _render(self, page: _Rendered, path: str) -> Page:
        async with page.lock:
            page.next = None
            try:
                return await self._loop.run_in_executor(self._rendering, page.render)
            except Exception:
                log.exception("page_failed", path=path)
                return text(HTTPStatus.INTERNAL_SERVER_ERROR, "a bug in the server; see its log")

    async def _send(self, stream: PlainStream, method: str, page: Page) -> None:
        status, content_type, body = page
        lines = [
            f"HTTP/1.1 {status.value} {status.phrase}",
            "Server: acker",
            f"Content-Type: {content_type}",
            f"Content-Length: {len(body)}",
            "Connection: close",
        ]
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            lines.append(f"Allow: {', '.join(METHODS)}")
        if status == HTTPStatus.UNAUTHORIZED:
            lines.append("WWW-Authenticate: Bearer")
        sent = self._loop.create_future()
        self._sending.add(sent)
        try:
            head = "".join(f"{line}\r\n" for line in [*lines, ""]).encode()
            await stream.write(head if method == "HEAD" else head + body)
            await stream.end()
        finally:
            self._sending.discard(sent)
            sent.set_result(None)

    async def _linger(self, stream: PlainStream) -> None:
        left = LINGER_BYTES
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                while left > 0 and (some := await self._loop.sock_recv(stream.connection, left)):
                    left -= len(some)


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens at ``host``. Raises OSError."""
    host = host.strip("[]")
    # gRPC takes both families at either of these addresses, too.
    if host in ("0.0.0.0", "::") and socket.has_dualstack_ipv6():
        try:
            return _bound(socket.AF_INET6, ("::", port))
        except OSError as error:
            # A system may have IPv6 without any address of it.
            if host == "::" or error.errno != errno.EADDRNOTAVAIL:
                raise
    family, *_, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return _bound(family, place)


def _bound(family: int, place: Any) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6 and place[0] == "::":
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


async def _read_head(stream: PlainStream) -> bytes:
    """Return the request line and the headers, or HEAD_BYTES of a longer request; b"" if the client has gone."""
    head = b""
    while b"\r\n\r\n" not in head and len(head) < HEAD_BYTES:
        if not (some := await stream.read(HEAD_BYTES - len(head))):
            return b""
        head += some
    return head


def _authorization(head: bytes) -> str | None:
    for line in head.decode("latin-1").split("\r\n")[1:]:
        name, _, value = line.partition(":")
        if name.lower() == "authorization":
            return value.strip()
    return None


def _parsed(head: bytes) -> tuple[str, str, Page | None]:
    """Return the method and the path of a request, and the page that refuses the request if it cannot be read."""
    if b"\r\n\r\n" not in head:
        return "", "", _refusal(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "The request is too long")
    line = head.partition(b"\r\n")[0].decode("latin-1")
    method, _, rest = line.partition(" ")
    target, _, version = rest.rpartition(" ")
    if not (method and target) or not version.startswith("HTTP/1."):
        return "", "", _refusal(HTTPStatus.BAD_REQUEST, "The request line should be like GET /metrics HTTP/1.1")
    return method, target.partition("?")[0], None


def _refusal(status: HTTPStatus, sentence: str) -> Page:
    return text(status, f"{sentence}; this is the acker's HTTP port")


def text(status: HTTPStatus, body: str) -> Page:
    """Return a page of plain text."""
    return status, "text/plain; charset=utf-8", f"{body}\n".encode()
