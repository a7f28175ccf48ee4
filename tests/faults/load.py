"""Load: an endless source with the real ``Run``, executors with clients of their own, and an account of each record.

A small stand-in for Spark reads a batch in pieces. For each piece, one executor reports the inits and then each
record's child. Another executor acks the children. Failed tasks are retried as in Spark.
"""

from __future__ import annotations

import itertools
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

import numpy as np
import pyarrow as pa

from acker_client import AckerClient, Settings, Verdict
from acker_client.cluster.watched import WatchResult
from acker_client.errors import AckerError
from acker_client.pins import Pin
from acker_client.rpc.connection import Connect
from acker_client.source import Chosen, Committed, Emissions, Input, Listener, Options, Original, Plan, Ranges, Retry
from acker_client.source.engine.environment import Environment, FramePlan
from acker_client.source.engine.source import Source
from acker_client.source.records.in_flight import Failures
from acker_client.source.records.summary import Summary
from acker_protocol.ids import Column, edge0_column, mix64_column, slot
from acker_protocol.messages import Entries, Identity, InitScope
from acker_protocol.reports import fold

EXECUTORS = 2
ATTEMPTS = 4
WAIT_S = 90.0
# Salt that derives the edge of a child from the edge of its record.
CHILD = np.uint64(0xC41D)
# The source passes the session to its environment, which needs none here.
NO_SPARK: Any = None
RETRY = Retry(max_retries=0, max_interruptions=20, initial_s=0.0, cap_s=0.0)


@dataclass(frozen=True)
class Piece:
    """Positions [start, stop) of the only partition."""

    start: int
    stop: int
    partition: str = "all"


@dataclass(frozen=True)
class PieceRead:
    """Numbers [start, stop) of a batch."""

    start: int
    stop: int


class Endless(Source):
    """A source of records without content, until ``is_ended`` is set."""

    def __init__(self, **options: Any) -> None:
        given: Any = {"name": "endless", **options}
        super().__init__(Options.of(given))
        self.is_ended = False

    def input(self) -> tuple[Input[Any], Any]:
        return EndlessInput(self), "value string"


class EndlessInput:
    kind = "endless"

    def __init__(self, source: Endless) -> None:
        self._source = source
        self._next = 0

    def start(self, committed: Mapping[str, Committed]) -> None:
        """Ignore the checkpoint: always start from 0."""

    def plan(self, records_max: int, tasks: int) -> Plan[Piece]:
        if self._source.is_ended:
            return Plan(is_end=True)
        start, self._next = self._next, self._next + records_max
        return Plan([Piece(start, self._next)])

    def slices(self, chosen: Sequence[Chosen[Piece]], tasks: int) -> list[PieceRead]:
        bounds = np.linspace(0, sum(map(len, chosen)), tasks + 1, dtype=int).tolist()
        return [PieceRead(start, stop) for start, stop in itertools.pairwise(bounds) if start < stop]

    def origins(self, chosen: Sequence[Chosen[Piece]]) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"position": np.concatenate([each.positions for each in chosen])})

    def originals(self, chosen: Sequence[Chosen[Piece]]) -> list[Original]:
        return [Original({"position": int(at)}, b"") for each in chosen for at in each.positions]

    def advance(self, partition: str, done: Ranges) -> None:
        """Nothing is kept."""

    def mark(self, partition: str, done: Ranges) -> Mapping[str, Any]:
        return {}

    def describe(self, done: Mapping[str, Ranges]) -> str:
        return "endless"


