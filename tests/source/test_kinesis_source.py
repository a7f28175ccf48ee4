"""Kinesis as a source: runs over a stream in memory, with a real shard of the server and simulated time.

The first three tests cover mistakes of kinesis-storm-spout.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from acker_client.cluster.watched import WatchResult
from acker_client.source import Batch, Kinesis, Retry, SourceError
from acker_client.source.kinesis.connection import LATEST, TRIM_HORIZON, Begin, KinesisDoor, Unanswered
from acker_client.source.kinesis.input import StreamReading
from acker_client.source.records.input import Committed
from acker_client.source.records.parts import Parts
from acker_protocol.messages import Outcomes, Verdict
from tests.source.executors import NO_SPARK, Cluster, Log, Polling, Row, failing, frame_of, save_all
from tests.source.kinesis_twin import TwinKinesis
from tests.source.logs import MemoryCheckpoint, MemoryLetters
from tests.source.test_kinesis import Following

AT_ONCE = Retry(max_retries=3, initial_s=0.0)
SHARD_0, SHARD_1 = "shardId-000000000000", "shardId-000000000001"


class TwinSource(Kinesis):
    """A Kinesis source that reads the stream in memory."""

    def __init__(self, twin: TwinKinesis, **options: Any) -> None:
        super().__init__("orders", **{"name": "orders", "stop": "end", **options})
        self.twin = twin

    def _open_stream(self) -> KinesisDoor:
        return self.twin


@pytest.fixture
def twin(cluster: Cluster) -> TwinKinesis:
    return TwinKinesis(cluster.time)


def source(cluster: Cluster, twin: TwinKinesis, **options: Any) -> TwinSource:
    defaults = {"environment": cluster.environment(), "retry": AT_ONCE, "dead_letters": MemoryLetters()}
    return TwinSource(twin, **{**defaults, "max_dead_share": 1.0, **options})


class Repeating(Polling):
    """Returns every outcome twice, and then once more as ACKED, even for roots that failed.

    At-least-once notifications may do the same.
    """

    def __init__(self, client: Any) -> None:
        super().__init__(client)
        self._waiting: deque[WatchResult] = deque()

    def next_result(self, timeout_s: float) -> WatchResult | None:
        if self._waiting:
            return self._waiting.popleft()
        watched = super().next_result(timeout_s)
        if watched is not None and len(watched.outcomes):
            outcomes = watched.outcomes
            late = Outcomes(outcomes.root_ids, np.full(len(outcomes), Verdict.ACKED, outcomes.verdicts.dtype))
            self._waiting += [WatchResult(outcomes=outcomes), WatchResult(outcomes=late)]
        return watched


def noting(seen: list[str], bad: Callable[[Row], bool]) -> Callable[[Batch], None]:
    """Return a job that adds the values that it reads to ``seen``, and fails the rows that are ``bad``."""

    def process(batch: Batch) -> None:
        rows = frame_of(batch).rows()
        seen.extend(row.value.decode() for row in rows)
        frame_of(batch).fail({row.root: "ValueError: bad" for row in rows if bad(row)})
        frame_of(batch).ack(row for row in rows if not bad(row))

    return process


def test_a_limit_of_0_retries_does_not_stop_the_checkpoint(cluster: Cluster, twin: TwinKinesis) -> None:
    twin.put(0, *"abc")
    letters, checkpoint = MemoryLetters(), MemoryCheckpoint()
    summary = source(cluster, twin, retry=Retry(max_retries=0), dead_letters=letters, checkpoint=checkpoint).run(
        NO_SPARK, failing(lambda row: row.value == b"b")
    )
    assert (summary.acked, summary.dead_lettered, summary.replayed) == (2, 1, 0)
    assert checkpoint.saved[SHARD_0].done.to_runs() == [3]


def test_an_ack_that_comes_late_after_a_fail_starves_no_shard_and_emits_no_acked_record_again(
    cluster: Cluster, twin: TwinKinesis
) -> None:
    twin.put(0, *"abc")
    twin.put(1, *"xyz")
    seen: list[str] = []
    failed: set[bytes] = set()

    def once(row: Row) -> bool:
        is_first = row.value in b"by" and row.value not in failed
        failed.add(row.value)
        return is_first

    environment = replace(cluster.environment(), watch=Repeating)
    summary = source(cluster, twin, environment=environment, batch_records=2).run(NO_SPARK, noting(seen, once))
    assert (summary.acked, summary.open) == (6, 0)
    assert sorted(seen) == sorted("abcxyz" + "by")


def test_a_fail_that_comes_twice_is_one_retry(cluster: Cluster, twin: TwinKinesis) -> None:
    twin.put(0, *"abc")
    seen: list[str] = []
    environment = replace(cluster.environment(), watch=Repeating)
    letters = MemoryLetters()
    source(cluster, twin, environment=environment, dead_letters=letters).run(
        NO_SPARK, noting(seen, lambda row: row.value == b"b")
    )
    assert (sorted(seen), [letter.failed for letter in letters.letters]) == (sorted("abcbbb"), [4])


def test_a_record_that_is_tried_again_is_not_asked_of_aws_again(cluster: Cluster, twin: TwinKinesis) -> None:
    twin.put(0, *"abc")
    log = Log()
    untroubled = TwinKinesis(cluster.time)
    untroubled.put(0, *"abc")
    source(cluster, untroubled).run(NO_SPARK, save_all)
    source(cluster, twin, listener=log).run(NO_SPARK, failing(lambda row: row.value == b"b"))
    assert (len(log.retried), len(log.dead)) == (3, 1)
    assert len(twin.reads) == len(untroubled.reads)


def test_a_poison_record_holds_up_no_other_shard_and_its_own_goes_on_behind_it(
    cluster: Cluster, twin: TwinKinesis
) -> None:
    twin.put(0, *"abc")
    twin.put(1, *"xyz")
    checkpoint = MemoryCheckpoint()
    at_first_retry: list[list[int]] = []

    class Retried(Log):
        def on_emit(self, batch: int, emitted: Any, is_replay: bool) -> None:
            if is_replay and not at_first_retry:
                at_first_retry.extend(checkpoint.saved[shard].done.to_runs() for shard in (SHARD_0, SHARD_1))

    retry = Retry(max_retries=3, initial_s=10.0)
    source(cluster, twin, retry=retry, checkpoint=checkpoint, listener=Retried()).run(
        NO_SPARK, failing(lambda row: row.value == b"a")
    )
    assert at_first_retry == [[0, 1, 2], [3]]
    assert [checkpoint.saved[shard].done.to_runs() for shard in (SHARD_0, SHARD_1)] == [[3], [3]]


def test_a_dead_letter_names_stream_shard_and_sequence_number_and_holds_the_bytes(
    cluster: Cluster, twin: TwinKinesis
) -> None:
    twin.put(0, "fine", "bad")
    dead = cluster.folder / "dead.jsonl"
    source(cluster, twin, dead_letters=dead, retry=Retry(max_retries=1, initial_s=0.0)).run(
        NO_SPARK, failing(lambda row: row.value == b"bad")
    )
    (letter,) = map(json.loads, dead.read_text().splitlines())
    assert {name: letter[name] for name in ("stream", "shard", "partition_key", "value")} == {
        "stream": "orders",
        "shard": SHARD_0,
        "partition_key": "key-bad",
        "value": "bad",
    }
    assert letter["sequence_number"] == str(twin.streams[SHARD_0].records[1].sequence_number)


def test_a_checkpoint_file_brings_a_restart_to_what_was_open(cluster: Cluster, twin: TwinKinesis) -> None:
    twin.put(0, *"abcdef")
    checkpoint = cluster.folder / "orders.ckpt"
    with pytest.raises(SourceError, match="spent all retries, and there is nowhere to put them"):
        source(cluster, twin, checkpoint=checkpoint, dead_letters=None).run(
            NO_SPARK, failing(lambda row: row.value in b"be")
        )
    twin.split(0)
    twin.put(2, "g")
    seen: list[str] = []
    summary = source(cluster, twin, checkpoint=checkpoint).run(NO_SPARK, noting(seen, lambda row: False))
    assert seen == ["b", "e", "g"]
    assert summary.checkpoint == "end of the stream (4 shards)"
    with pytest.raises(SourceError, match="is of input 'kinesis', not of 'files'"):
        cluster.source(name="orders", checkpoint=checkpoint).run(NO_SPARK, save_all)


def test_aws_away_in_the_middle_loses_nothing(cluster: Cluster, twin: TwinKinesis) -> None:
    twin.put(0, *(str(k) for k in range(50)))
    seen: list[str] = []
    work = noting(seen, lambda row: False)

    def process(batch: Batch) -> None:
        if batch.number == 2:
            twin.fail("read", *(Unanswered("503") for _ in range(8)))
            twin.fail("shards", *(Unanswered("503") for _ in range(3)))
        work(batch)

    summary = source(cluster, twin, batch_records=10).run(NO_SPARK, process)
    assert (summary.acked, summary.replayed) == (50, 0)
    assert sorted(map(int, seen)) == list(range(50))


# -- in a group


def member(
    twin: TwinKinesis, saved: dict[str, Committed], *, first: Begin = TRIM_HORIZON, is_to_end: bool = False
) -> Following:
    """Return the input of a group's member, with no shard assigned yet."""
    reading = StreamReading(first, is_to_end, refresh_s=5.0)
    following = Following(twin, reading=reading, saved=lambda: saved)
    shared: Any = following.input
    shared.assign({})
    return following


