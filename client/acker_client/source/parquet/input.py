"""Plans the rows of Parquet files. Runs in the driver.

A file is a partition, and the position of a row is its index in the file. A part is a row group, or as many of its rows
as fit into a batch. A file must not change while it is read. ``places`` decides which files there are, and ``rows``
reads them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from acker_client.source.decoding.content import NotHere
from acker_client.source.errors import FIX, CheckpointError, InputChanged
from acker_client.source.parquet.places import place_of
from acker_client.source.parquet.rows import (
    Footer,
    NoParquet,
    RowContent,
    RowPart,
    RowSlice,
    check_columns,
    check_same,
    originals_of,
    read_footer,
)
from acker_client.source.paths import Paths, origins_of
from acker_client.source.records.balance import sliced
from acker_client.source.records.input import Chosen, Committed, Mark, Original, Plan
from acker_client.source.records.ranges import Ranges
from acker_client.source.storage.objects import Backlog, Objects
from acker_client.source.storage.reach import Reach
from acker_client.source.waiting import OutOfReach

log = logging.getLogger("acker_client.source")


class ParquetInput:
    """Rows of Parquet files as an ``Input``, in columns of ``schema``.

    ``filesystem``: the filesystem of pyarrow that the paths are in; None: local files, or what their URLs say.
    ``follow_s``: the interval at which the paths are listed again, for new files; None: the files are read once.
    ``clock``: monotonic seconds.
    """

    kind = "parquet"

    def __init__(
        self,
        paths: Paths,
        schema: pa.Schema,
        *,
        filesystem: Any = None,
        own_files: Sequence[Path | str] = (),
        follow_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.schema = schema
        self._paths = paths
        self._follow_s = follow_s
        self._clock = clock
        self._listed_s = 0.0
        self._place = place_of(paths, filesystem, own_files, may_be_none=follow_s is not None)
        self._reach = Reach(self._place.store, self._place.patterns, clock)
        self._backlog = Backlog(Objects.of([]))
        # By partition: where in the list an opened file is that is not done, and what the checkpoint says of a file.
        self._open: dict[str, int] = {}
        self._marks: dict[str, Mark] = {}
        # Where a file begins that was begun in an earlier run.
        self._prefixes: dict[str, int] = {}
        # Partitions that were opened for the records of the next batch.
        self._fresh: set[str] = set()
        self._parts: Iterator[RowPart] | None = None
        self._left: RowPart | None = None

    def start(self, committed: Mapping[str, Committed]) -> None:
        self._reach.begin(lambda: self._start(committed))
        if not len(self._backlog.known):
            log.warning("Parquet: there is no file in %r yet; looking for one every %g s", self._paths, self._follow_s)

    def plan(self, records_max: int, tasks: int) -> Plan[RowPart]:
        parts: list[RowPart] = []
        if not self._reach.may_ask():
            return Plan()
        room = records_max
        try:
            while room > 0 and (part := self._left or self._next_part()) is not None:
                taken, self._left = _cut_part(part, room)
                parts.append(taken)
                room -= taken.stop - taken.start
        except OutOfReach as error:
            self._parts = None
            self._reach.note_away(error)
            return Plan(parts)
        return Plan(parts, is_end=not parts and self._follow_s is None)

    def is_reachable(self) -> bool:
        return self._reach.is_reachable()

    def slices(self, chosen: Sequence[Chosen[RowPart]], tasks: int) -> list[RowSlice]:
        for part in {each.part.partition: each.part for each in chosen}.values():
            # An executor meets a store that is away again, and waits for it.
            with suppress(OutOfReach):
                if part.partition not in self._fresh:
                    check_same(part)
        self._fresh.clear()
        return sliced(chosen, tasks, lambda start, stop, some: RowSlice(start, stop, some, self.schema))

    def origins(self, chosen: Sequence[Chosen[RowPart]]) -> pa.RecordBatch:
        return origins_of([(each.part.shown, each.positions) for each in chosen], "row")

    def originals(self, chosen: Sequence[Chosen[RowPart]]) -> list[Original]:
        return [original for each in chosen for original in originals_of(each, self.schema)]

    def advance(self, partition: str, done: Ranges) -> None:
        if partition in self._open and done.prefix >= self._marks[partition]["rows"]:
            self._backlog.is_done[self._open.pop(partition)] = True

    def mark(self, partition: str, done: Ranges) -> Mark:
        return self._marks[partition]

    def describe(self, done: Mapping[str, Ranges]) -> str:
        known, is_done = self._backlog.known, self._backlog.is_done
        total, left = len(known), int(np.count_nonzero(~is_done))
        if not left:
            end = "end of the input" if self._follow_s is None else "all that is there so far"
            return f"{end} ({total} {'file' if total == 1 else 'files'})"
        first = known[int(np.argmin(is_done))]
        at = f", {self._place.shown(first)} to row {done.get(first, Ranges()).prefix}" if first in self._marks else ""
        return f"{total - left} of {total} files{at}"

    def close(self) -> None:
        """Close the open file, and end the threads that open the next objects."""
        self._parts = self._left = None

    # -- which files there are

    def _start(self, committed: Mapping[str, Committed]) -> None:
        listed = self._list()
        self._backlog = Backlog(listed)
        self._open, self._marks, self._prefixes, self._fresh = {}, {}, {}, set()
        self._parts = self._left = None
        for (partition, each), place in zip(committed.items(), listed.places_of(committed).tolist(), strict=True):
            rows = _rows_of(partition, each)
            is_complete = each.done.prefix >= rows
            if place < 0 and not is_complete:
                raise CheckpointError(
                    f"{partition} was read to row {each.done.prefix} only, and is not among the files any more: bring"
                    " it back, or remove the checkpoint to read the input from its beginning"
                )
            self._marks[partition] = each.mark
            if place >= 0:
                self._refuse_changed(partition, listed, place)
                self._backlog.is_done[place] = is_complete
                self._prefixes |= {} if is_complete else {partition: each.done.prefix}

    def _list(self) -> Objects:
        listed = self._place.list()
        self._listed_s = self._clock()
        return listed

    def _refuse_changed(self, partition: str, listed: Objects, place: int) -> None:
        """Raise ``CheckpointError`` if a file is not the one that the checkpoint describes."""
        mark = self._marks[partition]
        listing = (int(listed.sizes[place]), int(listed.modified_ns[place]))
        # A local file may be written anew without a change of its time.
        if self._place.store is not None and (mark.get("size"), mark.get("modified_ns")) == listing:
            return
        if not self._place.is_same(partition, str(mark["digest"])):
            raise CheckpointError(f"{self._place.shown(partition)} is not what it was when its rows were read: {FIX}")

    def _list_again(self) -> None:
        """Find new files. Raises ``InputChanged`` if a known file has changed, because its new rows would never be
        read."""
        listed, known = self._list(), self._backlog.known
        places = listed.places_of_all(known)
        for index in np.flatnonzero(known.differ(listed, places)).tolist():
            partition = known[index]
            if index in self._backlog.unfinished:
                self._backlog.again.add(index)
            elif partition in self._marks:
                self._refuse_other(partition)
        new = known.take_over(listed, places)
        # A file may come back that was done in an earlier run, and was away when this one began.
        is_done = np.array([self._is_back(new[index]) for index in range(len(new))], np.bool_)
        self._backlog.add(new, is_done)

    def _is_back(self, partition: str) -> bool:
        if partition not in self._marks:
            return False
        self._refuse_other(partition)
        return True

    def _refuse_other(self, partition: str) -> None:
        if not self._place.is_same(partition, str(self._marks[partition]["digest"])):
            raise InputChanged(f"{self._place.shown(partition)} is not what it was when its rows were read: {FIX}")

    # -- their rows

    def _next_part(self) -> RowPart | None:
        if self._parts is None:
            self._parts = self._walk()
        part = next(self._parts, None)
        if part is None and self._follow_s is not None and self._clock() - self._listed_s >= self._follow_s:
            self._list_again()
            self._parts = self._walk()
            part = next(self._parts, None)
        self._reach.note_answer()
        return part

    def _walk(self) -> Iterator[RowPart]:
        """Yield the row groups that are not planned yet."""
        for index, found in self._place.each(self._footer_at, self._backlog):
            partition = self._backlog.known[index]
            if isinstance(found, Exception):
                self._note_unreadable(index, found)
            else:
                yield from self._groups(index, partition, *found)
            self._backlog.note_opened(index)

    def _footer_at(self, index: int) -> tuple[RowContent, Footer] | NoParquet | NotHere:
        partition = self._backlog.known[index]
        shown = self._place.shown(partition)
        try:
            content, footer = read_footer(self._place.content(partition), shown)
        except (NoParquet, NotHere) as error:
            return error
        return content, footer

    def _note_unreadable(self, index: int, error: NoParquet | NotHere) -> None:
        """Leave a file that is not complete yet, or gone, until a listing shows it anew. Raises ``error`` if files are
        not followed."""
        if self._follow_s is None:
            raise error
        if isinstance(error, NoParquet) and index not in self._backlog.unfinished:
            log.warning("%s It is looked at again once it changes", error)
        if isinstance(error, NotHere):
            # No listing has this size, so the next one that shows the file shows a change.
            self._backlog.known.sizes[index] = -1
        self._backlog.is_done[index] = isinstance(error, NotHere)
        self._backlog.unfinished.add(index)

    def _groups(self, index: int, partition: str, content: RowContent, footer: Footer) -> Iterator[RowPart]:
        """Yield the row groups of a file that was opened just now."""
        shown = self._place.shown(partition)
        check_columns(footer.columns, self.schema, shown)
        if partition in self._marks and self._marks[partition]["digest"] != footer.digest:
            raise InputChanged(f"{shown} is not what it was when its rows were read: {FIX}")
        rows, prefix = sum(footer.groups), self._prefixes.pop(partition, 0)
        self._backlog.unfinished.discard(index)
        self._marks[partition] = {"rows": rows, "digest": footer.digest, **self._listing_of(index)}
        self._open[partition] = index
        self._backlog.is_done[index] = not rows
        self._fresh.add(partition)
        stop = 0
        for group, count in enumerate(footer.groups):
            start, stop = stop, stop + count
            if max(start, prefix) < stop:
                yield RowPart(partition, shown, max(start, prefix), stop, group, start, footer.digest, content)

    def _listing_of(self, index: int) -> Mark:
        """Return what the listing says of an object, by which a later start knows it without asking."""
        if self._place.store is None:
            return {}
        return {
            "size": int(self._backlog.known.sizes[index]),
            "modified_ns": int(self._backlog.known.modified_ns[index]),
        }


def _rows_of(partition: str, committed: Committed) -> int:
    """Return the number of rows of a file from its mark. Raises ``CheckpointError`` for another mark."""
    try:
        str(committed.mark["digest"])
        return int(committed.mark["rows"])
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"the checkpoint does not say how far {partition} is done ({error!r})") from None


def _cut_part(part: RowPart, count: int) -> tuple[RowPart, RowPart | None]:
    """Return the first ``count`` rows of a part, and the rest (None: nothing is left)."""
    at = part.start + count
    if at >= part.stop:
        return part, None
    of = (part.group, part.group_start, part.digest, part.at)
    return RowPart(part.partition, part.shown, part.start, at, *of), RowPart(
        part.partition, part.shown, at, part.stop, *of
    )
