"""Namespaces: quotas at their bounds, changes of the file, and the life of a shard."""

from __future__ import annotations

import logging
import threading
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from acker_protocol.messages import PROTOCOL_VERSION, DrainRequest, Hello, OpenBatch, Settle, Settlement, Status, Watch
from acker_service.access.roles import Role
from acker_service.access.tokens import LOOK_S
from acker_service.config import Config
from acker_service.core.quotas import DEFAULT, Quotas
from acker_service.core.shard import Shard
from acker_service.core.stats import Counters
from acker_service.http.metrics import Metrics
from acker_service.namespaces import Namespaces
from acker_service.process.connections import IDLE_S
from tests.access.in_memory import InMemoryServer, Refused, TokensFile, token_of
from tests.service.caller import acks, inits, roots_of

MIB = 1 << 20
SESSION = 7
JOB = token_of("job", "etl")
OPEN = Watch("orders", SESSION, 10_000)
HELLO = Hello(PROTOCOL_VERSION, "test")


class Clock:
    now = 1.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def file(tmp_path: Path) -> TokensFile:
    file = TokensFile(tmp_path / "tokens")
    file.declare("etl", "memory=64MiB max_pending=20 sources=2 connections=2")
    file.add("job", "etl")
    file.add("job", "")
    file.add("ops", "", Role.OPERATOR)
    return file


@pytest.fixture
def server(file: TokensFile, clock: Clock, tmp_path: Path) -> InMemoryServer:
    return InMemoryServer(file.path, clock, max_memory=600 * MIB, max_watches=8, state_dir=str(tmp_path / "state"))


def open_batch(server: InMemoryServer, up_to: int, number: int = 1, token: str = JOB) -> Any:
    return server.call(OpenBatch(SESSION, number, number << 40, up_to), token)


# -- quotas


def test_roots_up_to_max_pending_fit_and_one_more_does_not(server: InMemoryServer) -> None:
    server.call(OPEN, JOB)
    assert open_batch(server, 19).status == Status.APPLIED
    refused = open_batch(server, 2, number=2)
    assert (refused.status, refused.detail) == (
        Status.OVERLOADED,
        "no room for 2 more roots: max_pending is 20",
    )
    assert refused.retry_delay_ms > 0
    assert server.call(inits(roots_of([1, 2]), 0), JOB).status == Status.OVERLOADED
    assert open_batch(server, 1, number=2).status == Status.APPLIED
    # Acks, and the inits of open batches, are never refused.
    assert server.call(inits(roots_of(range(19)), 1, batch=1), JOB).status == Status.APPLIED
    assert server.call(acks(roots_of(range(19)), 2), JOB).status == Status.APPLIED
    assert server.namespaces.of("etl").refused["overloaded"] == 2
    # Others have their own room.
    server.call(OPEN, token_of("job", ""))
    assert open_batch(server, 1000, token=token_of("job", "")).status == Status.APPLIED


def test_sources_up_to_their_quota_may_open_and_one_more_may_not(server: InMemoryServer) -> None:
    for session in (1, 2):
        assert server.call(replace(OPEN, session=session), JOB).is_new
    refused = server.call(replace(OPEN, session=3), JOB)
    assert (refused.status, refused.detail) == (
        Status.OVERLOADED,
        "sources: 2 are open here, and sources=2 of the namespace are the most: close some",
    )
    assert server.call(replace(OPEN, session=2), JOB).status == Status.APPLIED
    server.call(replace(OPEN, session=1, close=True), JOB)
    assert server.call(replace(OPEN, session=3), JOB).is_new


