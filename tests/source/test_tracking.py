"""Sources that track nothing, or only some of their records: what their runs promise about each record."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from acker_client.cluster.handed_on import HandedOn
from acker_client.source import Batch, Emissions, Files, Retry, SourceError
from acker_client.source.engine.options import Options
from tests.source.executors import NO_SPARK, Cluster, Log, Row, breaking, frame_of, save_all
from tests.source.logs import Log as RecordLog
from tests.source.logs import LogInput, LogSource

ONCE = Retry(max_retries=0, initial_s=0.0)


@dataclass
class Absences(Log):
    """Records also which records ended without an outcome."""

    absent: list[int] = field(default_factory=list)

    def on_absent(self, absent: Emissions) -> None:
        self.absent += absent.records.tolist()


class Linked(LogInput):
    """An input whose records may belong to trees of other jobs."""

    acks_upstream = True

    def taken_up(self, chosen: Sequence[Any]) -> list[list[HandedOn]]:
        return [[] for each in chosen for _ in each.positions]


class LinkedSource(LogSource):
    def input(self) -> tuple[Any, Any]:
        return Linked(self.log), "value string"


def no_servers(spark: object) -> Any:
    raise AssertionError("a source with tracking off has connected to a server")


def untracked(cluster: Cluster, **options: Any) -> Files:
    environment = replace(cluster.environment(), connect=no_servers)
    given = {"name": "lines", "dead_letters": cluster.folder / "dead.jsonl", "max_dead_share": 1.0, **options}
    return Files(f"{cluster.folder}/*.txt", environment=environment, tracking=False, **given)


# -- tracking off


def test_with_tracking_off_each_record_is_acked_once_its_batch_is_done(cluster: Cluster) -> None:
    cluster.write("a.txt", *map(str, range(25)))
    log, during = Log(), list[int]()

    def process(batch: Batch) -> None:
        frame_of(batch).rows()
        during.append(len(log.acked))

    summary = untracked(cluster, batch_records=10, listener=log).run(NO_SPARK, process)
    assert (summary.acked, summary.batches, summary.open) == (25, 3, 0)
    assert sorted(log.acked) == list(range(25))
    assert during == [0, 10, 20]


def test_a_restart_reads_only_what_is_not_done(cluster: Cluster) -> None:
    cluster.write("a.txt", *map(str, range(25)))
    options: dict[str, Any] = {"checkpoint": cluster.folder / "lines.ckpt", "batch_records": 10}
    loop = untracked(cluster, **options).batches(NO_SPARK)
    for _ in range(2):
        frame_of(next(loop)).rows()
    loop.close()
    seen = list[str]()
    summary = untracked(cluster, **options).run(
        NO_SPARK, lambda batch: seen.extend(row.value for row in frame_of(batch).rows())
    )
    assert (summary.acked, seen) == (15, [str(k) for k in range(10, 25)])


def test_without_evidence_of_a_write_nothing_is_acked(cluster: Cluster) -> None:
    cluster.write("a.txt", "1", "2")
    log = Log()

    def process(batch: Batch) -> None:
        frame_of(batch).evidence.error = None if batch.number == 2 else SourceError("no write succeeded")

    summary = untracked(cluster, listener=log, retry=ONCE).run(NO_SPARK, process)
    assert (summary.acked, summary.lost, summary.batches) == (2, 2, 2)


def test_a_record_that_breaks_its_batch_ends_alone_in_the_dead_letters(cluster: Cluster) -> None:
    cluster.write("a.txt", *map(str, range(40)))
    log = Log()
    retry = Retry(max_retries=1, initial_s=0.0)
    summary = untracked(cluster, retry=retry, listener=log).run(NO_SPARK, breaking(lambda row: row.value == "17"))
    assert (summary.acked, summary.dead_lettered, summary.failed) == (39, 1, 0)
    assert log.dead == [17]
    # Whole, whole again, in pieces of 3, and alone until its retries are spent.
    assert [len(records) for _, records in log.emitted if 17 in records] == [40, 40, 3, 1, 1]


@pytest.mark.parametrize(
    ("options", "why"), [({"held": False, "message_timeout_s": 60.0}, "held=False with tracking off")]
)
def test_what_needs_tracking_is_refused_without_it(cluster: Cluster, options: dict[str, Any], why: str) -> None:
    cluster.write("a.txt", "1")
    with pytest.raises(SourceError, match=why):
        untracked(cluster, **options).run(NO_SPARK, save_all)


def test_trees_of_another_job_are_refused_without_tracking(cluster: Cluster) -> None:
    environment = replace(cluster.environment(), connect=lambda spark: None)
    source = LinkedSource(RecordLog(), environment=environment)
    with pytest.raises(SourceError, match="acks_upstream=True with tracking off"):
        source.run(NO_SPARK, save_all)


@pytest.mark.parametrize("options", [{"tracking": "no"}, {"tracking": None}, {"track": 3}, {"track": "  "}])
def test_a_switch_with_a_bad_value_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"^{next(iter(options))}="):
        Options(name="a", **options)


@pytest.mark.sampled(20)
@pytest.mark.parametrize("seed", range(100))
def test_whatever_breaks_each_record_is_acked_or_has_broken_alone_until_its_retries_were_spent(seed: int) -> None:
    dice = random.Random(seed)
    records, retries = dice.randrange(1, 80), dice.randrange(3)
    always = set(dice.sample(range(records), dice.randrange(min(4, records + 1))))
    sometimes = {record: dice.randrange(1, 4) for record in dice.sample(range(records), min(records, 3))}
    broke_alone: Counter[int] = Counter()
    with TemporaryDirectory() as folder:
        cluster, log = Cluster(Path(folder)), Log()
        cluster.write("a.txt", *map(str, range(records)))

        def process(batch: Batch) -> None:
            bad = False
            for row in frame_of(batch).rows():
                number = int(row.value)
                if number in always or (sometimes.get(number, 0) and dice.random() < 0.5):
                    sometimes[number] = sometimes.get(number, 1) - 1
                    bad = True
            if bad:
                if batch.records == 1:
                    broke_alone[batch.emitted.records.tolist()[0]] += 1
                raise ArithmeticError("division by zero")

        source = untracked(
            cluster,
            retry=Retry(max_retries=retries, initial_s=0.0),
            listener=log,
            partitions=dice.choice((1, 2, 4)),
            batch_records=dice.choice((10, 30, 100)),
        )
        assert source.run(NO_SPARK, process).open == 0
        assert sorted(log.acked + log.dead) == list(range(records))
        assert all(broke_alone[record] == retries + 1 for record in log.dead)
        assert always <= set(log.dead)


# -- some records are untracked


def odd(batch: Any) -> list[bool]:
    """Track the odd lines."""
    return [int(value) % 2 == 1 for value in batch.column("value").to_pylist()]


def tracking_odd(cluster: Cluster, **options: Any) -> Files:
    return cluster.source(track=odd, retry=Retry(max_retries=1, initial_s=0.0), **options)


def test_untracked_records_are_processed_and_have_no_outcome(cluster: Cluster) -> None:
    cluster.write("a.txt", *map(str, range(10)))
    log, seen = Absences(), list[str]()

    def process(batch: Batch) -> None:
        rows = frame_of(batch).rows()
        seen.extend(row.value for row in rows)
        frame_of(batch).ack(rows)

    source = tracking_odd(cluster, listener=log, checkpoint=cluster.folder / "lines.ckpt")
    summary = source.run(NO_SPARK, process)
    assert seen == [str(k) for k in range(10)]
    assert (sorted(log.acked), sorted(log.absent)) == ([1, 3, 5, 7, 9], [0, 2, 4, 6, 8])
    assert (summary.acked, summary.absent, summary.open) == (5, 5, 0)
    assert tracking_odd(cluster, checkpoint=cluster.folder / "lines.ckpt").run(NO_SPARK, process).records == 0


def test_when_a_batch_fails_only_its_tracked_records_are_replayed(cluster: Cluster) -> None:
    cluster.write("a.txt", *map(str, range(10)))
    log = Absences()
    source = tracking_odd(cluster, listener=log)
    source.run(NO_SPARK, breaking(lambda row: row.value == "4"))
    assert [records for _, records in log.emitted] == [list(range(10)), [1, 3, 5, 7, 9]]
    assert (sorted(log.acked), sorted(log.absent), log.dead) == ([1, 3, 5, 7, 9], [0, 2, 4, 6, 8], [])


def test_records_that_no_task_has_read_are_replayed_whether_they_will_be_tracked_or_not(cluster: Cluster) -> None:
    cluster.write("a.txt", *map(str, range(10)))
    log = Absences()

    def process(batch: Batch) -> None:
        if batch.number == 1:
            raise ArithmeticError("the read task died")
        save_all(batch)

    tracking_odd(cluster, listener=log).run(NO_SPARK, process)
    assert [records for _, records in log.emitted] == [list(range(10))] * 2
    assert (sorted(log.acked), sorted(log.absent)) == ([1, 3, 5, 7, 9], [0, 2, 4, 6, 8])


def test_untracked_records_are_refused_where_records_outlive_their_batch() -> None:
    with pytest.raises(ValueError, match="track with held=False"):
        Options(name="a", held=False, message_timeout_s=60.0, track="qty > 100")


@pytest.mark.sampled(20)
@pytest.mark.parametrize("seed", range(100))
def test_tracked_records_keep_their_promises_beside_untracked_ones(seed: int) -> None:
    dice = random.Random(seed)
    records = dice.randrange(1, 60)
    tracked = {record for record in range(records) if dice.random() < dice.choice((0.1, 0.5, 0.9))}
    bad = set(dice.sample(range(records), min(records, 3)))
    breaks = list(range(dice.randrange(3)))
    processed: Counter[int] = Counter()
    good: set[int] = set()
    with TemporaryDirectory() as folder:
        cluster, log = Cluster(Path(folder)), Absences()
        cluster.write("a.txt", *map(str, range(records)))

        def is_bad(row: Row) -> bool:
            return int(row.value) in bad

        def process(batch: Batch) -> None:
            rows = frame_of(batch).rows()
            processed.update(int(row.value) for row in rows)
            # No record breaks alone more often than it may be retried.
            if breaks and dice.random() < 0.3:
                raise ArithmeticError(f"division by zero, {breaks.pop()}")
            frame_of(batch).fail({row.root: "bad" for row in rows if is_bad(row) and row.root})
            frame_of(batch).ack(row for row in rows if not is_bad(row))
            good.update(int(row.value) for row in rows if not is_bad(row))

        def track(batch: Any) -> list[bool]:
            return [int(value) in tracked for value in batch.column("value").to_pylist()]

        source = cluster.source(
            track=track,
            retry=Retry(max_retries=2, initial_s=0.0),
            listener=log,
            batch_records=dice.choice((7, 20, 100)),
            checkpoint=cluster.folder / "lines.ckpt",
        )
        assert source.run(NO_SPARK, process).open == 0
        assert sorted(log.acked + log.dead) == sorted(tracked)
        assert set(log.acked) <= good
        assert set(log.dead) <= bad
        # Once a task has read an untracked record, no batch has it again.
        assert sorted(log.absent) == sorted(set(range(records)) - tracked)
        assert all(processed[record] == 1 for record in log.absent)
        assert {record for record, _ in log.failed} <= tracked
