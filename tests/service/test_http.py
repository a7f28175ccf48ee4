"""The HTTP port: pages, and clients that are slow, many, rude or lost."""

from __future__ import annotations

import json
import resource
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Any

import grpc
import pytest

from acker_client import AckerClient
from acker_client.errors import AckerError
from acker_service.http import server as http
from acker_service.http.server import HttpDoor, text
from acker_service.server import Server
from tests.service.caller import Caller, eventually
from tests.service.pages import page


class Door:
    """A door of pages that a test makes up."""

    def __init__(self, **pages: Callable[[], http.Page]) -> None:
        self.door = HttpDoor("127.0.0.1", 0, {f"/{name}": make for name, make in pages.items()}, "127.0.0.1:7070")
        self.http_address = f"127.0.0.1:{self.door.port}"
        self.door.start()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.door.port), timeout=20)


def fine() -> http.Page:
    return text(HTTPStatus.OK, "fine")


@pytest.fixture
def door() -> Iterator[Door]:
    door = Door(fine=fine)
    yield door
    door.door.stop()


def received(connection: socket.socket) -> bytes:
    content = b""
    while some := connection.recv(65536):
        content += some
    return content


def trickle(connection: socket.socket) -> None:
    connection.sendall(b"GET /fine HTTP/1.1\r\n")
    for _ in range(1_000_000):
        connection.sendall(b"x")


def test_any_number_of_connections_takes_no_more_threads_and_a_new_one_is_served(door: Door) -> None:
    assert page(door, "/fine") == (200, "fine\n")
    threads = set(threading.enumerate())
    idle = [door.connect() for _ in range(3 * http.CONNECTIONS_MAX)]
    try:
        assert page(door, "/fine") == (200, "fine\n")
        # One of an earlier test may end meanwhile; none may come.
        assert not set(threading.enumerate()) - threads
        # The oldest made room.
        assert received(idle[0]) == b""
    finally:
        for connection in idle:
            connection.close()


def test_a_request_has_one_time_for_all_of_it_however_it_trickles(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "REQUEST_S", 0.2)
    monkeypatch.setattr(http, "HEAD_BYTES", 1 << 30)
    with door.connect() as connection, pytest.raises(OSError, match=r"reset|[Bb]roken pipe"):
        trickle(connection)
    assert page(door, "/fine") == (200, "fine\n")


def test_a_page_that_takes_long_holds_up_no_other() -> None:
    leave = threading.Event()

    def slow() -> http.Page:
        leave.wait(20)
        return fine()

    door = Door(fine=fine, slow=slow)
    waiting = [door.connect() for _ in range(20)]
    try:
        for connection in waiting:
            connection.sendall(b"GET /slow HTTP/1.1\r\n\r\n")
        assert page(door, "/fine") == (200, "fine\n")
        leave.set()
        assert all(received(connection).endswith(b"fine\n") for connection in waiting)
    finally:
        for connection in waiting:
            connection.close()
        door.door.stop()


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


def test_a_door_stops_whose_thread_has_not_run_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    may_run = threading.Event()
    run = HttpDoor._run

    def run_later(door: HttpDoor) -> None:
        assert may_run.wait(20)
        run(door)

    monkeypatch.setattr(HttpDoor, "_run", run_later)
    door = Door(fine=fine).door
    stopping = threading.Thread(target=door.stop, daemon=True)
    stopping.start()
    loop: Any = door._loop
    eventually(lambda: bool(loop._ready))
    may_run.set()
    stopping.join(20)
    assert not stopping.is_alive()


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_a_wrong_method_is_told_which_are_right(door: Door, method: str) -> None:
    with door.connect() as connection:
        connection.sendall(f"{method} /fine HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello".encode())
        reply = received(connection).decode()
    assert reply.startswith("HTTP/1.1 405 Method Not Allowed\r\n")
    assert "\r\nAllow: GET, HEAD\r\n" in reply
    assert f"{method}: this port answers GET and HEAD only" in reply


def test_head_has_the_length_and_no_body(door: Door) -> None:
    with door.connect() as connection:
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
def test_what_is_no_request_for_a_page_is_told_so(door: Door, request_bytes: bytes, status: int) -> None:
    with door.connect() as connection:
        connection.sendall(request_bytes)
        assert received(connection).startswith(f"HTTP/1.1 {status} ".encode())


def test_a_call_to_the_http_port_is_told_where_calls_go(start_server: Callable[..., Server]) -> None:
    server = start_server(http_port=0)
    assert server.http_address
    with Caller(server.http_address) as caller:
        for _ in range(3):
            with pytest.raises(grpc.RpcError) as caught:
                caller.hello()
            assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
            assert f"calls are taken at {server.address}" in str(caught.value.details())


def test_a_client_of_the_http_port_fails_at_once_and_says_which_port_it_is(
    start_server: Callable[..., Server],
) -> None:
    server = start_server(http_port=0)
    with AckerClient(server.http_address) as client, pytest.raises(AckerError, match="calls are taken at"):
        client.open_source("orders")


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
