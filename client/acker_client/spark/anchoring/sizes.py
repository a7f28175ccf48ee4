"""Sizes: how many bytes rows have, and where to cut batches of large rows. Pure.

A column of Arrow holds at most 2 GiB of text. A step that makes many rows of a large one, and keeps its columns, would
need more. So batches are cut by bytes, besides the cuts by rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from pyarrow import types

from acker_client.spark.anchoring.anchors import Positions
from acker_client.spark.anchoring.values import offsets_of

# The most bytes of the batches that a step makes, unless one row has more.
BATCH_BYTES = 1 << 27

# Bytes of a value whose size is part of its type, and of an offset.
_FIXED_BYTES = 8


def row_bytes(column: Any) -> Positions:
    """Return int64[n]: about how many bytes each row of an Arrow array takes."""
    kind, n = column.type, len(column)
    if types.is_string(kind) or types.is_binary(kind) or types.is_large_string(kind) or types.is_large_binary(kind):
        return np.diff(offsets_of(column)) + _FIXED_BYTES
    if types.is_struct(kind):
        fields = (row_bytes(column.field(index)) for index in range(kind.num_fields))
        return sum(fields, np.zeros(n, np.int64))
    if types.is_map(kind):
        return _bytes_of_lists(column, [column.keys, column.items])
    if types.is_list(kind) or types.is_large_list(kind):
        return _bytes_of_lists(column, [column.values])
    return np.full(n, max(_FIXED_BYTES, column.nbytes // max(n, 1)), np.int64)


def _bytes_of_lists(column: Any, children: list[Any]) -> Positions:
    offsets = offsets_of(column)
    first, after = int(offsets[0]), int(offsets[-1])
    before = np.zeros(after - first + 1, np.int64)
    for child in children:
        before[1:] += row_bytes(child.slice(first, after - first))
    np.cumsum(before, out=before)
    return before[offsets[1:] - first] - before[offsets[:-1] - first] + _FIXED_BYTES


def cuts(lengths: Positions, limit: int) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of pieces of at least one row and at most ``limit`` bytes. ``lengths``: bytes of each row.

    Yields one empty piece if there are no rows.
    """
    after, start = np.cumsum(lengths), 0
    while start < len(lengths) or not start:
        reached = int(after[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(after, reached + limit, side="right")))
        yield start, min(stop, len(lengths))
        start = stop
