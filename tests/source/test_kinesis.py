"""The Kinesis input, tested against an in-memory stream that behaves as AWS documents it (``kinesis_twin``)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acker_client.source import CheckpointError, Kinesis, SourceError
from acker_client.source.kinesis.connection import LATEST, Begin, Expired, ListedShard, Throttled, Unanswered
from acker_client.source.kinesis.input import KinesisInput, StreamReading, first_begin
from acker_client.source.kinesis.lineage import Lineage
from acker_client.source.records.input import Committed, SharedInput
from acker_testing import SimulatedTime
from tests.source.driven import Driven, read_elsewhere, rows_of
from tests.source.kinesis_twin import ITERATOR_S, TwinKinesis

TO_END = StreamReading(is_to_end=True)


class Following(Driven):
    """Drives the input as a run does: after an empty plan, ``drain`` waits and plans again."""

    def __init__(
        self,
        twin: TwinKinesis,
        committed: Mapping[str, Committed] | None = None,
        reading: StreamReading = TO_END,
        **options: Any,
    ) -> None:
        self.twin = twin
        time = twin.time
        kinesis = KinesisInput(twin, reading, clock=time.clock, sleep=time.sleep, random=lambda: 0.5, **options)
        self.is_over = False
        super().__init__(kinesis, committed)

    def plan(self, records_max: int = 1000, tasks: int = 2) -> np.ndarray:
        """Return the next records that are not done. Empty at the end, or if there are none now."""
        plan = self.input.plan(records_max, tasks)
        self.is_over = plan.is_end
        return self.take(plan)

    def drain(self, records_max: int = 1000) -> np.ndarray:
        """Plan until the end, or until three plans in a row are empty. Return all planned records, and finish none."""
        planned = [np.empty(0, np.int64)]
        nothing = 0
        while not self.is_over and nothing < 3:
            planned.append(self.plan(records_max))
            nothing = 0 if len(planned[-1]) else nothing + 1
            self.twin.time.sleep(0.0 if len(planned[-1]) else 31.0)
        return np.concatenate(planned)

    def data(self, records: Any) -> list[str]:
        return [bytes(value).decode() for value in self.values(records)]

    def work_off(self) -> list[str]:
        """Read and finish all records to the end. Return their data."""
        found: list[str] = []
        while not self.is_over:
            records = self.drain(7)
            found += self.data(records)
            self.finish(records)
            self.committed()
        return found


@pytest.fixture
def twin() -> TwinKinesis:
    return TwinKinesis(SimulatedTime())


def test_kinesis_is_a_shared_input(twin: TwinKinesis) -> None:
    shared: SharedInput[Any] = Following(twin).input  # type: ignore[assignment]
    assert isinstance(shared, SharedInput)


def test_a_row_has_data_key_sequence_number_shard_and_time_of_arrival(twin: TwinKinesis) -> None:
    twin.time.sleep(1000.5)
    twin.put(0, "a", "b")
    twin.put(1, "c")
    following = Following(twin)
    records = following.drain()
    rows = rows_of(following.slices(records, 3))
    numbers = [str(each.sequence_number) for shard in twin.streams.values() for each in shard.records]
    assert [row["data"] for row in rows] == [b"a", b"b", b"c"]
    assert rows[2] == {
        "data": b"c",
        "partition_key": "key-c",
        "sequence_number": numbers[2],
        "shard": "shardId-000000000001",
        "arrival_timestamp": datetime.fromtimestamp(1000.5, UTC),
    }
    assert len(numbers[0]) == 56
    assert following.origins(records).to_pylist()[1] == {
        "stream": "orders",
        "shard": "shardId-000000000000",
        "sequence_number": numbers[1],
    }
    (original,) = following.originals([1])
    assert original.value == b"b"
    assert dict(original.origin) == following.origins([1]).to_pylist()[0] | {"partition_key": "key-b"}


@pytest.mark.slow
def test_slices_hold_only_their_own_records_and_are_unpacked_without_spark_grpc_and_boto3(twin: TwinKinesis) -> None:
    twin.put(0, *("x" * 1000 for _ in range(100)))
    following = Following(twin)
    records = following.drain()
    slices = following.slices(records, 4)
    assert read_elsewhere(slices) == "[25, 25, 25, 25] False False"
    assert len(following.slices(records[3:5])[0].content) < 10_000


@pytest.mark.long
@given(st.data(), st.booleans())
@settings(max_examples=150, deadline=None)
def test_every_record_is_read_once_and_a_restart_reads_exactly_those_that_are_not_done(
    data: st.DataObject, like_moto: bool
) -> None:
    twin = TwinKinesis(SimulatedTime(), data.draw(st.integers(1, 3)), like_moto=like_moto)
    twin.answer_max = data.draw(st.sampled_from([None, 1, 3]))
    written, done = 0, set[str]()
    following = Following(twin)
    emitted: dict[str, int] = {}
    for _ in range(data.draw(st.integers(1, 16))):
        opened = [int(name[-3:]) for name, shard in twin.streams.items() if not shard.is_closed]
        step = data.draw(st.sampled_from(["put", "put", "plan", "finish", "finish", "restart", "split", "merge"]))
        if step == "put":
            count = data.draw(st.integers(1, 9))
            twin.put(data.draw(st.sampled_from(opened)), *(str(written + k) for k in range(count)))
            written += count
        elif step == "split" and len(twin.streams) < 9:
            twin.split(data.draw(st.sampled_from(opened)))
        elif step == "merge" and len(opened) > 1:
            twin.merge(*data.draw(st.permutations(opened))[:2])
        elif step == "plan":
            plan = data.draw(st.sampled_from([following.drain, following.plan]))
            records = plan(data.draw(st.integers(1, 20)))
            for row in following.origins(records).to_pylist():
                assert twin.of_parents(row["shard"]) <= done
            emitted |= {value: int(k) for k, value in zip(records, following.data(records), strict=True)}
        elif step == "finish" and emitted:
            chosen = sorted(data.draw(st.sets(st.sampled_from(sorted(emitted)))), key=lambda each: emitted[each])
            assert following.data([emitted[each] for each in chosen]) == chosen
            following.finish([emitted.pop(each) for each in chosen])
            done |= set(chosen)
            following.committed()
        elif step == "restart":
            following, emitted = Following(twin, following.committed()), {}
            twin.time.sleep(data.draw(st.sampled_from([0.0, 400.0])))
        assert not set(emitted) & done
    again = Following(twin, following.committed()).work_off()
    assert sorted(again) == sorted({str(k) for k in range(written)} - done)


def test_records_done_beyond_a_hole_stay_done_if_the_next_run_does_not_reach_them(twin: TwinKinesis) -> None:
    twin.put(0, *"abcdefghijkl")
    first = Following(twin)
    records = first.drain()
    first.finish(np.delete(records, [0, 6]))
    second = Following(twin, first.committed())
    records = second.plan(1)
    assert second.data(records) == ["a"]
    second.finish(records)
    third = Following(twin, second.committed())
    records = third.plan(8)
    found = third.data(records)
    third.finish(records)
    assert found + Following(twin, third.committed()).work_off() == ["g"]


def test_the_children_of_a_split_begin_when_all_records_of_their_parent_are_done(twin: TwinKinesis) -> None:
    twin.put(0, "a", "b", "c")
    twin.split(0)
    twin.put(2, "d")
    twin.put(3, "e")
    following = Following(twin)
    records = following.drain()
    assert following.data(records) == ["a", "b", "c"]
    assert not following.is_over
    following.finish(records[[0, 2]])
    following.committed()
    assert following.data(following.drain()) == []
    following.finish(records[[1]])
    following.committed()
    assert sorted(following.data(following.drain())) == ["d", "e"]
    assert following.is_over


def test_the_child_of_a_merge_waits_for_both_its_parents(twin: TwinKinesis) -> None:
    twin.put(0, "a")
    twin.put(1, "b")
    twin.merge(0, 1)
    twin.put(2, "c")
    following = Following(twin)
    first, second = following.drain().tolist()
    for done, then in ((first, []), (second, ["c"])):
        following.finish([done])
        following.committed()
        assert following.data(following.drain()) == then


def test_a_parent_that_has_aged_out_of_the_stream_is_no_obstacle(twin: TwinKinesis) -> None:
    twin.put(0, "a")
    twin.merge(0, 1)
    twin.put(2, "b")
    twin.drop(0)
    assert Following(twin).work_off() == ["b"]


def test_shards_that_come_while_it_runs_are_found(twin: TwinKinesis) -> None:
    following = Following(twin, reading=StreamReading())
    twin.put(0, "a")
    records = following.drain()
    twin.split(0)
    twin.put(2, "b")
    following.finish(records)
    following.committed()
    assert following.data(following.drain()) == ["b"]


@pytest.mark.parametrize("like_moto", [False, True])
def test_the_children_of_a_shard_that_ends_are_looked_for_at_once(like_moto: bool) -> None:
    twin = TwinKinesis(SimulatedTime(), 1, like_moto=like_moto)
    following = Following(twin, reading=StreamReading(refresh_s=10.0 if like_moto else 86_400.0))
    twin.put(0, "a")
    twin.split(0)
    twin.put(1, "b")
    began_s, found = twin.time.clock(), list[str]()
    while found != ["a", "b"]:
        records = following.plan()
        found += following.data(records)
        following.finish(records)
        following.committed()
        twin.time.sleep(1.0)
    assert twin.time.clock() - began_s < 15


def test_a_restart_after_a_split_goes_on_with_parent_and_children_where_each_was_left(twin: TwinKinesis) -> None:
    twin.put(0, "a", "b")
    following = Following(twin)
    following.finish(following.drain()[:1])
    twin.split(0)
    twin.put(3, "c")
    again = Following(twin, following.committed())
    assert again.work_off() == ["b", "c"]
    assert again.description == "end of the stream (4 shards)"
    assert Following(twin, again.committed()).work_off() == []


def test_shards_take_turns_even_if_a_batch_has_fewer_records_than_there_are_shards(twin: TwinKinesis) -> None:
    twin.put(0, *"abcd")
    twin.put(1, *"xyz")
    following = Following(twin)
    taken = []
    for _ in range(6):
        taken += following.data(following.plan(1))
        twin.time.sleep(10.0)
    assert taken == list("axbycz")
    assert following.data(following.plan(4)) == ["d"]


def test_a_paused_shard_is_left_alone_while_others_are_read_and_goes_on_later(twin: TwinKinesis) -> None:
    twin.put(0, *"ab")
    twin.put(1, *"xy")
    following = Following(twin)
    kinesis: Any = following.input
    kinesis.pause({"shardId-000000000000"})
    assert (following.data(following.drain()), following.is_over) == (["x", "y"], False)
    kinesis.pause(())
    assert (following.data(following.drain()), following.is_over) == (["a", "b"], True)


def test_stop_end_ends_after_existing_records_and_stop_never_keeps_reading(twin: TwinKinesis) -> None:
    twin.put(0, "a")
    following, to_end = Following(twin, reading=StreamReading()), Following(twin)
    assert following.data(following.drain()) == to_end.work_off() == ["a"]
    assert (following.is_over, to_end.is_over) == (False, True)
    twin.put(0, "b")
    twin.split(0)
    twin.put(2, "c")
    assert following.data(following.drain()) == ["b"]


@pytest.mark.parametrize("like_moto", [False, True])
def test_an_answer_of_fewer_records_than_were_asked_for_is_not_the_end_of_a_shard(like_moto: bool) -> None:
    twin = TwinKinesis(SimulatedTime(), 2, like_moto=like_moto)
    twin.answer_max = 2
    for shard, data in ((0, "abc"), (1, "xyz")):
        twin.put(shard, *data)
    twin.split(0)
    twin.put(2, "d")
    assert sorted(Following(twin).work_off()) == list("abcdxyz")


def test_an_empty_stream_ends_at_once(twin: TwinKinesis) -> None:
    following = Following(twin)
    assert (following.work_off(), following.is_over) == ([], True)
    assert following.description == "end of the stream (2 shards)"


# -- where it begins


def test_latest_reads_only_new_records_but_new_shards_from_their_beginning(twin: TwinKinesis) -> None:
    twin.put(0, "old")
    twin.put(1, "old too")
    twin.split(0)
    twin.put(2, "older than the start")
    following = Following(twin, reading=StreamReading(LATEST))
    assert following.data(following.drain()) == []
    twin.put(1, "a")
    twin.put(2, "b")
    twin.merge(2, 3)
    twin.put(4, "c")
    records = following.drain()
    assert following.data(records) == ["a", "b"]
    following.finish(records)
    following.committed()
    assert following.data(following.drain()) == ["c"]


def test_latest_keeps_its_first_start_after_a_checkpoint_without_acks(twin: TwinKinesis) -> None:
    following = Following(twin, reading=StreamReading(LATEST))
    following.drain()
    twin.put(0, "a", "b")
    assert following.data(following.drain()) == ["a", "b"]
    again = Following(twin, following.committed(), StreamReading(LATEST, is_to_end=True))
    assert again.work_off() == ["a", "b"]


def test_latest_does_not_lose_records_that_came_while_its_iterator_expired(twin: TwinKinesis) -> None:
    twin.put(0, "old")
    twin.time.sleep(10.0)
    following = Following(twin, reading=StreamReading(LATEST))
    following.drain()
    twin.time.sleep(1.0)
    twin.put(0, "a")
    twin.time.sleep(ITERATOR_S + 1)
    assert following.data(following.drain()) == ["a"]


@pytest.mark.parametrize("is_split", [False, True])
def test_latest_reads_after_a_restart_what_came_meanwhile_to_a_shard_that_had_no_record(
    twin: TwinKinesis, is_split: bool
) -> None:
    twin.put(0, "old")
    twin.time.sleep(10.0)
    following = Following(twin, reading=StreamReading(LATEST))
    following.drain()
    twin.put(1, "a")
    following.finish(following.drain())
    committed = following.committed()
    twin.put(0, "b")
    if is_split:
        twin.split(0)
        twin.put(2, "c")
    assert Following(twin, committed, StreamReading(LATEST, is_to_end=True)).work_off() == ["b", "c"][: 1 + is_split]


def test_latest_keeps_its_first_start_over_several_restarts(twin: TwinKinesis) -> None:
    twin.put(0, "old")
    twin.time.sleep(10.0)
    following = Following(twin, reading=StreamReading(LATEST))
    following.drain()
    twin.put(0, "a")
    for each in ("b", "c"):
        twin.put(1, each)
        # Nothing of shard 0 is done.
        following.finish([record for record in following.drain() if following.data([record]) != ["a"]])
        committed = {shard: each for shard, each in following.committed().items() if shard != "shardId-000000000000"}
        twin.time.sleep(10.0)
        following = Following(twin, committed, StreamReading(LATEST))
    assert following.data(following.drain()) == ["a"]


def test_latest_goes_on_as_before_with_a_checkpoint_that_does_not_say_when_the_source_first_started(
    twin: TwinKinesis,
) -> None:
    following = Following(twin, reading=StreamReading(LATEST))
    following.drain()
    twin.put(1, "a")
    following.finish(following.drain())
    older = {
        shard: Committed(each.done, {name: value for name, value in each.mark.items() if name != "began_ms"})
        for shard, each in following.committed().items()
    }
    twin.time.sleep(10.0)
    twin.put(0, "b")
    assert Following(twin, older, StreamReading(LATEST, is_to_end=True)).work_off() == []


def test_a_start_time_begins_every_shard_at_the_first_record_that_arrived_after_it(twin: TwinKinesis) -> None:
    twin.put(0, "a")
    twin.time.sleep(100.0)
    twin.put(0, "b")
    twin.split(0)
    twin.put(2, "c")
    assert Following(twin, reading=StreamReading(first_begin(50.0), is_to_end=True)).work_off() == ["b", "c"]
    assert (
        first_begin(datetime(1970, 1, 1, tzinfo=UTC)) == first_begin(0) == Begin.since(datetime(1970, 1, 1, tzinfo=UTC))
    )


# -- what AWS does, and moto does not


def test_a_shard_is_read_five_times_a_second_at_most_and_an_empty_one_once(twin: TwinKinesis) -> None:
    twin.put(0, *(str(k) for k in range(60)))
    following = Following(twin, reading=StreamReading())
    while len(following.parts.chosen(np.arange(following.parts.planned))) == 0 or following.parts.planned < 60:
        following.plan(5)
    began_s = twin.time.clock()
    for _ in range(200):
        following.plan()
        twin.time.sleep(0.05)
    reads = [at for shard, at in twin.reads if shard.endswith("0") and at < began_s]
    assert all(later - sooner >= 0.2 - 1e-9 for sooner, later in pairwise(reads))
    assert len([at for shard, at in twin.reads if shard.endswith("1") and at >= began_s]) <= 11


def test_throttled_and_unanswered_calls_are_retried_without_lost_or_duplicate_records(
    twin: TwinKinesis, caplog: pytest.LogCaptureFixture
) -> None:
    twin.put(0, *(str(k) for k in range(20)))
    for method in ("describe", "shards", "iterator", "read"):
        twin.fail(method, Throttled("Rate exceeded"), Unanswered("503"), Throttled("Rate exceeded"))
    following = Following(twin)
    found = []
    while not following.is_over:
        before_s, before = twin.time.clock(), len(twin.reads)
        found += following.data(following.plan(6))
        assert len(twin.reads) - before <= 5 * (3 + twin.time.clock() - before_s)
        twin.time.sleep(1.0)
    assert found == [str(k) for k in range(20)]
    assert "tried again later" in caplog.text


def test_waits_grow_with_failed_reads_in_a_row(twin: TwinKinesis) -> None:
    twin.fail("read", *(Throttled("Rate exceeded") for _ in range(40)))
    following = Following(twin, reading=StreamReading())
    for _ in range(600):
        following.plan()
        twin.time.sleep(0.1)
    reads = [at for shard, at in twin.reads if shard.endswith("0")]
    assert [later - sooner > 5.0 for sooner, later in pairwise(reads)][6:19] == [True] * 13


def test_an_iterator_that_expired_in_a_long_batch_is_replaced_behind_what_was_read(twin: TwinKinesis) -> None:
    twin.put(0, *"abcd")
    following = Following(twin)
    first = following.plan(2)
    twin.time.sleep(ITERATOR_S + 1)
    assert following.data(first) + following.data(following.drain()) == list("abcd")


def test_an_iterator_that_expires_each_time_is_no_busy_loop(twin: TwinKinesis) -> None:
    twin.fail("read", *(Expired("expired") for _ in range(100)))
    following = Following(twin)
    following.plan()
    assert len(twin.reads) <= 2 * 11


def test_a_short_outage_of_aws_is_waited_out_and_a_long_one_ends_the_run(twin: TwinKinesis) -> None:
    twin.put(0, "a")
    following = Following(twin, reading=StreamReading())
    first = following.drain()
    assert following.data(first) == ["a"]

    def away_until(end_s: float) -> None:
        while twin.time.clock() < end_s:
            for method in ("read", "shards"):
                twin.faults.pop(method, None)
                twin.fail(method, *(Unanswered("no answer") for _ in range(50)))
            following.plan()
            twin.time.sleep(1.0)
        twin.faults.clear()

    away_until(twin.time.clock() + 30)
    twin.put(0, "b")
    assert following.data(following.drain()) == ["b"]
    with pytest.raises(SourceError, match=r"no answer from Kinesis for 30\d s .*: check the network.*nothing is lost"):
        away_until(twin.time.clock() + 400)


def test_the_duration_of_a_batch_does_not_count_as_an_outage_of_aws(twin: TwinKinesis) -> None:
    twin.put(0, "a")
    following = Following(twin, reading=StreamReading())
    following.drain()
    twin.time.sleep(3600.0)
    twin.put(0, "b")
    twin.fail("read", Unanswered("503"))
    twin.fail("shards", Unanswered("503"))
    assert following.data(following.drain()) == ["b"]


def test_a_plan_ends_after_a_while_however_many_shards_have_something(twin: TwinKinesis) -> None:
    wide = TwinKinesis(twin.time, 200)
    wide.read_s = 0.05
    for shard in range(200):
        wide.put(shard, str(shard))
    following = Following(wide)
    before_s = wide.time.clock()
    first = following.data(following.plan())
    assert 2.0 <= wide.time.clock() - before_s <= 2.5
    assert first == [str(k) for k in range(len(first))]
    assert following.data(following.plan())[0] == str(len(first))


def test_a_service_that_does_not_answer_at_the_start_raises_a_source_error_with_what_to_check(
    twin: TwinKinesis,
) -> None:
    twin.fail("describe", *(Unanswered("localhost:1 does not answer") for _ in range(1000)))
    with pytest.raises(
        SourceError, match=r"Kinesis cannot be asked: localhost:1 does not answer; tried .*endpoint_url"
    ):
        Following(twin)


# -- checkpoints


def test_the_checkpoint_of_a_shard_has_at_most_two_sequence_numbers(twin: TwinKinesis) -> None:
    twin.put(0, *(str(k) for k in range(3000)))
    following = Following(twin)
    records = [k for k in following.drain(3000).tolist() if k not in (70, 2_500)]
    following.finish(records)
    committed = following.committed()["shardId-000000000000"]
    assert committed.done.to_runs() == [70, 1, 2_429, 1, 499]
    seventieth = twin.streams["shardId-000000000000"].records[70].sequence_number
    assert dict(committed.mark) == {
        "stream": "arn:aws:kinesis:eu-central-1:1:stream/orders",
        "created_ms": 1_700_000_000_000,
        "at": str(seventieth),
    }
    assert Following(twin, following.committed()).work_off() == ["70", "2500"]


def test_a_stream_that_was_created_anew_under_the_same_name_is_refused(twin: TwinKinesis) -> None:
    twin.put(0, "a")
    following = Following(twin)
    following.finish(following.drain())
    twin.created_ms += 1
    with pytest.raises(CheckpointError, match=r"was deleted and created anew since the checkpoint.*remove this one"):
        Following(twin, following.committed())


def test_a_sequence_number_that_the_shard_does_not_know_is_refused(twin: TwinKinesis) -> None:
    twin.put(0, "a", "b")
    following = Following(twin)
    following.finish(following.drain()[:1])
    committed = following.committed()
    name = "shardId-000000000000"
    committed[name] = Committed(committed[name].done, {**committed[name].mark, "at": "1"})
    with pytest.raises(
        CheckpointError, match=r"no record where the checkpoint goes on .*created anew.*remove this one"
    ):
        Following(twin, committed).plan()


@pytest.mark.parametrize("mark", [{"at": "1"}, {"stream": "x", "created_ms": "y"}, {"stream": "x", "created_ms": 1}])
def test_a_malformed_mark_or_one_of_another_stream_is_refused(twin: TwinKinesis, mark: dict[str, Any]) -> None:
    twin.put(0, "a")
    with pytest.raises(CheckpointError, match=r"does not say how far|is of stream x"):
        Following(twin, {"shardId-000000000000": Committed(mark=mark)})


@pytest.mark.parametrize("aged", range(2, 10))
def test_records_that_aged_out_before_they_were_done_are_skipped_loudly_and_no_other_is_lost(
    twin: TwinKinesis, caplog: pytest.LogCaptureFixture, aged: int
) -> None:
    twin.put(0, *(str(k) for k in range(9)))
    following = Following(twin)
    following.finish([k for k in following.drain().tolist() if k not in (1, 4)])
    twin.age(0, aged)
    with caplog.at_level(logging.ERROR):
        found = Following(twin, following.committed()).work_off()
    assert found == [str(k) for k in range(aged, 9)]
    assert "has aged out of the stream before it was done" in caplog.text or aged == 9


def test_a_shard_that_aged_out_whole_with_open_records_is_skipped_loudly(
    twin: TwinKinesis, caplog: pytest.LogCaptureFixture
) -> None:
    twin.put(0, "a", "b")
    following = Following(twin)
    following.finish(following.drain()[:1])
    twin.split(0)
    twin.put(2, "c")
    twin.drop(0)
    with caplog.at_level(logging.ERROR):
        assert Following(twin, following.committed()).work_off() == ["c"]
    (said,) = caplog.messages
    assert "shardId-000000000000 has aged out of the stream with records that were not done" in said


def test_a_shard_that_ages_out_while_it_is_read_ends_there_and_its_children_wait_for_what_was_read(
    twin: TwinKinesis, caplog: pytest.LogCaptureFixture
) -> None:
    twin.put(0, "a", "b")
    following = Following(twin)
    records = following.plan(1)
    twin.split(0)
    twin.put(2, "c")
    twin.drop(0)
    assert following.data(following.drain()) == []
    assert following.data(records) == ["a"]
    following.finish(records)
    following.committed()
    assert following.data(following.drain()) == ["c"]
    assert "shardId-000000000000 has aged out of the stream with records that were not done" in caplog.text
    assert following.is_over


def test_the_ancestors_of_a_shard_are_found_once_each_however_often_it_was_split_and_merged() -> None:
    lineage = Lineage(LATEST)
    shards = [ListedShard("0")]
    for k in range(60):
        shards += [ListedShard(f"{k}a", (str(k),)), ListedShard(f"{k}b", (str(k),))]
        shards += [ListedShard(str(k + 1), (f"{k}a", f"{k}b"))]
    lineage.list(shards)
    assert lineage.ancestors("60") == {shard.name for shard in shards} - {"60"}


def test_a_shard_that_aged_out_after_all_its_read_records_were_done_logs_a_warning(
    twin: TwinKinesis, caplog: pytest.LogCaptureFixture
) -> None:
    twin.put(0, "a", "b")
    following = Following(twin)
    following.finish(following.drain())
    committed = following.committed()
    twin.split(0)
    twin.drop(0)
    with caplog.at_level(logging.WARNING):
        assert Following(twin, committed).work_off() == []
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "any records that were written to it later are lost" in record.message


def test_a_shard_that_was_read_to_its_end_is_not_reported_when_it_has_aged_out(
    twin: TwinKinesis, caplog: pytest.LogCaptureFixture
) -> None:
    twin.put(0, "a", "b")
    following = Following(twin, reading=StreamReading())
    following.finish(following.drain())
    following.committed()
    # The end comes with an empty answer, after the last record was saved.
    twin.split(0)
    assert following.data(following.drain()) == []
    committed = following.committed()
    twin.drop(0)
    with caplog.at_level(logging.WARNING):
        assert Following(twin, committed).work_off() == []
    assert caplog.messages == []


@pytest.mark.parametrize(("finished", "is_listed"), [([0, 1, 2], False), ([0, 1], False), ([1], False), ([1], True)])
def test_records_and_shards_that_have_aged_out_are_reported_at_one_start_only(
    twin: TwinKinesis, caplog: pytest.LogCaptureFixture, finished: list[int], is_listed: bool
) -> None:
    twin.put(0, "a", "b", "c")
    following = Following(twin)
    following.finish(following.drain()[finished])
    committed, reported = following.committed(), list[int]()
    twin.split(0)
    twin.age(0, 3)
    if not is_listed:
        twin.drop(0)
    for _ in range(3):
        caplog.clear()
        following = Following(twin, committed)
        assert following.work_off() == []
        committed = following.committed()
        reported.append(len(caplog.messages))
    assert reported == [1, 0, 0]


def test_records_that_age_out_before_they_are_read_again_are_reported_once_and_the_end_is_saved(
    twin: TwinKinesis, caplog: pytest.LogCaptureFixture
) -> None:
    twin.put(0, *"abcdef")
    first = Following(twin)
    first.finish(first.drain()[4:])
    second = Following(twin, first.committed())
    second.finish(second.plan(1))
    second.committed()
    twin.split(0)
    twin.age(0, 6)
    assert second.data(second.drain()) == []
    assert "has aged out of the stream before it was done" in caplog.text
    caplog.clear()
    assert Following(twin, second.committed()).work_off() == []
    assert caplog.messages == []


# -- memory


def test_held_bytes_are_bounded_and_done_records_are_freed(twin: TwinKinesis) -> None:
    twin.put(0, *("x" * 1000 + str(k) for k in range(1000)))
    following = Following(twin, reading=StreamReading(is_to_end=True, held_bytes_max=100_000))
    kinesis: Any = following.input
    seen = 0
    while not following.is_over:
        records = following.drain(10)
        held = sum(shard.bytes for shard in kinesis._shards.values())
        assert held <= 100_000 + 10 * 1200
        seen += len(records)
        following.finish(records)
        following.committed()
    assert seen == 1000
    assert sum(shard.bytes for shard in kinesis._shards.values()) == 0


def test_one_open_record_holds_no_others_in_memory(twin: TwinKinesis) -> None:
    twin.put(0, *("x" * 1000 + str(k) for k in range(1000)))
    following = Following(twin)
    records = following.drain()
    following.finish(records[records != 500])
    following.committed()
    kinesis: Any = following.input
    assert sum(shard.bytes for shard in kinesis._shards.values()) < 3000
    assert following.data([500]) == ["x" * 1000 + "500"]


# -- options


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("stream", ""),
        ("first_poll", "earliest"),
        ("first_poll", datetime(2026, 1, 1)),
        ("first_poll", True),
        ("stop", "now"),
        ("refresh_s", 0),
        ("idle_s", -1),
        ("held_bytes_max", 0),
    ],
)
def test_an_error_about_an_invalid_option_names_the_option(option: str, value: Any) -> None:
    options: dict[str, Any] = {"stream": "orders", "name": "orders", option: value}
    with pytest.raises(ValueError, match=f"{option}="):
        Kinesis(**options)
