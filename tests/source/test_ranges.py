"""Ranges compared with a reference model, a plain set of positions."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from acker_client.source.records.ranges import Ranges

sets = st.lists(st.sets(st.integers(0, 40)), max_size=6)


def of(positions: set[int]) -> Ranges:
    return Ranges.of(np.array(sorted(positions), np.int64))


def united(parts: list[set[int]]) -> tuple[Ranges, set[int]]:
    ranges, twin = Ranges(), set[int]()
    for part in parts:
        ranges, twin = ranges.union(of(part)), twin | part
    return ranges, twin


def holes_of(twin: set[int]) -> int:
    return sum(1 for position in twin if position and position - 1 not in twin)


@given(sets)
@settings(max_examples=300, deadline=None)
def test_ranges_agree_with_a_set_of_positions(parts: list[set[int]]) -> None:
    ranges, twin = united(parts)
    everything = np.arange(45)
    assert set(everything[ranges.contains(everything)].tolist()) == twin
    assert ranges.prefix == next(position for position in range(50) if position not in twin)
    assert ranges.reach == max(twin, default=-1) + 1
    assert ranges.holes == holes_of(twin)
    assert len(ranges.starts) <= holes_of(twin) + 1


@given(st.lists(st.booleans(), max_size=20), st.integers(0, 30), st.integers(0, 30), st.integers(0, 30))
@example(flags=[True, True], first=5, start=6, more=0)
@settings(max_examples=200, deadline=None)
def test_ranges_of_flags_are_those_of_their_positions_and_can_be_cut_and_moved(
    flags: list[bool], first: int, start: int, more: int
) -> None:
    ranges = Ranges.where(np.array(flags, np.bool_), first)
    twin = {first + k for k, flag in enumerate(flags) if flag}
    assert ranges == of(twin)
    assert ranges.within(start, start + more) == of({at for at in twin if start <= at < start + more})
    assert ranges.moved(7) == of({at + 7 for at in twin})


@given(sets)
@settings(max_examples=200, deadline=None)
def test_ranges_survive_their_run_lengths(parts: list[set[int]]) -> None:
    ranges, _ = united(parts)
    assert Ranges.from_runs(json.loads(json.dumps(ranges.to_runs()))) == ranges


@pytest.mark.slow
@given(sets, st.integers(0, 6))
@settings(max_examples=200, deadline=None)
def test_ranges_cut_to_a_number_of_holes_are_done_and_have_no_more(parts: list[set[int]], most: int) -> None:
    ranges, _ = united(parts)
    cut = ranges.first_holes(most)
    assert cut.holes <= most
    assert cut.union(ranges) == ranges
    assert cut.prefix == ranges.prefix


def test_run_lengths_are_short() -> None:
    assert Ranges.below(1_000_000).to_runs() == [1_000_000]
    assert of({0, 1, 2, 5, 6}).to_runs() == [3, 2, 2]
    assert of({4}).to_runs() == [0, 4, 1]
    assert Ranges().to_runs() == [0]


@pytest.mark.parametrize("runs", [[], [1, 2], [-1], [3, 0, 2], [3, 2, -1], [1.5], ["3"], [True]])
def test_invalid_run_lengths_are_refused(runs: list[int]) -> None:
    with pytest.raises(ValueError, match="run lengths"):
        Ranges.from_runs(runs)
