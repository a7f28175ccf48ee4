"""Chain: what one Python task of Spark does: steps one after the other over the rows it is given, and their reports.

Decides the order of things in a task. Rows flow through the steps batch by batch; when the input is exhausted, and
never before, every step reports for itself, inits before updates, and the task waits for the answers before it ends. A
task that dies, is closed early or raises has reported nothing. Each step counts for itself, so a chain of three steps
reports, edge for edge, what three chains of one step would. What a step does to rows is decided in ``operators``;
how steps come to be one chain, and what may be between chains, in ``guard`` (``fusing``, ``plan``). (Spark's word
*stage* is never used for it: what Spark calls so is cut at shuffles, and may hold several chains.)

Nothing here that is pickled holds a channel: a chain carries settings, and the client is made inside the task.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import pyarrow as pa

from acker_client.rpc.delivery import ReportResult
from acker_client.settings import Settings
from acker_client.spark.anchoring.anchors import Rows, pack, unpack
from acker_client.spark.anchoring.tally import Report, Tally
from acker_client.spark.worker.notes import NoteWriter, note_writer_here, tag_of

# A batch that a step has made large is handed to Spark in pieces of so many rows.
BATCH_ROWS = 1 << 16

# Sends a report and waits for its answer.
Send = Callable[[Report], ReportResult | None]
# Takes a batch of rows, and hands on what became of it.
TakeRows = Callable[[Rows], Iterable[Rows]]


class Step(Protocol):
    """What a chain does to rows. Picklable; it is started anew in every task."""

    @property
    def name(self) -> str: ...

    def start(self, tally: Tally) -> TakeRows:
        """What one task is to call for each batch of rows; it counts in ``tally`` what was consumed and made."""
        ...


class Entry(Protocol):
    """How rows come into a chain: from the chain before, or read from a source. Picklable."""

    @property
    def from_outside(self) -> bool:
        """Whether they come from Spark, where something may have multiplied them."""
        ...

    def rows(self, batches: Iterable[pa.RecordBatch], reports: list[Report]) -> Iterator[Rows]:
        """The rows of one task; what the entry itself has to report of them is put into ``reports``."""
        ...


@dataclass(frozen=True, slots=True)
class Arriving:
    """Rows arrive from another chain, with their anchors in columns. ``names``: what the columns are called, where
    Spark had to hand them over under other names."""

    names: tuple[str, ...] = field(default=())

    @property
    def from_outside(self) -> bool:
        return True

    def rows(self, batches: Iterable[pa.RecordBatch], reports: list[Report]) -> Iterator[Rows]:
        return (unpack(renamed(batch, self.names)) for batch in batches)


@dataclass(frozen=True, slots=True)
class Chain:
    """Steps that run as one. ``is_tracked``: what comes out carries anchors (a sink's does not).

    A sink's chain notes the end of each of its tasks, one that reads a source likewise, and any chain whether another
    attempt has reported something else.
    """

    settings: Settings
    entry: Entry
    steps: tuple[Step, ...] = ()
    is_tracked: bool = True
    # By this its tasks are known in notes; nothing is noted without a writer.
    tag: str = ""
    note_writer: NoteWriter | None = None

    def then(self, step: Step, *, is_tracked: bool = True) -> Chain:
        """The chain that goes on with one more step."""
        return replace(self, steps=(*self.steps, step), is_tracked=is_tracked)

    def run(self, batches: Iterable[pa.RecordBatch], send: Send) -> Iterator[pa.RecordBatch]:
        """TakeRows one task's input; ``send`` is called for each report at the end of it."""
        entered, tallies = list[Report](), list[Tally]()
        flow = self.entry.rows(batches, entered)
        for step in self.steps:
            # Copies are found where rows come from outside the chain; within it none can arise.
            tallies.append(Tally(step.name, finds_copies=self.entry.from_outside and not tallies))
            flow = _through(step.start(tallies[-1]), flow)
        for rows in flow:
            yield from _chunks(pack(rows) if self.is_tracked else rows.data)
        inits_first = sorted(entered, key=lambda report: report.inits is None)
        reports = itertools.chain(inits_first, (tally.report() for tally in tallies))
        self._note([send(report) for report in reports if not report.is_empty])

    def _note(self, results: Sequence[ReportResult | None]) -> None:
        if self.note_writer is None:
            return
        if any(result is not None and result.conflict for result in results):
            self.note_writer.write("conflict", self.tag)
        if not self.entry.from_outside:
            self.note_writer.write("read", self.tag)
        if not self.is_tracked:
            self.note_writer.write("end", self.tag)


def renamed(data: Any, names: Sequence[str]) -> Any:
    """A RecordBatch or Table with these names for its columns; with no names it is left as it is."""
    return data.rename_columns(list(names)) if names else data


def task_function(chain: Chain) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What Spark pickles and calls in each task."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return chain.run(batches, Sender(chain.settings, chain.note_writer))

    return run


class Sender:
    """Sends reports from inside a task and waits for each answer; grpc is loaded here and nowhere before.

    A server that is silent is left out only where that can be noted, so that the source leaves it out as well.
    """

    def __init__(self, settings: Settings, note_writer: NoteWriter | None = None) -> None:
        """``note_writer``: None for what the job's thread has handed down."""
        self._settings = settings
        self._note_writer = note_writer

    def __call__(self, report: Report) -> ReportResult:
        # A conflict (another attempt gave other rows) is no error of this task; the client logs it.
        from acker_client.client import shared_client

        client, pins = shared_client(self._settings), self._settings.pins
        writer = self._note_writer or note_writer_here()
        may_leave = writer is not None
        result = client.report_pinned(report.identity, report.entries, report.inits, pins, may_leave=may_leave)
        if writer is not None:
            for pin, server in itertools.product(pins, sorted(result.without)):
                writer.write("without", tag_of(pin), index=server)
        return result


def _through(take: TakeRows, flow: Iterator[Rows]) -> Iterator[Rows]:
    for rows in flow:
        yield from take(rows)


def _chunks(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if batch.num_rows <= 2 * BATCH_ROWS:
        yield batch
        return
    for start in range(0, batch.num_rows, BATCH_ROWS):
        yield batch.slice(start, BATCH_ROWS)
