"""The timeout of held batches: a hanging batch is cancelled, and only the record that hangs alone pays for it."""

from __future__ import annotations

import logging
import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from acker_client.source import Batch, Files, Retry, SourceError
from acker_client.source.engine.environment import Blame
from acker_client.source.engine.timer import start_timer
from acker_client.source.records.in_flight import Failures
from tests.source.executors import NO_SPARK, Cluster, Log, Row, Timers, frame_of

TIMEOUT_S = 30.0
ONCE = Retry(max_retries=0, initial_s=0.0)


class Cancelled(Exception):
    """Spark's error for a cancelled job."""


@dataclass
class Verdicts(Log):
    """Records how often each record has ended with each verdict."""

    verdicts: Counter[tuple[int, int]] = field(default_factory=Counter)

    def on_fail(self, failed: Any, why: Failures) -> None:
        super().on_fail(failed, why)
        self.verdicts.update(zip(failed.records.tolist(), why.verdicts.tolist(), strict=True))

    def timed_out(self) -> list[int]:
        return sorted(record for record, verdict in self.verdicts if verdict == 3)


def write_four(cluster: Cluster) -> None:
    """Write 100 records into four files, which are read by four tasks."""
    for number, name in enumerate("abcd"):
        cluster.write(f"{name}.txt", *(str(k) for k in range(25 * number, 25 * number + 25)))


def source_of(cluster: Cluster, timers: Timers, **options: Any) -> Files:
    environment = replace(cluster.environment(), timer=timers.start)
    given = {"name": "lines", "dead_letters": cluster.folder / "dead.jsonl", "max_dead_share": 1.0, **options}
    return Files(f"{cluster.folder}/*.txt", environment=environment, message_timeout_s=TIMEOUT_S, **given)


def hanging(timers: Timers, hangs: Callable[[Row], bool], *, swallows: bool = False) -> Callable[[Batch], None]:
    """Return a job whose tasks hang at some rows, until the batch's timeout cancels them. Each slice is a task that
    acks its rows at its end. ``swallows``: the program catches the error of the cancelled job."""

    def process(batch: Batch) -> None:
        frame, is_stuck = frame_of(batch), False
        for number in range(len(frame.plan.slices)):
            # A task that hangs has reported nothing yet.
            piece = [record for read in frame.plan.slices[number].read() for record in read.columns.to_pylist()]
            if any(hangs(Row(0, 0, each["value"], each["line"], each["path"])) for each in piece):
                is_stuck = True
            else:
                frame.ack(frame.rows(slice(number, number + 1)))
        if is_stuck:
            cancelled = list[int]()
            frame.evidence.on_cancel = lambda: cancelled.append(batch.number)
            timers.expire()
            assert cancelled == [batch.number]
            if not swallows:
                raise Cancelled("job 3 cancelled")
            frame.evidence.error = Cancelled("no write succeeded after the one that was cancelled")

    return process


def test_a_record_that_hangs_ends_alone_in_the_dead_letters_and_the_others_are_not_counted_against(
    cluster: Cluster,
) -> None:
    write_four(cluster)
    timers, log = Timers(), Verdicts()
    source = source_of(cluster, timers, retry=Retry(max_retries=1, initial_s=0.0), listener=log, partitions=4)
    summary = source.run(NO_SPARK, hanging(timers, lambda row: row.value == "42"))
    assert (summary.acked, summary.dead_lettered, summary.open) == (99, 1, 0)
    assert log.dead == [42]
    # 100 records in 4 tasks; the 25 of the hanging task in pieces of 1 or 2; then 42 alone, twice.
    assert [len(records) for _, records in log.emitted if 42 in records] == [100, 2, 1, 1]
    letter = (cluster.folder / "dead.jsonl").read_text()
    assert "the batch took longer than message_timeout_s=30: Cancelled: job 3 cancelled" in letter
    assert '"failed": 2' in letter
    assert log.timed_out() == list(range(100))
    assert {why for _, why in log.failed} == {"message_timeout"}
    assert set(timers.delays) == {TIMEOUT_S}
    assert not timers.running


def test_the_records_of_finished_tasks_stay_together_and_out_of_the_search(cluster: Cluster) -> None:
    write_four(cluster)
    timers, log, hung = Timers(), Verdicts(), set[str]()

    def once(row: Row) -> bool:
        return row.value == "42" and not hung

    source = source_of(cluster, timers, retry=ONCE, listener=log, partitions=4)
    job = hanging(timers, once)

    def process(batch: Batch) -> None:
        try:
            job(batch)
        finally:
            hung.add("42")

    summary = source.run(NO_SPARK, process)
    assert (summary.acked, summary.timed_out) == (100, 100)
    sizes = sorted(len(records) for _, records in log.emitted)
    assert sizes == [*[1] * 5, *[2] * 10, 75, 100]


