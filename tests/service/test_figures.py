"""Figures: age and number of pending roots per source, computed without a scan of the roots."""

from __future__ import annotations

from typing import Any

import pytest

from acker_protocol.messages import Limits, OpenBatch, Settle, Settlement, Watch
from acker_service.core.shard import Shard
from acker_service.core.stats import SourceStats
from tests.service.caller import SESSION, acks, inits, roots_of


@pytest.fixture
def shard() -> Shard:
    shard = Shard(incarnation=1, generation=2)
    shard.watch(Watch("orders", SESSION, 600_000), 0.0)
    return shard


def tick(shard: Shard, until: float) -> None:
    """Tick every 50 ms, as the server does."""
    for step in range(int(shard._state.now * 20) + 1, int(until * 20) + 1):
        shard.tick(step / 20)


def test_where_nothing_is_pending_nothing_has_an_age(shard: Shard) -> None:
    shard.open_batch(OpenBatch(SESSION, 1, 1 << 40, 10), 0.0)
    assert shard.oldest_pending_age_s(100.0) == 0.0


def test_a_batch_is_as_old_as_its_first_root(shard: Shard) -> None:
    shard.open_batch(OpenBatch(SESSION, 1, 1 << 40, 10), 0.0)
    tick(shard, 30.0)
    shard.apply(inits(roots_of(range(5)), 0, batch=1), 30.0)
    tick(shard, 40.0)
    shard.apply(inits(roots_of(range(5, 10)), 1, batch=1), 40.0)
    assert shard.oldest_pending_age_s(50.0) == pytest.approx(20.0, abs=0.06)
    shard.settle([Settle(SESSION, 1, Settlement.DONE)], 50.0)
    assert shard.oldest_pending_age_s(51.0) == 0.0


def test_the_oldest_of_all_batches_and_streams_counts(shard: Shard) -> None:
    for number, at in ((1, 10.0), (2, 20.0)):
        tick(shard, at)
        shard.open_batch(OpenBatch(SESSION, number, number << 40, 5), at)
        shard.apply(inits(roots_of(range(5), base=number << 40), number, batch=number), at)
    assert shard.oldest_pending_age_s(30.0) == pytest.approx(20.0, abs=0.06)
    shard.settle([Settle(SESSION, 1, Settlement.ABANDON)], 30.0)
    assert shard.oldest_pending_age_s(30.0) == pytest.approx(10.0, abs=0.06)


def test_a_stream_is_as_old_as_its_time_with_something_pending(shard: Shard) -> None:
    tick(shard, 10.0)
    shard.apply(inits(roots_of([1, 2]), 0), 10.0)
    tick(shard, 15.0)
    assert shard.oldest_pending_age_s(15.0) == pytest.approx(5.0, abs=0.06)
    shard.apply(acks(roots_of([1, 2]), 1), 15.0)
    tick(shard, 20.0)
    shard.apply(inits(roots_of([3]), 2), 20.0)
    assert shard.oldest_pending_age_s(21.0) == pytest.approx(1.0, abs=0.06)


def test_a_stream_that_is_never_empty_is_no_older_than_its_message_timeout() -> None:
    shard = Shard(incarnation=1, generation=2)
    shard.watch(Watch("orders", SESSION, 600_000, Limits(30_000)), 0.0)
    for second in range(0, 120, 10):
        tick(shard, float(second))
        shard.apply(inits(roots_of([second]), second), float(second))
    assert shard.oldest_pending_age_s(110.0) == 30.0


def test_an_index_that_is_taken_anew_does_not_bring_an_age_along(shard: Shard) -> None:
    shard.open_batch(OpenBatch(SESSION, 1, 1 << 40, 5), 0.0)
    shard.apply(inits(roots_of(range(5)), 0, batch=1), 0.0)
    shard.settle([Settle(SESSION, 1, Settlement.DONE)], 90.0)
    shard.open_batch(OpenBatch(SESSION, 2, 2 << 40, 5), 90.0)
    shard.apply(inits(roots_of(range(5), base=2 << 40), 1, batch=2), 90.0)
    assert shard.oldest_pending_age_s(91.0) == 1.0


def test_ages_travel_with_the_state_to_another_clock(shard: Shard) -> None:
    shard.open_batch(OpenBatch(SESSION, 1, 1 << 40, 5), 4.0)
    shard.apply(inits(roots_of(range(5)), 0, batch=1), 4.0)
    again = Shard.restore(shard.dump(10.0), incarnation=3, now=5000.0)
    assert again.oldest_pending_age_s(5001.0) == pytest.approx(7.0)
    age_s: Any = pytest.approx(11.0)
    assert again.source_stats(5001.0) == [SourceStats("orders", 5, age_s)]


def test_a_source_has_its_pending_roots_and_the_time_since_it_watched(shard: Shard) -> None:
    shard.watch(Watch("returns", 8, 600_000), 2.0)
    shard.apply(inits(roots_of([1, 2, 3]), 0, session=8), 2.0)
    shard.open_batch(OpenBatch(8, 1, 1 << 50, 9), 2.0)
    shard.apply(inits(roots_of(range(4), base=1 << 50), 1, session=8, batch=1), 3.0)
    shard.watch(Watch("orders", SESSION, 600_000), 5.0)
    assert shard.source_stats(6.0) == [SourceStats("orders", 0, 1.0), SourceStats("returns", 7, 4.0)]
