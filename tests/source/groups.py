"""A consumer group and the checkpoint that its sources share, in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from acker_client.source import Committed, Ranges
from acker_client.source.errors import Fenced
from acker_client.source.records.assignment import Handover


@dataclass
class Group:
    """A consumer group. ``wanted``: the member that each partition is assigned to. ``owners``: its present owner. A
    member removed by ``put_out`` loses its partitions at once."""

    wanted: dict[str, str | None] = field(default_factory=dict)
    owners: dict[str, str | None] = field(default_factory=dict)
    saved: dict[str, Committed] = field(default_factory=dict)
    # Steps of the members, in order, like "x joins" and "x releases a".
    notes: list[str] = field(default_factory=list)
    _lost: dict[str, set[str]] = field(default_factory=dict)

    def give(self, partition: str, member: str | None) -> None:
        """Assign a partition to a member (None: to no member) from the next rebalance on."""
        self.wanted[partition] = member

    def put_out(self, member: str) -> None:
        """End the session of a member. The member may not know this yet."""
        for partition, owner in self.owners.items():
            if owner == member:
                self.take_away(partition)

    def take_away(self, partition: str) -> None:
        """Take a partition from its owner. The owner may not know this yet."""
        self._lost.setdefault(self.owners[partition] or "", set()).add(partition)
        self.owners[partition] = None

    def forget(self, member: str) -> None:
        """Let a member return under its name, without its former partitions."""
        self._lost.pop(member, None)

    def handover_to(self, member: str) -> Handover:
        lost = sorted(self._lost.pop(member, set()))
        revoked = [name for name, owner in self.owners.items() if owner == member and self.wanted.get(name) != member]
        # A member can get back a partition that it has just lost only in its next poll.
        assigned = [
            name
            for name, wanted in self.wanted.items()
            if wanted == member and self.owners.get(name) is None and name not in lost
        ]
        self.owners |= dict.fromkeys(assigned, member)
        return Handover(tuple(assigned), tuple(revoked), tuple(lost))

    def release(self, member: str, partitions: Sequence[str]) -> None:
        for partition in partitions:
            if self.owners.get(partition) == member:
                self.owners[partition] = None


@dataclass
class Membership:
    """An ``Assignment`` of one member."""

    group: Group
    member: str
    partitions: Callable[[], Sequence[str]] | None = None

    def open(self, source: str, partitions: Callable[[], Sequence[str]]) -> None:
        self.partitions = partitions
        self.group.notes.append(f"{self.member} joins")

    def poll(self) -> Handover:
        return self.group.handover_to(self.member)

    def release(self, partitions: Sequence[str]) -> None:
        self.group.notes.append(f"{self.member} releases {' '.join(partitions)}")
        self.group.release(self.member, partitions)

    def close(self) -> None:
        self.group.notes.append(f"{self.member} leaves")
        self.group.put_out(self.member)


@dataclass
class SharedCheckpoint:
    """A ``SharedCheckpointStore`` of one member. It does not write partitions that others own."""

    group: Group
    member: str

    def open(self, source: str, kind: str) -> None:
        self.group.notes.append(f"{self.member} opens the checkpoint")

    def load(self) -> dict[str, Committed]:
        return dict(self.group.saved)

    def load_partitions(self, partitions: Sequence[str]) -> dict[str, Committed]:
        assert all(self.group.owners[partition] == self.member for partition in partitions)
        return {name: self.group.saved[name] for name in partitions if name in self.group.saved}

    def save(self, committed: Mapping[str, Committed]) -> None:
        others = [name for name in committed if self.group.owners.get(name) != self.member]
        for partition in sorted(set(committed) - set(others)):
            before, after = self.group.saved.get(partition, Committed()).done, committed[partition].done
            assert before.union(after) == after, f"{partition}: {before} were done, and {after} are"
            if after != before or partition not in self.group.saved:
                self.group.saved[partition] = committed[partition]
                self.group.notes.append(f"{self.member} writes {partition} {shown(after)}")
        if others:
            raise Fenced(f"other sources own {', '.join(others)} now", others)

    def close(self) -> None:
        self.group.notes.append(f"{self.member} closes the checkpoint")


def shown(done: Ranges) -> str:
    return " ".join(f"{start}-{stop}" for start, stop in zip(done.starts, done.stops, strict=True))
