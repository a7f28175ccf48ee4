"""Case: everything that one seed decides, as plain data, so that it can be printed, replayed and made smaller."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from tests.simulation.network import FAULTS


@dataclass(frozen=True)
class ServerStops:
    """A server ends at ``at`` and is back after ``down_s``: a planned restart with its state, or kill -9."""

    at: float
    server: int
    down_s: float
    with_state: bool

    def __str__(self) -> str:
        how = "is restarted with its state" if self.with_state else "dies"
        return f"at {self.at:.2f} s server {self.server} {how}, back after {self.down_s:.1f} s"


@dataclass(frozen=True)
class Pause:
    """A process stands still for so long (SIGSTOP). ``who``: 'driver', 'executor 1', 'server 1'."""

    at: float
    who: str
    for_s: float

    def __str__(self) -> str:
        return f"at {self.at:.2f} s {self.who} stands still for {self.for_s:.1f} s"


@dataclass(frozen=True)
class Cut:
    """Nothing passes between a client (None: anybody) and a server (None: any) for so long."""

    at: float
    client: str | None
    server: int | None
    for_s: float

    def __str__(self) -> str:
        one, other = self.client or "everybody", "any server" if self.server is None else f"server {self.server}"
        return f"at {self.at:.2f} s {one} and {other} are cut off from each other for {self.for_s:.1f} s"


@dataclass(frozen=True)
class ExecutorLost:
    """An executor dies, with the shuffle files that it has, and another takes its place after ``down_s``."""

    at: float
    executor: int
    down_s: float

    def __str__(self) -> str:
        return f"at {self.at:.2f} s executor {self.executor} dies, back after {self.down_s:.1f} s"


@dataclass(frozen=True)
class FilesLost:
    """The shuffle files of an executor are gone."""

    at: float
    executor: int

    def __str__(self) -> str:
        return f"at {self.at:.2f} s executor {self.executor} loses its shuffle files"


@dataclass(frozen=True)
class Joins:
    """A server is started for the first time, or again after it drained."""

    at: float
    server: int

    def __str__(self) -> str:
        return f"at {self.at:.2f} s server {self.server} joins"


@dataclass(frozen=True)
class Drains:
    """A server takes nothing new and ends when nothing is left there."""

    at: float
    server: int

    def __str__(self) -> str:
        return f"at {self.at:.2f} s server {self.server} is asked to drain"


@dataclass(frozen=True)
class ZooKeeperAway:
    """Nobody reaches ZooKeeper for so long; or one server does not (None: all)."""

    at: float
    server: int | None
    for_s: float

    def __str__(self) -> str:
        who = "everybody" if self.server is None else f"server {self.server}"
        return f"at {self.at:.2f} s ZooKeeper is out of reach of {who} for {self.for_s:.1f} s"


Fault = ServerStops | Pause | Cut | ExecutorLost | FilesLost | Joins | Drains | ZooKeeperAway

# What may go wrong with an attempt at a task, or with a job, and how often at most.
TASK_RATES = {
    "dies before it reports": 0.15,
    "dies between its reports": 0.1,
    "dies after it reported": 0.15,
    "is slow": 0.15,
    "is started twice": 0.15,
    "reports late": 0.1,
    "makes other children": 0.1,
    "fails a row this time": 0.05,
    "commit refused": 0.15,
    "job fails": 0.1,
    "job is run again": 0.15,
    "job is cut otherwise": 0.3,
}
# Those that only happen once in a while, as whatever they touch has to be replayed.
DIFFERING = ("makes other children", "fails a row this time", "job is cut otherwise")
# Where nearly every batch differs, records are replayed on and on: after so many batches none does.
DIFFERING_BATCHES = 200


@dataclass(frozen=True)
class Case:
    """One run. ``calls``: rates of FAULTS of the network; ``tasks``: rates of TASK_RATES; ``faults``: at their times.

    ``steps``: most operators of a pipeline. ``poison``: shares of records that fail in every try, that break their job,
    and that do not exist. ``cluster``: 'alone', 'list' or 'zookeeper'; of the ``servers`` those in a fault ``Joins``
    are not there at first. ``is_rough``: calls go wrong more often than budgets are made for. ``message_entries``: how
    many entries a message may carry (0: as many as there are).
    """

    seed: int
    records: int = 10
    partitions: int = 1
    batch_records: int = 5
    tasks_wide: int = 2
    executors: int = 2
    cluster: str = "alone"
    servers: int = 1
    replicas: int | None = None
    spread: int = 8
    replica_wait_s: float = 10.0
    gone_after_s: float = 15.0
    session_s: float = 10.0
    steps: int = 3
    budget_s: float = 60.0
    call_timeout_s: float = 10.0
    lease_s: float = 30.0
    max_retries: int = 2
    poison: tuple[float, float, float] = (0.0, 0.0, 0.0)
    message_entries: int = 0
    through_wire: bool = False
    is_rough: bool = False
    calls: dict[str, float] = field(default_factory=dict)
    tasks: dict[str, float] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()

    @classmethod
    def of(cls, seed: int, cluster: str | None = None) -> Case:
        """What a seed stands for. ``cluster``: that kind of one, whatever the seed says."""
        dice = random.Random(f"{seed} case")
        if cluster is None and dice.random() < 0.1:
            return _torn(seed, dice)
        drawn = dice.choice(("alone", "alone", "list", "zookeeper", "zookeeper", "zookeeper"))
        cluster = cluster or drawn
        servers = 1 if cluster == "alone" else dice.choice((2, 2, 3, 4))
        records = dice.choice((5, 6, 8, 10, 12, 16, 24, 30))
        executors = dice.randint(1, 3)
        is_calm = dice.random() < 0.1
        calls = {} if is_calm or dice.random() < 0.3 else _some(dice, dict.fromkeys(FAULTS, 0.12), 0.5)
        tasks = {} if is_calm else _some(dice, TASK_RATES, 0.25)
        count = 0 if is_calm else dice.choice((0, 1, 1, 2, 4)) + (dice.randrange(3) if servers > 1 else 0)
        faults = tuple(_fault(dice, executors, servers, cluster) for _ in range(count))
        budget_s, call_timeout_s, lease_s = dice.choice(((60.0, 10.0, 30.0), (60.0, 3.0, 30.0), (20.0, 3.0, 20.0)))
        return cls(
            seed,
            records=records,
            partitions=dice.randint(1, 2),
            batch_records=dice.choice((3, 5, 8, 12)),
            tasks_wide=dice.randint(1, 3),
            executors=executors,
            cluster=cluster,
            servers=servers,
            replicas=dice.choice((None, 1, 2, 2, 3)) if servers > 1 else None,
            spread=dice.choice((8, 8, 3)),
            replica_wait_s=dice.choice((10.0, 10.0, 2.0)),
            gone_after_s=dice.choice((15.0, 15.0, 4.0)),
            session_s=dice.choice((10.0, 4.0)),
            steps=dice.randint(1, 4),
            budget_s=budget_s,
            call_timeout_s=call_timeout_s,
            lease_s=lease_s,
            max_retries=dice.choice((1, 1, 2, 3)),
            poison=(
                dice.choice((0.0, 0.0, 0.1)),
                dice.choice((0.0, 0.0, 0.0, 0.05)),
                dice.choice((0.0, 0.0, 0.1)),
            ),
            message_entries=dice.choice((0, 0, 1, 3)),
            through_wire=dice.random() < 0.1,
            is_rough=bool(calls) and dice.random() < 0.3,
            calls=calls,
            tasks=tasks,
            faults=tuple(sorted(faults, key=lambda fault: fault.at)),
        )

    def tasks_in(self, batch: int) -> dict[str, float]:
        """What goes wrong with tasks and jobs of a run's batch of this number, and how often."""
        if batch <= DIFFERING_BATCHES:
            return self.tasks
        return {name: rate for name, rate in self.tasks.items() if name not in DIFFERING}

    def __str__(self) -> str:
        rough = ", rough" if self.is_rough else ""
        lines = [
            f"seed {self.seed}: {self.records} records in {self.partitions} partitions, {self.batch_records} a batch",
            f"{self.tasks_wide} tasks wide, {self.executors} executors, {self.steps} operators",
            *([] if self.cluster == "alone" else [_cluster(self)]),
            f"budget {self.budget_s:g} s, calls {self.call_timeout_s:g} s, lease {self.lease_s:g} s{rough}",
            f"{self.max_retries} retries, {self.message_entries or 'all'} entries a message",
            *(f"calls: {name} {rate:.3f}" for name, rate in self.calls.items()),
            *(f"tasks: {name} {rate:.3f}" for name, rate in self.tasks.items()),
            *(f"records: {share:g} {what}" for share, what in zip(self.poison, _POISON, strict=True) if share),
            *(f"fault: {fault}" for fault in self.faults),
        ]
        return "\n".join(lines)


