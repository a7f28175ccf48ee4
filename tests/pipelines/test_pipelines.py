"""Random programs with random faults: whatever is drawn, no record is acked before all that it became is written."""

from __future__ import annotations

import pytest

from tests.pipelines.bench import Bench, told
from tests.pipelines.program import generate

# `make pipelines SEEDS=500` runs more of them.
SEEDS = range(1, 21)
LONG = range(21, 61)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_program_acks_what_is_written_and_answers_for_the_rest(bench: Bench, seed: int) -> None:
    check(bench, seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", LONG)
def test_more_random_programs(bench: Bench, seed: int) -> None:
    check(bench, seed)


def check(bench: Bench, seed: int) -> None:
    program = generate(seed)
    result = bench.run(program)
    replay = f"python -m tests.pipelines --seed {seed} --shrink"
    assert not result.findings, f"\n{program}\n{told(result)}\nrun it again: {replay}"