def test_connections_beyond_their_quota_may_do_all_but_begin_new_work(server: InMemoryServer, clock: Clock) -> None:
    peers = [f"ipv4:10.0.0.7:{port}" for port in (1, 2, 3)]
    server.call(OPEN, JOB, peers[0])
    server.call(OpenBatch(SESSION, 1, 1 << 40, 5), JOB, peers[1])
    why = "connections: 3 are here, and connections=2 of the namespace are the most: close some"
    server.call(HELLO, JOB, peers[2])
    for ask in (replace(OPEN, session=8), OpenBatch(SESSION, 2, 1 << 41, 5)):
        refused = server.call(ask, JOB, peers[2])
        assert (refused.status, refused.detail) == (Status.OVERLOADED, why)
    assert server.call(OPEN, JOB, peers[2]).status == Status.APPLIED
    assert server.call(inits(roots_of([1]), 0, batch=1), JOB, peers[2]).status == Status.APPLIED
    assert server.call(acks(roots_of([1]), 1), JOB, peers[2]).status == Status.APPLIED
    assert server.call(Settle(SESSION, 1, Settlement.DONE), JOB, peers[2]).status == Status.APPLIED
    # Connections of other namespaces do not count.
    assert server.call(replace(OPEN, session=8), token_of("job", ""), peers[2]).is_new
    clock.now += IDLE_S + 0.1
    assert server.call(OpenBatch(SESSION, 2, 1 << 41, 5), JOB, peers[2]).status == Status.APPLIED


def test_a_namespace_without_memory_takes_no_new_work_and_all_acks(server: InMemoryServer) -> None:
    server.call(OPEN, JOB)
    open_batch(server, 5)
    server.call(inits(roots_of(range(5)), 0, batch=1), JOB)
    etl = server.namespaces.of("etl").shared
    etl.shard._state.max_memory = sum(etl.stats.memory.values())
    # Answers to Settle, sources and batches take memory, too.
    assert open_batch(server, 1, number=2).status == Status.APPLIED
    refused = open_batch(server, 1, number=3)
    assert refused.status == Status.OVERLOADED
    assert "bytes are in use" in refused.detail
    assert "memory= of the namespace" in refused.detail
    assert server.call(acks(roots_of(range(5)), 1), JOB).status == Status.APPLIED


def test_the_memory_of_an_empty_namespace_is_what_is_counted_for_it() -> None:
    import tracemalloc

    namespaces = Namespaces({DEFAULT: Shard(incarnation=1, generation=2)}, Config(), Clock())
    namespaces.set_quotas({name: Quotas(64 * MIB) for name in "ab"})
    namespaces.of("a")
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        made = namespaces.of("b")
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    counted = made.shared.stats.memory
    assert taken <= sum(counted.values()) <= 1.5 * taken
    assert made.shared.stats.process_bytes == 5 * MIB


def test_waiting_watches_are_divided_so_that_no_namespace_takes_all_threads(server: InMemoryServer) -> None:
    assert [each.shared._max_watches for each in server.namespaces.every] == [4]
    assert server.namespaces.of("etl").shared._max_watches == 4


def test_watches_of_more_namespaces_than_threads_do_not_wait_so_that_other_calls_find_a_thread() -> None:
    namespaces = Namespaces({DEFAULT: Shard(incarnation=1, generation=2)}, Config(max_watches=2, linger_s=0.0), Clock())
    namespaces.set_quotas({name: Quotas(64 * MIB) for name in "abc"})
    shared = namespaces.of("a").shared
    shared.watch(OPEN)
    on_end = Mock(return_value=False)
    assert shared.watch(replace(OPEN, wait_ms=1), on_end).status == Status.APPLIED
    on_end.assert_not_called()


# -- changes of the file


def test_changed_quotas_count_within_a_second_and_what_is_there_stays(
    server: InMemoryServer, file: TokensFile, clock: Clock
) -> None:
    server.call(OPEN, JOB)
    assert open_batch(server, 20).status == Status.APPLIED
    file.declare("etl", "memory=64MiB max_pending=10")
    clock.now += LOOK_S
    assert open_batch(server, 1, number=2).detail == "no room for 1 more roots: max_pending is 10"
    assert server.call(inits(roots_of(range(20)), 0, batch=1), JOB).status == Status.APPLIED
    assert server.namespaces.of("etl").shared.stats.pending == 20
    file.declare("etl", "memory=64MiB max_pending=21")
    clock.now += LOOK_S
    assert open_batch(server, 1, number=2).status == Status.APPLIED
    assert open_batch(server, 1, number=3).status == Status.OVERLOADED


