"""Random programs with random faults: no record is acked before everything derived from it is written."""

from __future__ import annotations

import pytest

from tests.pipelines.__main__ import CHANGES
from tests.pipelines.bench import Bench, told
from tests.pipelines.program import generate

# A few early seeds that together cover most faults. They run on all supported versions; `make pipelines` runs more.
SEEDS = (8, 2, 27)
LONG = [seed for seed in range(1, 41) if seed not in SEEDS]


@pytest.mark.sampled(3)
@pytest.mark.matrix
@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_program_acks_what_is_written_and_answers_for_the_rest(bench: Bench, seed: int) -> None:
    check(bench, seed)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", [1, 5])
def test_a_random_program_with_tracking_off_writes_what_plain_code_writes(bench: Bench, seed: int) -> None:
    check(bench, seed, "off")


@pytest.mark.long
@pytest.mark.parametrize("seed", [2, 5])
def test_in_a_random_program_tracked_records_keep_their_promises_beside_untracked_ones(bench: Bench, seed: int) -> None:
    check(bench, seed, "some")


@pytest.mark.long
@pytest.mark.parametrize("tracking", ["some", "off"])
@pytest.mark.parametrize("seed", range(11, 19))
def test_more_random_programs_that_track_some_records_or_none(bench: Bench, seed: int, tracking: str) -> None:
    check(bench, seed, tracking)


@pytest.mark.long
@pytest.mark.parametrize("seed", LONG)
def test_more_random_programs(bench: Bench, seed: int) -> None:
    check(bench, seed)


def check(bench: Bench, seed: int, tracking: str = "on") -> None:
    program = CHANGES[tracking](generate(seed))
    result = bench.run(program)
    replay = f"python -m tests.pipelines --seed {seed} --shrink --tracking {tracking}"
    assert not result.findings, f"\n{program}\n{told(result)}\nrun it again: {replay}"
