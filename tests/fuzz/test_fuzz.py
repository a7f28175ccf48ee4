"""Damaged input crashes no reader, and none accepts what its format forbids."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.fuzz.__main__ import fuzz
from tests.fuzz.targets import targets


@pytest.mark.parametrize("inputs", [4_000, pytest.param(400_000, marks=pytest.mark.long)])
def test_damaged_input_is_refused_or_keeps_the_rules_of_its_format(tmp_path: Path, inputs: int) -> None:
    all_targets = targets(tmp_path)
    weights = sum(each.weight for each in all_targets)
    # Always the same inputs: a red build is due to its change. `make fuzz FROM=n` tries others.
    assert not sum(fuzz(each, inputs * each.weight // weights, 1) for each in all_targets)


def test_each_target_accepts_what_is_not_damaged(tmp_path: Path) -> None:
    for each in targets(tmp_path):
        assert all(map(each.read, each.valid)), each.name


def test_a_reader_that_crashes_and_one_that_is_too_kind_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(content: bytes) -> bool:
        raise RecursionError

    anchors = next(each for each in targets(tmp_path) if each.name == "anchors")
    assert fuzz(replace(anchors, read=crash), 100, 1) == 100
    assert fuzz(anchors, 2_000, 1) == 0
    monkeypatch.setattr("acker_client.cluster.handed_on.uint64", int)
    assert fuzz(anchors, 2_000, 1) > 0
