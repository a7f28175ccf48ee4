"""Conversion of anchors between Arrow and uint64: no id is ever rounded, and no row loses its anchors."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acker_client.spark.anchoring.anchors import (
    Anchors,
    Rows,
    of_columns,
    pack,
    packed_anchors,
    packed_column,
    reserved,
    unpack,
)
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


@given(st.lists(st.lists(PAIR, max_size=4) | st.none(), max_size=10), st.integers(0, 10))
def test_packed_anchors_are_read_from_large_binary_as_from_binary(
    rows: list[list[tuple[int, int]] | None], start: int
) -> None:
    words = [None if row is None else np.array(row, "<u8").tobytes() for row in rows]
    small, large = (packed_anchors(pa.array(words, kind).slice(start)) for kind in (pa.binary(), pa.large_binary()))
    assert [small.of(index) for index in range(len(rows[start:]))] == [row or [] for row in rows[start:]]
    assert [large.of(index) for index in range(len(rows[start:]))] == [row or [] for row in rows[start:]]


@given(st.lists(PAIR | st.lists(PAIR, max_size=4), max_size=12), st.integers(0, 12))
def test_rows_with_thin_and_rows_with_packed_anchors_may_come_in_one_batch(
    rows: list[tuple[int, int] | list[tuple[int, int]]], start: int
) -> None:
    thin = [row if isinstance(row, tuple) else (None, None) for row in rows]
    sent = pa.RecordBatch.from_pydict(
        {
            "_root": pa.array([root if root is None else root - (root >> 63 << 64) for root, _ in thin], pa.int64()),
            "_edge": pa.array([edge if edge is None else edge - (edge >> 63 << 64) for _, edge in thin], pa.int64()),
            "_anchors": pa.array([None if isinstance(row, tuple) else np.array(row, "<u8").tobytes() for row in rows]),
        },
        schema=pa.schema({"_root": pa.int64(), "_edge": pa.int64(), "_anchors": pa.binary()}),
    ).slice(min(start, len(rows)))
    got = unpack(sent)
    assert (got.data.num_columns, len(got)) == (0, len(sent))
    for index, row in enumerate(rows[start:]):
        assert got.anchors.of(index) == ([row] if isinstance(row, tuple) else row)
    assert pack(got).schema.names == ["_anchors"]


def test_a_row_with_anchors_in_both_forms_is_refused() -> None:
    both = [pa.array([1, None]), pa.array([2, None]), pa.array([b"\1" * 16, b"\1" * 16])]
    with pytest.raises(ValueError, match="a row has anchors in _root and in _anchors"):
        of_columns(both)


def test_more_anchors_than_a_column_can_hold_are_refused() -> None:
    many = np.zeros(1, np.uint64)
    huge = np.lib.stride_tricks.as_strided(many, (1 << 27,), (0,))
    with pytest.raises(OverflowError, match="group by more keys"):
        packed_column(Anchors(huge, huge, np.array([0, 1 << 27])))


def test_names_of_tracking_columns_are_the_ackers_in_any_case() -> None:
    assert reserved(["_ROOT", "root", "_Edge", "_anchors", "x"]) == ["_ROOT", "_Edge", "_anchors"]


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
