"""Emitted frames: a user's own DataFrame whose rows are emissions of a plain source (``OpenSource.frame``).

The driver emits one root for each row. The task that reads a row turns the root's initial edge into an edge that holds
the row's digest, and reports this at the end of its partition. So nothing that is done with a row counts before its
partition was read to the end, and two readings that find different rows never add up to an ACK. ``persisted`` decides
how rows are numbered and kept.

These rows are not held. Nothing settles them: an edge that is consumed twice, by copies of a row in two tasks, could
end its tree too early. So the plan guard also checks what leaves SQL, and what gets an ``ack()`` column.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from acker_client.clean_up import CleanUp
from acker_client.open_source import OpenSource
from acker_client.settings import Settings
from acker_client.spark.anchoring.anchors import Anchors, Positions, Rows
from acker_client.spark.anchoring.derive import batch_of
from acker_client.spark.anchoring.pages import PARTITION_SHIFT, OtherRows, Pages, Runs, place_of
from acker_client.spark.anchoring.tally import Report, Tally
from acker_client.spark.anchoring.zones import in_utc
from acker_client.spark.commit_evidence.acked import Acked
from acker_client.spark.commit_evidence.batch import BatchEvidence, NotHeld
from acker_client.spark.driver.persisted import Persisted, refuse
from acker_client.spark.driver.session import PINS, TASK_TRACKING, TRACKS, SessionError, check_packages, hand_down
from acker_client.spark.driver.task_columns import check_refusal, note_plain_frame
from acker_client.spark.operators.emit import READ, initial_edges
from acker_client.spark.operators.read import planned
from acker_client.spark.operators.read_frame import checked_rows, refuse_columns, rows_of_persisted
from acker_client.spark.plan_check import plan
from acker_client.spark.worker.chain import Chain
from acker_protocol.ids import Column, edge0_column, mix64_column, unmix64_column

log = logging.getLogger("acker.spark")

_INSTEAD = (
    "To ack them as soon as a function has worked on them, write them in an @acker_udf, or in foreachPartition with a"
    " Collector. To ack them once Spark has written them, read them with acker_client.source, as Frame(df, name=...)"
)


def frame_of_source(source: OpenSource, df: Any, message_id: str | Sequence[str] | None) -> DataFrame:
    """Emit a record for each row of ``df``, and return the rows with their anchors. See ``OpenSource.frame``."""
    check_packages()
    columns = _checked(source.name, df, message_id)
    persisted = Persisted(df)
    with CleanUp() as undo:
        undo.add(persisted.unpersist)
        persisted.persist()
        evidence = EmittedRows(replace(source.settings, pins=()), persisted.spark)
        ids = MessageIdColumns(persisted, columns) if columns else None
        release = _Release(persisted, evidence)
        rows = int(persisted.pages.rows.sum())
        roots, _ = source._emit_block(rows, ids, release)
        chain = Chain(
            evidence.settings, EmittedReading(tuple(df.columns), _runs(persisted.pages, roots), persisted.pages)
        )
        base = persisted.read(persisted.pages.ids)
        frame = planned(base, chain, source.name, persisted.schema, evidence).df
        undo.pop_all()
    if not rows:
        release()
    return frame


def _checked(name: str, df: Any, message_id: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the columns of the message id. Raises if the frame cannot be emitted."""
    if problem := refuse(df):
        raise TypeError(f"source {name!r}: {problem}")
    if problem := refuse_columns(df.columns):
        raise ValueError(f"source {name!r}: {problem}")
    columns = () if message_id is None else (message_id,) if isinstance(message_id, str) else tuple(message_id)
    missing = [column for column in columns if column not in df.columns]
    if missing:
        raise ValueError(
            f"source {name!r}: message_id={missing[0]!r} is no column of the frame; it has {', '.join(df.columns)}"
        )
    spark = df.sparkSession
    local = spark.sparkContext.getLocalProperty
    if "false" in (local(TASK_TRACKING), spark.conf.get(TRACKS, "true").lower()):
        raise SessionError(
            f"source {name!r}: frame() is called where tracking is off, by {TRACKS} or by the source whose batch this"
            " thread works on: turn it on, or call frame() in another session or thread"
        )
    if (local(PINS) or "[]") != "[]":
        raise SessionError(
            f"source {name!r}: frame() is called while this thread works on a batch of another source: call it in a"
            " thread of its own, or before"
        )
    return columns


