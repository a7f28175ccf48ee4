"""After a pause, a server handles the calls that arrived during it before it lets leases expire."""

from __future__ import annotations

import itertools
import random

import pytest

from acker_protocol.messages import Limits, Verdict, Watch, WatchReply
from acker_service.core.running_time import PAUSE_S, RESUME_S, RunningTime
from acker_service.core.shard import Shard
from acker_service.shared_shard import SharedShard
from tests.service.caller import acks, inits, roots_of

TICK_S = 0.05


class Paused:
    """A shard whose clock is set by hand."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.shard = Shard(incarnation=1, generation=2)
        self.shared = SharedShard(self.shard, clock=lambda: self.now, max_watches=4, linger_s=0.0)

    def tick_for(self, seconds: float) -> None:
        for _ in range(round(seconds / TICK_S)):
            self.now += TICK_S
            self.shared.tick()

    def watch(self, lease_ms: int = 5_000, limits: Limits = Limits()) -> WatchReply:
        return self.shared.watch(Watch("test", 7, lease_ms, limits))


def test_a_pause_longer_than_a_lease_ends_no_lease_before_its_source_was_heard() -> None:
    paused = Paused()
    paused.watch()
    paused.tick_for(4.9)
    paused.now += 600.0
    paused.tick_for(RESUME_S / 2)
    assert not paused.watch().is_new
    paused.tick_for(4.9)
    assert not paused.watch().is_new


def test_a_lease_that_is_not_renewed_ends_after_a_pause_too() -> None:
    paused = Paused()
    paused.watch()
    paused.tick_for(4.0)
    paused.now += 600.0
    paused.tick_for(RESUME_S + 0.5)
    assert paused.shard.stats.sources == 1
    paused.tick_for(1.0)
    assert paused.shard.stats.sources == 0


def test_a_deadline_does_not_pass_during_a_pause() -> None:
    paused = Paused()
    limits = Limits(message_timeout_ms=10_000)
    paused.watch(60_000, limits)
    roots = roots_of(range(2))
    paused.shared.apply(inits(roots, 0))
    paused.tick_for(9.0)
    paused.now += 60.0
    paused.tick_for(RESUME_S / 2)
    paused.shared.apply(acks(roots[:1], 1))
    paused.tick_for(RESUME_S + 2.0)
    outcomes = paused.watch(60_000, limits).outcomes
    assert outcomes.root_ids.tolist() == roots.tolist()
    assert outcomes.verdicts.tolist() == [Verdict.ACKED, Verdict.TIMED_OUT]


def test_a_watch_served_first_after_a_pause_does_not_hide_it_from_the_others() -> None:
    paused = Paused()
    paused.shared.watch(Watch("other", 8, 5_000))
    paused.watch()
    paused.tick_for(4.9)
    paused.now += 600.0
    assert not paused.watch().is_new
    paused.tick_for(RESUME_S / 2)
    assert not paused.shared.watch(Watch("other", 8, 5_000)).is_new


@pytest.mark.parametrize("step_s", [1.0, 1.5, 3.0])
def test_time_goes_on_in_a_server_whose_every_tick_is_late(step_s: float) -> None:
    time = RunningTime(0.0)
    ran_s = [time.at(n * step_s) for n in range(601)][-1]
    assert ran_s > 300.0
    # Not every late tick counts as a pause, or the log would have a line for each.
    assert time.pauses < 60


def test_a_timeout_comes_in_a_server_whose_every_tick_is_late() -> None:
    paused = Paused()
    limits = Limits(message_timeout_ms=30_000)
    paused.watch(3_600_000, limits)
    paused.shared.apply(inits(roots_of(range(2)), 0))
    for _ in range(60):
        paused.now += 1.5
        paused.shared.tick()
    assert paused.watch(3_600_000, limits).outcomes.verdicts.tolist() == [Verdict.TIMED_OUT] * 2


def test_a_second_pause_soon_after_the_first_costs_a_second_at_most() -> None:
    paused = Paused()
    paused.watch()
    paused.tick_for(3.0)
    paused.now += 600.0
    paused.tick_for(RESUME_S + 0.5)
    paused.now += 600.0
    paused.shared.tick()
    assert not paused.watch().is_new


def test_time_that_passes_as_planned_is_counted_whole() -> None:
    time = RunningTime(5.0)
    assert [time.at(5.0 + n / 4) for n in range(100)] == [5.0 + n / 4 for n in range(100)]
    assert (time.pauses, time.paused) == (0, 0.0)


@pytest.mark.parametrize("seed", range(20))
def test_running_time_never_goes_back_and_never_jumps(seed: int) -> None:
    chance = random.Random(seed)
    now, time = 0.0, RunningTime(0.0)
    seen = [0.0]
    for _ in range(500):
        now += chance.choice([0.0, 0.05, 0.5, -0.3, 3.0, 100.0])
        seen.append(time.at(now))
    steps = [later - sooner for sooner, later in itertools.pairwise(seen)]
    assert min(steps) >= -1e-9
    assert max(steps) <= PAUSE_S + 1e-9
