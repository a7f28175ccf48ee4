"""Server processes come and go under a running source: every record gets one outcome, and a true one."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from acker_client import AckerClient, Verdict
from acker_client.errors import Unavailable
from acker_client.rpc.connection import Connect
from acker_client.rpc.transport import GrpcTransport
from tests.faults.acking import Acking
from tests.faults.load import WAIT_S, Load
from tests.faults.proxy import Proxy
from tests.faults.servers import SESSION_S, Servers, await_until


@pytest.fixture
def servers(tmp_path: Path, zookeeper: str) -> Iterator[Servers]:
    """Servers that know of each other through ZooKeeper."""
    servers = Servers(tmp_path, zookeeper)
    yield servers
    servers.close()


@pytest.fixture
def begin(servers: Servers) -> Iterator[Callable[..., Load]]:
    """Return a function that puts load on the servers. Clients first connect to server ``seed``."""
    loads: list[Load] = []

    def start(replicas: int, seed: int = 0, **options: Any) -> Load:
        load = Load([servers.addresses[seed]], replicas=replicas, **options)
        loads.append(load)
        load.await_outcomes()
        return load

    yield start
    for load in loads:
        load.close()


def figures(load: Load, since: float) -> str:
    """Return the figures of a run as text, to print with pytest -s."""
    account = load.account
    stall_s, records = account.longest_stall_s(since), len(account.acked)
    rate = 3 * records / (account.heard_at[-1] - account.heard_at[0])
    replays = f"replays {account.replays}"
    if account.lost:
        replays += f", all ACKED after {account.replayed_at - since:.2f} s"
    return f"stall {stall_s:.2f} s, {replays}, missing {account.missing}, {rate:,.0f} updates/s"


def start_between(servers: Servers, load: Load, before: int, happens: Callable[[], object]) -> None:
    """Pause servers 0 and 1, call ``happens``, and start server 2.

    Resumes servers 0 and 1 when the source has a view of server 2 that is later than the epoch ``before``."""
    for id in (0, 1):
        servers.pause(id)
    happens()
    servers.start_alone(2)
    await_until(lambda: (listed := load.client._state().cluster._listed) is not None and listed.epoch > before)
    for id in (0, 1):
        servers.resume(id)


# `make test-long` also tries each fault with one replica.
ONE_OR_TWO = [pytest.param(1, marks=pytest.mark.long), 2]


@pytest.mark.long
@pytest.mark.parametrize("replicas", ONE_OR_TWO)
def test_a_third_server_joins_and_serves_new_batches_at_no_replay(
    servers: Servers, begin: Callable[..., Load], replicas: int
) -> None:
    servers.start(0, 1)
    load = begin(replicas)
    since = time.monotonic()
    servers.start(2)
    load.await_outcomes(20)
    account = load.finish()
    print("join", replicas, figures(load, since))
    assert account.replays == 0
    assert {member.id for member in account.pins[max(account.pins)].placement.members} == {0, 1, 2}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("replicas", ONE_OR_TWO)
def test_a_server_that_drains_ends_by_itself_at_no_replay(
    servers: Servers, begin: Callable[..., Load], replicas: int
) -> None:
    servers.start(0, 1, 2)
    load = begin(replicas)
    since = time.monotonic()
    servers.drain(0)
    assert servers.await_end(0) == 0
    load.await_outcomes(20)
    account = load.finish()
    print("drain", replicas, figures(load, since))
    assert account.replays == 0
    assert {member.id for member in account.pins[max(account.pins)].placement.members} == {1, 2}


@pytest.mark.long
@pytest.mark.parametrize("replicas", ONE_OR_TWO)
def test_a_server_that_is_stopped_while_it_drains_costs_the_replay_of_its_roots_on_one_server_alone(
    servers: Servers, begin: Callable[..., Load], replicas: int
) -> None:
    servers.start(0, 1, 2)
    load = begin(replicas)
    since = time.monotonic()

    def remove() -> None:
        servers.drain(0)
        servers.stop(0)

    load.strike(remove)
    load.await_outcomes(20)
    account = load.finish()
    print("stopped while it drains", replicas, figures(load, since))
    if replicas == 1:
        assert account.lost_roots == account.living_on(0, account.lost_batches)
        assert account.replays == len(account.lost) > 0
    else:
        assert account.replays == 0


@pytest.mark.long
@pytest.mark.parametrize("replicas", ONE_OR_TWO)
def test_a_planned_restart_of_all_one_after_the_other_costs_no_replay(
    servers: Servers, begin: Callable[..., Load], replicas: int
) -> None:
    servers.start(0, 1, 2)
    load = begin(replicas)
    since = time.monotonic()
    for id in (0, 1, 2):
        servers.restart(id)
        load.await_outcomes()
    account = load.finish()
    print("rolling restart", replicas, figures(load, since))
    assert account.replays == 0


def test_with_two_replicas_a_killed_server_costs_no_replay(servers: Servers, begin: Callable[..., Load]) -> None:
    servers.start(0, 1, 2)
    load = begin(2)
    since = time.monotonic()
    load.strike(lambda: servers.kill(0))
    load.await_outcomes(20)
    account = load.finish()
    print("kill -9", 2, figures(load, since))
    assert account.replays == 0
    assert load.summary.saved > 0


@pytest.mark.long
def test_with_one_replica_a_killed_server_costs_the_replay_of_its_roots_and_of_no_other(
    servers: Servers, begin: Callable[..., Load]
) -> None:
    servers.start(0, 1, 2)
    load = begin(1)
    since = time.monotonic()
    load.strike(lambda: servers.kill(0))
    load.await_outcomes(20)
    account = load.finish()
    print("kill -9", 1, figures(load, since))
    assert account.replays == len(account.lost) > 0
    assert account.lost_roots == account.living_on(0, account.lost_batches)
    assert len(account.lost_batches) <= 1


@pytest.mark.long
@pytest.mark.parametrize("replicas", ONE_OR_TWO)
def test_a_server_that_wakes_up_after_twice_its_session_does_no_harm(
    servers: Servers, begin: Callable[..., Load], replicas: int
) -> None:
    servers.start(0, 1, 2)
    load = begin(replicas, seed=1)
    since = time.monotonic()
    load.strike(lambda: servers.pause(0))
    servers.await_view(1, lambda active: active == {1, 2})
    load.await_outcomes()
    await_until(lambda: time.monotonic() > since + 2 * SESSION_S)
    servers.resume(0)
    servers.await_view(1, lambda active: active == {0, 1, 2})
    load.await_outcomes()
    # Server 0 keeps no batches that ended while it was paused.
    await_until(lambda: servers.stats(0).values["acker_open_batches"] <= 1)
    account = load.finish()
    print("pause", replicas, figures(load, since))
    assert account.replays == len(account.lost)
    assert (account.replays > 0) == (replicas == 1)
    assert account.lost_roots == account.living_on(0, account.lost_batches)
    assert len(account.lost_batches) <= 1


# Use small batches in a minute's run, since the account holds every record.
AWAY = [
    pytest.param(1, 1.5 * SESSION_S, 2000, marks=pytest.mark.long),
    (2, 1.5 * SESSION_S, 2000),
    pytest.param(2, 60.0, 100, marks=pytest.mark.long),
]


@pytest.mark.long
@pytest.mark.parametrize(("replicas", "away_s", "batch_records"), AWAY)
def test_zookeeper_may_be_away_while_jobs_run_and_batches_are_opened(
    servers: Servers,
    begin: Callable[..., Load],
    zookeeper_process: Any,
    replicas: int,
    away_s: float,
    batch_records: int,
) -> None:
    servers.start(0, 1, 2)
    load = begin(replicas, batch_records=batch_records)
    since = time.monotonic()
    zookeeper_process.kill()
    try:
        await_until(lambda: time.monotonic() > since + away_s, within_s=2 * away_s)
        load.await_outcomes(10)
    finally:
        zookeeper_process.start()
    load.await_outcomes(10)
    for id in (0, 1, 2):
        servers.await_view(id, lambda active: active == {0, 1, 2})
    account = load.finish()
    print("ZooKeeper away", replicas, figures(load, since))
    assert account.replays == 0
    assert {len(pin.placement.members) for pin in account.pins.values()} == {3}


@pytest.mark.long
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("comes_first", [False, True])
@pytest.mark.jvm
def test_zookeeper_may_lose_its_data_under_running_jobs_at_no_replay(
    tmp_path: Path, replicas: int, *, comes_first: bool
) -> None:
    """``comes_first``: server 2 starts first, while the others are paused. Clients get its view without the others."""
    from acker_testing import ZooKeeperProcess

    (tmp_path / "zookeeper").mkdir()
    zookeeper = ZooKeeperProcess(tmp_path / "zookeeper")
    servers = Servers(tmp_path, f"{zookeeper.address}/acker")

    def lose() -> None:
        if comes_first:
            start_between(servers, load, before, zookeeper.empty)
        else:
            zookeeper.empty()

    try:
        servers.start(0, 1, 2)
        servers.kill(2)
        servers.await_view(0, lambda active: active == {0, 1})
        seeds = [servers.addresses[0], servers.addresses[2]]
        with contextlib.closing(Load(seeds, replicas=replicas, gone_after_s=15.0)) as load:
            load.await_outcomes()
            since, before = time.monotonic(), servers.view(0).epoch
            load.strike(lose)
            if not comes_first:
                servers.start(2)
            for id in (0, 1, 2):
                servers.await_view(id, lambda active: active == {0, 1, 2})
                assert servers.view(id).epoch > before
            load.await_outcomes(10)
            account = load.finish()
        print("ZooKeeper emptied", replicas, figures(load, since))
        assert account.replays == 0
        assert {0, 1, 2} in [{member.id for member in pin.placement.members} for pin in account.pins.values()]
    finally:
        servers.close()
        zookeeper.kill()


@pytest.mark.long
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_server_that_starts_while_the_others_have_lost_their_sessions_costs_no_replay(
    servers: Servers, nodes: Any, replicas: int
) -> None:
    def sessions_end() -> None:
        await_until(lambda: not nodes.get_children("/servers/ids"))
        # Server 2 waits for the others as long as its own session timeout.
        servers.session_s = 30.0

    servers.start(0, 1, 2)
    servers.kill(2)
    servers.await_view(0, lambda active: active == {0, 1})
    seeds = [servers.addresses[0], servers.addresses[2]]
    with contextlib.closing(Load(seeds, replicas=replicas)) as load:
        load.await_outcomes()
        since, before = time.monotonic(), servers.view(0).epoch
        load.strike(lambda: start_between(servers, load, before, sessions_end))
        for id in (0, 1, 2):
            servers.await_view(id, lambda active: active == {0, 1, 2})
        load.await_outcomes(10)
        account = load.finish()
    print("sessions lost", replicas, figures(load, since))
    assert account.replays == 0


@pytest.fixture
def proxy(servers: Servers) -> Iterator[Proxy]:
    """A proxy in front of server 0."""
    servers.start(0, 1, 2)
    proxy = Proxy(servers.addresses[0])
    yield proxy
    proxy.close()


def through(proxy: Proxy, servers: Servers, given_up: threading.Event | None = None) -> Connect:
    """Return how an executor connects: to server 0 through ``proxy``. Sets ``given_up`` if a report gets no answer."""

    class Given(GrpcTransport):
        def apply(self, message: Any, timeout_s: float) -> Any:
            try:
                return super().apply(message, timeout_s)
            except Unavailable:
                if given_up is not None:
                    given_up.set()
                raise

    return lambda address: Given(proxy.address if address == servers.addresses[0] else address)


@pytest.mark.long
def test_with_two_replicas_what_cannot_reach_one_of_them_goes_to_the_other_at_no_replay(
    servers: Servers, begin: Callable[..., Load], proxy: Proxy
) -> None:
    load = begin(2, seed=1, connect=through(proxy, servers), call_timeout_s=0.5, replica_wait_s=0.5)
    since = time.monotonic()
    load.strike(proxy.cut)
    load.await_outcomes(4)
    proxy.mend()
    load.await_outcomes()
    await_until(lambda: servers.stats(0).values["acker_open_batches"] <= 1)
    account = load.finish()
    print("cut", 2, figures(load, since))
    assert account.without == {0}
    assert account.replays == 0
    assert load.summary.short_of_replicas >= 1


@pytest.mark.long
def test_with_one_replica_a_task_that_cannot_reach_it_waits_until_it_can(
    servers: Servers, begin: Callable[..., Load], proxy: Proxy
) -> None:
    given_up = threading.Event()
    load = begin(1, seed=1, connect=through(proxy, servers, given_up), call_timeout_s=0.5)
    since = time.monotonic()
    load.strike(proxy.cut)
    assert given_up.wait(WAIT_S)
    proxy.mend()
    load.await_outcomes()
    account = load.finish()
    print("cut", 1, figures(load, since))
    assert (account.without, account.replays) == (set(), 0)


@pytest.fixture
def listed(tmp_path: Path) -> Iterator[Servers]:
    """Three servers without ZooKeeper."""
    servers = Servers(tmp_path)
    servers.start(0, 1, 2)
    yield servers
    servers.close()


@pytest.mark.long
@pytest.mark.parametrize(("replicas", "comes_back"), [(1, False), (1, True), (2, True)])
def test_of_a_list_of_servers_one_may_be_killed(listed: Servers, replicas: int, *, comes_back: bool) -> None:
    load = Load(list(listed.addresses.values()), replicas=replicas, gone_after_s=1.0)
    load.await_outcomes()
    since = time.monotonic()
    load.strike(lambda: listed.kill(0))
    if comes_back:
        listed.start(0)
    load.await_outcomes(10)
    account = load.finish()
    print("list", replicas, comes_back, figures(load, since))
    assert account.replays == len(account.lost)
    assert (account.replays > 0) == (replicas == 1)
    assert account.lost_roots == account.living_on(0, account.lost_batches)
    assert len(account.lost_batches) <= 1


@pytest.mark.long
def test_one_process_emits_and_two_other_processes_ack_through_a_join_and_a_drain(servers: Servers) -> None:
    servers.start(0, 1)
    ended: Counter[Verdict] = Counter()
    pinned: set[frozenset[int]] = set()
    emitted, is_draining = 0, False
    with AckerClient(servers.addresses[1], replicas=2) as source, ExitStack() as processes:
        session = source.open_source("clicks", lease_s=60.0)
        others = [Acking(servers.addresses[1], session) for _ in range(2)]
        for other in others:
            processes.callback(other.close)
        while len(pinned) < 3 or ended.total() < emitted:
            if len(pinned) == 1 and 2 not in servers.addresses:
                servers.start(2)
            if len(pinned) == 2 and not is_draining:
                is_draining = True
                servers.drain(0)
            anchors = [source.emit() for _ in range(100)] if len(pinned) < 3 else []
            emitted += len(anchors)
            source.flush()
            pinned.add(frozenset(member.id for member in source._state().source()._batches._home))
            for k, other in enumerate(others):
                other.begin((anchor.root_id, anchor.edge) for anchor in anchors[k::2])
            for other in others:
                other.await_end()
            ended.update(outcome.verdict for outcome in source.watch(0.5).outcomes)
    assert pinned == {frozenset({0, 1}), frozenset({0, 1, 2}), frozenset({1, 2})}
    assert ended == Counter({Verdict.ACKED: emitted})
    assert servers.await_end(0) == 0
