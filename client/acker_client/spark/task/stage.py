"""Stage: what one Python task of Spark does: steps one after the other over the rows it is given, and their reports.

Decides the order of things in a task. Rows flow through the steps batch by batch; when the input is exhausted, and
never before, every step reports for itself, inits before updates, and the task waits for the answers before it ends. A
task that dies, is closed early or raises has reported nothing. Each step counts for itself, so a stage of three steps
reports, edge for edge, what three stages of one step would. What steps do to rows is theirs to say (``operators``);
how they come to be one stage, and what stands between stages, is the guard's (``fusing``, ``plan``).

Nothing here that is pickled holds a channel: a stage carries settings, and the client is made inside the task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Protocol

import pyarrow as pa

from acker_client.core.delivery import ReportResult
from acker_client.settings import Settings
from acker_client.spark.core.anchors import Rows, pack, unpack
from acker_client.spark.core.tally import Report
from acker_client.spark.task.notes import Pen

# A batch that a step has made large is handed to Spark in pieces of so many rows.
BATCH_ROWS = 1 << 16

# Sends a report and waits for its answer.
Send = Callable[[Report], ReportResult | None]


class Run(Protocol):
    """One step in one task, with its account."""

    def take(self, rows: Rows) -> Iterable[Rows]:
        """Process a batch; hand on what became of it."""
        ...

    def reports(self) -> Iterable[Report]:
        """What the step has to say, asked once at the end of input."""
        ...


class Step(Protocol):
    """What a stage does to rows. Picklable; it is started anew in every task."""

    @property
    def name(self) -> str: ...

    def start(self, *, finds_copies: bool) -> Run:
        """``finds_copies``: the rows come from outside the stage, where something may have multiplied them."""
        ...


class EntryRun(Protocol):
    """How rows come into one task."""

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Rows]: ...

    def reports(self) -> Iterable[Report]: ...


class Entry(Protocol):
    """How rows come into a stage: from the stage before, or read from a source. Picklable."""

    @property
    def from_outside(self) -> bool: ...

    def start(self) -> EntryRun: ...


@dataclass(frozen=True, slots=True)
class Arriving:
    """Rows arrive from another stage, with their anchors in columns. ``names``: what the columns are called, where
    Spark had to hand them over under other names."""

    names: tuple[str, ...] = field(default=())

    @property
    def from_outside(self) -> bool:
        return True

    def start(self) -> Arriving:
        return self

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Rows]:
        return (unpack(renamed(batch, self.names)) for batch in batches)

    def reports(self) -> Iterable[Report]:
        return ()


@dataclass(frozen=True, slots=True)
class Stage:
    """Steps that run as one. ``is_tracked``: what comes out carries anchors (a sink's does not).

    A sink's stage notes the end of each of its tasks, one that reads a source likewise, and any stage that another
    attempt has reported something else.
    """

    settings: Settings
    entry: Entry
    steps: tuple[Step, ...] = ()
    is_tracked: bool = True
    # By this its tasks are known in notes; nothing is noted without a pen.
    tag: str = ""
    pen: Pen | None = None

    def then(self, step: Step, *, is_tracked: bool = True) -> Stage:
        """The stage that goes on with one more step."""
        return replace(self, steps=(*self.steps, step), is_tracked=is_tracked)

    def run(self, batches: Iterable[pa.RecordBatch], send: Send) -> Iterator[pa.RecordBatch]:
        """Process one task's input; ``send`` is called for each report at the end of it."""
        entry = self.entry.start()
        runs = [step.start(finds_copies=self.entry.from_outside and not index) for index, step in enumerate(self.steps)]
        flow = entry.rows(batches)
        for run in runs:
            flow = _through(run, flow)
        for rows in flow:
            yield from _chunks(pack(rows) if self.is_tracked else rows.data)
        reports = chain(entry.reports(), *(run.reports() for run in runs))
        results = [send(report) for report in reports if not report.is_empty]
        if self.pen is not None and any(result is not None and result.conflict for result in results):
            self.pen.write("conflict", self.tag)
        if self.pen is not None and not self.entry.from_outside:
            self.pen.write("read", self.tag)
        if self.pen is not None and not self.is_tracked:
            self.pen.write("end", self.tag)


def renamed(data: Any, names: Sequence[str]) -> Any:
    """A RecordBatch or Table with these names for its columns; with no names it is left as it is."""
    return data.rename_columns(list(names)) if names else data


def task_function(stage: Stage) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What Spark pickles and calls in each task."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return stage.run(batches, Sender(stage.settings))

    return run


class Sender:
    """Sends reports from inside a task and waits for each answer; grpc is loaded here and nowhere before."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def __call__(self, report: Report) -> ReportResult:
        # A conflict (another attempt gave other rows) is no error of this task; the client logs it.
        from acker_client.plain.client import shared_client

        return shared_client(self._settings).report(report.identity, report.entries, report.inits)


def _through(run: Run, flow: Iterator[Rows]) -> Iterator[Rows]:
    for rows in flow:
        yield from run.take(rows)


def _chunks(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if batch.num_rows <= 2 * BATCH_ROWS:
        yield batch
        return
    for start in range(0, batch.num_rows, BATCH_ROWS):
        yield batch.slice(start, BATCH_ROWS)
