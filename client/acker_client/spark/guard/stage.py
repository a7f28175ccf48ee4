"""Stage: what one Python task of Spark does: steps one after the other over the rows it is given, and their reports.

Decides the order of things in a task. Rows flow through the steps batch by batch; when the input is exhausted, and
never before, every step reports for itself, inits before updates, and the task waits for the answers before it ends. A
task that dies, is closed early or raises has reported nothing. Each step counts for itself, so a stage of three steps
reports, edge for edge, what three stages of one step would. What steps do to rows is theirs to say (``operators``,
``stock``, ``sink``); what stands between stages is the guard's (``plan``).

Nothing here that is pickled holds a channel: a stage carries settings, and the client is made inside the task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from acker_client.core.delivery import ReportResult
from acker_client.settings import Settings
from acker_client.spark.core.anchors import ANCHORS, EDGE, ROOT, THIN, TRACKING, Rows, pack, unpack
from acker_client.spark.core.tally import Report
from acker_client.spark.driver import lineage
from acker_client.spark.driver.columns import into_python, renamed
from acker_client.spark.evidence import acked
from acker_client.spark.guard import plan
from acker_client.spark.task.notes import Pen, notebook_of
from acker_client.spark.task.rows import struct_type

# A batch that a step has made large is handed to Spark in pieces of so many rows.
BATCH_ROWS = 1 << 16

_ATTRIBUTE = "_acker_stage"

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

    A sink's stage notes the end of each of its tasks, and any stage that another attempt has reported something else.
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
        if self.pen is not None and not self.is_tracked:
            self.pen.write("end", self.tag)


@dataclass(frozen=True, slots=True)
class Applied:
    """A stage and the frame it was applied to: what a frame of the library's carries, for the next step to join in.

    Holds the records of its batches, so that the guard knows the frame as long as the frame lives.
    """

    base: DataFrame
    stage: Stage
    records: tuple[Any, ...]


def apply(df: DataFrame, step: Step, kind: str, schema: StructType) -> DataFrame:
    """Plan ``step`` over ``df``: the frame of what it makes, in one stage with the steps before it where they touch.

    ``schema``: of what comes out, without tracking columns. Raises ``plan.Refused`` when the rows of ``df`` are not
    exactly those of the stage before.
    """
    return apply_known(df, plan.guard(df, step.name, kind=kind), step, kind, schema)


def apply_known(df: DataFrame, upstream: plan.Upstream, step: Step, kind: str, schema: StructType) -> DataFrame:
    """As :func:`apply`, for a frame that the guard has let through already as ``upstream``."""
    applied = applied_to(df) or arriving(df, upstream)
    return extend(applied, upstream, step, kind, schema)


def arriving(df: DataFrame, upstream: plan.Upstream) -> Applied:
    """A stage that begins with the rows of ``df``."""
    records: tuple[Any, ...] = upstream.records
    base, names = into_python(df)
    return Applied(base, Stage(records[0].settings, Arriving(names)), records)


def extend(applied: Applied, upstream: plan.Upstream, step: Step, kind: str, schema: StructType) -> DataFrame:
    """The frame of ``applied`` with one more step. ``upstream`` says what columns and boundaries it has."""
    stage = applied.stage.then(step)
    moving = upstream.moving_boundaries
    columns, records = upstream.columns, applied.records
    out, _ = plan_stage(applied.base, stage, kind, step.name, schema, columns, records, moving_boundaries=moving)
    remember(out, Applied(applied.base, stage, records))
    return out


def plan_stage(
    base: DataFrame,
    stage: Stage,
    kind: str,
    name: str,
    schema: StructType,
    columns: tuple[str, ...],
    records: tuple[object, ...],
    *,
    moving_boundaries: bool = False,
) -> tuple[DataFrame, lineage.Node]:
    """Put ``stage`` into the plan of ``base`` under a name by which the guard knows it."""
    node = lineage.register(kind, name, *records, moving_boundaries=moving_boundaries)
    notebook = notebook_of(base.sparkSession.sparkContext)
    notebook.keep(node.tag)
    function = task_function(replace(stage, tag=node.tag, pen=notebook.pen))
    function.__name__ = node.function
    fields = [*schema.fields, *tracking_fields(columns)] if stage.is_tracked else schema.fields
    df = acked.plain(base).mapInArrow(function, StructType(fields))
    return acked.of_body(df, records[0]) if stage.is_tracked else df, node


def remember(df: DataFrame, applied: Applied) -> None:
    """Note on a frame how it was made. A frame that the user derives from it does not have the note."""
    setattr(df, _ATTRIBUTE, applied)


def applied_to(df: DataFrame) -> Applied | None:
    """How ``df`` was made, when the next step may join in: it is the library's own frame, and not cached."""
    applied = vars(df).get(_ATTRIBUTE)
    if not isinstance(applied, Applied) or df.is_cached:
        return None
    level = df.storageLevel
    return None if level.useMemory or level.useDisk else applied


def tracking_fields(columns: tuple[str, ...]) -> list[StructField]:
    """The tracking columns of what is made of a frame with these: thin, or else packed."""
    if columns == THIN:
        return [StructField(ROOT, LongType()), StructField(EDGE, LongType())]
    return [StructField(ANCHORS, BinaryType())]


def user_schema(df: DataFrame) -> StructType:
    """Schema of ``df`` without its tracking columns."""
    return struct_type(StructType([field for field in df.schema.fields if field.name not in TRACKING]))


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
        from acker_client.plain.client import of_process

        return of_process(self._settings).report(report.identity, report.entries, report.inits)


def _through(run: Run, flow: Iterator[Rows]) -> Iterator[Rows]:
    for rows in flow:
        yield from run.take(rows)


def _chunks(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if batch.num_rows <= 2 * BATCH_ROWS:
        yield batch
        return
    for start in range(0, batch.num_rows, BATCH_ROWS):
        yield batch.slice(start, BATCH_ROWS)
