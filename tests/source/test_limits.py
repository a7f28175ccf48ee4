"""Limits for each partition: a stuck partition is paused, and does not hold up other partitions."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from acker_client.source import Batch, Retry
from acker_client.source.engine import checkpointing
from tests.source.executors import NO_SPARK, Cluster, failing, frame_of, save_all
from tests.source.logs import Log, LogSource, MemoryCheckpoint, MemoryLetters, log_of

STUCK = Retry(max_retries=10, initial_s=1000, cap_s=1000)


def source(cluster: Cluster, log: Log, **options: Any) -> LogSource:
    given = {"environment": cluster.environment(), "dead_letters": MemoryLetters(), "max_dead_share": 1.0}
    return LogSource(log, **{**given, **options})


class Stop(Exception):
    """Raised where a run would wait because it has nothing to do."""


def until_idle(cluster: Cluster, stuck: LogSource, bad: tuple[str, ...]) -> tuple[Counter[str], list[set[str]]]:
    """Run until there is nothing to do but wait. Return how often each record was emitted, and each batch's records."""
    seen, batches = Counter[str](), list[set[str]]()

    def stop(seconds: float) -> None:
        raise Stop

    def process(batch: Batch) -> None:
        values = {row.value for row in frame_of(batch).rows()}
        batches.append(values)
        seen.update(values)
        failing(lambda row: row.value.startswith(bad))(batch)

    environment = stuck.options.environment
    assert environment is not None
    object.__setattr__(stuck.options, "environment", replace(environment, sleep=stop))
    with pytest.raises(Stop):
        stuck.run(NO_SPARK, process)
    return seen, batches


@pytest.mark.parametrize("limit", [1, 5, 6, 20])
def test_a_partition_with_too_many_open_records_is_left_alone_and_all_others_are_read_to_their_end(
    cluster: Cluster, limit: int
) -> None:
    log = log_of(a=100, b=100, c=100)
    stuck = source(cluster, log, max_uncommitted_per_partition=limit, batch_records=10, retry=STUCK)
    seen, _ = until_idle(cluster, stuck, ("a",))
    assert {value for value in seen if value[0] in "bc"} == {f"{name}{k}" for name in "bc" for k in range(100)}
    read = sum(value[0] == "a" for value in seen)
    # As in storm-kafka-client, a plan may exceed the limit by at most the size of a batch less one.
    assert limit <= read <= limit + 9


def test_without_a_limit_of_its_own_one_stuck_partition_holds_up_the_others(cluster: Cluster) -> None:
    log = log_of(a=200, b=100)
    seen, _ = until_idle(cluster, source(cluster, log, batch_records=10, retry=STUCK), ("a",))
    assert Counter(value[0] for value in seen) == {"a": 100}


def test_the_limit_of_all_partitions_still_holds_where_it_is_given(cluster: Cluster) -> None:
    log = log_of(a=100, b=100)
    options: dict[str, Any] = {"max_uncommitted_per_partition": 20, "max_uncommitted": 30, "batch_records": 10}
    seen, _ = until_idle(cluster, source(cluster, log, retry=STUCK, **options), ("a", "b"))
    assert Counter(value[0] for value in seen) == {"a": 20, "b": 10}


def test_replays_may_always_go_however_full_their_partition_is(cluster: Cluster) -> None:
    log = log_of(a=50)
    batches: list[tuple[int, int]] = []

    def process(batch: Batch) -> None:
        batches.append((batch.records, batch.replays))
        failing(lambda row: batch.number <= 3)(batch)

    quick = Retry(max_retries=5, initial_s=0, cap_s=0)
    full = source(cluster, log, max_uncommitted_per_partition=5, batch_records=5, retry=quick)
    summary = full.run(NO_SPARK, process)
    assert batches == [(5, 0), (5, 5), (5, 5), (5, 5), *[(5, 0)] * 9]
    assert (summary.acked, summary.replayed) == (50, 15)


def test_a_poison_record_goes_to_the_dead_letters_its_partitions_checkpoint_passes_it_and_others_never_wait(
    cluster: Cluster,
) -> None:
    log, checkpoint, letters = log_of(a=400, b=400), MemoryCheckpoint(), MemoryLetters()
    held_up: list[int] = []
    per_batch: list[Counter[str]] = []

    def process(batch: Batch) -> None:
        rows = frame_of(batch).rows()
        per_batch.append(Counter(row.value[0] for row in rows))
        failing(lambda row: row.value == "a7")(batch)
        if "b" in checkpoint.saved:
            held_up.append(checkpoint.saved["b"].done.holes)

    options: dict[str, Any] = {"checkpoint": checkpoint, "dead_letters": letters, "batch_records": 40}
    options["retry"] = Retry(max_retries=3, initial_s=0, cap_s=0)
    summary = source(cluster, log, max_uncommitted_per_partition=30, **options).run(NO_SPARK, process)
    assert (summary.acked, summary.dead_lettered) == (799, 1)
    assert [letter.origin["offset"] for letter in letters.letters] == [7]
    assert {name: each.done.to_runs() for name, each in checkpoint.saved.items()} == {"a": [400], "b": [400]}
    assert not any(held_up)
    # Only the three replays of one record are emitted beyond the 800 records. So 21 batches of up to 40 are enough.
    assert (summary.batches, summary.replayed) == (21, 3)


def test_holes_are_bounded_in_each_partition_and_one_that_is_full_of_them_holds_up_no_other(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(checkpointing, "HOLES_MAX", 6)
    log, checkpoint = log_of(a=60, b=60), MemoryCheckpoint()
    odd = tuple(f"a{k}" for k in range(1, 60, 2))

    def stop(seconds: float) -> None:
        raise Stop

    environment = replace(cluster.environment(), sleep=stop)
    options: dict[str, Any] = {"environment": environment, "checkpoint": checkpoint, "retry": STUCK}
    stuck = source(cluster, log, batch_records=8, **options)
    with pytest.raises(Stop):
        stuck.run(NO_SPARK, failing(lambda row: row.value in odd))
    assert checkpoint.saved["b"].done.to_runs() == [60]
    assert 6 <= checkpoint.saved["a"].done.holes <= 9
    assert checkpoint.saved["a"].done.reach < 24
    (line,) = [line for line in caplog.messages if "stretches of open records" in line]
    assert line.startswith("partition a: 3 stretches of open records lie before done ones, and a checkpoint holds 6")
    summary = stuck.summary()
    assert summary.holes == summary.holes_of_fullest >= 6
    assert "in the partition that has the most" in str(summary)
    options["environment"] = cluster.environment()
    again = source(cluster, log, batch_records=8, **options)
    assert again.run(NO_SPARK, save_all).open == 0
    assert {name: each.done.to_runs() for name, each in checkpoint.saved.items()} == {"a": [60], "b": [60]}
