"""Schedules on real servers: some seeds keep every promise, and the oracle finds clients that break one."""

from __future__ import annotations

import pytest

from tests.schedules.mutants import MUTANTS
from tests.schedules.schedule import Schedule
from tests.schedules.seeds import run

# `make schedules` runs more.
SEEDS = range(1, 13)
# Seeds whose faults a mutant needs: a fail that does not reach a server, and a server that is killed.
MUTANT_SEEDS = (10, 8, 20, 16, 30, 19)


def test_a_seed_is_always_the_same_schedule_and_others_are_other_ones() -> None:
    assert Schedule.of(4) == Schedule.of(4)
    assert len({str(Schedule.of(seed)) for seed in range(50)}) == 50


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
def test_plain_clients_keep_every_promise_on_real_servers(seed: int) -> None:
    result = run(seed)
    lines = [str(result.schedule), *result.transcript, *result.findings]
    assert not result.findings, "\n".join(lines)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mutant", MUTANTS)
def test_clients_that_break_a_promise_are_found(mutant: str) -> None:
    assert any(run(seed, mutant).findings for seed in MUTANT_SEEDS)
