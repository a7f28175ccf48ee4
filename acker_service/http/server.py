"""HTTP: /metrics, /livez and /readyz for machines that watch over this one.

Decides paths, status codes and limits; what the pages say comes in as functions. Answers GET and HEAD only; nothing
here changes anything. One thread serves all connections and each page has one that makes it, so no number of
connections takes more of either, and a page that takes long holds up no other. A connection serves one request, which
has REQUEST_S from the first byte to the last; at CONNECTIONS_MAX the oldest makes room for the new one.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus

from acker_service.http import http2
from acker_service.process.logs import Log

CONNECTIONS_MAX = 128
BACKLOG = 128
# From the first byte of a request to the last one of its answer.
REQUEST_S = 10.0
# Request line and headers.
HEAD_BYTES = 8192
# What a client still sends while it is answered is read for so long: a connection closed over unread bytes is reset,
# and with it the answer.
LINGER_S = 1.0
LINGER_BYTES = 1 << 16
# Pause after an accept that failed, for want of descriptors most likely.
ACCEPT_PAUSE_S = 0.5

METHODS = ("GET", "HEAD")

log = Log("acker.http")

# Status, content type, body.
Page = tuple[HTTPStatus, str, bytes]


class HttpDoor:
    """Serves pages by path from a thread of its own. ``calls_at``: where gRPC is served, for callers that mistake the
    port."""

    def __init__(self, host: str, port: int, pages: dict[str, Callable[[], Page]], calls_at: str) -> None:
        """Bind. Port 0 takes a free one. Raises :class:`OSError`."""
        self._socket = bound(host, port)
        self._makers = {
            path: (page, ThreadPoolExecutor(1, thread_name_prefix=f"acker-http{path}")) for path, page in pages.items()
        }
        self._calls_at = calls_at
        self._open: dict[asyncio.Task[None], None] = {}
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(_pass_over)
        self._thread = threading.Thread(target=self._run, name="acker-http", daemon=True)
        self._accepting: asyncio.Task[None]

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    def start(self) -> None:
        # Before the thread runs: a stop may come sooner than that.
        self._accepting = self._loop.create_task(self._accept())
        self._thread.start()

    def stop(self) -> None:
        """Close all connections. Does nothing but let the port go where it was never started."""
        if self._thread.ident is not None:
            self._loop.call_soon_threadsafe(self._accepting.cancel)
            self._thread.join()
        self._loop.close()
        self._socket.close()
        for _, maker in self._makers.values():
            maker.shutdown(wait=False, cancel_futures=True)

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        await asyncio.wait([self._accepting])
        for task in [*self._open]:
            task.cancel()
        if self._open:
            await asyncio.wait([*self._open])

    async def _accept(self) -> None:
        has_failed = False
        while True:
            try:
                connection, _ = await self._loop.sock_accept(self._socket)
            except OSError as error:
                if not has_failed:
                    log.warning("http_accept_failed", error=error.strerror or str(error), connections=len(self._open))
                has_failed = True
                self._make_room()
                await asyncio.sleep(ACCEPT_PAUSE_S)
                continue
            has_failed = False
            if len(self._open) >= CONNECTIONS_MAX:
                self._make_room()
            task = asyncio.create_task(self._attend(connection))
            self._open[task] = None
            task.add_done_callback(self._open.pop)

    def _make_room(self) -> None:
        for task in self._open:
            if not task.cancelling():
                task.cancel()
                return

    async def _attend(self, connection: socket.socket) -> None:
        """Serve one connection to its end, whatever becomes of it."""
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(REQUEST_S):
                reader = asyncio.StreamReader(HEAD_BYTES)
                protocol = asyncio.StreamReaderProtocol(reader)
                transport, _ = await self._loop.connect_accepted_socket(lambda: protocol, connection)
                transport.set_write_buffer_limits(0)
                writer = asyncio.StreamWriter(transport, protocol, reader, self._loop)
                await self._answer(reader, writer)
        except (OSError, TimeoutError, EOFError):
            # The other side has gone, or is too slow; it notices that the connection ends.
            pass
        except Exception:
            log.exception("http_failed")
        finally:
            if writer is None:
                connection.close()
            else:
                writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            await _send(reader, writer, text(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the request is too long"))
            return
        if head == http2.PREFACE_HEAD:
            sentence = f"this is the acker's port for /metrics, /livez and /readyz; calls are taken at {self._calls_at}"
            await http2.refuse(reader, writer, sentence)
            return
        words = head.partition(b"\r\n")[0].decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/"):
            await _send(reader, writer, text(HTTPStatus.BAD_REQUEST, "this is no HTTP request"))
            return
        await _send(reader, writer, await self._page(words[0], words[1]), has_body=words[0] != "HEAD")

    async def _page(self, method: str, target: str) -> Page:
        if method not in METHODS:
            return text(HTTPStatus.METHOD_NOT_ALLOWED, f"{method}: this port answers GET and HEAD only")
        found = self._makers.get(target.partition("?")[0])
        if found is None:
            return text(HTTPStatus.NOT_FOUND, f"no such page; the pages are {', '.join(self._makers)}")
        page, maker = found
        return await self._loop.run_in_executor(maker, _rendered, target, page)


def text(status: HTTPStatus, body: str) -> Page:
    """A page of plain text."""
    return status, "text/plain; charset=utf-8", f"{body}\n".encode()


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens at ``host`` and ``port``, 0 for a free one. Raises :class:`OSError`."""
    family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
        0
    ]
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(place)
        listening.listen(BACKLOG)
        listening.setblocking(False)
    except BaseException:
        listening.close()
        raise
    return listening


async def _send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, page: Page, has_body: bool = True) -> None:
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
    writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + (body if has_body else b""))
    await writer.drain()
    writer.write_eof()
    async with asyncio.timeout(LINGER_S):
        left = LINGER_BYTES
        while left > 0 and (some := await reader.read(left)):
            left -= len(some)


def _rendered(path: str, page: Callable[[], Page]) -> Page:
    try:
        return page()
    except Exception:
        log.exception("page_failed", path=path)
        return text(HTTPStatus.INTERNAL_SERVER_ERROR, "a bug of the server; its log has the rest")


def _pass_over(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    """What the event loop complains of (resets above all) is not worth a line of ours."""