@pytest.mark.parametrize("swallows", [False, True])
def test_missing_evidence_after_a_timeout_is_not_the_programs_fault(cluster: Cluster, swallows: bool) -> None:
    cluster.write("a.txt", "1", "2", "3")
    timers = Timers()
    source = source_of(cluster, timers, retry=Retry(max_retries=2, initial_s=0.0))
    environment = replace(source.environment(), blame=lambda error: Blame.EVIDENCE)
    object.__setattr__(source.options, "environment", environment)
    summary = source.run(NO_SPARK, hanging(timers, lambda row: row.value == "2", swallows=swallows))
    assert (summary.acked, summary.dead_lettered) == (2, 1)


def test_work_that_was_done_when_the_timeout_came_stays_done(cluster: Cluster) -> None:
    cluster.write("a.txt", "1", "2", "3")
    timers, log = Timers(), Verdicts()

    def process(batch: Batch) -> None:
        frame_of(batch).ack(frame_of(batch).rows())
        timers.expire()

    summary = source_of(cluster, timers, listener=log).run(NO_SPARK, process)
    assert (summary.acked, summary.batches, summary.timed_out) == (3, 1, 0)


def test_a_failed_row_of_a_batch_that_times_out_keeps_its_own_reason(cluster: Cluster) -> None:
    cluster.write("a.txt", "1", "2", "3")
    timers, log = Timers(), Verdicts()

    def process(batch: Batch) -> None:
        rows = frame_of(batch).rows()
        frame_of(batch).fail({row.root: "ValueError: bad" for row in rows if row.value == "2"})
        if batch.number == 1:
            timers.expire()
            raise Cancelled("job 3 cancelled")
        frame_of(batch).ack(row for row in rows if row.value != "2")

    retry = Retry(max_retries=1, initial_s=0.0)
    summary = source_of(cluster, timers, retry=retry, listener=log).run(NO_SPARK, process)
    assert (summary.acked, summary.dead_lettered, summary.failed, summary.timed_out) == (2, 1, 2, 2)
    assert [why for record, why in log.failed if record == 1] == ["ValueError: bad"] * 2


def test_a_record_is_not_counted_against_while_another_record_was_in_its_batch(cluster: Cluster) -> None:
    cluster.write("a.txt", "1", "2")
    timers, log = Timers(), Verdicts()

    def process(batch: Batch) -> None:
        rows = frame_of(batch).rows()
        if batch.number == 1:
            frame_of(batch).fail({row.root: "ValueError: bad" for row in rows if row.value == "2"})
            timers.expire()
            raise Cancelled("job 3 cancelled")
        frame_of(batch).ack(rows)

    summary = source_of(cluster, timers, retry=ONCE, listener=log).run(NO_SPARK, process)
    assert (log.acked, log.dead) == ([0], [1])
    assert (summary.failed, summary.timed_out) == (1, 1)


def test_a_loop_that_is_left_after_a_timeout_costs_no_retry(cluster: Cluster) -> None:
    cluster.write("a.txt", "1", "2", "3")
    timers, log = Timers(), Verdicts()
    source = source_of(cluster, timers, listener=log)
    job, loop = hanging(timers, lambda row: row.value == "2"), source.batches(NO_SPARK)
    with pytest.raises(Cancelled):
        job(next(loop))
    loop.close()
    assert not timers.running
    assert log.timed_out() == [0, 1, 2]
    assert source.summary().open == 3


def test_with_tracking_off_a_record_that_hangs_is_found_too(cluster: Cluster) -> None:
    write_four(cluster)
    timers, log = Timers(), Verdicts()
    source = source_of(cluster, timers, retry=ONCE, listener=log, tracking=False)
    summary = source.run(NO_SPARK, hanging(timers, lambda row: row.value == "42"))
    assert (summary.acked, summary.dead_lettered, summary.lost) == (99, 1, 0)
    # No task says what it has read, so all records are searched.
    assert [len(records) for _, records in log.emitted if 42 in records] == [100, 6, 1]


