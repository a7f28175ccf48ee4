"""One client of several servers that drain, move, are left out or lose their state."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from acker_client import AckerClient, Identity, Settings, Verdict, errors
from acker_client.pins import Pin, shares_of
from acker_protocol import ids
from acker_protocol.messages import ListedMember, MemberState, ViewReply
from acker_protocol.placement import Member, View, place
from acker_protocol.reports import fold
from acker_testing import SimulatedTime
from tests.client.test_client_members import ALL_ACKED, ROOTS, Job, Servers, living_on


class Registered(Servers):
    """Servers that answer with a view, as with ZooKeeper.

    ``listed``: maps ids to addresses. ``epoch``: the epoch of the view. ``states``: ids of servers that the view does
    not list as ACTIVE. ``on_call``: called with address and name of each call before it is answered.
    """

    def __init__(self, count: int, time: SimulatedTime | None = None) -> None:
        super().__init__(count, time)
        self.listed = {server.id: address for address, server in self.by_address.items()}
        self.states: dict[int, MemberState] = {}
        self.on_call: Callable[[str, str], None] = lambda address, call: None
        self.epoch = 1

    def move(self, number: int, address: str) -> None:
        """Restart a server with its state, at another address."""
        self.by_address[address] = self.by_address.pop(self.listed[number])
        self.listed[number] = address
        self.epoch += 1

    def view(self) -> ViewReply:
        members = (
            ListedMember(
                Member(number, self.by_address[address].shard.generation, address),
                self.states.get(number, MemberState.ACTIVE),
            )
            for number, address in sorted(self.listed.items())
        )
        return ViewReply(1, self.epoch, tuple(members))

    def _connect(self, name: str, address: str) -> Any:
        return WithView(self, address)


class WithView:
    """A transport to the server that is now at an address. Adds the shared view to its answers."""

    def __init__(self, servers: Registered, address: str) -> None:
        self._servers, self._address = servers, address

    def __getattr__(self, call: str) -> Any:
        def answer(*arguments: Any) -> Any:
            server = self._servers.by_address.get(self._address)
            if server is None:
                raise errors.Unavailable(f"nobody is at {self._address}")
            self._servers.on_call(self._address, call)
            if call == "view":
                return self._servers.view()
            reply = getattr(server.connect(self._address), call)(*arguments)
            return replace(reply, epoch=self._servers.epoch) if hasattr(reply, "epoch") else reply

        return answer

    def close(self) -> None: ...


@pytest.fixture
def servers() -> Iterator[Servers]:
    servers = Servers(3)
    yield servers
    servers.close()


@pytest.fixture
def source(servers: Servers) -> AckerClient:
    client = servers.client("source")
    client.open_source("orders")
    return client


@pytest.fixture
def registered() -> Iterator[Registered]:
    servers = Registered(2)
    yield servers
    servers.close()


def test_batches_stay_on_the_server_that_knows_the_source_when_the_others_drain(servers: Servers) -> None:
    source = servers.client(replicas=1, spread=1)
    source.open_source("orders")
    (first,) = living_on(source)
    for number in {0, 1, 2} - {first.id}:
        servers[number].shard.drain()
    for number in range(1, 6):
        job = Job(source, source, number)
        assert job.pin.placement.members == (first,)
        assert job.done() == ALL_ACKED


def test_a_source_opens_at_another_server_when_one_says_that_it_drains(servers: Servers) -> None:
    sources = [servers.client(replicas=1, spread=1) for _ in range(8)]
    for each in sources:
        cluster = each._state().cluster
        while len(cluster.view(cluster.patience()).members) < 3:
            pass
    for number in (1, 2):
        servers[number].shard.drain()
    for each in sources:
        each.open_source("orders")
        assert [member.id for member in living_on(each)] == [0]


def test_roots_lost_by_a_server_that_then_drains_are_reported_lost(servers: Servers) -> None:
    source = servers.client(replicas=1)
    source.open_source("orders")
    job = Job(source, servers.client())
    job.read()
    lost = job.pin.placement.replicas_of(job.roots)[:, 0] == 1
    servers[1].start(with_state=False)
    servers[1].shard.drain()
    job.work()
    ended = job.settle()
    assert {root for root, (verdict, _) in ended.items() if verdict == Verdict.LOST} == set(job.roots[lost].tolist())


def test_a_batch_goes_elsewhere_while_the_registry_does_not_know_yet_that_a_server_drains(
    registered: Registered,
) -> None:
    source = registered.client()
    source.open_source("orders")
    assert Job(source, registered.client()).done() == ALL_ACKED
    calls = 0
    refuse = registered[1].shard.open_batch

    def refused(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        assert calls < 20, "the same server is asked again and again"
        return refuse(*arguments)

    registered[1].shard.open_batch = refused  # type: ignore[assignment, method-assign]
    registered[1].shard.drain()
    for number in (2, 3):
        job = Job(source, registered.client(), number)
        assert [member.id for member in job.pin.placement.members] == [0]
        assert job.done() == ALL_ACKED


def test_a_server_that_is_back_with_its_state_at_another_address_is_watched_there(registered: Registered) -> None:
    source = registered.client(replicas=1)
    source.open_source("orders", message_timeout_s=None)
    anchors = [source.emit() for _ in range(ROOTS)]
    source.flush()
    ended: Counter[Verdict] = Counter()
    for anchor in anchors[:10]:
        source.ack(anchor.root_id, anchor.edge)
    source.flush()
    while ended.total() < 10:
        ended.update(outcome.verdict for outcome in source.watch(0.1).outcomes)
    registered.move(1, "elsewhere:1")
    cluster, (_, moved) = source._state().cluster, living_on(source)
    while cluster.address_of(moved) != "elsewhere:1":
        ended.update(outcome.verdict for outcome in source.watch(0.1).outcomes)
    for anchor in anchors[10:]:
        source.ack(anchor.root_id, anchor.edge)
    source.flush()
    while ended.total() < ROOTS:
        ended.update(outcome.verdict for outcome in source.watch(0.1).outcomes)
    assert ended == Counter({Verdict.ACKED: ROOTS})


def test_a_server_that_moves_with_its_state_and_was_away_for_longer_than_the_lease_is_watched_where_it_is() -> None:
    time = SimulatedTime(1000.0)
    registered = Registered(2, time)
    source = registered.client(replicas=1)
    source.open_source("orders", lease_s=30.0, message_timeout_s=None)
    anchors = [source.emit() for _ in range(ROOTS)]
    source.flush()
    registered[1].stop()
    registered.states[1] = MemberState.AWAY
    registered.epoch += 1
    while time.clock() < 1040.0:
        assert not source.watch(1.0).says_something
    registered.move(1, "elsewhere:1")
    registered.states.clear()
    registered.by_address["elsewhere:1"].start()
    # The source learns of the new address in a watch.
    source.watch(1.0)
    for anchor in anchors:
        source.ack(anchor.root_id, anchor.edge)
    source.flush()
    ended: Counter[Verdict] = Counter()
    while ended.total() < ROOTS and time.clock() < 1100.0:
        ended.update(outcome.verdict for outcome in source.watch(1.0).outcomes)
    assert ended == Counter({Verdict.ACKED: ROOTS})


def _placed(*members: Member) -> Any:
    return place(View(1, members), 5, 1, 1)


@pytest.mark.parametrize("later", [Member(1, 10, "elsewhere:1"), Member(1, 11, "s1:1")], ids=["moved", "without state"])
def test_a_server_gets_each_section_of_a_report_once_even_if_its_address_or_generation_differs_between_pins(
    later: Member,
) -> None:
    other = Member(2, 20, "s2:1")
    pins = [
        Pin(5, 1, 1, 500, _placed(Member(1, 10, "s1:1"), other)),
        Pin(5, 2, 501, 500, _placed(later, other)),
    ]
    roots = ids.root_ids(1, np.arange(1000, dtype=np.uint64))
    shares = {share.member: share for share in shares_of(pins, fold(roots, roots), None)}
    assert sorted(shares) == [later, other]
    assert sum(len(share.entries) for share in shares.values()) == 1000


@pytest.mark.slow
def test_a_server_that_tasks_left_out_closes_the_batch(servers: Servers) -> None:
    source = servers.client("source")
    source.open_source("orders")
    servers.cut["executor"] = {"s1:1"}
    assert Job(source, servers.client("executor")).done() == ALL_ACKED
    while any(servers[number].shard.stats.open_batches for number in range(3)):
        source.watch(0.05)
    assert Job(source, servers.client(), 2).done() == ALL_ACKED


def test_a_server_that_was_silent_at_the_end_of_a_batch_ends_it_when_it_answers_again(servers: Servers) -> None:
    source = servers.client("source", gone_after_s=100.0)
    source.open_source("orders")
    job = Job(source, servers.client())
    job.read()
    job.work()
    servers.cut["source"] = {"s1:1"}
    assert Counter(job.settle().values()) == ALL_ACKED
    assert servers[1].shard.stats.open_batches == 1
    servers.cut["source"] = set()
    later = Job(source, servers.client(), 2)
    while servers[1].shard.stats.open_batches > 1:
        source.watch(0.05)
    assert later.done() == ALL_ACKED


def test_a_report_without_may_leave_does_not_leave_out_a_silent_server(servers: Servers) -> None:
    servers.cut["executor"] = {"s1:1"}
    source = servers.client("source")
    source.open_source("orders")
    executor = servers.client("executor", budget_s=1.0, gone_after_s=0.05)
    job = Job(source, executor)
    with pytest.raises(errors.Unavailable, match="s1:1"):
        executor.report_pinned(Identity(1, 2), fold(job.roots, job.edges), None, (job.pin,))


def test_a_root_not_flushed_before_its_server_stops_is_lost_once_and_later_roots_go_to_other_servers(
    servers: Servers,
) -> None:
    source = servers.client(replicas=1)
    source.open_source("orders", message_timeout_s=None)
    source.emit()
    pin = source._state().source().pins[-1]
    source.flush()
    # Not flushed before server 1 stops, so server 1 never learns of its roots.
    roots = np.array([source.emit().root_id for _ in range(ROOTS)], np.uint64)
    servers[1].stop()
    ended = Counter[int]()
    while not ended:
        ended.update(outcome.root_id for outcome in source.watch(0.1).outcomes)
    source.flush()
    later = [source.emit() for _ in range(ROOTS)]
    for root, edge in later:
        source.ack(root, edge)
    source.flush()
    acked = Counter[int]()
    while acked.total() < ROOTS:
        outcomes = list(source.watch(0.1).outcomes)
        acked.update(each.root_id for each in outcomes if each.verdict == Verdict.ACKED)
        ended.update(each.root_id for each in outcomes if each.verdict != Verdict.ACKED)
    assert set(roots[pin.placement.replicas_of(roots)[:, 0] == 1].tolist()) <= set(ended)
    assert set(ended.values()) == {1}
    assert acked == Counter(root for root, _ in later)


def reported(job: Job) -> tuple[threading.Thread, list[frozenset[int]]]:
    """Report in a thread, as a task of ``job`` does.

    Returns the thread and a list, to which the thread adds the ids of the left-out servers when the report is done.
    """
    without: list[frozenset[int]] = []

    def work() -> None:
        entries = fold(job.roots, job.edges)
        result = job.executor.report_pinned(Identity(job.number, 2), entries, None, (job.pin,), may_leave=True)
        without.append(result.without)

    thread = threading.Thread(target=work)
    thread.start()
    return thread, without


@pytest.mark.long
def test_a_report_waits_longer_than_replica_wait_s_for_a_server_on_planned_restart(
    registered: Registered,
) -> None:
    source = registered.client("source")
    source.open_source("orders")
    job = Job(source, registered.client(replica_wait_s=1.5))
    job.read()
    registered[1].stop()
    registered.states[1] = MemberState.AWAY
    registered.epoch += 1
    thread, without = reported(job)
    until_given_up(thread, job.executor)
    assert thread.is_alive()
    registered[1].start()
    registered.states.clear()
    thread.join()
    assert without == [frozenset()]
    assert Counter(job.settle().values()) == ALL_ACKED


@pytest.mark.long
def test_a_report_leaves_out_an_away_server_once_the_view_no_longer_lists_it(registered: Registered) -> None:
    source = registered.client("source")
    source.open_source("orders")
    job = Job(source, registered.client(replica_wait_s=1.5))
    job.read()
    registered[1].stop()
    registered.states[1] = MemberState.AWAY
    registered.epoch += 1
    thread, without = reported(job)
    until_given_up(thread, job.executor)
    del registered.listed[1]
    registered.epoch += 1
    thread.join()
    assert without == [frozenset({1})]


@pytest.mark.long
def test_a_report_under_way_follows_a_server_that_comes_back_with_its_state_at_another_address(
    registered: Registered,
) -> None:
    source = registered.client("source")
    source.open_source("orders")
    job = Job(source, registered.client(replica_wait_s=1.5, budget_s=10.0))
    job.read()
    registered[1].stop()
    registered.states[1] = MemberState.AWAY
    registered.epoch += 1
    thread, without = reported(job)
    until_given_up(thread, job.executor)
    registered.move(1, "elsewhere:1")
    registered.states.clear()
    registered.by_address["elsewhere:1"].start()
    thread.join()
    assert without == [frozenset()]
    assert Counter(job.settle().values()) == ALL_ACKED


def emitted_by(registered: Registered) -> tuple[AckerClient, int, tuple[int, int]]:
    """Return a source at server 0 alone, its session, and the root and edge of its record."""
    registered.listed = {0: "s0:1"}
    source = registered.client()
    session, anchor = source.open_source("orders"), source.emit()
    source.flush()
    return source, session, anchor


def test_a_process_joins_a_source_at_a_server_that_no_view_lists(registered: Registered) -> None:
    source, session, anchor = emitted_by(registered)
    # ZooKeeper has ended the session of server 0, which answers as before. One answer gets lost.
    registered.listed = {1: "s1:1"}
    registered.epoch += 1
    asked = list[str]()

    def lose_once(address: str, call: str) -> None:
        if call == "pins":
            asked.append(address)
            if asked == ["s1:1", "s0:1"]:
                raise errors.Unavailable("the reply was lost")

    registered.on_call = lose_once
    worker = registered.client()
    worker.join(session)
    worker.ack(*anchor)
    worker.flush()
    assert [outcome.verdict for outcome in source.watch(1.0).outcomes] == [Verdict.ACKED]
    assert asked[:4] == ["s1:1", "s0:1"] * 2


def test_a_process_joins_a_source_at_a_draining_server_that_it_was_not_configured_with(registered: Registered) -> None:
    _, session, _ = emitted_by(registered)
    registered.listed = {0: "s0:1", 1: "s1:1"}
    registered.states[0] = MemberState.DRAINING
    registered.epoch += 1
    worker = AckerClient(Settings(("s1:1",), budget_s=5.0), connect=lambda address: registered._connect("", address))
    worker.join(session)


def test_an_update_of_an_unknown_root_asks_no_server_that_is_in_no_view(registered: Registered) -> None:
    registered.listed = {1: "s1:1"}
    source, worker = registered.client(), registered.client()
    worker.join(source.open_source("orders"))
    source.close_source()
    asked = set[str]()
    registered.on_call = lambda address, call: asked.add(address) if call == "pins" else None
    worker.ack(7, 5)
    with pytest.raises(errors.UnknownSource):
        worker.flush()
    assert asked == {"s1:1"}


def test_a_source_opens_on_the_other_servers_when_one_goes_away_meanwhile(registered: Registered) -> None:
    registered[1].stop()

    def announce(address: str, call: str) -> None:
        if (address, call) == ("s1:1", "hello") and not registered.states:
            registered.states[1] = MemberState.AWAY
            registered.epoch += 1

    source = registered.client(budget_s=5.0, replica_wait_s=60.0, gone_after_s=60.0)
    source.hello()
    registered.on_call = announce
    source.open_source("orders")
    assert [member.id for member in source.open_batch(1, 1 << 40, 10).placement.members] == [0]


def until_given_up(thread: threading.Thread, client: AckerClient) -> None:
    """Wait until server 1 has been silent for 2 s, which is longer than ``replica_wait_s``, or ``thread`` has ended."""
    caller = client._state().cluster.callers.at("s1:1")
    while thread.is_alive() and caller.shown_silent_s(float("-inf")) < 2.0:
        thread.join(0.05)


def test_opening_a_batch_gives_up_at_its_budget_when_all_listed_servers_have_lost_their_state(
    registered: Registered, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = registered.client(budget_s=0.3)
    client.open_source("orders")
    client.open_batch(1, 1 << 40, ROOTS)
    old_view = registered.view()
    monkeypatch.setattr(registered, "view", lambda: old_view)
    for number in registered.listed:
        registered[number].start(with_state=False)
    for caller in client._state().cluster.callers._callers.values():
        caller.connection.greet_anew()
    with pytest.raises(errors.Unavailable):
        client.open_batch(2, 2 << 40, ROOTS)
