"""Chain: the work of one Python task in Spark. It runs steps over its input rows, one after the other, and reports.

Decides the order of work in a task. Rows flow through the steps batch by batch. When the input is exhausted, and never
before, every step makes its own report. Inits are sent before updates. The task waits for all answers before it ends. A
task that dies, is closed early or raises has reported nothing. Each step counts for itself, so a chain of three steps
reports the same edges as three chains of one step. ``operators`` decide what a step does to rows. ``plan_check``
decides how steps join one chain (``fusing``), and what may stand between chains (``plan``). A chain is not a Spark
*stage*: stages are cut at shuffles, and a stage may hold several chains.

Nothing here that is pickled holds a channel: a chain carries settings, and the client is made inside the task.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from acker_client.rpc.delivery import ReportResult
from acker_client.settings import Settings
from acker_client.spark.anchoring import sizes
from acker_client.spark.anchoring.anchors import Rows, pack, unpack
from acker_client.spark.anchoring.tally import Report, Tally
from acker_client.spark.worker.notes import NoteWriter, note_writer_here, tag_of

# A step's large output batch is handed to Spark in pieces of this many rows, and of ``sizes.BATCH_BYTES``.
BATCH_ROWS = 1 << 16

# Sends a report and waits for its answer.
Send = Callable[[Report], ReportResult | None]
# Takes a batch of rows, and returns the rows made from it.
TakeRows = Callable[[Rows], Iterable[Rows]]


class Step(Protocol):
    """One thing that a chain does to rows. Picklable; every task starts it again."""

    @property
    def name(self) -> str: ...

    def start(self, tally: Tally) -> TakeRows:
        """Return the function that a task calls for each batch of rows. It counts in ``tally`` the edges that it
        consumes and produces."""
        ...


class Entry(Protocol):
    """How rows come into a chain: from the chain before, or read from a source. Picklable."""

    @property
    def from_outside(self) -> bool:
        """Whether rows come from Spark, where something may have multiplied them."""
        ...

    def rows(self, batches: Iterable[pa.RecordBatch], reports: list[Report]) -> Iterator[Rows]:
        """Yield the rows of one task, and append the entry's own reports about them to ``reports``."""
        ...


@dataclass(frozen=True, slots=True)
class Arriving:
    """Rows arrive from another chain, with their anchors in columns. ``names``: the columns' own names, if Spark had to
    hand them over under other names."""

    names: tuple[str, ...] = field(default=())

    @property
    def from_outside(self) -> bool:
        return True

    def rows(self, batches: Iterable[pa.RecordBatch], reports: list[Report]) -> Iterator[Rows]:
        return (unpack(renamed(batch, self.names)) for batch in batches)


@dataclass(frozen=True, slots=True)
class Chain:
    """Steps that run as one. ``is_tracked``: the output carries anchors (a sink's does not).

    A sink's chain writes a note at the end of each task, and so does a chain that reads a source. Any chain writes a
    note if another attempt has reported other content.
    """

    settings: Settings
    entry: Entry
    steps: tuple[Step, ...] = ()
    is_tracked: bool = True
    # Identifies the chain in its tasks' notes. Without a writer, tasks write no notes.
    tag: str = ""
    note_writer: NoteWriter | None = None

    def then(self, step: Step, *, is_tracked: bool = True) -> Chain:
        """Return the chain with one more step."""
        return replace(self, steps=(*self.steps, step), is_tracked=is_tracked)

    def run(self, batches: Iterable[pa.RecordBatch], send: Send) -> Iterator[pa.RecordBatch]:
        """Run the steps over one task's input, and call ``send`` for each report at the end of the input."""
        entered, tallies = list[Report](), list[Tally]()
        flow = self.entry.rows(batches, entered)
        for step in self.steps:
            # Only the first step checks for copies, and only if its rows come from outside: no copy can arise within
            # the chain.
            finds_copies = self.entry.from_outside and not tallies
            tallies.append(Tally(step.name, finds_copies=finds_copies, tracking=self.settings.tracking))
            flow = _through(step.start(tallies[-1]), flow)
        for rows in flow:
            yield from _chunks(pack(rows) if self.is_tracked else rows.data)
        inits_first = sorted(entered, key=lambda report: report.inits is None)
        reports = itertools.chain(inits_first, (tally.report() for tally in tallies))
        self._write_notes([send(report) for report in reports if not report.is_empty], tallies)

    def _write_notes(self, results: Sequence[ReportResult | None], tallies: Sequence[Tally]) -> None:
        if self.note_writer is None:
            return
        for tally in tallies:
            if tally.dropped:
                self.note_writer.write("dropped", self.tag, index=tally.dropped, function=tally.dropped_because)
        if any(result is not None and result.conflict for result in results):
            self.note_writer.write("conflict", self.tag)
        if not self.entry.from_outside:
            self.note_writer.write("read", self.tag)
        if not self.is_tracked:
            self.note_writer.write("end", self.tag)


def renamed(data: Any, names: Sequence[str]) -> Any:
    """Return a RecordBatch or Table with these column names; unchanged if there are none."""
    return data.rename_columns(list(names)) if names else data


def task_function(chain: Chain) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that Spark pickles and calls in each task."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return chain.run(batches, Sender(chain.settings, chain.note_writer))

    return run


class Sender:
    """Sends reports from inside a task and waits for each answer. Loads grpc only here.

    Leaves out a silent server only if a note can tell the source about that server, because the source has to leave it
    out as well.
    """

    def __init__(self, settings: Settings, note_writer: NoteWriter | None = None) -> None:
        """``note_writer``: None for the writer that the job's thread has handed down."""
        self._settings = settings
        self._note_writer = note_writer

    def is_of_plain_source(self, report: Report) -> bool:
        """Whether a plain source has emitted the first root of a report. Asks the servers."""
        from acker_client.client import shared_client

        return shared_client(self._settings).has_emitted(int(report.entries.root_ids[0]))

    def __call__(self, report: Report) -> ReportResult:
        # A conflict (another attempt had other rows) is not an error of this task. The client logs it.
        from acker_client.client import shared_client

        client, pins = shared_client(self._settings), self._settings.pins
        writer = self._note_writer or note_writer_here()
        may_leave = writer is not None
        result = client.report_pinned(report.identity, report.entries, report.inits, pins, may_leave=may_leave)
        if writer is not None:
            for pin, server in itertools.product(pins, sorted(result.without)):
                writer.write("without", tag_of(pin), index=server)
        return result


def _through(take_rows: TakeRows, flow: Iterator[Rows]) -> Iterator[Rows]:
    for rows in flow:
        yield from take_rows(rows)


def _chunks(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if batch.nbytes > 2 * sizes.BATCH_BYTES:
        lengths = sum(map(sizes.row_bytes, batch.columns), np.zeros(batch.num_rows, np.int64))
        for start, stop in sizes.cuts(lengths, sizes.BATCH_BYTES):
            yield from _cut_by_rows(batch.slice(start, stop - start))
    else:
        yield from _cut_by_rows(batch)


def _cut_by_rows(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if batch.num_rows <= 2 * BATCH_ROWS:
        yield batch
        return
    for start in range(0, batch.num_rows, BATCH_ROWS):
        yield batch.slice(start, BATCH_ROWS)
