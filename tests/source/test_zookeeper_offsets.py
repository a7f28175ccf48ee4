"""The checkpoint in ZooKeeper: the content of its nodes, and which source may write them."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acker_client.source.errors import CheckpointError, Fenced
from acker_client.source.records.input import Answered, Committed
from acker_client.source.records.ranges import Ranges
from acker_client.source.records.stores import CheckpointStore, IdentifiedCheckpointStore
from acker_client.source.zookeeper.group import ZooKeeperGroup
from acker_client.source.zookeeper.offset_store import ZooKeeperOffsets
from acker_client.source.zookeeper.offsets import Offset
from acker_client.source.zookeeper.znodes import Create, Put, Znode
from tests.source.executors import NO_SPARK, Cluster, save_all
from tests.source.memory_zookeeper import MemorySession, MemoryZooKeeper

OFFSET = Offset("orders", "kafka", "clicks/3", "/here")
NODE = "/consumers/orders/offsets/clicks/3"
HOLEY = Committed(Ranges.of(np.array([0, 1, 2, 5, 9, 10], np.int64)), {"epoch": 7})


def below(stop: int) -> Committed:
    return Committed(Ranges.below(stop), {"at": stop})


def with_holes(count: int) -> Committed:
    return Committed(Ranges.of(np.arange(0, 2 * count, 2, dtype=np.int64)))


class Group:
    """Members of one group, in memory."""

    def __init__(self) -> None:
        self.zookeeper = MemoryZooKeeper()
        self.partitions = ("clicks/3", "clicks/4")

    def join(self, member: str) -> tuple[MemorySession, ZooKeeperGroup, ZooKeeperOffsets]:
        session = self.zookeeper.session()
        group = ZooKeeperGroup("memory", "orders", member=member, session=session)
        store = ZooKeeperOffsets(group=group)
        store.open("orders", "kafka")
        group.open("orders", lambda: self.partitions)
        return session, group, store


@pytest.fixture
def alone() -> Callable[..., ZooKeeperOffsets]:
    """Return a function that opens the checkpoint of a source. All calls share one in-memory ZooKeeper."""
    zookeeper = MemoryZooKeeper()

    def start(source: str = "orders", kind: str = "kafka", **options: object) -> ZooKeeperOffsets:
        store = ZooKeeperOffsets(session=zookeeper.session(), **options)  # type: ignore[arg-type]
        store.open(source, kind)
        return store

    return start


def nodes_of(store: ZooKeeperOffsets) -> dict[str, Znode]:
    assert isinstance(store.session, MemorySession)
    return store.session._zookeeper.nodes


# -- the content of a node


def test_a_node_has_its_source_its_done_positions_and_its_writer() -> None:
    content, left_out = OFFSET.dump(HOLEY, "orders_host-1", 1000)
    said = json.loads(content)
    digest = said.pop("digest")
    assert said == {
        "format": "acker-offsets",
        "version": 1,
        "source": "orders",
        "input": "kafka",
        "partition": "clicks/3",
        "by": "orders_host-1",
        "done": [3, 2, 1, 3, 2],
        "mark": {"epoch": 7},
        "answered": [0, 0],
    }
    assert len(digest) == 16
    assert left_out == 0


@given(st.sets(st.integers(0, 200)))
def test_a_dumped_offset_is_loaded_unchanged(positions: set[int]) -> None:
    done = Ranges.of(np.array(sorted(positions), np.int64))
    committed = Committed(done, {"x": [1, "é"]}, Answered(len(positions), 3))
    assert OFFSET.load(OFFSET.dump(committed, "me", 10**6)[0]) == committed


def test_ranges_that_do_not_fit_into_a_node_are_cut_from_above() -> None:
    committed = with_holes(10_000)
    content, left_out = OFFSET.dump(committed, "me", 5_000)
    assert 4_000 < len(content) <= 5_000
    loaded = OFFSET.load(content).done
    assert loaded == committed.done.first_holes(loaded.holes)
    assert left_out == committed.done.holes - loaded.holes > 0


def test_a_mark_that_fits_into_no_node_is_an_error_and_nothing_is_cut_of_it() -> None:
    with pytest.raises(CheckpointError, match=r"takes \d+ bytes, and a node holds 500: raise jute.maxbuffer"):
        OFFSET.dump(Committed(Ranges.below(3), {"long": "x" * 600}), "me", 500)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"17", "/here is not a checkpoint of the acker, or is damaged"),
        (b"\xff", "/here is not a checkpoint of the acker, or is damaged"),
        ({"version": 2}, "has version 2, and this acker reads versions up to 1: start with the acker that"),
        ({"version": []}, r"has version \[\], and this acker reads versions up to 1"),
        (b"[" * 100_000, "/here is not a checkpoint of the acker, or is damaged"),
        ({"source": "sales"}, r"is of source 'sales', not of 'orders' \(last written by me\)"),
        ({"input": "kinesis"}, "is of input 'kinesis', not of 'kafka'"),
        ({"partition": "clicks/4"}, "is of partition 'clicks/4', not of 'clicks/3'"),
        ({"done": [4]}, r"is damaged \(its digest does not fit\)"),
        ({"digest": ""}, r"is damaged \(its digest does not fit\)"),
    ],
)
def test_content_that_is_not_this_sources_checkpoint_is_refused(content: bytes | dict[str, object], said: str) -> None:
    if isinstance(content, dict):
        content = json.dumps({**json.loads(OFFSET.dump(HOLEY, "me", 1000)[0]), **content}).encode()
    with pytest.raises(CheckpointError, match=said):
        OFFSET.load(content)


# -- the checkpoint of a single source


def test_a_source_without_a_group_loads_its_checkpoint(alone: Callable[..., ZooKeeperOffsets]) -> None:
    store = alone()
    assert isinstance(store, CheckpointStore)
    assert store.load() == {}
    store.save({"clicks/3": HOLEY, "shardId-0": below(4), "a/b/..": below(5)})
    store.close()
    again = alone()
    assert again.load() == {"clicks/3": HOLEY, "shardId-0": below(4), "a/b/..": below(5)}
    again.save({"clicks/3": below(20)})
    assert again.load()["clicks/3"] == below(20)
    assert NODE in nodes_of(again)


def test_a_second_run_is_refused_while_the_first_one_holds_the_checkpoint(
    alone: Callable[..., ZooKeeperOffsets], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("acker_client.source.zookeeper.offset_store.MARGIN_S", 0.0)
    monkeypatch.setattr(MemorySession, "session_s", 0.01)
    store = alone()
    with pytest.raises(CheckpointError, match=r"is in use by another running source .*host.*pid.*: stop that one"):
        alone()
    store.close()
    alone()


def test_a_run_that_lost_its_session_goes_on_unless_another_has_written(alone: Callable[..., ZooKeeperOffsets]) -> None:
    store = alone()
    store.load()
    store.save({"clicks/3": below(1)})
    session = store.session
    assert isinstance(session, MemorySession)
    session.expire()
    store.save({"clicks/3": below(2)})
    assert session.losses == 1
    session.expire()
    other = alone()
    assert other.load() == {"clicks/3": below(2)}
    other.close()
    with pytest.raises(CheckpointError, match="another run has written clicks/3: stop that one"):
        store.save({"clicks/3": below(3), "clicks/4": below(3)})
    store.close()
    assert alone().load() == {"clicks/3": below(2), "clicks/4": below(3)}


def test_a_node_says_which_run_has_written_it(alone: Callable[..., ZooKeeperOffsets]) -> None:
    @dataclass(frozen=True)
    class Run:
        session: int
        pid: int

    store = alone()
    store.sign(Run(7, 4711))
    store.save({"clicks/3": below(1)})
    assert json.loads(nodes_of(store)[NODE].content)["by"].endswith(", session 7, pid 4711")


def test_the_sources_of_a_group_and_all_later_runs_see_one_identity() -> None:
    group = Group()
    (_, _, one), (_, _, two) = group.join("a"), group.join("b")
    assert isinstance(one, IdentifiedCheckpointStore)
    assert (one.identity(), two.identity()) == ("", "")
    drawn = one.draw_identity()
    assert drawn
    assert two.draw_identity() == two.identity() == one.draw_identity() == drawn
    assert group.join("c")[2].identity() == drawn
    assert Group().join("a")[2].draw_identity() != drawn


def test_a_deleted_lock_is_acquired_again(alone: Callable[..., ZooKeeperOffsets]) -> None:
    store = alone()
    del nodes_of(store)["/consumers/orders/lock"]
    store.save({"clicks/3": below(1)})
    assert "/consumers/orders/lock" in nodes_of(store)
    store.close()
    assert alone().load() == {"clicks/3": below(1)}


@pytest.mark.parametrize("when", ["before it is read", "while it is read"])
def test_a_lock_that_is_lost_before_the_checkpoint_is_read_is_acquired_again(
    alone: Callable[..., ZooKeeperOffsets], when: str
) -> None:
    store = alone()
    store.load()
    store.save({"clicks/3": below(10)})
    store.close()
    store = alone()
    session = store.session
    assert isinstance(session, MemorySession)
    if when == "before it is read":
        session.expire()
    else:
        session.before_transact = partial(nodes_of(store).__delitem__, "/consumers/orders/lock")
    assert store.load() == {"clicks/3": below(10)}
    store.save({"clicks/3": below(20)})
    assert store.load() == {"clicks/3": below(20)}


def test_a_checkpoint_of_another_source_is_refused_and_left_alone(alone: Callable[..., ZooKeeperOffsets]) -> None:
    store = alone(name="shared")
    store.load()
    store.save({"clicks/3": below(1)})
    store.close()
    before = nodes_of(store)["/consumers/shared/offsets/clicks/3"]
    for source, kind in (("sales", "kafka"), ("orders", "kinesis")):
        other = alone(source, kind, name="shared")
        with pytest.raises(CheckpointError, match="not of"):
            other.load()
        other.close()
    assert nodes_of(store)["/consumers/shared/offsets/clicks/3"] == before


def test_unchanged_partitions_are_not_written_again(alone: Callable[..., ZooKeeperOffsets]) -> None:
    store = alone()
    store.save({"clicks/3": below(1), "clicks/4": below(1)})
    before = nodes_of(store)[NODE]
    store.save({"clicks/3": below(1), "clicks/4": below(2)})
    assert nodes_of(store)[NODE] is before


@pytest.mark.slow
def test_more_than_a_request_holds_is_saved_in_several(alone: Callable[..., ZooKeeperOffsets]) -> None:
    store = alone()
    committed = {f"clicks/{i}": with_holes(60_000) for i in range(10)}
    store.save(committed)
    session = store.session
    assert isinstance(session, MemorySession)
    sizes = [
        sum(len(each.content) for each in request if isinstance(each, Create | Put))
        for request in session.requests
        if len(request) > 1
    ]
    assert len(sizes) > 1
    assert max(sizes) <= 1_000_000
    assert sum(sizes) > 2_000_000
    assert store.load() == committed


def test_a_node_that_fills_up_is_logged_once_before_it_is_full(
    alone: Callable[..., ZooKeeperOffsets], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "acker_client.source")
    store = alone(node_bytes=5_000)
    store.save({"clicks/3": with_holes(500)})
    assert not caplog.messages
    store.save({"clicks/3": with_holes(700)})
    store.save({"clicks/3": with_holes(800)})
    (said,) = caplog.messages
    assert "of the 5000 bytes that a node holds, for 699 stretches of open records" in said
    store.save({"clicks/3": with_holes(9_000)})
    store.close()
    kept = alone().load()["clicks/3"].done
    assert 900 < kept.holes < 8_999


def test_exactly_one_of_group_and_hosts_must_be_given() -> None:
    with pytest.raises(ValueError, match="give either hosts"):
        ZooKeeperOffsets()


# -- the checkpoint of a group


def test_a_late_commit_in_a_new_session_is_fenced_even_before_the_next_read() -> None:
    """The session ends between fence and commit, and another member claims. Its owner node has the same version."""
    members = Group()
    session, group, store = members.join("one")
    store.load_partitions(group.poll().assigned)
    _, other, _ = members.join("two")

    def lose() -> None:
        session.expire()
        session.notice()
        assert other.poll().assigned == members.partitions

    session.before_transact = lose
    with pytest.raises(Fenced) as fenced:
        store.save({"clicks/3": below(9)})
    assert fenced.value.partitions == ("clicks/3",)
    assert "clicks/3 went to another source of the group" in str(fenced.value)
    assert members.zookeeper.nodes[NODE].content == b""


def test_a_commit_from_before_another_owner_is_fenced() -> None:
    """The partition is lost, owned by another member, and assigned again. The store must load it before it may save."""
    members = Group()
    session, group, store = members.join("one")
    store.load_partitions(group.poll().assigned)
    other_session, other, others = members.join("two")
    session.expire()
    others.load_partitions(other.poll().assigned)
    others.save({"clicks/3": below(9)})
    other_session.expire()
    session.notice()
    assert group.poll().lost == members.partitions
    assert group.poll().assigned == members.partitions
    with pytest.raises(Fenced):
        store.save({"clicks/3": below(3)})
    assert group.poll().lost == ("clicks/3",)
    assert group.poll().assigned == ("clicks/3",)
    assert store.load_partitions(["clicks/3"]) == {"clicks/3": below(9)}
    store.save({"clicks/3": below(10)})


def test_a_commit_of_the_owner_before_that_comes_while_the_next_one_reads_is_read_too() -> None:
    members = Group()
    session, group, store = members.join("one")
    store.load_partitions(group.poll().assigned)
    other_session, other, others = members.join("two")
    # Deletes the first member's nodes by hand. Otherwise no other member could read while the first may still commit.
    for each in members.partitions:
        del members.zookeeper.nodes[group.paths.owner(each)]
    assert other.poll().assigned == ("clicks/4",)

    def commit_late() -> None:
        members.zookeeper.apply([Put("/consumers/orders/offsets/clicks/4", store._content("clicks/4", below(7)), 0)], 0)

    other_session.before_transact = commit_late
    assert others.load_partitions(["clicks/4"]) == {"clicks/4": below(7)}
    others.save({"clicks/4": below(8)})
    assert session.losses == 0


def test_unassigned_partitions_cannot_be_saved() -> None:
    members = Group()
    _, group, store = members.join("one")
    group.poll()
    with pytest.raises(Fenced):
        store.save({"clicks/9": below(1)})


def test_a_partition_that_is_another_sources_when_it_is_read_can_be_read_and_not_be_saved() -> None:
    members = Group()
    session, group, store = members.join("one")
    assigned = group.poll().assigned
    session.expire()
    session.notice()
    assert store.load_partitions(assigned) == {}
    with pytest.raises(Fenced):
        store.save({"clicks/3": below(1)})


def test_zookeeper_that_stays_away_ends_a_commit_with_a_sentence() -> None:
    members = Group()
    _, group, store = members.join("one")
    store.load_partitions(group.poll().assigned)
    store.save({"clicks/3": below(1)})
    members.zookeeper.is_away = True
    with pytest.raises(
        CheckpointError, match="ZooKeeper has not answered for 300 s: check that it runs, then start the source again"
    ) as end:
        store.save({"clicks/3": below(2)})
    assert not isinstance(end.value, Fenced)
    members.zookeeper.is_away = False
    assert store.load()["clicks/3"] == below(1)
    store.save({"clicks/3": below(2)})


def test_a_source_that_starts_while_zookeeper_is_away_ends_with_a_sentence_and_runs_once_it_is_back(
    cluster: Cluster,
) -> None:
    zookeeper = MemoryZooKeeper()
    cluster.write("a.txt", "0", "1")
    source = cluster.source(checkpoint=ZooKeeperOffsets(session=zookeeper.session()))
    zookeeper.is_away = True
    with pytest.raises(
        CheckpointError, match="ZooKeeper has not answered for 300 s: check that it runs, then start the source again"
    ):
        source.run(NO_SPARK, save_all)
    zookeeper.is_away = False
    assert source.run(NO_SPARK, save_all).acked == 2


def test_a_member_whose_checkpoint_could_not_be_opened_leaves_the_groups_session_alone() -> None:
    zookeeper = MemoryZooKeeper()
    session = zookeeper.session()
    group = ZooKeeperGroup("memory", "orders", session=session)
    held = ZooKeeperOffsets(group=group)
    held.open("orders", "kafka")
    zookeeper.is_away = True
    store = ZooKeeperOffsets(group=group)
    with pytest.raises(CheckpointError, match="ZooKeeper has not answered"):
        store.open("orders", "kafka")
    store.close()
    zookeeper.is_away = False
    assert session.is_connected
    held.close()
