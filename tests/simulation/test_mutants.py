"""Mutants: a mistake that is put into the real code is found within two hundred seeds."""

from __future__ import annotations

import pytest

from tests.simulation.case import Case
from tests.simulation.mutants import MUTANTS, Mutant
from tests.simulation.world import Result, simulate

SEEDS = 200
# A seed that shows it. The other mutants wait for a hunt over all seeds.
KNOWN = {
    "first word wins": 13,
    "a no is stronger than ACKED": 13,
    "a lease that nobody keeps while a flush waits": 931,
    "a vote of a replica that is out counted": 147,
    "a vote of a server that a task went on without counted": 147,
}
# Those that nearly any case shows.
PLAIN = ("an init counted twice", "a report applied in half", "children not in the tree", "a fail taken for an ack")


def first_failure(mutant: Mutant, seeds: range) -> Result | None:
    for case in filter(mutant.matters, map(Case.of, seeds)):
        with mutant.at_work():
            result = simulate(case)
        # What fails without the mistake, too, does not show it.
        if result.kind and mutant.kind in ("", result.kind) and simulate(result.case).kind != result.kind:
            return result
    return None


@pytest.mark.parametrize("mutant", [each for each in MUTANTS if each.name in PLAIN], ids=lambda mutant: mutant.name)
def test_a_plain_mistake_is_found_at_once(mutant: Mutant) -> None:
    assert first_failure(mutant, range(1, 21)) is not None


@pytest.mark.long
@pytest.mark.parametrize("mutant", [each for each in MUTANTS if each.name in KNOWN], ids=lambda mutant: mutant.name)
def test_a_mistake_in_the_code_is_found(mutant: Mutant) -> None:
    assert first_failure(mutant, range(KNOWN[mutant.name], KNOWN[mutant.name] + 1)) is not None
