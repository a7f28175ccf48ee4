"""Mutants: each mistake that is put into the real code is found within two thousand seeds."""

from __future__ import annotations

import pytest

from tests.simulation.case import Case
from tests.simulation.mutants import MUTANTS, Mutant
from tests.simulation.world import simulate

SEEDS = 2000


@pytest.mark.long
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mistake_in_the_code_is_found(mutant: Mutant) -> None:
    with mutant.at_work():
        assert any(simulate(Case.of(seed)).kind for seed in range(1, SEEDS + 1))