@dataclass
class Account(Listener):
    """Every emission, whether its last ack was sent, and its one outcome.

    ``lost``: (batch, root, reason) of each LOST root. ``replayed_at``: when a replay of a LOST record was last ACKED.
    ``pins``: placement by batch. ``without``: servers that some report left out. ``heard_at``: when outcomes arrived.
    """

    emitted: dict[int, tuple[int, int]] = field(default_factory=dict)
    ended: dict[int, Verdict] = field(default_factory=dict)
    acked: Counter[int] = field(default_factory=Counter)
    lost: list[tuple[int, int, str]] = field(default_factory=list)
    pins: dict[int, Pin] = field(default_factory=dict)
    without: set[int] = field(default_factory=set)
    troubles: list[str] = field(default_factory=list)
    heard_at: list[float] = field(default_factory=list)
    replayed_at: float = 0.0

    def __post_init__(self) -> None:
        self._sent: set[int] = set()
        self._lost_records: set[int] = set()
        self._changed = threading.Condition()

    # the source's thread

    def on_emit(self, batch: int, emitted: Emissions, is_replay: bool) -> None:
        pairs = zip(emitted.roots.tolist(), emitted.records.tolist(), strict=True)
        self.emitted |= {root: (batch, record) for root, record in pairs}

    def on_ack(self, acked: Emissions) -> None:
        records = acked.records.tolist()
        self.acked.update(records)
        if not self._lost_records.isdisjoint(records):
            self.replayed_at = time.monotonic()

    def on_fail(self, failed: Emissions, why: Failures) -> None:
        for k, root in enumerate(failed.roots.tolist()):
            batch, _ = self.emitted[root]
            self.lost.append((batch, root, why.reason(k)))
            self._lost_records.add(self.emitted[root][1])
            if why.verdicts[k] != Verdict.LOST:
                self.troubles.append(f"record of batch {batch} ended as {Verdict(why.verdicts[k]).name}")

    # executors

    def send(self, roots: Column) -> None:
        """Note that the last acks of ``roots`` are about to be sent."""
        with self._changed:
            self._sent.update(roots.tolist())

    # the watching thread

    def hear(self, watched: WatchResult) -> None:
        """Take the outcomes of a watch. Check that each root has one, and is ACKED only after its last ack was sent."""
        with self._changed:
            for root, verdict in zip(
                watched.outcomes.root_ids.tolist(), watched.outcomes.verdicts.tolist(), strict=True
            ):
                if root in self.ended:
                    self.troubles.append(
                        f"a root had two outcomes, {self.ended[root].name} and {Verdict(verdict).name}"
                    )
                self.ended[root] = Verdict(verdict)
                if verdict == Verdict.ACKED and root not in self._sent:
                    self.troubles.append("a false ACK")
            if len(watched.outcomes):
                self.heard_at.append(time.monotonic())
            self._changed.notify_all()

    # the test

    def await_outcomes(self, more: int = 6) -> None:
        """Wait until ``more`` further watches have brought outcomes."""
        with self._changed:
            until = len(self.heard_at) + more
            assert self._changed.wait_for(lambda: len(self.heard_at) >= until or self.troubles, WAIT_S), "no outcomes"

    @property
    def replays(self) -> int:
        """Emissions beyond the first of each record."""
        return len(self.emitted) - len({record for _, record in self.emitted.values()})

    @property
    def missing(self) -> int:
        """Emissions without an outcome."""
        return len(self.emitted.keys() - self.ended.keys())

    def longest_stall_s(self, since: float) -> float:
        """The longest time without a new outcome."""
        times = [since, *(at for at in self.heard_at if at >= since)]
        return max((b - a for a, b in itertools.pairwise(times)), default=0.0)

    def check(self) -> None:
        """Assert what must hold under all faults: each emission has an outcome, and each record is ACKED in the end."""
        assert not self.troubles, self.troubles[:5]
        assert self.missing == 0
        records = {record for _, record in self.emitted.values()}
        assert set(self.acked) == records
        assert set(self.acked.values()) == {1}

    @property
    def lost_roots(self) -> set[int]:
        return {root for _, root, _ in self.lost}

    @property
    def lost_batches(self) -> set[int]:
        return {batch for batch, _, _ in self.lost}

    def living_on(self, id: int, batches: set[int]) -> set[int]:
        """Return the roots of ``batches`` whose only replica was server ``id``."""
        found = set()
        for root, (batch, _) in self.emitted.items():
            if batch in batches:
                placement = self.pins[batch].placement
                if {placement.members[index].id for index in placement.replicas[slot(root)]} == {id}:
                    found.add(root)
        return found


class Watched(AckerClient):
    """The driver's client. Passes the outcomes of each watch to the account first."""

    account: Account

    def watch(self, wait_s: float = 0.0, *, max_outcomes: int = 1_000_000) -> WatchResult:
        watched = super().watch(wait_s, max_outcomes=max_outcomes)
        self.account.hear(watched)
        return watched


@dataclass
class Evidence:
    without: frozenset[int] = frozenset()
    unfinished_because: str = ""
    has_run: bool = True
    is_shared: bool = False
    waited_s: float = 0.0
    folders: frozenset[str] = frozenset()

    def judge(self) -> BaseException | None:
        return None

    def vouch(self) -> None:
        """Do nothing: all sinks are trusted."""

    def cancel_jobs(self) -> None:
        """Do nothing: no batch has a timeout."""

    def release(self) -> None:
        """Nothing is kept."""


