"""Senders that stop in the middle of a message do not harm other calls."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from acker_service.process.workers import STALLED_MAX, STALLED_SHARE, Workers
from acker_service.server import Server
from tests.service.caller import Caller, ack_a_tree, eventually
from tests.service.half_sent import HalfSender
from tests.service.pages import page

StartServer = Callable[..., Server]
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


def health(caller: Caller) -> int:
    stub: Any = health_pb2_grpc.HealthStub(caller.channel)
    return int(stub.Check(health_pb2.HealthCheckRequest(), timeout=20).status)


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("method", ["Apply", "Watch"])
def test_whole_messages_pass_any_number_of_half_sent_ones(start_server: StartServer, method: str) -> None:
    server = start_server(receive_s=3600.0, http_port=0, workers=2, max_watches=4)
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            sender = stack.enter_context(HalfSender(server.address))
            for _ in range(75):
                sender.begin(method)
        with Caller(server.address) as caller:
            for session in range(1, 4):
                caller.hello()
                ack_a_tree(caller, session)
                caller.stats()
            assert health(caller) == SERVING
        assert page(server, "/readyz") == (200, "ok\n")


@pytest.mark.long
def test_calls_pass_those_of_eight_connections_that_send_halves_without_any_being_cancelled(
    start_server: StartServer,
) -> None:
    server = start_server(receive_s=3600.0, http_port=0)
    pool = server._workers["apply"]
    with contextlib.ExitStack() as stack:
        for _ in range(8):
            sender = stack.enter_context(HalfSender(server.address))
            for _ in range(120):
                sender.begin("Apply")
        eventually(lambda: pool.queued > 900)
        with Caller(server.address) as caller:
            for session in range(1, 4):
                ack_a_tree(caller, session)
        assert pool.cancelled == 0
        assert page(server, "/readyz") == (200, "ok\n")


def test_half_sent_checks_of_health_do_not_hold_up_health(start_server: StartServer) -> None:
    server = start_server(receive_s=3600.0)
    with HalfSender(server.address) as sender, Caller(server.address) as caller:
        for _ in range(100):
            sender.begin("Check", "grpc.health.v1.Health")
        assert health(caller) == SERVING
        ack_a_tree(caller, 1)


def test_a_request_that_does_not_arrive_in_its_time_is_cancelled(start_server: StartServer) -> None:
    server = start_server(receive_s=0.2)
    with HalfSender(server.address) as sender, Caller(server.address) as caller:
        streams = {sender.begin(method) for method in ("Apply", "Watch", "Settle", "Hello")}
        sender.until_ended(streams)
        ack_a_tree(caller, 1)


def test_one_connection_has_a_bounded_number_of_calls_and_the_server_of_connections(start_server: StartServer) -> None:
    server = start_server(max_calls_per_connection=8, max_connections=2, receive_s=3600.0)
    with Caller(server.address) as caller, HalfSender(server.address) as sender:
        caller.hello()
        streams = {sender.begin("Watch") for _ in range(50)}
        sender.until_ended(set(sorted(streams)[8:]))
        with HalfSender(server.address) as third:
            third.until_ended({1})
        ack_a_tree(caller, 1)


@pytest.mark.slow
def test_a_server_that_cannot_get_at_its_shard_is_neither_ready_nor_healthy(start_server: StartServer) -> None:
    server = start_server(http_port=0)
    with Caller(server.address) as caller:
        with server.namespaces.default.shared._lock:
            status, why = page(server, "/readyz")
            assert (status, "the shard did not answer" in why) == (503, True)
            assert health(caller) == NOT_SERVING
            assert page(server, "/livez")[0] == 200
        assert page(server, "/readyz")[0] == 200
        assert health(caller) == SERVING


def test_a_call_without_a_request_is_refused(start_server: StartServer) -> None:
    with Caller(start_server().address) as caller:
        call: Any = caller.channel.stream_unary("/acker.v1.Acker/Apply", None, None)
        with pytest.raises(grpc.RpcError) as caught:
            call(iter(()), timeout=20)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "without a request" in str(caught.value.details())


# -- the worker threads without a server


class Stall:
    """Tasks that keep receiving until they are cancelled."""

    def __init__(self, workers: Workers) -> None:
        self.workers = workers
        self.cancelled: list[int] = []
        self.begun = 0
        self.arrive = threading.Event()

    def until_crowded(self, clock: list[float]) -> None:
        """Wait until the maximum number of threads is receiving."""
        while self.begun < 2 + STALLED_MAX:
            clock[0] += 0.06
            self.await_begun(self.begun + 1)

    def await_begun(self, number: int) -> None:
        """Wait until this many tasks have begun to receive."""
        eventually(lambda: (self.workers.relieve(), self.begun >= number)[1])

    def submit_busy(self, busy: threading.Event) -> Any:
        """Submit a task whose request arrives when ``arrive`` is set, and which then works until ``busy`` is set."""

        def receive() -> bytes:
            self.begun += 1
            assert self.arrive.wait(20)
            return b""

        def work() -> bool:
            self.workers.receive(lambda: self.cancelled.append(-1), receive)
            return busy.wait(20)

        return self.workers.submit(work)

    def submit(self, number: int, connection: str | None = None) -> Any:
        gone = threading.Event()

        def cancel() -> None:
            self.cancelled.append(number)
            gone.set()

        def receive() -> bytes:
            self.begun += 1
            assert gone.wait(20)
            raise EOFError

        return self.workers.submit(lambda _: self.workers.receive(cancel, receive), connection)


@pytest.fixture
def clock() -> list[float]:
    return [0.0]


@pytest.fixture
def workers(clock: list[float]) -> Iterator[Workers]:
    def connection_of(*arguments: Any) -> Any:
        return arguments[0] if arguments else None

    workers = Workers("test", 2, receive_s=10.0, clock=lambda: clock[0], connection_of=connection_of)
    yield workers
    workers.shutdown()


def test_no_thread_is_added_before_a_request_stalls_and_a_call_waits(workers: Workers, clock: list[float]) -> None:
    stall = Stall(workers)
    for number in range(2):
        stall.submit(number)
    eventually(lambda: stall.begun == 2)
    done = workers.submit(lambda: "done")
    workers.relieve()
    assert not done.done()
    clock[0] = 1.0
    assert workers.waited_s == 1.0
    workers.relieve()
    assert done.result(20) == "done"
    assert stall.cancelled == []
    clock[0] = 11.0
    eventually(lambda: (workers.relieve(), stall.cancelled == [0, 1])[1])


def test_at_the_bound_the_request_that_has_been_arriving_for_longest_makes_room(
    workers: Workers, clock: list[float]
) -> None:
    stall = Stall(workers)
    most = 2 + STALLED_MAX
    for number in range(most):
        stall.submit(number)
        clock[0] += 0.1
        stall.await_begun(number + 1)
        assert stall.begun == number + 1
    done = workers.submit(lambda: "done")
    workers.relieve()
    assert stall.cancelled == []
    clock[0] += 0.1
    workers.relieve()
    assert done.result(20) == "done"
    assert stall.cancelled == [0]
    assert workers.cancelled == 1
    clock[0] += 100.0
    eventually(lambda: (workers.relieve(), len(stall.cancelled) == most)[1])
    eventually(lambda: sum(thread.name.startswith("acker-test_") for thread in threading.enumerate()) == 2)


def test_no_call_is_cancelled_for_one_to_which_a_thread_is_on_its_way(
    workers: Workers, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    stall, most = Stall(workers), 2 + STALLED_MAX
    for number in range(most - 1):
        stall.submit(number)
        clock[0] += 0.1
        stall.await_begun(number + 1)
    begin, work = threading.Event(), workers._work
    monkeypatch.setattr(workers, "_work", lambda: begin.wait(20) and work())
    stall.submit(most - 1)
    clock[0] += 0.1
    for _ in range(3):
        workers.relieve()
    assert stall.cancelled == []
    begin.set()
    stall.await_begun(most)
    assert stall.cancelled == []
    clock[0] += 100.0
    eventually(lambda: (workers.relieve(), len(stall.cancelled) == most)[1])


def test_a_request_that_arrives_slowly_has_half_a_second_however_many_wait(
    workers: Workers, clock: list[float]
) -> None:
    stall, most = Stall(workers), 2 + STALLED_MAX
    for number in range(most):
        stall.submit(number)
    stall.until_crowded(clock)
    for number in range(2 * most):
        stall.submit(most + number)
    clock[0] += 1.0
    workers.relieve()
    begun = clock[0]
    eventually(lambda: stall.begun == 2 * most)
    assert sorted(stall.cancelled) == list(range(most))
    clock[0] = begun + 0.5
    workers.relieve()
    assert len(stall.cancelled) == most
    clock[0] = begun + 0.6
    workers.relieve()
    assert len(stall.cancelled) == 2 * most
    eventually(lambda: stall.begun == 3 * most)
    clock[0] += 100.0
    eventually(lambda: (workers.relieve(), len(stall.cancelled) == 3 * most)[1])


def test_a_slow_request_is_not_cancelled_while_calls_wait_for_other_work(workers: Workers, clock: list[float]) -> None:
    stall, busy = Stall(workers), threading.Event()
    working = [stall.submit_busy(busy) for _ in range(1 + STALLED_MAX)]
    slow = stall.submit(0)
    stall.until_crowded(clock)
    stall.arrive.set()
    eventually(lambda: len(workers._receiving) == 1)
    waiting = workers.submit(lambda: "done")
    clock[0] += 5.0
    workers.relieve()
    assert (stall.cancelled, slow.done()) == ([], False)
    busy.set()
    assert waiting.result(20) == "done"
    assert all(each.result(20) for each in working)
    clock[0] += 11.0
    eventually(lambda: (workers.relieve(), stall.cancelled == [0])[1])


def test_one_connection_stalls_four_threads_at_most_and_keeps_none_from_others(
    workers: Workers, clock: list[float]
) -> None:
    stall = Stall(workers)
    for number in range(50):
        stall.submit(number, "half")
    stall.await_begun(2)
    for number in range(3, STALLED_SHARE + 1):
        clock[0] += 0.06
        stall.await_begun(number)
    for _ in range(20):
        clock[0] += 0.06
        workers.relieve()
        assert workers.submit(lambda _: "done", "whole").result(20) == "done"
    assert (stall.begun, stall.cancelled, workers.waited_s) == (STALLED_SHARE, [], 0.0)
    # Its next calls come one by one, even when all its requests are cancelled at once.
    clock[0] += 11.0
    eventually(lambda: (workers.relieve(), stall.begun > STALLED_SHARE)[1])
    assert (stall.begun, stall.cancelled) == (STALLED_SHARE + 1, list(range(STALLED_SHARE)))
    assert workers.submit(lambda _: "done", "whole").result(20) == "done"
    for number in range(STALLED_SHARE + 2, 51):
        clock[0] += 11.0
        stall.await_begun(number)
    clock[0] += 11.0
    eventually(lambda: (workers.relieve(), len(stall.cancelled) == 50)[1])


def test_a_connection_counts_like_others_some_time_after_its_last_stalled_request(
    workers: Workers, clock: list[float]
) -> None:
    stall = Stall(workers)
    cancelled = stall.submit(0, "slow")
    stall.await_begun(1)
    clock[0] += 11.0
    eventually(lambda: (workers.relieve(), cancelled.done())[1])
    assert workers.submit(lambda _: "done", "slow").result(20) == "done"
    assert workers._is_suspect("slow")
    clock[0] += 11.0
    workers.relieve()
    assert not workers._is_suspect("slow")
