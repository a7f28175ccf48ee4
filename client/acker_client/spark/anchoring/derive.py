"""Derive: anchors the rows that a step makes to their parent rows, and counts both in the tally.

Decides which facts about a row's children go into the children's edges: their number and, if asked, all their values
(their own and those kept from the parent). Knows nothing about user code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from acker_client.spark.anchoring import kernels
from acker_client.spark.anchoring.anchors import Anchors, Positions, Rows
from acker_client.spark.anchoring.tally import Tally, digest_parents
from acker_client.spark.anchoring.values import digest_rows
from acker_protocol.ids import Column


def derive(
    tally: Tally,
    rows: Rows,
    columns: Sequence[Any],
    names: Sequence[str],
    keep: Sequence[str] = (),
    *,
    counts: Positions | None = None,
    parents: Positions | None = None,
    digests_values: bool = True,
    anchored: bool = True,
) -> Rows:
    """Make child rows of ``rows``, anchored to them, and count their parents as consumed in ``tally``.

    The children have ``columns`` with ``names``, and the columns ``keep`` of their parents. Give ``counts`` (int64[n]),
    the number of children of each row, in order. Or give ``parents`` (int64[m]), the parent row of each child, after
    checking that these rows exist. Without both, each row has one child. ``digests_values``: whether the children's
    values go into their edges. Unless ``anchored``, the children belong to no tree.
    """
    is_one_to_one = counts is None and parents is None
    every = np.arange(len(rows))
    if parents is None:
        parents = every if counts is None else np.repeat(every, counts)
    kept = [rows.data.column(name) for name in keep]
    if rows.anchors.are_none or not anchored:
        tally.consume(rows.anchors, np.zeros(len(rows.anchors.roots), np.uint64))
        anchors = Anchors.none(len(parents), packed=rows.anchors.offsets is not None)
    else:
        digests = _digest_children(parents, len(rows), columns, kept, digests_values)
        anchors = tally.derive(rows.anchors, parents, digests)
    if kept and not is_one_to_one:
        kept = [column.take(pa.array(parents)) for column in kept]
    return Rows(batch_of([*columns, *kept], [*names, *keep], len(parents)), anchors)


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