def test_quotas_that_do_not_fit_are_refused_and_the_known_ones_stay(
    server: InMemoryServer, file: TokensFile, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    server.call(OPEN, JOB)
    before = server.namespaces.by_namespace
    file.declare("ads", "memory=400MiB")
    clock.now += LOOK_S
    assert open_batch(server, 21).status == Status.INVALID
    assert open_batch(server, 20).status == Status.APPLIED
    assert [each.allotment for each in server.namespaces.by_namespace] == [each.allotment for each in before]
    (line,) = [record for record in caplog.records if record.getMessage() == "tokens_not_read"]
    assert "the namespaces have 464MiB together" in line.acker_fields["reason"]  # type: ignore[attr-defined]
    file.declare("ads", "memory=64MiB")
    clock.now += LOOK_S
    server.call(HELLO, JOB)
    assert [each.name for each in server.namespaces.by_namespace] == ["", "etl", "ads"]


def test_a_namespace_that_is_removed_is_kept_until_its_sources_have_ended(
    server: InMemoryServer, file: TokensFile, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    server.call(OPEN, JOB)
    open_batch(server, 5)
    file.remove("etl")
    clock.now += LOOK_S
    for _ in range(2):
        with pytest.raises(Refused, match="UNAUTHENTICATED"):
            server.call(OPEN, JOB)
    server.namespaces.tick()
    assert [each.name for each in server.namespaces.every] == ["", "etl"]
    counted, waits = asdict(server.namespaces.stats), server.namespaces.lock_waits
    # It comes back in time, and has lost nothing.
    file.declare("etl", "memory=64MiB")
    file.add("job", "etl")
    clock.now += LOOK_S
    assert not server.call(OPEN, JOB).is_new
    file.remove("etl")
    clock.now += LOOK_S
    with pytest.raises(Refused, match="UNAUTHENTICATED"):
        server.call(OPEN, JOB)
    for _ in range(25):
        clock.now += 0.5
        server.namespaces.tick()
    assert [each.name for each in server.namespaces.every] == [""]
    # The server's counters never fall: Prometheus would take that for a restart.
    counted["leases_expired"] += 1
    assert Counters.load(asdict(server.namespaces.stats)) == Counters.load(counted)
    assert server.namespaces.lock_waits > waits
    assert "namespace_ended" in [record.getMessage() for record in caplog.records]
    # It comes back too late: the same session is another registration.
    generation = server.namespaces.default.shared.shard.generation
    file.declare("etl", "memory=64MiB")
    file.add("job", "etl")
    clock.now += LOOK_S
    reply = server.call(OPEN, JOB)
    assert reply.is_new
    assert reply.generation != generation


def test_a_session_that_opens_again_in_a_namespace_that_came_back_has_another_generation(
    server: InMemoryServer, file: TokensFile, clock: Clock
) -> None:
    generations = set()
    for _ in range(3):
        generations.add(server.call(OPEN, JOB).generation)
        server.call(replace(OPEN, close=True), JOB)
        file.remove("etl")
        clock.now += LOOK_S
        with pytest.raises(Refused):
            server.call(HELLO, JOB)
        server.namespaces.tick()
        assert [each.name for each in server.namespaces.every] == [""]
        file.declare("etl")
        file.add("job", "etl")
        clock.now += LOOK_S
    assert len(generations) == 3


def test_a_name_that_is_not_declared_makes_no_shard(server: InMemoryServer) -> None:
    with pytest.raises(KeyError):
        server.namespaces.of("elt")
    assert [each.name for each in server.namespaces.every] == [""]


def test_many_callers_that_use_a_namespace_at_once_get_one_shard() -> None:
    namespaces = Namespaces({DEFAULT: Shard(incarnation=1, generation=2)}, Config(), Clock())
    for name in map(str, range(20)):
        namespaces.set_quotas({name: Quotas(64 * MIB)})
        ready = threading.Barrier(4)
        found: list[Any] = []

        def use(name: str = name, ready: threading.Barrier = ready, found: list[Any] = found) -> None:
            ready.wait()
            found.append(namespaces.of(name))

        threads = [threading.Thread(target=use) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(map(id, found))) == 1


# -- the whole server


def test_a_drain_is_of_all_namespaces_also_of_those_that_come_later(server: InMemoryServer) -> None:
    server.call(OPEN, JOB)
    open_batch(server, 5)
    reply = server.call(DrainRequest(), token_of("ops", ""))
    assert reply.detail == "open batches: 1"
    assert open_batch(server, 5, number=2).status == Status.DRAINING
    assert server.call(OPEN, token_of("job", "")).status == Status.DRAINING
    server.call(Settle(SESSION, 1, Settlement.ABANDON), JOB)
    assert server.namespaces.left == "unconfirmed outcomes: 5"
    server.call(replace(OPEN, confirmed=5), JOB)
    assert server.namespaces.left == ""
    namespaces = Namespaces({DEFAULT: Shard(incarnation=1, generation=2)}, Config(), Clock())
    namespaces.set_quotas({"etl": Quotas(64 * MIB)})
    namespaces.drain()
    assert namespaces.of("etl").shared.shard.is_draining


def test_an_error_in_the_tick_of_one_namespace_does_not_stop_the_others(
    server: InMemoryServer, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.call(replace(OPEN, lease_ms=1000), JOB)

    def fail() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(server.namespaces.default.shared, "tick", fail)
    for _ in range(5):
        clock.now += 0.5
        with pytest.raises(ZeroDivisionError):
            server.namespaces.tick()
    assert server.namespaces.of("etl").shared.stats.sources == 0


def test_a_server_whose_shard_of_one_namespace_is_held_does_not_answer(server: InMemoryServer) -> None:
    server.call(HELLO, JOB)
    assert server.namespaces.answers(0.0)
    with server.namespaces.of("etl").shared._lock:
        assert not server.namespaces.answers(0.0)


def test_metrics_are_sums_and_each_declared_namespace_has_its_own(server: InMemoryServer) -> None:
    metrics = Metrics(server.namespaces)
    for token, roots in ((JOB, 2), (token_of("job", ""), 3)):
        server.call(OPEN, token)
        server.call(inits(roots_of(range(roots)), 0), token)
    seen = metrics.values()
    assert seen["acker_pending_roots"] == 5
    assert seen["acker_sources"] == 2
    assert seen["acker_memory_limit_bytes"] == 600 * MIB
    assert seen['acker_source_pending_roots{source="orders"}'] == 3
    assert seen['acker_source_pending_roots{source="orders",namespace="etl"}'] == 2
    assert seen['acker_namespace_roots{namespace=""}'] == 3
    assert seen['acker_namespace_roots{namespace="etl"}'] == 2
    assert seen['acker_namespace_roots_limit{namespace="etl"}'] == 20
    assert seen['acker_namespace_memory_limit_bytes{namespace="etl"}'] == 64 * MIB
    assert seen['acker_namespace_memory_limit_bytes{namespace=""}'] == 536 * MIB
    assert seen['acker_namespace_connections{namespace="etl"}'] == 1
    assert seen['acker_namespace_refused_calls_total{namespace="etl",status="overloaded"}'] == 0
    total = sum(value for name, value in seen.items() if name.startswith("acker_namespace_memory_bytes"))
    kinds = sum(value for name, value in seen.items() if name.startswith("acker_memory_bytes"))
    assert total == kinds


def test_a_server_without_namespaces_has_no_metrics_of_them() -> None:
    metrics = Metrics(Namespaces({DEFAULT: Shard(incarnation=1, generation=2)}, Config(), Clock()))
    assert not [name for name in metrics.values() if "namespace" in name]


def test_a_state_with_a_namespace_that_is_no_longer_declared_is_kept_until_its_sources_have_ended(
    server: InMemoryServer, file: TokensFile, clock: Clock
) -> None:
    server.call(OPEN, JOB)
    open_batch(server, 5)
    server.stop()
    file.remove("etl")
    server.start()
    assert [each.name for each in server.namespaces.every] == ["", "etl"]
    server.namespaces.tick()
    assert server.namespaces.every[1].shared.stats.open_batches == 1
    for _ in range(25):
        clock.now += 0.5
        server.namespaces.tick()
    assert [each.name for each in server.namespaces.every] == [""]
