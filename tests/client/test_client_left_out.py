"""One source and several in-memory servers, which drain, fall silent, are left out or join the view."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from acker_client import AckerClient, Settings, Settlement, Verdict, errors
from acker_client.cluster.membership import Cluster
from acker_client.cluster.votes import BatchVotes
from acker_client.pins import Pin
from acker_client.rpc import delivery as delivery_module
from acker_client.rpc.delivery import Delivery
from acker_client.rpc.side_by_side import InTurn
from acker_protocol.ids import edge0_column, root_ids
from acker_protocol.messages import (
    FAIL,
    Apply,
    ApplyReply,
    Identity,
    InitScope,
    ListedMember,
    OpenBatch,
    Outcomes,
    Status,
    ViewReply,
    Watch,
)
from acker_protocol.placement import Member, View, place
from acker_protocol.reports import digest, fold, fold_updates, section_starts
from acker_testing import LocalServer, LocalTransport, SimulatedTime, new_shard

FIRST = 1 << 40


class Servers:
    """In-memory servers; server k is at "k:1". ``watches``: the number of Watch calls to each."""

    def __init__(self, count: int, time: SimulatedTime | None = None) -> None:
        options: dict[str, Any] = {"clock": time.clock, "sleep": time.sleep} if time else {}
        self.servers = [LocalServer(id=k, **options) for k in range(count)]
        self.watches: Counter[int] = Counter()

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(f"{server.id}:1" for server in self.servers)

    def connect(self, address: str) -> LocalTransport:
        server, watches = self.servers[int(address.partition(":")[0])], self.watches

        class Counting(LocalTransport):
            def watch(self, request: Any, timeout_s: float) -> Any:
                watches[server.id] += 1
                return super().watch(request, timeout_s)

        return Counting(server, address)


@pytest.fixture
def time() -> SimulatedTime:
    return SimulatedTime()


@pytest.fixture
def make(time: SimulatedTime) -> Callable[..., AckerClient]:
    def client(servers: Servers, **options: Any) -> AckerClient:
        settings = Settings(servers.addresses, **options)
        return AckerClient(settings, connect=servers.connect, clock=time.clock, sleep=time.sleep, random=lambda: 0.5)

    return client


def test_a_batch_avoids_a_draining_server_that_does_not_know_its_source(
    make: Callable[..., AckerClient], time: SimulatedTime
) -> None:
    servers = Servers(2, time)
    client = make(servers, replicas=1, spread=1)
    client.open_source("orders")
    [met] = [server.id for server in servers.servers if server.shard.stats.sources]
    servers.servers[1 - met].shard.drain()
    for number in range(1, 9):
        pin = client.open_batch(number, FIRST, 10)
        assert [member.id for member in pin.placement.members] == [met]


def test_a_source_is_opened_at_servers_that_do_not_drain(make: Callable[..., AckerClient], time: SimulatedTime) -> None:
    servers = Servers(2, time)
    client = make(servers)
    client.hello()
    servers.servers[1].shard.drain()
    client.open_source("orders")
    assert [server.shard.stats.sources for server in servers.servers] == [1, 0]


def test_a_source_is_opened_without_a_server_that_has_just_died(
    make: Callable[..., AckerClient], time: SimulatedTime
) -> None:
    servers = Servers(3, time)
    client = make(servers, gone_after_s=5.0)
    client.hello()
    servers.servers[1].stop()
    client.open_source("orders")
    assert [server.shard.stats.sources for server in servers.servers] == [1, 0, 1]


def test_opening_a_source_gives_up_at_its_budget_when_no_server_answers_any_more(time: SimulatedTime) -> None:
    servers, tries = Servers(2, time), Counter[str]()

    def falls_silent(address: str) -> Any:
        def watch(request: Any, timeout_s: float) -> Any:
            tries[address] += 1
            time.sleep(0.1)
            raise errors.Unavailable("silent")

        transport: Any = servers.connect(address)
        transport.watch = watch
        return transport

    settings = Settings(servers.addresses, replicas=1, spread=1, replica_wait_s=0.5, gone_after_s=1000.0, budget_s=8.0)
    client = AckerClient(
        settings,
        connect=falls_silent,
        clock=time.clock,
        sleep=time.sleep,
        random=lambda: 0.5,
        side_by_side=InTurn(),
    )
    with pytest.raises(errors.Unavailable):
        client.open_source("orders")
    assert time.clock() < 12.0
    assert tries.total() < 100


def test_a_thread_takes_the_view_that_another_one_made_while_it_waited_for_servers_that_are_silent_again(
    time: SimulatedTime,
) -> None:
    servers, views = Servers(2, time), list[View]()

    def sleep(seconds: float) -> None:
        time.sleep(seconds)
        if views:
            return
        for server in servers.servers:
            server.start()
        views.append(cluster.view(cluster.patience()))
        for server in servers.servers:
            server.stop()
            connection = cluster.callers.at(f"{server.id}:1").connection
            connection.lost(connection.greeted(cluster.patience().deadline))

    settings = Settings(servers.addresses, budget_s=600.0)
    cluster = Cluster(settings, servers.connect, time.clock, sleep, lambda: 0.5, InTurn())
    for server in servers.servers:
        server.stop()
    assert cluster.view(cluster.patience()) == views[0]


def test_a_watch_of_several_servers_does_not_sleep_between_polls() -> None:
    servers = Servers(2)
    slept: list[float] = []
    client = AckerClient(Settings(servers.addresses), connect=servers.connect, sleep=slept.append)
    client.open_source("orders")
    slept.clear()
    client.watch(1.1)
    # While a source sleeps between polls, it receives no outcomes.
    assert not slept
    client.close()


class Held(InTurn):
    """Starts calls that stay under way once it ``holds``. ``waits``: the longest time of each wait since then."""

    def __init__(self, time: SimulatedTime) -> None:
        self.holds = False
        self.waits = list[float]()
        self._time = time

    def start(self, call: Callable[[], Any]) -> Future[Any]:
        return Future() if self.holds else super().start(call)

    def wait(self, calls: Collection[Future[Any]], timeout_s: float) -> None:
        if self.holds:
            self.waits.append(timeout_s)
            self._time.sleep(timeout_s)


def test_a_watch_without_a_wait_waits_for_its_own_polls_and_not_for_those_of_an_earlier_watch(
    time: SimulatedTime,
) -> None:
    servers, held = Servers(2, time), Held(time)
    client = AckerClient(
        Settings(servers.addresses), connect=servers.connect, clock=time.clock, sleep=time.sleep, side_by_side=held
    )
    client.open_source("orders")
    held.holds = True
    client.watch(0.0)
    assert held.waits == [client.settings.call_timeout_s]
    held.waits.clear()
    client.watch(0.0)
    assert held.waits == [0.0]


def test_a_failed_server_is_reported_once_and_not_polled_again(
    make: Callable[..., AckerClient], time: SimulatedTime, caplog: pytest.LogCaptureFixture
) -> None:
    servers = Servers(2, time)
    client = make(servers, replicas=2, gone_after_s=2.0)
    client.open_source("orders")
    servers.servers[1].stop()
    while "is out" not in caplog.text:
        client.watch(0.5)
    polled = servers.watches[1]
    for _ in range(20):
        client.watch(0.5)
    assert servers.watches[1] == polled
    assert caplog.text.count("is out") == 1


def test_a_batch_that_could_not_be_opened_on_all_servers_keeps_no_room_once_it_is_forgotten(
    make: Callable[..., AckerClient], time: SimulatedTime
) -> None:
    servers = Servers(2, time)
    servers.servers[1] = LocalServer(new_shard(max_pending=100), id=1, clock=time.clock, sleep=time.sleep)
    client = make(servers, budget_s=3.0)
    client.open_source("orders")
    with pytest.raises(errors.Rejected, match="never fit"):
        client.open_batch(1, FIRST, 1000)
    assert servers.servers[0].shard.stats.open_batches == 1
    client.forget_batch(1)
    for _ in range(4):
        client.watch(0.1)
    assert servers.servers[0].shard.stats.open_batches == 0
    assert len(client.open_batch(2, 2 * FIRST, 50).placement.members) == 2


@pytest.mark.parametrize("is_open", [True, False])
def test_a_number_whose_batch_was_forgotten_is_refused_and_ends_no_later_batch(
    make: Callable[..., AckerClient], time: SimulatedTime, is_open: bool
) -> None:
    servers = Servers(2, time)
    servers.servers[1] = LocalServer(new_shard(max_pending=100), id=1, clock=time.clock, sleep=time.sleep)
    client = make(servers, budget_s=3.0)
    client.open_source("orders")
    if is_open:
        client.open_batch(1, 2 * FIRST, 50)
    else:
        with pytest.raises(errors.Rejected, match="never fit"):
            client.open_batch(1, 2 * FIRST, 1000)
    client.forget_batch(1)
    with pytest.raises(ValueError, match="batch 1 was forgotten: give this one a number of its own"):
        client.open_batch(1, 2 * FIRST, 50)
    read_and_write(client, client.open_batch(2, FIRST, 50), 2, 50)
    client.settle(2, Settlement.DONE)
    verdicts = Counter[int]()
    while verdicts.total() < 50:
        verdicts.update(client.watch(0.5).outcomes.verdicts.tolist())
    assert verdicts == {Verdict.ACKED: 50}


@pytest.mark.parametrize("at_once", [True, False])
def test_an_idle_source_moves_to_the_servers_that_took_the_place_of_all_its_own(
    make: Callable[..., AckerClient], time: SimulatedTime, at_once: bool
) -> None:
    servers = Servers(2, time)
    client = make(servers)
    source = client.open_source("orders")
    for server in servers.servers:
        server.start(with_state=False)
        for _ in range(0 if at_once else 20):
            source._fetch()
    while time.clock() < 60.0:
        source._fetch()
        assert client.silent_for_s < 20.0
    make(servers).join(source)
    client.ack(*source.emit("later"))
    assert next(source.outcomes()) == ("later", Verdict.ACKED, "")


def test_the_silence_of_servers_that_are_gone_counts_from_their_last_answer(
    make: Callable[..., AckerClient], time: SimulatedTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = make(Servers(2, time))
    client.open_source("orders", lease_s=20.0)
    while time.clock() < 100.0:
        client.watch(1.0)
    cluster, heard_at = client._state().cluster, time.clock()
    monkeypatch.setattr(cluster, "gone", lambda member, **_: "its server is gone")
    monkeypatch.setattr(cluster, "_look", lambda patience: View(1, ()))
    while time.clock() < heard_at + 40.0:
        client.watch(1.0)
    assert client.silent_for_s == pytest.approx(time.clock() - heard_at, abs=5.0)


# -- left out


def read_and_write(client: AckerClient, pin: Pin, number: int, count: int) -> None:
    roots = root_ids(FIRST, np.arange(count, dtype=np.uint64))
    edges = edge0_column(roots)
    scope = InitScope(pin.session, number, np.array([[0, count]], np.uint64))
    client.report_pinned(Identity(number, 1), fold(roots, edges), scope, (pin,))
    client.report_pinned(Identity(number, 2), fold(roots, edges), None, (pin,))


def test_a_server_left_out_of_a_batch_closes_it_and_its_outcomes_are_not_returned_again(
    make: Callable[..., AckerClient], time: SimulatedTime
) -> None:
    servers = Servers(2, time)
    client = make(servers, replicas=2)
    client.open_source("orders")
    pin = client.open_batch(1, FIRST, 10)
    read_and_write(client, pin, 1, 10)
    client.leave_out(1, [1])
    client.settle(1, Settlement.DONE)
    watched = [client.watch(0.1) for _ in range(20)]
    assert [server.shard.stats.open_batches for server in servers.servers] == [0, 0]
    assert [server.shard.stats.unconfirmed for server in servers.servers] == [0, 0]
    assert sum(len(each.outcomes) for each in watched) == 10
    assert {verdict for each in watched for verdict in each.outcomes.verdicts.tolist()} == {Verdict.ACKED}


def test_a_batch_that_a_later_registration_settles_is_lost_there(
    make: Callable[..., AckerClient], time: SimulatedTime
) -> None:
    servers = Servers(1, time)
    [server] = servers.servers
    client = make(servers)
    client.open_source("orders")
    pin = client.open_batch(1, FIRST, 3)
    roots = root_ids(FIRST, np.arange(3, dtype=np.uint64))
    scope = InitScope(pin.session, 1, np.array([[0, 3]], np.uint64))
    client.report_pinned(Identity(1, 1), fold(roots, edge0_column(roots)), scope, (pin,))
    client.fail(int(roots[0]), "bad")
    client.flush()
    assert client.watch(1.0).outcomes.root_ids.tolist() == roots[:1].tolist()
    # The server loses its state. Delayed requests register the source and open the batch again, where a second try of
    # the task drops a record and another one fails.
    server.stop()
    server.start(with_state=False)
    server.shard.watch(Watch("orders", pin.session, 60_000), time.clock())
    server.shard.open_batch(OpenBatch(pin.session, 1, FIRST, 3, held=True), time.clock())
    again = fold(roots[1:2], edge0_column(roots[1:2]))
    failed = fold_updates(roots[1:2], np.zeros(1, np.uint64), np.array([FAIL], np.uint8), {int(roots[1]): "bad"})
    for identity, entries, inits in ((Identity(2, 1), again, scope), (Identity(2, 2), failed, None)):
        server.shard.apply(server.shard.prepared(Apply(identity, digest(entries), entries, inits)), time.clock())
    client.settle(1, Settlement.DONE)
    watched = client.watch(1.0)
    assert watched.absent.tolist() == []
    assert Counter(watched.outcomes.verdicts.tolist()) == {Verdict.LOST: 2}


def test_outcomes_of_slots_that_moved_to_another_server_still_count_as_heard() -> None:
    placement = place(View(1, (Member(1, 1, "a:1"), Member(2, 2, "b:1"))), 7, 1, 1)
    votes = BatchVotes(FIRST, 100, placement.replicas)
    roots = root_ids(FIRST, np.arange(100, dtype=np.uint64))
    acked = Outcomes(roots, np.full(100, Verdict.ACKED, np.uint8))
    heard = votes.hear(0, acked)
    assert 0 < len(heard.outcomes) < 100
    assert votes.settled(0, 100).unheard == 0


# -- views


def gone_in_the_end(cluster: Cluster, member: Member, time: SimulatedTime) -> str:
    """Return why the cluster considers a member gone, after two fetches of the view ("": it is not gone)."""
    cluster.refresh()
    assert cluster.gone(member) == ""
    time.sleep(2.0)
    cluster.refresh()
    return cluster.gone(member)


def test_an_executor_asks_every_server_that_it_knows_for_the_view(time: SimulatedTime) -> None:
    other = Member(1, 11, "1:1")
    asked: list[str] = []

    class Registered(LocalTransport):
        def view(self, timeout_s: float) -> ViewReply:
            asked.append(self.address)
            return ViewReply(1, 5, (ListedMember(other),))

    def connect(address: str) -> LocalTransport:
        server = LocalServer(clock=time.clock, sleep=time.sleep)
        server.is_up = address != "0:1"
        return Registered(server, address)

    cluster = Cluster(Settings(("0:1",)), connect, time.clock, time.sleep, lambda: 0.5, InTurn())
    cluster.callers.at(other.address).greeted_once(cluster.patience().deadline)
    cluster._epoch_heard = 5
    assert gone_in_the_end(cluster, Member(0, 10, "0:1"), time) == "its server is gone"
    assert other.address in asked


def test_the_counts_of_a_report_may_be_asked_for_while_another_thread_counts_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    roots = np.sort(root_ids(FIRST, np.arange(400_000, dtype=np.uint64)))
    report = Delivery(Identity(1, 2), fold(roots, roots))
    messages = dict(report.ready())
    assert len(messages) > 2

    def meanwhile(column: Any) -> Any:
        monkeypatch.setattr(delivery_module, "section_starts", section_starts)
        key, message = next(iter(messages.items()))
        statuses = np.full(len(section_starts(message.entries.root_ids)), Status.APPLIED, np.uint8)
        report.answered(key, ApplyReply(1, Status.APPLIED, section_statuses=statuses))
        return section_starts(column)

    monkeypatch.setattr(delivery_module, "section_starts", meanwhile)
    assert report.result.unreported > 0
