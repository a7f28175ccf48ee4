"""Emissions on several servers: each root gets one outcome, and a server that missed a report has no vote."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from acker_client import AckerClient, Anchor, Entries, Identity, Settings, Verdict, errors
from acker_client import pins as pins_module
from acker_client.cluster import stream as stream_module
from acker_client.reports import other_sources
from acker_client.reports import state as state_module
from acker_client.reports.replication import Replication
from acker_client.reports.sending import Sending
from acker_protocol import ids
from acker_protocol.messages import MemberState, Pins, Status, Watch
from acker_protocol.reports import fold
from acker_testing import LocalServer, SimulatedTime, new_shard
from tests.client.test_client_members import Cut, Servers
from tests.client.test_client_members_change import Registered

ROOTS = 50


@pytest.fixture
def servers() -> Iterator[Servers]:
    servers = Servers(2)
    yield servers
    servers.close()


@pytest.fixture
def registered() -> Iterator[Listed]:
    servers = Listed(2)
    yield servers
    servers.close()


class Listed(Registered):
    """Registered servers with network cuts: a process that cannot reach a server still sees it in the view."""

    def _connect(self, name: str, address: str) -> Any:
        return Cut(super()._connect(name, address), lambda: address in self.cut.get(name, ()))

    def kill(self, number: int) -> None:
        """Stop a server for good, and remove it from the registry's view."""
        self.by_address.pop(self.listed.pop(number))
        self.epoch += 1


def emitted(source: AckerClient, count: int = ROOTS) -> list[Anchor]:
    anchors = [source.emit() for _ in range(count)]
    source.flush()
    return anchors


def ack(client: AckerClient, anchors: list[Anchor]) -> None:
    for root, edge in anchors:
        client.ack(root, edge)
    client.flush()


def roots_of(anchors: list[Anchor]) -> ids.Column:
    return np.array([anchor.root_id for anchor in anchors], np.uint64)


def heard(source: AckerClient, count: int, wait_s: float = 0.1) -> Counter[tuple[int, Verdict]]:
    """Collect outcomes until there are ``count`` of them, and a little longer."""
    found: Counter[tuple[int, Verdict]] = Counter()
    while found.total() < count:
        found.update((each.root_id, each.verdict) for each in source.watch(wait_s).outcomes)
    for _ in range(3):
        found.update((each.root_id, each.verdict) for each in source.watch(wait_s).outcomes)
    return found


def all_of(anchors: list[Anchor], verdict: Verdict) -> Counter[tuple[int, Verdict]]:
    return Counter((anchor.root_id, verdict) for anchor in anchors)


@pytest.mark.parametrize("replicas", [1, 2])
def test_roots_acked_through_other_processes_are_acked(servers: Servers, replicas: int) -> None:
    source, worker = servers.client(replicas=replicas), servers.client()
    worker.join(source.open_source("clicks"))
    anchors = emitted(source, 3000)
    ack(worker, anchors)
    assert heard(source, 3000) == all_of(anchors, Verdict.ACKED)


@pytest.mark.long
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_process_that_has_not_joined_finds_the_source_by_its_roots(servers: Servers, replicas: int) -> None:
    source, worker = servers.client(replicas=replicas), servers.client()
    source.open_source("clicks", message_timeout_s=None)
    for _ in range(3):
        anchors = emitted(source, 600)
        ack(worker, anchors)
        assert heard(source, 600) == all_of(anchors, Verdict.ACKED)
    assert len(worker._state().others.joined) == 1


def test_a_source_that_was_found_by_a_root_is_the_same_after_a_join(servers: Servers) -> None:
    source, worker = servers.client(), servers.client()
    session = source.open_source("clicks")
    first, second = emitted(source, 3), emitted(source, 3)
    ack(worker, first)
    worker.join(session)
    ack(worker, second)
    assert list(worker._state().others.joined) == [session]
    assert heard(source, 6) == all_of(first + second, Verdict.ACKED)


def test_a_client_that_asks_for_its_own_root_still_goes_on_without_a_server_of_its_source(servers: Servers) -> None:
    source = servers.client(budget_s=2.0)
    source.open_source("clicks", message_timeout_s=None)
    anchors = emitted(source)
    assert source.has_emitted(anchors[0].root_id)
    servers[1].stop()
    ack(source, anchors)
    assert heard(source, ROOTS) == all_of(anchors, Verdict.ACKED)


def test_a_late_ack_of_a_process_that_never_heard_of_the_source_is_dropped_in_silence(servers: Servers) -> None:
    source, worker = servers.client(), servers.client()
    source.open_source("clicks")
    anchors = emitted(source, 3)
    ack(source, anchors)
    assert heard(source, 3) == all_of(anchors, Verdict.ACKED)
    stop_drawing(source)
    while any(server.shard.left for server in servers.by_address.values()):
        source.watch(0.05)
    ack(worker, anchors)
    assert not worker._state().buffered()


