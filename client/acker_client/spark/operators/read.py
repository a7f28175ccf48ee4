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
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from acker_client.cluster.scope import BatchScope
from acker_client.error_text import REASON_LENGTH_MAX
from acker_client.settings import Settings
from acker_client.spark.anchoring.anchors import EDGE, ROOT, TRACKING, Anchors, Rows, reserved
from acker_client.spark.anchoring.tally import Report, Tally
from acker_client.spark.commit_evidence.batch import BatchEvidence, Once
from acker_client.spark.driver.session import hand_down
from acker_client.spark.plan_check.fusing import AppliedChain, plan_chain, remember
from acker_client.spark.worker.chain import Chain
from acker_client.spark.worker.rows import struct_type
from acker_protocol.ids import Column, edge0_column, identity_term, root_ids
from acker_protocol.messages import InitScope

READ = "read"
UNREADABLE = "unreadable"


@dataclass(slots=True)
class Records:
    """Some records of a slice, in order.

    ``numbers``: uint64[n], ascending, in the slice's range, each used once. ``columns``: n rows. ``unreadable``: the
    reason by row index. Such a row fails with that reason, and its columns are ignored.
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
    """A batch in Spark: ``df`` with thin anchors, and the evidence of what happened to its rows."""

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
) -> TrackedFrame:
    """Plan the reading of a batch, with one task for each slice.

    ``name``: the name of the source. ``schema``: the schema of ``Records.columns``. ``once``: shared by the batches of
    a run. ``held``: whether roots that are done wait until the batch is settled.
    """
    fields = struct_type(schema)
    taken = reserved(fields.names)
    if taken:
        raise ValueError(f"source {name!r}: the columns {', '.join(TRACKING)} are the acker's own; rename {taken[0]!r}")
    evidence = BatchEvidence(settings, spark, once, held=held)
    base = spark.range(0, len(slices), 1, max(1, len(slices)))
    chain = Chain(settings, Reading(scope, tuple(slices)))
    return planned(base, chain, name, fields, evidence)


def planned(base: DataFrame, chain: Chain, name: str, fields: StructType, evidence: BatchEvidence) -> TrackedFrame:
    """Plan a batch of the source ``name``. ``chain`` makes rows with these ``fields`` from the rows of ``base``."""
    df, _ = plan_chain(base, chain, "source", name, fields, (ROOT, EDGE), (evidence,))
    remember(df, AppliedChain(base, chain, (evidence,)))
    # Must come last: if planning raises, there is nothing to take back.
    evidence.take_back = hand_down(base.sparkSession, evidence.settings)
    return TrackedFrame(df, evidence)


@dataclass(frozen=True, slots=True)
class Reading:
    """Entry of a chain that reads a source. Each input row is the index of a slice that the task has to read."""

    scope: BatchScope
    slices: tuple[Slice, ...]

    @property
    def from_outside(self) -> bool:
        return False

    def rows(self, batches: Iterable[pa.RecordBatch], reports: list[Report]) -> Iterator[Rows]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                yield from self._read(self.slices[index], reports)

    def _read(self, part: Slice, reports: list[Report]) -> Iterator[Rows]:
        emitted, unreadable = Tally(READ), Tally(UNREADABLE)
        after = part.start - 1
        for records in part.read():
            roots = self._roots_of(records, part, after)
            after = int(records.numbers[-1]) if len(roots) else after
            anchors = Anchors(roots, edge0_column(roots))
            emitted.consume(anchors, np.zeros(len(roots), np.uint64))
            yield _readable(records, anchors, unreadable) if records.unreadable else Rows(records.columns, anchors)
        # One report per slice, so that the reports do not depend on how Spark assigns slices to tasks.
        reports += [self._inits(emitted, part), unreadable.report()]

    def _roots_of(self, records: Records, part: Slice, after: int) -> Column:
        numbers = records.numbers
        if len(numbers) != records.columns.num_rows:
            raise ValueError(f"{part!r} gave {len(numbers)} numbers for {records.columns.num_rows} rows")
        # A repeated number would cancel its own initial edge, and a tree without open edges counts as done.
        if len(numbers) and not (after < int(numbers[0]) and np.all(numbers[1:] > numbers[:-1])):
            raise ValueError(f"{part!r} gave numbers that do not ascend")
        if len(numbers) and int(numbers[-1]) >= part.stop:
            raise ValueError(f"{part!r} gave a number outside its range of {part.start} up to {part.stop}")
        return root_ids(self.scope.first, numbers)

    def _inits(self, emitted: Tally, part: Slice) -> Report:
        # The salt gives the reports of different empty slices different identities.
        scope = self.scope
        report = emitted.report(salt=identity_term(scope.first + part.start, scope.first + part.stop))
        covered = np.array([[part.start, part.stop]], np.uint64)
        return Report(report.identity, report.entries, InitScope(scope.session, scope.number, covered))


def _readable(records: Records, anchors: Anchors, unreadable: Tally) -> Rows:
    """Fail the records that could not be read; return the others."""
    rows = np.fromiter(sorted(records.unreadable), np.int64, len(records.unreadable))
    failed = Anchors(anchors.roots[rows], anchors.edges[rows])
    unreadable.consume(failed, np.zeros(len(rows), np.uint64))
    for row in rows.tolist():
        reason = records.unreadable[row][:REASON_LENGTH_MAX]
        unreadable.fail(int(anchors.roots[row]), reason, UNREADABLE)
    mask = np.ones(len(anchors.roots), np.bool_)
    mask[rows] = False
    kept: Any = records.columns.filter(pa.array(mask))
    return Rows(kept, Anchors(anchors.roots[mask], anchors.edges[mask]))