def assign(following: Following, saved: dict[str, Committed], *shards: str) -> None:
    """Assign shards like a run: first to the parts, then to the input."""
    shared: Any = following.input
    given = {shard: saved.get(shard, Committed()) for shard in shards}
    following.parts = Parts({shard: each.done for shard, each in given.items()})
    shared.assign(given)


def test_a_member_of_a_group_plans_the_shards_it_is_given_and_no_others(twin: TwinKinesis) -> None:
    twin.put(0, "a", "b")
    twin.put(1, "x")
    saved: dict[str, Committed] = {}
    first = member(twin, saved)
    shared: Any = first.input
    assert shared.partitions() == [SHARD_0, SHARD_1]
    assert (first.data(first.drain()), first.is_over) == ([], False)
    assign(first, saved, SHARD_0)
    records = first.drain()
    assert first.data(records) == ["a", "b"]
    first.finish(records[:1])
    saved |= first.committed()
    shared.revoke([SHARD_0])
    assert first.data(first.drain()) == []
    second = member(twin, saved)
    assign(second, saved, SHARD_0, SHARD_1)
    assert second.data(second.drain()) == ["b", "x"]


def test_a_member_keeps_a_shard_that_has_aged_out_until_the_records_that_it_read_are_done(
    twin: TwinKinesis, caplog: pytest.LogCaptureFixture
) -> None:
    twin.put(0, "a", "b")
    saved: dict[str, Committed] = {}
    first = member(twin, saved)
    assign(first, saved, SHARD_0)
    records = first.drain()
    twin.split(0)
    twin.drop(0)
    twin.time.sleep(10.0)
    shared: Any = first.input
    children = ["shardId-000000000002", "shardId-000000000003"]
    assert (shared.partitions(), first.data(first.drain())) == ([SHARD_0, SHARD_1, *children], [])
    first.finish(records[:1])
    saved |= first.committed()
    assert shared.partitions() == [SHARD_0, SHARD_1, *children]
    first.finish(records[1:])
    saved |= first.committed()
    assert shared.partitions() == [SHARD_1, *children]
    caplog.clear()
    shared.revoke([SHARD_0])
    assert caplog.text == ""