def test_roots_of_a_source_that_has_ended_are_refused_with_advice(servers: Servers) -> None:
    source, worker = servers.client(), servers.client()
    source.open_source("clicks")
    anchors = emitted(source, 3)
    source.close_source()
    with pytest.raises(errors.UnknownSource, match=r"was not watched for its lease_s.* read outcomes\(\)"):
        ack(worker, anchors)


@pytest.mark.parametrize("count", [1, 2])
def test_a_process_finds_a_source_whose_servers_drain(count: int) -> None:
    servers = Servers(count)
    source, workers = servers.client(), [servers.client(budget_s=2.0) for _ in range(2)]
    session = source.open_source("clicks", message_timeout_s=None)
    anchors = emitted(source, 4)
    for server in servers.by_address.values():
        server.shard.drain()
    ack(workers[0], anchors[:2])
    workers[1].join(session)
    ack(workers[1], anchors[2:])
    assert heard(source, 4) == all_of(anchors, Verdict.ACKED)
    servers.close()


def test_a_process_finds_a_source_on_a_draining_server_beside_another_one(servers: Servers) -> None:
    servers[1].stop()
    source = servers.client()
    source.open_source("clicks", message_timeout_s=None)
    anchors = emitted(source, 3)
    servers[0].shard.drain()
    servers[1].start()
    ack(servers.client(), anchors)
    assert heard(source, 3) == all_of(anchors, Verdict.ACKED)


@pytest.mark.parametrize("call", ["flush", "report", "has_emitted"])
def test_a_call_that_waits_for_an_unknown_root_renews_the_lease_of_the_clients_own_source(call: str) -> None:
    time = SimulatedTime(1000.0)
    servers = {f"s{n}:1": LocalServer(id=n, clock=time.clock, sleep=time.sleep) for n in range(2)}

    def connect(address: str) -> Any:
        # As long as one server does not say whether it knows a root, the root may live there.
        return Cut(servers[address].connect(address), lambda: address == "s0:1", only="pins")

    client = AckerClient(Settings(tuple(servers), budget_s=60.0), connect=connect, clock=time.clock, sleep=time.sleep)
    client.open_source("clicks", lease_s=20.0, message_timeout_s=None)
    anchors, unknown = emitted(client, 3), Anchor(123456789, 5)
    if call == "has_emitted":
        assert not client.has_emitted(unknown.root_id)
        ack(client, anchors)
    elif call == "report":
        with pytest.raises(errors.Unavailable, match="no server that answers knows where root"):
            client.report(*tasks_report([unknown]))
        ack(client, anchors)
    else:
        with pytest.raises(errors.Unavailable, match="no server that answers knows where root"):
            ack(client, [unknown, *anchors])
    assert heard(client, 3) == all_of(anchors, Verdict.ACKED)


def test_a_server_that_a_source_has_left_out_is_not_waited_for_because_of_an_unknown_root() -> None:
    time = SimulatedTime(1000.0)
    servers = {f"s{n}:1": LocalServer(id=n, clock=time.clock, sleep=time.sleep) for n in range(2)}
    settings = Settings(tuple(servers), gone_after_s=5.0, budget_s=60.0)
    source, worker = (
        AckerClient(
            settings, connect=lambda address: servers[address].connect(address), clock=time.clock, sleep=time.sleep
        )
        for _ in range(2)
    )
    source.open_source("clicks", message_timeout_s=None)
    [first, second] = emitted(source, 2)
    ack(worker, [first])
    servers["s0:1"].stop()
    source.leave_out(1, {0})
    source.watch(0.1)
    with pytest.raises(errors.UnknownSource, match="no server knows root 123456789"):
        ack(worker, [second, Anchor(123456789, 5)])


def test_an_update_of_an_unknown_root_hides_no_other_source(servers: Servers) -> None:
    source, worker = servers.client(), servers.client()
    source.open_source("clicks", message_timeout_s=5.0)
    for place in range(other_sources.MISSES_MAX + 1):
        # These sort before all other roots.
        worker.ack(ids.unmix64(1 + place), 5)
    anchors = emitted(source, 3)
    with pytest.raises(errors.UnknownSource, match="no server knows root"):
        ack(worker, anchors)
    with pytest.raises(errors.UnknownSource, match="no server knows root"):
        worker.flush()
    assert heard(source, 3) == all_of(anchors, Verdict.ACKED)


@pytest.mark.parametrize("is_fail", [False, True])
def test_an_update_that_all_servers_disown_for_long_is_dropped_but_a_fail_without_an_edge(is_fail: bool) -> None:
    time = SimulatedTime(1000.0)
    servers = {f"s{n}:1": LocalServer(id=n, clock=time.clock, sleep=time.sleep) for n in range(2)}
    worker = AckerClient(
        Settings(tuple(servers)),
        connect=lambda address: servers[address].connect(address),
        clock=time.clock,
        sleep=time.sleep,
    )
    if is_fail:
        worker.fail(5)
    else:
        worker.ack(5, 7)
    for _ in range(2):
        with pytest.raises(errors.UnknownSource, match="no server knows root 5"):
            worker.flush()
        assert worker._state().buffered() == 1
        time.sleep(other_sources.DISOWNED_S / 2)
    with pytest.raises(errors.UnknownSource, match="no server knows root 5"):
        worker.flush()
    assert (worker._state().buffered(), worker.totals.unreported) == ((1, 0) if is_fail else (0, 1))


