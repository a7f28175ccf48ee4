"""The ``Input`` protocol as a run uses it: partitions, absent records, the end, revocation. The input is a log in
memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acker_client.source import Batch, Emissions, Retry, SourceError
from acker_client.source.engine import checkpointing
from tests.source.executors import NO_SPARK, Cluster, Log, breaking, failing, frame_of, save_all
from tests.source.logs import Log as InMemory
from tests.source.logs import LogSource, MemoryCheckpoint, MemoryLetters, log_of

AT_ONCE = Retry(max_retries=1, initial_s=0.0)


class Noted(Log):
    """Also keeps the absent and the revoked records."""

    def __init__(self) -> None:
        super().__init__()
        self.absent: list[str] = []
        self.revoked: list[tuple[str, list[int]]] = []

    def on_ack(self, acked: Emissions) -> None:
        self.acked += acked.records.tolist()

    def on_absent(self, absent: Emissions) -> None:
        self.absent += [f"{row['partition']}{row['offset']}" for row in absent.origins().to_pylist()]

    def on_revoke(self, partition: str, dropped: Emissions) -> None:
        self.revoked.append((partition, dropped.origins().column("offset").to_pylist()))


def source(cluster: Cluster, log: InMemory, **options: Any) -> LogSource:
    defaults = {"environment": cluster.environment(), "retry": AT_ONCE, "dead_letters": MemoryLetters()}
    return LogSource(log, **{**defaults, "max_dead_share": 1.0, **options})


def test_a_record_that_was_planned_and_does_not_exist_is_absent_and_done_at_once(cluster: Cluster) -> None:
    log, noted, checkpoint, letters = InMemory(), Noted(), MemoryCheckpoint(), MemoryLetters()
    log.append("a", 10)
    log.compact("a", 3, 4)
    options: dict[str, Any] = {"listener": noted, "checkpoint": checkpoint, "dead_letters": letters}
    summary = source(cluster, log, **options).run(NO_SPARK, save_all)
    assert (summary.acked, summary.absent, summary.open, summary.replayed, summary.lost) == (8, 2, 0, 0, 0)
    assert (noted.absent, noted.failed, letters.letters) == (["a3", "a4"], [], [])
    assert checkpoint.saved["a"].done.to_runs() == [10]
    assert "absent                    2" in str(summary)


def test_a_record_that_is_compacted_away_between_two_tries_is_absent(cluster: Cluster) -> None:
    log, noted = InMemory(), Noted()
    log.append("a", 10)

    def process(batch: Batch) -> None:
        failing(lambda row: row.value == "a5" and not batch.replays)(batch)
        if not batch.replays:
            log.compact("a", 5)

    summary = source(cluster, log, listener=noted).run(NO_SPARK, process)
    assert (summary.acked, summary.absent, summary.failed, noted.absent) == (9, 1, 1, ["a5"])


def test_outcomes_that_arrive_while_a_batch_is_opened_count(cluster: Cluster) -> None:
    log, noted = InMemory(), Noted()
    log.append("a", 5)
    environment = cluster.environment()

    def hurried(spark: Any, plan: Any) -> Any:
        made: Any = environment.frame(spark, plan)
        made.fail({row.root: "at once" for row in made.rows() if row.value == "a3"})
        made.ack(row for row in made.rows() if row.value != "a3")
        return made

    options: dict[str, Any] = {"environment": replace(environment, frame=hurried), "listener": noted}
    summary = source(cluster, log, retry=Retry(max_retries=0), **options).run(NO_SPARK, lambda batch: None)
    assert (sorted(noted.acked), noted.failed) == ([0, 1, 2, 4], [(3, "at once")])
    assert (summary.acked, summary.dead_lettered, summary.open) == (4, 1, 0)


def test_a_batch_whose_listener_raises_is_abandoned_before_its_frame_is_made(cluster: Cluster) -> None:
    class Refusing(Noted):
        def on_emit(self, batch: int, emitted: Emissions, is_replay: bool) -> None:
            raise RuntimeError("no")

    log, made, environment = InMemory(), list[Any](), cluster.environment()
    log.append("a", 5)

    def noted(spark: Any, plan: Any) -> Any:
        made.append(environment.frame(spark, plan))
        return made[-1]

    with pytest.raises(RuntimeError, match="no"):
        source(cluster, log, environment=replace(environment, frame=noted), listener=Refusing()).run(NO_SPARK, save_all)
    assert made == []
    assert cluster.server.shard.stats.open_batches == 0


def test_a_batch_that_the_server_lost_has_no_absent_records(cluster: Cluster) -> None:
    log = log_of(a=10)
    log.compact("a", 3)

    def process(batch: Batch) -> None:
        rows = frame_of(batch).rows()
        if not batch.replays:
            cluster.server.start(with_state=False)
        frame_of(batch).ack(rows)

    summary = source(cluster, log).run(NO_SPARK, process)
    assert (summary.acked, summary.absent, summary.lost) == (9, 1, 10)


def test_unread_records_are_replayed_and_not_absent(cluster: Cluster) -> None:
    log = log_of(a=10)
    log.compact("a", 3)

    def process(batch: Batch) -> None:
        if batch.replays:
            save_all(batch)

    summary = source(cluster, log).run(NO_SPARK, process)
    assert (summary.acked, summary.absent, summary.lost) == (9, 1, 10)


@pytest.mark.long
@given(
    st.sets(st.integers(0, 39), max_size=20),
    st.lists(st.sampled_from(["fine", "fails", "breaks", "reads nothing"]), max_size=8),
    st.integers(1, 25),
)
@settings(max_examples=40, deadline=None)
def test_every_record_that_exists_is_acked_or_dead_and_every_other_one_is_absent(
    tmp_path_factory: pytest.TempPathFactory, missing: set[int], faults: list[str], batch_records: int
) -> None:
    cluster, log, noted, letters = Cluster(tmp_path_factory.mktemp("port")), InMemory(), Noted(), MemoryLetters()
    for partition in "ab":
        log.append(partition, 40)
        log.compact(partition, *(k for k in missing if k not in (0, 39)))
    checkpoint = MemoryCheckpoint()

    def process(batch: Batch) -> None:
        fault = faults[batch.number - 1] if batch.number <= len(faults) else "fine"
        if fault == "breaks":
            breaking(lambda row: True)(batch)
        elif fault != "reads nothing":
            failing(lambda row: fault == "fails" and int(row.value[1:]) % 3 == 0)(batch)

    options: dict[str, Any] = {"listener": noted, "checkpoint": checkpoint, "dead_letters": letters}
    summary = source(cluster, log, batch_records=batch_records, **options).run(NO_SPARK, process)
    absent = {f"{partition}{k}" for partition in "ab" for k in missing if k not in (0, 39)}
    assert set(noted.absent) == absent
    assert (summary.acked + summary.dead_lettered + summary.absent, summary.open) == (80, 0)
    assert len(letters.letters) == summary.dead_lettered
    assert {name: each.done.to_runs() for name, each in checkpoint.saved.items()} == {"a": [40], "b": [40]}


def test_an_empty_plan_is_not_the_end(cluster: Cluster) -> None:
    log = InMemory(is_ended=False)
    log.append("a", 3)
    values: list[str] = []
    began_s = cluster.time.clock()
    environment = replace(cluster.environment(), sleep=arriving(cluster, log, values))
    for batch in source(cluster, log, environment=environment).batches(NO_SPARK):
        values += [row.value for row in frame_of(batch).rows()]
        save_all(batch)
    assert values == ["a0", "a1", "a2", "b0", "b1"]
    assert log.asked >= 3
    assert cluster.time.clock() > began_s


def arriving(cluster: Cluster, log: InMemory, values: list[str]) -> Any:
    """Return a ``sleep`` during which a new partition appears, and later the log ends."""

    def sleep(seconds: float) -> None:
        cluster.time.sleep(seconds)
        if len(values) == 3 and "b" not in log.records:
            log.append("b", 2)
        log.is_ended = len(values) == 5

    return sleep


def test_one_stuck_record_holds_up_its_own_partition_only_and_a_restart_reads_it_alone(cluster: Cluster) -> None:
    log, checkpoint = InMemory(), MemoryCheckpoint()
    log.append("a", 20)
    log.append("b", 20)
    stuck = Retry(initial_s=1000, cap_s=1000)
    for batch in source(cluster, log, checkpoint=checkpoint, retry=stuck, batch_records=20).batches(NO_SPARK):
        failing(lambda row: row.value == "a7")(batch)
        if batch.number == 2:
            batch.done()
            break
    assert {name: each.done.to_runs() for name, each in checkpoint.saved.items()} == {"a": [7, 1, 12], "b": [20]}
    values: list[str] = []

    def process(batch: Batch) -> None:
        values.extend(row.value for row in frame_of(batch).rows())
        save_all(batch)

    again = source(cluster, log, checkpoint=checkpoint)
    summary = again.run(NO_SPARK, process)
    assert (values, summary.records, summary.holes, summary.checkpoint) == (["a7"], 1, 0, "a to 20, b to 20")


def test_a_partition_that_is_revoked_is_written_down_dropped_and_not_replayed(cluster: Cluster) -> None:
    log, noted, checkpoint = InMemory(is_ended=False), Noted(), MemoryCheckpoint()
    log.append("a", 10)
    log.append("b", 10)
    options: dict[str, Any] = {"listener": noted, "checkpoint": checkpoint, "retry": Retry(initial_s=1, cap_s=1)}
    seen = source(cluster, log, **options)

    def process(batch: Batch) -> None:
        failing(lambda row: row.value in ("a2", "a3", "b5") and not batch.replays)(batch)
        log.revoked, log.is_ended = (["a"], False) if batch.number == 1 else ([], True)

    summary = seen.run(NO_SPARK, process)
    assert noted.revoked == [("a", [2, 3])]
    assert (summary.acked, summary.revoked, summary.replayed, summary.open) == (18, 2, 1, 0)
    assert {name: each.done.to_runs() for name, each in checkpoint.saved.items()} == {"a": [2, 2, 6], "b": [10]}


def test_reading_waits_before_more_holes_arise_than_a_checkpoint_holds(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(checkpointing, "HOLES_MAX", 4)
    log, noted, checkpoint = InMemory(), Noted(), MemoryCheckpoint()
    log.append("a", 60)
    options: dict[str, Any] = {"listener": noted, "checkpoint": checkpoint, "batch_records": 6}
    holes: list[int] = []

    def process(batch: Batch) -> None:
        holes.append(sum(each.done.holes for each in checkpoint.saved.values()))
        failing(lambda row: int(row.value[1:]) % 2 == 1 and not batch.replays)(batch)

    summary = source(cluster, log, retry=Retry(initial_s=50, cap_s=50), **options).run(NO_SPARK, process)
    assert (summary.acked, summary.open) == (60, 0)
    assert max(holes) == 4
    first_replay = next(k for k, (_, records) in enumerate(noted.emitted) if 1 in records and k)
    assert first_replay == 2
    assert "stretches of open records lie before done ones" in caplog.text
    assert checkpoint.saved["a"].done.to_runs() == [60]


def test_holes_of_an_earlier_run_do_not_hold_up_the_reading_that_closes_them(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, checkpoint = InMemory(), MemoryCheckpoint()
    log.append("a", 40)
    for batch in source(cluster, log, checkpoint=checkpoint, retry=Retry(initial_s=50, cap_s=50)).batches(NO_SPARK):
        failing(lambda row: int(row.value[1:]) % 2 == 1)(batch)
        batch.done()
        break
    assert checkpoint.saved["a"].done.holes == 19
    monkeypatch.setattr(checkpointing, "HOLES_MAX", 4)
    summary = source(cluster, log, checkpoint=checkpoint, batch_records=5).run(NO_SPARK, save_all)
    assert (summary.acked, checkpoint.saved["a"].done.to_runs()) == (20, [40])


def test_dead_letters_and_errors_call_a_record_by_the_columns_of_its_input(cluster: Cluster) -> None:
    log, letters = InMemory(), MemoryLetters()
    log.append("a", 5)
    source(cluster, log, dead_letters=letters).run(NO_SPARK, failing(lambda row: row.value == "a3"))
    (letter,) = letters.letters
    assert (dict(letter.origin), letter.value) == ({"partition": "a", "offset": 3}, b"a3")
    with pytest.raises(SourceError, match="1 for 'ValueError: bad': a:3\n"):
        source(cluster, log, dead_letters=None).run(NO_SPARK, failing(lambda row: row.value == "a3"))


def test_an_option_that_no_source_has_is_refused_by_name(cluster: Cluster) -> None:
    with pytest.raises(TypeError, match="batch_size: there is no such option of a source; there are name, checkpoint"):
        source(cluster, InMemory(), batch_size=5)
    with pytest.raises(ValueError, match="checkpoint=3: give the path of a file, or a CheckpointStore"):
        source(cluster, InMemory(), checkpoint=3)
