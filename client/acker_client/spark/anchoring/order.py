"""Order: sorts rows into an order that does not depend on the order in which they arrived. Pure.

Decides that rows are sorted by their records, and rows without anchors by their values. Spark delivers the rows of a
shuffle in any order, and a retried task may get another order. But a function's result may depend on it.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from acker_client.spark.anchoring.anchors import Anchors, Positions, Rows
from acker_client.spark.anchoring.values import digest_rows
from acker_protocol.ids import Column, unmix64_column


def in_order(rows: Rows) -> Rows:
    """Return ``rows`` sorted by the numbers of their records (of the first record, if a row has several). Rows without
    anchors come first, sorted by a digest of their values."""
    order = _order(rows)
    if (order == np.arange(len(rows))).all():
        return rows
    return Rows(rows.data.take(pa.array(order)), _reordered(rows.anchors, order))


def _order(rows: Rows) -> Positions:
    roots, edges = _first_anchors(rows.anchors)
    # The keys leave no tie that matters: two rows never share an edge, and rows without an edge tie only if their
    # values are equal.
    is_tracked = roots.all()
    edges = edges if is_tracked else np.where(roots != 0, edges, digest_rows(rows.data.columns, len(rows)))
    return np.lexsort((edges, unmix64_column(roots)))


def _first_anchors(anchors: Anchors) -> tuple[Column, Column]:
    """Return root and edge of each row's first anchor; 0 if it has none."""
    if anchors.offsets is None:
        return anchors.roots, anchors.edges
    has_one = np.diff(anchors.offsets) > 0
    at = anchors.offsets[:-1][has_one]
    roots, edges = np.zeros(anchors.rows, np.uint64), np.zeros(anchors.rows, np.uint64)
    roots[has_one], edges[has_one] = anchors.roots[at], anchors.edges[at]
    return roots, edges


def _reordered(anchors: Anchors, order: Positions) -> Anchors:
    if anchors.offsets is None:
        return Anchors(anchors.roots[order], anchors.edges[order])
    lengths = np.diff(anchors.offsets)[order]
    offsets = np.zeros(len(order) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    # The anchors of row i of the new order begin at offsets[i], and were at anchors.offsets[order[i]].
    at = np.repeat(anchors.offsets[:-1][order] - offsets[:-1], lengths) + np.arange(offsets[-1])
    return Anchors(anchors.roots[at], anchors.edges[at], offsets)
