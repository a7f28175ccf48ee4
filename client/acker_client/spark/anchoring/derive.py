"""Derive: anchors the rows that a step makes to their parent rows, and counts both in the tally.

Decides which facts about a row's children go into the children's edges: their number and, if asked, all their values
(their own and those kept from the parent). Knows nothing about user code.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from acker_client.spark.anchoring import kernels, sizes
from acker_client.spark.anchoring.anchors import Anchors, Positions, Rows
from acker_client.spark.anchoring.tally import Tally, digest_parents
from acker_client.spark.anchoring.values import digest_rows
from acker_protocol.ids import Column


def derive(
    tally: Tally,
    rows: Rows,
    columns: Sequence[Any],
    names: Sequence[str],
    *,
    counts: Positions | None = None,
    parents: Positions | None = None,
    digests_values: bool = True,
) -> Rows:
    """Make child rows of ``rows``, anchored to them, and count their parents as consumed in ``tally``.

    The children have ``columns`` with ``names``. Give ``counts`` (int64[n]), the number of children of each row, in
    order. Or give ``parents`` (int64[m]), the parent row of each child, after checking that these rows exist. Without
    both, each row has one child. ``digests_values``: whether the children's values go into their edges.
    """
    children = _parents(len(rows), counts, parents)
    anchors = _derive_anchors(tally, rows, children, columns, (), digests_values)
    return Rows(batch_of([*columns], [*names], len(children)), anchors)


def derive_keeping(
    tally: Tally,
    rows: Rows,
    columns: Sequence[Any],
    names: Sequence[str],
    keep: Sequence[str],
    *,
    counts: Positions | None = None,
    parents: Positions | None = None,
    digests_values: bool = True,
    anchored: bool = True,
) -> Iterator[Rows]:
    """Do the same as :func:`derive` for children that also have the columns ``keep`` of their parents.

    Yields the children in pieces of about ``sizes.BATCH_BYTES`` at most: many children of a large row have more bytes
    than a column can hold. Unless ``anchored``, the children belong to no tree.
    """
    is_one_to_one = counts is None and parents is None
    children = _parents(len(rows), counts, parents)
    kept = [rows.data.column(name) for name in keep]
    if anchored:
        anchors = _derive_anchors(tally, rows, children, columns, kept, digests_values)
    else:
        anchors = _consume(tally, rows, len(children))
    for start, stop in _pieces(children, len(rows), columns, kept):
        own = [column.slice(start, stop - start) for column in columns]
        taken = pa.array(children[start:stop])
        copied = kept if is_one_to_one and stop - start == len(rows) else [column.take(taken) for column in kept]
        yield Rows(batch_of([*own, *copied], [*names, *keep], stop - start), anchors.slice(start, stop))


def _parents(rows: int, counts: Positions | None, parents: Positions | None) -> Positions:
    every = np.arange(rows)
    return parents if parents is not None else every if counts is None else np.repeat(every, counts)


def _derive_anchors(
    tally: Tally, rows: Rows, parents: Positions, columns: Sequence[Any], kept: Sequence[Any], digests_values: bool
) -> Anchors:
    if rows.anchors.are_none:
        return _consume(tally, rows, len(parents))
    digests = _digest_children(parents, len(rows), columns, kept, digests_values)
    return tally.derive(rows.anchors, parents, digests)


def _consume(tally: Tally, rows: Rows, children: int) -> Anchors:
    """Count ``rows`` as consumed, and return the anchors of children that belong to no tree."""
    tally.consume(rows.anchors, np.zeros(len(rows.anchors.roots), np.uint64))
    return Anchors.none(children, packed=rows.anchors.offsets is not None)


def _pieces(parents: Positions, rows: int, columns: Sequence[Any], kept: Sequence[Any]) -> Iterable[tuple[int, int]]:
    """Return (start, stop) of the pieces in which to hand on children with their own ``columns`` and ``kept`` ones."""
    most = int(np.bincount(parents, minlength=1).max())
    if sum(column.nbytes for column in columns) + most * sum(column.nbytes for column in kept) <= sizes.BATCH_BYTES:
        return [(0, len(parents))]
    of_parents = sum(map(sizes.row_bytes, kept), np.zeros(rows, np.int64))
    lengths = sum(map(sizes.row_bytes, columns), of_parents[parents])
    return sizes.cuts(lengths, sizes.BATCH_BYTES)


def _digest_children(
    parents: Positions, rows: int, columns: Sequence[Any], kept: Sequence[Any], digests_values: bool
) -> Column:
    counts = np.zeros(rows, np.int64)
    kernels.count_children(parents, counts)
    if not digests_values:
        return digest_parents(counts, parents)
    of_parents = digest_rows(kept, rows) if kept else None
    return digest_parents(counts, parents, of_parents, digest_rows(columns, len(parents)))


def batch_of(columns: list[Any], names: list[str], rows: int) -> pa.RecordBatch:
    """Make a RecordBatch that knows its number of rows even without columns."""
    if columns:
        return pa.RecordBatch.from_arrays(columns, names=names)
    return pa.RecordBatch.from_arrays([pa.nulls(rows)], names=["none"]).select([])