@dataclass
class Frame:
    """A batch and its tasks, in place of a DataFrame."""

    load: Load
    plan: FramePlan
    evidence: Evidence = field(default_factory=Evidence)

    @property
    def df(self) -> Frame:
        return self

    def process(self) -> None:
        """Run two stages, each with one task an executor: read and derive, then write."""
        list(self.load.threads.map(self._read, range(EXECUTORS), self.plan.slices))
        self.load.meet()
        list(self.load.threads.map(self._write, range(EXECUTORS), reversed(self.plan.slices)))

    def _read(self, executor: int, piece: PieceRead) -> None:
        roots, edges = self._edges_of(piece)
        covered = np.array([[piece.start, piece.stop]], np.uint64)
        self._report(executor, fold(roots, edges), InitScope(self.plan.scope.session, self.plan.scope.number, covered))
        self._report(executor, fold(roots, edges ^ mix64_column(edges ^ CHILD)))

    def _write(self, executor: int, piece: PieceRead) -> None:
        roots, edges = self._edges_of(piece)
        self.load.account.send(roots)
        self._report(executor, fold(roots, mix64_column(edges ^ CHILD)))

    def _edges_of(self, piece: PieceRead) -> tuple[Column, Column]:
        roots = mix64_column(np.arange(piece.start, piece.stop, dtype=np.uint64) + np.uint64(self.plan.scope.first))
        return roots, edge0_column(roots)

    def _report(self, executor: int, entries: Entries, scope: InitScope | None = None) -> None:
        identity = Identity(secrets.randbits(64), secrets.randbits(64))
        for attempt in range(ATTEMPTS):
            client = self.load.executors[executor]
            try:
                result = client.report_pinned(identity, entries, scope, self.plan.pins, may_leave=True)
            except AckerError:
                if attempt == ATTEMPTS - 1:
                    raise
            else:
                self.evidence.without |= result.without
                self.load.account.without |= result.without
                return


def process(frame: Any) -> None:
    """Run the job. ``frame`` is a :class:`Frame`, which mypy takes for a Spark DataFrame."""
    frame.process()


class Load:
    """A source at work in a thread of its own, until :meth:`finish`."""

    def __init__(
        self,
        servers: Sequence[str],
        *,
        replicas: int,
        batch_records: int = 2000,
        connect: Connect | None = None,
        **settings: Any,
    ) -> None:
        """``connect``: how the first executor connects; None for the default."""
        self.account = Account()
        # If there is a registry, it alone decides which servers are gone.
        settings = {"replicas": replicas, "budget_s": 20.0, "gone_after_s": 600.0, **settings}
        self._settings = Settings(tuple(servers), **settings)
        self.executors = [AckerClient(self._settings, connect=connect if k == 0 else None) for k in range(EXECUTORS)]
        self.threads = ThreadPoolExecutor(EXECUTORS)
        self.client = Watched(self._settings)
        self.client.account = self.account
        environment = Environment(
            connect=lambda spark: self.client, frame=self._frame, parallelism=lambda spark: EXECUTORS
        )
        self._source = Endless(
            batch_records=batch_records, retry=RETRY, listener=self.account, environment=environment, max_dead_share=1.0
        )
        self._faults: SimpleQueue[tuple[Callable[[], object], Future[None]]] = SimpleQueue()
        self._driver = ThreadPoolExecutor(1)
        self._work = self._driver.submit(self._source.run, NO_SPARK, lambda batch: process(batch.df))

    def await_outcomes(self, more: int = 6) -> None:
        self.account.await_outcomes(more)

    def strike(self, fault: Callable[[], object]) -> None:
        """Call ``fault`` in the middle of a batch: all of it is read, and nothing written. Returns after the call."""
        struck: Future[None] = Future()
        self._faults.put((fault, struck))
        struck.result(WAIT_S)

    def meet(self) -> None:
        """Call the waiting faults. Runs in the middle of each batch."""
        while not self._faults.empty():
            fault, struck = self._faults.get()
            try:
                fault()
            except BaseException as error:
                struck.set_exception(error)
                raise
            struck.set_result(None)

    @property
    def summary(self) -> Summary:
        """The summary of the source."""
        return self._source.summary()

    def finish(self) -> Account:
        """End the input, wait until every record has its outcome, and check the account."""
        self._source.is_ended = True
        try:
            self._work.result(WAIT_S)
        finally:
            self.close()
        self.account.check()
        return self.account

    def close(self) -> None:
        self._source.is_ended = True
        for client in (self.client, *self.executors):
            client.close()
        self.threads.shutdown(wait=False)
        self._driver.shutdown(wait=False)

    def _frame(self, spark: Any, plan: FramePlan) -> Frame:
        (self.account.pins[plan.scope.number],) = plan.pins
        return Frame(self, plan)
