"""Replies that nobody reads: bounded in bytes and time, and calls take turns to make them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from hypothesis import given
from hypothesis import strategies as st

from acker_client.errors import Unavailable
from acker_client.rpc.transport import GrpcTransport
from acker_protocol import wire
from acker_protocol.messages import Limits, Watch
from acker_service.process.replies import CALL_BYTES, COPIES, SEND_MIN_S, WORKING_MAX, Replies
from acker_service.server import Server
from tests.service.caller import SESSION, Caller, ack_a_tree, acks, eventually, inits, roots_of
from tests.service.half_sent import DATA, END_HEADERS, HEADERS, HalfSender, frame, text

StartServer = Callable[..., Server]
# The flag of HTTP/2 for the last frame of a sender.
END_STREAM = 1
SEND_S = 10.0
# A reply of which the bound holds exactly four.
UNREAD_BYTES_MAX = 64 << 20
QUARTER = (UNREAD_BYTES_MAX // 4 - CALL_BYTES) // COPIES


class Calls:
    """Calls whose replies are not read. ``cut``: their numbers, in the order in which the replies were cut."""

    def __init__(self) -> None:
        self.now = 0.0
        self.replies = Replies(send_s=SEND_S, max_bytes=UNREAD_BYTES_MAX, clock=lambda: self.now)
        self.cut: list[int] = []
        self._ends: dict[int, Callable[[], None]] = {}

    def add(self, number: int, length: int, connection: str = "a") -> None:
        def on_end(end: Callable[[], None]) -> bool:
            self._ends[number] = end
            return True

        self.replies.add(connection, length, lambda: self.cut.append(number), on_end)

    def end(self, number: int) -> None:
        self._ends.pop(number)()

    def begin(self, connection: str, *, is_large: bool) -> threading.Event:
        """Return an event that is set when the call has its turn. It keeps the turn."""
        begun = threading.Event()

        def work() -> None:
            with self.replies.turn(connection, is_large=is_large):
                begun.set()
                self.finish.wait(20)

        threading.Thread(target=work, daemon=True).start()
        return begun

    finish = threading.Event()


@pytest.fixture
def calls() -> Iterator[Calls]:
    calls = Calls()
    calls.finish = threading.Event()
    yield calls
    calls.finish.set()


def test_a_reply_is_cut_when_it_was_not_read_in_time(calls: Calls) -> None:
    calls.add(0, 10)
    calls.now = SEND_S
    calls.add(1, 10)
    calls.replies.relieve()
    assert calls.cut == []
    calls.now += 0.1
    calls.replies.relieve()
    calls.replies.relieve()
    assert (calls.cut, calls.replies.cut) == ([0], 1)


def test_while_too_many_bytes_are_unread_the_oldest_replies_are_cut_but_not_before_half_a_second(calls: Calls) -> None:
    for number in range(4):
        calls.add(number, QUARTER)
    calls.now = SEND_MIN_S
    calls.replies.relieve()
    assert calls.cut == []
    calls.now += 0.1
    calls.replies.relieve()
    assert calls.cut == [0, 1]
    # Their bytes count until gRPC has freed them, but no further reply is cut for that.
    calls.replies.relieve()
    assert (calls.cut, calls.replies.unread_bytes) == ([0, 1], UNREAD_BYTES_MAX)
    for number in range(4):
        calls.end(number)
    assert calls.replies.unread_bytes == 0


def test_a_call_that_has_ended_already_is_not_counted(calls: Calls) -> None:
    calls.replies.add("a", 100, lambda: None, lambda end: False)
    assert calls.replies.unread_bytes == 0


def test_beyond_the_bound_only_large_replies_wait(calls: Calls) -> None:
    for number in range(4):
        calls.add(number, QUARTER)
    large = calls.begin("b", is_large=True)
    assert calls.begin("b", is_large=False).wait(20)
    assert not large.is_set()
    calls.end(0)
    assert large.wait(20)


def test_half_of_the_bound_is_for_connections_that_read_their_replies(calls: Calls) -> None:
    for number in range(2):
        calls.add(number, QUARTER, "slow")
    slow = calls.begin("slow", is_large=True)
    assert calls.begin("quick", is_large=True).wait(20)
    assert not slow.is_set()
    calls.end(0)
    assert slow.wait(20)


def test_a_connection_that_had_a_reply_cut_counts_as_slow_for_some_time(calls: Calls) -> None:
    calls.add(0, 10, "cut")
    calls.now = SEND_S + 1
    calls.replies.relieve()
    calls.end(0)
    for number in (1, 2):
        calls.add(number, QUARTER, "slow")
    cut = calls.begin("cut", is_large=True)
    assert calls.begin("quick", is_large=True).wait(20)
    assert not cut.is_set()
    calls.now += SEND_S + 1
    calls.replies.relieve()
    assert cut.wait(20)


def test_few_calls_work_at_once_connections_take_turns_and_a_call_that_waits_has_none(calls: Calls) -> None:
    pause, go_on = threading.Event(), threading.Event()

    def wait_in_between() -> None:
        with calls.replies.turn("a", is_large=False) as paused:
            assert pause.wait(20)
            with paused():
                assert go_on.wait(20)

    threading.Thread(target=wait_in_between, daemon=True).start()
    eventually(lambda: calls.replies._working == 1)
    working = [calls.begin("a", is_large=False) for _ in range(WORKING_MAX - 1)]
    assert all(each.wait(20) for each in working)
    greedy = [calls.begin("a", is_large=False) for _ in range(20)]
    eventually(lambda: len(calls.replies._waiting) == 20)
    modest = calls.begin("b", is_large=False)
    eventually(lambda: len(calls.replies._waiting) == 21)
    # Its turn goes to the call that has waited for longest, and later to the other connection.
    pause.set()
    eventually(lambda: sum(each.is_set() for each in greedy) == 1)
    assert not modest.is_set()
    calls.finish.set()
    assert modest.wait(20)
    assert all(each.wait(20) for each in greedy)
    go_on.set()


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(0, 2 * QUARTER)),
            st.tuples(st.just("end"), st.integers(0, 30)),
            st.tuples(st.just("pass"), st.floats(0, 6)),
        )
    )
)
def test_what_is_not_read_is_bounded_after_half_a_second(steps: list[tuple[str, Any]]) -> None:
    """The twin is a dict of the replies that are not read, each with its time and bytes."""
    calls, twin = Calls(), dict[int, tuple[float, int]]()
    for number, (step, value) in enumerate(steps):
        if step == "add":
            calls.add(number, value)
            twin[number] = (calls.now, COPIES * value + CALL_BYTES)
        elif step == "end" and twin:
            done = sorted(twin)[value % len(twin)]
            calls.end(done)
            del twin[done]
        elif step == "pass":
            calls.now += value
            calls.replies.relieve()
            for cut in [each for each in calls.cut if each in twin]:
                calls.end(cut)
                since, _ = twin.pop(cut)
                assert calls.now - since > SEND_MIN_S
            old = [size for since, size in twin.values() if calls.now - since > SEND_MIN_S]
            young = [size for since, size in twin.values() if calls.now - since <= SEND_MIN_S]
            assert not old or sum(old) + sum(young) <= UNREAD_BYTES_MAX // 2
            assert all(calls.now - since <= SEND_S for since, _ in twin.values())
        assert calls.replies.unread_bytes == sum(size for _, size in twin.values())


# -- with gRPC


class NonReader(HalfSender):
    """Sends whole calls, and lets the server send nothing but the ends of calls: its HTTP/2 windows are 0."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._socket.sendall(frame(4, 0, 0, (4).to_bytes(2, "big") + bytes(4)))

    def call(self, method: str, request: bytes, service: str = "acker.v1.Acker") -> int:
        self._stream += 2
        names = {
            ":method": "POST",
            ":scheme": "http",
            ":path": f"/{service}/{method}",
            ":authority": self.address,
            "content-type": "application/grpc",
            "te": "trailers",
        }
        block = b"".join(b"\0" + text(name) + text(value) for name, value in names.items())
        content = b"\0" + len(request).to_bytes(4, "big") + request
        self._socket.sendall(
            frame(HEADERS, END_HEADERS, self._stream, block) + frame(DATA, END_STREAM, self._stream, content)
        )
        return self._stream


