"""Sources share the shards of a stream that is split while they read it. Their group is in memory or in ZooKeeper."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from acker_client.source import Batch, Retry, SourceError
from acker_client.source.engine.run import Run
from acker_client.source.zookeeper.group import ZooKeeperGroup
from acker_client.source.zookeeper.offset_store import ZooKeeperOffsets
from tests.source.executors import NO_SPARK, Cluster, failing, frame_of
from tests.source.groups import Group, Membership, SharedCheckpoint
from tests.source.kinesis_twin import TwinKinesis
from tests.source.logs import MemoryLetters
from tests.source.test_groups import Idle, next_of, taken, worked
from tests.source.test_kinesis_source import TwinSource

SHARDS = [f"shardId-{k:012d}" for k in range(4)]
LIMIT_S = 60.0


@pytest.fixture
def twin(cluster: Cluster) -> TwinKinesis:
    return TwinKinesis(cluster.time)


def member(cluster: Cluster, twin: TwinKinesis, **options: Any) -> Run:
    """Return a run of a source of a group. It raises ``Idle`` instead of waiting."""

    def idle(seconds: float) -> None:
        cluster.time.sleep(seconds)
        raise Idle

    given: dict[str, Any] = {
        "environment": replace(cluster.environment(), sleep=idle),
        "dead_letters": MemoryLetters(),
        "max_dead_share": 1.0,
        "retry": Retry(max_retries=1, initial_s=0.0),
        "refresh_s": 2.0,
        **options,
    }
    return TwinSource(twin, **given)._begin_run(NO_SPARK).__enter__()


def read_by(cluster: Cluster, run: Run) -> str:
    """Return everything that a member reads until it has nothing to read."""
    found: list[bytes] = []
    nothing = 0
    while nothing < 5:
        more: Any = next_of(run)
        found += more
        nothing = 0 if more else nothing + 1
        cluster.time.sleep(1.0)
    return b"".join(found).decode()


@pytest.mark.parametrize("limit", [None, 4])
def test_the_child_of_a_shard_waits_for_a_retry_that_another_member_has_and_goes_on_after_a_handover(
    cluster: Cluster, twin: TwinKinesis, limit: int | None
) -> None:
    twin.put(0, *"abcd")
    twin.put(1, *"wxyz")
    group = Group()
    options: dict[str, Any] = {} if limit is None else {"max_uncommitted_per_partition": limit}
    a, b = (
        member(cluster, twin, group=Membership(group, name), checkpoint=SharedCheckpoint(group, name), **options)
        for name in "ab"
    )
    assert (read_by(cluster, a), read_by(cluster, b)) == ("", "")
    group.give(SHARDS[0], "a")
    group.give(SHARDS[1], "b")
    assert read_by(cluster, b) == "wxyz"
    twin.split(0)
    twin.put(2, *"ef")
    twin.put(3, *"gh")
    group.give(SHARDS[2], "b")
    group.give(SHARDS[3], "a")
    batch = taken(a)
    assert batch is not None
    worked(a, batch, (b"b",))  # type: ignore[arg-type]
    assert read_by(cluster, b) == ""
    assert (read_by(cluster, a), read_by(cluster, b)) == ("bgh", "ef")
    twin.put(2, *"ij")
    group.give(SHARDS[2], "a")
    assert (read_by(cluster, b), read_by(cluster, a)) in {("", "ij"), ("ij", "")}
    a.__exit__()
    b.__exit__()
    assert {shard: each.done.to_runs() for shard, each in group.saved.items()} == {
        SHARDS[0]: [4],
        SHARDS[1]: [4],
        SHARDS[2]: [4],
        SHARDS[3]: [2],
    }


@pytest.mark.long
def test_shards_in_a_real_zookeeper_are_shared_split_and_left_and_each_record_is_acked_once(
    cluster: Cluster, twin: TwinKinesis, zookeeper: str, zookeeper_process: Any
) -> None:
    from kazoo.client import KazooClient

    nodes = KazooClient(zookeeper_process.address)
    nodes.start()
    nodes.ensure_path("/" + zookeeper.partition("/")[2])

    def join(name: str) -> Run:
        group = ZooKeeperGroup(zookeeper, "readers", member=name)
        return member(cluster, twin, group=group, checkpoint=ZooKeeperOffsets(group=group))

    found: list[bytes] = []

    def work(runs: list[Run], until: int) -> None:
        deadline_s = time.monotonic() + LIMIT_S
        while len(found) < until:
            assert time.monotonic() < deadline_s, f"{len(found)} of {until} came"
            for run in runs:
                more: Any = next_of(run)
                found.extend(more)
            cluster.time.sleep(1.0)

    twin.put(0, *(f"{k} " for k in range(20)))
    twin.put(1, *(f"{k} " for k in range(20, 40)))
    first = join("first")
    work([first], 40)
    second = join("second")
    twin.split(0)
    for shard, start in ((1, 40), (2, 60), (3, 80)):
        twin.put(shard, *(f"{k} " for k in range(start, start + 20)))
    work([first, second], 100)
    first.__exit__()
    twin.put(3, *(f"{k} " for k in range(100, 120)))
    work([second], 120)
    second.__exit__()
    nodes.stop()
    nodes.close()
    assert sorted(int(each) for each in found) == list(range(120))


def test_a_checkpoint_per_shard_in_a_real_zookeeper_brings_a_restart_to_what_was_open(
    cluster: Cluster, twin: TwinKinesis, zookeeper: str, zookeeper_process: Any
) -> None:
    from kazoo.client import KazooClient

    nodes = KazooClient(zookeeper_process.address)
    nodes.start()
    chroot = "/" + zookeeper.partition("/")[2]
    nodes.ensure_path(chroot)
    twin.put(0, *"abcdef")
    twin.put(1, *"xyz")
    options: dict[str, Any] = {"environment": cluster.environment(), "retry": Retry(max_retries=3, initial_s=0.0)}
    with pytest.raises(SourceError, match="spent all retries, and there is nowhere to put them"):
        TwinSource(twin, checkpoint=ZooKeeperOffsets(zookeeper), **options).run(
            NO_SPARK, failing(lambda row: row.value in b"be")
        )
    found: list[bytes] = []

    def process(batch: Batch) -> None:
        rows = frame_of(batch).rows()
        found.extend(row.value for row in rows)
        frame_of(batch).ack(rows)

    summary = TwinSource(twin, checkpoint=ZooKeeperOffsets(zookeeper), **options).run(NO_SPARK, process)
    kept = [nodes.get_children(f"{chroot}/consumers/orders/offsets/{topic}") for topic in _children(nodes, chroot)]
    nodes.stop()
    nodes.close()
    assert (found, summary.checkpoint) == ([b"b", b"e"], "end of the stream (2 shards)")
    assert [sorted(each) for each in kept] == [SHARDS[:2]]


def _children(nodes: Any, chroot: str) -> list[str]:
    found: list[str] = nodes.get_children(f"{chroot}/consumers/orders/offsets")
    return found
