"""Random handovers, failures, crashes and restarts of several sources that share a log, compared with a simple model.

The model (``Twin``) knows the owner of each record, and whether the record has ended. It checks emissions and commits.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from acker_client.source import Batch, Committed, Emissions, Listener, Retry
from acker_client.source.engine.run import Run
from acker_client.source.records.in_flight import Failures
from tests.source.executors import NO_SPARK, Cluster, Row, frame_of
from tests.source.groups import Group, Membership, SharedCheckpoint
from tests.source.logs import Log, LogSource, MemoryLetters
from tests.source.test_groups import Idle

PARTITIONS = "abc"
MEMBERS = "xyz"
Place = tuple[str, int]


@dataclass
class Twin:
    """A model of the group. ``ended``: records that are acked or in the dead letters. ``excused``: ended records that
    were not saved before their source lost the partition. Only these may be emitted again."""

    group: Group
    ended: set[Place] = field(default_factory=set)
    excused: set[Place] = field(default_factory=set)
    again: int = 0

    def written(self, partition: str) -> set[Place]:
        done = self.group.saved.get(partition, Committed()).done
        return {(partition, k) for start, stop in zip(done.starts, done.stops, strict=True) for k in range(start, stop)}

    def take_away(self, partition: str) -> None:
        """Note that a partition is taken from its owner. Its ended records that are not saved become excused."""
        self.excused |= {place for place in self.ended if place[0] == partition} - self.written(partition)


class Watching(Listener):
    """Checks each emission with the model, and tells the model which records have ended."""

    def __init__(self, twin: Twin, member: str) -> None:
        self.twin, self.member = twin, member

    def on_emit(self, batch: int, emitted: Emissions, is_replay: bool) -> None:
        for place in places(emitted):
            assert self.twin.group.owners[place[0]] == self.member, f"{place} is another's, and {self.member} emits it"
            assert place not in self.twin.written(place[0]), f"{place} is emitted, and was written down as done"
            if place in self.twin.ended:
                assert place in self.twin.excused, f"{place} is emitted again, and was neither open nor lost"
                self.twin.again += 1

    def on_ack(self, acked: Emissions) -> None:
        self.end(acked)

    def on_dead_letter(self, dead: Emissions, why: Failures) -> None:
        self.end(dead)

    def end(self, emissions: Emissions) -> None:
        for place in places(emissions):
            self.twin.ended.add(place)
            if self.twin.group.owners.get(place[0]) != self.member:
                self.twin.excused.add(place)


class Checked(SharedCheckpoint):
    """Checks that all records in a commit have ended."""

    twin: Twin

    def save(self, committed: Mapping[str, Committed]) -> None:
        try:
            super().save(committed)
        finally:
            for partition in PARTITIONS:
                assert self.twin.written(partition) <= self.twin.ended, f"{partition}: done before it has ended"


def places(emissions: Emissions) -> list[Place]:
    return [(row["partition"], row["offset"]) for row in emissions.origins().to_pylist()]


@dataclass
class Member:
    run: Run
    batch: Batch | None = None


class Sources:
    """Up to three sources of a group."""

    def __init__(self, folder: Path, dice: random.Random) -> None:
        self.dice = dice
        self.cluster = Cluster(folder)
        self.log, self.group = Log(is_ended=False), Group()
        self.twin = Twin(self.group)
        self.interval_s, self.batch_records = dice.choice((0.0, 20.0)), dice.choice((2, 5, 9))
        self.members: dict[str, Member] = {}
        for partition in PARTITIONS:
            self.log.append(partition, 8)
            self.group.give(partition, dice.choice(MEMBERS))
        self.start("x")

    def start(self, name: str) -> None:
        if name not in self.members:
            self.members[name] = Member(LogSource(self.log, **self.options_of(name))._begin_run(NO_SPARK).__enter__())

    def options_of(self, name: str) -> dict[str, Any]:
        checkpoint = Checked(self.group, name)
        checkpoint.twin = self.twin
        return {
            "environment": replace(self.cluster.environment(), sleep=self.idle),
            "listener": Watching(self.twin, name),
            "group": Membership(self.group, name),
            "checkpoint": checkpoint,
            "dead_letters": MemoryLetters(),
            "max_dead_share": 1.0,
            "batch_records": self.batch_records,
            "commit_interval_s": self.interval_s,
            "retry": Retry(max_retries=1, max_interruptions=50, initial_s=2, cap_s=2),
        }

    def ack(self, batch: Batch, rows: list[Row]) -> None:
        frame_of(batch).ack(rows)

    def idle(self, seconds: float) -> None:
        self.cluster.time.sleep(seconds)
        raise Idle

    def rebalance(self, _: str) -> None:
        self.group.give(self.dice.choice(PARTITIONS), self.dice.choice(MEMBERS))

    def lose(self, name: str) -> None:
        """End the session of a source. The source does not know this yet."""
        for partition, owner in self.group.owners.items():
            if owner == name:
                self.twin.take_away(partition)
        self.group.put_out(name)
        self.rebalance(name)

    def crash(self, name: str) -> None:
        if self.members.pop(name, None) is not None:
            self.lose(name)
            self.group.forget(name)

    def stop(self, name: str) -> None:
        member = self.members.pop(name, None)
        if member is None:
            return
        if member.batch is not None:
            member.run.abandon_batch(member.batch)
        member.run.__exit__()
        self.group.forget(name)

    def append(self, _: str) -> None:
        self.log.append(self.dice.choice(PARTITIONS), self.dice.randrange(1, 6))

    def take(self, name: str) -> None:
        self.start(name)
        member = self.members[name]
        if member.batch is None:
            with suppress(Idle):
                member.batch = member.run.next_batch()

    def settle(self, name: str, how: str = "") -> None:
        member = self.members.get(name)
        if member is None or member.batch is None:
            return
        how = how or self.dice.choice(("fine", "fine", "fine", "thirds fail", "breaks", "reads nothing"))
        batch, member.batch = member.batch, None
        if how != "reads nothing":
            rows = frame_of(batch).rows()
            bad = {row.root: "bad" for row in rows if how == "thirds fail" and int(row.value[1:]) % 3 == 0}
            frame_of(batch).fail(bad)
            self.ack(batch, [row for row in rows if row.root not in bad])
        member.run.settle_batch(batch, OSError("disk full") if how == "breaks" else None)

    def turn(self) -> None:
        steps = (self.take, self.settle, self.rebalance, self.append, self.lose, self.crash, self.stop)
        step = self.dice.choices(steps, weights=(9, 8, 3, 2, 1, 1, 1))[0]
        step(self.dice.choice(MEMBERS))

    def leave_all_to_one(self) -> None:
        for name in MEMBERS:
            self.stop(name)
        for partition in PARTITIONS:
            self.group.give(partition, "x")

    def finish(self) -> None:
        """Let one source own everything, and read the rest."""
        self.leave_all_to_one()
        for _ in range(100):
            self.take("x")
            self.settle("x", "fine")
        self.stop("x")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(1, 31))
def test_a_group_loses_no_record_and_repeats_none_handed_over_as_done(seed: int, tmp_path: Path) -> None:
    sources = Sources(tmp_path, random.Random(seed))
    for _ in range(60):
        sources.turn()
    sources.finish()
    log, twin = sources.log, sources.twin
    everything = {(partition, k) for partition in PARTITIONS for k in range(log.end_of(partition))}
    assert twin.ended == everything
    assert set().union(*(twin.written(partition) for partition in PARTITIONS)) == everything
