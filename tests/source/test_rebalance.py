"""Groups with an in-memory ZooKeeper: polls, lost sessions, lost answers and commits in random order."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from random import Random

import pytest

from acker_client.source.errors import Fenced, SourceError
from acker_client.source.records.assignment import Assignment, Handover
from acker_client.source.records.input import Committed
from acker_client.source.records.ranges import Ranges
from acker_client.source.records.stores import SharedCheckpointStore
from acker_client.source.zookeeper.assignor import in_order
from acker_client.source.zookeeper.group import ZooKeeperGroup
from acker_client.source.zookeeper.offset_store import ZooKeeperOffsets
from acker_client.source.zookeeper.znodes import Create, GroupPaths
from tests.source.memory_zookeeper import MemoryZooKeeper


class Driver:
    """A simple driver: it reads one record from each of its partitions and commits it."""

    def __init__(self, world: World, member: str, assignor: str) -> None:
        self.world, self.member = world, member
        self.session = world.zookeeper.session()
        self.group = ZooKeeperGroup(
            "memory", "g", member=member, assignor=assignor, session=self.session, clock=lambda: world.now_s
        )
        self.store = ZooKeeperOffsets(group=self.group)
        self.store.open("orders", "log")
        self.seen: tuple[str, ...] | None = None
        self.group.open("orders", lambda: world.partitions if self.seen is None else self.seen)
        self.holds: set[str] = set()
        self.revoked: list[str] = []
        self.done: dict[str, int] = {}

    def poll(self) -> Handover:
        handover = self.group.poll()
        parts = [*handover.assigned, *handover.revoked, *handover.lost]
        assert len(parts) == len(set(parts))
        assert not set(handover.assigned) & self.holds
        assert {*handover.revoked, *handover.lost} <= self.holds
        self.revoked += handover.revoked
        self.holds = (self.holds | set(handover.assigned)) - set(handover.lost)
        self.revoked = [each for each in self.revoked if each not in handover.lost]
        loaded = self.store.load_partitions(handover.assigned)
        for each in handover.assigned:
            self.done[each] = loaded[each].done.prefix if each in loaded else 0
            self.world.loaded(self, each, self.done[each])
        return handover

    def commit(self, partitions: Sequence[str]) -> None:
        read = {each: self.done[each] + 1 for each in partitions if each in self.holds}
        fenced: tuple[str, ...] = ()
        try:
            self.store.save({each: Committed(Ranges.below(stop)) for each, stop in read.items()})
        except Fenced as error:
            fenced = error.partitions
        for each in read.keys() - set(fenced):
            self.world.committed(self, each, self.done[each], read[each])
            self.done[each] = read[each]

    def release(self) -> None:
        released, self.revoked = self.revoked, []
        self.holds -= set(released)
        self.group.release(released)

    def work(self) -> None:
        self.poll()
        self.commit(sorted(self.holds))
        self.release()

    @property
    def is_forgotten(self) -> bool:
        """Whether the session has expired and its member node is gone. Another process may take the driver's name."""
        return self.session.is_expired and self.group.paths.id(self.group.consumer) not in self.world.zookeeper.nodes

    def sees(self, partitions: tuple[str, ...] | None) -> None:
        """Set the partitions that this driver knows; None means all."""
        self.seen = partitions

    def notice(self) -> None:
        if self.session.is_expired:
            self.session.notice()


