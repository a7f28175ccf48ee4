"""Several batches of a source at once, each in a thread of its own."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

from acker_client.source import Batch, Retry, SourceError
from acker_client.source.engine.environment import Blame, Environment
from acker_client.source.engine.run import Run
from acker_client.source.engine.server_batches import NoRoom, ServerBatches
from acker_testing import new_shard
from tests.source.executors import NO_SPARK, Cluster, Log, breaking, frame_of, save_all
from tests.source.groups import Group, Membership, SharedCheckpoint
from tests.source.logs import LogSource, MemoryCheckpoint, MemoryLetters, log_of

WAIT_S = 60.0


def source(cluster: Cluster, records: int, **options: Any) -> LogSource:
    log = log_of(a=records)
    given = {"environment": cluster.environment(), "batch_records": 5, "concurrency": 2, "max_dead_share": 1.0}
    return LogSource(log, **{**given, "retry": Retry(1, initial_s=0.0), "dead_letters": MemoryLetters(), **options})


def blaming_the_program(cluster: Cluster, cancelled: threading.Event) -> Environment:
    """Return an environment that blames the program for all errors. ``cancelled`` is set when jobs are cancelled."""
    environment = cluster.environment()

    def framed(spark: Any, plan: Any) -> Any:
        frame = environment.frame(spark, plan)
        frame.evidence.on_cancel = cancelled.set  # type: ignore[attr-defined]
        return frame

    return replace(environment, frame=framed, blame=lambda error: Blame.CODE)


def test_two_batches_are_worked_on_at_once_and_each_record_is_acked(cluster: Cluster) -> None:
    both, threads = threading.Barrier(2, timeout=WAIT_S), set[int]()

    def process(batch: Batch) -> None:
        threads.add(threading.get_ident())
        both.wait()
        save_all(batch)

    checkpoint = MemoryCheckpoint()
    summary = source(cluster, 20, checkpoint=checkpoint).run(NO_SPARK, process)
    assert (summary.acked, summary.open, summary.replayed, summary.batches) == (20, 0, 0, 4)
    assert checkpoint.saved["a"].done.to_runs() == [20]
    assert threading.get_ident() not in threads


def test_a_source_that_opens_no_more_batches_is_working_while_one_is_open(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, first_is_settled, open_batch = list[str](), threading.Event(), Run.open_batch

    def noted(run: Run) -> Batch | None:
        batch = open_batch(run)
        if batch is None and not run.is_over:
            said.append(asked.progress().doing)
            first_is_settled.set()
        return batch

    def process(batch: Batch) -> None:
        asked.stop()
        assert batch.number == 1 or first_is_settled.wait(WAIT_S)
        save_all(batch)

    monkeypatch.setattr(Run, "open_batch", noted)
    asked = source(cluster, 20)
    asked.run(NO_SPARK, process)
    assert set(said) == {"working"}


def test_a_batch_that_ends_before_an_earlier_one_is_settled_first(cluster: Cluster) -> None:
    second_is_done, noted = threading.Event(), Log()

    class Listener(Log):
        def on_ack(self, acked: Any) -> None:
            noted.acked += acked.records.tolist()
            second_is_done.set()

    def process(batch: Batch) -> None:
        if batch.number == 1:
            assert second_is_done.wait(WAIT_S)
        save_all(batch)

    source(cluster, 10, listener=Listener()).run(NO_SPARK, process)
    assert {*noted.acked[:5]} == {5, 6, 7, 8, 9}
    assert {*noted.acked[5:]} == {0, 1, 2, 3, 4}


def test_batches_of_one_lane_are_settled_one_after_the_other(cluster: Cluster) -> None:
    later_are_written, settled, lanes = threading.Event(), list[int](), dict[int, int]()

    class Listener(Log):
        def on_ack(self, acked: Any) -> None:
            settled.extend(number // 5 + 1 for number in acked.records.tolist()[:1])

    def process(batch: Batch) -> None:
        lanes[batch.number] = batch.lane
        if batch.number == 1:
            assert later_are_written.wait(WAIT_S)
        elif batch.number == 4:
            later_are_written.set()
        save_all(batch)

    source(cluster, 20, listener=Listener()).run(NO_SPARK, process)
    assert lanes == {1: 0, 2: 1, 3: 1, 4: 1}
    assert [number for number in settled if lanes[number] == 1] == [2, 3, 4]


def test_a_batch_that_fails_beside_others_costs_only_its_own_records_a_replay(cluster: Cluster) -> None:
    noted = Log()
    summary = source(cluster, 30, listener=noted).run(NO_SPARK, breaking(lambda row: row.value == "a7"))
    assert (summary.acked, summary.dead_lettered, summary.open) == (29, 1, 0)
    assert (sorted(set(noted.retried)), noted.dead) == ([5, 6, 7, 8, 9], [7])


def test_a_mistake_of_the_program_ends_the_run_and_the_work_on_the_other_batch(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cancelled, ended = threading.Event(), list[int]()

    def process(batch: Batch) -> None:
        if batch.number == 1:
            raise NameError("sku")
        try:
            assert cancelled.wait(WAIT_S)
            raise RuntimeError("the job was cancelled")
        finally:
            ended.append(batch.number)

    run = source(cluster, 20, environment=blaming_the_program(cluster, cancelled))
    with pytest.raises(NameError, match="sku"):
        run.run(NO_SPARK, process)
    assert (ended, run.summary().acked, run.summary().open) == ([2], 0, 10)
    assert "the run ends early: the Spark jobs of batch 2 are cancelled" in caplog.text
    assert cluster.server.shard.stats.open_batches == 0


def test_a_batch_whose_work_is_done_when_the_run_ends_early_is_settled_as_done(cluster: Cluster) -> None:
    second_is_done, noted = threading.Event(), Log()

    class Listener(Log):
        def on_ack(self, acked: Any) -> None:
            noted.acked += acked.records.tolist()

    def start(call: Any, name: str) -> threading.Thread:
        def work() -> None:
            call()
            if name == "acker-batch-2":
                second_is_done.set()

        thread = threading.Thread(target=work, name=name)
        thread.start()
        return thread

    def process(batch: Batch) -> None:
        if batch.number == 1:
            assert second_is_done.wait(WAIT_S)
            raise NameError("sku")
        save_all(batch)

    environment = replace(cluster.environment(), start_thread=start, blame=lambda error: Blame.CODE)
    run = source(cluster, 10, environment=environment, listener=Listener())
    with pytest.raises(NameError, match="sku"):
        run.run(NO_SPARK, process)
    assert sorted(noted.acked) == [5, 6, 7, 8, 9]


def test_a_frame_that_cannot_be_made_ends_the_run_with_its_error(cluster: Cluster) -> None:
    def framed(spark: Any, plan: Any) -> Any:
        raise ValueError("the Spark session is stopped")

    run = source(cluster, 20, environment=replace(cluster.environment(), frame=framed))
    with pytest.raises(ValueError, match="stopped"):
        run.run(NO_SPARK, save_all)
    assert cluster.server.shard.stats.open_batches == 0


@pytest.mark.timeout(60)
def test_a_thread_that_cannot_be_started_ends_the_run_with_its_error(cluster: Cluster) -> None:
    def start(call: Any, name: str) -> threading.Thread:
        raise RuntimeError("can't start new thread")

    run = source(cluster, 20, environment=replace(cluster.environment(), start_thread=start))
    with pytest.raises(RuntimeError, match="can't start new thread"):
        run.run(NO_SPARK, save_all)
    assert cluster.server.shard.stats.open_batches == 0


@pytest.mark.long
@pytest.mark.timeout(60)
def test_a_thread_that_ends_before_it_begins_its_work_ends_the_run(cluster: Cluster) -> None:
    def start(call: Any, name: str) -> threading.Thread:
        # PySpark's thread fails like this if the SparkContext has been stopped.
        thread = threading.Thread(target=lambda: None, name=name)
        thread.start()
        return thread

    run = source(cluster, 20, environment=replace(cluster.environment(), start_thread=start))
    with pytest.raises(SourceError, match=r"batch 1 ended before its work began: .*Spark session"):
        run.run(NO_SPARK, save_all)
    assert cluster.server.shard.stats.open_batches == 0


def test_a_stopped_run_settles_the_batches_that_are_worked_on_and_opens_no_other(cluster: Cluster) -> None:
    both = threading.Barrier(2, timeout=WAIT_S)

    def process(batch: Batch) -> None:
        both.wait()
        running.stop()
        save_all(batch)

    running = source(cluster, 30)
    summary = running.run(NO_SPARK, process)
    assert (summary.acked, summary.batches, summary.open) == (10, 2, 0)


def test_outcomes_of_batches_at_once_are_yielded_once_and_leaving_the_loop_loses_none(cluster: Cluster) -> None:
    checkpoint = MemoryCheckpoint()
    first = source(cluster, 20, checkpoint=checkpoint)
    taken = []
    for outcome in first.outcomes(NO_SPARK, save_all):
        taken.append(outcome.origin["offset"])
        if len(taken) == 7:
            break
    rest = source(cluster, 20, checkpoint=checkpoint).outcomes(NO_SPARK, save_all)
    taken += [outcome.origin["offset"] for outcome in rest]
    assert sorted(set(taken)) == list(range(20))
    # The outcome at which the loop was left counts as not taken.
    assert len(taken) == 21


def test_a_second_batch_opens_once_the_first_has_made_room_on_the_server(cluster: Cluster) -> None:
    cluster.server.shard = new_shard(max_pending=8)
    with source(cluster, 20)._begin_run(NO_SPARK) as run:
        first = run.next_batch()
        assert first is not None
        assert run.open_batch() is None
        assert not run.is_over
        save_all(first)
        run.settle_batch(first)
        second = run.next_batch()
        assert second is not None
        assert [row.value for row in frame_of(second).rows()] == ["a5", "a6", "a7", "a8", "a9"]


def test_a_run_of_batches_at_once_ends_on_a_server_with_room_for_one(cluster: Cluster) -> None:
    cluster.server.shard = new_shard(max_pending=8)
    summary = source(cluster, 40).run(NO_SPARK, save_all)
    assert (summary.acked, summary.replayed, summary.open) == (40, 0, 0)


def test_a_pause_after_broken_batches_does_not_end_the_run_before_a_batch_without_room(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve = ServerBatches.reserve_batch

    def one_at_a_time(self: ServerBatches, *args: Any, waits: bool, **options: Any) -> Any:
        if not waits:
            raise NoRoom
        return reserve(self, *args, waits=waits, **options)

    monkeypatch.setattr(ServerBatches, "reserve_batch", one_at_a_time)
    summary = source(cluster, 30, batch_records=2, retry=Retry(3)).run(NO_SPARK, breaking(lambda row: True))
    assert (summary.dead_lettered, summary.open) == (30, 0)


def test_a_clean_up_that_fails_replaces_no_error_and_settles_the_other_batches(cluster: Cluster) -> None:
    started, cancelled = threading.Barrier(3, timeout=WAIT_S), threading.Event()

    class Listener(Log):
        def on_fail(self, failed: Any, why: Any) -> None:
            raise ZeroDivisionError("in the listener")

    def process(batch: Batch) -> None:
        started.wait()
        if batch.number == 1:
            raise NameError("sku")
        assert cancelled.wait(WAIT_S)
        if batch.number == 2:
            raise ValueError("the job was cancelled")
        save_all(batch)

    environment = blaming_the_program(cluster, cancelled)
    run = source(cluster, 15, environment=environment, concurrency=3, listener=Listener())
    with pytest.raises(NameError):
        run.run(NO_SPARK, process)
    assert run.summary().acked == 5


def test_concurrency_is_refused_with_advice_for_loops_groups_and_zero(cluster: Cluster) -> None:
    with pytest.raises(ValueError, match=r"concurrency=2 with batches\(\): .*use run\(spark, process\)"):
        source(cluster, 5).batches(NO_SPARK)
    group = Group()
    with pytest.raises(ValueError, match=r"concurrency=2 with a group: .*leave one of the two out"):
        source(cluster, 5, group=Membership(group, "x"), checkpoint=SharedCheckpoint(group, "x"))
    with pytest.raises(ValueError, match="concurrency=0: give a whole number, at least 1"):
        source(cluster, 5, concurrency=0)
