"""Sources that share the partitions of one input: runs while partitions are assigned, revoked and lost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from acker_client.source import Batch, Files, Retry, SourceError
from acker_client.source.engine.run import Run
from acker_client.source.errors import Fenced
from acker_client.source.records.assignment import Assignment
from acker_client.source.records.input import PausableInput, SharedInput
from acker_client.source.records.stores import SharedCheckpointStore
from tests.source.executors import NO_SPARK, Cluster, failing, frame_of, save_all
from tests.source.groups import Group, Membership, SharedCheckpoint
from tests.source.logs import Log, LogInput, LogSource, MemoryCheckpoint, MemoryLetters
from tests.source.test_port import Noted


class Idle(Exception):
    """Raised where a run would wait because it has nothing to do now."""


@pytest.fixture
def log() -> Log:
    log = Log(is_ended=False)
    log.append("a", 10)
    log.append("b", 10)
    return log


def member(cluster: Cluster, log: Log, group: Group, name: str, *, streams: bool = False, **options: Any) -> Run:
    """Return a run of a source of the group. It raises ``Idle`` instead of waiting."""

    def idle(seconds: float) -> None:
        cluster.time.sleep(seconds)
        raise Idle

    given: dict[str, Any] = {
        "environment": replace(cluster.environment(), sleep=idle),
        "group": Membership(group, name),
        "checkpoint": SharedCheckpoint(group, name),
        "dead_letters": MemoryLetters(),
        "max_dead_share": 1.0,
        "batch_records": 8,
        "retry": Retry(max_retries=1, initial_s=1000, cap_s=1000),
        **options,
    }
    run = LogSource(log, **given)._begin_run(NO_SPARK, streams=streams).__enter__()
    group.notes.clear()
    return run


def next_of(run: Run) -> list[str]:
    """Process and settle the next batch. Return its records; [] if there is no batch now."""
    return [] if (batch := taken(run)) is None else worked(run, batch)


def taken(run: Run) -> Batch | None:
    try:
        return run.next_batch()
    except Idle:
        return None


def worked(run: Run, batch: Batch, but: tuple[str, ...] = ()) -> list[str]:
    rows = [row.value for row in frame_of(batch).rows()]
    frame_of(batch).evidence.error = None
    fail = failing(lambda row: row.value in but)
    fail(batch)
    run.settle_batch(batch)
    return rows


def names(partition: str, *positions: int) -> list[str]:
    return [f"{partition}{position}" for position in positions]


def test_the_test_doubles_implement_their_protocols() -> None:
    assert isinstance(Membership(Group(), "x"), Assignment)
    assert isinstance(SharedCheckpoint(Group(), "x"), SharedCheckpointStore)
    assert isinstance(LogInput(Log()), SharedInput)
    assert isinstance(LogInput(Log()), PausableInput)


def test_a_source_of_a_group_reads_what_it_was_assigned_and_nothing_else(cluster: Cluster, log: Log) -> None:
    group = Group()
    x = member(cluster, log, group, "x")
    assert next_of(x) == []
    group.give("b", "x")
    assert next_of(x) == names("b", *range(8))
    assert next_of(x) == names("b", 8, 9)
    assert next_of(x) == []
    assert group.notes == ["x writes b 0-8", "x writes b 0-10"]


def test_a_revoked_partition_is_saved_dropped_and_released_and_its_next_owner_reads_the_open_records(
    cluster: Cluster, log: Log
) -> None:
    group, noted = Group({"a": "x"}), Noted()
    x, y = member(cluster, log, group, "x", listener=noted, commit_interval_s=1000), member(cluster, log, group, "y")
    assert next_of(x) == names("a", *range(8))
    batch = taken(x)
    assert batch is not None
    assert worked(x, batch, but=("a9",)) == names("a", 8, 9)
    group.notes.clear()
    group.give("a", "y")
    assert next_of(y) == []
    assert next_of(x) == []
    assert group.notes == ["x writes a 0-9", "x releases a"]
    assert noted.revoked == [("a", [9])]
    assert next_of(y) == ["a9"]
    assert group.saved["a"].done.to_runs() == [10]
    summary = x.summary()
    assert (summary.acked, summary.revoked, summary.open, summary.holes) == (9, 1, 0, 0)


@pytest.mark.parametrize("how", ["revoked", "lost", "lost after its outcome arrived"])
def test_a_late_dead_letter_is_written_unless_its_partition_is_dropped_first(
    cluster: Cluster, log: Log, how: str
) -> None:
    group, letters = Group({"a": "x"}), MemoryLetters()
    options: dict[str, Any] = {"held": False, "message_timeout_s": 3000, "retry": Retry(max_retries=0)}
    x, y = member(cluster, log, group, "x", dead_letters=letters, **options), member(cluster, log, group, "y")
    batch = taken(x)
    assert batch is not None
    rows = frame_of(batch).rows()
    x.settle_batch(batch)
    frame_of(batch).ack(rows[1:])
    frame_of(batch).fail({rows[0].root: "ValueError: bad"})
    if how != "revoked":
        group.take_away("a")
    if how == "lost after its outcome arrived":
        x._outcomes.take_outcomes(0.0)
        x._partitions.follow_group()
    group.give("a", "y")
    assert next_of(x) == []
    is_known = how == "lost after its outcome arrived"
    assert [letter.value for letter in letters.letters] == ([] if is_known else [b"a0"])
    assert next_of(y) == names("a", 8, 9) if how == "revoked" else names("a", *range(8))


def test_a_partition_that_comes_back_begins_where_the_checkpoint_is_by_then(cluster: Cluster, log: Log) -> None:
    group = Group({"a": "x"})
    x, y = member(cluster, log, group, "x", batch_records=4), member(cluster, log, group, "y", batch_records=4)
    first = taken(x)
    assert first is not None
    assert worked(x, first, but=("a1",)) == names("a", 0, 1, 2, 3)
    group.give("a", "y")
    assert (next_of(x), next_of(y)) == ([], names("a", 1, 4))
    group.give("a", "x")
    assert (next_of(y), next_of(x)) == ([], names("a", 5, 6, 7, 8))
    assert group.saved["a"].done.to_runs() == [9]
    assert (x.summary().records, y.summary().records) == (8, 2)


def test_lost_partitions_are_dropped_without_a_commit(cluster: Cluster, log: Log) -> None:
    group = Group({"a": "x", "b": "x"})
    x, y = (member(cluster, log, group, name, commit_interval_s=1000, batch_records=20) for name in "xy")
    assert next_of(x) == names("a", *range(10)) + names("b", *range(10))
    group.saved.clear()
    x._partitions._checkpointing.note_unsaved(["a", "b"])
    group.notes.clear()
    group.put_out("x")
    group.give("a", "y")
    assert next_of(y) == names("a", *range(10))
    assert next_of(x) == []
    assert group.notes == ["y writes a 0-10"]
    assert next_of(x) == names("b", *range(10))


def test_a_fenced_commit_drops_the_partitions_of_others_and_keeps_the_rest(
    cluster: Cluster, log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    group, noted = Group({"a": "x", "b": "x"}), Noted()
    x, y = member(cluster, log, group, "x", listener=noted, batch_records=20), member(cluster, log, group, "y")
    asleep = taken(x)
    assert asleep is not None
    group.take_away("a")
    group.give("a", "y")
    assert next_of(y) == names("a", *range(8))
    worked(x, asleep, but=("a9", "b9"))
    assert noted.revoked == [("a", [9])]
    assert group.notes == ["y writes a 0-8", "x writes b 0-9"]
    assert next_of(x) == []
    assert noted.revoked == [("a", [9])]
    assert next_of(y) == names("a", 8, 9)
    cluster.time.sleep(1000)
    assert next_of(x) == ["b9"]
    assert caplog.messages.count("other sources own a now") == 1


def test_no_commit_comes_before_the_outcomes_of_a_batch_are_taken(
    cluster: Cluster, log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    """A fenced commit drops partitions. Their finished records would be retired into partitions that are not there."""
    group = Group({"a": "x", "b": "x"})
    options: dict[str, Any] = {"commit_interval_s": 10, "batch_records": 4}
    x = member(cluster, log, group, "x", streams=True, **options)
    assert len(next_of(x)) == 4
    assert len(list(x.take_outcomes())) == 4
    asleep = taken(x)
    assert asleep is not None
    x._partitions._checkpointing.note_unsaved(["a"])
    group.take_away("a")
    group.give("a", "y")
    cluster.time.sleep(11)
    worked(x, asleep)
    assert group.notes == ["x writes a 0-4"]
    assert len(list(x.take_outcomes())) == 4
    for _ in range(5):
        cluster.time.sleep(11)
        next_of(x)
        list(x.take_outcomes())
    assert caplog.messages.count("other sources own a now") == 1


def test_a_source_that_ends_commits_then_leaves_the_group_then_closes_its_checkpoint(
    cluster: Cluster, log: Log
) -> None:
    group = Group({"a": "x"})
    x = member(cluster, log, group, "x", commit_interval_s=1000, batch_records=4)
    assert (next_of(x), next_of(x)) == (names("a", 0, 1, 2, 3), names("a", 4, 5, 6, 7))
    group.notes.clear()
    x.__exit__()
    assert group.notes == ["x writes a 0-8", "x leaves", "x closes the checkpoint"]


def test_a_source_joins_its_group_when_all_else_is_ready(cluster: Cluster, log: Log) -> None:
    group = Group()
    options: dict[str, Any] = {"group": Membership(group, "x"), "checkpoint": SharedCheckpoint(group, "x")}
    source = LogSource(log, environment=cluster.environment(), **options)
    with source._begin_run(NO_SPARK):
        assert group.notes == ["x opens the checkpoint", "x joins"]
        assert options["group"].partitions() == ["a", "b"]


def test_a_group_that_cannot_be_joined_leaves_nothing_open(cluster: Cluster, log: Log) -> None:
    class Away(Membership):
        def open(self, source: str, partitions: Any) -> None:
            raise SourceError("no ZooKeeper")

    group = Group()
    options: dict[str, Any] = {"group": Away(group, "x"), "checkpoint": SharedCheckpoint(group, "x")}
    with pytest.raises(SourceError, match="no ZooKeeper"):
        LogSource(log, environment=cluster.environment(), **options).run(NO_SPARK, save_all)
    assert group.notes == ["x opens the checkpoint", "x closes the checkpoint"]


def test_a_source_whose_input_ends_leaves_its_group_when_all_it_was_assigned_is_done(
    cluster: Cluster, log: Log
) -> None:
    group, log.is_ended = Group({"a": "x", "b": "x"}), True
    options: dict[str, Any] = {"group": Membership(group, "x"), "checkpoint": SharedCheckpoint(group, "x")}
    source = LogSource(log, environment=cluster.environment(), batch_records=15, **options)
    assert source.run(NO_SPARK, save_all).acked == 20
    assert {name: each.done.to_runs() for name, each in group.saved.items()} == {"a": [10], "b": [10]}


def test_without_a_group_a_checkpoint_that_is_fenced_ends_the_run(cluster: Cluster, log: Log) -> None:
    group, log.is_ended = Group(), True
    source = LogSource(log, environment=cluster.environment(), checkpoint=SharedCheckpoint(group, "x"))
    with pytest.raises(Fenced, match="other sources own a, b now"):
        source.run(NO_SPARK, save_all)


def test_a_group_is_refused_without_a_shared_input_and_checkpoint(cluster: Cluster, log: Log) -> None:
    group = Group()
    with pytest.raises(ValueError, match="group='billing': give the membership of a group"):
        LogSource(log, group="billing")
    for checkpoint in (None, MemoryCheckpoint(), cluster.folder / "c"):
        with pytest.raises(ValueError, match=r"checkpoint=.* with a group: partitions go from one source to another"):
            LogSource(log, group=Membership(group, "x"), checkpoint=checkpoint)
    cluster.write("a.txt", "one")
    files = Files(
        f"{cluster.folder}/*.txt",
        name="lines",
        environment=cluster.environment(),
        group=Membership(group, "x"),
        checkpoint=SharedCheckpoint(group, "x"),
    )
    with pytest.raises(SourceError, match="group with an input of files: its partitions cannot be shared out"):
        files.run(NO_SPARK, save_all)


def test_a_source_of_a_group_names_each_folder_that_other_drivers_may_write_into_once(
    cluster: Cluster, log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    group = Group()
    x = member(cluster, log, group, "x", batch_records=2)
    assert next_of(x) == []
    group.give("a", "x")
    for _ in range(3):
        batch = taken(x)
        assert batch is not None
        frame_of(batch).evidence.folders = frozenset({"file:/out", f"file:/apart/batch={batch.id}"})
        worked(x, batch)
    (line,) = [each for each in caplog.messages if "files were written" in each]
    assert "into file:/out, and this source is in a group" in line
    assert "use write_parquet" in line
