"""The gRPC transport: a real server, and ports of other services."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acker_client import AckerClient, Settings, errors
from acker_client.rpc import transport as transport_module
from acker_client.rpc.transport import IDLE_S, OPTIONS, GrpcTransport, translated
from acker_protocol import ids
from acker_protocol.messages import PROTOCOL_VERSION, Apply, Entries, Hello, Identity
from acker_protocol.messages import Status as AckerStatus
from acker_protocol.reports import digest, fold
from tests.faults.proxy import Proxy
from tests.service.caller import eventually

pytestmark = pytest.mark.matrix

COUNT = 200_000
HELLO = Hello(PROTOCOL_VERSION, "test")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def transport(server: Any) -> Iterator[GrpcTransport]:
    transport = GrpcTransport(server.address)
    yield transport
    transport.close()


def test_a_large_report_goes_through_in_messages_that_the_server_takes(start_server: Callable[..., Any]) -> None:
    server = start_server(max_message_bytes=300_000)
    roots = ids.root_ids(1 << 40, np.arange(COUNT, dtype=np.uint64))
    with AckerClient(server.address) as client:
        result = client.report(Identity(1, 2), fold(roots, roots))
        assert client.hello().max_message_bytes == 300_000
    assert result.applied == 1024
    assert server.shard.stats.updates == COUNT


def test_a_large_report_of_fails_with_long_reasons_goes_through(start_server: Callable[..., Any]) -> None:
    server = start_server(max_message_bytes=1 << 20)
    roots = ids.root_ids(1 << 40, np.arange(20_000, dtype=np.uint64))
    with AckerClient(server.address) as client:
        client.open_source("orders")
        client.open_batch(1, 1 << 40, 20_000, held=False)
        client.init_columns(roots, roots, batch=1)
        client.fail_columns(roots, [f"{number} " + "x" * 400 for number in range(20_000)])
        client.flush()
        reported = client.watch(10.0).outcomes
    # The server keeps only as many reasons as fit. Each message carries only the reasons of its own fails.
    assert len(reported) == 20_000
    assert len(set(reported.reasons)) > 1000


def test_a_message_over_the_cap_says_how_to_raise_it(start_server: Callable[..., Any]) -> None:
    transport = GrpcTransport(start_server(max_message_bytes=1 << 20).address)
    roots = ids.root_ids(1 << 40, np.arange(COUNT, dtype=np.uint64))
    entries = fold(roots, roots)
    with pytest.raises(errors.Rejected, match="--max-message-bytes"):
        transport.apply(Apply(Identity(1, 2), digest(entries), entries), 10.0)
    transport.close()


def test_a_malformed_message_is_rejected_by_the_server_s_own_sentence(transport: GrpcTransport) -> None:
    crooked = Entries(np.ones(2, np.uint64), np.ones(1, np.uint64))
    with pytest.raises(errors.Rejected, match="ack_vals: 1 for 2 root ids"):
        transport.apply(Apply(Identity(1, 2), 0, crooked), 10.0)


def test_another_protocol_version_is_rejected_naming_both(transport: GrpcTransport) -> None:
    with pytest.raises(
        errors.Rejected,
        match=rf"FAILED_PRECONDITION.*99.*{PROTOCOL_VERSION}|FAILED_PRECONDITION.*{PROTOCOL_VERSION}.*99",
    ):
        transport.hello(Hello(99, "from the future"), 10.0)


def test_a_refused_connection_names_the_address_and_the_fix() -> None:
    address = f"127.0.0.1:{free_port()}"
    with (
        AckerClient(Settings((address,), budget_s=0.5)) as client,
        pytest.raises(errors.Unavailable, match=rf"{address}.*acker serve.*ACKER_SERVERS"),
    ):
        client.hello()


@pytest.mark.parametrize(
    "details",
    [
        "errors resolving nowhere:1: [field:hostname lookup error:address lookup failed: Domain name not found]",
        "DNS resolution failed for nowhere:1: C-ares status is not ARES_SUCCESS qtype=A name=nowhere",
    ],
)
def test_a_host_name_that_does_not_resolve_is_an_error_that_says_so(details: str) -> None:
    error = translated("nowhere:1", Status(grpc.StatusCode.UNAVAILABLE, details))
    assert isinstance(error, errors.Unavailable)
    assert str(error).startswith("nowhere:1: the name resolves to nothing: correct it")


def test_a_port_that_does_not_speak_grpc_is_given_up_within_the_budget() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        client = AckerClient(Settings((address,), budget_s=1.0, call_timeout_s=0.3))
        with pytest.raises(errors.Unavailable, match=r"DEADLINE_EXCEEDED|UNAVAILABLE"):
            client.hello()
        client.close()


def test_the_ackers_http_port_is_recognized_as_the_wrong_port(start_server: Callable[..., Any]) -> None:
    server = start_server(http_port=0)
    client = AckerClient(server.http_address)
    with pytest.raises(errors.Rejected, match="an HTTP port, like the acker's own for /metrics"):
        client.hello()
    client.close()


class Stranger:
    """A TCP server that sends every client the same bytes."""

    def __init__(self, answer: bytes) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._answer = answer
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            caller, _ = self._listener.accept()
            with caller:
                if caller.recv(1000) == b"end":
                    return
                caller.sendall(self._answer)
                while self._answer and caller.recv(1000):
                    pass

    def close(self) -> None:
        host, _, port = self.address.rpartition(":")
        with socket.create_connection((host, int(port))) as ending:
            ending.sendall(b"end")
        self._thread.join()
        self._listener.close()


@pytest.mark.parametrize(
    ("answer", "kind", "says"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", errors.Rejected, "this looks like an HTTP port"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", errors.Rejected, "does not speak gRPC; the acker's gRPC port is 7070"),
        (b"-ERR unknown command\r\n", errors.Rejected, "does not speak gRPC"),
        (b"", errors.Unavailable, "accepted and closed at once: a port with TLS"),
    ],
)
def test_the_error_names_another_service_on_the_port(answer: bytes, kind: type[Exception], says: str) -> None:
    door = Stranger(answer)
    client = AckerClient(Settings((door.address,), budget_s=0.5))
    with pytest.raises(kind, match=says):
        client.hello()
    client.close()
    door.close()


def test_a_call_that_ends_without_an_answer_leaves_open_whether_it_was_applied() -> None:
    transport = GrpcTransport("127.0.0.1:1")
    transport._take_channel().stub.Stats = lambda request, timeout, metadata: None
    with pytest.raises(errors.Unavailable, match=r"127\.0\.0\.1:1: the call ended without an answer"):
        transport.stats(1.0)
    transport.close()


def test_a_grpc_server_that_is_no_acker_is_rejected_at_once() -> None:
    other = grpc.server(ThreadPoolExecutor(1))
    port = other.add_insecure_port("127.0.0.1:0")
    other.start()
    client = AckerClient(f"127.0.0.1:{port}")
    with pytest.raises(errors.Rejected, match=r"UNIMPLEMENTED.*an acker's gRPC port"):
        client.hello()
    client.close()
    other.stop(None)


def test_the_token_travels_with_every_call() -> None:
    seen: list[str] = []

    class Door(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic only in its stubs
        def service(self, details: Any) -> None:
            seen.append(dict(details.invocation_metadata)["authorization"])

    other = grpc.server(ThreadPoolExecutor(1), handlers=[Door()])
    port = other.add_insecure_port("127.0.0.1:0")
    other.start()
    client = AckerClient(f"127.0.0.1:{port}", token="sesame")
    with pytest.raises(errors.Rejected):
        client.hello()
    client.close()
    other.stop(None)
    assert seen == ["Bearer sesame"]


def test_a_server_that_was_stopped_and_is_back_is_found_again(start_server: Callable[..., Any]) -> None:
    first = start_server()
    port = int(first.address.rpartition(":")[2])
    client = AckerClient(first.address)
    client.ack(5, 6)
    client.flush()
    first.stop()
    client.ack(5, 7)
    second = start_server(port=port)
    client.flush()
    assert second.shard.stats.updates == 1
    client.close()


def test_a_watch_in_flight_ends_when_the_client_is_closed(server: Any) -> None:
    client = AckerClient(server.address)
    client.open_source("orders")
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(client.watch, 20.0)
        while not server.namespaces.default.shared.watches:
            pass
        client.close()
        with pytest.raises(errors.Closed):
            waiting.result(10.0)


@pytest.mark.long
def test_the_connection_of_an_idle_channel_is_closed_every_time_and_the_next_call_has_a_new_one(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The shortest time that gRPC knows.
    idle = [(name, 1_000 if name == "grpc.client_idle_timeout_ms" else value) for name, value in OPTIONS]
    monkeypatch.setattr(transport_module, "OPTIONS", idle)
    now = 0.0
    proxy = Proxy(server.address)
    transport = GrpcTransport(proxy.address, clock=lambda: now)
    for _ in range(3):
        transport.hello(HELLO, 10.0)
        transport.hello(HELLO, 10.0)
        assert proxy.connections == 1
        eventually(lambda: not proxy.connections)
        now += IDLE_S
    transport.close()
    proxy.close()


def test_no_report_fails_while_other_threads_replace_idle_channels_all_the_time(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport_module, "_REPLACED_AFTER_S", 0.0)
    transport = GrpcTransport(server.address)

    def report(sender: int) -> None:
        for number in range(60):
            roots = ids.root_ids(1 << 40, np.array([1_000 * sender + number], np.uint64))
            entries = fold(roots, roots)
            reply = transport.apply(Apply(Identity(sender, number), digest(entries), entries), 10.0)
            assert reply.status == AckerStatus.APPLIED

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(report, range(3)))
    transport.close()
    assert server.shard.stats.updates == 180


@given(st.lists(st.tuples(st.booleans(), st.floats(0.0, 2.0 * IDLE_S)), max_size=30))
def test_a_channel_with_a_call_under_way_is_never_closed_and_no_call_uses_one_that_grpc_may_have_found_idle(
    steps: list[tuple[bool, float]],
) -> None:
    now, under_way = 0.0, list[transport_module._Channel]()
    idle_since: dict[transport_module._Channel, float] = {}
    transport = GrpcTransport("127.0.0.1:1", clock=lambda: now)
    closed = set[transport_module._Channel]()

    def note_closed(channels: Collection[transport_module._Channel]) -> None:
        closed.update(each for each in channels if each not in transport._channels)
        assert not closed & set(under_way)

    for begins, passed in steps:
        now += passed
        seen = {*transport._channels}
        if begins:
            taken = transport._take_channel()
            assert taken in under_way or now - idle_since.get(taken, now) < IDLE_S
            under_way.append(taken)
        elif under_way:
            left = under_way.pop(0)
            transport._leave_channel(left)
            idle_since[left] = now
        note_closed(seen)
        assert len(transport._channels) <= 1 + len(set(under_way))
    transport.close()


def test_keepalive_is_on_and_grpc_s_own_retries_are_off() -> None:
    options = dict(OPTIONS)
    assert options["grpc.enable_retries"] == 0
    assert options["grpc.keepalive_time_ms"] == 30_000


class Status(grpc.RpcError):
    def __init__(self, code: grpc.StatusCode, details: str = "") -> None:
        self._code, self._details = code, details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code != grpc.StatusCode.OK])
def test_every_grpc_status_is_an_error_of_the_client_s_own(code: grpc.StatusCode) -> None:
    error = translated("here:1", Status(code, "because"))
    assert isinstance(error, errors.Unavailable | errors.Rejected)
    assert "here:1" in str(error)
    assert "because" in str(error)
    retried = {"CANCELLED", "UNKNOWN", "DEADLINE_EXCEEDED", "UNAVAILABLE", "INTERNAL", "ABORTED", "RESOURCE_EXHAUSTED"}
    if code.name in retried:
        assert isinstance(error, errors.Unavailable)