def test_a_member_that_has_to_give_up_a_shard_that_has_aged_out_says_that_its_open_records_are_lost(
    twin: TwinKinesis, caplog: pytest.LogCaptureFixture
) -> None:
    twin.put(0, "a")
    first = member(twin, {})
    assign(first, {}, SHARD_0)
    first.drain()
    twin.split(0)
    twin.drop(0)
    twin.time.sleep(10.0)
    first.drain()
    caplog.clear()
    shared: Any = first.input
    shared.revoke([SHARD_0])
    assert f"{SHARD_0} has aged out of the stream with records that were not done: they are lost" in caplog.text


def test_in_a_group_a_source_follows_also_where_it_was_to_stop_at_the_end(twin: TwinKinesis) -> None:
    saved: dict[str, Committed] = {}
    first = member(twin, saved, is_to_end=True)
    assign(first, saved, SHARD_0)
    assert (first.data(first.drain()), first.is_over) == ([], False)
    twin.put(0, "a")
    assert (first.data(first.drain()), first.is_over) == (["a"], False)


def test_a_shard_that_comes_back_is_read_from_where_its_checkpoint_is_by_then(twin: TwinKinesis) -> None:
    twin.put(0, *"abcd")
    saved: dict[str, Committed] = {}
    first, second = member(twin, saved), member(twin, saved)
    assign(first, saved, SHARD_0)
    assert first.data(first.drain()) == list("abcd")
    shared: Any = first.input
    shared.revoke([SHARD_0])
    assign(second, saved, SHARD_0)
    second.finish(second.drain()[:3])
    saved |= second.committed()
    assign(first, saved, SHARD_0)
    assert first.data(first.drain()) == ["d"]