def greedy_watch() -> bytes:
    return bytes(wire.encode(Watch("test", SESSION, 600_000, Limits(), 0, 0)).SerializeToString())


def add_outcomes(caller: Caller, count: int) -> None:
    caller.begin()
    for start in range(0, count, 25_000):
        roots = roots_of(range(start, min(start + 25_000, count)))
        caller.apply(inits(roots, 2 * start))
        caller.apply(acks(roots, 2 * start + 1))


def test_a_reply_that_is_never_read_is_cut_and_leaves_nothing_behind(start_server: StartServer) -> None:
    server = start_server(send_s=0.2)
    with Caller(server.address) as caller, NonReader(server.address) as reader:
        add_outcomes(caller, 1000)
        reader.until_ended({reader.call("Watch", greedy_watch()) for _ in range(3)})
        assert caller.stats().values["acker_replies_cut_total"] == 3
        # The outcomes are still there for those who read them.
        assert len(caller.watch().outcomes) == 1000
        eventually(lambda: server._replies.unread_bytes == 0)


def test_replies_that_are_read_are_not_counted_any_more(start_server: StartServer) -> None:
    server = start_server()
    with Caller(server.address) as caller:
        ack_a_tree(caller, 1)
        eventually(lambda: server._replies.unread_bytes == 0)
    assert server._replies.cut == 0


