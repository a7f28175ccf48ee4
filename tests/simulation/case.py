"""Case: everything that one seed decides, as plain data that can be printed, replayed and shrunk."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

from tests.simulation.network import FAULTS


@dataclass(frozen=True)
class ServerStops:
    """A server ends at ``at`` and restarts after ``down_s``: a planned restart with its state, or kill -9."""

    at: float
    server: int
    down_s: float
    with_state: bool

    def __str__(self) -> str:
        how = "is restarted with its state" if self.with_state else "dies"
        back = "never back" if self.down_s == NEVER else f"back after {self.down_s:.1f} s"
        return f"at {self.at:.2f} s server {self.server} {how}, {back}"


@dataclass(frozen=True)
class Pause:
    """A process is paused for ``for_s`` (SIGSTOP). ``who``: 'driver', 'executor 1', 'server 1'."""

    at: float
    who: str
    for_s: float

    def __str__(self) -> str:
        return f"at {self.at:.2f} s {self.who} stands still for {self.for_s:.1f} s"


@dataclass(frozen=True)
class Cut:
    """A client (None: all) and a server (None: all) are cut off for ``for_s``. ``is_half``: only answers are lost."""

    at: float
    client: str | None
    server: int | None
    for_s: float
    is_half: bool = False

    def __str__(self) -> str:
        one, other = self.client or "everybody", "any server" if self.server is None else f"server {self.server}"
        if self.is_half:
            return f"at {self.at:.2f} s {one} hears no answer of {other} for {self.for_s:.1f} s"
        return f"at {self.at:.2f} s {one} and {other} are cut off from each other for {self.for_s:.1f} s"


@dataclass(frozen=True)
class ExecutorLost:
    """An executor dies, with its shuffle files, and is replaced after ``down_s``."""

    at: float
    executor: int
    down_s: float

    def __str__(self) -> str:
        return f"at {self.at:.2f} s executor {self.executor} dies, back after {self.down_s:.1f} s"


@dataclass(frozen=True)
class FilesLost:
    """The shuffle files of an executor are lost."""

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
    """A server drains: it takes no new work, and ends when it has no work left."""

    at: float
    server: int

    def __str__(self) -> str:
        return f"at {self.at:.2f} s server {self.server} is asked to drain"


@dataclass(frozen=True)
class ZooKeeperAway:
    """A server (None: all) cannot reach ZooKeeper for ``for_s``."""

    at: float
    server: int | None
    for_s: float

    def __str__(self) -> str:
        who = "all servers" if self.server is None else f"server {self.server}"
        return f"at {self.at:.2f} s ZooKeeper is out of reach of {who} for {self.for_s:.1f} s"


@dataclass(frozen=True)
class SessionsLost:
    """ZooKeeper runs, but no server reaches it for ``for_s``. Sessions end, and servers reconnect one by one."""

    at: float
    for_s: float

    def __str__(self) -> str:
        return f"at {self.at:.2f} s all servers are cut off from ZooKeeper for {self.for_s:.1f} s"


@dataclass(frozen=True)
class DataLost:
    """No server reaches ZooKeeper for ``for_s``, and then its data is lost."""

    at: float
    for_s: float

    def __str__(self) -> str:
        return f"at {self.at:.2f} s ZooKeeper goes away for {self.for_s:.1f} s, and loses its data"


@dataclass(frozen=True)
class WorkerLost:
    """A plain worker dies, with what it has not flushed, and is replaced after ``down_s``."""

    at: float
    worker: int
    down_s: float

    def __str__(self) -> str:
        return f"at {self.at:.2f} s worker {self.worker} dies, back after {self.down_s:.1f} s"


Fault = (
    ServerStops
    | Pause
    | Cut
    | ExecutorLost
    | FilesLost
    | WorkerLost
    | Joins
    | Drains
    | ZooKeeperAway
    | SessionsLost
    | DataLost
)

# ``down_s`` of a server that does not come back.
NEVER = math.inf

# Faults of an attempt at a task, or of a job, and their highest probabilities.
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
# Rare faults, because the batches that they hit have to be replayed.
DIFFERING = (
    "makes other children", "makes children for the same tasks", "fails a row this time", "job is cut otherwise",
)  # fmt: skip
# Rare faults stop after this many batches, or else records would be replayed again and again.
DIFFERING_BATCHES = 200


@dataclass(frozen=True)
class Programs:
    """Plain programs. ``roots``: number of records that each source emits.

    A program flushes after ``flush_every`` calls at the latest, and after each earlier call with the probability
    ``flush_share``. ``hands_on_early``: programs send records on before the flush. ``watches_beside``: a source watches
    in its own thread. The other shares are shares of records. ``regret_share``: failed by their source after the
    emission. ``reset_share``: with a reset timeout.
    """

    sources: int = 1
    workers: int = 1
    roots: int = 6
    timeout_s: float = 30.0
    pace_s: float = 0.5
    work_s: float = 0.2
    flush_every: int = 4
    flush_share: float = 0.2
    buffer_entries: int = 65_536
    hands_on_early: bool = False
    watches_beside: bool = False
    fail_share: float = 0.0
    slow_share: float = 0.0
    reset_share: float = 0.0
    regret_share: float = 0.0

    def __str__(self) -> str:
        order = "before" if self.hands_on_early else "after"
        beside = ", watched by a thread of their own" if self.watches_beside else ""
        return (
            f"{self.sources} plain sources of {self.roots} records every {self.pace_s:g} s{beside},"
            f" {self.workers} workers, timeout {self.timeout_s:g} s, a flush after {self.flush_every} calls or with a"
            f" chance of {self.flush_share:g}, {self.buffer_entries} in the buffer; records travel on {order} the"
            f" flush; {self.fail_share:g} fail, {self.slow_share:g} are slow, {self.reset_share:g} start their timeout"
            " anew"
        )


@dataclass(frozen=True)
class Case:
    """One run. ``calls``: rates of the network's FAULTS. ``tasks``: rates of TASK_RATES. ``faults``: with their times.

    ``steps``: most operators of a pipeline. ``poison``: shares of records that fail in every try, that break their job,
    and that do not exist. ``cluster``: 'alone', 'list' or 'zookeeper'. Servers with a fault ``Joins`` do not run at
    first. ``is_rough``: calls fail more often than budgets allow for. ``message_entries``: most entries in a message
    (0: no limit). ``programs``: plain programs instead of a driver and executors. Then only the fields of servers and
    network apply.
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
    programs: Programs | None = None

    @classmethod
    def of(cls, seed: int, cluster: str | None = None) -> Case:
        """Return the case of a seed. ``cluster``: overrides the kind of cluster that the seed draws."""
        if cluster is None and random.Random(f"{seed} kind").random() < PLAIN_SHARE:
            return plain_case(seed)
        dice = random.Random(f"{seed} case")
        if cluster is None and dice.random() < TORN_SHARE:
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
        names = ("driver", *(f"executor {number}" for number in range(1, executors + 1)))
        faults = tuple(_fault(dice, names, servers, cluster) for _ in range(count))
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

    @property
    def troubled_until(self) -> float:
        """Return when the last fault is over."""
        lasts_s = [getattr(fault, "for_s", getattr(fault, "down_s", 0.0)) for fault in self.faults]
        return max((fault.at + s for fault, s in zip(self.faults, lasts_s, strict=True) if s != NEVER), default=0.0)

    def tasks_in(self, batch: int) -> dict[str, float]:
        """Return the rates of task and job faults for a batch, by its number in the run."""
        if batch <= DIFFERING_BATCHES:
            return self.tasks
        return {name: rate for name, rate in self.tasks.items() if name not in DIFFERING}

    def __str__(self) -> str:
        rough = ", rough" if self.is_rough else ""
        if self.programs is not None:
            return "\n".join(
                [
                    f"seed {self.seed}: {self.programs}",
                    *([] if self.cluster == "alone" else [_cluster(self)]),
                    f"budget {self.budget_s:g} s, calls {self.call_timeout_s:g} s, lease {self.lease_s:g} s{rough}",
                    *(f"calls: {name} {rate:.3f}" for name, rate in self.calls.items()),
                    *(f"fault: {fault}" for fault in self.faults),
                ]
            )
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