class World:
    """Tracks the last owner and the committed offset of each partition, and rejects wrong commits."""

    def __init__(self) -> None:
        self.zookeeper = MemoryZooKeeper()
        self.now_s = 0.0
        self.partitions: tuple[str, ...] = ()
        self.last_loaded: dict[str, Driver] = {}
        self.stop: dict[str, int] = {}

    def loaded(self, driver: Driver, partition: str, stop: int) -> None:
        assert stop == self.stop.get(partition, 0), f"{partition}: the next owner did not see a commit"
        if not driver.session.is_expired:
            self.last_loaded[partition] = driver

    def committed(self, driver: Driver, partition: str, start: int, stop: int) -> None:
        assert not driver.session.is_expired, "its session is over"
        assert self.last_loaded.get(partition) is driver, f"{partition} is another's"
        assert self.stop.get(partition, 0) == start, f"{partition}: two committed the same record"
        self.stop[partition] = stop


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("assignor", ["range", "sticky"])
def test_no_commit_is_lost_or_made_by_two_and_in_the_end_each_partition_has_one_owner(assignor: str, seed: int) -> None:
    chance = Random(seed)
    world = World()
    drivers: dict[str, Driver] = {}
    count, names = 0, 0
    for _ in range(chance.randrange(1, 80)):
        world.now_s += chance.choice([0.0, 0.1])
        action = chance.choice(["join", "grow", "shrink", "replace", "poll", "poll", "poll", "poll", *ACTIONS])
        name = chance.choice(sorted(drivers)) if drivers else ""
        if action in ("grow", "shrink") or not world.partitions:
            count = max(1, count + chance.randrange(1, 5) * (-1 if action == "shrink" else 1))
            world.partitions = tuple(f"t/{i}" for i in range(count))
        elif (action == "join" and len(drivers) < 4) or not drivers:
            names += 1
            drivers[f"m{names}"] = Driver(world, f"m{names}", assignor)
        elif action == "replace" and drivers[name].is_forgotten:
            names += 1
            drivers[f"m{names}"] = Driver(world, drivers[name].member, assignor)
        else:
            turn(drivers, name, partial(act, world, drivers, name, action))
    for driver in drivers.values():
        driver.notice()
        driver.sees(None)
    for _ in range(6 * (len(drivers) + 1)):
        world.now_s += 1.0
        for name, driver in list(drivers.items()):
            turn(drivers, name, driver.work)
    shares = {name: in_order(driver.holds) for name, driver in drivers.items()}
    if shares:
        assert in_order(each for share in shares.values() for each in share) == in_order(world.partitions)
        assert sum(len(share) for share in shares.values()) == len(world.partitions)
        sizes = [len(share) for share in shares.values()]
        assert max(sizes) - min(sizes) <= 1
    for driver in drivers.values():
        assert driver.poll() == Handover()
    for driver in drivers.values():
        driver.group.close()
        driver.store.close()
    assert not [path for path, node in world.zookeeper.nodes.items() if node.session]


def turn(drivers: dict[str, Driver], name: str, do: Callable[[], None]) -> None:
    """Let a driver act. If two drivers have the same member name, one of them eventually ends with an error."""
    driver = drivers[name]
    try:
        do()
    except SourceError as error:
        is_one_of_two = [each.member for each in drivers.values()].count(driver.member) > 1
        if not is_one_of_two or f"another source has already joined as 'g_{driver.member}'" not in str(error):
            raise
        driver.group.close()
        driver.store.close()
        del drivers[name]


ACTIONS = ["commit", "commit", "release", "expire", "notice", "kill", "leave", "lose the answer", "see"]


def act(world: World, drivers: dict[str, Driver], name: str, action: str) -> None:
    driver = drivers[name]
    if action == "commit":
        driver.commit(sorted(driver.holds))
    elif action == "release":
        driver.commit(driver.revoked)
        driver.release()
    elif action == "expire" and not driver.session.is_expired:
        driver.session.expire()
    elif action == "notice":
        driver.notice()
    elif action == "kill":
        driver.session.expire()
        del drivers[name]
    elif action == "leave":
        driver.notice()
        driver.group.close()
        driver.store.close()
        del drivers[name]
    elif action == "see":
        driver.sees(world.partitions if driver.seen is None else None)
    elif action == "lose the answer":
        driver.session.lose_answer = True
    else:
        driver.poll()


def pair(assignor: str = "range", partitions: int = 4) -> tuple[World, Driver, Driver]:
    """Return a world with two drivers. The first one owns all partitions."""
    world = World()
    world.partitions = tuple(f"t/{i}" for i in range(partitions))
    one = Driver(world, "one", assignor)
    one.poll()
    return world, one, Driver(world, "two", assignor)


def test_the_ports_are_implemented() -> None:
    _, one, _ = pair()
    assert isinstance(one.group, Assignment)
    assert isinstance(one.store, SharedCheckpointStore)


def test_a_poll_without_changes_sends_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    _, one, two = pair()
    for driver in (one, two, one, two):
        driver.poll()
        driver.release()
    for driver in (one, two, one, two):
        driver.poll()
    for name in ("find", "children", "transact"):
        monkeypatch.setattr(type(one.session), name, None)
    assert one.poll() == two.poll() == Handover()


