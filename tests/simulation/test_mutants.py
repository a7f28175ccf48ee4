"""Mutants: the simulation finds a mistake that is put into the real code."""

from __future__ import annotations

import pytest

from tests.simulation.mutants import MUTANTS, Mutant
from tests.simulation.world import Result, simulate

# After a code change a seed may no longer show its mistake. So the test also tries this many of the next seeds.
SEEDS_MORE = 100
# For each mutant the smallest seed that shows it, among the first 200 cases in which the mutant matters.
KNOWN = {
    "the first vote wins": 13,
    "a negative vote overrides ACKED": 13,
    "a new registration taken for the old one": 78,
    "a generation in a greeting ignored": 5,
    "no server is ever gone": 229,
    "an older view believed": 29,
    "absence from an older view counted": 5,
    "old news counted against a member": 8,
    "an ensemble without its data taken for an older one": 123,
    "no time to register in a new ensemble": 3,
    "no wait for trust after a lost session": 23,
    "a server that starts takes those it cannot see for gone": 2,
    "an away server is treated as gone": 334,
    "a draining server is treated as gone": 30,
    "a draining or away server is treated as active": 7,
    "an isolated process treats all servers as gone": 7,
    "time without a question counted as silence": 10,
    "silence counted where a registry lists the server": 33,
    "a silent replica left out of a joined source": 12,
    "a replica left out of a report alone": 1,
    "a lease that ran out unnoticed": 175,
    "another generation for a restored state": 39,
    "child edges without the digest of what their parent became": 1,
    "an old generation believed": 15,
    "a batch done without evidence": 69,
    "reports forgotten at once": 17,
    "an identity for each attempt": 23,
    "a conflict forgiven": 40,
    "outcomes forgotten when they were sent": 9,
    "votes of left-out replicas count": 147,
    "votes of servers that a task left out count": 147,
    "a section cut in two": 251,
    "leases not renewed while a flush waits": 3,
}
# Mutants that nearly every case shows.
PLAIN = ("an init counted twice", "a report applied in half", "children not in the tree", "a fail taken for an ack")


def first_failure(mutant: Mutant, seeds: range) -> Result | None:
    for case in filter(mutant.matters, map(mutant.case, seeds)):
        with mutant.at_work():
            result = simulate(case, strict=True)
        # A case that also fails without the mistake does not show it.
        is_shown = result.kind and mutant.kind in ("", result.kind)
        if is_shown and simulate(result.case, strict=True).kind != result.kind:
            return result
    return None


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("mutant", [each for each in MUTANTS if each.name in PLAIN], ids=lambda mutant: mutant.name)
def test_a_plain_mistake_is_found_at_once(mutant: Mutant) -> None:
    assert first_failure(mutant, range(1, 21)) is not None


@pytest.mark.long
@pytest.mark.parametrize("mutant", [each for each in MUTANTS if each.name not in PLAIN], ids=lambda mutant: mutant.name)
def test_a_mistake_in_the_code_is_found(mutant: Mutant) -> None:
    assert first_failure(mutant, range(KNOWN[mutant.name], KNOWN[mutant.name] + SEEDS_MORE)) is not None