# The share of seeds with plain programs. Among the other seeds, the share of ``_torn`` cases.
PLAIN_SHARE = 0.5
TORN_SHARE = 0.3


def plain_case(seed: int) -> Case:
    """Return a case of plain programs."""
    dice = random.Random(f"{seed} plain case")
    cluster = dice.choice(("alone", "list", "zookeeper", "zookeeper", "zookeeper"))
    servers = 1 if cluster == "alone" else dice.choice((2, 2, 3, 3, 4))
    workers, sources = dice.randint(1, 3), dice.choice((1, 1, 1, 2))
    is_calm = dice.random() < 0.1
    calls = {} if is_calm or dice.random() < 0.5 else _some(dice, dict.fromkeys(FAULTS, 0.12), 0.5)
    count = 0 if is_calm else dice.choice((0, 1, 1, 2, 4)) + (dice.randrange(3) if servers > 1 else 0)
    names = (
        *(f"source {number}" for number in range(1, sources + 1)),
        *(f"worker {number}" for number in range(1, workers + 1)),
    )
    faults = tuple(_fault(dice, names, servers, cluster) for _ in range(count))
    if servers > 1 and dice.random() < 0.3:
        faults = _crosswise(dice, names, servers)
    budget_s, call_timeout_s, lease_s = dice.choice(((60.0, 10.0, 30.0), (60.0, 3.0, 90.0), (20.0, 3.0, 60.0)))
    return Case(
        seed,
        cluster=cluster,
        servers=servers,
        replicas=dice.choice((None, 1, 2, 2, 3)) if servers > 1 else None,
        spread=dice.choice((8, 8, 3)),
        replica_wait_s=dice.choice((10.0, 10.0, 2.0)),
        gone_after_s=dice.choice((15.0, 15.0, 4.0)),
        session_s=dice.choice((10.0, 4.0)),
        budget_s=budget_s,
        call_timeout_s=call_timeout_s,
        lease_s=lease_s,
        through_wire=dice.random() < 0.1,
        is_rough=bool(calls) and dice.random() < 0.2,
        calls=calls,
        faults=tuple(sorted(faults, key=lambda fault: fault.at)),
        programs=Programs(
            sources=sources,
            workers=workers,
            roots=dice.choice((2, 4, 8, 16)),
            timeout_s=dice.choice((10.0, 30.0, 30.0, 120.0)),
            pace_s=dice.choice((0.05, 0.5, 3.0)),
            work_s=dice.choice((0.02, 0.2, 1.0)),
            flush_every=dice.choice((1, 3, 10)),
            flush_share=dice.choice((0.0, 0.1, 0.5)),
            buffer_entries=dice.choice((65_536, 65_536, 2)),
            hands_on_early=dice.random() < 0.4,
            watches_beside=dice.random() < 0.4,
            fail_share=dice.choice((0.0, 0.1, 0.3)),
            slow_share=dice.choice((0.0, 0.0, 0.05)),
            reset_share=dice.choice((0.0, 0.0, 0.05)),
        ),
    )


