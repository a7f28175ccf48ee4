"""Anchors: the (root id, edge) pairs that tie a row to its trees, as Arrow columns and as uint64.

Decides the two forms in which a row carries its anchors. **Thin**: ``_root bigint, _edge bigint``, null if the row is
unanchored. **Packed**: ``_anchors binary``, 16 bytes for each anchor, little-endian root id then edge id, empty if the
row is unanchored. A frame may arrive **mixed**, with all three columns: each row has its anchors in one form, and rows
derived from such a frame are packed. Ids never pass through floats: a bigint column with nulls is read from its buffer.
Root id 0 means "unanchored".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from acker_client.spark.anchoring import kernels
from acker_client.spark.anchoring.zones import in_utc
from acker_protocol.ids import Column

ROOT, EDGE, ANCHORS = "_root", "_edge", "_anchors"
TRACKING = (ROOT, EDGE, ANCHORS)
THIN = (ROOT, EDGE)
PACKED = (ANCHORS,)
MIXED = TRACKING
ANCHOR_BYTES = 16
COLUMN_BYTES_MAX = 2**31 - 1

Positions = npt.NDArray[np.int64]


def reserved(names: Iterable[str]) -> list[str]:
    """Return the ``names`` that are reserved for the acker. Spark's names ignore case, so ``_ROOT`` is reserved too."""
    return [name for name in names if name.lower() in TRACKING]


@dataclass(frozen=True, slots=True)
class Anchors:
    """Anchors of n rows. ``roots``, ``edges``: uint64.

    Thin if ``offsets`` is None: one anchor for each row, with root 0 if the row is unanchored. Otherwise packed: row i
    has the anchors from ``offsets[i]`` up to ``offsets[i + 1]`` (int64[n + 1]).
    """

    roots: Column
    edges: Column
    offsets: Positions | None = None

    @classmethod
    def none(cls, rows: int, *, packed: bool = False) -> Anchors:
        """Return the anchors of ``rows`` unanchored rows."""
        ids = np.zeros(0 if packed else rows, np.uint64)
        return cls(ids, ids, np.zeros(rows + 1, np.int64) if packed else None)

    @property
    def rows(self) -> int:
        return len(self.roots) if self.offsets is None else len(self.offsets) - 1

    @property
    def are_none(self) -> bool:
        """Whether all rows are unanchored."""
        return not self.roots.any()

    def of(self, row: int) -> list[tuple[int, int]]:
        """Return the (root id, edge) pairs of one row; empty if the row is unanchored."""
        start, stop = (row, row + 1) if self.offsets is None else self.offsets[row : row + 2].tolist()
        pairs = zip(self.roots[start:stop].tolist(), self.edges[start:stop].tolist(), strict=True)
        return [(root, edge) for root, edge in pairs if root]

    def slice(self, start: int, stop: int) -> Anchors:
        """Return the anchors of the rows from ``start`` up to ``stop``."""
        if self.offsets is None:
            return Anchors(self.roots[start:stop], self.edges[start:stop])
        offsets = self.offsets[start : stop + 1]
        first, after = int(offsets[0]), int(offsets[-1])
        return Anchors(self.roots[first:after], self.edges[first:after], offsets - first)

    def followed_by(self, other: Anchors) -> Anchors:
        """Return these anchors followed by the anchors of ``other``; packed if one of the two is packed."""
        ours, theirs = self, other
        if ours.offsets is None and theirs.offsets is None:
            offsets = None
        else:
            ours, theirs = ours._packed(), theirs._packed()
            assert ours.offsets is not None
            assert theirs.offsets is not None
            offsets = np.append(ours.offsets, theirs.offsets[1:] + ours.offsets[-1])
        roots, edges = np.append(ours.roots, theirs.roots), np.append(ours.edges, theirs.edges)
        return Anchors(roots, edges, offsets)

    def _packed(self) -> Anchors:
        if self.offsets is not None:
            return self
        anchored = self.roots != 0
        offsets = np.zeros(len(self.roots) + 1, np.int64)
        np.cumsum(anchored, out=offsets[1:])
        return Anchors(self.roots[anchored], self.edges[anchored], offsets)

    def merged(self, bounds: Positions) -> Anchors:
        """Return packed anchors of new rows. New row j descends from old rows ``bounds[j]`` up to ``bounds[j + 1]``.

        A new row gets one edge for each root: edges of the same root are XORed.
        """
        at = bounds if self.offsets is None else self.offsets[bounds]
        parts = [
            _one_edge_a_root(self.roots[start:stop], self.edges[start:stop]) for start, stop in pairwise(at.tolist())
        ]
        offsets = np.zeros(len(bounds), np.int64)
        np.cumsum([len(roots) for roots, _ in parts], out=offsets[1:])
        none = np.empty(0, np.uint64)
        roots = np.concatenate([none, *(roots for roots, _ in parts)])
        return Anchors(roots, np.concatenate([none, *(edges for _, edges in parts)]), offsets)


@dataclass(frozen=True, slots=True)
class Rows:
    """A batch inside a chain: the user's columns and the anchors of its rows."""

    data: pa.RecordBatch
    anchors: Anchors

    def __len__(self) -> int:
        return int(self.data.num_rows)


