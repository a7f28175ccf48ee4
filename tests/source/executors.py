"""Executors in memory, which read, report and ack like Spark's tasks. The shard is real, and time is simulated."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from acker_client import AckerClient, Settings
from acker_client.cluster.watched import WatchResult
from acker_client.source import Batch, Emissions, Files, Listener, SourceError
from acker_client.source.engine.environment import Environment, FramePlan
from acker_client.source.records.in_flight import Failures
from acker_protocol.ids import edge0_column, mix64_column
from acker_protocol.messages import ACK, FAIL, Entries, Identity, InitScope
from acker_protocol.reports import fold, fold_updates
from acker_testing import LocalServer, SimulatedTime

# A source only passes the Spark session to its environment. The environment of these tests needs none.
NO_SPARK: Any = None


@dataclass
class Record:
    """Stands for the evidence of a batch's write."""

    error: BaseException | None = None
    unfinished_because: str = ""
    without: frozenset[int] = frozenset()
    released: bool = False
    has_run: bool = True
    vouched: bool = False
    is_shared: bool = False
    waited_s: float = 0.0
    folders: frozenset[str] = frozenset()
    # What the driver's cancellation of the batch's jobs does.
    on_cancel: Callable[[], None] = lambda: None

    def vouch(self) -> None:
        self.vouched = True

    def judge(self) -> BaseException | None:
        return self.error

    def cancel_jobs(self) -> None:
        self.on_cancel()

    def release(self) -> None:
        self.released = True


@dataclass
class Row:
    """One row with its anchor."""

    root: int
    edge: int
    value: Any
    line: int
    path: str


@dataclass
class Frame:
    """Stands for the frame of a batch. The calls of a test replace its read tasks, operators and sink."""

    client: AckerClient
    plan: FramePlan
    evidence: Record = field(default_factory=Record)

    @property
    def df(self) -> Frame:
        return self

    def rows(self, slices: slice = slice(None)) -> list[Row]:
        """Read slices as read tasks do: report inits and covered numbers, and fail unreadable records."""
        return [row for piece in self.plan.slices[slices] for row in self._read(piece)]

    def _read(self, piece: Any) -> Iterator[Row]:
        # A slice without records also has to be reported as covered.
        none = np.empty(0, np.uint64)
        covered = np.array([[piece.start, piece.stop]], np.uint64)
        self._report(fold(none, none), InitScope(self.plan.scope.session, self.plan.scope.number, covered))
        for records in piece.read():
            roots = mix64_column(records.numbers + np.uint64(self.plan.scope.first))
            edges = edge0_column(roots)
            covered = np.array([[piece.start, piece.stop]], np.uint64)
            scope = InitScope(self.plan.scope.session, self.plan.scope.number, covered)
            if self.plan.track is not None:
                # Records that cannot be read are always tracked.
                is_tracked = np.ones(len(roots), bool)
                readable = [row for row in range(len(roots)) if row not in records.unreadable]
                is_tracked[readable] = self.plan.track(records.columns.take(pa.array(readable, pa.int64())))
                self._report(fold(roots[is_tracked], edges[is_tracked]), scope)
                roots = np.where(is_tracked, roots, np.uint64(0))
            else:
                self._report(fold(roots, edges), scope)
            bad = {int(roots[row]): reason for row, reason in records.unreadable.items()}
            if bad and not self.plan.pins:
                raise SourceError(f"a record cannot be read: {next(iter(bad.values()))}")
            self.fail(bad)
            for root, edge, columns in zip(roots, edges, records.columns.to_pylist(), strict=True):
                if int(root) not in bad:
                    yield Row(
                        int(root),
                        int(edge),
                        columns.get("value", columns.get("data")),
                        columns.get("line", 0),
                        columns.get("path", ""),
                    )

    def ack(self, rows: Iterable[Row]) -> None:
        """Ack rows as a sink does. Rows of untracked records have root 0."""
        pairs = [(row.root, row.edge) for row in rows if row.root]
        if pairs:
            roots, edges = (np.array(column, np.uint64) for column in zip(*pairs, strict=True))
            self._report(fold(roots, edges))

    def fail(self, reasons: dict[int, str]) -> None:
        """Fail roots like an operator whose function raises."""
        if reasons:
            roots = np.array(list(reasons), np.uint64)
            kinds = np.full(len(roots), ACK | FAIL, np.uint8)
            self._report(fold_updates(roots, edge0_column(roots), kinds, reasons))

    def _report(self, entries: Entries, scope: InitScope | None = None) -> None:
        if not self.plan.pins:
            return
        identity = Identity(secrets.randbits(64), secrets.randbits(64))
        result = self.client.report_pinned(identity, entries, scope, self.plan.pins, may_leave=True)
        self.evidence.without |= result.without


