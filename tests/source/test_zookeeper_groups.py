"""Groups and checkpoints in a real ZooKeeper, with drivers that are killed, stopped, and cut off."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from acker_client.source.errors import CheckpointError, SourceError
from acker_client.source.records.assignment import Handover
from acker_client.source.records.input import Committed
from acker_client.source.records.ranges import Ranges
from acker_client.source.zookeeper.group import ZooKeeperGroup
from acker_client.source.zookeeper.offset_store import ZooKeeperOffsets

PARTITIONS = tuple(f"orders/{i}" for i in range(12))
SESSION_S = 1.5
LIMIT_S = 60.0
# The most records of a partition in one round: a batch of 25, and every seventh record of the previous batch, because
# members finish these one round later.
ROUND = 25 + 25 // 7 + 1


def eventually(holds: Callable[[], Any]) -> Any:
    deadline_s = time.monotonic() + LIMIT_S
    while not (found := holds()):
        assert time.monotonic() < deadline_s, f"the condition did not hold within {LIMIT_S:.0f} s"
        time.sleep(0.02)
    return found


@pytest.fixture
def nodes(zookeeper_process: Any, zookeeper: str) -> Iterator[Any]:
    """A ZooKeeper client for the test itself, under a chroot made for this test."""
    from kazoo.client import KazooClient

    client = KazooClient(zookeeper_process.address)
    client.start()
    client.ensure_path("/" + zookeeper.partition("/")[2])
    client.chroot = "/" + zookeeper.partition("/")[2]
    yield client
    client.stop()
    client.close()


# -- errors at the start


def test_a_zookeeper_that_is_not_there_is_an_error_at_the_start() -> None:
    group = ZooKeeperGroup("127.0.0.1:1", "g", session_s=0.3)
    with pytest.raises(SourceError, match=r"no ZooKeeper answered at 127.0.0.1:1 within 0.3 s.*: start it, or give"):
        group.open("orders", lambda: PARTITIONS)
    store = ZooKeeperOffsets("127.0.0.1:1", session_s=0.3)
    with pytest.raises(CheckpointError, match="no ZooKeeper answered at"):
        store.open("orders", "log")


def test_a_chroot_that_is_not_there_is_an_error_at_the_start(zookeeper: str) -> None:
    with pytest.raises(SourceError, match=r"has no node /acker-\w+: correct the chroot after the hosts, or create it"):
        ZooKeeperGroup(zookeeper, "g").open("orders", lambda: PARTITIONS)


def test_a_source_without_the_groups_digest_is_refused(nodes: Any, zookeeper: str) -> None:
    group = ZooKeeperGroup(zookeeper, "g", digest="me:secret")
    group.open("orders", lambda: PARTITIONS)
    for digest, has in ((None, "no digest"), ("you:other", "the digest of 'you'")):
        with pytest.raises(SourceError, match=f"does not let this source, which has {has}, read or change"):
            ZooKeeperGroup(zookeeper, "g", digest=digest).open("orders", lambda: PARTITIONS)
        with pytest.raises(CheckpointError, match="does not let this source"):
            ZooKeeperOffsets(zookeeper, name="g", digest=digest).open("orders", "log")
    assert group.poll().assigned == PARTITIONS
    group.close()


def test_two_members_of_one_name_are_refused(nodes: Any, zookeeper: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("acker_client.source.zookeeper.group.MARGIN_S", 0.0)
    one, two = (ZooKeeperGroup(zookeeper, "g", member="m", session_s=0.5) for _ in range(2))
    one.open("orders", lambda: PARTITIONS)
    with pytest.raises(
        SourceError, match="another source has already joined as 'g_m': give each source its own member name"
    ):
        two.open("orders", lambda: PARTITIONS)
    one.close()
    two.open("orders", lambda: PARTITIONS)
    two.close()


# -- the nodes in ZooKeeper


def test_zookeeper_has_the_same_nodes_as_with_old_kafkas_consumers(nodes: Any, zookeeper: str) -> None:
    group = ZooKeeperGroup(zookeeper, "g")
    store = ZooKeeperOffsets(group=group)
    store.open("orders", "log")
    group.open("orders", lambda: ("orders/0", "shardId-7"))
    assert group.poll().assigned == ("shardId-7", "orders/0")
    store.load_partitions(["orders/0", "shardId-7"])
    store.save({"orders/0": Committed(Ranges.below(7))})
    content, stat = nodes.get(f"/consumers/g/ids/{group.consumer}")
    said = json.loads(content)
    assert (said["version"], said["subscription"], said["pattern"]) == (1, {"": 1, "orders": 1}, "static")
    assert int(said["timestamp"]) > 0
    assert stat.ephemeralOwner == group.session.id
    for path in ("orders/0", "@/shardId-7"):
        content, stat = nodes.get(f"/consumers/g/owners/{path}")
        assert content.decode() == group.consumer
        assert stat.ephemeralOwner == group.session.id
    content, stat = nodes.get("/consumers/g/offsets/orders/0")
    assert json.loads(content)["done"] == [7]
    assert stat.ephemeralOwner == 0
    group.close()
    store.close()
    assert nodes.get_children("/consumers/g/ids") == []
    assert nodes.get_children("/consumers/g/owners/orders") == []
    assert nodes.get_children("/consumers/g/offsets/orders") == ["0"]


@pytest.mark.parametrize("assignor", ["range", "sticky"])
def test_partitions_follow_joins_leaves_and_new_partitions(nodes: Any, zookeeper: str, assignor: str) -> None:
    partitions = list(PARTITIONS)
    groups = [ZooKeeperGroup(zookeeper, "g", assignor=assignor) for _ in range(3)]
    has: dict[ZooKeeperGroup, set[str]] = {}

    def settle(*sizes: int) -> None:
        def is_so() -> bool:
            for group, share in has.items():
                handover = group.poll()
                assert not handover.lost
                share |= set(handover.assigned)
                share -= set(handover.revoked)
                group.release(handover.revoked)
            held = [each for share in has.values() for each in share]
            assert len(held) == len(set(held))
            return sorted(map(len, has.values())) == sorted(sizes)

        eventually(is_so)

    for group, sizes in zip(groups, [(12,), (6, 6), (4, 4, 4)], strict=True):
        group.open("orders", lambda: tuple(partitions))
        has[group] = set()
        settle(*sizes)
    partitions += [f"orders/{i}" for i in range(12, 17)]
    settle(5, 6, 6)
    del has[groups[1]]
    groups[1].close()
    settle(8, 9)
    for group in has:
        group.close()


def test_a_group_that_was_left_can_be_joined_again(nodes: Any, zookeeper: str) -> None:
    group = ZooKeeperGroup(zookeeper, "g", member="m")
    store = ZooKeeperOffsets(group=group)
    for stop in (0, 1, 2):
        store.open("orders", "log")
        group.open("orders", lambda: PARTITIONS)
        assert group.poll() == Handover(assigned=PARTITIONS)
        loaded = store.load_partitions(PARTITIONS)
        assert loaded == ({each: Committed(Ranges.below(stop)) for each in PARTITIONS} if stop else {})
        store.save({each: Committed(Ranges.below(stop + 1)) for each in PARTITIONS})
        # As in a run, the group is closed before the store.
        group.close()
        store.close()


@pytest.mark.long
def test_a_checkpoint_as_large_as_a_node_can_be_is_saved_and_found(nodes: Any, zookeeper: str) -> None:
    holey = Committed(Ranges.of(np.arange(0, 1_000_000, 2, dtype=np.int64)))
    for saved in range(2):
        store = ZooKeeperOffsets(zookeeper)
        store.open("orders", "log")
        loaded = store.load()
        if saved:
            for each in loaded.values():
                assert each.done.holes > 200_000
                assert each.done == holey.done.first_holes(each.done.holes)
            assert len(loaded) == 3
        else:
            store.save({f"orders/{i}": holey for i in range(3)})
        store.close()


# -- ZooKeeper away


@pytest.mark.long
@pytest.mark.jvm
def test_while_zookeeper_is_away_a_source_goes_on_and_a_commit_waits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from acker_testing import ZooKeeperProcess

    caplog.set_level(logging.WARNING, "acker_client.source")
    zookeeper = ZooKeeperProcess(tmp_path)
    try:
        group = ZooKeeperGroup(zookeeper.address, "g", session_s=10.0)
        store = ZooKeeperOffsets(group=group)
        store.open("orders", "log")
        group.open("orders", lambda: PARTITIONS)
        assert group.poll().assigned == PARTITIONS
        store.load_partitions(PARTITIONS)
        zookeeper.kill()
        eventually(lambda: not group.session.is_connected)
        assert group.poll() == Handover()
        starting = threading.Thread(target=zookeeper.start)
        starting.start()
        store.save({each: Committed(Ranges.below(3)) for each in PARTITIONS})
        starting.join()
        assert group.poll() == Handover()
        store.save({each: Committed(Ranges.below(4)) for each in PARTITIONS})
        assert store.load() == {each: Committed(Ranges.below(4)) for each in PARTITIONS}
        group.close()
        store.close()
        place = f"ZooKeeper at {zookeeper.address} is"
        assert [each for each in caplog.messages if place in each] == [
            f"{place} unreachable: this source continues with its partitions, and commits after ZooKeeper is back",
            f"{place} back",
        ]
    finally:
        zookeeper.kill()


# -- under load


class Load:
    """A growing log of files, and the member processes that read it."""

    def __init__(self, folder: Path, hosts: str, assignor: str) -> None:
        self.log, self._folder = folder / "log", folder
        self.log.mkdir()
        self._settings = {"hosts": hosts, "group": "g", "session_s": SESSION_S, "assignor": assignor}
        self.members: dict[str, subprocess.Popen[bytes]] = {}
        self.ended_s: dict[str, float] = {}
        self.length = 0
        self.grow(10)
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def grow(self, records: int) -> None:
        content = np.arange(self.length, self.length + records).tobytes()
        for partition in PARTITIONS:
            with open(self.log / partition.replace("/", "-"), "ab") as file:
                file.write(content)
        self.length += records

    def start(self, name: str) -> None:
        settings = {**self._settings, "log": str(self.log), "journal": str(self._folder / f"{name}.jsonl")}
        command = [sys.executable, "-m", "tests.source.group_member", json.dumps(settings)]
        with open(self._folder / f"{name}.err", "wb") as errors:
            self.members[name] = subprocess.Popen(command, stderr=errors)

    def signal(self, name: str, number: int) -> float:
        os.kill(self.members[name].pid, number)
        return time.monotonic()

    def journal(self, name: str) -> list[dict[str, Any]]:
        path = self._folder / f"{name}.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def errors(self) -> str:
        return "\n".join(path.read_text() for path in self._folder.glob("*.err"))

    def end(self) -> None:
        self._ends.set()
        self._thread.join()

    def close(self) -> None:
        self.end()
        for member in self.members.values():
            member.kill()
            member.wait()

    def _write(self) -> None:
        while not self._ends.wait(0.02):
            self.grow(10)


@pytest.fixture
def load(tmp_path: Path, nodes: Any, zookeeper: str) -> Iterator[Callable[[str], Load]]:
    loads: list[Load] = []

    def start(assignor: str) -> Load:
        loads.append(Load(tmp_path, zookeeper, assignor))
        return loads[-1]

    yield start
    for each in loads:
        each.close()


@pytest.mark.long
@pytest.mark.parametrize("assignor", ["range", "sticky"])
def test_no_record_is_missing_when_one_of_three_drivers_is_killed_and_another_is_stopped_for_two_sessions(
    load: Callable[[str], Load], nodes: Any, assignor: str, record_property: Callable[[str, object], None]
) -> None:
    group = load(assignor)

    def owned() -> dict[str, int]:
        """Return the number of owner nodes of each member."""
        counts: dict[str, int] = defaultdict(int)
        names = {said[0]["consumer"]: name for name in group.members if (said := group.journal(name))}
        for partition in PARTITIONS:
            found = nodes.exists(f"/consumers/g/owners/{partition}") and nodes.retry(get_or_none, nodes, partition)
            if found:
                counts[names.get(found, found)] += 1
        return counts

    def is_owned(counts: dict[str, int]) -> bool:
        return owned() == counts

    for name, counts in (("a", {"a": 12}), ("b", {"a": 6, "b": 6}), ("c", {"a": 4, "b": 4, "c": 4})):
        group.start(name)
        eventually(partial(is_owned, counts))
    killed_s = group.signal("b", signal.SIGKILL)
    eventually(lambda: owned() == {"a": 6, "c": 6})
    stopped_s = group.signal("c", signal.SIGSTOP)
    eventually(lambda: owned() == {"a": 12})
    # Driver c stays stopped for twice the session timeout, while a goes on.
    time.sleep(max(0.0, stopped_s + 2 * SESSION_S - time.monotonic()))
    group.signal("c", signal.SIGCONT)
    eventually(lambda: owned() == {"a": 6, "c": 6})
    group.signal("c", signal.SIGTERM)
    eventually(lambda: owned() == {"a": 12})
    group.end()
    eventually(lambda: committed(nodes) == {each: [group.length] for each in PARTITIONS})
    group.signal("a", signal.SIGTERM)
    eventually(lambda: all(member.poll() is not None for member in group.members.values()))
    assert {name: member.returncode for name, member in group.members.items()} == {"a": 0, "b": -9, "c": 0}

    journals = {name: group.journal(name) for name in group.members}
    check_nothing_is_missing(journals, group.length)
    check_commits(journals)
    unowned_s = longest_unowned_s(journals, killed_s, stopped_s)
    repeated = sum(count - 1 for count in processed(journals).values())
    record_property("repeated", repeated)
    record_property("unowned_s", round(unowned_s, 2))
    print(f"{assignor}: {12 * group.length} records, {repeated} repeated, unowned for {unowned_s:.2f} s at most")
    # Each partition whose owner failed repeats at most one round. The killed b had four partitions. The stopped c had
    # six, and reports them as lost. If the machine stalls, other members may lose partitions too.
    lost = sum(len(event["partitions"]) for said in journals.values() for event in said if event["what"] == "lost")
    assert lost >= 6
    assert repeated <= (4 + lost) * ROUND
    assert unowned_s < 3 * SESSION_S + 5, (
        "a partition had no owner for longer than a session timeout and a rebalance should take"
    )


def get_or_none(nodes: Any, partition: str) -> str | None:
    from kazoo.exceptions import NoNodeError

    try:
        return str(nodes.get(f"/consumers/g/owners/{partition}")[0].decode())
    except NoNodeError:
        return None


def committed(nodes: Any) -> dict[str, list[int]]:
    contents = {each: nodes.get(f"/consumers/g/offsets/{each}")[0] for each in PARTITIONS}
    return {each: json.loads(content)["done"] if content else [] for each, content in contents.items()}


# -- the checker, which uses only the journals

Journals = dict[str, list[dict[str, Any]]]


def processed(journals: Journals) -> dict[tuple[str, int], int]:
    """Return how often each record was processed."""
    counts: dict[tuple[str, int], int] = defaultdict(int)
    for journal in journals.values():
        for event in journal:
            if event["what"] == "processed":
                for partition, positions in event["positions"].items():
                    for position in positions:
                        counts[partition, position] += 1
    return counts


def check_nothing_is_missing(journals: Journals, length: int) -> None:
    assert processed(journals).keys() == {(partition, i) for partition in PARTITIONS for i in range(length)}


def check_commits(journals: Journals) -> None:
    """Check that no record is committed twice, and that a new owner finds everything committed before."""
    commits: dict[str, list[tuple[float, float, str, set[int]]]] = defaultdict(list)
    for name, journal in journals.items():
        for event in journal:
            if event["what"] == "committed":
                for partition, positions in event["positions"].items():
                    commits[partition].append((event["begun_s"], event["at_s"], name, set(positions)))
    for partition, its_commits in commits.items():
        seen: set[int] = set()
        for _, _, _, positions in sorted(its_commits, key=lambda each: each[0]):
            assert not seen & positions, f"{partition}: committed twice"
            seen |= positions
    for name, journal in journals.items():
        for event in journal:
            if event["what"] == "loaded":
                found = positions_of(event["runs"])
                for begun_s, ended_s, other, positions in commits[event["partition"]]:
                    if ended_s < event["begun_s"]:
                        assert positions <= found, f"{name} does not know what {other} has committed"
                    elif begun_s > event["at_s"]:
                        assert not positions & found, (
                            f"{other} committed records that {name} had already loaded as done"
                        )


def positions_of(runs: list[int]) -> set[int]:
    found: set[int] = set()
    at = 0
    for index, run in enumerate(runs):
        if index % 2 == 0:
            found |= set(range(at, at + run))
        at += run
    return found


def longest_unowned_s(journals: Journals, killed_s: float, stopped_s: float) -> float:
    """Return the longest time (in seconds) that a partition had no owner, after it had its first owner. A killed or
    stopped member owns nothing from that moment until it is assigned partitions again.

    Asserts that no two members own a partition at once. Only an ownership that ends as lost may overlap with the next
    one, because the losing member noticed the loss late.
    """
    spans = [span for name, journal in journals.items() for span in spans_of(name, journal)]
    failed_s = {"b": killed_s, "c": stopped_s}
    longest_s = 0.0
    for partition in PARTITIONS:
        free_s: float | None = None
        for start_s, stop_s, name, how in sorted(span[:4] for span in spans if span[4] == partition):
            if free_s is not None:
                longest_s = max(longest_s, start_s - free_s)
            is_failed = name in failed_s and start_s < failed_s[name] < stop_s
            end_s = failed_s[name] if is_failed else stop_s
            for other_s, _, other, _, _ in (span for span in spans if span[4] == partition):
                assert not start_s < other_s < end_s or how == "lost", f"{partition}: {name}'s and {other}'s at once"
            free_s = end_s
    return longest_s


def spans_of(name: str, journal: list[dict[str, Any]]) -> Iterator[tuple[float, float, str, str, str]]:
    """Yield each ownership as (start, end, member, how it ended, partition)."""
    since_s: dict[str, float] = {}
    for event in journal:
        if event["what"] == "assigned":
            since_s |= dict.fromkeys(event["partitions"], event["at_s"])
        elif event["what"] in ("released", "lost", "left"):
            for each in event["partitions"]:
                yield since_s.pop(each), event["at_s"], name, event["what"], each
    for each, at_s in since_s.items():
        yield at_s, float("inf"), name, "killed", each
