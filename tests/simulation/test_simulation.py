"""Simulated cases: many seeds keep every promise, and a seed always tells the same story."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.simulation.case import Case
from tests.simulation.shrink import shrunk
from tests.simulation.world import simulate

SEEDS = 500
PARTS = 10


@pytest.mark.parametrize("part", range(PARTS))
def test_no_promise_is_broken(part: int) -> None:
    for seed in range(1 + part, SEEDS + 1, PARTS):
        result = simulate(Case.of(seed))
        if result.kind:
            smaller = simulate(shrunk(result, tries_max=100).case, keeps_lines=True)
            told = "\n".join([str(smaller.case), *smaller.lines])
            pytest.fail(f"{result.why}\npython -m tests.simulation --seed {seed}, made smaller:\n{told}")


def test_a_seed_tells_the_same_story_in_every_process() -> None:
    program = (
        "from tests.simulation.world import simulate; from tests.simulation.case import Case;"
        "print(*(line for seed in (3, 9) for line in simulate(Case.of(seed), keeps_lines=True).lines), sep='\\n')"
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


def test_a_transcript_changes_nothing() -> None:
    kept, unkept = simulate(Case.of(5), keeps_lines=True), simulate(Case.of(5))
    assert (kept.kind, kept.seconds, kept.calls) == (unkept.kind, unkept.seconds, unkept.calls)
    assert kept.lines
    assert not unkept.lines