@pytest.mark.parametrize("empty", [False, True])
def test_a_child_waits_for_a_parent_that_another_member_has(twin: TwinKinesis, empty: bool) -> None:
    if not empty:
        twin.put(0, "a", "b")
    twin.split(0)
    twin.put(2, "c")
    saved: dict[str, Committed] = {}
    first, second = member(twin, saved), member(twin, saved)
    assign(first, saved, SHARD_0)
    assign(second, saved, "shardId-000000000002")
    assert second.data(second.drain()) == (["c"] if empty else [])
    records = first.drain()
    for record in records.tolist():
        assert second.data(second.drain()) == []
        first.finish([record])
        saved |= first.committed()
    if not empty:
        assert second.data(second.drain()) == ["c"]


def test_a_child_waits_for_the_only_record_of_a_parent_that_another_member_has_not_read_yet(twin: TwinKinesis) -> None:
    twin.put(0, "a")
    twin.split(0)
    twin.put(2, "b")
    saved: dict[str, Committed] = {}
    first, second = member(twin, saved), member(twin, saved)
    assign(first, saved, SHARD_0)
    assign(second, saved, "shardId-000000000002")
    assert second.data(second.drain()) == []
    first.finish(first.drain())
    saved |= first.committed()
    assert second.data(second.drain()) == ["b"]


def test_a_child_waits_for_unsaved_records_of_its_parent_at_another_member(twin: TwinKinesis) -> None:
    saved: dict[str, Committed] = {}
    first, second = (member(twin, saved, first=LATEST) for _ in range(2))
    assign(first, saved, SHARD_0)
    assign(second, saved, "shardId-000000000002")
    first.drain()
    twin.put(0, "a")
    records = first.drain()
    twin.split(0)
    twin.put(2, "b")
    assert (first.data(records), second.data(second.drain())) == (["a"], [])
    first.finish(records)
    saved |= first.committed()
    assert second.data(second.drain()) == ["b"]


def test_latest_loses_no_record_of_a_shard_without_records_that_goes_to_another_member(twin: TwinKinesis) -> None:
    twin.put(0, "old")
    twin.time.sleep(10.0)
    saved: dict[str, Committed] = {}
    first = member(twin, saved, first=LATEST)
    assign(first, saved, SHARD_0, SHARD_1)
    first.drain()
    twin.put(1, "a")
    first.finish(first.drain())
    saved |= first.committed()
    shared: Any = first.input
    shared.revoke([SHARD_0])
    twin.put(0, "b")
    twin.time.sleep(10.0)
    second = member(twin, saved, first=LATEST)
    assign(second, saved, SHARD_0)
    assert second.data(second.drain()) == ["b"]


def test_latest_begins_when_the_member_started_if_the_group_has_saved_nothing(twin: TwinKinesis) -> None:
    twin.put(0, "old")
    twin.time.sleep(10.0)
    second = member(twin, {}, first=LATEST)
    twin.put(0, "b")
    twin.time.sleep(10.0)
    assign(second, {}, SHARD_0)
    assert second.data(second.drain()) == ["b"]


