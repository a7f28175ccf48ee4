"""Twenty members, eight in each batch: a source drops connections and leases that it no longer needs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from acker_client import AckerClient, Settings, Verdict
from acker_client.cluster.callers import IDLE_S
from acker_client.rpc.side_by_side import SideBySide
from acker_protocol.placement import SPREAD
from acker_testing import SimulatedTime
from tests.client.test_client_members import ALL_ACKED, Job, living_on
from tests.client.test_client_members_change import Registered, WithView

MEMBERS, BATCHES, LEASE_S = 20, 30, 30.0


class Many(Registered):
    """Servers in simulated time. ``channels``: the number of open channels to each address."""

    def __init__(self, time: SimulatedTime) -> None:
        super().__init__(MEMBERS, time)
        self.channels: Counter[str] = Counter()

    def client(self, name: str = "", side_by_side: SideBySide | None = None, **options: float) -> AckerClient:
        settings = Settings(("s0:1",), **options)  # type: ignore[arg-type]
        client = AckerClient(settings, connect=self._counted, side_by_side=side_by_side, **self._time)
        self._clients.append(client)
        return client

    def _counted(self, address: str) -> Any:
        self.channels[address] += 1
        return Channel(self, address)


class Channel(WithView):
    def close(self) -> None:
        self._servers.channels[self._address] -= 1  # type: ignore[attr-defined]


def open_channels(servers: Many) -> int:
    return sum(servers.channels.values())


@pytest.mark.parametrize("replicas", [1, 2])
def test_batches_on_eight_of_twenty_servers_end_and_unneeded_connections_are_closed(replicas: int) -> None:
    time = SimulatedTime()
    servers = Many(time)
    source = servers.client(replicas=replicas)
    source.open_source("orders", lease_s=LEASE_S)
    session = source._state().source()
    executor = servers.client(replicas=replicas)
    seen: Counter[int] = Counter()
    for number in range(1, BATCHES + 1):
        job = Job(source, executor, number)
        seen.update(member.id for member in job.pin.placement.members)
        assert len(job.pin.placement.members) == SPREAD
        assert job.done() == ALL_ACKED
        # Let leases expire: some servers forget the source, and are needed again later.
        time.sleep(LEASE_S / 4)
        source.watch()
    assert len(seen) == MEMBERS
    assert not any(server.shard.stats.open_batches for server in servers.by_address.values())
    for _ in range(8):
        time.sleep(LEASE_S / 4)
        source.watch()
    assert set(session._conversations._by_address) == {member.address for member in living_on(source)}
    for _ in range(int(IDLE_S / LEASE_S) + 3):
        time.sleep(LEASE_S / 2)
        source.watch()
        time.sleep(LEASE_S / 2 - 1.0)
        source.watch()
    executor.hello()
    # The source keeps the channels of its last batch. The other three are for the configured address of each client,
    # and for the last hello.
    assert open_channels(servers) <= SPREAD + 3
    assert not source.watch().says_something


def test_a_server_that_forgot_a_source_while_it_was_not_needed_loses_no_batch_by_it() -> None:
    time = SimulatedTime()
    servers = Many(time)
    for server in servers.by_address.values():
        # Let servers grant a shorter lease than requested.
        server.shard._max_lease_s = LEASE_S / 4
    source = servers.client(replicas=1, spread=2)
    source.open_source("orders", lease_s=LEASE_S)
    executor = servers.client()
    ended: Counter[tuple[Verdict, str]] = Counter()
    for number in range(1, BATCHES + 1):
        ended += Job(source, executor, number).done()
        time.sleep(LEASE_S / 5)
        source.watch()
    assert ended == Counter({(Verdict.ACKED, ""): BATCHES * sum(ALL_ACKED.values())})