def _runs(pages: Pages, roots: Column) -> Runs:
    """Return the runs of consecutive numbers of all rows, in the order of partitions and rows."""
    numbers = unmix64_column(roots).view(np.int64)
    places, firsts = list[Positions](), list[int]()
    for part in _all_rows(pages):
        # Emissions of other threads may lie between.
        cuts = np.flatnonzero(np.diff(numbers[part.start : part.stop]) != 1) + 1
        for piece in np.split(part.rows, cuts):
            places.append(piece + place_of(part.partition, 0))
            firsts.append(int(numbers[part.start + int(piece[0])]))
    return Runs.of(places, firsts)


class EmittedRows(BatchEvidence):
    """The driver's knowledge of an emitted frame. Nothing is settled, so it is never asked for evidence."""

    def __init__(self, settings: Settings, spark: SparkSession) -> None:
        super().__init__(settings, spark, held=False)
        note_plain_frame(self)

    def begin_work(self, spark: SparkSession, description: str) -> None:
        # Neither a job tag nor a description: the jobs are the program's own, in threads that this source cannot
        # restore, and nothing cancels them.
        self._take_back = (hand_down(spark, self.settings),)

    def not_held(self, what: str) -> NotHeld:
        return NotHeld(what, f"a plain source has emitted them. {_INSTEAD}")

    @property
    def hand_on_problem(self) -> str:
        return f"a plain source has emitted these rows, and its servers are not known behind a topic. {_INSTEAD}"

    def take_rows(self, df: DataFrame, taker: str, functions: Sequence[str], calls: str) -> None:
        for function in functions:
            check_refusal(function)
        plan.mark_acked(plan.inspect(df, taker), calls)

    def add_acked_frame(self, acked: Acked) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class _Release:
    """Releases the persisted rows when each of them has its outcome."""

    persisted: Persisted
    evidence: EmittedRows

    def __call__(self) -> None:
        # Called by the thread that reads outcomes, which has to go on even if the session has ended.
        try:
            self.evidence.release()
            self.persisted.unpersist()
        except Exception as error:  # noqa: BLE001
            log.warning("an emitted frame could not be unpersisted: %s", error)


class MessageIdColumns(Sequence[Any]):
    """The values of these ``columns`` in the order of partitions and rows, as message ids."""

    def __init__(self, persisted: Persisted, columns: tuple[str, ...]) -> None:
        self._values = rows_of_persisted(persisted, _all_rows(persisted.pages), columns)
        self._is_one = len(columns) == 1

    def __len__(self) -> int:
        return int(self._values.num_rows)

    def __getitem__(self, index: Any) -> Any:
        values = tuple(column[index].as_py() for column in self._values.columns)
        return values[0] if self._is_one else values


@dataclass(frozen=True, slots=True, eq=False)
class _Partition:
    """All rows of one partition, with the numbers from ``start`` up to ``stop``."""

    start: int
    stop: int
    partition: int
    rows: Positions


def _all_rows(pages: Pages) -> list[_Partition]:
    found, at = list[_Partition](), 0
    for partition, own in pages.partitions().items():
        count = int(own.rows.sum())
        found.append(_Partition(at, at + count, partition, np.arange(count)))
        at += count
    return found


@dataclass(frozen=True, slots=True)
class EmittedReading:
    """Entry of a chain that reads an emitted frame. ``names``: the columns of the frame. ``runs``: the numbers of the
    emissions by place. ``pages``: the pages as they were counted."""

    names: tuple[str, ...]
    runs: Runs
    pages: Pages

    @property
    def from_outside(self) -> bool:
        return False

    def rows(self, batches: Iterable[pa.RecordBatch], reports: list[Report]) -> Iterator[Rows]:
        read = Tally(READ)
        for batch, places, digests in checked_rows(batches, self.pages):
            _, numbers = self.runs.number_places(places)
            if len(numbers) < len(places):
                raise OtherRows(f"partition {int(places[0]) >> PARTITION_SHIFT} has more rows than it had")
            roots = mix64_column(numbers.view(np.uint64))
            anchors = Anchors(roots, initial_edges(roots, digests))
            read.consume(Anchors(roots, edge0_column(roots)), anchors.edges)
            yield Rows(in_utc(batch_of(batch.columns[:-2], list(self.names), batch.num_rows)), anchors)
        reports.append(read.report())