_POISON = ("fail always", "break their job", "do not exist")


def _torn(seed: int, dice: random.Random) -> Case:
    """Two replicas, and two executors that reach one each; the driver reaches one of the two; attempts at the same work
    differ. What one replica has is whole, and was not written."""
    at, for_s = round(0.05 + 0.3 * dice.random(), 3), round(dice.uniform(10.0, 60.0), 3)
    cuts = (Cut(at, "executor 1", 1, for_s), Cut(at, "executor 2", 2, for_s))
    unheard = (Cut(round(at + dice.random(), 3), "driver", dice.choice((1, 2)), for_s),) * (dice.random() < 0.7)
    dies = (ServerStops(round(5.0 * dice.random(), 3), dice.choice((1, 2)), 1.0, False),) * (dice.random() < 0.3)
    return Case(
        seed,
        records=dice.choice((4, 6, 8)),
        batch_records=8,
        executors=2,
        cluster=dice.choice(("list", "zookeeper")),
        servers=2,
        replicas=2,
        replica_wait_s=2.0,
        steps=dice.choice((1, 1, 2)),
        budget_s=20.0,
        call_timeout_s=3.0,
        lease_s=20.0,
        tasks={
            "dies after it reported": 0.4,
            "fails a row this time": round(0.3 * dice.random(), 3),
            "makes other children": round(0.3 * dice.random(), 3),
        },
        faults=tuple(sorted((*cuts, *unheard, *dies), key=lambda fault: fault.at)),
    )