@dataclass
class Log(Listener):
    """Records every callback of a listener, record by record."""

    emitted: list[tuple[int, list[int]]] = field(default_factory=list)
    acked: list[int] = field(default_factory=list)
    failed: list[tuple[int, str]] = field(default_factory=list)
    retried: list[int] = field(default_factory=list)
    dead: list[int] = field(default_factory=list)

    def on_emit(self, batch: int, emitted: Emissions, is_replay: bool) -> None:
        self.emitted.append((batch, emitted.records.tolist()))

    def on_ack(self, acked: Emissions) -> None:
        assert [acked.origins().num_rows, len(acked.originals())] == [len(acked), len(acked)]
        self.acked += acked.records.tolist()

    def on_fail(self, failed: Emissions, why: Failures) -> None:
        self.failed += [(int(record), why.reason(k)) for k, record in enumerate(failed.records)]

    def on_retry(self, retried: Emissions) -> None:
        self.retried += retried.records.tolist()

    def on_dead_letter(self, dead: Emissions, why: Failures) -> None:
        self.dead += dead.records.tolist()


def frame_of(batch: Batch) -> Frame:
    """Return the ``Frame`` of a batch. For mypy, ``batch.df`` is Spark's data frame."""
    frame: Any = batch.df
    assert isinstance(frame, Frame)
    return frame


class Polling:
    """Watches only on request, in the caller's thread, because time is simulated."""

    def __init__(self, client: AckerClient) -> None:
        self._client = client

    def next_result(self, timeout_s: float) -> WatchResult | None:
        watched = self._client.watch(timeout_s)
        return watched if watched.says_something else None

    def stop(self) -> None:
        """Do nothing: no thread runs."""


class Cluster:
    """A server, executors and simulated time; makes sources that run on them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.time = SimulatedTime()
        self.server = LocalServer(clock=self.time.clock, sleep=self.time.sleep)
        self._back_s = float("inf")
        self.base = 1 << 40
        self.budget_s = 5.0

    def client(self, kind: type[AckerClient] = AckerClient) -> AckerClient:
        settings = Settings(("in-memory:1",), budget_s=self.budget_s)
        return kind(
            settings,
            connect=self.server.connect,
            clock=self.time.clock,
            sleep=self.sleep,
            random=lambda: 0.5,
        )

    def stop_for(self, seconds: float) -> None:
        """Stop the server for a time. It keeps its state."""
        self.server.stop()
        self._back_s = self.time.clock() + seconds

    def sleep(self, seconds: float) -> None:
        self.time.sleep(seconds)
        if self.time.clock() >= self._back_s:
            self._back_s = float("inf")
            self.server.start()

    def environment(self) -> Environment:
        executor = self.client()
        return Environment(
            connect=lambda spark: self.client(),
            frame=lambda spark, plan: Frame(executor, plan),
            parallelism=lambda spark: 2,
            watch=Polling,
            clock=self.time.clock,
            wall=lambda: 1_700_000_000.0 + self.time.clock(),
            sleep=self.sleep,
            draw=lambda: 0.5,
            draw_base=self._draw_base,
        )

    def _draw_base(self) -> int:
        self.base += 1 << 40
        return self.base

    def source(self, paths: str = "*.txt", **options: Any) -> Files:
        mine = {"name": "lines", "environment": self.environment(), "dead_letters": self.folder / "dead.jsonl"}
        return Files(f"{self.folder}/{paths}", **{**mine, "max_dead_share": 1.0, **options})

    def write(self, name: str, *lines: str) -> None:
        (self.folder / name).write_text("".join(f"{line}\n" for line in lines))


class Timers:
    """Timers of simulated time. ``expire`` lets the time of the open batch run out."""

    def __init__(self) -> None:
        self.running: dict[int, Callable[[], float | None]] = {}
        self.delays: list[float] = []

    def start(self, delay_s: float, call: Callable[[], float | None]) -> Callable[[], None]:
        number = len(self.delays)
        self.delays.append(delay_s)
        self.running[number] = call
        return lambda: self.running.pop(number, None) and None

    def expire(self) -> None:
        (call,) = self.running.values()
        delay_s = call()
        assert delay_s is not None
        assert delay_s > 0


def save_all(batch: Batch) -> None:
    """Process every row, as a job without errors does."""
    frame_of(batch).ack(frame_of(batch).rows())


def failing(bad: Callable[[Row], bool], reason: str = "ValueError: bad") -> Callable[[Batch], None]:
    """Return a job whose operator raises for some rows."""

    def process(batch: Batch) -> None:
        rows = frame_of(batch).rows()
        frame_of(batch).fail({row.root: reason for row in rows if bad(row)})
        frame_of(batch).ack(row for row in rows if not bad(row))

    return process


def breaking(bad: Callable[[Row], bool]) -> Callable[[Batch], None]:
    """Return a job that fails as a whole if its batch has such a row."""

    def process(batch: Batch) -> None:
        rows = frame_of(batch).rows()
        if any(bad(row) for row in rows):
            raise ArithmeticError("division by zero in a where")
        frame_of(batch).ack(rows)

    return process
