"""The whole client against a real shard in memory, over networks that lose, double, delay and reorder calls."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acker_client import Settlement, Verdict
from acker_testing import LocalServer, SimulatedTime
from tests.faults.simulation import Simulation

SEEDS = st.integers(0, 2**32 - 1)
RATES = st.sampled_from([0.0, 0.1, 0.3, 0.6])


def started(seed: int, rate: float, **options: Any) -> tuple[Simulation, LocalServer, SimulatedTime]:
    time = SimulatedTime()
    server = LocalServer(clock=time.clock, sleep=time.sleep)
    simulation = Simulation(
        lambda: server.connect("in-memory"), seed, rate, clock=time.clock, sleep=time.sleep, **options
    )
    return simulation, server, time


@pytest.mark.slow
@settings(max_examples=60)
@given(SEEDS, RATES)
def test_every_tree_has_one_outcome_whatever_the_network_does(seed: int, rate: float) -> None:
    simulation, server, _ = started(seed, rate)
    simulation.grow(range(20))
    simulation.finish()
    assert simulation.verdicts() == simulation.expected()
    assert server.shard.stats.pending == 0


@settings(max_examples=40)
@given(SEEDS, RATES, st.sampled_from(list(Settlement)), st.integers(0, 30), st.integers(0, 10))
def test_a_settled_batch_leaves_no_root_without_its_outcome(
    seed: int, rate: float, settlement: Settlement, steps: int, unread: int
) -> None:
    simulation, _, _ = started(seed, rate)
    simulation.open_batch(1, 20)
    simulation.read(1, 0, 10)
    simulation.read(1, 10, 20 - unread)
    for _ in range(steps):
        if simulation.forest.is_open:
            simulation.step()
    for worker in simulation.workers:
        simulation.flush(worker)
    simulation.watch()
    assert Verdict.ACKED not in simulation.verdicts().values(), "a held root was ACKED before its batch was settled"
    simulation.settle(1, settlement)
    assert len(simulation.reported) == 20
    assert simulation.unread() == unread


@pytest.mark.long
@settings(max_examples=30)
@given(SEEDS, RATES)
def test_a_restart_with_state_is_not_even_noticed(seed: int, rate: float) -> None:
    simulation, server, _ = started(seed, rate)
    simulation.grow(range(8))
    server.stop()
    assert not simulation.source.watch(0.5).answered
    assert simulation.source.silent_for_s > 0
    server.start()
    simulation.grow(range(8, 16))
    simulation.finish()
    assert simulation.verdicts() == simulation.expected()


@pytest.mark.long
@settings(max_examples=30)
@given(SEEDS, RATES)
def test_a_restart_without_state_loses_each_root_that_was_pending_once_and_never_ends_in_a_false_ack(
    seed: int, rate: float
) -> None:
    simulation, server, _ = started(seed, rate)
    simulation.grow(range(10))
    server.start(with_state=False)
    lost = set(simulation.forest.started) - set(simulation.reported)
    simulation.await_lost(lost)
    # The replay has other root ids.
    simulation.grow(range(20))
    simulation.finish()
    assert simulation.verdicts() == {**simulation.expected(), **dict.fromkeys(lost, Verdict.LOST)}


@pytest.mark.parametrize("seed", range(20))
def test_pending_roots_are_lost_with_the_lease_even_if_the_answer_is_lost_too(seed: int) -> None:
    simulation, _, time = started(seed, 0.4, faults=["request lost", "reply lost"])
    root = simulation.emit()
    simulation.flush(simulation.source)
    time.sleep(31.0)
    for _ in range(20):
        simulation.watch(0.1)
    assert simulation.verdicts() == {root: Verdict.LOST}