def _cluster(case: Case) -> str:
    kind = f"with ZooKeeper, sessions of {case.session_s:g} s" if case.cluster == "zookeeper" else "in a list"
    replicas = "as many as two" if case.replicas is None else case.replicas
    return (
        f"{case.servers} servers {kind}; replicas {replicas}, spread {case.spread}, a replica is waited for"
        f" {case.replica_wait_s:g} s, gone after {case.gone_after_s:g} s"
    )


def _some(dice: random.Random, most: dict[str, float], chance: float) -> dict[str, float]:
    """Some of them, each as often as drawn: few kinds at once find more than all of them always."""
    return {name: round(rate * dice.random(), 3) for name, rate in most.items() if dice.random() < chance}


def _fault(dice: random.Random, executors: int, servers: int, cluster: str) -> Fault:
    at = round(dice.choice((2.0, 6.0, 20.0)) * dice.random(), 3)
    executor, server = dice.randint(1, executors), dice.randint(1, servers)
    long_s = round(dice.choice((1.0, 8.0, 40.0, 90.0)) * dice.uniform(0.3, 1.0), 3)
    if servers > 1 and dice.random() < 0.4:
        # The first server is always there to come back to.
        other = dice.randint(2, servers)
        if dice.random() < 0.4 or cluster != "zookeeper":
            return dice.choice((Joins(at, other), Drains(at, other)))
        return ZooKeeperAway(at, dice.choice((None, server)), long_s)
    kind = dice.randrange(8)
    if kind <= 1:
        return ServerStops(at, server, round(dice.choice((0.5, 5.0, 30.0)) * dice.random(), 3), kind == 0)
    if kind == 2:
        return Pause(at, f"server {server}", long_s)
    if kind == 3:
        return Pause(at, dice.choice(("driver", f"executor {executor}")), long_s)
    if kind == 4:
        return Cut(at, dice.choice(("driver", f"executor {executor}")), server, long_s)
    if kind == 5:
        return Cut(at, None, server, long_s)
    if kind == 6:
        return ExecutorLost(at, executor, round(5.0 * dice.random(), 3))
    return FilesLost(at, executor)