_POISON = ("fail always", "break their job", "do not exist")


def _torn(seed: int, dice: random.Random) -> Case:
    """Return a case with two replicas, in which each executor reaches only one, and the driver mostly one too.

    Attempts at the same work differ, so one replica may hold a complete tree whose rows were not written.
    """
    at, for_s = round(0.05 + 0.3 * dice.random(), 3), round(dice.uniform(10.0, 60.0), 3)
    cuts = (Cut(at, "executor 1", 1, for_s), Cut(at, "executor 2", 2, for_s))
    # One task does everything: an attempt reports the whole tree, and the next attempt fails one of its rows.
    is_whole = dice.random() < 0.6
    unheard = (Cut(round(at + dice.random(), 3), "driver", dice.choice((1, 2)), for_s),) * (dice.random() < 0.9)
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
        tasks_wide=1 if is_whole else 2,
        steps=1 if is_whole else dice.choice((1, 1, 2)),
        budget_s=20.0,
        call_timeout_s=3.0,
        lease_s=20.0,
        tasks={
            "dies after it reported": 0.6 if is_whole else 0.4,
            "fails a row this time": round(0.3 * dice.random() + (0.2 if is_whole else 0.0), 3),
            "makes other children": 0.0 if is_whole else round(0.3 * dice.random(), 3),
        },
        faults=tuple(sorted((*cuts, *unheard, *dies), key=lambda fault: fault.at)),
    )


