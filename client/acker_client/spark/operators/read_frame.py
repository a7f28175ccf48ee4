"""Reads the rows of a batch from a user's own DataFrame.

Decides the root ids (by number, as with every source) and the initial edges. The initial edge of a row includes the
row's digest. Two readings that find different rows under a number therefore never add up to an ACK. A task that reads
other rows than were counted fails before it has reported anything. The module ``persisted`` decides where a frame is
kept and how its rows are numbered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
from pyspark.sql.types import LongType, StructField, StructType

from acker_client.cluster.scope import BatchScope
from acker_client.settings import Settings
from acker_client.spark.anchoring.anchors import TRACKING, Positions, Rows, reserved
from acker_client.spark.anchoring.derive import batch_of
from acker_client.spark.anchoring.pages import PARTITION_SHIFT, OtherRows, PageCheck, Pages, Runs, place_of
from acker_client.spark.anchoring.tally import Report
from acker_client.spark.anchoring.zones import in_utc
from acker_client.spark.commit_evidence.batch import BatchEvidence, Once
from acker_client.spark.driver.persisted import DIGEST, PLACE, Persisted
from acker_client.spark.operators.emit import Emits, Emitter, Track, emits_of
from acker_client.spark.operators.read import TrackedFrame, planned
from acker_client.spark.worker.chain import Chain
from acker_protocol.ids import Column

# The column with the number of a row.
NUMBER = "acker_number"


class ChosenRows(Protocol):
    """Rows of one partition that get the numbers ``start`` to ``stop - 1`` of a batch.

    ``rows``: int64, ascending positions in ``partition``.
    """

    @property
    def start(self) -> int: ...
    @property
    def stop(self) -> int: ...
    @property
    def partition(self) -> int: ...
    @property
    def rows(self) -> Positions: ...


def refuse_columns(names: Sequence[str]) -> str:
    """Return why a frame with these columns cannot be tracked; "" if it can be tracked."""
    taken = reserved(names)
    return f"the columns {', '.join(TRACKING)} are the acker's own; rename {taken[0]!r}" if taken else ""


def frame_of_persisted(
    persisted: Persisted,
    *,
    name: str,
    scope: BatchScope,
    slices: Sequence[ChosenRows],
    settings: Settings,
    once: Once | None = None,
    held: bool = True,
    description: str = "",
    track: Track = None,
) -> TrackedFrame:
    """Plan the reading of a batch from a persisted frame. For the other arguments see ``read.frame_of``."""
    spark = persisted.spark
    evidence = BatchEvidence(settings, spark, once, held=held)
    runs = _runs_of(slices)
    pages = persisted.pages.some(runs.pages())
    base = persisted.read(pages.ids)
    ranges = tuple((each.partition, each.start, each.stop) for each in slices)
    names = tuple(persisted.schema.names)
    emits = emits_of(track, tracking=settings.tracking)
    chain = Chain(settings, FrameReading(scope, names, runs, pages, ranges, emits))
    return planned(base, chain, name, persisted.schema, evidence, description, scope, track)


def rows_of_persisted(persisted: Persisted, slices: Sequence[ChosenRows], columns: Sequence[str]) -> pa.Table:
    """Return these ``columns`` of the rows of ``slices``, in order, to show them to people.

    Raises :class:`OtherRows`, directly or wrapped in an error of Spark.
    """
    runs = _runs_of(slices)
    pages = persisted.pages.some(runs.pages())
    indices = [persisted.schema.names.index(column) for column in columns]
    read = persisted.read(pages.ids).select(*(f"_{index}" for index in indices), PLACE, DIGEST)
    fields = [*read.schema.fields[:-2], StructField(NUMBER, LongType())]
    found = read.mapInArrow(_picking(runs, pages), StructType(fields)).toArrow()
    numbers = found.column(NUMBER).to_numpy()
    wanted = sum(each.stop - each.start for each in slices)
    if len(numbers) != wanted:
        raise OtherRows(f"{wanted} rows were expected, and {len(numbers)} were found")
    picked = found.drop_columns([NUMBER]).take(pa.array(np.argsort(numbers)))
    return picked.rename_columns(list(columns))


def _picking(runs: Runs, pages: Pages) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a task function that keeps only the rows of ``runs``, and adds their numbers."""

    def pick(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch, places, _ in checked_rows(batches, pages):
            kept, numbers = runs.number_places(places)
            columns = [column.take(pa.array(kept)) for column in batch.columns[:-2]]
            names = [*batch.schema.names[:-2], NUMBER]
            yield pa.RecordBatch.from_arrays([*columns, pa.array(numbers)], names=names)

    return pick


def checked_rows(batches: Iterable[pa.RecordBatch], pages: Pages) -> Iterator[tuple[pa.RecordBatch, Positions, Column]]:
    """Yield the non-empty batches of a task, with the places and digests of their rows.

    Raises ``OtherRows`` if the rows differ from the counted rows, or if at the end rows of the partition are missing.
    """
    check, partition = PageCheck(pages), -1
    for batch in batches:
        if batch.num_rows:
            places, digests = _places_of(batch)
            check.count_rows(places, digests)
            partition = int(places[0]) >> PARTITION_SHIFT
            yield batch, places, digests
    if partition >= 0:
        check.check_partition(partition)


def _runs_of(slices: Sequence[ChosenRows]) -> Runs:
    places = [each.rows + place_of(each.partition, 0) for each in slices]
    return Runs.of(places, [each.start for each in slices])


def _places_of(batch: pa.RecordBatch) -> tuple[Positions, Column]:
    """Return the last two columns: places and digests."""
    places, digests = (batch.column(batch.num_columns - back).to_numpy() for back in (2, 1))
    return places, digests.view(np.uint64)


@dataclass(frozen=True, slots=True)
class FrameReading:
    """Entry of a chain that reads whole pages of a persisted frame.

    ``names``: the columns of the frame. ``pages``: the pages as they were counted. ``ranges``: (partition, start, stop)
    of the batch's numbers. ``emits``: which records are tracked.
    """

    scope: BatchScope
    names: tuple[str, ...]
    runs: Runs
    pages: Pages
    ranges: tuple[tuple[int, int, int], ...]
    emits: Emits = "all"

    @property
    def from_outside(self) -> bool:
        return False

    def rows(self, batches: Iterable[pa.RecordBatch], reports: list[Report]) -> Iterator[Rows]:
        emitter, partition = Emitter(self.scope, self.emits), -1
        for batch, places, found in checked_rows(batches, self.pages):
            partition = int(places[0]) >> PARTITION_SHIFT
            kept, numbers = self.runs.number_places(places)
            columns = in_utc(batch_of(batch.columns[:-2], list(self.names), batch.num_rows))
            digests = found
            if len(kept) < len(places):
                columns, digests = columns.take(pa.array(kept)), found[kept]
            anchors = emitter.emit(numbers.view(np.uint64), columns, digests)
            if len(kept):
                yield Rows(columns, anchors)
        # A task without rows does not know its partition. Its numbers are not covered, and so they become LOST.
        if partition >= 0:
            reports += emitter.reports((start, stop) for owner, start, stop in self.ranges if owner == partition)