def test_the_log_names_the_batch_that_hangs_in_the_driver_once_a_minute(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.write("a.txt", "1", "2", "3")
    timers = Timers()

    def process(batch: Batch) -> None:
        def hang_in_the_driver() -> None:
            minutes.start()
            minutes.join()

        minutes = threading.Thread(target=lambda: [timers.expire() for _ in range(121)])
        hang_in_the_driver()
        frame_of(batch).ack(frame_of(batch).rows())

    with caplog.at_level(logging.WARNING, "acker_client.source"):
        source_of(cluster, timers).run(NO_SPARK, process)
    told = [record.getMessage() for record in caplog.records]
    assert [line.partition(":")[0] for line in told] == [
        "batch 1 of 3 records is not done after message_timeout_s=30",
        "batch 1 of 3 records hangs, although its Spark jobs were cancelled 60 s ago",
        "batch 1 of 3 records hangs, although its Spark jobs were cancelled 120 s ago",
    ]
    assert "cannot be ended; its thread is at" in told[1]
    assert told[1].endswith(" in hang_in_the_driver")


def test_an_error_of_the_cancellation_is_logged_and_the_next_one_tries_again(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.write("a.txt", "1")
    timers, tries = Timers(), list[int]()

    def process(batch: Batch) -> None:
        def cancel() -> None:
            tries.append(1)
            raise SourceError("Spark stops")

        frame_of(batch).evidence.on_cancel = cancel
        timers.expire()
        timers.expire()
        frame_of(batch).ack(frame_of(batch).rows())

    source_of(cluster, timers).run(NO_SPARK, process)
    assert len(tries) == 2
    assert "batch 1: its Spark jobs could not be cancelled: SourceError: Spark stops" in caplog.text


def test_a_timer_calls_until_it_is_stopped_and_never_afterwards() -> None:
    called, enough = list[str](), threading.Event()

    def call() -> float:
        called.append(threading.current_thread().name)
        if len(called) == 3:
            enough.set()
        return 0.0 if len(called) < 3 else 3600.0

    stop = start_timer(0.0, call)
    assert enough.wait(30)
    stop()
    stop()
    assert called == ["acker-timer"] * 3


@pytest.mark.sampled(20)
@pytest.mark.parametrize("seed", range(100))
def test_whatever_hangs_each_record_is_acked_or_hung_alone_until_its_retries_were_spent(seed: int) -> None:
    dice = random.Random(seed)
    records, retries = dice.randrange(1, 80), dice.randrange(3)
    always = set(dice.sample(range(records), dice.randrange(min(4, records + 1))))
    # How often each record hangs before it goes through.
    sometimes = {record: dice.randrange(1, 4) for record in dice.sample(range(records), min(records, 3))}
    hung_alone: Counter[int] = Counter()
    with TemporaryDirectory() as folder:
        cluster, timers, log = Cluster(Path(folder)), Timers(), Verdicts()
        cluster.write("a.txt", *map(str, range(records)))

        def process(batch: Batch) -> None:
            def hangs(row: Row) -> bool:
                number = int(row.value)
                if number in always:
                    return True
                if dice.random() < 0.5 and sometimes.get(number, 0):
                    sometimes[number] -= 1
                    return True
                return False

            try:
                hanging(timers, hangs, swallows=dice.random() < 0.3)(batch)
            finally:
                error = frame_of(batch).evidence.error
                if batch.timed_out_after_s is not None and batch.records == 1:
                    hung_alone[batch.emitted.records.tolist()[0]] += 1
                assert error is None or batch.timed_out_after_s is not None

        source = source_of(
            cluster,
            timers,
            retry=Retry(max_retries=retries, initial_s=0.0),
            listener=log,
            partitions=dice.choice((1, 2, 4)),
            batch_records=dice.choice((10, 30, 100)),
        )
        summary = source.run(NO_SPARK, process)
        assert summary.open == 0
        assert sorted(log.acked + log.dead) == list(range(records))
        # Only a record that has hung alone, more often than it may be retried, is given up.
        assert all(hung_alone[record] == retries + 1 for record in log.dead)
        assert always <= set(log.dead)
        assert not timers.running


def test_the_time_for_which_a_batch_waits_for_the_writes_of_others_is_not_counted(cluster: Cluster) -> None:
    cluster.write("a.txt", "1")
    timers, delays, cancelled = Timers(), list[float | None](), list[int]()

    def process(batch: Batch) -> None:
        frame = frame_of(batch)
        frame.evidence.on_cancel = lambda: cancelled.append(batch.number)
        (call,) = timers.running.values()
        for frame.evidence.waited_s in (12.0, 15.5, 15.5):
            delays.append(call())
        frame.ack(frame.rows())

    assert source_of(cluster, timers).run(NO_SPARK, process).acked == 1
    assert delays[:2] == [12.0, 3.5]
    assert cancelled == [1]
