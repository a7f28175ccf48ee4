"""Random plain programs with faults on real Spark and real servers, and mutants that they find."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.plain.bench import Bench, told
from tests.plain.mutants import VARIABLE

# `make plain` runs more.
SEEDS = (3,)
LONG = range(100, 110)
# For each mutant a program that it breaks whatever the root ids are.
MUTANT_SEEDS = {
    "report_in_spite_of_an_error": 3610,
    "count_each_attempt": 144,
    "ack_before": 211,
    "pass_over_culprits": 36,
    "ack_parents_alone": 81,
    "find_no_source": 1,
    "forget_the_last_outcome": 81,
}
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_a_plain_program_acks_what_its_sink_has_and_answers_for_every_message(bench: Bench, seed: int) -> None:
    check(bench, seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", LONG)
def test_more_plain_programs(bench: Bench, seed: int) -> None:
    check(bench, seed)


def check(bench: Bench, seed: int) -> None:
    result = bench.run(seed)
    assert not result.findings, f"\n{told(result, shows=True)}\nagain: python -m tests.plain --seed {seed}"


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mutant", MUTANT_SEEDS)
def test_a_product_that_breaks_a_promise_is_found(mutant: str) -> None:
    command = [sys.executable, "-m", "tests.plain", "--mutant", mutant, "--seed", str(MUTANT_SEEDS[mutant])]
    environment = os.environ | {VARIABLE: mutant}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr[-2000:]
    assert "FINDINGS" in done.stdout