@pytest.mark.slow
def test_a_root_whose_server_has_not_got_the_newest_pins_yet_is_waited_for(servers: Servers) -> None:
    source, worker = servers.client(), servers.client(budget_s=1.0)
    session = source.open_source("clicks", message_timeout_s=None)
    first = emitted(source, 3)
    old = {address: server.shard._state.sources[session].pins for address, server in servers.by_address.items()}
    stop_drawing(source)
    second = emitted(source, 3)
    for address, server in servers.by_address.items():
        server.shard._state.sources[session].keep_pins(old[address])
    with pytest.raises(errors.Unavailable, match="no server that answers knows where root"):
        ack(worker, second)
    for _ in range(3):
        # The first reply shows that the server has other pins, and the next request brings these.
        source.watch(0.1)
    ack(worker, first)
    assert heard(source, 6) == all_of(first + second, Verdict.ACKED)


def tasks_report(anchors: list[Anchor]) -> tuple[Identity, Entries]:
    """Return a report of the acks of a task, whose attempts all make the same report."""
    roots, edges = (np.array(column, np.uint64) for column in zip(*anchors, strict=True))
    return Identity(7, int(roots[0])), fold(roots, edges)


def test_whole_reports_of_two_processes_about_another_ones_roots_count_once(servers: Servers) -> None:
    source, workers = servers.client(), [servers.client() for _ in range(3)]
    source.open_source("clicks", message_timeout_s=None)
    anchors = emitted(source)
    for worker in workers:
        worker.report(*tasks_report(anchors))
    assert [bool(worker.totals.applied) for worker in workers] == [True, False, False]
    assert heard(source, ROOTS) == all_of(anchors, Verdict.ACKED)


def test_a_whole_report_goes_on_without_a_server_once_the_source_has_left_it_out(servers: Servers) -> None:
    source, worker = servers.client("source"), servers.client("worker")
    source.open_source("clicks", message_timeout_s=None)
    anchors = emitted(source)
    servers[1].stop()
    reporting = threading.Thread(target=worker.report, args=tasks_report(anchors))
    reporting.start()
    found = Counter[tuple[int, Verdict]]()
    while reporting.is_alive():
        found += heard(source, 0)
    assert found + heard(source, ROOTS - found.total()) == all_of(anchors, Verdict.ACKED)


def test_another_attempt_sends_the_same_report_although_some_of_its_roots_are_over(servers: Servers) -> None:
    source, first, second = servers.client(), servers.client(), servers.client()
    source.open_source("clicks", message_timeout_s=None)
    done = emitted(source, 3)
    stop_drawing(source)
    pending = emitted(source, 3)
    edges = [anchor.edge ^ 1 for anchor in pending]
    consumed = [*done, *(Anchor(anchor.root_id, edge) for anchor, edge in zip(pending, edges, strict=True))]
    first.report(*tasks_report(consumed))
    assert heard(source, 3) == all_of(done, Verdict.ACKED)
    while source._state().source().pin_of(1) is not None:
        source.watch(0.05)
    assert not second.report(*tasks_report(consumed)).conflict
    for root, _ in pending:
        source.ack(root, 1)
    source.flush()
    assert heard(source, 3) == all_of(pending, Verdict.ACKED)


