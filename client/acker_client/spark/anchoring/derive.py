"""Derive: the rows that a step makes of the rows it took, anchored to them, and the account of both.

Decides what of a row's children goes into its edges: how many there are, and, where asked, every value they have, their
own and those they keep of their parent. Knows no user code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from acker_client.spark.anchoring import kernels
from acker_client.spark.anchoring.anchors import Positions, Rows
from acker_client.spark.anchoring.tally import Tally, digest_parents
from acker_client.spark.anchoring.values import digest_rows


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
) -> Rows:
    """Rows of ``columns`` and what they ``keep`` of their parents, anchored to these, which are counted as consumed.

    Who descends from whom: ``counts`` (int64[n]) of children of each row, in order; else ``parents`` (int64[m],
    checked) of each child; else one to one.
    """
    is_one_to_one = counts is None and parents is None
    every = np.arange(len(rows))
    if counts is not None:
        parents = np.repeat(every, counts)
    else:
        parents = every if parents is None else parents
        counts = np.zeros(len(rows), np.int64)
        kernels.count_children(parents, counts)
    kept = [rows.data.column(name) for name in keep]
    if digests_values:
        of_parents = digest_rows(kept, len(rows)) if kept else None
        digests = digest_parents(counts, parents, of_parents, digest_rows(columns, len(parents)))
    else:
        digests = digest_parents(counts, parents)
    anchors = tally.derive(rows.anchors, parents, digests)
    if kept and not is_one_to_one:
        kept = [column.take(pa.array(parents)) for column in kept]
    return Rows(batch_of([*columns, *kept], [*names, *keep], len(parents)), anchors)


def batch_of(columns: list[Any], names: list[str], rows: int) -> pa.RecordBatch:
    """A RecordBatch that knows how many rows it has, also without columns."""
    if columns:
        return pa.RecordBatch.from_arrays(columns, names=names)
    return pa.RecordBatch.from_arrays([pa.nulls(rows)], names=["none"]).select([])
