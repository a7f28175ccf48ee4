"""HTTP: /metrics, /livez and /readyz for machines that watch over this one.

Decides paths and status codes; what they say comes in as functions. Answers GET and HEAD only;
nothing here changes anything.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from acker_service.logs import Log

# A client that sends nothing for so long is dropped.
IDLE_S = 10
# How soon it notices that it should stop.
POLL_S = 0.1

log = Log("acker.http")

# Status, content type, body.
Page = tuple[HTTPStatus, str, bytes]


class HttpDoor:
    """Serves pages by path from a thread of its own."""

    def __init__(self, host: str, port: int, pages: dict[str, Callable[[], Page]]) -> None:
        """Bind. Port 0 takes a free one. Raises :class:`OSError`."""
        self._server = _Server((host, port), _Handler)
        self._server.pages = pages
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(POLL_S,), name="acker-http", daemon=True
        )

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def text(status: HTTPStatus, body: str) -> Page:
    """A page of plain text."""
    return status, "text/plain; charset=utf-8", f"{body}\n".encode()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    pages: dict[str, Callable[[], Page]]


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = IDLE_S
    server_version = "acker"
    sys_version = ""

    def do_GET(self) -> None:
        page = self.server.pages.get(self.path.partition("?")[0])
        if page is None:
            paths = ", ".join(self.server.pages)
            self._send(text(HTTPStatus.NOT_FOUND, f"no such page; there are {paths}"))
        else:
            self._send(_rendered(self.path, page))

    do_HEAD = do_GET

    def _send(self, page: Page) -> None:
        status, content_type, body = page
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Probes and scrapes come every few seconds; they are not events."""


def _rendered(path: str, page: Callable[[], Page]) -> Page:
    try:
        return page()
    except Exception:
        log.exception("page_failed", path=path)
        return text(HTTPStatus.INTERNAL_SERVER_ERROR, "a bug of the server; its log has the rest")