def test_sources_found_by_a_root_are_remembered_up_to_a_bound(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(other_sources, "FOUND_MAX", 2)
    worker, sources = servers.client(), [servers.client() for _ in range(4)]
    for source in [*sources, sources[0]]:
        if source._state().source_or_none is None:
            source.open_source("clicks", message_timeout_s=None)
        anchors = emitted(source, 3)
        ack(worker, anchors)
        assert heard(source, 3) == all_of(anchors, Verdict.ACKED)
        assert len(worker._state().others.joined) <= 2


@pytest.mark.parametrize("count", [1, 3])
def test_join_needs_no_watch_of_the_source_and_no_emission_before_it(count: int) -> None:
    servers = Servers(count)
    source, worker = servers.client(), servers.client()
    session = source.open_source("clicks")
    worker.join(session)
    anchors = emitted(source, 10)
    ack(worker, anchors)
    assert heard(source, 10) == all_of(anchors, Verdict.ACKED)
    servers.close()


@pytest.mark.long
def test_a_fail_that_cannot_reach_one_server_is_delivered_later(registered: Listed) -> None:
    source = registered.client("source")
    worker, other = registered.client("worker", budget_s=1.0), registered.client("other", budget_s=1.0)
    session = source.open_source("clicks", message_timeout_s=None)
    anchors = emitted(source)
    for each in (worker, other):
        each.join(session)
    registered.cut["worker"] = {"s0:1"}
    for root, edge in anchors:
        worker.fail(root, "no such click", edge=edge)
    with pytest.raises(errors.Unavailable, match="s0:1"):
        worker.flush()
    # The only server that has the fails dies before the source has received them.
    registered.kill(1)
    registered.cut.clear()
    worker.flush()
    # The view no longer lists s1, but the source has not left it out of the batch yet.
    with pytest.raises(errors.Unavailable, match="s1:1"):
        ack(other, anchors)
    assert heard(source, ROOTS) == all_of(anchors, Verdict.FAILED)
    other.flush()


@pytest.mark.slow
def test_a_fail_is_not_given_to_the_only_server_that_answers_for_a_root_that_lives_on_another(servers: Servers) -> None:
    source, worker, other = servers.client("source"), servers.client("worker"), servers.client("other")
    servers.cut["worker"] = {"s1:1"}
    session = source.open_source("clicks", message_timeout_s=None)
    for each in (worker, other):
        each.join(session)
    servers.cut["source"] = {"s0:1"}
    anchors = emitted(source)
    for root, _ in anchors:
        worker.fail(root, "no such click")
    with pytest.raises(errors.RETRYABLE, match="root"):
        worker.flush()
    servers.cut.clear()
    while worker._state().buffered():
        with contextlib.suppress(*errors.RETRYABLE):
            worker.flush()
    ack(other, anchors)
    assert heard(source, ROOTS) == all_of(anchors, Verdict.FAILED)


def test_a_fail_is_not_given_to_the_only_server_whose_address_is_known_before_it_has_said_that_there_are_others(
    registered: Listed,
) -> None:
    source, other = (registered.client(name, replicas=1, spread=1) for name in ("source", "other"))
    session = source.open_source("clicks", message_timeout_s=None)
    anchors = emitted(source)
    [home] = source._state().source().pins[-1].placement.members
    [elsewhere] = registered.by_address.keys() - {home.address}
    settings = Settings((elsewhere,), budget_s=0.2, call_timeout_s=0.1)
    with AckerClient(settings, connect=lambda address: registered._connect("worker", address)) as worker:
        registered.cut["worker"] = {elsewhere}
        for root, _ in anchors:
            worker.fail(root, "no such click")
        with pytest.raises(errors.Unavailable):
            worker.flush()
        registered.cut.clear()
        worker.flush()
    other.join(session)
    ack(other, anchors)
    assert heard(source, ROOTS) == all_of(anchors, Verdict.FAILED)


def test_a_process_that_joined_goes_on_without_a_server_once_the_source_has_left_it_out(servers: Servers) -> None:
    source, worker = servers.client("source"), servers.client("worker")
    worker.join(source.open_source("clicks"))
    anchors = emitted(source)
    servers[1].stop()
    flushing = threading.Thread(target=ack, args=(worker, anchors))
    flushing.start()
    found = Counter[tuple[int, Verdict]]()
    while flushing.is_alive():
        found += heard(source, 0)
    assert found + heard(source, ROOTS - found.total()) == all_of(anchors, Verdict.ACKED)


def test_a_client_that_opens_its_closed_source_again_goes_on_without_a_server_that_died(servers: Servers) -> None:
    client = servers.client(budget_s=10.0)
    client.open_source("clicks", session=77).close()
    client.open_source("clicks", session=77, message_timeout_s=None)
    anchors = emitted(client)
    servers[1].stop()
    ack(client, anchors)
    assert heard(client, ROOTS) == all_of(anchors, Verdict.ACKED)


def test_a_report_about_own_and_other_roots_goes_on_without_a_server_once_the_other_source_has_left_it_out(
    servers: Servers,
) -> None:
    source, other = servers.client("source"), servers.client("other", budget_s=10.0)
    other.join(source.open_source("clicks"))
    other.open_source("orders", message_timeout_s=None)
    anchors, own = emitted(source), emitted(other)
    servers[1].stop()
    flushed = list[bool]()

    def flush() -> None:
        ack(other, anchors + own)
        flushed.append(True)

    flushing = threading.Thread(target=flush)
    flushing.start()
    found = Counter[tuple[int, Verdict]]()
    while flushing.is_alive():
        found += heard(source, 0)
    assert flushed
    assert found + heard(source, ROOTS - found.total()) == all_of(anchors, Verdict.ACKED)
    assert heard(other, ROOTS) == all_of(own, Verdict.ACKED)


def test_a_source_that_cannot_reach_a_server_believes_it_no_more_and_emits_without_it(servers: Servers) -> None:
    source, worker = servers.client("source"), servers.client("worker")
    worker.join(source.open_source("clicks", message_timeout_s=None))
    anchors = emitted(source)
    servers.cut["source"] = {"s1:1"}
    for root, edge in anchors:
        source.fail(root, "no such click", edge=edge)
    source.flush()
    servers.cut.clear()
    # The server that missed the fails now gets acks of whole trees.
    ack(worker, anchors)
    assert heard(source, ROOTS) == all_of(anchors, Verdict.FAILED)


@pytest.mark.parametrize("replicas", [1, 2])
def test_each_root_ends_although_its_source_alone_cannot_reach_a_server_that_the_view_lists(replicas: int) -> None:
    time = SimulatedTime(1000.0)
    servers = Listed(2, time)
    source = servers.client("source", replicas=replicas)
    source.open_source("clicks", lease_s=30.0, message_timeout_s=5.0)
    anchors = emitted(source)
    out_of_reach = source._state().source().pins[0].placement.replicas_of(roots_of(anchors))[:, 0] == 1
    servers.cut["source"] = {"s1:1"}
    ended = dict[int, Verdict]()
    while len(ended) < ROOTS and time.clock() < 1200.0:
        ended |= {each.root_id: each.verdict for each in source.watch(0.5).outcomes}
    is_lost = out_of_reach & (replicas == 1)
    assert ended == {
        anchor.root_id: Verdict.LOST if lost else Verdict.TIMED_OUT
        for anchor, lost in zip(anchors, is_lost.tolist(), strict=True)
    }


def test_a_server_on_a_planned_restart_that_outlasts_the_lease_is_waited_for() -> None:
    time = SimulatedTime(1000.0)
    servers = Listed(2, time)
    source = servers.client(replicas=1)
    source.open_source("clicks", lease_s=30.0, message_timeout_s=None)
    anchors = emitted(source)
    servers[1].stop()
    servers.states[1] = MemberState.AWAY
    servers.epoch += 1

    def restart(address: str, call: str) -> None:
        """Bring server 1 back with its state, so that the source hears of it from the view, before a poll."""
        if call == "view" and time.clock() > 1100.0 and servers.states:
            servers[1].start()
            servers.states.clear()
            servers.epoch += 1

    servers.on_call = restart
    while time.clock() < 1120.0:
        assert not source.watch(0.5).outcomes
    assert not servers.states
    ack(source, anchors)
    assert heard(source, ROOTS) == all_of(anchors, Verdict.ACKED)


def test_a_pause_of_its_own_process_makes_a_source_give_up_no_server() -> None:
    time = SimulatedTime(1000.0)
    servers = Listed(2, time)
    source = servers.client(replicas=1)
    source.open_source("clicks", lease_s=30.0, message_timeout_s=None)
    anchors = emitted(source)
    answer = servers[1].watch

    def stand_still(request: Watch) -> Any:
        """Servers and source are paused. The call to server 1 was under way, and ends after its time limit."""
        servers[1].watch = answer  # type: ignore[method-assign]
        for server in servers.by_address.values():
            server.stop()
        time.sleep(100.0)
        for server in servers.by_address.values():
            server.start()
        raise errors.Unavailable("DEADLINE_EXCEEDED")

    servers[1].watch = stand_still  # type: ignore[method-assign]
    while time.clock() < 1100.0:
        assert not source.watch(0.1).says_something
    ack(source, anchors)
    assert heard(source, ROOTS) == all_of(anchors, Verdict.ACKED)


@pytest.mark.parametrize("is_reached", [True, False])
def test_a_server_that_was_left_out_of_a_batch_keeps_no_root_of_it(is_reached: bool) -> None:
    time = SimulatedTime(1000.0)
    servers = Servers(2, time)
    source = servers.client("source", gone_after_s=100.0)
    source.open_source("clicks", lease_s=30.0, message_timeout_s=None)
    anchors = emitted(source)
    servers.cut["source"] = set() if is_reached else {"s1:1"}
    source.leave_out(1, {1})
    ack(source, anchors)
    assert heard(source, ROOTS) == all_of(anchors, Verdict.ACKED)
    assert source._state().source().pins == ()
    servers.cut.clear()
    for _ in range(5):
        assert not source.watch(0.5).outcomes
    left = servers[1].shard.stats
    assert (left.pending, left.reserved, left.unconfirmed) == (0, 0, 0)


@pytest.mark.long
def test_a_watch_in_another_thread_forgets_no_report_in_flight(servers: Servers) -> None:
    source = servers.client()
    source.open_source("clicks", message_timeout_s=None)
    found: Counter[tuple[int, Verdict]] = Counter()
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.is_set() or source._state().source().pins:
            found.update((each.root_id, each.verdict) for each in source.watch(0.05).outcomes)
            source._state().source().emissions.end_outdated_batch()

    watching = threading.Thread(target=watch)
    watching.start()
    anchors = []
    for number in range(6):
        # Change the view in the middle: a member comes or goes.
        (servers[1].stop if number % 2 else servers[1].start)()
        for _ in range(3):
            some = [source.emit() for _ in range(20)]
            anchors += some
            ack(source, some)
    is_over.set()
    stop_drawing(source)
    watching.join()
    assert found == all_of(anchors, Verdict.ACKED)


@pytest.mark.long
def test_an_init_that_a_server_applies_after_it_was_left_out_gives_no_second_outcome(servers: Servers) -> None:
    source = servers.client("source")
    source.open_source("clicks", message_timeout_s=1.0)
    late: list[Callable[[], Any]] = []
    answer = servers[1].ask

    def slow(question: Callable[[Any, float], Any]) -> Any:
        late.append(lambda: answer(question))
        raise errors.Unavailable("slow")

    emitted(source, 1)
    servers[1].ask = slow  # type: ignore[method-assign]
    anchors = emitted(source)
    servers[1].ask = answer  # type: ignore[method-assign]
    for apply in late:
        apply()
    ack(source, anchors)
    found = heard(source, ROOTS + 1, wait_s=0.5)
    assert found - all_of(anchors, Verdict.ACKED) == Counter(
        {each: 1 for each in found if each[1] == Verdict.TIMED_OUT}
    )
    assert found.total() == ROOTS + 1


@pytest.mark.slow
def test_where_both_servers_of_a_root_fail_and_one_comes_back_each_root_is_lost_once(servers: Servers) -> None:
    source = servers.client()
    source.open_source("clicks", message_timeout_s=None)
    anchors = emitted(source)
    servers[0].start(with_state=False)
    servers[1].stop()
    found = Counter[tuple[int, Verdict]]()
    while not found:
        found.update((each.root_id, each.verdict) for each in source.watch(0.1).outcomes)
    servers[1].start()
    assert found + heard(source, ROOTS - found.total()) == all_of(anchors, Verdict.LOST)
    again = emitted(source)
    ack(source, again)
    assert heard(source, ROOTS) == all_of(again, Verdict.ACKED)


def test_the_plain_loop_learns_of_each_root_that_its_only_replica_lost() -> None:
    servers = Servers(3)
    source = servers.client(replicas=1)
    source.open_source("clicks", message_timeout_s=None)
    pending, replays, done = {source.emit() for _ in range(200)}, 0, 0
    source.flush()
    servers[1].start(with_state=False)
    while pending:
        for root, edge in pending:
            source.ack(root, edge)
        source.flush()
        for outcome in source.watch(0.2).outcomes:
            [anchor] = [each for each in pending if each.root_id == outcome.root_id]
            pending.remove(anchor)
            if outcome.verdict == Verdict.LOST:
                pending.add(source.emit())
                replays += 1
            else:
                done += 1
    assert (done, 0 < replays < 200) == (200, True)
    servers.close()


# -- batches


def test_numbers_that_are_never_drawn_have_no_outcome_and_no_room_is_kept_for_them(servers: Servers) -> None:
    source = servers.client()
    source.open_source("clicks")
    anchors = emitted(source, 5)
    ack(source, anchors)
    assert all(server.shard.stats.reserved for server in servers.by_address.values())
    stop_drawing(source)
    assert heard(source, 5) == all_of(anchors, Verdict.ACKED)
    while any(server.shard.stats.open_batches for server in servers.by_address.values()):
        assert not source.watch(0.1).outcomes
    source.watch(0.1)
    for server in servers.by_address.values():
        assert (server.shard.stats.reserved, server.shard.stats.unconfirmed) == (0, 0)
    assert source._state().source().pins == ()


def test_the_size_of_batches_follows_the_rate_of_emissions(servers: Servers) -> None:
    source = servers.client()
    source.open_source("clicks", message_timeout_s=None)
    emitted(source, 6000)
    sizes = [pin.up_to for pin in source._state().source().pins]
    assert sizes == [1024, 4096, 16384]
    stop_drawing(source)
    emitted(source, 1)
    assert [pin.up_to for pin in source._state().source().pins][-1] == 16384


@pytest.mark.long
def test_where_there_is_little_room_the_batches_are_small() -> None:
    server = LocalServer(new_shard(max_pending=20))
    client = AckerClient(Settings(("small:1",), budget_s=5.0), connect=server.connect)
    client.open_source("clicks")
    anchors = []
    for _ in range(10):
        some = emitted(client, 4)
        ack(client, some)
        anchors += some
        assert heard(client, 4) == all_of(some, Verdict.ACKED)
    client.close()


def test_without_room_for_pins_a_source_emits_nothing_new_and_its_open_roots_end() -> None:
    server, other = LocalServer(new_shard(max_pins_bytes=70_000)), Watch("other", 9, 3_600_000, pins=bytes(4500))
    client = AckerClient(Settings(("full:1",), budget_s=0.2), connect=server.connect)
    client.open_source("clicks", message_timeout_s=None)
    some = emitted(client, 4)
    # The pins of another source take the room. Those that this source has published stay.
    session = client._state().source().session
    before = server.shard.pins(Pins(session)).pins
    assert server.shard.watch(other, 0.0).status == Status.APPLIED
    stop_drawing(client)
    with pytest.raises(errors.Overloaded, match="--max-memory"):
        client.emit()
    assert server.shard.pins(Pins(session)).pins == before
    ack(client, some)
    assert heard(client, 4) == all_of(some, Verdict.ACKED)
    server.shard.watch(replace(other, close=True), 0.0)
    assert emitted(client, 1)
    client.close()


def test_where_a_server_that_lost_its_state_has_no_room_for_the_source_its_roots_are_lost() -> None:
    server = LocalServer(new_shard())
    client = AckerClient(Settings(("full:1",), budget_s=0.2), connect=server.connect)
    client.open_source("clicks", message_timeout_s=None)
    some = emitted(client, 4)
    server.shard = new_shard(max_pins_bytes=10)
    assert heard(client, 4) == all_of(some, Verdict.LOST)
    with pytest.raises(errors.Overloaded, match="--max-memory"):
        client.emit()
    server.shard = new_shard()
    assert emitted(client, 1)
    client.close()


def test_pins_that_found_no_room_are_sent_again_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    server, other = LocalServer(new_shard(max_pins_bytes=70_000)), Watch("other", 9, 3_600_000, pins=bytes(60_000))
    client = AckerClient(Settings(("full:1",)), connect=server.connect)
    client.open_source("clicks", message_timeout_s=None)
    source = client._state().source()
    assert server.shard.watch(other, 0.0).status == Status.APPLIED
    source._conversations.publish(bytes(10_000))
    for _ in range(3):
        client.watch(0.0)
    assert caplog.text.count("--max-memory") == 1
    server.shard.watch(replace(other, close=True), 0.0)
    client.watch(0.0)
    assert server.shard.pins(Pins(source.session)).pins == bytes(10_000)
    client.close()


@pytest.mark.slow
def test_a_source_emits_into_a_new_batch_when_a_server_comes(servers: Servers) -> None:
    servers[1].stop()
    source = servers.client()
    source.open_source("clicks", message_timeout_s=None)
    before = emitted(source)
    servers[1].start()
    after: list[Anchor] = []
    while len(source._state().source().pins[-1].placement.members) < 2:
        after += emitted(source, 1)
    assert len(source._state().source().pins[0].placement.members) == 1
    ack(source, before + after)
    assert heard(source, len(before + after)) == all_of(before + after, Verdict.ACKED)


@pytest.mark.long
def test_an_idle_source_does_not_delay_the_end_of_a_drain(servers: Servers) -> None:
    source = servers.client()
    source.open_source("clicks")
    anchors = emitted(source)
    ack(source, anchors)
    servers[1].shard.drain()
    assert heard(source, ROOTS) == all_of(anchors, Verdict.ACKED)
    while servers[1].shard.left:
        source.watch(0.1)


def test_one_root_that_is_never_done_keeps_its_batch_alone(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "NUMBERS_FIRST", 2)
    monkeypatch.setattr(stream_module, "NUMBERS_MAX", 2)
    source = servers.client()
    source.open_source("clicks", message_timeout_s=None)
    anchors = emitted(source, 41)
    ack(source, anchors[1:])
    assert heard(source, 40) == all_of(anchors[1:], Verdict.ACKED)
    while len(source._state().source().pins) > 2:
        source.watch(0.05)
    # The batch of the open root, and the batch that emissions draw from.
    assert [pin.batch for pin in source._state().source().pins] == [1, 21]


@pytest.fixture
def time() -> SimulatedTime:
    return SimulatedTime()


def test_a_source_that_emits_little_goes_on_in_another_batch_after_a_while_as_long_as_few_are_open(
    time: SimulatedTime,
) -> None:
    server = LocalServer(clock=time.clock, sleep=time.sleep)
    client = AckerClient(Settings(("one:1",)), connect=server.connect, clock=time.clock, sleep=time.sleep)
    client.open_source("clicks", message_timeout_s=None)
    for _ in range(40):
        emitted(client, 1)
        time.sleep(11.0)
        client.watch()
    batches = [pin.batch for pin in client._state().source().pins]
    assert batches == list(range(1, len(batches) + 1))
    assert 10 < len(batches) < 20


def test_an_emission_for_which_no_server_opens_a_batch_ends_with_its_budget(time: SimulatedTime) -> None:
    server = LocalServer(clock=time.clock, sleep=time.sleep)
    settings = Settings(("one:1",), budget_s=20.0)
    client = AckerClient(settings, connect=server.connect, clock=time.clock, sleep=time.sleep)
    client.open_source("clicks")
    server.shard.drain()
    with pytest.raises(errors.Unavailable, match="draining"):
        client.emit()
    assert 10.0 < time.clock() <= 20.0


def test_a_late_ack_of_a_root_that_has_ended_waits_for_no_server_that_died_since(registered: Listed) -> None:
    source, worker = registered.client("source"), registered.client("worker", budget_s=2.0)
    worker.join(source.open_source("clicks"))
    # Emit a whole batch, so that the batch ends with its last outcome.
    anchors = emitted(source, stream_module.NUMBERS_FIRST)
    ack(worker, anchors)
    heard(source, len(anchors))
    registered.kill(1)
    heard(source, 0)
    ack(worker, anchors[:ROOTS])


# -- updates of unknown roots


@pytest.mark.parametrize("ends", ["forget", "close"])
def test_a_late_ack_of_an_own_batch_that_has_ended_holds_up_no_other_report(servers: Servers, ends: str) -> None:
    source, emitter = servers.client("source"), servers.client("emitter")
    source.open_source("orders", message_timeout_s=None)
    source.join(emitter.open_source("clicks", message_timeout_s=None))
    for number in (1, 2):
        source.open_batch(number, first=number << 40, up_to=10)
    anchors = emitted(emitter)
    source.forget_batch(1)
    if ends == "close":
        source.close_source()
    source.ack(ids.root_id(1 << 40, 3), 5)
    ack(source, anchors)
    assert heard(emitter, ROOTS) == all_of(anchors, Verdict.ACKED)


@pytest.mark.slow
def test_an_update_of_an_unknown_root_delays_no_other_and_stays_in_the_buffer(servers: Servers) -> None:
    source, worker = servers.client("source"), servers.client("worker", budget_s=2.0)
    source.open_source("clicks", message_timeout_s=None)
    anchors = emitted(source)
    worker.fail(ids.root_id(1 << 61, 7), "no such click")
    for some in (anchors[:20], anchors[20:]):
        with pytest.raises(errors.RETRYABLE, match="root"):
            ack(worker, some)
    assert heard(source, ROOTS) == all_of(anchors, Verdict.ACKED)
    assert worker._state().buffered() == 1


@pytest.mark.parametrize("refusal", [errors.Rejected("no role"), ValueError("pins of another version")])
def test_an_update_of_an_unknown_root_delays_no_other_where_a_server_refuses_to_say_what_it_knows(
    registered: Listed, refusal: Exception
) -> None:
    source = registered.client()
    source.open_source("clicks", message_timeout_s=None)
    anchors = emitted(source)

    def refuse(address: str, call: str) -> None:
        if (address, call) == ("s1:1", "pins"):
            raise refusal

    registered.on_call = refuse
    source.ack(ids.root_id(1 << 61, 7), 5)
    for some in (anchors[:20], anchors[20:]):
        with pytest.raises(errors.Rejected, match=str(refusal)):
            ack(source, some)
    assert heard(source, ROOTS) == all_of(anchors, Verdict.ACKED)
    assert source._state().buffered() == 1


def test_a_server_that_is_out_of_one_batch_of_a_report_does_not_answer_for_another_one_there(servers: Servers) -> None:
    source = servers.client()
    source.open_source("clicks", message_timeout_s=None)
    before = emitted(source)
    source.leave_out(1, {0})
    after = emitted(source)
    servers[1].stop()
    for root, edge in before + after:
        source.ack(root, edge)
    flushing = threading.Thread(target=source.flush)
    state = source._state()
    pins = state.source().pins
    assert [(state.is_out(pin, 0), len(pin.placement.members)) for pin in pins] == [(True, 2), (False, 2)]
    flushing.start()
    flushing.join(0.0)
    report = sealed(source)
    a, b = pins[1].placement.members
    while not report.deliveries[a].done:
        flushing.join(0.01)
    is_covered = Sending(state, report).can_do_without(b)
    servers[1].start()
    flushing.join()
    assert not is_covered
    assert heard(source, 2 * ROOTS) == all_of(before + after, Verdict.ACKED)


def stop_drawing(client: AckerClient) -> None:
    """Let the next emission open another batch."""
    batch = client._state().source().emissions._stream.current
    assert batch is not None
    batch.stop_drawing()


def sealed(client: AckerClient) -> Replication:
    """Wait for and return the report that another thread is sending."""
    state = client._state()
    while not state.unanswered:
        threading.Event().wait(0.01)
    return state.unanswered[0]


# -- other processes and the source's own session


@pytest.mark.long
def test_a_fail_that_reached_no_server_is_raised_and_sent_again(servers: Servers) -> None:
    source = servers.client("source")
    worker = servers.client("worker", budget_s=1.0, on_unreachable="continue")  # type: ignore[arg-type]
    session = source.open_source("clicks", message_timeout_s=None)
    [anchor] = emitted(source, 1)
    worker.join(session)
    servers.cut["worker"] = {"s0:1", "s1:1"}
    worker.fail(anchor.root_id, "no such click")
    with pytest.raises(errors.Unavailable):
        worker.flush()
    servers.cut.clear()
    worker.flush()
    ack(source, [anchor])
    assert heard(source, 1) == all_of([anchor], Verdict.FAILED)


def test_a_source_that_joins_its_own_session_goes_on_without_a_server_that_died(servers: Servers) -> None:
    source = servers.client(budget_s=5.0)
    source.join(source.open_source("clicks", message_timeout_s=None))
    anchors = emitted(source)
    servers[1].stop()
    ack(source, anchors)
    assert heard(source, ROOTS) == all_of(anchors, Verdict.ACKED)


def test_a_join_in_the_middle_of_a_flush_makes_no_fresh_root_look_over(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, worker = servers.client("source"), servers.client("worker")
    session = source.open_source("clicks", message_timeout_s=None)
    worker.join(session)
    anchors = emitted(source, 3)
    joins = iter([lambda: worker.join(session)])

    def parted(*arguments: Any) -> Any:
        found = pins_module.parted(*arguments)
        next(joins, lambda: None)()
        return found

    monkeypatch.setattr(state_module, "parted", parted)
    ack(worker, anchors)
    assert worker.totals.applied
    assert heard(source, 3) == all_of(anchors, Verdict.ACKED)


def test_an_outdated_join_does_not_replace_newer_knowledge(servers: Servers) -> None:
    source, worker = servers.client("source"), servers.client("worker")
    session = source.open_source("clicks")
    worker.join(session)
    joined = worker._state().others.joined
    joined[session] = replace(joined[session], version=99)
    worker.join(session)
    assert joined[session].version == 99
