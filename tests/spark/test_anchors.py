"""Anchors between Arrow and uint64: no id is ever rounded, no row loses its anchors."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acker_client.spark.anchors import Anchors, Rows, pack, packed_anchors, unpack
from acker_protocol.ids import MASK

ID = st.integers(1, MASK)
PAIR = st.tuples(ID, ID)


def column(values: list[int]) -> np.ndarray:
    return np.array(values, np.uint64)


def batch(rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"x": pa.array(range(rows), pa.int64())})


@given(st.lists(PAIR | st.none(), max_size=20), st.integers(0, 20))
def test_thin_anchors_survive_the_way_through_arrow(pairs: list[tuple[int, int] | None], start: int) -> None:
    roots, edges = (
        column([pair[0] if pair else 0 for pair in pairs]),
        column([pair[1] if pair else 0 for pair in pairs]),
    )
    sent = pack(Rows(batch(len(pairs)), Anchors(roots, edges)))
    assert sent.column("_root").null_count == pairs.count(None)
    start = min(start, len(pairs))
    got = unpack(sent.slice(start))
    assert got.data.schema.names == ["x"]
    assert got.anchors.roots.tolist() == roots[start:].tolist()
    assert got.anchors.edges.tolist() == edges[start:].tolist()


@given(st.lists(st.lists(PAIR, max_size=4), max_size=10), st.integers(0, 10))
def test_packed_anchors_survive_the_way_through_arrow(rows: list[list[tuple[int, int]]], start: int) -> None:
    flat = [pair for row in rows for pair in row]
    offsets = np.cumsum([0, *map(len, rows)])
    anchors = Anchors(column([root for root, _ in flat]), column([edge for _, edge in flat]), offsets)
    sent = pack(Rows(batch(len(rows)), anchors))
    got = unpack(sent.slice(min(start, len(rows)))).anchors
    assert [got.of(index) for index in range(len(rows) - min(start, len(rows)))] == rows[start:]


def test_the_packed_form_is_little_endian_root_then_edge() -> None:
    anchors = Anchors(column([1]), column([258]), np.array([0, 1]))
    assert pack(Rows(batch(1), anchors)).column("_anchors")[0].as_py() == b"\1" + b"\0" * 7 + b"\2\1" + b"\0" * 6


def test_packed_nulls_are_unanchored_and_parts_of_anchors_are_refused() -> None:
    assert packed_anchors(pa.array([None, b"\1" * 16], pa.binary())).of(0) == []
    with pytest.raises(ValueError, match="whole anchors"):
        packed_anchors(pa.array([b"\1" * 15], pa.binary()))


@given(st.lists(st.lists(st.tuples(st.integers(1, 3), ID), min_size=1, max_size=5), min_size=1, max_size=5))
def test_merged_anchors_have_one_edge_a_root(groups: list[list[tuple[int, int]]]) -> None:
    flat = [pair for row in groups for pair in row]
    thin = Anchors(column([root for root, _ in flat]), column([edge for _, edge in flat]))
    merged = thin.merged(np.cumsum([0, *map(len, groups)]))
    for index, pairs in enumerate(groups):
        expected: dict[int, int] = {}
        for root, edge in pairs:
            expected[root] = expected.get(root, 0) ^ edge
        assert dict(merged.of(index)) == expected
        assert len(merged.of(index)) == len(expected)


def test_a_batch_without_columns_of_the_user_keeps_its_rows() -> None:
    sent = pack(Rows(batch(3).select([]), Anchors(column([1, 2, 3]), column([4, 5, 6]))))
    assert (sent.num_rows, len(unpack(sent))) == (3, 3)
