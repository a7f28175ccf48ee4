"""A batch's room at the server: opened, opened again and given up, whatever the server forgets meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from acker_client import AckerClient
from acker_client.core.scope import BatchScope
from acker_client.source import SourceError
from acker_client.source.run.server_batches import REOPEN_S, ServerBatches
from acker_testing import new_shard
from tests.source.executors import Cluster

FIRST = 1 << 40
SCOPE = BatchScope(session=1, number=1, first=FIRST)


class WatchedClient(AckerClient):
    """Does ``before`` ahead of each call that opens a batch, and notes its budget."""

    before: Callable[[], object] | None = None
    after: Callable[[], object] | None = None

    def open_batch(self, *arguments: Any, budget_s: float | None = None, **options: Any) -> None:
        self.budgets = [*getattr(self, "budgets", []), budget_s]
        before, self.before = self.before, None
        if before is not None:
            before()
        super().open_batch(*arguments, budget_s=budget_s, **options)
        after, self.after = self.after, None
        if after is not None:
            after()


@pytest.fixture
def cluster(tmp_path: Any) -> Cluster:
    return Cluster(tmp_path)


def started(
    cluster: Cluster, *, deadline_s: float = 30.0, lease_s: float = 1000.0
) -> tuple[WatchedClient, ServerBatches]:
    client = cluster.client(WatchedClient)
    assert isinstance(client, WatchedClient)
    client.open_source("lines", lease_s=lease_s)
    return client, ServerBatches(client, cluster.environment(), deadline_s)


def open_batches(cluster: Cluster) -> int:
    return int(cluster.server.shard.stats.open_batches)


def test_a_batch_is_open_in_the_generation_that_is_told(cluster: Cluster) -> None:
    client, server_batches = started(cluster)
    assert server_batches.reserve(SCOPE, 10) == client.generation
    assert open_batches(cluster) == 1


def test_a_state_that_is_lost_before_a_batch_is_opened_is_told_by_its_generation(cluster: Cluster) -> None:
    client, server_batches = started(cluster)
    before = client.generation
    client.before = lambda: cluster.server.start(with_state=False)
    told = server_batches.reserve(SCOPE, 10)
    assert told == client.generation != before
    assert open_batches(cluster) == 1


def test_a_state_that_is_lost_right_after_a_batch_was_opened_and_heard_of_at_once_has_it_opened_again(
    cluster: Cluster,
) -> None:
    client, server_batches = started(cluster)

    def lose() -> None:
        cluster.server.start(with_state=False)
        client.watch()

    client.after = lose
    assert server_batches.reserve(SCOPE, 10) == client.generation
    assert open_batches(cluster) == 1


def test_a_batch_that_could_not_be_opened_is_not_opened_again(cluster: Cluster) -> None:
    client, server_batches = started(cluster, deadline_s=5.0)
    cluster.server.stop()
    with pytest.raises(SourceError, match="no batch could be opened for 5 s"):
        server_batches.reserve(SCOPE, 10)
    cluster.server.start(with_state=False)
    client.watch()
    server_batches.reopen()
    assert open_batches(cluster) == 0


def test_a_batch_is_given_up_at_the_deadline_and_not_a_budget_later(cluster: Cluster) -> None:
    cluster.budget_s = 60.0
    _, server_batches = started(cluster, deadline_s=70.0)
    cluster.server.stop()
    began = cluster.time.clock()
    with pytest.raises(SourceError, match="for 70 s"):
        server_batches.reserve(SCOPE, 10)
    assert cluster.time.clock() - began < 75.0


@pytest.mark.parametrize(("lease_s", "budget_s"), [(1000.0, REOPEN_S), (1.5, 0.5)])
def test_opening_a_batch_again_leaves_time_to_renew_the_lease(
    cluster: Cluster, lease_s: float, budget_s: float
) -> None:
    client, server_batches = started(cluster, lease_s=lease_s)
    server_batches.reserve(SCOPE, 10)
    cluster.server.shard = new_shard(max_pending=5)
    server_batches.reopen()
    assert client.budgets[-1] == budget_s


def test_a_batch_that_waits_for_room_says_so(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    cluster.server.shard = new_shard(max_pending=15)
    other, _ = started(cluster)
    other.open_batch(1, 2 * FIRST, 10)
    _, server_batches = started(cluster, deadline_s=20.0)
    with pytest.raises(SourceError, match=r"had no room .* for 20 s .*--max-pending"):
        server_batches.reserve(SCOPE, 10)
    assert "batch 1 is not open yet: open batch 1: the server answered OVERLOADED" in caplog.text
