"""Mutants: the simulation finds a mistake that is put into the real code."""

from __future__ import annotations

import pytest

from tests.simulation.mutants import MUTANTS, Mutant
from tests.simulation.world import Result, simulate

# A seed may stop showing its mistake when the code changes: another one behind it shows it.
SEEDS_MORE = 100
# The smallest seed that shows it: each within 200 cases in which the rule matters.
KNOWN = {
    "first word wins": 13,
    "a no is stronger than ACKED": 13,
    "a new registration taken for the old one": 78,
    "a generation in a greeting ignored": 5,
    "nobody is ever gone": 229,
    "an older view believed": 29,
    "absence from an older view counted": 5,
    "old news counted against a member": 8,
    "an ensemble without its data taken for an older one": 11,
    "no time to register in a new ensemble": 3,
    "no wait for trust after a lost session": 9,
    "who is away is gone": 74,
    "who drains is gone": 30,
    "who drains or is away is taken for active": 7,
    "who hears nobody takes the others for gone": 7,
    "time without a question counted as silence": 10,
    "silence counted where a registry lists the server": 33,
    "a silent replica left out of a joined source": 12,
    "a replica left out of a report alone": 51,
    "a lease that ran out unnoticed": 175,
    "another generation for a restored state": 39,
    "child edges without the digest of what their parent became": 1,
    "an old generation believed": 15,
    "a batch done without evidence": 69,
    "reports forgotten at once": 17,
    "an identity for each attempt": 23,
    "a conflict forgiven": 40,
    "outcomes forgotten when they were sent": 9,
    "a vote of a replica that is out counted": 147,
    "a vote of a server that a task went on without counted": 147,
    "a section cut in two": 251,
    "a lease that nobody keeps while a flush waits": 3,
}
# Those that nearly any case shows.
PLAIN = ("an init counted twice", "a report applied in half", "children not in the tree", "a fail taken for an ack")


def first_failure(mutant: Mutant, seeds: range) -> Result | None:
    for case in filter(mutant.matters, map(mutant.case, seeds)):
        with mutant.at_work():
            result = simulate(case, strict=True)
        # What fails without the mistake, too, does not show it.
        is_shown = result.kind and mutant.kind in ("", result.kind)
        if is_shown and simulate(result.case, strict=True).kind != result.kind:
            return result
    return None


@pytest.mark.parametrize("mutant", [each for each in MUTANTS if each.name in PLAIN], ids=lambda mutant: mutant.name)
def test_a_plain_mistake_is_found_at_once(mutant: Mutant) -> None:
    assert first_failure(mutant, range(1, 21)) is not None


@pytest.mark.long
@pytest.mark.parametrize("mutant", [each for each in MUTANTS if each.name not in PLAIN], ids=lambda mutant: mutant.name)
def test_a_mistake_in_the_code_is_found(mutant: Mutant) -> None:
    assert first_failure(mutant, range(KNOWN[mutant.name], KNOWN[mutant.name] + SEEDS_MORE)) is not None
