"""/metrics: refusals, queue times, ages and sources, with a bounded number of labels."""

from __future__ import annotations

import re
import threading
import time
import urllib.request
from collections.abc import Callable
from itertools import count
from typing import Any

import grpc
import pytest

from acker_protocol.messages import OpenBatch, Settlement, Status
from acker_service.core.shard import Shard
from acker_service.http.metrics import OTHER, SOURCES_MAX
from acker_service.process.workers import Workers
from acker_service.server import Server
from acker_service.shared_shard import SharedShard
from tests.service.caller import SESSION, Caller, ack_a_tree, acks, eventually, inits, roots_of


@pytest.fixture
def server(start_server: Callable[..., Server]) -> Server:
    return start_server(http_port=0, max_pending=1000)


@pytest.fixture
def caller(server: Server) -> Any:
    with Caller(server.address) as caller:
        yield caller


def text(server: Server) -> str:
    with urllib.request.urlopen(f"http://{server.http_address}/metrics", timeout=10) as reply:
        return str(reply.read().decode())


def figures(server: Server) -> dict[str, float]:
    lines = (line.rsplit(" ", 1) for line in text(server).splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in lines}


def refused(server: Server) -> dict[tuple[str, str], float]:
    found = re.findall(r'acker_refused_calls_total{method="(\w+)",status="(\w+)"} (\S+)', text(server))
    return {(method, status): float(times) for method, status, times in found}


def test_every_kind_of_refusal_is_counted_by_its_method_and_status(server: Server, caller: Caller) -> None:
    assert set(refused(server).values()) == {0.0}
    assert {("Apply", "unauthenticated"), ("Watch", "permission_denied")} <= set(refused(server))
    caller.begin()
    assert caller.open_batch(OpenBatch(SESSION + 1, 1, 100, 5)).status == Status.UNKNOWN_SOURCE
    assert caller.open_batch(OpenBatch(SESSION, 1, 100, 800)).status == Status.APPLIED
    assert caller.open_batch(OpenBatch(SESSION, 2, 10_000, 800)).status == Status.OVERLOADED
    assert caller.open_batch(OpenBatch(SESSION, 2, 10_000, 2000)).status == Status.INVALID
    assert caller.apply(inits(roots_of(range(500)), 0)).status == Status.OVERLOADED
    assert caller.settle(9, Settlement.DONE).status == Status.UNKNOWN_BATCH
    assert caller.watch(confirmed=77).status == Status.INVALID
    with pytest.raises(grpc.RpcError):
        caller.hello(version=99)
    with pytest.raises(grpc.RpcError):
        caller.raw("Watch", b"\xff")
    assert {key for key, times in refused(server).items() if times == 1} == {
        ("OpenBatch", "unknown_source"),
        ("OpenBatch", "overloaded"),
        ("OpenBatch", "invalid"),
        ("Apply", "overloaded"),
        ("Settle", "unknown_batch"),
        ("Watch", "invalid"),
        ("Watch", "invalid_argument"),
        ("Hello", "failed_precondition"),
    }
    assert sum(refused(server).values()) == 8


def test_a_call_that_was_done_before_is_not_refused(server: Server, caller: Caller) -> None:
    caller.begin()
    for _ in range(2):
        caller.apply(inits(roots_of([1]), 0))
    assert sum(refused(server).values()) == 0


def test_ages_and_pending_roots_have_the_name_of_the_source_and_no_id(server: Server, caller: Caller) -> None:
    caller.begin()
    caller.apply(inits(roots_of(range(3)), 0))
    seen = figures(server)
    assert seen['acker_source_pending_roots{source="test"}'] == 3
    assert seen['acker_source_watch_age_seconds{source="test"}'] >= 0
    assert seen["acker_oldest_pending_age_seconds"] > 0
    caller.apply(acks(roots_of(range(3)), 1))
    assert figures(server)["acker_oldest_pending_age_seconds"] == 0
    labels = set(re.findall(r"(\w+)=\"", text(server)))
    assert labels == {"version", "verdict", "status", "method", "code", "pool", "le", "source", "state", "kind"}


