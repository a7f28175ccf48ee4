"""Random trees and DAGs through the real server, while calls are lost, doubled and late on either side of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from play import Play

from acker_client import Settlement, Verdict
from acker_client.members.transport import GrpcTransport


def played(server: Any, seed: int, rate: float, **options: Any) -> Play:
    # Waits are a hundredth of what they are: the faults are injected, nobody has to recover meanwhile.
    return Play(lambda: GrpcTransport(server.address), seed, rate, sleep=lambda s: time.sleep(s / 100), **options)


@pytest.mark.parametrize("seed", range(10))
def test_a_thousand_trees_are_each_told_once_what_became_of_them(server: Any, seed: int) -> None:
    # Ten times a hundred: one in five calls meets a fault.
    play = played(server, seed, 0.2)
    play.grow(range(100))
    play.finish()
    assert play.verdicts() == play.expected()
    assert set(play.verdicts().values()) == {Verdict.ACKED, Verdict.FAILED}
    assert all(play.faults.values()), "every kind of fault was met"
    assert server.shard.stats.pending == 0
    assert play.times_lost == 0
    play.close()


@pytest.mark.parametrize("settlement", list(Settlement))
def test_held_batches_are_settled_over_a_bad_network(server: Any, settlement: Settlement) -> None:
    play = played(server, 7, 0.2)
    for number in range(1, 6):
        play.open_batch(number, 40)
        play.read(number, 0, 25)
        play.read(number, 25, 35)
        for _ in range(60):
            if play.forest.is_open:
                play.step()
        for worker in play.workers:
            play.flush(worker)
        play.settle(number, settlement)
        assert len(play.told) == 40 * number
    assert play.unread() == 5 * 5
    play.close()


def test_a_server_that_comes_back_without_its_state_is_told_and_the_replay_is_acked(
    start_server: Callable[..., Any],
) -> None:
    first = start_server()
    port = int(first.address.rpartition(":")[2])
    play = played(first, 3, 0.1)
    play.grow(range(30))
    for number in range(100, 110):
        root, _ = play.forest.plant(number)
        play.source.init(root, 5)
    play.flush(play.source)
    first.stop()
    start_server(port=port)
    while not play.watch(0.1).generation_changed:
        pass
    lost = set(play.forest.started) - set(play.told)
    play.grow(range(1000, 1030))
    for worker in play.workers:
        play.flush(worker)
    kept = {root: verdict for root, verdict in play.expected().items() if root not in lost}
    for _ in range(1000):
        if kept.items() <= play.verdicts().items():
            break
        play.watch(0.05)
    play.close()
    assert kept.items() <= play.verdicts().items()
    assert play.times_lost == 1
