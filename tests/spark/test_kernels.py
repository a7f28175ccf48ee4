"""The compiled kernels give the same results as the protocol's own functions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acker_client.spark.anchoring import kernels
from acker_protocol import ids, reports
from acker_protocol.ids import Column

ID = st.integers(1, ids.MASK)
IDS = st.lists(ID, max_size=30)
FEW_ROOTS = st.lists(st.tuples(st.sampled_from([0, 1, 2, 3]), ID), max_size=200)


def column(values: list[int]) -> Column:
    return np.array(values, np.uint64)


@given(FEW_ROOTS)
def test_consuming_sums_the_identity_and_folds_per_root(anchors: list[tuple[int, int]]) -> None:
    roots, edges = column([root for root, _ in anchors]), column([edge for _, edge in anchors])
    produced, total = ids.mix64_column(edges), np.zeros(2, np.uint64)
    folded_roots, folded_vals = np.empty_like(roots), np.empty_like(roots)
    count = kernels.consume(roots, edges, produced, total, folded_roots, folded_vals)
    expected = sum(ids.identity_term(root, edge) for root, edge in anchors if root) % (1 << 128)
    assert int(total[1]) << 64 | int(total[0]) == expected
    anchored = roots != 0
    twin = reports.fold(roots[anchored], (edges ^ produced)[anchored])
    said = reports.fold(folded_roots[:count], folded_vals[:count])
    assert said.root_ids.tolist() == twin.root_ids.tolist()
    assert said.ack_vals.tolist() == twin.ack_vals.tolist()


@given(IDS, st.data())
def test_edges_of_children_are_those_of_the_protocol(edges: list[int], data: st.DataObject) -> None:
    parents = data.draw(st.lists(st.integers(0, len(edges) - 1), max_size=60)) if edges else []
    digests = ids.mix64_column(column(edges))
    made, produced = np.empty(len(parents), np.uint64), np.zeros(len(edges), np.uint64)
    arguments = (column(edges), np.array(parents, np.int64), digests, np.uint64(9), np.zeros(len(edges), np.int64))
    kernels.thin_children(*arguments, made, produced)
    twin = [ids.child_edge(edges[p], 9, parents[:j].count(p), int(digests[p])) for j, p in enumerate(parents)]
    assert made.tolist() == twin
    for row in range(len(edges)):
        named = column([edge for edge, parent in zip(twin, parents, strict=True) if parent == row])
        assert int(produced[row]) == int(np.bitwise_xor.reduce(named)) if len(named) else not produced[row]


@given(st.lists(st.tuples(ID, ID), max_size=300))
def test_sorting_and_folding_is_the_fold_of_the_protocol(entries: list[tuple[int, int]]) -> None:
    check_fold(column([root for root, _ in entries]), column([val for _, val in entries]))


@pytest.mark.parametrize("size", [63, 64, 65, 20_000])
@pytest.mark.parametrize("roots", [1, 50, 1 << 60])
def test_large_folds_are_the_fold_of_the_protocol(size: int, roots: int) -> None:
    random = np.random.default_rng(size)
    check_fold(random.integers(1, roots + 1, size, np.uint64), random.integers(1, 1 << 60, size, np.uint64))


def check_fold(roots: Column, vals: Column) -> None:
    twin = reports.fold(roots, vals)
    roots, vals = roots.copy(), vals.copy()
    count = kernels.sort_and_fold(roots, vals)
    assert roots[:count].tolist() == twin.root_ids.tolist()
    assert vals[:count].tolist() == twin.ack_vals.tolist()


@pytest.mark.long
def test_three_passes_sort_as_two_do() -> None:
    size = (1 << 23) + 5
    roots = np.arange(1, size + 1, dtype=np.uint64)
    vals = roots.copy()
    assert kernels.sort_and_fold(roots, vals) == size
    assert np.all(np.diff(ids.mix64_column(roots).astype(object)[:1000]) > 0)
    assert np.all(ids.mix64_column(roots)[1:] > ids.mix64_column(roots)[:-1])
    assert np.array_equal(roots, vals)


@given(st.lists(st.integers(0, 300), max_size=150))
def test_copies_are_found(numbers: list[int]) -> None:
    marks = ids.mix64_column(column(numbers))
    assert bool(kernels.has_copies(marks)) == (len(set(numbers)) < len(numbers))


def test_a_parent_out_of_range_is_found() -> None:
    counts = np.zeros(3, np.int64)
    assert kernels.count_children(np.array([0, 2, 2], np.int64), counts) == -1
    assert counts.tolist() == [1, 0, 2]
    assert kernels.count_children(np.array([0, 3], np.int64), counts) == 1
    assert kernels.count_children(np.array([-1], np.int64), counts) == 0
