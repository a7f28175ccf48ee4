"""Schedule: the processes, trees and faults of one run, generated from its seed.

It is fixed before the run: the moments are counts of handled records. It shares no code with the product.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any


class Fate(StrEnum):
    """The planned end of one record.

    ``FAIL_THEN_ACK``: a process fails its tree. After the flush of the fail, another process acks the record.
    """

    ACK = "ack"
    FAIL = "fail"
    FAIL_THEN_ACK = "fail_then_ack"
    NEVER = "never"


@dataclass(frozen=True)
class Node:
    """A record, and the records derived from it. ``again``: the process that acks it after ``worker`` has failed it."""

    worker: int
    fate: Fate
    children: tuple[Node, ...] = ()
    again: int = 0

    def walk(self) -> Iterator[Node]:
        yield self
        for child in self.children:
            yield from child.walk()

    @property
    def steps(self) -> int:
        """Number of times that records of this tree are handled."""
        return sum(2 if node.fate is Fate.FAIL_THEN_ACK else 1 for node in self.walk() if node.fate is not Fate.NEVER)


@dataclass(frozen=True)
class Emitter:
    """A process with a source. ``watches_aside``: it watches in a thread of its own.

    ``watches_from``: the number of steps after which it begins to watch.
    """

    lease_s: float
    timeout_s: float
    watches_aside: bool
    waves: tuple[Wave, ...] = field(repr=False)
    watches_from: int = 0


@dataclass(frozen=True)
class Wave:
    """Trees that are emitted together, after ``at`` steps."""

    at: int
    trees: tuple[Node, ...]

    @property
    def steps(self) -> int:
        return sum(1 + tree.steps for tree in self.trees)


@dataclass(frozen=True)
class Fault:
    """A fault, ``at`` steps after the start and at least ``after_s`` seconds after the previous fault.

    ``after_s`` varies so that a server's ZooKeeper session or a client's call sometimes ends in between. ``server``,
    ``worker``: -1 where the kind has none.
    """

    at: int
    after_s: float
    kind: str
    server: int = -1
    worker: int = -1
    way: str = ""

    def __str__(self) -> str:
        on = f" server {self.server}" if self.server >= 0 else ""
        by = f" for process {self.worker}" if self.worker >= 0 else ""
        return f"@{self.at}+{self.after_s:g}s {self.kind}{on}{by}{f' ({self.way})' if self.way else ''}"


# Faults after which a server's state may be lost. A cut path counts only if it cuts off a source, which then leaves the
# server out. Other processes wait.
HITS = frozenset({"kill", "pause", "cut"})
# After these, the server has recovered, or the others will soon know that it is gone.
HEALS = frozenset({"kill", "resume", "mend"})


@dataclass(frozen=True)
class Schedule:
    """One run. ``servers``: number of servers at the start; higher ids are for servers that join later.

    Client processes are numbered: first the emitters, then the ackers. ``hands_on_early``: processes hand records on
    before their flush instead of after it. ``joins_late``: ackers join the sources only before their first task.
    ``never_joins``: no process joins a source; each finds the sources by their roots.
    """

    seed: int
    servers: int
    replicas: int
    emitters: tuple[Emitter, ...]
    ackers: int
    hands_on_early: bool
    joins_late: bool
    faults: tuple[Fault, ...]
    never_joins: bool = False

    @property
    def workers(self) -> int:
        return len(self.emitters) + self.ackers

    @property
    def steps(self) -> int:
        return sum(wave.steps for each in self.emitters for wave in each.waves)

    def hits(self, fault: Fault) -> bool:
        """Whether roots on this server may be LOST there."""
        return fault.kind in HITS and (fault.kind != "cut" or fault.worker < len(self.emitters))

    @property
    def ids(self) -> range:
        return range(1 + max([self.servers - 1, *(fault.server for fault in self.faults)]))

    def __str__(self) -> str:
        emitters = "; ".join(str(each) for each in self.emitters)
        roots = sum(len(wave.trees) for each in self.emitters for wave in each.waves)
        return (
            f"seed {self.seed}: {self.servers} servers, R = {self.replicas}, {self.ackers} ackers, {roots} roots,"
            f" {self.steps} steps{', early' if self.hands_on_early else ''}"
            f"{', no joins' if self.never_joins else ', late' if self.joins_late else ''}\n  {emitters}\n  "
            + ", ".join(map(str, self.faults))
        )

    @classmethod
    def of(cls, seed: int) -> Schedule:
        rng = random.Random(f"schedule {seed}")
        if seed % CUT_OFF_EVERY == 0:
            return _cut_off(rng, seed)
        servers, replicas = rng.randint(3, 5), rng.choice((1, 2, 2, 3))
        count, ackers = rng.choice((1, 1, 2)), rng.choice((1, 2, 2, 3))
        workers = range(count + ackers)
        # This process is likely to fail its records, and to be cut off.
        suspect = rng.choice(workers[count:])
        emitters = tuple(_emitter(rng, workers, count, suspect) for _ in range(count))
        without = cls(seed, servers, replicas, emitters, ackers, rng.random() < 0.3, rng.random() < 0.3, ())
        # A generator of its own, so that a seed keeps its faults.
        never_joins = random.Random(f"joins {seed}").random() < 0.4
        return replace(without, faults=_faults(rng, without, suspect), never_joins=never_joins)


def _cut_off(rng: random.Random, seed: int) -> Schedule:
    """Return a schedule with faults in an order that once ended in a false ACK.

    A process fails its records while its requests cannot reach one server. Then the other replica of some of them is
    killed, other processes ack the records, and the path is mended.
    """
    emitter, suspect, other = 0, 1, 2
    leaf = Node(rng.choice((emitter, other)), Fate.ACK)

    def failed() -> Node:
        return Node(suspect, Fate.FAIL_THEN_ACK, rng.choice(((), (leaf,))), rng.choice((emitter, other)))

    waves, at = [], 0
    for trees in ([leaf] * 5, [failed() for _ in range(rng.choice((10, 30)))], [leaf] * 10):
        waves.append(Wave(at, tuple(trees)))
        at += waves[-1].steps
    # The second wave has about one emit, one fail and one ack per tree. The fails do not wait for other steps.
    first, fails = waves[1].at, len(waves[1].trees)
    cut, killed = rng.sample(range(3), 2)
    way = rng.choice(("both", "to server"))
    faults = (
        Fault(first - 1, 0.0, "cut", cut, suspect, way),
        Fault(first + 2 * fails, 5.0, "kill", killed),
        Fault(waves[2].at - fails // 2, 3.0, "mend", cut, suspect, way),
    )
    # Watches late, or else it would hear of the fails at once from the server that is killed later.
    emits = Emitter(15.0, 60.0, rng.random() < 0.5, tuple(waves), waves[2].at)
    return Schedule(seed, 3, 2, (emits,), 2, rng.random() < 0.3, rng.random() < 0.3, faults)


def _emitter(rng: random.Random, workers: range, count: int, suspect: int) -> Emitter:
    leaves_some = rng.random() < 0.3
    weights = {Fate.ACK: 1.0, Fate.FAIL: rng.choice((0.0, 0.05)), Fate.FAIL_THEN_ACK: rng.choice((0.0, 0.05, 0.15))}
    weights[Fate.NEVER] = 0.05 if leaves_some else 0.0
    depth, most = rng.randint(0, 3), rng.randint(1, 3)
    waves, at = [], 0
    for _ in range(rng.randint(4, 12)):
        size = rng.choice((1, 5, 10, 20))
        trees = tuple(_node(rng, workers, count, suspect, weights, depth, most) for _ in range(size))
        waves.append(Wave(at, trees))
        at += waves[-1].steps * rng.randint(1, count)
    timeout_s = rng.choice((6.0, 8.0)) if leaves_some else 60.0
    lease_s, watches_aside = rng.choice((8.0, 15.0, 30.0)), rng.random() < 0.5
    # A source that cannot watch during its flush needs a lease that is longer than the flush.
    return Emitter(lease_s if watches_aside else 30.0, timeout_s, watches_aside, tuple(waves))


def _node(
    rng: random.Random, workers: range, count: int, suspect: int, weights: dict[Fate, float], depth: int, most: int
) -> Node:
    worker = rng.choice(workers[count:] if rng.random() < 0.85 else workers[:count])
    fate = rng.choices(list(weights), list(weights.values()))[0]
    if fate in (Fate.FAIL, Fate.FAIL_THEN_ACK) and rng.random() < 0.7:
        worker = suspect
    again = rng.choice([each for each in workers if each != worker])
    children: tuple[Node, ...] = ()
    if depth and fate in (Fate.ACK, Fate.FAIL_THEN_ACK):
        count_of = rng.randint(0, most)
        children = tuple(_node(rng, workers, count, suspect, weights, depth - 1, most) for _ in range(count_of))
    return Node(worker, fate, children, again)


WAYS = ("both", "both", "to server", "to client")
# One seed in this many gives a schedule of _cut_off.
CUT_OFF_EVERY = 10
# Kinds in which a server registers in ZooKeeper.
STARTS = frozenset({"start", "join", "restart"})
# Weight of each sequence of faults. The last fault of a sequence ends it.
STORIES = {
    "kill": 3,
    "kill, start": 3,
    "restart": 2,
    "stop, start": 2,
    "roll": 1,
    "cut, kill, mend": 3,
    "pause, resume": 3,
    "drain": 2,
    "join": 2,
    "cut, mend": 5,
    "break": 2,
    "zk stop, zk start": 2,
    "zk restart": 1,
    "zk empty": 1,
}


class _Timeline:
    """Collects faults that do not conflict.

    A server or path has one fault at a time, no server starts while ZooKeeper is away, and at least one server is never
    killed.
    """

    def __init__(self, rng: random.Random, schedule: Schedule, suspect: int) -> None:
        self._rng = rng
        self._workers = schedule.workers
        self._total = schedule.steps
        self._suspect = suspect
        self._servers = rng.sample(range(schedule.servers), schedule.servers)
        self._fresh = schedule.servers
        # (server, path or "zk", begin, end) of each fault.
        self._taken: list[tuple[Any, int, int]] = []
        self.faults: list[Fault] = []

    def add(self, kind: str) -> None:
        """Add faults of this kind at a random moment, unless they conflict with earlier ones."""
        rng, total = self._rng, self._total
        begin = rng.randint(total // 20, max(total // 20, 9 * total // 10))
        end = min(begin + rng.choice((total // 20, total // 8, total // 3)), total - 1)
        # The first server never fails.
        server = rng.choice(self._servers[1:])
        first, *rest = kind.split(", ")
        if kind == "roll":
            self._roll(begin)
        elif kind == "join":
            if self._take("zk", begin, begin):
                self._put(begin, kind, self._fresh)
                self._fresh += 1
        elif kind == "cut, kill, mend":
            self._cut_and_kill(begin, end, server)
        elif first in ("cut", "break"):
            worker = self._suspect if rng.random() < 0.5 else rng.randrange(self._workers)
            way = rng.choice(WAYS) if rest else ""
            if self._take((worker, server), begin, end):
                self._put(begin, first, server, worker, way)
                for last in rest:
                    self._put(end, last, server, worker, way, lasts=True)
        elif first.startswith("zk"):
            starts = [fault.at for fault in self.faults if fault.kind in STARTS]
            if not any(begin <= at <= end for at in starts) and self._take("zk", begin, end):
                self._put(begin, first)
                for last in rest:
                    self._put(end, last, lasts=True)
        elif self._take(server, begin, end if rest else total if kind != "restart" else begin, starts=kind != "drain"):
            self._put(begin, first, server)
            for last in rest:
                self._put(end, last, server, lasts=True)

    def _roll(self, begin: int) -> None:
        """Restart all servers, one after the other, as planned restarts."""
        end = min(begin + len(self._servers) * self._total // 20, self._total - 1)
        if all(end < b or e < begin for who, b, e in self._taken if not isinstance(who, tuple)):
            for k, server in enumerate(self._servers):
                self._taken.append((server, begin, end))
                self._put(begin + k * (end - begin) // len(self._servers), "restart", server)

    def _cut_and_kill(self, begin: int, end: int, server: int) -> None:
        """Cut the path from the suspect (a process likely to fail records) to a server, then kill another server."""
        others = [each for each in self._servers[1:] if each != server]
        if others and end - begin > 1 and self._take((self._suspect, server), begin, end):
            way, other = self._rng.choice(WAYS), self._rng.choice(others)
            self._put(begin, "cut", server, self._suspect, way)
            if self._take(other, (begin + end) // 2, self._total):
                self.faults.append(Fault((begin + end) // 2, 5.0, "kill", other))
            self._put(end, "mend", server, self._suspect, way, lasts=True)

    def _take(self, what: Any, begin: int, end: int, *, starts: bool = False) -> bool:
        for who, b, e in self._taken:
            if (who == what or (starts and who == "zk")) and begin <= e and b <= end:
                return False
        self._taken.append((what, begin, end))
        return True

    def _put(
        self, at: int, kind: str, server: int = -1, worker: int = -1, way: str = "", *, lasts: bool = False
    ) -> None:
        after_s = self._rng.choice((0.0, 0.5, 2.0, 4.0, 6.0) if lasts else (0.0, 0.0, 1.0, 3.0))
        self.faults.append(Fault(at, after_s, kind, server, worker, way))


def _faults(rng: random.Random, schedule: Schedule, suspect: int) -> tuple[Fault, ...]:
    """Return random faults of some kinds, in order."""
    timeline, kinds = _Timeline(rng, schedule, suspect), rng.sample(list(STORIES), rng.randint(3, 6))
    for _ in range(rng.randint(1, 6)):
        timeline.add(rng.choices(kinds, [STORIES[each] for each in kinds])[0])
    return tuple(sorted(timeline.faults, key=lambda fault: fault.at))
