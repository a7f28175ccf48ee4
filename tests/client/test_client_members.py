"""One client of several servers: in-memory shards, calls in threads, members that come and go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from acker_client import AckerClient, Entries, Identity, InitScope, Settings, Settlement, Verdict, errors
from acker_client.pins import Pin, decode, encode
from acker_client.rpc.side_by_side import InTurn, SideBySide
from acker_protocol import ids
from acker_protocol.messages import Settle, Watch
from acker_protocol.placement import Member
from acker_protocol.reports import fold
from acker_testing import LocalServer, SimulatedTime

ROOTS = 60


class Servers:
    """Servers by address, and their clients. ``cut``: the addresses that each client, by name, cannot reach. ``time``:
    simulated time for all of them; None for real time."""

    def __init__(self, count: int, time: SimulatedTime | None = None) -> None:
        self._time: dict[str, Any] = {} if time is None else {"clock": time.clock, "sleep": time.sleep}
        self.by_address = {f"s{number}:1": LocalServer(id=number, **self._time) for number in range(count)}
        self.cut: dict[str, set[str]] = {}
        self._clients: list[AckerClient] = []

    def __getitem__(self, number: int) -> LocalServer:
        return self.by_address[f"s{number}:1"]

    def client(self, name: str = "", side_by_side: SideBySide | None = None, **options: float) -> AckerClient:
        given = {"replica_wait_s": 0.25, "gone_after_s": 0.5, "budget_s": 20.0, "call_timeout_s": 1.0, **options}
        settings = Settings(tuple(self.by_address), **given)  # type: ignore[arg-type]
        # random=0.1 keeps waits between tries below 0.2 s, since clients here wait only briefly for a replica.
        client = AckerClient(
            settings,
            connect=lambda address: self._connect(name, address),
            random=lambda: 0.1,
            side_by_side=side_by_side,
            **self._time,
        )
        self._clients.append(client)
        return client

    def _connect(self, name: str, address: str) -> Any:
        return Cut(self.by_address[address].connect(address), lambda: address in self.cut.get(name, ()))

    def close(self) -> None:
        for client in self._clients:
            client.close()


class Cut:
    """A transport that answers no calls while ``is_cut()``. ``only``: the one call that is cut, "" for all."""

    def __init__(self, transport: Any, is_cut: Callable[[], bool], only: str = "") -> None:
        self._transport, self._is_cut, self._only = transport, is_cut, only

    def __getattr__(self, call: str) -> Any:
        may_be_cut = call == self._only if self._only else call != "close"
        if may_be_cut and self._is_cut():
            raise errors.Unavailable("cut")
        return getattr(self._transport, call)


class Job:
    """One batch of a source, with a method for each step: read, work, settle."""

    def __init__(self, source: AckerClient, executor: AckerClient, number: int = 1) -> None:
        self.source, self.executor, self.number = source, executor, number
        first = number << 40
        self.pin: Pin = source.open_batch(number, first, ROOTS)
        self.roots = ids.root_ids(first, np.arange(ROOTS, dtype=np.uint64))
        self.edges = ids.edge0_column(self.roots)

    def read(self) -> None:
        covered = np.array([[0, ROOTS]], np.uint64)
        self.report(Identity(self.number, 1), fold(self.roots, self.edges), InitScope(self.pin.session, 1, covered))

    def work(self) -> None:
        self.report(Identity(self.number, 2), fold(self.roots, self.edges))

    def report(self, identity: Identity, entries: Entries, inits: InitScope | None = None) -> None:
        scope = None if inits is None else InitScope(inits.session, self.number, inits.covered)
        result = self.executor.report_pinned(identity, entries, scope, (self.pin,), may_leave=True)
        self.source.leave_out(self.number, result.without)

    def settle(self, settlement: Settlement = Settlement.DONE) -> dict[int, tuple[Verdict, str]]:
        """Return the outcome of every root; fail if a root has two."""
        self.source.settle(self.number, settlement)
        ended: dict[int, tuple[Verdict, str]] = {}
        while True:
            watched = self.source.watch(1.0)
            for outcome in watched.outcomes:
                assert outcome.root_id not in ended
                ended[outcome.root_id] = outcome.verdict, outcome.reason
            if self.number in watched.settled:
                return ended

    def done(self) -> Counter[tuple[Verdict, str]]:
        self.read()
        self.work()
        return Counter(self.settle().values())


ALL_ACKED = Counter({(Verdict.ACKED, ""): ROOTS})


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


def test_three_servers_share_a_batch_and_each_root_has_one_outcome(servers: Servers, source: AckerClient) -> None:
    assert Job(source, servers.client()).done() == ALL_ACKED
    assert all(servers[number].shard.stats.sections_applied > 0 for number in range(3))


@pytest.mark.parametrize("with_state", [True, False])
def test_with_two_replicas_a_server_that_stops_for_good_in_mid_batch_costs_no_replay(
    servers: Servers, source: AckerClient, with_state: bool
) -> None:
    job = Job(source, servers.client())
    job.read()
    servers[1].stop()
    job.work()
    assert Counter(job.settle().values()) == ALL_ACKED
    servers[1].start(with_state=with_state)
    assert Job(source, servers.client(), 2).done() == ALL_ACKED


def test_with_two_replicas_a_server_that_loses_its_state_in_mid_batch_costs_no_replay(
    servers: Servers, source: AckerClient
) -> None:
    job = Job(source, servers.client())
    job.read()
    servers[1].start(with_state=False)
    job.work()
    assert Counter(job.settle().values()) == ALL_ACKED


def test_with_one_replica_a_server_that_loses_its_state_loses_the_roots_of_its_slots_and_no_other(
    servers: Servers,
) -> None:
    source = servers.client(replicas=1)
    source.open_source("orders")
    job = Job(source, servers.client())
    job.read()
    lost = job.pin.placement.replicas_of(job.roots)[:, 0] == 1
    servers[1].start(with_state=False)
    job.work()
    ended = job.settle()
    assert {root for root, (verdict, _) in ended.items() if verdict == Verdict.LOST} == set(job.roots[lost].tolist())
    assert {verdict for verdict, _ in ended.values()} == {Verdict.LOST, Verdict.ACKED}
    assert len(ended) == ROOTS


@pytest.mark.parametrize("number", range(3))
def test_a_task_goes_on_without_a_server_that_has_lost_its_state_since_the_process_greeted_it(
    servers: Servers, number: int
) -> None:
    # One call at a time: when this server answers UNKNOWN_BATCH, no other call is still running.
    source, executor = servers.client(replicas=1), servers.client(side_by_side=InTurn())
    source.open_source("orders")
    Job(source, executor).done()
    job = Job(source, executor, 2)
    servers[number].start(with_state=False)
    # The restarted server learns the source again, but not the batch.
    source.watch()
    job.read()
    job.work()
    kept = job.pin.placement.replicas_of(job.roots)[:, 0] != number
    acked = {root for root, (verdict, _) in job.settle().items() if verdict == Verdict.ACKED}
    assert acked == set(job.roots[kept].tolist())


def test_an_answer_that_is_taken_after_a_newer_one_loses_no_batch_that_was_opened_since() -> None:
    servers = Servers(1)
    source = servers.client()
    source.open_source("orders")
    session = source._state().source()
    (conversation,) = session._conversations.watched
    polled = conversation.poll(0.0, 10)
    assert polled is not None
    servers[0].start(with_state=False)
    job = Job(source, servers.client())
    assert not session._watching._take_answer(conversation, polled)
    assert job.done() == ALL_ACKED
    servers.close()


@pytest.mark.parametrize("count", [1, 3])
def test_a_batch_opened_before_the_source_learns_of_a_loss_is_not_lost(count: int) -> None:
    servers = Servers(count)
    source = servers.client(replicas=1)
    source.open_source("orders")
    assert Job(source, servers.client()).done() == ALL_ACKED
    restarted = servers[0]
    restarted.start(with_state=False)
    answer, lost = restarted.watch, Counter[str]()

    def unheard(request: Watch) -> Any:
        reply = answer(request)
        # The server has registered the source again, but the source does not know that.
        lost["replies"] += 1
        if lost["replies"] == 1:
            raise errors.Unavailable("the reply was lost")
        return reply

    restarted.watch = unheard  # type: ignore[method-assign]
    while not lost:
        source.watch(0.0)
    assert Job(source, servers.client(), 2).done() == ALL_ACKED
    servers.close()


def test_a_server_that_drains_gets_no_new_batch_and_serves_the_one_it_has(servers: Servers) -> None:
    patient: dict[str, Any] = {"replica_wait_s": 20.0, "gone_after_s": 20.0, "call_timeout_s": 20.0}
    source = servers.client(**patient)
    source.open_source("orders")
    job = Job(source, servers.client(**patient))
    job.read()
    servers[1].shard.drain()
    after = Job(source, servers.client(**patient), 2)
    assert [member.id for member in after.pin.placement.members] == [0, 2]
    assert after.done() == ALL_ACKED
    job.work()
    assert Counter(job.settle().values()) == ALL_ACKED


@pytest.mark.long
def test_a_batch_for_which_there_was_no_server_is_opened_by_the_next_try(servers: Servers) -> None:
    source = servers.client(budget_s=0.5, replica_wait_s=10.0)
    source.open_source("orders")
    for server in servers.by_address.values():
        server.shard.drain()
    with pytest.raises(errors.Unavailable, match="draining or away"):
        source.open_batch(1, 1 << 40, ROOTS)
    for address in servers.by_address:
        servers.by_address[address].start(with_state=False)
    pin = source.open_batch(1, 1 << 40, ROOTS, budget_s=20.0)
    assert all(servers[member.id].shard.stats.open_batches for member in pin.placement.members)


def test_a_server_that_drains_and_has_dropped_the_source_has_lost_its_batch(
    servers: Servers, source: AckerClient
) -> None:
    job = Job(source, servers.client())
    job.read()
    job.work()
    here = set(job.roots[job.pin.placement.replicas_of(job.roots)[:, 0] == 1].tolist())
    shard = servers[1].shard
    shard.drain()
    shard.watch(Watch("orders", job.pin.session, 1000, close=True), shard._state.now)
    ended = job.settle()
    assert {root for root, (verdict, _) in ended.items() if verdict == Verdict.ACKED} >= set(ended) - here
    assert len(ended) == ROOTS


@pytest.mark.slow
def test_a_server_that_comes_while_a_source_runs_is_in_its_next_batches(servers: Servers) -> None:
    servers[2].stop()
    source = servers.client()
    source.open_source("orders")
    job = Job(source, servers.client())
    assert [member.id for member in job.pin.placement.members] == [0, 1]
    assert job.done() == ALL_ACKED
    servers[2].start()
    number, members = 1, [0, 1]
    while members != [0, 1, 2]:
        number += 1
        later = Job(source, servers.client(), number)
        members = [member.id for member in later.pin.placement.members]
        assert later.done() == ALL_ACKED


def test_an_executor_that_cannot_reach_a_server_goes_on_without_it_and_the_source_counts_it_out(
    servers: Servers, source: AckerClient
) -> None:
    servers.cut["executor"] = {"s1:1"}
    assert Job(source, servers.client("executor")).done() == ALL_ACKED


def test_no_root_is_acked_when_two_attempts_that_differ_reached_a_server_each(
    servers: Servers, source: AckerClient
) -> None:
    # The first attempt reaches only one server and completes there. The second, with other edges, reaches the other.
    source = servers.client(spread=2)
    source.open_source("orders")
    job = Job(source, servers.client("executor"))
    job.read()
    one, other = (member.address for member in job.pin.placement.members)
    servers.cut["executor"] = {one}
    job.work()
    servers.cut["executor"] = {other}
    job.report(Identity(1, 2), fold(job.roots, job.edges ^ np.uint64(5)))
    assert {verdict for verdict, _ in job.settle().values()} == {Verdict.LOST}


@pytest.mark.long
@pytest.mark.slow
def test_without_leave_a_report_waits_for_each_replica_that_is_not_gone(servers: Servers, source: AckerClient) -> None:
    servers.cut["executor"] = {"s1:1"}
    job = Job(source, servers.client("executor", budget_s=2.0, gone_after_s=100.0))
    with pytest.raises(errors.Unavailable, match="s1:1"):
        job.executor.report_pinned(Identity(1, 2), fold(job.roots, job.edges), None, (job.pin,))


def living_on(source: AckerClient) -> tuple[Member, ...]:
    """Return the members on which a source has placed its last batch."""
    return source._state().source()._batches._home


@pytest.mark.long
def test_one_process_emits_and_two_others_ack_through_a_join_and_a_drain(servers: Servers) -> None:
    servers[2].stop()
    source = servers.client()
    session = source.open_source("clicks")
    others = [servers.client(), servers.client()]
    for other in others:
        other.join(session)
    ended: Counter[Verdict] = Counter()
    pinned: set[tuple[int, ...]] = set()
    emitted = 0
    while pinned != {(0, 1), (0, 1, 2), (1, 2)} or ended.total() < emitted:
        if len(pinned) == 1:
            servers[2].start()
        if len(pinned) == 2:
            servers[0].shard.drain()
        anchors = [source.emit() for _ in range(10)] if len(pinned) < 3 else []
        emitted += len(anchors)
        source.flush()
        pinned.add(tuple(member.id for member in living_on(source)))
        for anchor, other in zip(anchors, others * 5, strict=False):
            child = other.new_edge()
            other.ack(anchor.root_id, anchor.edge, emitted=[child])
            other.ack(anchor.root_id, child)
        for other in others:
            other.flush()
        ended.update(outcome.verdict for outcome in source.watch(0.5).outcomes)
    assert ended == Counter({Verdict.ACKED: emitted})


def test_late_outcomes_of_a_finished_batch_are_not_reported(servers: Servers, source: AckerClient) -> None:
    job = Job(source, servers.client("executor"))
    job.read()
    servers.cut["source"] = {"s1:1"}
    job.work()
    assert Counter(job.settle().values()) == ALL_ACKED
    servers.cut["source"] = set()
    # A delayed settle call now arrives at server 1.
    servers[1].ask(lambda shard, now: shard.settle([Settle(job.pin.session, 1, Settlement.DONE)], now))
    watched = source.watch(0.5)
    assert (len(watched.outcomes), watched.says_something) == (0, False)


def test_outcomes_after_the_settling_of_an_open_batch_are_reported_once(servers: Servers) -> None:
    source, executor = servers.client(), servers.client()
    session = source.open_source("orders")
    pin = source.open_batch(1, 1 << 40, 10, held=False)
    roots = ids.root_ids(1 << 40, np.arange(10, dtype=np.uint64))
    entries = fold(roots, ids.edge0_column(roots))
    covered = InitScope(session, 1, np.array([[0, 10]], np.uint64))
    executor.report_pinned(Identity(1, 1), entries, covered, (pin,))
    source.settle(1, Settlement.DONE)
    watched = source.watch(1.0)
    assert (watched.settled, len(watched.outcomes)) == ((1,), 0)
    executor.report_pinned(Identity(1, 2), entries, None, (pin,))
    ended = Counter[Verdict]()
    while ended.total() < 10:
        watched = source.watch(1.0)
        ended.update(outcome.verdict for outcome in watched.outcomes)
    assert (ended, watched.settled) == (Counter({Verdict.ACKED: 10}), ())


def test_a_source_that_opened_at_one_server_which_then_falls_silent_begins_with_the_other_that_was_silent_first() -> (
    None
):
    """The view still lists both servers, so neither is gone. The source must not wait for a silent server until
    its budget is spent."""
    servers, asked = Servers(2), Counter[str]()

    def turned(address: str) -> Any:
        """Server 0 answers only the first watch. Server 1 answers none before server 0 has fallen silent."""

        def is_silent() -> bool:
            asked[address] += 1
            return (address == "s0:1") == (asked["s0:1"] > 1)

        return Cut(servers.by_address[address].connect(address), is_silent, only="watch")

    settings = Settings(tuple(servers.by_address), replica_wait_s=0.1, gone_after_s=1000.0, budget_s=2.0)
    with AckerClient(settings, connect=turned) as client:
        client.open_source("orders")
    assert asked["s0:1"] > 1
    servers.close()


def test_a_source_begins_with_the_one_server_that_answers_where_a_registry_still_lists_them_all() -> None:
    servers = Servers(3)

    def mute(address: str) -> Any:
        """All servers but one answer hello, and no watch."""
        return Cut(servers.by_address[address].connect(address), lambda: address != "s1:1", only="watch")

    settings = Settings(tuple(servers.by_address), replica_wait_s=0.1, gone_after_s=1000.0, budget_s=5.0)
    with AckerClient(settings, connect=mute) as client:
        client.open_source("orders")
        assert [members.id for members in client.members()] == [0, 1, 2]
    servers.close()


def test_a_source_that_waits_for_the_one_server_that_there_was_begins_with_another_that_has_come_since() -> None:
    servers, asked = Servers(2), Counter[str]()

    def late(address: str) -> Any:
        """Server 0 falls silent after its hello, and server 1 starts only then."""

        def is_silent() -> bool:
            asked[address] += 1
            return (address == "s0:1") == (asked["s0:1"] > 1)

        return Cut(servers.by_address[address].connect(address), is_silent)

    settings = Settings(tuple(servers.by_address), replica_wait_s=0.1, gone_after_s=1000.0, budget_s=5.0)
    with AckerClient(settings, connect=late) as client:
        client.open_source("orders")
    assert asked["s0:1"] > 1
    servers.close()


@pytest.mark.long
def test_a_batch_placed_again_leaves_nothing_open_at_its_first_servers(servers: Servers) -> None:
    source = servers.client("source", replicas=1, gone_after_s=100.0)
    source.open_source("orders", lease_s=3.0)
    slow = servers[1]
    answer = slow.ask

    def silent_after(question: Callable[[Any, float], Any]) -> Any:
        # The server does what is asked, but its reply is lost.
        if slow.shard.stats.open_batches:
            raise errors.Unavailable("the reply was lost")
        reply = answer(question)
        if slow.shard.stats.open_batches:
            raise errors.Unavailable("the reply was lost")
        return reply

    slow.ask = silent_after  # type: ignore[method-assign]
    job = Job(source, servers.client())
    assert [member.id for member in job.pin.placement.members] == [0, 2]
    slow.ask = answer  # type: ignore[method-assign]
    assert job.done() == ALL_ACKED
    while slow.shard.stats.open_batches:
        assert not source.watch(0.1).outcomes
    assert not source.watch(0.1).says_something


def test_with_several_servers_a_root_or_a_session_that_none_of_them_knows_is_refused_with_advice(
    servers: Servers,
) -> None:
    client = servers.client()
    client.ack(7, 5)
    with pytest.raises(errors.UnknownSource, match="no server knows root 7: it was emitted to other servers, or"):
        client.flush()
    with pytest.raises(errors.UnknownSource, match="no server knows session 99: it is not what open_source"):
        client.join(99)


def test_replicas_are_limited_to_the_number_of_servers_with_a_warning(
    servers: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    source = servers.client(replicas=5)
    source.open_source("orders")
    for number in (1, 2):
        assert Job(source, servers.client(), number).done() == ALL_ACKED
    assert caplog.text.count("5 replicas are asked for, but there are 3 servers: going on with fewer") == 1


def test_pins_come_out_of_text_as_they_went_in(source: AckerClient) -> None:
    pin = source.open_batch(3, 5000, 10)
    (read,) = decode(encode([pin]))
    assert (read.session, read.batch, read.first, read.up_to) == (pin.session, 3, 5000, 10)
    assert read.placement.members == pin.placement.members
    assert np.array_equal(read.placement.replicas, pin.placement.replicas)
    with pytest.raises(ValueError, match="hand them on as they came"):
        decode('[{"batch": [1]}]')


def test_two_servers_that_answer_in_turn_at_one_address_are_detected(servers: Servers) -> None:
    behind = [LocalServer(), LocalServer()]
    turns = iter(range(10))

    def connect(address: str) -> Any:
        return InTurns(behind, lambda: next(turns))

    client = AckerClient(Settings(("one:1",), call_timeout_s=1.0), connect=connect)
    connection = client._state().cluster.callers.at("one:1").connection
    for _ in range(2):
        connection.greet_anew()
        client.hello()
    connection.greet_anew()
    with pytest.raises(errors.Rejected, match="two servers answer at one:1, in turn: give each server an address"):
        client.hello()


class InTurns:
    """A transport that reaches the next server at each call."""

    def __init__(self, behind: list[LocalServer], turn: Callable[[], int]) -> None:
        self._behind, self._turn = behind, turn

    def __getattr__(self, call: str) -> Any:
        return getattr(self._behind[self._turn() % 2].connect("one:1"), call)


def test_opening_a_channel_closes_one_that_was_unused_for_long() -> None:
    time, closed = SimulatedTime(), list[str]()
    servers = {f"s{number}:1": LocalServer(id=number, clock=time.clock, sleep=time.sleep) for number in range(3)}

    class Closing:
        def __init__(self, address: str) -> None:
            self._address, self._transport = address, servers[address].connect(address)

        def __getattr__(self, call: str) -> Any:
            return getattr(self._transport, call)

        def close(self) -> None:
            closed.append(self._address)

    settings = Settings(("s0:1",))
    connect: Callable[[str], Any] = Closing
    client = AckerClient(settings, connect=connect, clock=time.clock, sleep=time.sleep)
    client.hello()
    cluster = client._state().cluster
    cluster.callers.at("s1:1").greeted_once(cluster.patience().deadline)
    time.sleep(601.0)
    cluster.callers.at("s2:1")
    # The configured addresses stay open.
    assert (closed, client.hello().id) == (["s1:1"], 0)
