"""Opening a batch at the server, opening it again after the server lost its state, and giving up at the deadline."""

from __future__ import annotations

from typing import Any

import pytest

from acker_client import AckerClient
from acker_client.cluster.scope import BatchScope
from acker_client.source import SourceError
from acker_client.source.engine.server_batches import ServerBatches
from acker_protocol.ids import root_id
from acker_protocol.messages import Settlement, Verdict
from acker_testing import new_shard
from tests.source.executors import Cluster

FIRST = 1 << 40
SCOPE = BatchScope(session=1, number=1, first=FIRST)


@pytest.fixture
def cluster(tmp_path: Any) -> Cluster:
    return Cluster(tmp_path)


def started(
    cluster: Cluster, *, deadline_s: float = 30.0, lease_s: float = 1000.0
) -> tuple[AckerClient, ServerBatches]:
    client = cluster.client()
    client.open_source("lines", lease_s=lease_s)
    return client, ServerBatches(client, cluster.environment(), deadline_s)


def open_batches(cluster: Cluster) -> int:
    return int(cluster.server.shard.stats.open_batches)


def test_a_batch_that_a_server_loses_is_opened_again_there_and_its_roots_are_lost_at_once(cluster: Cluster) -> None:
    client, server_batches = started(cluster)
    server_batches.reserve_batch(SCOPE, 10)
    cluster.server.start(with_state=False)
    watched = client.watch()
    assert (watched.interrupted, open_batches(cluster)) == ((1,), 1)
    assert set(watched.outcomes) == {(root_id(FIRST, k), Verdict.LOST, "the server lost its state") for k in range(10)}
    assert client.watch().settled == ()
    assert server_batches.settle_at_servers(1, Settlement.DONE, lambda: False)
    assert client.watch().settled == (1,)


def test_a_state_that_is_lost_before_a_batch_is_opened_costs_that_batch_nothing(cluster: Cluster) -> None:
    client, server_batches = started(cluster)
    cluster.server.start(with_state=False)
    server_batches.reserve_batch(SCOPE, 10)
    watched = client.watch()
    assert (watched.interrupted, len(watched.outcomes), open_batches(cluster)) == ((), 0, 1)


def test_a_batch_that_could_not_be_opened_is_not_opened_again(cluster: Cluster) -> None:
    client, server_batches = started(cluster, deadline_s=5.0)
    cluster.server.stop()
    with pytest.raises(SourceError, match="no batch could be opened for 5 s"):
        server_batches.reserve_batch(SCOPE, 10)
    cluster.server.start(with_state=False)
    client.watch()
    assert open_batches(cluster) == 0


def test_a_batch_is_given_up_at_the_deadline_and_not_a_budget_later(cluster: Cluster) -> None:
    cluster.budget_s = 60.0
    _, server_batches = started(cluster, deadline_s=70.0)
    cluster.server.stop()
    began = cluster.time.clock()
    with pytest.raises(SourceError, match="for 70 s"):
        server_batches.reserve_batch(SCOPE, 10)
    assert cluster.time.clock() - began < 75.0


@pytest.mark.parametrize(("lease_s", "at_most_s"), [(1000.0, 3.0), (1.5, 0.5)])
def test_opening_a_batch_again_leaves_time_to_renew_the_lease(
    cluster: Cluster, lease_s: float, at_most_s: float
) -> None:
    client, server_batches = started(cluster, lease_s=lease_s)
    server_batches.reserve_batch(SCOPE, 10)
    cluster.server.shard = new_shard(max_pending=5)
    began = cluster.time.clock()
    client.watch()
    assert cluster.time.clock() - began <= at_most_s


def test_a_batch_that_waits_for_room_is_logged(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    cluster.server.shard = new_shard(max_pending=15)
    other, _ = started(cluster)
    other.open_batch(1, 2 * FIRST, 10)
    _, server_batches = started(cluster, deadline_s=20.0)
    with pytest.raises(SourceError, match=r"had no room .* for 20 s .*--max-pending"):
        server_batches.reserve_batch(SCOPE, 10)
    assert "batch 1 is not open yet: open batch 1: the server answered OVERLOADED" in caplog.text