@pytest.mark.slow
def test_many_watches_that_read_nothing_stay_within_the_bound(start_server: StartServer) -> None:
    server = start_server(send_s=0.5)
    with Caller(server.address) as caller, NonReader(server.address) as reader:
        add_outcomes(caller, 250_000)
        streams = {reader.call("Watch", greedy_watch()) for _ in range(50)}
        most = 0

        def count() -> bool:
            nonlocal most
            most = max(most, server._replies.unread_bytes)
            return server._replies.cut >= 10

        eventually(count)
        assert 0 < most <= server._options.max_unread_bytes
        ack_a_tree(caller, 9)
        reader.until_ended(set(sorted(streams)[:5]))


def test_the_client_watches_again_after_its_watch_was_cut(start_server: StartServer) -> None:
    server = start_server()
    transport = GrpcTransport(server.address)
    with Caller(server.address) as caller:
        caller.begin()
        watching: list[Exception] = []

        def watch() -> None:
            try:
                transport.watch(Watch("test", SESSION, 600_000, Limits(), 0, 20_000), 30.0)
            except Exception as error:  # noqa: BLE001  # is the result
                watching.append(error)

        thread = threading.Thread(target=watch)
        thread.start()
        eventually(lambda: len(server.servicer._under_way) == 1)
        for context in list(server.servicer._under_way):
            context.cancel()  # type: ignore[attr-defined]
        thread.join(20)
        # A refusal would be Rejected, which the client does not try again.
        assert isinstance(watching[0], Unavailable)
        assert "CANCELLED" in str(watching[0])
    transport.close()


@pytest.mark.slow
def test_watches_of_health_that_read_nothing_hold_up_neither_checks_nor_the_stop(start_server: StartServer) -> None:
    server = start_server(receive_s=3600.0)
    with NonReader(server.address) as reader, Caller(server.address) as caller:
        for _ in range(50):
            reader.call("Watch", b"", "grpc.health.v1.Health")
        stub: Any = health_pb2_grpc.HealthStub(caller.channel)
        pool = server._workers["health"]
        eventually(lambda: pool._stalled_count == 4)
        assert stub.Check(health_pb2.HealthCheckRequest(), timeout=20).status == 1
        changes = stub.Watch(health_pb2.HealthCheckRequest())
        assert next(changes).status == 1
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        assert next(changes).status == 2
        stopping.join(20)
        assert not stopping.is_alive()


def test_an_unknown_service_is_not_found_and_may_be_watched(start_server: StartServer) -> None:
    with Caller(start_server().address) as caller:
        stub: Any = health_pb2_grpc.HealthStub(caller.channel)
        request = health_pb2.HealthCheckRequest(service="other")
        with pytest.raises(grpc.RpcError) as caught:
            stub.Check(request, timeout=20)
        assert caught.value.code() == grpc.StatusCode.NOT_FOUND
        watch = stub.Watch(request, timeout=20)
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        watch.cancel()


def test_a_call_that_finds_no_memory_to_wait_for_its_turn_again_ends_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    replies = Replies(send_s=SEND_S, max_bytes=UNREAD_BYTES_MAX, clock=lambda: 0.0)

    def find_no_memory() -> None:
        raise MemoryError

    with pytest.raises(MemoryError), replies.turn("a", is_large=False) as paused, paused():
        monkeypatch.setattr(threading, "Lock", find_no_memory)
    assert replies._working == 0
