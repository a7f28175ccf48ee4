"""Mutants: each mistake that is put into the real code is found within two thousand seeds."""

from __future__ import annotations

import pytest

from tests.simulation.case import Case
from tests.simulation.mutants import MUTANTS, Mutant
from tests.simulation.world import Result, simulate

SEEDS = 2000
# Those that nearly any case shows.
PLAIN = ("an init counted twice", "a report applied in half", "children not in the tree", "a fail taken for an ack")


def first_failure(mutant: Mutant, seeds: int) -> Result | None:
    for seed in range(1, seeds + 1):
        with mutant.at_work():
            result = simulate(Case.of(seed))
        # What fails without the mistake, too, does not show it.
        if result.kind and mutant.kind in ("", result.kind) and simulate(result.case).kind != result.kind:
            return result
    return None


@pytest.mark.parametrize("mutant", [each for each in MUTANTS if each.name in PLAIN], ids=lambda mutant: mutant.name)
def test_a_plain_mistake_is_found_at_once(mutant: Mutant) -> None:
    assert first_failure(mutant, 20) is not None


@pytest.mark.long
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mistake_in_the_code_is_found(mutant: Mutant) -> None:
    assert first_failure(mutant, SEEDS) is not None