def _crosswise(dice: random.Random, names: tuple[str, ...], servers: int) -> tuple[Fault, ...]:
    """Cut off each of two servers from one process. Then end one of them, or restart it with its state."""
    one, other = dice.sample(range(1, servers + 1), 2)
    at, for_s = round(3.0 * dice.random(), 3), round(dice.uniform(3.0, 60.0), 3)
    cuts = (
        Cut(at, dice.choice(names), one, for_s, dice.random() < 0.3),
        Cut(round(at + 3.0 * dice.random(), 3), dice.choice(names), other, for_s, dice.random() < 0.3),
    )
    ends_at, down_s = round(at + 20.0 * dice.random(), 3), round(dice.choice((1.0, 10.0, 55.0)) * dice.random(), 3)
    ends = ServerStops(ends_at, dice.choice((one, other)), down_s, dice.random() < 0.5)
    again = ServerStops(round(ends_at + 5.0 * dice.random(), 3), dice.choice((one, other)), down_s, dice.random() < 0.5)
    return (*cuts, *((ends,) * (dice.random() < 0.7)), *((again,) * (dice.random() < 0.3)))


def _cluster(case: Case) -> str:
    kind = f"with ZooKeeper, sessions of {case.session_s:g} s" if case.cluster == "zookeeper" else "in a list"
    replicas = "as many as two" if case.replicas is None else case.replicas
    return (
        f"{case.servers} servers {kind}; replicas {replicas}, spread {case.spread}, a replica is waited for"
        f" {case.replica_wait_s:g} s, gone after {case.gone_after_s:g} s"
    )


def _some(dice: random.Random, most: dict[str, float], chance: float) -> dict[str, float]:
    """Draw some of the kinds, each with a rate. A few kinds at once find more than all kinds together."""
    return {name: round(rate * dice.random(), 3) for name, rate in most.items() if dice.random() < chance}


def _fault(dice: random.Random, names: tuple[str, ...], servers: int, cluster: str) -> Fault:
    """Draw a fault. ``names``: client processes: first 'driver' or the sources, then the executors or workers."""
    at = round(dice.choice((2.0, 6.0, 20.0)) * dice.random(), 3)
    sources = tuple(name for name in names if not name.startswith(("executor", "worker")))
    worker = dice.randint(1, len(names) - len(sources))
    name, server = names[len(sources) + worker - 1], dice.randint(1, servers)
    long_s = round(dice.choice((1.0, 8.0, 40.0, 90.0)) * dice.uniform(0.3, 1.0), 3)
    if servers > 1 and dice.random() < 0.4:
        # The first server never leaves for good.
        other = dice.randint(2, servers)
        if dice.random() < 0.4 or cluster != "zookeeper":
            return dice.choice((Joins(at, other), Drains(at, other)))
        whose = dice.randrange(4)
        if whose == 0:
            return SessionsLost(at, long_s)
        if whose == 1:
            return DataLost(at, long_s)
        return ZooKeeperAway(at, None if whose == 2 else server, long_s)
    kind = dice.randrange(8)
    if kind == 1 and server > 1 and dice.random() < 0.3:
        return ServerStops(at, server, NEVER, False)
    if kind <= 1:
        return ServerStops(at, server, round(dice.choice((0.5, 5.0, 30.0, 55.0)) * dice.random(), 3), kind == 0)
    if kind == 2:
        return Pause(at, f"server {server}", long_s)
    if kind == 3:
        return Pause(at, dice.choice((dice.choice(sources), name)), long_s)
    if kind == 4:
        return Cut(at, dice.choice((dice.choice(sources), name)), server, long_s, dice.random() < 0.3)
    if kind == 5:
        return Cut(at, None, server, long_s, dice.random() < 0.2)
    down_s = round(5.0 * dice.random(), 3)
    if name.startswith("worker"):
        return WorkerLost(at, worker, down_s)
    return ExecutorLost(at, worker, down_s) if kind == 6 else FilesLost(at, worker)