def test_a_revoked_partition_keeps_its_owner_until_it_is_released() -> None:
    world, one, two = pair()
    assert one.poll().revoked == ("t/2", "t/3")
    assert two.poll() == Handover()
    one.commit(["t/2", "t/3"])
    assert world.stop == {"t/2": 1, "t/3": 1}
    assert one.poll() == two.poll() == Handover()
    one.release()
    assert two.poll().assigned == ("t/2", "t/3")
    assert two.done == {"t/2": 1, "t/3": 1}


def test_claims_are_all_or_none_and_are_tried_again() -> None:
    world, one, two = pair()
    one.poll()
    one.release()
    # Another session takes one of the second driver's partitions between the driver's read and its claim.
    paths, node = two.group.paths, one.group.consumer.encode()
    seen = two.group._seen()
    world.zookeeper.apply([Create(paths.owner("t/3"), node, is_ephemeral=True)], 99)
    two.group._register()
    step = two.group._rebalance.decide(seen, world.partitions)
    assert step.claim == ("t/2", "t/3")
    assert two.group._claim(step.claim) == ()
    assert paths.owner("t/2") not in world.zookeeper.nodes
    world.zookeeper.expire(99)
    assert two.poll().assigned == ("t/2", "t/3")


def test_a_claim_whose_answer_was_lost_is_found_at_the_next_poll() -> None:
    world = World()
    world.partitions = ("t/0", "t/1")
    one = Driver(world, "one", "range")
    one.session.lose_answer = True
    assert one.poll() == Handover()
    world.now_s += 1
    assert one.poll().assigned == ("t/0", "t/1")
    one.commit(["t/0", "t/1"])
    assert world.stop == {"t/0": 1, "t/1": 1}


def test_a_commit_whose_answer_was_lost_is_recognized() -> None:
    world, one, _ = pair()
    one.session.lose_answer = True
    one.commit(["t/0", "t/1", "t/2", "t/3"])
    assert world.stop == dict.fromkeys(world.partitions, 1)
    one.commit(["t/0"])
    assert world.stop["t/0"] == 2


def test_a_lost_session_loses_everything_and_registers_anew() -> None:
    world, one, two = pair()
    one.session.expire()
    with pytest.raises(Fenced) as fenced:
        one.store.save(dict.fromkeys(world.partitions, Committed(Ranges.below(1))))
    assert fenced.value.partitions == world.partitions
    assert two.poll().assigned == world.partitions
    one.notice()
    assert one.poll().lost == world.partitions
    assert one.poll() == Handover()
    assert two.poll().revoked == ("t/0", "t/1")


def test_a_driver_that_slept_cannot_commit_though_the_new_owners_node_looks_as_its_own_did() -> None:
    world, one, two = pair(partitions=2)
    one.session.expire()
    assert two.poll().assigned == world.partitions
    two.commit(["t/0"])
    owner = world.zookeeper.nodes[two.group.paths.owner("t/1")]
    assert owner.version == 0
    one.commit(["t/0", "t/1"])
    assert world.stop == {"t/0": 1}


def test_own_partitions_are_saved_although_others_were_lost() -> None:
    world, one, _ = pair(partitions=3)
    paths = one.group.paths
    # As if somebody deleted the node by hand.
    del world.zookeeper.nodes[paths.owner("t/1")]
    with pytest.raises(Fenced) as fenced:
        one.store.save(dict.fromkeys(world.partitions, Committed(Ranges.below(5))))
    assert fenced.value.partitions == ("t/1",)
    loaded = one.store.load()
    assert {each: loaded[each].done.prefix for each in loaded} == {"t/0": 5, "t/2": 5}
    # The driver recovers: it loses the fenced partition, and claims it again.
    assert one.poll().lost == ("t/1",)
    assert "t/1" in one.poll().assigned


def test_a_deleted_member_node_is_registered_again() -> None:
    world, one, two = pair()
    del world.zookeeper.nodes[one.group.paths.id(one.group.consumer)]
    one.session.wake()
    one.poll()
    assert one.group.paths.id(one.group.consumer) in world.zookeeper.nodes
    two.poll()
    assert one.poll().revoked == ()
    assert one.holds


