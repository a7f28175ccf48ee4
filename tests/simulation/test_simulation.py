"""Simulated cases: many seeds keep every promise, and a seed always gives the same transcript."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import get_args

import pytest

from tests.simulation.case import Case, Fault
from tests.simulation.corners import CORNERS
from tests.simulation.shrink import shrunk
from tests.simulation.world import simulate

# The number of seeds that `make test` simulates, in a few seconds.
QUICK_SEEDS = 12
SEEDS = 300
PARTS = 6


def check(seeds: range, case: Callable[[int], Case] = Case.of) -> None:
    """Fail if a seed breaks a promise. The error shows the case of the first such seed, made as small as possible."""
    for seed in seeds:
        result = simulate(case(seed))
        if result.kind:
            smaller = simulate(shrunk(result, tries_max=100).case, keeps_lines=True)
            told = "\n".join([str(smaller.case), *smaller.lines])
            pytest.fail(f"{result.why}\npython -m tests.simulation --seed {seed}, made smaller:\n{told}")


@pytest.mark.slow
def test_no_promise_is_broken() -> None:
    check(range(1, QUICK_SEEDS + 1))


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
def test_no_promise_is_broken_over_many_seeds(part: int) -> None:
    check(range(QUICK_SEEDS + 1 + part, SEEDS + 1, PARTS))


@pytest.mark.long
@pytest.mark.parametrize("corner", CORNERS, ids=lambda corner: corner.__name__)
def test_no_promise_is_broken_where_one_rule_decides(corner: Callable[[int], Case]) -> None:
    check(range(1, 31), corner)


def test_seeds_stand_for_jobs_of_spark_and_for_plain_programs() -> None:
    cases = [Case.of(seed) for seed in range(1, 201)]
    assert 50 < sum(case.programs is None for case in cases) < 150
    faults = {type(fault).__name__ for case in cases for fault in case.faults}
    assert faults == {fault.__name__ for fault in get_args(Fault)}


@pytest.mark.long
def test_a_seed_tells_the_same_story_in_every_process() -> None:
    program = (
        "from tests.simulation.world import simulate; from tests.simulation.case import Case;"
        "print(*(line for seed in (3, 9, 15) for line in simulate(Case.of(seed), keeps_lines=True).lines), sep='\\n')"
    )
    stories = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert stories[0] == stories[1]
    assert len(stories[0].splitlines()) > 100


@pytest.mark.parametrize("seed", [5, 15])
def test_a_transcript_changes_nothing(seed: int) -> None:
    kept, unkept = simulate(Case.of(seed), keeps_lines=True), simulate(Case.of(seed))
    assert (kept.kind, kept.seconds, kept.calls) == (unkept.kind, unkept.seconds, unkept.calls)
    assert kept.lines
    assert not unkept.lines
