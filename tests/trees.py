"""The oracle of the fault tests: random trees and DAGs of records. It counts the open records of each tree itself."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

# A record carries one edge for each root it is anchored to.
Record = dict[int, int]


@dataclass(frozen=True)
class Update:
    """One step's report on one root. ``edge``: XOR of the consumed edges. ``emitted``: new edges, none if it fails."""

    root: int
    edge: int
    emitted: list[int]
    fails: bool = False


@dataclass
class Forest:
    """Trees that grow and are consumed step by step. A step takes records and may derive, join or fail."""

    dice: random.Random
    base: int
    fail_share: float = 0.02
    started: dict[int, list[int]] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)
    _open: list[Record] = field(default_factory=list)
    _open_of: dict[int, int] = field(default_factory=dict)

    def plant(self, root: int) -> tuple[int, list[int]]:
        """Start the tree of a root; return (root, its first edges). One tree in twenty has no edges."""
        edges = [self._edge() for _ in range(self.dice.choice([0, *[1] * 9, *[2] * 6, *[3] * 4]))]
        self.started[root] = edges
        self._open_of[root] = 0
        for edge in edges:
            self._add({root: edge})
        return root, edges

    @property
    def is_open(self) -> bool:
        return bool(self._open)

    def is_done(self, root: int) -> bool:
        """Whether every record of the tree was consumed."""
        return self._open_of[root] == 0

    def step(self) -> list[Update]:
        """Consume one record, or two that are joined, and derive up to three."""
        parents = [self._take() for _ in range(1 + (len(self._open) > 1 and self.dice.random() < 0.2))]
        roots = sorted({root for parent in parents for root in parent})
        fails = self.dice.random() < self.fail_share
        children = [] if fails else [{root: self._edge() for root in roots} for _ in range(self._fan_out())]
        for child in children:
            self._add(child)
        if fails:
            self.failed.update(roots)
        return [
            Update(root, self._consumed(parents, root), [child[root] for child in children], fails) for root in roots
        ]

    def _fan_out(self) -> int:
        return self.dice.choice([0, 0, 0, 0, 1, 1, 1, 2, 3]) if len(self._open) < 2000 else 0

    def _consumed(self, parents: list[Record], root: int) -> int:
        edge = 0
        for parent in parents:
            edge ^= parent.get(root, 0)
        return edge

    def _edge(self) -> int:
        return self.dice.getrandbits(64)

    def _add(self, record: Record) -> None:
        self._open.append(record)
        for root in record:
            self._open_of[root] += 1

    def _take(self) -> Record:
        index = self.dice.randrange(len(self._open))
        self._open[index], self._open[-1] = self._open[-1], self._open[index]
        record = self._open.pop()
        for root in record:
            self._open_of[root] -= 1
        return record