def emit(caller: Caller, session: int, roots: int) -> None:
    """Open a source and init roots in its open stream."""
    caller.watch(session, source=f"source {session}")
    if roots:
        caller.apply(inits(roots_of(range(roots), base=session << 30), 0, session=session))


def named(server: Server, metric: str) -> dict[str, float]:
    """Return a metric of sources by their names."""
    seen = figures(server).items()
    return {name.split('"')[1]: value for name, value in seen if name.startswith(f"{metric}{{")}


def test_names_of_sources_are_bounded_and_the_rest_is_one(server: Server, caller: Caller) -> None:
    for session in range(1, SOURCES_MAX + 11):
        emit(caller, session, roots=2 if session <= SOURCES_MAX else 1)
    caller.watch(1000, source=OTHER)
    caller.apply(inits(roots_of([1], base=1 << 61), 0, session=1000))
    pending = named(server, "acker_source_pending_roots")
    assert len(pending) == SOURCES_MAX + 1
    assert pending[OTHER] == 11
    assert named(server, "acker_source_watch_age_seconds").keys() == pending.keys()


def test_early_names_do_not_take_the_labels_of_sources_that_work_now(server: Server, caller: Caller) -> None:
    for session in range(1, SOURCES_MAX + 1):
        emit(caller, session, roots=0)
    emit(caller, 500, roots=3)
    emit(caller, 501, roots=0)
    pending = named(server, "acker_source_pending_roots")
    assert pending["source 500"] == 3
    # Where nothing is pending, those that watched last come first.
    assert pending.keys() >= {"source 501", f"source {SOURCES_MAX}"}
    assert "source 1" not in pending
    assert len(pending) == SOURCES_MAX + 1


def test_clients_that_the_http_port_disconnects_and_log_lines_that_are_left_out_are_counted(server: Server) -> None:
    seen = figures(server)
    assert (seen["acker_http_clients_disconnected_total"], seen["acker_log_lines_left_out_total"]) == (0, 0)
    assert server._http is not None
    server._http.disconnected += 3
    assert figures(server)["acker_http_clients_disconnected_total"] == 3


def test_a_call_that_waits_for_a_thread_is_queued_and_then_measured() -> None:
    waits: list[float] = []
    pool, gate = Workers("test", 1, receive_s=10.0, clock=time.monotonic), threading.Event()
    pool.observe = waits.append
    first, second = pool.submit(gate.wait, 20), pool.submit(int, "7", base=8)
    eventually(lambda: pool.queued == 1 and len(waits) == 1)
    gate.set()
    assert (first.result(), second.result(), len(waits), pool.queued) == (True, 7, 2, 0)
    assert waits[1] > 0
    pool.shutdown()


def test_reports_and_other_calls_wait_in_pools_of_their_own(server: Server, caller: Caller) -> None:
    ack_a_tree(caller, 1)
    seen = figures(server)
    assert seen['acker_call_queue_seconds_count{pool="apply"}'] == 2
    assert seen['acker_call_queue_seconds_count{pool="call"}'] == 3
    assert seen['acker_queued_calls{pool="apply"}'] == 0


def test_waiting_for_the_lock_is_measured(server: Server) -> None:
    is_waiting, seconds = threading.Event(), count()

    def clock() -> float:
        is_waiting.set()
        return float(next(seconds))

    shared = SharedShard(Shard(incarnation=1, generation=2), clock=clock, max_watches=1, linger_s=0.0)
    with shared._lock:
        waiting = threading.Thread(target=lambda: shared.stats)
        waiting.start()
        assert is_waiting.wait(20)
    waiting.join()
    assert shared.lock_waits == (2, 1.0)
    seen = figures(server)
    assert seen["acker_lock_wait_seconds_count"] > 0
    assert seen["acker_lock_wait_seconds_sum"] >= 0


def test_the_process_is_measured_and_nothing_says_when_a_series_began(server: Server) -> None:
    seen = figures(server)
    assert seen["process_resident_memory_bytes"] > 1e7
    assert seen["process_open_fds"] > 3
    assert "_created" not in text(server)
