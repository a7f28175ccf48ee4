"""The HTTP port: pages, and clients that are slow, numerous, broken or connected to the wrong port."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Any
from unittest.mock import Mock

import pytest

from acker_client import AckerClient
from acker_client.errors import Rejected
from acker_service.access.access import Access
from acker_service.http import server as http
from acker_service.http.server import HttpServer, text
from acker_service.server import Server
from tests.service.caller import eventually
from tests.service.pages import page


class Pages:
    """An HTTP server with pages that the test defines."""

    def __init__(self, access: Access | None = None, **pages: Callable[[], http.Page]) -> None:
        rendered = {f"/{name}": render for name, render in pages.items()}
        self.server = HttpServer("127.0.0.1", 0, rendered, access=access)
        self.http_address = f"127.0.0.1:{self.server.port}"
        self.server.start()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.server.port), timeout=20)


def fine() -> http.Page:
    return text(HTTPStatus.OK, "fine")


@pytest.fixture
def pages() -> Iterator[Pages]:
    pages = Pages(fine=fine)
    yield pages
    pages.server.stop()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def http_threads() -> int:
    return sum(thread.name.startswith("acker-http_") for thread in threading.enumerate())


def received(connection: socket.socket) -> bytes:
    content = b""
    while some := connection.recv(65536):
        content += some
    return content


def trickle(connection: socket.socket) -> None:
    connection.sendall(b"GET /fine HTTP/1.1\r\n")
    for _ in range(1_000_000):
        connection.sendall(b"x")


def test_idle_connections_take_no_threads_and_keep_out_no_probe(pages: Pages) -> None:
    threads = http_threads()
    idle = [pages.connect() for _ in range(3 * http.CONNECTIONS_MAX)]
    try:
        assert page(pages, "/fine") == (200, "fine\n")
        assert http_threads() - threads <= 1
        # The server closes the oldest connection to accept a new one.
        assert received(idle[0]) == b""
        assert pages.server.disconnected == 2 * http.CONNECTIONS_MAX + 1
    finally:
        for connection in idle:
            connection.close()


def scrape(pages: Pages, path: str, count: int) -> list[socket.socket]:
    """Connect ``count`` clients that each ask for a page."""
    clients = [pages.connect() for _ in range(count)]
    for client in clients:
        client.sendall(f"GET {path} HTTP/1.1\r\n\r\n".encode())
    return clients


class Gated:
    """A page that is rendered when ``may_return`` is set. ``begun``: how many renderings have begun."""

    def __init__(self) -> None:
        self.may_return = threading.Event()
        self.begun = 0

    def __call__(self) -> http.Page:
        self.begun += 1
        assert self.may_return.wait(20)
        return fine()


def test_400_scrapers_and_a_probe_all_get_their_answers() -> None:
    slow = Gated()
    pages = Pages(slow=slow, fine=fine)
    try:
        clients = scrape(pages, "/slow", 400)
        assert page(pages, "/fine") == (200, "fine\n")
        slow.may_return.set()
        for client in clients:
            with client:
                assert received(client).endswith(b"\r\n\r\nfine\n")
    finally:
        slow.may_return.set()
        pages.server.stop()
    assert pages.server.disconnected == 0


def test_requests_that_wait_for_the_same_page_share_one_rendering() -> None:
    slow = Gated()
    pages = Pages(slow=slow)
    try:
        first = scrape(pages, "/slow", 1)
        eventually(lambda: slow.begun == 1)
        others = scrape(pages, "/slow", 100)
        eventually(lambda: list(pages.server._asked.values()) == ["/slow"] * 101)
        slow.may_return.set()
        assert all(received(client).endswith(b"fine\n") for client in first + others)
        # A rendering that began before a request came is not its answer.
        assert slow.begun == 2
    finally:
        slow.may_return.set()
        pages.server.stop()
        for client in first + others:
            client.close()


def test_probes_are_answered_while_the_tokens_of_scrapers_wait_for_the_shards() -> None:
    """The file of tokens may declare namespaces, and that needs the lock of each shard."""
    may_return, tokens = threading.Event(), Mock()

    def identify(*shown: object) -> None:
        assert may_return.wait(60)

    tokens.identify.side_effect = identify
    pages = Pages(Access(tokens, lambda: 0.0), metrics=fine, livez=fine, readyz=fine)
    clients = scrape(pages, "/metrics", 100)
    try:
        eventually(lambda: tokens.identify.called)
        assert page(pages, "/livez") == page(pages, "/readyz") == (200, "fine\n")
        may_return.set()
        for client in clients:
            assert received(client).startswith(b"HTTP/1.1 401 ")
    finally:
        may_return.set()
        pages.server.stop()
        for client in clients:
            client.close()


@pytest.mark.parametrize("request_bytes", [b"", b"GET /fi", b"GET /slow HTTP/1.1\r\n\r\n"])
def test_a_probe_that_takes_its_time_is_not_the_one_to_go_when_there_are_too_many_others(
    monkeypatch: pytest.MonkeyPatch, request_bytes: bytes
) -> None:
    monkeypatch.setattr(http, "CONNECTIONS_MAX", 128)
    probe_page, slow = Gated(), Gated()
    pages = Pages(probe=probe_page, slow=slow, fine=fine)
    others = []
    try:
        (probe,) = scrape(pages, "/probe", 1)
        eventually(lambda: probe_page.begun == 1)
        for _ in range(400):
            others.append(pages.connect())
            # The oldest may be disconnected already.
            with contextlib.suppress(OSError):
                others[-1].sendall(request_bytes)
        assert page(pages, "/fine") == (200, "fine\n")
        assert received(others[0]) == b""
        probe_page.may_return.set()
        with probe:
            assert received(probe).endswith(b"fine\n")
    finally:
        for gated in (probe_page, slow):
            gated.may_return.set()
        pages.server.stop()
        for client in others:
            client.close()


def test_a_request_has_one_deadline_even_if_it_trickles_in(pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "REQUEST_S", 0.2)
    monkeypatch.setattr(http, "HEAD_BYTES", 1 << 20)
    with pages.connect() as connection, pytest.raises(OSError, match=r"reset|[Bb]roken pipe"):
        trickle(connection)
    assert page(pages, "/fine") == (200, "fine\n")


def test_a_client_that_does_not_read_its_answer_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "REQUEST_S", 1.0)
    large = text(HTTPStatus.OK, "x" * (64 << 20))
    pages = Pages(large=lambda: large)
    try:
        with pages.connect() as connection:
            connection.sendall(b"GET /large HTTP/1.1\r\n\r\n")
            assert connection.recv(1) == b"H"
            eventually(lambda: pages.server.disconnected == 1)
    finally:
        pages.server.stop()


def test_a_flood_of_clients_that_reset_takes_a_bounded_number_of_descriptors_and_keeps_out_no_probe() -> None:
    def slow() -> http.Page:
        time.sleep(0.02)
        return fine()

    pages = Pages(slow=slow, fine=fine)
    before, most, probes = descriptors(), 0, 0
    try:
        for number in range(2000):
            with pages.connect() as connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.sendall(b"GET /slow HTTP/1.1\r\n\r\n")
            most = max(most, descriptors() - before)
            if number % 100 == 0:
                assert page(pages, "/fine") == (200, "fine\n")
                probes += 1
    finally:
        pages.server.stop()
    assert probes == 20
    assert most <= http.CONNECTIONS_MAX + 20


def test_an_answer_that_is_being_sent_arrives_whole_when_the_server_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "SEND_S", 60.0)
    # The page is larger than the buffers of a connection.
    pages = Pages(large=lambda: text(HTTPStatus.OK, "x" * (16 << 20)))
    with pages.connect() as connection:
        connection.sendall(b"GET /large HTTP/1.1\r\n\r\n")
        begin = connection.recv(1)
        stopping = threading.Thread(target=pages.server.stop, daemon=True)
        stopping.start()
        eventually(lambda: pages.server._listener.fileno() == -1, 20)
        _, _, body = (begin + received(connection)).partition(b"\r\n\r\n")
        assert len(body) == (16 << 20) + 1
    stopping.join(20)
    assert not stopping.is_alive()


@pytest.mark.parametrize("count", [20, 3 * http.CONNECTIONS_MAX])
def test_a_slow_page_is_rendered_once_at_a_time_and_delays_no_other_page_however_many_ask_for_it(count: int) -> None:
    may_return = threading.Event()
    rendering = []

    def slow() -> http.Page:
        rendering.append(threading.current_thread())
        may_return.wait(20)
        page = text(HTTPStatus.OK, f"{len(rendering)} at once")
        rendering.pop()
        return page

    pages = Pages(fine=fine, slow=slow)
    waiting = [pages.connect() for _ in range(count)]
    try:
        for connection in waiting:
            with contextlib.suppress(OSError):
                connection.sendall(b"GET /slow HTTP/1.1\r\n\r\n")
        assert page(pages, "/fine") == (200, "fine\n")
        may_return.set()
        # The server has closed the oldest connections, and answers the others one at a time.
        for connection in waiting[-min(count, http.CONNECTIONS_MAX // 2) :]:
            assert received(connection).endswith(b"\r\n\r\n1 at once\n")
    finally:
        may_return.set()
        for connection in waiting:
            connection.close()
        pages.server.stop()


@pytest.mark.long
def test_a_reset_is_no_event(server_process: Callable[..., Any]) -> None:
    process = server_process()
    host, _, port = process.http_address.rpartition(":")
    for sent in (b"", b"GET /met", b"GET /metrics HTTP/1.1\r\n\r\n", b"POST /x HTTP/1.1\r\n\r\n" + bytes(100_000)):
        for _ in range(20):
            with socket.create_connection((host, int(port)), timeout=20) as connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.sendall(sent)
    assert page(process, "/livez") == (200, "ok\n")
    process.terminate()
    assert [json.loads(line)["event"] for line in process.log.splitlines()] == [
        "ready",
        "signal",
        "stopping",
        "stopped",
    ]


def test_a_server_stops_though_its_thread_has_not_run_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    may_run, is_stopping = threading.Event(), threading.Event()
    run = HttpServer._run

    def run_later(server: HttpServer) -> None:
        assert may_run.wait(20)
        run(server)

    monkeypatch.setattr(HttpServer, "_run", run_later)
    server = Pages(fine=fine).server
    stop_soon = server._loop.call_soon_threadsafe

    def begin_to_stop(*what: Any) -> Any:
        is_stopping.set()
        return stop_soon(*what)

    monkeypatch.setattr(server._loop, "call_soon_threadsafe", begin_to_stop)
    stopping = threading.Thread(target=server.stop, daemon=True)
    stopping.start()
    assert is_stopping.wait(20)
    may_run.set()
    stopping.join(20)
    assert not stopping.is_alive()


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_a_wrong_http_method_is_answered_with_the_allowed_ones(pages: Pages, method: str) -> None:
    with pages.connect() as connection:
        connection.sendall(f"{method} /fine HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello".encode())
        reply = received(connection).decode()
    assert reply.startswith("HTTP/1.1 405 Method Not Allowed\r\n")
    assert "\r\nAllow: GET, HEAD\r\n" in reply
    assert f"{method}: this port answers GET and HEAD only" in reply


def test_head_has_the_length_and_no_body(pages: Pages) -> None:
    with pages.connect() as connection:
        connection.sendall(b"HEAD /fine?x=1 HTTP/1.0\r\n\r\n")
        reply = received(connection).decode()
    assert "Content-Length: 5" in reply
    assert reply.endswith("\r\n\r\n")


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n", 431),
        (b"hello\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", 400),
        (b"GET /elsewhere HTTP/1.1\r\n\r\n", 404),
    ],
)
def test_an_invalid_http_request_is_refused(pages: Pages, request_bytes: bytes, status: int) -> None:
    with pages.connect() as connection:
        connection.sendall(request_bytes)
        assert received(connection).startswith(f"HTTP/1.1 {status} ".encode())


def test_a_client_of_the_http_port_fails_at_once_and_says_which_port_it_is(start_server: Callable[..., Server]) -> None:
    server = start_server(http_port=0)
    with AckerClient(server.http_address) as client, pytest.raises(Rejected, match="the acker's own for /metrics"):
        client.open_source("orders")


@pytest.mark.long
def test_without_descriptors_it_pauses_says_so_once_and_goes_on_when_it_has_some(
    server_process: Callable[..., Any],
) -> None:
    process = server_process()
    host, _, port = process.http_address.rpartition(":")
    assert page(process, "/livez") == (200, "ok\n")
    before = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (3, before[1]))
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(b"GET /livez HTTP/1.1\r\n\r\n")
        eventually(lambda: "http_accept_failed" in process.log)
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, before)
        assert received(connection).endswith(b"ok\n")
    assert process.log.count("http_accept_failed") == 1
    assert "Too many open files" in process.log


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "[::]"])
def test_the_pages_are_on_both_families_as_calls_are(start_server: Callable[..., Server], host: str) -> None:
    server = start_server(host=host, http_port=0, insecure=True)
    for address in (server.address, server.http_address):
        assert address is not None
        port = int(address.rpartition(":")[2])
        for loopback in ("127.0.0.1", "::1"):
            socket.create_connection((loopback, port), 10.0).close()


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_a_machine_without_ipv6_listens_on_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    server = HttpServer("0.0.0.0", 0, {})
    try:
        with socket.create_server(("::", server.port), family=socket.AF_INET6):
            pass
    finally:
        server.stop()
