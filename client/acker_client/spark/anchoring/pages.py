"""Pages: checks that a frame still has the rows that were counted. Pure.

A row's *place* in a frame is one number made of the partition and the row's position in it (Spark's
monotonically_increasing_id). A *page* is 4096 places. The record of a page is its number of rows and the XOR of their
digests. A row's digest includes its place. Rows are read in whole pages. A page with another count or XOR has other
rows, or the same rows at other places.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from acker_client.spark.anchoring.anchors import Positions
from acker_protocol.ids import Column

# As in Spark's monotonically_increasing_id.
PARTITION_SHIFT = 33
PAGE_SHIFT = 12

OTHER_ROWS = (
    "the frame gives other rows when it is computed anew ({what}): persist it to a storage that outlasts its executors,"
    " checkpoint it, or make it deterministic; nothing of these rows was acked"
)


class OtherRows(Exception):
    """A frame was computed again, and its rows are not the rows that were counted."""

    def __init__(self, what: str) -> None:
        super().__init__(OTHER_ROWS.format(what=what))


def place_of(partition: int, row: int) -> int:
    return partition << PARTITION_SHIFT | row


@dataclass(frozen=True, slots=True, eq=False)
class Pages:
    """The records of m pages. ``ids``: int64[m], place >> 12, ascending; ``rows``: int64[m], the number of rows in each
    page; ``digests``: uint64[m], the XOR of the digests of these rows."""

    ids: Positions
    rows: Positions
    digests: Column

    def some(self, ids: Positions) -> Pages:
        """Return the pages with these ``ids: int64[k]``. The ids must ascend, and all these pages must be here."""
        at = np.searchsorted(self.ids, ids)
        return Pages(self.ids[at], self.rows[at], self.digests[at])

    def partitions(self) -> dict[int, Pages]:
        """Return the pages of each partition that has rows."""
        owners = self.ids >> (PARTITION_SHIFT - PAGE_SHIFT)
        found, starts = np.unique(owners, return_index=True)
        stops = [*starts[1:].tolist(), len(owners)][: len(found)]
        pieces = [slice(start, stop) for start, stop in zip(starts.tolist(), stops, strict=True)]
        return {
            int(owner): Pages(self.ids[piece], self.rows[piece], self.digests[piece])
            for owner, piece in zip(found, pieces, strict=True)
        }

    def total(self) -> tuple[int, int]:
        """Return (number of rows, XOR of all digests)."""
        return int(self.rows.sum()), int(np.bitwise_xor.reduce(self.digests)) if len(self.digests) else 0


class PageCheck:
    """Compares the rows that one task reads with the recorded pages (``noted``)."""

    def __init__(self, noted: Pages) -> None:
        self._noted = noted
        self._rows = np.zeros(len(noted.ids), np.int64)
        self._digests = np.zeros(len(noted.ids), np.uint64)

    def count_rows(self, places: Positions, digests: Column) -> None:
        """Count rows that were read: ``places: int64[n]``, ascending, ``digests: uint64[n]``. Raises
        :class:`OtherRows` for a row in a page that has no record."""
        if not len(places):
            return
        pages = places >> PAGE_SHIFT
        starts = np.flatnonzero(np.append(True, pages[1:] != pages[:-1]))
        ids = pages[starts]
        at = np.minimum(np.searchsorted(self._noted.ids, ids), len(self._noted.ids) - 1)
        if not len(self._noted.ids) or np.any(self._noted.ids[at] != ids):
            raise OtherRows(f"partition {int(places[0]) >> PARTITION_SHIFT} has more rows than it had")
        np.add.at(self._rows, at, np.diff(np.append(starts, len(places))))
        np.bitwise_xor.at(self._digests, at, np.bitwise_xor.reduceat(digests, starts))

    def check_partition(self, partition: int) -> None:
        """Check a partition after all its pages were read. Raises :class:`OtherRows` if they differ from the record."""
        first = np.searchsorted(self._noted.ids, place_of(partition, 0) >> PAGE_SHIFT)
        after = np.searchsorted(self._noted.ids, place_of(partition + 1, 0) >> PAGE_SHIFT)
        mine = slice(int(first), int(after))
        noted, read = int(self._noted.rows[mine].sum()), int(self._rows[mine].sum())
        if noted != read:
            raise OtherRows(f"partition {partition} had {noted} rows where {read} are now")
        if np.any(self._rows[mine] != self._noted.rows[mine]) or np.any(
            self._digests[mine] != self._noted.digests[mine]
        ):
            raise OtherRows(f"rows of partition {partition} are not what they were")


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """The places to read, as r runs of consecutive places, and the number of each record.

    ``starts``, ``stops``: int64[r], places, ascending; ``numbers``: int64[r], the number of the record at each start.
    """

    starts: Positions
    stops: Positions
    numbers: Positions

    @classmethod
    def of(cls, places: Sequence[Positions], numbers: Sequence[int]) -> Runs:
        """Make the runs of ``places``, given in ascending pieces. ``numbers``: the number of each piece's first place.
        The next places of the piece have the next numbers."""
        starts, stops, firsts = [], [], []
        for piece, first in zip(places, numbers, strict=True):
            cuts = np.flatnonzero(np.diff(piece) != 1) + 1
            begin = np.append(0, cuts) if len(piece) else cuts
            starts.append(piece[begin])
            stops.append(piece[np.append(cuts, len(piece)) - 1] + 1 if len(piece) else cuts)
            firsts.append(first + begin)
        none = np.empty(0, np.int64)
        joined = [np.concatenate([none, *each]) for each in (starts, stops, firsts)]
        order = np.argsort(joined[0])
        return cls(*(each[order] for each in joined))

    def pages(self) -> Positions:
        """Return the pages that hold these places: int64[k], ascending."""
        if not len(self.starts):
            return np.empty(0, np.int64)
        first, last = self.starts >> PAGE_SHIFT, (self.stops - 1) >> PAGE_SHIFT
        # Replays have many runs within one page, and few long ones.
        long = np.flatnonzero(last > first + 1)
        between = [np.arange(first[index], last[index] + 1) for index in long.tolist()]
        return np.unique(np.concatenate([first, last, *between]))

    def number_places(self, places: Positions) -> tuple[Positions, Positions]:
        """Return, for the ``places: int64[n]`` that are to be read, (their indices, their numbers)."""
        if not len(self.starts):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        run = np.searchsorted(self.starts, places, side="right") - 1
        inside = np.flatnonzero((run >= 0) & (places < self.stops[run]))
        run = run[inside]
        return inside, self.numbers[run] + (places[inside] - self.starts[run])