@pytest.mark.parametrize("assignor", ["range", "sticky"])
def test_a_member_with_an_outdated_list_leaves_no_partition_without_an_owner(assignor: str) -> None:
    """The first member's list is outdated and has four partitions. The second member sees eight."""
    world, one, two = pair(assignor)
    one.sees(world.partitions)
    for driver in (one, two):
        driver.poll()
        driver.release()
    world.partitions = tuple(f"t/{i}" for i in range(8))
    for driver in (two, one, two, one, two):
        driver.poll()
        driver.release()
    assert one.holds <= set(world.partitions[:4])
    if assignor == "range":
        assert (one.holds, two.holds) == (set(world.partitions[:4]), set(world.partitions[4:]))
    else:
        assert len(one.holds) + len(two.holds) >= 6
    one.sees(None)
    for driver in (one, two, one, two):
        driver.poll()
        driver.release()
    assert len(one.holds) == len(two.holds) == 4


def test_the_node_of_a_dead_session_of_its_own_name_is_waited_for() -> None:
    zookeeper = MemoryZooKeeper()
    zookeeper.sessions = 1
    paths = GroupPaths("g")
    for folder in (paths.ids, paths.owners("t")):
        zookeeper.ensure(folder)
    for path in (paths.id("g_one"), paths.owner("t/0")):
        zookeeper.apply([Create(path, b"g_one", is_ephemeral=True)], 1)
    asked = iter(range(10))

    def clock() -> float:
        if next(asked) == 2:
            zookeeper.nodes.pop(paths.id("g_one"))
        return 0.0

    group = ZooKeeperGroup("memory", "g", member="one", session=zookeeper.session(), clock=clock)
    group.open("orders", lambda: ("t/0",))
    # The member waits for the old owner node, too. It must not take that node for its own.
    assert group.poll() == Handover()
    zookeeper.expire(1)
    assert group.poll().assigned == ("t/0",)


def test_a_source_whose_name_was_taken_during_a_lost_session_ends_with_an_error() -> None:
    world, one, _ = pair()
    one.session.expire()
    path = one.group.paths.id(one.group.consumer)
    world.zookeeper.apply([Create(path, b"{}", is_ephemeral=True)], 99)
    one.notice()
    assert one.poll().lost == world.partitions
    # Until the session timeout, the node may be a remainder of the driver's own lost session.
    for _ in range(4):
        world.now_s += 1.0
        assert one.poll() == Handover()
    world.now_s += 3.0
    with pytest.raises(
        SourceError, match="another source has already joined as 'g_one': give each source its own member name"
    ):
        one.poll()
    # Closing leaves the node of the other source.
    one.group.close()
    assert path in world.zookeeper.nodes


def test_new_partitions_are_dealt_without_a_watch() -> None:
    world, one, two = pair("sticky")
    one.poll()
    one.release()
    two.poll()
    world.partitions = tuple(f"t/{i}" for i in range(8))
    assert one.poll().assigned == ("t/4", "t/5")
    assert two.poll().assigned == ("t/6", "t/7")


def test_without_zookeeper_a_poll_changes_nothing() -> None:
    world, one, _ = pair()
    world.zookeeper.is_away = True
    one.session.wake()
    assert one.poll() == Handover()
    assert one.holds == set(world.partitions)
    one.group.release(["t/3"])
    world.zookeeper.is_away = False
    assert one.group.paths.owner("t/3") in world.zookeeper.nodes
    one.group.poll()
    assert one.group.paths.owner("t/3") not in world.zookeeper.nodes


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"group": " "}, "group=' ': give a name, like group='orders'"),
        ({"member": ""}, "member='': give a name, like member='orders'"),
        ({"assignor": "fair"}, "assignor='fair': give 'range' or 'sticky'"),
        ({"session_s": 0}, "session_s=0: give seconds, above 0"),
        ({"digest": "me"}, "digest: give user:password"),
        ({"hosts": "zk//a"}, "hosts='zk//a': give host:port,host:port/chroot"),
        ({"hosts": ""}, "hosts='': give host:port,host:port/chroot"),
        ({"hosts": "zk:port/a"}, "hosts='zk:port/a': give host:port,host:port/chroot"),
    ],
)
def test_options_that_cannot_be_are_refused_in_a_sentence(options: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        ZooKeeperGroup(**{"hosts": "localhost:2181", "group": "orders", **options})  # type: ignore[arg-type]
