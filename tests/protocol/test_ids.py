"""Properties of the arithmetic of ids: it is invertible, and a source gets its numbers back from its roots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acker_protocol import ids
from acker_protocol.reports import fold
from tests.protocol.drawn_reports import ids as column
from tests.protocol.drawn_reports import uint64

bases = st.integers(1, ids.BASE_MAX - 1)
numbers = st.integers(0, 2**62)


@given(uint64)
def test_mix64_can_be_undone(value: int) -> None:
    assert ids.unmix64(ids.mix64(value)) == value
    assert ids.mix64(ids.unmix64(value)) == value


@given(st.lists(uint64, max_size=20))
def test_columns_give_what_numbers_give(values: list[int]) -> None:
    assert ids.mix64_column(column(values)).tolist() == [ids.mix64(value) for value in values]
    assert ids.unmix64_column(column(values)).tolist() == [ids.unmix64(value) for value in values]
    assert ids.edge0_column(column(values)).tolist() == [ids.edge0(value) for value in values]


@given(st.lists(uint64, max_size=20))
def test_columns_are_never_changed_in_place(values: list[int]) -> None:
    held = column(values)
    held.flags.writeable = False
    ids.mix64_column(held), ids.unmix64_column(held), ids.edge0_column(held), ids.numbers_of(1, held)


@given(bases, st.lists(numbers, max_size=20))
def test_a_source_finds_its_numbers_in_its_roots(base: int, emitted: list[int]) -> None:
    roots = ids.root_ids(base, column(emitted))
    assert roots.tolist() == [ids.root_id(base, number) for number in emitted]
    assert ids.numbers_of(base, roots).tolist() == emitted


@given(bases, numbers)
def test_no_root_is_zero(base: int, number: int) -> None:
    assert ids.root_id(base, number) != 0


@given(uint64)
def test_a_slot_is_one_of_1024(root: int) -> None:
    assert 0 <= ids.slot(root) < ids.SLOTS


@given(uint64, uint64, st.integers(0, 2**40), uint64, st.integers(0, 63))
def test_an_edge_depends_on_parent_operator_ordinal_and_digest(
    edge: int, operator: int, ordinal: int, digest: int, bit: int
) -> None:
    child = ids.child_edge(edge, operator, ordinal, digest)
    assert child != ids.child_edge(edge ^ 1 << bit, operator, ordinal, digest)
    assert child != ids.child_edge(edge, operator ^ 1 << bit, ordinal, digest)
    assert child != ids.child_edge(edge, operator, ordinal + 1, digest)
    assert child != ids.child_edge(edge, operator, ordinal, digest ^ 1 << bit)


@given(st.permutations(list(range(6))), st.text(max_size=8))
def test_an_identity_forgets_the_order_of_what_was_consumed(order: list[int], operator: str) -> None:
    terms = [ids.identity_term(number, number * number) for number in range(6)]
    assert ids.identity_of(operator, sum(terms[index] for index in order)) == ids.identity_of(operator, sum(terms))


@given(uint64, uint64)
def test_a_consumed_edge_is_not_its_root(root: int, edge: int) -> None:
    if root != edge:
        assert ids.identity_term(root, edge) != ids.identity_term(edge, root)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (ids.mix64_column, "values"),
        (ids.unmix64_column, "values"),
        (ids.edge0_column, "roots"),
        (lambda numbers: ids.root_ids(5, numbers), "numbers"),
        (lambda roots: fold(roots, roots), "roots"),
    ],
)
def test_a_column_of_int64_is_told_how_to_be_viewed_as_uint64(function: Callable[[Any], object], name: str) -> None:
    with pytest.raises(TypeError, match=rf"{name} is int64: give {name}\.view\(np\.uint64\)"):
        function(np.arange(3))
    with pytest.raises(TypeError, match=f"{name} is float64: give an array of np.uint64"):
        function(np.zeros(3))
    with pytest.raises(TypeError, match=f"{name} is list: give an array of np.uint64"):
        function([1, 2])
