"""Reads the records of a source as Spark rows, and reports which of them a task has emitted.

Decides the root ids of a batch's rows (``mix64(first + number)``) and their initial edges, and what a read task reports
(inits, and the range of numbers that it covered). A record that cannot be read is emitted and failed, and not passed to
the next step. The source decides where the records of each slice come from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from acker_client.cluster.scope import BatchScope
from acker_client.error_text import REASON_LENGTH_MAX
from acker_client.settings import Settings
from acker_client.spark.anchoring.anchors import THIN, TRACKING, Rows, reserved
from acker_client.spark.anchoring.tally import Report, Tally
from acker_client.spark.commit_evidence.batch import BatchEvidence, Once
from acker_client.spark.driver.columns import into_python
from acker_client.spark.operators.emit import Choosing, Emits, Emitter, Track, emits_of
from acker_client.spark.operators.flags import flagged
from acker_client.spark.plan_check import plan
from acker_client.spark.plan_check.fusing import AppliedChain, names_of, plan_chain, remember
from acker_client.spark.worker.chain import Chain
from acker_client.spark.worker.failed import RecordFailed
from acker_client.spark.worker.rows import struct_type
from acker_protocol.ids import Column

UNREADABLE = "unreadable"


@dataclass(slots=True)
class Records:
    """Some records of a slice, in order.

    ``numbers``: uint64[n], ascending, in the slice's range, each used once. ``columns``: n rows. ``unreadable``: maps
    the index of each row that cannot be read to the reason. The row fails with it, and its columns are ignored.
    """

    numbers: Column
    columns: pa.RecordBatch
    unreadable: dict[int, str] = field(default_factory=dict)


class Slice(Protocol):
    """One partition of a batch: the numbers from ``start`` up to ``stop``.

    An executor may read it more than once, and it must return the same records each time. Picklable; must import
    neither grpc nor pyspark.
    """

    @property
    def start(self) -> int: ...

    @property
    def stop(self) -> int: ...

    def read(self) -> Iterator[Records]: ...


@dataclass(frozen=True, slots=True)
class TrackedFrame:
    """A batch in Spark: ``df`` with columns ``_root`` and ``_edge``, and the evidence of what happened to its rows."""

    df: DataFrame
    evidence: BatchEvidence


def frame_of(
    spark: SparkSession,
    *,
    name: str,
    scope: BatchScope,
    schema: str | StructType,
    slices: Sequence[Slice],
    settings: Settings,
    once: Once | None = None,
    held: bool = True,
    description: str = "",
    track: Track = None,
) -> TrackedFrame:
    """Plan the reading of a batch, with one task for each slice.

    ``name``: the name of the source. ``schema``: the schema of ``Records.columns``. ``once``: what a run remembers
    for its later batches. ``held``: whether roots that are done wait until the batch is settled. ``description``: the
    batch as Spark's UI shows it, until it is released. ``track``: which records are tracked; None for all.
    """
    fields = struct_type(schema)
    taken = reserved(fields.names)
    if taken:
        raise ValueError(f"source {name!r}: the columns {', '.join(TRACKING)} are the acker's own; rename {taken[0]!r}")
    evidence = BatchEvidence(settings, spark, once, held=held)
    base = spark.range(0, len(slices), 1, max(1, len(slices)))
    chain = Chain(settings, Reading(scope, tuple(slices), emits_of(track, tracking=settings.tracking)))
    return planned(base, chain, name, fields, evidence, description, scope, track)


def planned(
    base: DataFrame,
    chain: Chain,
    name: str,
    fields: StructType,
    evidence: BatchEvidence,
    description: str = "",
    scope: BatchScope | None = None,
    track: Track = None,
) -> TrackedFrame:
    """Plan a batch of the source ``name``. ``chain`` turns the rows of ``base`` into the rows of the batch, which have
    these ``fields``. ``description`` and ``track``: as for ``frame_of``; ``track`` needs the ``scope``."""
    evidence.inspect = plan.inspect
    df, node = plan_chain(base, chain, "source", name, fields, THIN, (evidence,))
    if scope is not None and evidence.settings.tracking and isinstance(track, str | SparkColumn):
        ahead = flagged(df, track, "track")
        plan.guard(ahead, "track")
        base, names = into_python(ahead)
        chain = Chain(chain.settings, Choosing(scope, names))
        df, node = plan_chain(base, chain, "source", name, fields, THIN, (evidence,))
    remember(df, AppliedChain(base, chain, (evidence,), node.function, names_of(fields, THIN)))
    # Must come last: if planning raised after this line, nothing would take the settings back.
    evidence.begin_work(base.sparkSession, description)
    return TrackedFrame(df, evidence)


@dataclass(frozen=True, slots=True)
class Reading:
    """Start of a chain: reads the records of a source. Each input row is the index of a slice for the task to read.

    ``emits``: which records are tracked.
    """

    scope: BatchScope
    slices: tuple[Slice, ...]
    emits: Emits = "all"

    @property
    def from_outside(self) -> bool:
        return False

    def rows(self, batches: Iterable[pa.RecordBatch], reports: list[Report]) -> Iterator[Rows]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                yield from self._read(self.slices[index], reports)

    def _read(self, part: Slice, reports: list[Report]) -> Iterator[Rows]:
        emitter, unreadable = Emitter(self.scope, self.emits), Tally(UNREADABLE)
        after = part.start - 1
        for records in part.read():
            _check_numbers(records, part, after)
            after = int(records.numbers[-1]) if len(records.numbers) else after
            numbers, columns = records.numbers, records.columns
            if records.unreadable:
                numbers, columns = _readable(records, emitter, unreadable)
            yield Rows(columns, emitter.emit(numbers, columns))
        # One report per slice, so that the reports do not depend on how Spark assigns slices to tasks.
        reports += [*emitter.reports([(part.start, part.stop)]), unreadable.report()]


def _check_numbers(records: Records, part: Slice, after: int) -> None:
    """Check the numbers of ``records``, which come after the number ``after``. Raises ValueError."""
    numbers = records.numbers
    if len(numbers) != records.columns.num_rows:
        raise ValueError(f"{part!r} gave {len(numbers)} numbers for {records.columns.num_rows} rows")
    # A repeated number would cancel its own initial edge, and a tree without open edges counts as done.
    if len(numbers) and not (after < int(numbers[0]) and np.all(numbers[1:] > numbers[:-1])):
        raise ValueError(f"{part!r} gave numbers that do not ascend")
    if len(numbers) and int(numbers[-1]) >= part.stop:
        raise ValueError(f"{part!r} gave a number outside its range of {part.start} up to {part.stop}")


def _readable(records: Records, emitter: Emitter, unreadable: Tally) -> tuple[Column, pa.RecordBatch]:
    """Fail the records that could not be read. Return the numbers and columns of the others. Raises ``RecordFailed`` if
    tracking is off."""
    rows = np.fromiter(sorted(records.unreadable), np.int64, len(records.unreadable))
    reasons = [records.unreadable[row][:REASON_LENGTH_MAX] for row in rows.tolist()]
    if not emitter.tracking:
        raise RecordFailed(f"a record cannot be read: {reasons[0]}")
    failed = emitter.emit_tracked(records.numbers[rows])
    unreadable.consume(failed, np.zeros(len(rows), np.uint64))
    for root, reason in zip(failed.roots.tolist(), reasons, strict=True):
        unreadable.fail(root, reason, UNREADABLE)
    mask = np.ones(len(records.numbers), np.bool_)
    mask[rows] = False
    kept: Any = records.columns.filter(pa.array(mask))
    return records.numbers[mask], kept
