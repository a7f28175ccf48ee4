"""Random trees and DAGs on the real server, while calls are lost, duplicated and delayed in both directions."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from acker_client import Settlement, Verdict
from acker_client.rpc.transport import GrpcTransport
from tests.faults.simulation import Simulation


def simulated(server: Any, seed: int, rate: float, **options: Any) -> Simulation:
    # Waits take a hundredth of their time: faults are injected, so nothing needs time to recover.
    return Simulation(lambda: GrpcTransport(server.address), seed, rate, sleep=lambda s: time.sleep(s / 100), **options)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(10))
def test_a_thousand_trees_are_each_told_once_what_became_of_them(server: Any, seed: int) -> None:
    # A hundred trees for each of ten seeds. One in five calls meets a fault.
    simulation = simulated(server, seed, 0.2)
    simulation.grow(range(100))
    simulation.finish()
    assert simulation.verdicts() == simulation.expected()
    assert set(simulation.verdicts().values()) == {Verdict.ACKED, Verdict.FAILED}
    assert all(simulation.faults.values()), "every kind of fault was met"
    assert server.shard.stats.pending == 0
    simulation.close()


@pytest.mark.parametrize("settlement", list(Settlement))
def test_held_batches_are_settled_over_a_bad_network(server: Any, settlement: Settlement) -> None:
    simulation = simulated(server, 7, 0.2)
    for number in range(1, 6):
        simulation.open_batch(number, 40)
        simulation.read(number, 0, 25)
        simulation.read(number, 25, 35)
        for _ in range(60):
            if simulation.forest.is_open:
                simulation.step()
        for worker in simulation.workers:
            simulation.flush(worker)
        simulation.settle(number, settlement)
        assert len(simulation.reported) == 40 * number
    assert simulation.unread() == 5 * 5
    simulation.close()


def test_a_server_that_comes_back_without_its_state_is_told_and_the_replay_is_acked(
    start_server: Callable[..., Any],
) -> None:
    first = start_server()
    port = int(first.address.rpartition(":")[2])
    simulation = simulated(first, 3, 0.1)
    simulation.grow(range(30))
    for _ in range(10):
        simulation.emit()
    simulation.flush(simulation.source)
    first.stop()
    start_server(port=port)
    lost = set(simulation.forest.started) - set(simulation.reported)
    simulation.await_lost(lost)
    simulation.grow(range(30))
    simulation.finish()
    simulation.close()
    assert simulation.verdicts() == {**simulation.expected(), **dict.fromkeys(lost, Verdict.LOST)}