def unpack(batch: pa.RecordBatch) -> Rows:
    """Split a batch with tracking columns into user columns, with timestamps in UTC, and anchors.

    Raises KeyError without tracking columns; the guard refuses such a batch beforehand.
    """
    names = batch.schema.names
    kept = [index for index, name in enumerate(names) if name not in TRACKING]
    data = in_utc(batch.select(kept))
    tracking = THIN if ANCHORS not in names else MIXED if ROOT in names else PACKED
    return Rows(data, of_columns([batch.column(name) for name in tracking]))


def of_columns(columns: Sequence[Any]) -> Anchors:
    """Read anchors from their Arrow columns: roots and edges (thin), the packed column, or all three (mixed)."""
    if len(columns) == 1:
        return packed_anchors(columns[0])
    thin = Anchors(_ids(columns[0]), _ids(columns[1]))
    return thin if len(columns) == 2 else _mixed_anchors(thin, packed_anchors(columns[2]))


def pack(rows: Rows) -> pa.RecordBatch:
    """Return the batch with its tracking columns behind the user's."""
    anchors = rows.anchors
    if anchors.offsets is not None:
        return with_columns(rows.data, [ANCHORS], [packed_column(anchors)])
    unanchored = anchors.roots == 0
    mask = unanchored if unanchored.any() else None
    columns = [pa.array(ids.view(np.int64), mask=mask) for ids in (anchors.roots, anchors.edges)]
    return with_columns(rows.data, [ROOT, EDGE], columns)


def with_columns(data: pa.RecordBatch, names: Sequence[str], columns: Sequence[Any]) -> pa.RecordBatch:
    """Return ``data`` with ``columns`` added at the end."""
    return pa.RecordBatch.from_arrays([*data.columns, *columns], names=[*data.schema.names, *names])


def packed_anchors(column: Any) -> Anchors:
    """Read the anchors of a packed column (binary, or large binary). Raises ValueError for an incomplete anchor."""
    if not len(column):
        return Anchors(np.empty(0, np.uint64), np.empty(0, np.uint64), np.zeros(1, np.int64))
    if column.null_count:
        column = pc.fill_null(column, b"")
    _, offsets_buffer, data = column.buffers()
    width = np.int64 if pa.types.is_large_binary(column.type) else np.int32
    offsets = np.frombuffer(offsets_buffer, width)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    if np.any(np.diff(offsets) % ANCHOR_BYTES):
        raise ValueError(
            f"{ANCHORS}: a row has bytes that are not whole anchors of {ANCHOR_BYTES} bytes; hand it on as it came"
        )
    words = _words(data, int(offsets[0]), int(offsets[-1]))
    return Anchors(words[0::2].copy(), words[1::2].copy(), (offsets - offsets[0]) // ANCHOR_BYTES)


def packed_column(anchors: Anchors) -> Any:
    """Return packed anchors as an Arrow binary column. Raises OverflowError from 2 GiB on, the limit of a column."""
    assert anchors.offsets is not None
    if len(anchors.roots) * ANCHOR_BYTES > COLUMN_BYTES_MAX:
        raise OverflowError(
            f"{len(anchors.roots):_} anchors in one batch of rows are more than its column {ANCHORS} can hold: group by"
            " more keys, or in two steps, so that a row has fewer parents"
        )
    pairs = np.empty((len(anchors.roots), 2), np.uint64)
    pairs[:, 0], pairs[:, 1] = anchors.roots, anchors.edges
    offsets = (anchors.offsets * ANCHOR_BYTES).astype(np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(pairs)]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)


def _mixed_anchors(thin: Anchors, packed: Anchors) -> Anchors:
    """Return the packed anchors of rows that each have anchors in one of the two forms. Raises ValueError for a row
    with both."""
    assert packed.offsets is not None
    is_thin = thin.roots != 0
    if np.any(is_thin & (np.diff(packed.offsets) > 0)):
        raise ValueError(f"a row has anchors in {ROOT} and in {ANCHORS}: keep the anchors of the step that made it")
    at = packed.offsets[:-1][is_thin]
    roots, edges = (
        np.insert(many, at, one[is_thin]) for many, one in ((packed.roots, thin.roots), (packed.edges, thin.edges))
    )
    offsets = packed.offsets.copy()
    offsets[1:] += np.cumsum(is_thin)
    return Anchors(roots, edges, offsets)


def _one_edge_a_root(roots: Column, edges: Column) -> tuple[Column, Column]:
    if not roots.all():
        anchored = roots != 0
        roots, edges = roots[anchored], edges[anchored]
    if len(roots) < 2:
        return roots, edges
    roots, edges = roots.copy(), edges.copy()
    count = kernels.sort_and_fold(roots, edges)
    return roots[:count], edges[:count]


def _words(data: Any, start: int, stop: int) -> Column:
    content = b"" if data is None else np.frombuffer(data, np.uint8)[start:stop].tobytes()
    return np.frombuffer(content, np.uint64)


def _ids(column: Any) -> Column:
    if column.null_count:
        column = pc.fill_null(column, 0)
    if not len(column):
        return np.empty(0, np.uint64)
    return np.frombuffer(column.buffers()[1], np.uint64)[column.offset : column.offset + len(column)]