def test_one_look_at_the_groups_checkpoint_serves_all_parents_that_others_have(cluster: Cluster) -> None:
    twin = TwinKinesis(cluster.time, 8)
    for first in range(0, 8, 2):
        twin.put(first, "a")
        twin.merge(first, first + 1)
    looks: list[float] = []

    def saved() -> dict[str, Committed]:
        looks.append(twin.time.clock())
        return {}

    following = Following(twin, reading=StreamReading(refresh_s=5.0), saved=saved)
    assign(following, {}, *(f"shardId-{k:012d}" for k in range(8, 12)))
    looks.clear()
    assert following.data(following.drain()) == []
    assert len(looks) == len(set(looks)) > 0


def test_a_child_begins_even_if_done_records_of_its_parent_were_not_read_again(twin: TwinKinesis) -> None:
    twin.put(0, *"abcdef")
    twin.split(0)
    twin.put(2, "x")
    saved: dict[str, Committed] = {}
    first, second, third = (member(twin, saved) for _ in range(3))
    assign(first, saved, SHARD_0)
    first.finish(first.drain()[1:])
    saved |= first.committed()
    assign(second, saved, SHARD_0)
    assign(third, saved, "shardId-000000000002")
    assert third.data(third.drain()) == []
    second.finish(second.plan(1))
    saved |= second.committed()
    assert second.data(second.drain()) == []
    assert third.data(third.drain()) == ["x"]


def test_an_empty_shard_in_between_does_not_hide_its_open_ancestors(twin: TwinKinesis) -> None:
    twin.put(0, "a")
    twin.split(0)
    twin.split(2)
    twin.put(4, "b")
    saved: dict[str, Committed] = {}
    first, second, third = (member(twin, saved) for _ in range(3))
    assign(first, saved, SHARD_0)
    assign(second, saved, "shardId-000000000002")
    assign(third, saved, "shardId-000000000004")
    assert third.data(third.drain()) == []
    first.finish(first.drain())
    saved |= first.committed()
    assert (second.data(second.drain()), third.data(third.drain())) == ([], ["b"])


def test_outcomes_have_the_partition_keys_of_their_records(cluster: Cluster, twin: TwinKinesis) -> None:
    twin.put(0, *"ab")
    twin.put(1, *"x")
    written = {str(each.sequence_number): each.key for shard in twin.streams.values() for each in shard.records}
    outcomes = list(source(cluster, twin).outcomes(NO_SPARK, save_all))
    assert {each.origin["sequence_number"]: each.key for each in outcomes} == written


def test_records_of_a_partition_key_wait_for_an_earlier_one_also_in_the_shard_of_a_split(
    cluster: Cluster, twin: TwinKinesis
) -> None:
    # The twin derives the partition key of a record from its data.
    twin.put(0, *"abacab")
    twin.split(0)
    twin.put(2, *"ab")
    handed: list[list[tuple[str, int]]] = []
    tries = 0

    def process(batch: Batch) -> None:
        nonlocal tries
        columns = [read.columns for piece in frame_of(batch).plan.slices for read in piece.read()]
        rows = [(row["data"].decode(), int(row["sequence_number"])) for each in columns for row in each.to_pylist()]
        handed.append(sorted(rows, key=lambda row: row[1]))
        tries += 1
        failing(lambda row: row.value == b"b" and tries < 3)(batch)

    with pytest.raises(ValueError, match="ordered_by='partition_key' with track"):
        source(cluster, twin, ordered_by="partition_key", track="true")
    summary = source(cluster, twin, ordered_by="partition_key").run(NO_SPARK, process)
    assert (summary.acked, summary.held_back) == (8, 0)
    assert [[data for data, _ in batch] for batch in handed[:3]] == [["a", "b", "c"], ["b", "a"], ["b", "a"]]
    for key in "abc":
        numbers = [number for batch in handed for data, number in batch if data == key]
        assert numbers == sorted(numbers)
