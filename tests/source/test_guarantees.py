"""The guarantees: which records are emitted again after a crash, which are never retried, when the checkpoint moves."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from acker_client.source import Batch, Committed, Files, Retry, SourceError
from acker_client.source.engine.run import Run
from tests.source.executors import NO_SPARK, Cluster, breaking, failing, frame_of, save_all
from tests.source.groups import Group, Membership, SharedCheckpoint
from tests.source.logs import Log, LogSource, MemoryCheckpoint, log_of
from tests.source.test_port import Noted

RECORDS = 40
BATCH = 5
WEAK = ("at_most_once", "no_guarantee")


class Crash(Exception):
    """The driver dies here."""


@pytest.fixture
def log() -> Log:
    return log_of(a=RECORDS)


def source(cluster: Cluster, log: Log, **options: Any) -> LogSource:
    given = {"environment": cluster.environment(), "batch_records": BATCH, "retry": Retry(initial_s=0, cap_s=0)}
    return LogSource(log, **{**given, **options})


def crashing(run: Run, batches: int, where: str, seen: Counter[str]) -> None:
    """Process ``batches`` batches, two seconds each, and die in the next one as by kill -9."""
    run.__enter__()
    for number in range(1, batches + 2):
        batch = run.next_batch()
        assert batch is not None
        rows = frame_of(batch).rows()
        seen.update(row.value for row in rows)
        if number > batches and where == "emitted":
            return
        bad = {row.root: "bad" for row in rows if row.value == "a3"}
        frame_of(batch).fail(bad)
        frame_of(batch).ack(row for row in rows if row.root not in bad)
        if number > batches:
            return
        run.settle_batch(batch)
        run._environment.sleep(2.0)


def restarted(cluster: Cluster, log: Log, seen: Counter[str], **options: Any) -> None:
    def process(batch: Batch) -> None:
        seen.update(row.value for row in frame_of(batch).rows())
        save_all(batch)

    source(cluster, log, **options).run(NO_SPARK, process)


def values(*ranges: range) -> set[str]:
    return {f"a{k}" for each in ranges for k in each}


@pytest.mark.parametrize("where", ["emitted", "processed"])
@pytest.mark.parametrize("batches", range(8))
def test_at_least_once_a_crash_costs_the_batch_under_way_again_and_nothing_else(
    cluster: Cluster, log: Log, batches: int, where: str
) -> None:
    checkpoint, seen = MemoryCheckpoint(), Counter[str]()
    # Failed records are retried only at the end, so they do not get into the counted batches.
    options: dict[str, Any] = {"checkpoint": checkpoint, "retry": Retry(initial_s=1000, cap_s=1000)}
    crashing(source(cluster, log, **options)._new_run(NO_SPARK), batches, where, seen)
    checkpoint.close()
    restarted(cluster, log, seen, **options)
    under_way = values(range(batches * BATCH, (batches + 1) * BATCH)) | ({"a3"} if batches else set())
    assert set(seen) == values(range(RECORDS))
    assert {value for value, times in seen.items() if times > 1} == under_way
    assert checkpoint.saved["a"].done.to_runs() == [RECORDS]


@pytest.mark.parametrize("batches", range(8))
def test_with_an_interval_a_crash_costs_at_most_what_was_done_since_the_last_commit_too(
    cluster: Cluster, log: Log, batches: int
) -> None:
    checkpoint, seen = MemoryCheckpoint(), Counter[str]()
    options: dict[str, Any] = {"checkpoint": checkpoint, "commit_interval_s": 5.0}
    options["retry"] = Retry(initial_s=1000, cap_s=1000)
    crashing(source(cluster, log, **options)._new_run(NO_SPARK), batches, "emitted", seen)
    checkpoint.close()
    # Batches end at 0, 2, 4 ... s. The checkpoint is written at 0 s, before the fourth batch (6 s) and before the
    # seventh (12 s).
    written = {0: 0, 1: 1, 2: 1, 3: 3, 4: 3, 5: 3, 6: 6, 7: 6}[batches] * BATCH
    restarted(cluster, log, seen, **options)
    again = values(range(written, (batches + 1) * BATCH)) | ({"a3"} if batches else set())
    assert {value for value, times in seen.items() if times > 1} == again
    assert set(seen) == values(range(RECORDS))


@pytest.mark.parametrize("where", ["emitted", "processed"])
@pytest.mark.parametrize("batches", range(8))
def test_at_most_once_no_record_is_emitted_twice_wherever_the_driver_dies(
    cluster: Cluster, log: Log, batches: int, where: str
) -> None:
    checkpoint, seen = MemoryCheckpoint(), Counter[str]()
    options: dict[str, Any] = {"checkpoint": checkpoint, "guarantee": "at_most_once", "commit_interval_s": 60.0}
    crashing(source(cluster, log, **options)._new_run(NO_SPARK), batches, where, seen)
    checkpoint.close()
    restarted(cluster, log, seen, **options)
    assert seen == Counter(values(range(RECORDS)))


@pytest.mark.parametrize("batches", range(8))
def test_without_a_guarantee_a_crash_costs_what_was_emitted_since_the_last_commit_and_failures_are_not_tried_again(
    cluster: Cluster, log: Log, batches: int
) -> None:
    checkpoint, seen = MemoryCheckpoint(), Counter[str]()
    options: dict[str, Any] = {"checkpoint": checkpoint, "guarantee": "no_guarantee", "commit_interval_s": 5.0}
    crashing(source(cluster, log, **options)._new_run(NO_SPARK), batches, "emitted", seen)
    checkpoint.close()
    written = {0: 0, 1: 1, 2: 1, 3: 3, 4: 3, 5: 3, 6: 6, 7: 6}[batches] * BATCH
    restarted(cluster, log, seen, **options)
    assert {value for value, times in seen.items() if times > 1} == values(range(written, (batches + 1) * BATCH))
    assert checkpoint.saved["a"].done.to_runs() == [RECORDS]


def test_at_most_once_planned_records_are_saved_before_they_are_emitted(cluster: Cluster, log: Log) -> None:
    checkpoint = MemoryCheckpoint()
    environment = cluster.environment()
    written: list[list[int]] = []

    def frame(spark: Any, plan: Any) -> Any:
        written.append(checkpoint.saved["a"].done.to_runs())
        return environment.frame(spark, plan)

    options: dict[str, Any] = {"checkpoint": checkpoint, "environment": replace(environment, frame=frame)}
    source(cluster, log, guarantee="at_most_once", **options).run(NO_SPARK, save_all)
    assert written == [[k * BATCH] for k in range(1, 9)]


@pytest.mark.parametrize("guarantee", WEAK)
def test_failures_are_counted_and_not_retried(
    cluster: Cluster, log: Log, guarantee: str, caplog: pytest.LogCaptureFixture
) -> None:
    noted = Noted()
    weak = source(cluster, log, guarantee=guarantee, listener=noted)
    summary = weak.run(NO_SPARK, failing(lambda row: row.value in ("a3", "a4", "a17")))
    assert (summary.acked, summary.failed, summary.dropped, summary.open, summary.replayed) == (37, 3, 3, 0, 0)
    assert noted.failed == [(3, "ValueError: bad"), (4, "ValueError: bad"), (17, "ValueError: bad")]
    assert (noted.retried, noted.dead) == ([], [])
    assert "2 records not acked, and not tried again: ValueError: bad" in caplog.messages
    assert "dropped                   3  not acked, and not tried again" in str(summary)


@pytest.mark.parametrize("guarantee", WEAK)
def test_a_batch_that_breaks_is_dropped_whole(cluster: Cluster, log: Log, guarantee: str) -> None:
    checkpoint = MemoryCheckpoint()
    weak = source(cluster, log, guarantee=guarantee, checkpoint=checkpoint)
    summary = weak.run(NO_SPARK, breaking(lambda row: row.value == "a17"))
    assert (summary.acked, summary.lost, summary.dropped, summary.batches) == (35, 5, 5, 8)
    assert checkpoint.saved["a"].done.to_runs() == [RECORDS]


@pytest.mark.parametrize("guarantee", WEAK)
def test_records_that_a_restarted_server_forgot_are_dropped(cluster: Cluster, log: Log, guarantee: str) -> None:
    def process(batch: Batch) -> None:
        rows = frame_of(batch).rows()
        if batch.number == 2:
            cluster.server.start(with_state=False)
        frame_of(batch).ack(rows)

    summary = source(cluster, log, guarantee=guarantee).run(NO_SPARK, process)
    assert (summary.acked, summary.dropped, summary.open) == (35, 5, 0)


@pytest.mark.parametrize("guarantee", WEAK)
def test_leaving_the_loop_drops_the_open_records(cluster: Cluster, log: Log, guarantee: str) -> None:
    checkpoint = MemoryCheckpoint()
    weak = source(cluster, log, guarantee=guarantee, checkpoint=checkpoint)
    for _ in weak.batches(NO_SPARK):
        break
    assert (weak.summary().dropped, weak.summary().open) == (5, 0)
    assert checkpoint.saved["a"].done.to_runs() == [BATCH]


@pytest.mark.parametrize(
    ("guarantee", "saved", "fate"),
    [
        ("at_least_once", {}, "; nothing is lost$"),
        ("no_guarantee", {}, "; nothing is lost$"),
        ("at_most_once", {"a": [BATCH]}, r"; its records are saved as done \(guarantee='at_most_once'\) and are not"),
    ],
)
def test_records_of_a_batch_that_no_server_takes_are_done_only_at_most_once_and_the_error_says_so(
    cluster: Cluster, log: Log, guarantee: str, saved: dict[str, list[int]], fate: str
) -> None:
    checkpoint = MemoryCheckpoint()
    run = source(cluster, log, guarantee=guarantee, checkpoint=checkpoint, deadline_s=5.0)._new_run(NO_SPARK)
    with run:
        cluster.server.stop()
        with pytest.raises(SourceError, match=f"^no batch could be opened for 5 s .*{fate}"):
            run.open_batch()
    assert {partition: each.done.to_runs() for partition, each in checkpoint.saved.items()} == saved


def test_without_a_guarantee_a_batch_under_way_is_not_saved_as_done_when_a_later_one_ends(
    cluster: Cluster, log: Log
) -> None:
    checkpoint = MemoryCheckpoint()
    with source(cluster, log, guarantee="no_guarantee", checkpoint=checkpoint)._new_run(NO_SPARK) as run:
        first, second = run.next_batch(), run.next_batch()
        assert first is not None
        assert second is not None
        save_all(second)
        run.settle_batch(second)
        assert checkpoint.saved["a"].done.to_runs() == [0, BATCH, BATCH]
        save_all(first)
        run.settle_batch(first)
        assert checkpoint.saved["a"].done.to_runs() == [2 * BATCH]


@pytest.mark.parametrize("guarantee", WEAK)
def test_files_support_the_weaker_guarantees(cluster: Cluster, guarantee: str) -> None:
    cluster.write("a.txt", *(str(k) for k in range(25)))
    path = cluster.folder / "c"
    options: dict[str, Any] = {"name": "lines", "environment": cluster.environment(), "checkpoint": path}
    files = Files(f"{cluster.folder}/*.txt", batch_records=10, guarantee=guarantee, **options)  # type: ignore[arg-type]
    summary = files.run(NO_SPARK, failing(lambda row: row.value in ("4", "24")))
    assert (summary.acked, summary.dropped) == (23, 2)
    assert Files(f"{cluster.folder}/*.txt", **options).run(NO_SPARK, save_all).records == 0


def test_holes_that_an_earlier_run_left_are_not_filled_by_a_weaker_guarantee(cluster: Cluster, log: Log) -> None:
    checkpoint, seen = MemoryCheckpoint(), Counter[str]()
    stuck = Retry(initial_s=1000, cap_s=1000)
    for batch in source(cluster, log, checkpoint=checkpoint, retry=stuck, batch_records=20).batches(NO_SPARK):
        failing(lambda row: row.value in ("a7", "a9"))(batch)
        batch.done()
        break
    assert checkpoint.saved["a"].done.to_runs() == [7, 1, 1, 1, 10]
    crashing(
        source(cluster, log, checkpoint=checkpoint, guarantee="at_most_once", batch_records=2)._new_run(NO_SPARK),
        0,
        "emitted",
        seen,
    )
    assert (set(seen), checkpoint.saved["a"].done.to_runs()) == ({"a7"}, [9, 1, 10])
    checkpoint.close()
    restarted(cluster, log, seen, checkpoint=checkpoint)
    assert seen == Counter({"a7", "a9"} | values(range(20, RECORDS)))


def test_at_most_once_records_of_fenced_partitions_are_not_emitted(cluster: Cluster, log: Log) -> None:
    log.append("b", 3)
    group, noted = Group({"a": "x", "b": "x"}), Noted()

    class TakenAtOnce(SharedCheckpoint):
        def save(self, committed: Mapping[str, Committed]) -> None:
            if "a" in committed and self.group.owners["a"] == "x":
                self.group.take_away("a")
                self.group.give("a", "y")
            super().save(committed)

    options: dict[str, Any] = {"group": Membership(group, "x"), "checkpoint": TakenAtOnce(group, "x")}
    seen = Counter[str]()
    restarted(cluster, log, seen, guarantee="at_most_once", batch_records=41, listener=noted, **options)
    assert seen == Counter(["b0", "b1", "b2"])
    assert noted.revoked == [("a", [])]


def test_the_checkpoint_moves_once_an_interval_and_at_the_end(cluster: Cluster, log: Log) -> None:
    checkpoint = MemoryCheckpoint()
    saves: list[tuple[int, int]] = []

    def process(batch: Batch) -> None:
        saves.append((batch.number, checkpoint.saves))
        save_all(batch)
        cluster.time.sleep(4.0)

    source(cluster, log, checkpoint=checkpoint, commit_interval_s=10.0).run(NO_SPARK, process)
    assert saves == [(1, 0), (2, 1), (3, 1), (4, 1), (5, 2), (6, 2), (7, 2), (8, 3)]
    assert (checkpoint.saves, checkpoint.saved["a"].done.to_runs()) == (4, [RECORDS])


def test_the_checkpoint_moves_while_a_run_waits_for_something_to_read(cluster: Cluster, log: Log) -> None:
    checkpoint, log.is_ended = MemoryCheckpoint(), False
    environment = cluster.environment()

    def sleep(seconds: float) -> None:
        cluster.time.sleep(seconds)
        log.is_ended = checkpoint.saved["a"].done.to_runs() == [RECORDS]

    options: dict[str, Any] = {"checkpoint": checkpoint, "commit_interval_s": 30.0}
    source(cluster, log, environment=replace(environment, sleep=sleep), **options).run(NO_SPARK, save_all)
    assert checkpoint.saves == 2


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"guarantee": "exactly_once"}, r"guarantee='exactly_once': give one of 'at_least_once', 'at_most_once'"),
        ({"guarantee": None}, r"guarantee=None: give one of"),
        ({"commit_interval_s": -1}, r"commit_interval_s=-1: give seconds"),
        ({"commit_interval_s": float("nan")}, r"commit_interval_s=nan: give seconds"),
        ({"max_uncommitted_per_partition": 0}, r"max_uncommitted_per_partition=0: give a whole number, at least 1"),
        (
            {"guarantee": "at_most_once", "dead_letters": "dead.jsonl"},
            r"dead_letters with guarantee='at_most_once': no record is retried then",
        ),
    ],
)
def test_an_option_that_makes_no_sense_is_refused_by_a_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        LogSource(Log(), **options)


def test_a_limit_for_each_partition_is_refused_where_the_input_has_one_order_only(cluster: Cluster) -> None:
    cluster.write("a.txt", "one")
    with pytest.raises(SourceError, match="max_uncommitted_per_partition=5 with an input of files: it cannot leave"):
        cluster.source(max_uncommitted_per_partition=5).run(NO_SPARK, save_all)


def test_a_checkpoint_file_has_its_writer_and_time(cluster: Cluster, log: Log) -> None:
    path = cluster.folder / "c"
    source(cluster, log, checkpoint=path).run(NO_SPARK, save_all)
    by = json.loads(path.read_text())["by"]
    assert sorted(by) == ["host", "pid", "session", "source", "time"]
    assert by["source"] == "log"
