"""Whole runs in a group in ZooKeeper: random batches, failures, lost sessions, lost answers, crashes and stops.

Runs, group and checkpoint are real. Server, executors, clock and ZooKeeper are in memory.
"""

from __future__ import annotations

import json
import random
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from acker_client.source import Batch, Emissions, Listener, Ranges, Retry, ZooKeeperGroup, ZooKeeperOffsets
from acker_client.source.engine.run import Run
from tests.source.executors import NO_SPARK, Cluster, frame_of
from tests.source.logs import Log, LogSource, MemoryLetters
from tests.source.memory_zookeeper import MemorySession, MemoryZooKeeper
from tests.source.test_groups import Idle

PARTITIONS = [f"t/{i}" for i in range(5)]
MEMBERS = "xyz"


@dataclass
class Member:
    run: Run
    group: ZooKeeperGroup
    session: MemorySession
    batch: Batch | None = None


@dataclass
class Watching(Listener):
    """Checks that no source emits a record that the checkpoint already has as done."""

    sources: Sources
    group: ZooKeeperGroup
    session: MemorySession

    def on_emit(self, batch: int, emitted: Emissions, is_replay: bool) -> None:
        for row in emitted.origins().to_pylist():
            partition, position = row["partition"], row["offset"]
            self.sources.lengths[partition] = max(self.sources.lengths.get(partition, 0), position + 1)
            if not self.session.is_expired and self.group.fence(partition) is not None:
                assert position not in self.sources.written(partition)


@dataclass
class Sources:
    """A group of up to three sources, and the steps that may happen to them."""

    cluster: Cluster
    dice: random.Random
    assignor: str
    log: Log = field(default_factory=lambda: Log(is_ended=False))
    zookeeper: MemoryZooKeeper = field(default_factory=MemoryZooKeeper)
    members: dict[str, Member] = field(default_factory=dict)
    lengths: dict[str, int] = field(default_factory=dict)
    started: int = 0

    def __post_init__(self) -> None:
        self.interval_s, self.batch_records = self.dice.choice((0.0, 20.0)), self.dice.choice((2, 5, 9))
        for partition in PARTITIONS:
            self.log.append(partition, 8)

    def written(self, partition: str) -> set[int]:
        node = self.zookeeper.nodes.get(f"/consumers/g/offsets/{partition}")
        if node is None or not node.content:
            return set()
        done = Ranges.from_runs(json.loads(node.content)["done"])
        return {k for start, stop in zip(done.starts, done.stops, strict=True) for k in range(start, stop)}

    def turn(self) -> None:
        weights = {"take": 10, "settle": 9, "append": 2, "expire": 1, "notice": 2, "crash": 1, "stop": 1, "lose": 1}
        (step,) = self.dice.choices(list(weights), weights=list(weights.values()))
        getattr(self, step)(self.dice.choice(MEMBERS))

    def take(self, name: str) -> None:
        if name not in self.members:
            self.members[name] = self.started_as(name)
        member = self.members[name]
        if member.batch is None:
            with suppress(Idle):
                member.batch = member.run.next_batch()

    def started_as(self, name: str) -> Member:
        self.started += 1
        session = self.zookeeper.session()
        member = f"{name}{self.started}"
        group = ZooKeeperGroup("memory", "g", member=member, assignor=self.assignor, session=session)
        options: dict[str, Any] = {
            "environment": replace(self.cluster.environment(), sleep=self.idle),
            "listener": Watching(self, group, session),
            "group": group,
            "checkpoint": ZooKeeperOffsets(group=group),
            "dead_letters": MemoryLetters(),
            "max_dead_share": 1.0,
            "batch_records": self.batch_records,
            "commit_interval_s": self.interval_s,
            "retry": Retry(max_retries=1, max_interruptions=50, initial_s=2, cap_s=2),
        }
        return Member(LogSource(self.log, **options)._begin_run(NO_SPARK).__enter__(), group, session)

    def settle(self, name: str, how: str = "") -> None:
        member = self.members.get(name)
        if member is None or member.batch is None:
            return
        how = how or self.dice.choice(("fine", "fine", "thirds fail", "breaks"))
        batch, member.batch = member.batch, None
        rows = frame_of(batch).rows()
        bad = {row.root: "bad" for row in rows if how == "thirds fail" and row.root % 3 == 0}
        frame_of(batch).fail(bad)
        frame_of(batch).ack(row for row in rows if row.root not in bad)
        member.run.settle_batch(batch, OSError("disk full") if how == "breaks" else None)

    def append(self, _: str) -> None:
        self.log.append(self.dice.choice(PARTITIONS), self.dice.randrange(1, 6))

    def expire(self, name: str) -> None:
        """End the session of a source. The source does not know this yet."""
        if name in self.members and not self.members[name].session.is_expired:
            self.members[name].session.expire()

    def notice(self, name: str) -> None:
        if name in self.members and self.members[name].session.is_expired:
            self.members[name].session.notice()

    def lose(self, name: str) -> None:
        if name in self.members:
            self.members[name].session.lose_answer = True

    def crash(self, name: str) -> None:
        self.expire(name)
        self.members.pop(name, None)

    def stop(self, name: str) -> None:
        member = self.members.pop(name, None)
        if member is not None:
            if member.batch is not None:
                member.run.abandon_batch(member.batch)
            member.run.__exit__()

    def idle(self, seconds: float) -> None:
        self.cluster.time.sleep(seconds)
        raise Idle


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("assignor", ["range", "sticky"])
def test_a_group_finishes_every_record_once_whatever_happens_to_its_sources(
    tmp_path: Path, assignor: str, seed: int
) -> None:
    sources = Sources(Cluster(tmp_path), random.Random(seed), assignor)
    for _ in range(120):
        sources.turn()
    for name in MEMBERS:
        sources.stop(name)
    # In the end one source has everything, and reads what is left.
    for _ in range(120):
        sources.take("x")
        sources.settle("x", "fine")
    sources.stop("x")
    for partition in PARTITIONS:
        assert sources.written(partition) == set(range(sources.lengths[partition]))
        assert sources.lengths[partition] >= 8
    assert not [path for path, node in sources.zookeeper.nodes.items() if node.session]
