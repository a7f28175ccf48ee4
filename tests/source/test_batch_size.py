"""The size of batches, which a source chooses by the time that the work on earlier batches took."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acker_client.source import Batch, Retry
from acker_client.source.records.batch_size import FIRST, GROWTH, LARGEST, SMALLEST, TARGET_S, BatchSize
from tests.source.executors import NO_SPARK, Cluster, Timers, save_all
from tests.source.logs import Log, LogSource, MemoryLetters


def sizes(size: BatchSize, seconds_a_record: float, batches: int = 6) -> list[int]:
    found = [size.records]
    for _ in range(batches):
        size.note_work(size.records, size.records * seconds_a_record)
        found.append(size.records)
    return found


def test_a_size_of_the_users_own_never_changes() -> None:
    assert set(sizes(BatchSize(7, LARGEST), 100.0)) == {7}


@pytest.mark.parametrize(
    ("seconds_a_record", "records"), [(1e-6, LARGEST), (1e-4, 200_000), (1e-3, 20_000), (1.0, SMALLEST), (0.0, LARGEST)]
)
def test_a_batch_gets_what_is_worked_on_in_the_target_time(seconds_a_record: float, records: int) -> None:
    assert sizes(BatchSize(None, 10 * LARGEST), seconds_a_record)[-1] == records


@given(st.lists(st.tuples(st.integers(1, LARGEST), st.floats(0, 1e6)), max_size=20), st.integers(1, 10 * LARGEST))
def test_a_chosen_size_keeps_its_bounds_and_grows_at_most_fourfold(batches: list[tuple[int, float]], most: int) -> None:
    size = BatchSize(None, most)
    for records, seconds in batches:
        before = size.records
        size.note_work(records, seconds)
        assert min(SMALLEST, most) <= size.records <= min(LARGEST, most)
        assert size.records <= max(before, GROWTH * records)


def test_a_quick_batch_that_is_not_full_changes_nothing_and_a_slow_one_makes_batches_smaller() -> None:
    size = BatchSize(None, LARGEST)
    size.note_work(100, 0.3)
    assert size.records == FIRST
    size.note_work(30_000, 10 * TARGET_S)
    assert size.records == SMALLEST


def test_work_takes_a_quarter_of_the_timeout_at_most() -> None:
    assert sizes(BatchSize(None, LARGEST, timeout_s=60.0), 1e-3)[-1] == 15_000


def test_batches_that_time_out_become_smaller_until_one_ends_in_time() -> None:
    size, seconds_a_record, timeout_s = BatchSize(None, LARGEST, timeout_s=40.0), 0.1, 40.0
    while (needed_s := size.records * seconds_a_record) > timeout_s:
        before = size.records
        size.note_work(size.records, min(needed_s, timeout_s), has_timed_out=True)
        assert size.records == before // 4
    size.note_work(size.records, needed_s)
    assert size.records == 390, "slow work that has ended makes no batch larger"


@pytest.mark.long
def test_a_source_whose_batches_time_out_makes_them_smaller(cluster: Cluster) -> None:
    log, timers, opened = Log(), Timers(), list[int]()
    log.append("a", 300_000)
    environment = replace(cluster.environment(), timer=timers.start)

    def process(batch: Batch) -> None:
        if not batch.replays:
            opened.append(batch.records)
        needed_s = batch.records / 1000
        cluster.sleep(min(needed_s, 40.0))
        if needed_s > 40.0:
            timers.expire()
            raise RuntimeError("the jobs were cancelled")
        save_all(batch)

    source = LogSource(
        log, environment=environment, message_timeout_s=40.0, retry=Retry(1), dead_letters=MemoryLetters()
    )
    summary = source.run(NO_SPARK, process)
    assert (summary.acked, summary.dead_lettered) == (300_000, 0)
    assert opened[0] == 100_000
    assert opened.count(10_000) >= 2, opened
    assert max(opened[1:]) <= 40_000, "no batch is larger than what can be done in time"


def test_a_source_without_a_size_learns_it_from_its_batches(cluster: Cluster) -> None:
    log, seen = Log(), list[int]()
    log.append("a", 260_000)

    def process(batch: Batch) -> None:
        seen.append(batch.records)
        save_all(batch)
        cluster.sleep(batch.records / 4000)

    source = LogSource(log, environment=cluster.environment())
    assert source.run(NO_SPARK, process).acked == 260_000
    assert seen == [100_000, 80_000, 80_000]
