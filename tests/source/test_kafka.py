"""Kafka as an input and as a store of commits and dead letters, on librdkafka's mock cluster."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import random
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from acker_client.source import (
    CheckpointError,
    Committed,
    DeadLetter,
    DeadLetterStore,
    InputChanged,
    Kafka,
    KafkaOffsets,
    KafkaTopic,
    Ranges,
    Retry,
    SourceError,
)
from acker_client.source.engine.environment import arrow_schema
from acker_client.source.kafka.broker import LATEST, Broker, CommittedOffset
from acker_client.source.kafka.connection import Unreachable, error_of, library
from acker_client.source.kafka.input import KafkaInput
from acker_client.source.kafka.names import At, KafkaConnection, Topics
from acker_client.source.kafka.offset_metadata import CommitMetadata
from acker_client.source.kafka.reader import Fetched, Reader, reader_of
from acker_client.source.kafka.slices import COLUMNS, SCHEMA
from acker_client.source.kafka.topic_log import shared_out
from acker_client.source.records.input import PausableInput, SharedInput
from acker_client.source.records.stores import SharedCheckpointStore
from acker_client.source.waiting import Reminder
from tests.source.driven import Driven, read_elsewhere
from tests.source.executors import NO_SPARK, Cluster, failing, frame_of, save_all
from tests.source.groups import Group, Membership
from tests.source.kafka_broker import MockKafka
from tests.source.logs import MemoryCheckpoint

EACH = 30


def kafka_input(kafka: MockKafka, topics: Any = None, **options: Any) -> KafkaInput:
    given = {"name": "orders", "stop": "end", "timeout_s": 10.0, **options}
    made = Kafka(topics, bootstrap_servers=kafka.servers, **given).input()[0]
    assert isinstance(made, KafkaInput)
    return made


@pytest.fixture
def opened() -> Iterator[list[KafkaInput]]:
    """Yield a list. Inputs that a test adds to it are closed at the end."""
    inputs: list[KafkaInput] = []
    yield inputs
    for each in inputs:
        each.close()


def rows_of(slices: Any) -> list[dict[str, Any]]:
    """Return all rows, in order, with their numbers under ``number``."""
    rows = []
    for piece in slices:
        for read in piece.read():
            assert read.columns.validate(full=True) is None
            assert read.columns.schema == SCHEMA
            assert piece.start <= int(read.numbers[0]) <= int(read.numbers[-1]) < piece.stop
            for number, row in zip(read.numbers.tolist(), read.columns.to_pylist(), strict=True):
                rows.append({"number": number, **row})
    assert [row["number"] for row in rows] == sorted({row["number"] for row in rows})
    return rows


def places(rows: Any) -> list[tuple[int, int]]:
    return [(row["partition"], row["offset"]) for row in rows]


@pytest.fixture(scope="module")
def written(kafka: MockKafka) -> str:
    """Return a topic with records in three of its four partitions."""
    return kafka.new_topic(EACH, EACH - 10, 0, 1)


EVERYTHING = {(partition, k) for partition, count in enumerate((EACH, EACH - 10, 0, 1)) for k in range(count)}


@pytest.mark.long
@given(st.integers(1, 60), st.integers(1, 4), st.data())
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_record_is_read_once_and_a_restart_reads_exactly_those_that_are_not_done(
    kafka: MockKafka, written: str, records_max: int, tasks: int, data: st.DataObject
) -> None:
    committed: Mapping[str, Committed] = {}
    left, group = set(EVERYTHING), f"any-{uuid.uuid4()}"
    for _ in range(data.draw(st.integers(1, 3))):
        input_ = kafka_input(kafka, written, group_id=group)
        driven = Driven(input_, committed)
        records = driven.drain(records_max)
        rows = rows_of(driven.slices(records, tasks))
        assert set(places(rows)) == left
        assert len(rows) == len(left) == len(records)
        assert all(row["value"] == b"%d.%d" % (row["partition"], row["offset"]) for row in rows)
        origins = driven.origins(records).to_pylist()
        assert [(row["topic"], row["partition"], row["offset"]) for row in rows] == [tuple(o.values()) for o in origins]
        finished = data.draw(st.sets(st.sampled_from(range(len(records))))) if left else set()
        driven.finish([records[k] for k in sorted(finished)])
        left -= {places(rows)[k] for k in finished}
        again = [records[k] for k in range(len(records)) if k not in finished]
        if again:
            some = sorted(data.draw(st.sets(st.sampled_from(again))))
            assert len(rows_of(driven.slices(some, tasks))) == len(some)
            values = [b"%d.%d" % (o["partition"], o["offset"]) for o in driven.origins(some).to_pylist()]
            assert driven.values(some) == values
        committed = driven.committed()
        input_.close()


def test_key_value_headers_and_timestamp_come_as_columns_that_spark_takes(
    kafka: MockKafka, opened: list[KafkaInput]
) -> None:
    topic = kafka.new_topic()
    kafka.write(topic, 1, [b"\xff\x00"], key=b"k", headers=[("a", b"1"), ("a", b"\xff"), ("n", None)], timestamp=12_345)
    kafka.write(topic, 1, [None, b""], key=None, timestamp=1_700_000_000_001)
    driven = Driven(kafka_input(kafka, topic))
    opened.append(driven.input)  # type: ignore[arg-type]
    one, two, three = rows_of(driven.slices(driven.drain()))
    headers = [{"key": "a", "value": b"1"}, {"key": "a", "value": b"\xff"}, {"key": "n", "value": None}]
    when = datetime(1970, 1, 1, 0, 0, 12, 345_000, UTC)
    assert one == {
        "number": 0,
        "key": b"k",
        "value": b"\xff\x00",
        "topic": topic,
        "partition": 1,
        "offset": 0,
        "timestamp": when,
        "headers": headers,
    }
    assert (two["key"], two["value"], two["headers"]) == (None, None, None)
    assert (three["value"], three["timestamp"]) == (b"", datetime(2023, 11, 14, 22, 13, 20, 1_000, UTC))
    assert arrow_schema(COLUMNS) == SCHEMA


def test_records_without_a_value_are_records_or_on_demand_absent(kafka: MockKafka, opened: list[KafkaInput]) -> None:
    topic = kafka.new_topic()
    kafka.write(topic, 0, [b"one", None, b"three", None])
    for null_values, offsets in (("emit", [0, 1, 2, 3]), ("skip", [0, 2])):
        driven = Driven(kafka_input(kafka, topic, group_id=null_values, null_values=null_values))
        opened.append(driven.input)  # type: ignore[arg-type]
        rows = rows_of(driven.slices(driven.drain()))
        assert [row["offset"] for row in rows] == [row["number"] for row in rows] == offsets


def test_far_apart_records_are_read_again_without_those_between(kafka: MockKafka, opened: list[KafkaInput]) -> None:
    topic = kafka.new_topic(9_000)
    driven = Driven(kafka_input(kafka, topic))
    opened.append(driven.input)  # type: ignore[arg-type]
    records = driven.drain(100_000)
    wanted = [0, 1, 17, 4_500, 4_600, 8_999]
    assert [row["offset"] for row in rows_of(driven.slices(records[wanted], 1))] == wanted
    assert driven.values(records[wanted]) == [b"0.%d" % k for k in wanted]


def test_plans_are_shared_fairly_among_partitions_and_tasks(kafka: MockKafka, opened: list[KafkaInput]) -> None:
    topic = kafka.new_topic(1_000, 10, 0, 500)
    input_ = kafka_input(kafka, topic)
    opened.append(input_)
    input_.start({})
    parts = input_.plan(600, 4).parts
    assert {n: sum(p.stop - p.start for p in parts if p.number == n) for n in (0, 1, 3)} == {0: 295, 1: 10, 3: 295}
    assert max(part.stop - part.start for part in parts) == 150


@given(st.lists(st.integers(0, 50), max_size=8), st.integers(0, 200))
def test_shares_are_as_even_as_backlogs_allow_and_nothing_is_left_while_there_is_room(
    backlogs: list[int], records_max: int
) -> None:
    shares = shared_out(backlogs, records_max)
    assert sum(shares) == min(records_max, sum(backlogs))
    assert all(0 <= share <= backlog for share, backlog in zip(shares, backlogs, strict=True))
    cut = [share for share, backlog in zip(shares, backlogs, strict=True) if share < backlog]
    assert not cut or max(shares) - min(cut) <= 1


def test_with_more_partitions_than_room_each_has_its_turn(kafka: MockKafka, opened: list[KafkaInput]) -> None:
    input_ = kafka_input(kafka, kafka.new_topic(5, 5, 5, 5))
    opened.append(input_)
    input_.start({})
    planned = [part.number for _ in range(4) for part in input_.plan(1, 1).parts]
    assert sorted(planned) == [0, 1, 2, 3]


# -- where a partition begins

MINE, ANOTHER = "orders", "billing"


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("first_poll", "committed_by", "begins"),
    [
        ("earliest", None, 0),
        ("latest", None, 9),
        ("uncommitted_earliest", None, 0),
        ("uncommitted_latest", None, 9),
        (datetime.fromtimestamp(5_000, UTC), None, 9),
        ("earliest", ANOTHER, 0),
        ("latest", ANOTHER, 9),
        ("uncommitted_earliest", ANOTHER, 4),
        ("uncommitted_latest", ANOTHER, 4),
        (datetime.fromtimestamp(5_000, UTC), ANOTHER, 9),
        ("earliest", "no json", 0),
        ("uncommitted_latest", "no json", 4),
        ("earliest", MINE, 4),
        ("latest", MINE, 4),
        ("uncommitted_earliest", MINE, 4),
        ("uncommitted_latest", MINE, 4),
        (datetime.fromtimestamp(5_000, UTC), MINE, 4),
    ],
)
def test_first_poll_decides_where_a_partition_without_an_own_commit_begins(
    kafka: MockKafka, opened: list[KafkaInput], first_poll: Any, committed_by: str | None, begins: int
) -> None:
    topic = kafka.new_topic()
    for k in range(9):
        kafka.send(topic, 0, b"x", timestamp=1_000_000 + k)
    kafka.write(topic, 0, [])
    if committed_by is not None:
        metadata = CommitMetadata(committed_by, "host:1", Ranges.below(4)).to_text(4096)
        kafka.commit(topic, topic, [(0, 4)], committed_by if committed_by == "no json" else metadata)
    input_ = kafka_input(kafka, topic, group_id=topic, first_poll=first_poll, stop=None)
    opened.append(input_)
    input_.start({})
    planned = [(part.number, part.start) for part in input_.plan(100, 1).parts]
    assert planned == ([(0, begins)] if begins < 9 else [])
    # The first offset is committed at once, so that a crash before the first batch is done loses nothing with "latest".
    assert kafka.committed(topic, topic)[0][0] == begins
    kafka.write(topic, 0, [b"new"])
    again = kafka_input(kafka, topic, group_id=topic, first_poll=first_poll)
    opened.append(again)
    again.start({})
    assert next(part.start for part in again.plan(100, 1).parts if part.number == 0) == begins


def test_a_topic_that_turns_up_while_it_runs_is_read_from_its_beginning_also_under_latest(
    kafka: MockKafka, opened: list[KafkaInput]
) -> None:
    now = [0.0]
    options = Kafka(
        pattern="found-a-.*", bootstrap_servers=kafka.servers, name="orders", first_poll="latest", refresh_s=2.0
    ).kafka
    input_ = KafkaInput(options, clock=lambda: now[0])
    opened.append(input_)
    input_.start({})
    plan = input_.plan(100, 2)
    assert (plan.parts, plan.is_end) == ([], False)
    topic = kafka.new_topic(3, prefix="found-a")
    kafka.new_topic(3, prefix="another")
    assert input_.plan(100, 2).parts == []
    now[0] = 2.0
    assert {(part.topic, part.start, part.stop) for part in input_.plan(100, 1).parts} == {(topic, 0, 3)}


def test_a_pattern_that_fits_no_topic_waits_for_one_or_is_at_its_end(
    kafka: MockKafka, opened: list[KafkaInput], caplog: pytest.LogCaptureFixture
) -> None:
    for stop, is_end in ((None, False), ("end", True)):
        input_ = kafka_input(kafka, pattern="no such topic", stop=stop)
        opened.append(input_)
        input_.start({})
        assert input_.plan(100, 2).is_end is is_end
    said = [record.message for record in caplog.records if record.message.startswith("no topic fits")]
    assert said == [
        "no topic fits /no such topic/ yet: waiting for one",
        "no topic fits /no such topic/: there is nothing to read",
    ]


def test_the_end_is_where_it_was_at_the_start_and_following_has_none(
    kafka: MockKafka, opened: list[KafkaInput]
) -> None:
    topic = kafka.new_topic(5)
    ending, following = kafka_input(kafka, topic), kafka_input(kafka, topic, group_id="follows", stop=None)
    opened.extend((ending, following))
    for each in (ending, following):
        each.start({})
        assert [(part.start, part.stop) for part in each.plan(3, 1).parts] == [(0, 3)]
    kafka.write(topic, 0, [b"late"])
    assert [(part.start, part.stop) for part in ending.plan(100, 1).parts] == [(3, 5)]
    assert ending.plan(100, 1).is_end
    assert [(part.start, part.stop) for part in following.plan(100, 1).parts] == [(3, 6)]
    nothing_now = following.plan(100, 1)
    assert (nothing_now.parts, nothing_now.is_end) == ([], False)


# -- what is committed


def test_the_prefix_is_committed_to_kafka_for_the_group_with_its_writer(kafka: MockKafka) -> None:
    topic = kafka.new_topic(10)
    input_ = kafka_input(kafka, topic, group_id="lag")
    driven = Driven(input_)
    records = driven.drain()
    driven.finish(records[[0, 1, 2, 3, 7]])
    driven.committed()
    assert driven.description == f"4 partitions of {topic}, 6 offsets behind the end"
    input_.close()
    offset, metadata = kafka.committed("lag", topic)[0]
    written = json.loads(metadata)
    assert (offset, written["source"]) == (4, "orders")
    assert ":" in written["by"]


@pytest.mark.long
def test_commits_that_do_not_get_through_are_logged_once_and_the_next_makes_up_for_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with MockKafka() as kafka:
        topic = kafka.new_topic(5)
        broker = Broker(KafkaConnection.of(kafka.servers, "lag", None, 0.5))
        broker.commit({At(topic, 0): CommittedOffset(1, "")})
        assert broker.confirm(10) == ""
    for offset in (2, 3):
        broker.commit({At(topic, 0): CommittedOffset(offset, "")})
        assert broker.confirm(30) != ""
    broker.close()
    assert caplog.text.count("offsets of group 'lag' could not be committed to Kafka") == 1


def test_a_checkpoint_behind_this_sources_commit_skips_forward(
    kafka: MockKafka, opened: list[KafkaInput], caplog: pytest.LogCaptureFixture
) -> None:
    topic = kafka.new_topic(10)
    for source, starts in ((MINE, 7), (ANOTHER, 3)):
        group = f"{topic}-{source}"
        kafka.commit(group, topic, [(0, 7)], CommitMetadata(source, "host:1", Ranges.below(7)).to_text(4096))
        input_ = kafka_input(kafka, topic, group_id=group)
        opened.append(input_)
        input_.start({f"{topic}/0": Committed(Ranges.below(3))})
        assert [part.start for part in input_.plan(100, 1).parts] == [starts]
    assert "the checkpoint is at offset 3, and this source has committed 7 to Kafka: going on there" in caplog.text


def test_done_records_are_not_planned_even_if_this_run_did_not_read_them(
    kafka: MockKafka, opened: list[KafkaInput]
) -> None:
    topic = kafka.new_topic(10)
    input_ = kafka_input(kafka, topic)
    opened.append(input_)
    input_.start({})
    input_.plan(2, 1)
    input_.advance(f"{topic}/0", Ranges.below(8))
    assert [part.start for part in input_.plan(100, 1).parts] == [8]


# -- deleted records and topics


def test_records_deleted_before_the_start_are_counted_and_logged(
    kafka: MockKafka, opened: list[KafkaInput], caplog: pytest.LogCaptureFixture
) -> None:
    topic, low = truncated(kafka)
    input_ = kafka_input(kafka, topic)
    opened.append(input_)
    driven = Driven(input_, {f"{topic}/0": Committed(Ranges.from_runs([3, 2, 5]))})
    records = driven.plan(10, 1)
    assert driven.origins(records).column("offset").to_pylist()[0] == low
    assert f"LOST: up to {low - 8} records of {topic}/0, between offsets 3 and {low}, were deleted" in caplog.text


def test_planned_records_that_retention_deletes_are_absent_and_counted(
    kafka: MockKafka, opened: list[KafkaInput], caplog: pytest.LogCaptureFixture
) -> None:
    topic = kafka.new_topic(50)
    input_ = kafka_input(kafka, topic)
    opened.append(input_)
    driven = Driven(input_)
    records = driven.drain()
    assert len(records) == 50
    chosen = driven.slices(records, 1)
    truncate(kafka, topic)
    assert rows_of(chosen) == []
    assert f"LOST: up to 25 records of {topic}/0, offsets 0 to 24, were deleted" in caplog.text
    assert f"LOST: up to 25 records of {topic}/0, offsets 25 to 49, were deleted" in caplog.text
    assert driven.values(records[[4]]) == [None]


def test_unplanned_records_that_retention_deletes_are_skipped_and_counted(
    kafka: MockKafka, opened: list[KafkaInput], caplog: pytest.LogCaptureFixture
) -> None:
    now, topic = [0.0], kafka.new_topic(100)
    options = Kafka(topic, bootstrap_servers=kafka.servers, name="orders", group_id=topic).kafka
    input_ = KafkaInput(options, clock=lambda: now[0])
    opened.append(input_)
    input_.start({})
    assert [(part.start, part.stop) for part in input_.plan(10, 1).parts] == [(0, 10)]
    truncate(kafka, topic)
    input_.plan(1, 1)
    now[0] = 2.0
    (part,) = input_.plan(1, 1).parts
    assert part.start > 100
    assert f"LOST: up to {part.start - 11} records of {topic}/0, between offsets 11 and {part.start}" in caplog.text


def test_no_pattern_fits_kafkas_own_topics() -> None:
    everything = Topics.of(None, ".*")
    assert [name for name in ("orders", "__consumer_offsets") if everything.fits(name)] == ["orders"]


def truncated(kafka: MockKafka) -> tuple[str, int]:
    """Return a topic whose partition 0 has lost its first records, and the first offset that is left."""
    topic = kafka.new_topic(100)
    truncate(kafka, topic)
    consumer = library().Consumer({"bootstrap.servers": kafka.servers, "group.id": "low"})
    low, _ = consumer.get_watermark_offsets(library().TopicPartition(topic, 0), timeout=10)
    consumer.close()
    assert low > 100
    return topic, low


def truncate(kafka: MockKafka, topic: str) -> None:
    """Write more to partition 0 than the 5 MB that the mock cluster keeps of it."""
    for _ in range(12):
        kafka.write(topic, 0, [b"x" * 700_000])


@pytest.mark.parametrize("by", ["checkpoint", "commit"])
def test_a_recreated_topic_is_refused_with_advice(kafka: MockKafka, opened: list[KafkaInput], by: str) -> None:
    topic = kafka.new_topic(5)
    committed = {}
    if by == "commit":
        kafka.commit(topic, topic, [(0, 1_000)], CommitMetadata(MINE, "h:1", Ranges.below(1_000)).to_text(4096))
    else:
        committed = {f"{topic}/0": Committed(Ranges.below(1_000))}
    input_ = kafka_input(kafka, topic, group_id=topic)
    opened.append(input_)
    with pytest.raises(InputChanged, match=rf"{topic}/0 was read up to offset 1000, and ends at 5 now: the topic was"):
        Driven(input_, committed).drain()


def test_a_partition_of_the_checkpoint_that_is_gone_is_refused(kafka: MockKafka, opened: list[KafkaInput]) -> None:
    topic = kafka.new_topic(5)
    input_ = kafka_input(kafka, topic)
    opened.append(input_)
    with pytest.raises(CheckpointError, match=rf"{topic}/9 was read to offset 3, and does not exist any more"):
        input_.start({f"{topic}/9": Committed(Ranges.below(3))})
    with pytest.raises(
        CheckpointError, match=rf"another/0 was read to offset 3, and its topic .* \({topic}\): name it"
    ):
        input_.start({"another/0": Committed(Ranges.below(3))})
    with pytest.raises(
        CheckpointError, match=r"the checkpoint is of another input: 'a.txt' is no partition of a topic"
    ):
        input_.start({"a.txt": Committed(Ranges.below(3))})


class Named(Broker):
    """A broker that gives its topics these ids. The mock cluster has none."""

    ids: ClassVar[dict[str, str]] = {}

    def topic_ids(self, topics: Any, wait_s: float = 0.0) -> dict[str, str]:
        return {topic: self.ids[topic] for topic in topics if topic in self.ids}


def test_a_topic_with_another_id_than_in_the_checkpoint_is_refused_even_if_it_is_longer_now(
    kafka: MockKafka, opened: list[KafkaInput], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = kafka.new_topic(9)
    options = Kafka(topic, bootstrap_servers=kafka.servers, name="orders", group_id=topic, refresh_s=1.0).kafka

    def started(committed: Mapping[str, Committed]) -> tuple[KafkaInput, Driven]:
        opened.append(KafkaInput(options, broker=Named, clock=lambda: now[0]))
        return opened[-1], Driven(opened[-1], committed)

    now = [0.0]
    # Without an id in the checkpoint or at the broker, a topic is known by its name.
    old = {f"{topic}/0": Committed(Ranges.below(3))}
    started(old)
    monkeypatch.setattr(Named, "ids", {topic: "first"})
    input_, driven = started(old)
    driven.finish(driven.plan(2))
    committed = dict(driven.committed())
    assert committed[f"{topic}/0"] == Committed(Ranges.below(5), {"topic_id": "first"})
    started(committed)
    monkeypatch.setattr(Named, "ids", {topic: "second"})
    refused = rf"topic '{topic}' was deleted and created again: it had the id first, and has second now.*another source"
    with pytest.raises(InputChanged, match=refused):
        started(committed)
    # A source that runs finds it at the next look.
    input_.plan(1, 1)
    now[0] = 1.0
    with pytest.raises(InputChanged, match=refused):
        input_.plan(1, 1)


@pytest.mark.parametrize("checkpoint", [None, "kafka"])
def test_a_topic_that_was_created_again_while_it_was_read_is_refused_by_later_starts(
    kafka: MockKafka, monkeypatch: pytest.MonkeyPatch, checkpoint: Any
) -> None:
    topic, now = kafka.new_topic(9), [0.0]
    source = Kafka(
        topic, bootstrap_servers=kafka.servers, name="orders", group_id=topic, refresh_s=1.0, checkpoint=checkpoint
    )
    store: Any = source.options.checkpoint
    monkeypatch.setattr(Named, "ids", {topic: "first"})

    @contextlib.contextmanager
    def run_of_two_records() -> Iterator[KafkaInput]:
        input_ = KafkaInput(source.kafka, broker=Named, clock=lambda: now[0])
        with contextlib.ExitStack() as undo:
            if store is not None:
                store.open("orders", "kafka")
                undo.callback(store.close)
                input_.set_checkpoint(store)
            undo.callback(input_.close)
            driven = Driven(input_, {} if store is None else store.load())
            driven.finish(driven.plan(2))
            if store is not None:
                store.save(driven.committed())
            driven.committed()
            yield input_

    with run_of_two_records():
        """It ends in order."""
    refused = "was deleted and created again: it had the id first, and has second now"
    with run_of_two_records() as input_:
        # The topic is created again, and has more records than were read.
        monkeypatch.setattr(Named, "ids", {topic: "second"})
        now[0] += 10.0
        with pytest.raises(InputChanged, match=refused):
            input_.plan(1, 1)
    assert kafka.committed(topic, topic)[0][0] == 4
    for _ in range(2):
        with pytest.raises(InputChanged, match=refused), run_of_two_records():
            """Nothing is read."""


def test_the_error_for_a_deleted_topic_names_the_topic(kafka: MockKafka) -> None:
    broker = Broker(KafkaConnection.of(kafka.servers, "orders", None, 0.3))
    with pytest.raises(SourceError, match="topic 'no-such-one'"):
        broker.offsets([At("no-such-one", 0), At("no-such-one", 1)], -1)
    with pytest.raises(SourceError, match="topics 'no-such-one', 'no-such-two'"):
        broker.offsets([At("no-such-two", 0), At("no-such-one", 1)], -1)
    broker.close()


# -- errors


@dataclass
class Delivered:
    """A message of the Kafka library, or an error in its place."""

    at: int
    code: int | None = None

    def error(self) -> Any:
        return None if self.code is None else library().KafkaError(self.code)

    def offset(self) -> int:
        return self.at

    def timestamp(self) -> tuple[int, int]:
        return 1, 5

    def value(self) -> bytes:
        return b"value"

    key = headers = lambda self: None


@dataclass
class Delivering:
    """A consumer that has these messages."""

    messages: list[Delivered]

    def consume(self, count: int, timeout: float) -> list[Delivered]:
        taken, self.messages = self.messages, []
        return taken

    def assign(self, partitions: Any) -> None:
        """Do nothing: all messages are of one partition."""

    def unassign(self) -> None:
        """Do nothing."""


@pytest.mark.parametrize("code", ["_BAD_MSG", "_BAD_COMPRESSION", "_NOT_IMPLEMENTED"])
def test_a_record_that_the_library_skips_as_it_is_damaged_is_an_error_and_not_absent(code: str) -> None:
    reader = Reader(KafkaConnection.of("127.0.0.1:1", "damaged", None, 0.5))
    damaged = Delivered(1, getattr(library().KafkaError, code))
    reader._consumer = Delivering([Delivered(0), damaged, Delivered(2)])
    with pytest.raises(SourceError, match=r"orders/0 cannot be read at offset 1 \("):
        list(reader.read(At("orders", 0), 0, 3))
    # An error after the planned range does not concern this read.
    reader._consumer = Delivering([Delivered(0), damaged])
    assert [each.offsets.tolist() for each in reader.read(At("orders", 0), 0, 1) if isinstance(each, Fetched)] == [[0]]


def test_a_missing_broker_and_a_missing_topic_are_one_sentence_each(kafka: MockKafka, opened: list[KafkaInput]) -> None:
    away = Kafka("orders", bootstrap_servers="127.0.0.1:1", name="orders", timeout_s=0.5).input()[0]
    opened.append(away)  # type: ignore[arg-type]
    with pytest.raises(SourceError, match=r"no broker at 127\.0\.0\.1:1 has answered .* in 0\.5 s .*check bootstrap"):
        away.start({})
    missing = kafka_input(kafka, "no-such-topic")
    opened.append(missing)
    with pytest.raises(SourceError, match=r"topic 'no-such-topic' does not exist at .*: create it, or name another"):
        missing.start({})


def test_while_brokers_are_away_plans_are_empty(
    opened: list[KafkaInput], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("acker_client.source.kafka.input.PLAN_S", 0.3)
    caplog.set_level(logging.INFO)
    with MockKafka() as kafka:
        topic = kafka.new_topic(5)
        input_ = kafka_input(kafka, topic, stop=None)
        opened.append(input_)
        driven = Driven(input_)
        records = driven.plan(3)
        kafka.pause()
        try:
            plan = input_.plan(100, 1)
        finally:
            kafka.resume()
        assert (plan.parts, plan.is_end) == ((), False)
        assert len(rows_of(driven.slices(records))) == 3
        assert len(driven.plan(100)) == 2
        input_.close()
    assert caplog.text.count("waiting for it") == 1
    assert "Kafka answers again" in caplog.text


@pytest.mark.long
def test_a_source_that_follows_survives_three_outages_in_the_middle_of_a_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("acker_client.source.kafka.input.PLAN_S", 0.1)
    monkeypatch.setattr("acker_client.source.kafka.input.ANSWER_S", 0.0)
    caplog.set_level(logging.INFO)
    acked, outages, unanswered, ask = list[bytes](), 0, 0, Broker._ask

    def count(*arguments: Any, **options: Any) -> Any:
        nonlocal unanswered
        try:
            return ask(*arguments, **options)
        except Unreachable:
            unanswered += 1
            if unanswered % 6 == 0:
                kafka.resume()
            raise

    monkeypatch.setattr(Broker, "_ask", count)
    with MockKafka() as kafka:
        topic = kafka.new_topic(10)
        options = options_of(kafka, Cluster(tmp_path), stop=None, timeout_s=0.5, checkpoint=tmp_path / "a.ckpt")
        source = Kafka(topic, **options, batch_records=10)
        for batch in source.batches(NO_SPARK):
            rows = frame_of(batch).rows()
            bad = [row for row in rows if row.value.endswith(b"5") and not batch.replays]
            frame_of(batch).fail({row.root: "not yet" for row in bad})
            frame_of(batch).ack(row for row in rows if row not in bad)
            acked += [row.value for row in rows if row not in bad]
            if outages < 3 and not batch.replays:
                outages += 1
                kafka.write(topic, 0, [b"%d.%d" % (outages, k) for k in range(10)])
                kafka.pause()
            batch.done()
            if len(acked) == 40:
                source.stop()
    assert (outages, caplog.text.count("waiting for it"), caplog.text.count("Kafka answers again")) == (3, 3, 3)
    assert unanswered >= 18
    assert sorted(acked) == sorted(b"%d.%d" % (outage, k) for outage in range(4) for k in range(10))


@pytest.mark.long
def test_members_of_a_group_keep_their_partitions_while_brokers_are_away(
    opened: list[KafkaInput], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("acker_client.source.kafka.input.PLAN_S", 0.2)
    with MockKafka() as kafka:
        topic = kafka.new_topic(5, 5)
        input_ = kafka_input(kafka, topic, stop=None, timeout_s=0.5)
        opened.append(input_)
        input_.start({})
        partitions = input_.partitions()
        input_.assign({f"{topic}/0": Committed()})
        assert len(input_.plan(100, 1).parts) == 1
        kafka.pause()
        try:
            assert input_.partitions() == partitions
            input_.assign({f"{topic}/1": Committed(Ranges.below(2))})
            assert not input_.plan(100, 1).is_end
        finally:
            kafka.resume()
        while not (parts := input_.plan(100, 1).parts):
            """The broker answers after some plans."""
        assert [(part.number, part.start, part.stop) for part in parts] == [(1, 2, 5)]
        input_.close()


def test_whatever_waits_for_kafka_says_so_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 0.0
    reminder = Reminder("orders/0", clock=lambda: now_s)
    for k in range(200):
        now_s = float(k)
        reminder.remind("no leader")
    waited = [record.getMessage() for record in caplog.records]
    assert waited == [
        f"waiting for orders/0, for {seconds} s so far (last seen: no leader)" for seconds in (10, 70, 130, 190)
    ]
    reminder.restart()
    reminder.remind()
    assert len(caplog.records) == 4


def test_a_task_that_gets_nothing_from_its_broker_says_so_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now_s = iter(range(10_000))
    reader = Reader(KafkaConnection.of("127.0.0.1:1", "waits", None, 150.0), clock=lambda: float(next(now_s)))
    reader._consumer = Delivering([Delivered(0)])
    with pytest.raises(SourceError, match=r"Kafka gave nothing of orders/0 from offset 1, .* for 150 s"):
        list(reader.read(At("orders", 0), 0, 3))
    assert 2 <= caplog.text.count("waiting for orders/0 from Kafka at 127.0.0.1:1") <= 3


def test_a_slice_without_its_broker_ends_with_an_error(opened: list[KafkaInput]) -> None:
    with MockKafka() as kafka:
        topic = kafka.new_topic(5)
        input_ = kafka_input(kafka, topic, timeout_s=0.5)
        driven = Driven(input_)
        slices = driven.slices(driven.drain(), 1)
        input_.close()
    with pytest.raises(SourceError, match=rf"Kafka gave nothing of {topic}/0 from offset 0, where records up to 3"):
        rows_of(slices)


def test_the_originals_of_brokers_that_are_away_are_an_error_and_never_without_their_records(
    opened: list[KafkaInput],
) -> None:
    with MockKafka() as kafka:
        topic = kafka.new_topic(5, 5)
        input_ = kafka_input(kafka, topic, timeout_s=0.5)
        opened.append(input_)
        driven = Driven(input_)
        records = driven.drain()
        kafka.pause()
        try:
            with pytest.raises(Unreachable, match=rf"Kafka gave nothing of {topic}/0 from offset 0"):
                driven.originals(records)
        finally:
            kafka.resume()
        values: list[Any] = []
        for _ in range(60):
            # The library needs some time to see that its brokers are back.
            with contextlib.suppress(Unreachable):
                values = driven.values(records)
                break
        assert values == [b"%d.%d" % (partition, k) for partition in range(2) for k in range(5)]
        input_.close()


class Leaderless(Broker):
    """A broker some of whose partitions have no leader. The mock cluster cannot lose one."""

    without: ClassVar[set[int]] = set()

    def __init__(self, connection: KafkaConnection) -> None:
        super().__init__(connection)
        self._consumer = LeaderlessConsumer(self._consumer, self.without)


@dataclass
class LeaderlessConsumer:
    consumer: Any
    without: set[int]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.consumer, name)

    def offsets_for_times(self, asked: list[Any], timeout: float) -> list[Any]:
        led = [each for each in asked if each.partition not in self.without]
        error = library().KafkaError(library().KafkaError.LEADER_NOT_AVAILABLE)
        lost = [SimpleNamespace(topic=each.topic, partition=each.partition, offset=-1, error=error) for each in asked]
        answered = self.consumer.offsets_for_times(led, timeout=timeout) if led else []
        return [*answered, *(each for each in lost if each.partition in self.without)]


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The partitions that have no leader. Only a plan without any leader waits for them."""
    monkeypatch.setattr("acker_client.source.kafka.input.PLAN_S", 1.0)
    monkeypatch.setattr("acker_client.source.kafka.input.ANSWER_S", 0.0)
    monkeypatch.setattr(Leaderless, "without", set())
    return Leaderless.without


def leaderless(opened: list[KafkaInput], kafka: MockKafka, clock: Any = time.monotonic, **options: Any) -> KafkaInput:
    made = Kafka(bootstrap_servers=kafka.servers, name="orders", timeout_s=10.0, **options).kafka
    opened.append(KafkaInput(made, broker=Leaderless, clock=clock))
    return opened[-1]


def planned(input_: KafkaInput) -> list[tuple[int, int, int]]:
    return [(part.number, part.start, part.stop) for part in input_.plan(100, 1).parts]


def test_a_partition_without_a_leader_is_left_alone_and_the_others_are_read(
    kafka: MockKafka, opened: list[KafkaInput], without: set[int], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    topic = kafka.new_topic(5, 5)
    input_ = leaderless(opened, kafka, topics=topic)
    input_.start({})
    assert (planned(input_), input_.is_reachable(), input_.away()) == ([(0, 0, 5), (1, 0, 5)], True, [])
    for more in range(3):
        kafka.write(topic, 0, [b"x"])
        kafka.write(topic, 1, [b"x"])
        without.add(1)
        planned_now = [(0, 5 + more, 6 + more)]
        assert (planned(input_), input_.is_reachable(), input_.away()) == (planned_now, True, [f"{topic}/1"])
    without.update(range(4))
    kafka.write(topic, 0, [b"x"])
    assert (planned(input_), input_.is_reachable()) == ([], False)
    without.clear()
    assert (input_.is_reachable(), input_.away()) == (True, [])
    assert planned(input_) == [(0, 8, 9), (1, 5, 8)]
    assert [caplog.text.count(says) for says in (f"has answered for {topic}/1; waiting", "Kafka answers again")] == [
        1,
        1,
    ]


def test_a_plan_right_after_the_question_whether_brokers_answer_does_not_ask_for_the_ends_again(
    kafka: MockKafka, opened: list[KafkaInput], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, now, asked = kafka.new_topic(1), [0.0], list[int]()
    offsets = Broker.offsets

    def counted(self: Broker, partitions: Any, at: int, *given: Any, **options: Any) -> Any:
        asked.append(at)
        return offsets(self, partitions, at, *given, **options)

    input_ = leaderless(opened, kafka, lambda: now[0], topics=topic, refresh_s=60.0)
    input_.start({})
    assert planned(input_) == [(0, 0, 1)]
    monkeypatch.setattr(Broker, "offsets", counted)
    for turn in range(3):
        now[0] += 2.0
        kafka.write(topic, 0, [b"x"])
        assert input_.is_reachable()
        assert planned(input_) == [(0, 1 + 2 * turn, 2 + 2 * turn)]
        assert asked == [LATEST] * (1 + 2 * turn)
        kafka.write(topic, 0, [b"x"])
        assert planned(input_) == [(0, 2 + 2 * turn, 3 + 2 * turn)]
        assert asked == [LATEST] * (2 + 2 * turn)


def test_a_partition_that_is_known_to_have_more_is_not_planned_without_its_leader(
    kafka: MockKafka, opened: list[KafkaInput], without: set[int]
) -> None:
    topic = kafka.new_topic(0, 5)
    input_ = leaderless(opened, kafka, topics=topic)
    input_.start({})
    assert [(part.start, part.stop) for part in input_.plan(2, 1).parts] == [(0, 2)]
    without.add(1)
    assert planned(input_) == []
    without.clear()
    assert planned(input_) == [(1, 2, 5)]


def test_a_topic_that_is_deleted_while_a_partition_has_no_leader_is_noticed(
    kafka: MockKafka, opened: list[KafkaInput], without: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, topic, now = kafka.new_topic(1, prefix="leaders"), kafka.new_topic(1, prefix="leaders"), [0.0]
    input_ = leaderless(opened, kafka, lambda: now[0], pattern="leaders-.*")
    input_.start({})
    assert len(planned(input_)) == 2
    without.add(1)
    assert (planned(input_), input_.away()) == ([], [f"{kept}/1", f"{topic}/1"])
    partitions = Broker.partitions
    monkeypatch.setattr(
        Broker, "partitions", lambda *given: {name: n for name, n in partitions(*given).items() if name == kept}
    )
    now[0] = 20.0
    assert input_.plan(100, 1).revoked == []
    now[0] = 40.0
    assert input_.plan(100, 1).revoked == [f"{topic}/{number}" for number in range(4)]


def test_a_source_does_not_begin_without_the_leader_of_each_partition(
    kafka: MockKafka, opened: list[KafkaInput], without: set[int]
) -> None:
    topic = kafka.new_topic(1, 1)
    without.add(1)
    input_ = leaderless(opened, kafka, topics=topic)
    input_.start({})
    input_._connected.connection = replace(input_._connected.connection, timeout_s=1.0)
    with pytest.raises(Unreachable, match=rf"has answered for partition {topic}/1 in 1 s .*Leader not available"):
        input_.plan(100, 1)


class Refused(Broker):
    """A broker that raises the library's error of a missing permission, as the mock cluster has no permissions."""

    def partitions(self, topics: Any, timeout_s: float | None = None) -> dict[str, int]:
        raise error_of(
            library().KafkaError(library().KafkaError.TOPIC_AUTHORIZATION_FAILED), "topic 'a'", self.connection, ""
        )


def test_no_permission_is_a_sentence(kafka: MockKafka, opened: list[KafkaInput]) -> None:
    input_ = KafkaInput(Kafka("a", bootstrap_servers=kafka.servers, name="orders").kafka, broker=Refused)
    opened.append(input_)
    with pytest.raises(SourceError, match=r"no permission for topic 'a' .*: give this user the right to it"):
        input_.start({})


class Restarting(Broker):
    """A broker that has just been started. While ``is_forgetful``, it does not know its topics."""

    is_forgetful = False

    def partitions(self, topics: Any, timeout_s: float | None = None) -> dict[str, int]:
        if self.is_forgetful and topics.pattern:
            return {}
        if self.is_forgetful:
            raise error_of(
                library().KafkaError(library().KafkaError.UNKNOWN_TOPIC_OR_PART), "topic 'a'", self.connection, ""
            )
        return super().partitions(topics, timeout_s)


def test_a_topic_that_is_not_listed_for_a_moment_is_waited_for_and_one_that_stays_away_is_gone(
    kafka: MockKafka, opened: list[KafkaInput], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now, topic = [0.0], kafka.new_topic(5, prefix="forgotten")
    inputs: dict[str, KafkaInput] = {}
    ways: list[dict[str, Any]] = [{"topics": topic}, {"pattern": "forgotten-.*"}]
    for how in ways:
        options = Kafka(**how, bootstrap_servers=kafka.servers, name="orders", group_id=topic, timeout_s=10.0).kafka
        inputs[next(iter(how))] = KafkaInput(options, broker=Restarting, clock=lambda: now[0])
    opened.extend(inputs.values())
    for each in inputs.values():
        each.start({})
        assert len(each.plan(2, 1).parts) == 1
    for now_s, is_forgetful in ((3.0, True), (12.0, True), (14.5, False), (17.0, True)):
        now[0] = now_s
        monkeypatch.setattr(Restarting, "is_forgetful", is_forgetful)
        for each in inputs.values():
            plan = each.plan(1, 1)
            assert (len(plan.parts), list(plan.revoked), plan.is_end) == (int(not is_forgetful), [], False)
    now[0] = 27.0
    with pytest.raises(SourceError, match="topic 'a' does not exist"):
        inputs["topics"].plan(1, 1)
    assert inputs["pattern"].plan(1, 1).revoked == [f"{topic}/{number}" for number in range(4)]
    assert f"LOST: {topic}/0 was deleted; what was not done of it is gone" in caplog.text
    again = KafkaInput(inputs["pattern"].options, broker=Restarting)
    opened.append(again)
    again.start({f"{topic}/0": Committed(Ranges.below(3))})


def test_a_member_of_a_group_keeps_a_partition_that_is_not_listed_for_a_moment(
    kafka: MockKafka, opened: list[KafkaInput], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now, topic = [0.0], kafka.new_topic(5, prefix="shared")
    given: dict[str, Any] = {"pattern": "shared-.*", "name": "orders", "timeout_s": 10.0, "refresh_s": 1.0}
    input_ = KafkaInput(Kafka(bootstrap_servers=kafka.servers, **given).kafka, broker=Restarting, clock=lambda: now[0])
    opened.append(input_)
    all_of_it = [f"{topic}/{number}" for number in range(4)]
    input_.start({})
    input_.assign({})
    assert input_.partitions() == all_of_it
    for now_s, is_forgetful in ((3.0, True), (12.0, True), (14.5, False), (17.0, True), (26.5, True)):
        now[0] = now_s
        monkeypatch.setattr(Restarting, "is_forgetful", is_forgetful)
        assert input_.partitions() == all_of_it
    # A partition that is assigned meanwhile is read as soon as it is listed again.
    input_.assign({f"{topic}/0": Committed(Ranges.below(2))})
    assert input_.plan(10, 1).parts == []
    monkeypatch.setattr(Restarting, "is_forgetful", False)
    assert planned(input_) == [(0, 2, 5)]
    assert input_.partitions() == all_of_it
    monkeypatch.setattr(Restarting, "is_forgetful", True)
    for now_s, known in ((30.0, all_of_it), (39.5, all_of_it), (40.0, [])):
        now[0] = now_s
        assert "LOST" not in caplog.text
        assert input_.partitions() == known
    assert [line for line in caplog.messages if "LOST" in line] == [
        f"LOST: {topic}/0 was deleted; what was not done of it is gone"
    ]
    input_.assign({f"{topic}/1": Committed(Ranges.below(2))})
    assert f"LOST: {topic}/1 was deleted" in caplog.text


class Deleting(Broker):
    """A broker that has deleted the topics in ``gone``. The mock cluster cannot delete one."""

    gone: ClassVar[set[str]] = set()

    def partitions(self, topics: Any, timeout_s: float | None = None) -> dict[str, int]:
        return {name: count for name, count in super().partitions(topics, timeout_s).items() if name not in self.gone}

    def offsets(self, partitions: Sequence[At], at: int, *given: Any, **options: Any) -> dict[At, int]:
        for each in partitions:
            if each.topic in self.gone:
                code = library().KafkaError.UNKNOWN_TOPIC_OR_PART
                raise error_of(library().KafkaError(code), f"partition {each.name}", self.connection, "")
        return super().offsets(partitions, at, *given, **options)


@pytest.fixture
def gone(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The topics that are deleted."""
    monkeypatch.setattr(Deleting, "gone", set())
    return Deleting.gone


def member_input(opened: list[KafkaInput], kafka: MockKafka, now: list[float], **options: Any) -> KafkaInput:
    """Return the input of a member of a group."""
    given: dict[str, Any] = {"name": "orders", "timeout_s": 10.0, "refresh_s": 1.0, **options}
    made = Kafka(bootstrap_servers=kafka.servers, **given).kafka
    opened.append(KafkaInput(made, broker=Deleting, clock=lambda: now[0]))
    opened[-1].start({})
    opened[-1].assign({})
    return opened[-1]


def test_a_member_of_a_group_reads_its_other_partitions_while_one_of_a_deleted_topic_is_given_up(
    kafka: MockKafka, opened: list[KafkaInput], gone: set[str]
) -> None:
    now, kept, topic = [0.0], kafka.new_topic(1, prefix="erased"), kafka.new_topic(1, prefix="erased")
    input_ = member_input(opened, kafka, now, pattern="erased-.*")
    input_.partitions()
    input_.assign({f"{kept}/0": Committed(), f"{topic}/0": Committed()})
    assert len(planned(input_)) == 2
    # The topic is deleted after the member has listed the partitions.
    gone.add(topic)
    now[0] = 2.0
    assert planned(input_) == []
    for turn, now_s in enumerate((4.0, 9.0, 13.9, 14.0, 16.0, 24.0, 30.0)):
        now[0] = now_s
        assert (f"{topic}/0" in input_.partitions()) == (now_s < 14.0)
        kafka.write(kept, 0, [b"x"])
        assert (input_.is_reachable(), input_.away()) == (True, [])
        assert planned(input_) == [(0, 1 + turn, 2 + turn)]
    input_.revoke([f"{topic}/0"])
    assert list(input_.observe()) == [f"{kept}/0"]


def test_a_partition_that_is_assigned_while_one_list_misses_its_topic_is_read_once_it_is_listed_again(
    kafka: MockKafka, opened: list[KafkaInput], gone: set[str], caplog: pytest.LogCaptureFixture
) -> None:
    now, topic = [0.0], kafka.new_topic(5, 5, prefix="partly")
    input_ = member_input(opened, kafka, now, pattern="partly-.*")
    input_.partitions()
    # No list of the group has missed the topic yet.
    gone.add(topic)
    input_.assign({f"{topic}/0": Committed(Ranges.below(2))})
    assert planned(input_) == []
    gone.clear()
    assert planned(input_) == [(0, 2, 5)]
    assert "LOST" not in caplog.text
    gone.add(topic)
    input_.assign({f"{topic}/1": Committed(Ranges.below(2))})
    for now_s in (1.0, 12.0):
        now[0] = now_s
        input_.partitions()
        assert planned(input_) == []
    assert [line for line in caplog.messages if "LOST" in line] == [
        f"LOST: {topic}/{number} was deleted; what was not done of it is gone" for number in range(2)
    ]


@pytest.mark.parametrize("plans", [0, 1])
def test_a_partition_that_is_not_listed_at_the_start_goes_on_from_the_checkpoint_once_it_is_listed(
    kafka: MockKafka, opened: list[KafkaInput], gone: set[str], plans: int
) -> None:
    now, topic = [0.0], kafka.new_topic(5, 5, prefix=f"late-{plans}")
    given: dict[str, Any] = {"pattern": f"late-{plans}-.*", "group_id": topic, "first_poll": "latest", "refresh_s": 1.0}
    options = Kafka(bootstrap_servers=kafka.servers, name="orders", **given).kafka
    opened.append(KafkaInput(options, broker=Deleting, clock=lambda: now[0]))
    gone.add(topic)
    driven = Driven(opened[-1], {f"{topic}/{number}": Committed(Ranges.below(2 + number)) for number in range(2)})
    for _ in range(plans):
        assert opened[-1].plan(10, 1).parts == []
    gone.clear()
    now[0] = 1.0
    records = driven.take(opened[-1].plan(10, 1))
    assert places(driven.origins(records).to_pylist()) == [(0, 2), (0, 3), (0, 4), (1, 3), (1, 4)]


def test_a_topic_that_is_not_listed_at_the_start_and_has_another_id_once_it_is_listed_is_refused(
    kafka: MockKafka, opened: list[KafkaInput], gone: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now, topic = [0.0], kafka.new_topic(9, prefix="anew")
    monkeypatch.setattr(Deleting, "topic_ids", lambda self, topics, wait_s=0.0: dict.fromkeys(topics, "second"))
    options = Kafka(pattern="anew-.*", bootstrap_servers=kafka.servers, name="orders", group_id=topic).kafka
    opened.append(KafkaInput(options, broker=Deleting, clock=lambda: now[0]))
    gone.add(topic)
    opened[-1].start({f"{topic}/0": Committed(Ranges.below(3), {"topic_id": "first"})})
    assert opened[-1].plan(10, 1).parts == []
    gone.clear()
    now[0] = 10.0
    with pytest.raises(InputChanged, match="was deleted and created again: it had the id first, and has second now"):
        opened[-1].plan(10, 1)


class Failing(Broker):
    """A broker that confirms no commit, and while ``fails`` tells no offset."""

    fails = False

    def offsets(self, *given: Any, **options: Any) -> dict[At, int]:
        if self.fails:
            raise SourceError("no leader")
        return super().offsets(*given, **options)

    def confirm(self, timeout_s: float) -> str:
        return super().confirm(0.0)

    def _on_commit(self, error: Any, partitions: Any) -> None:
        pass


def test_a_deleted_partition_is_revoked_also_by_a_plan_that_fails_and_its_commit_is_no_longer_waited_for(
    kafka: MockKafka, opened: list[KafkaInput], monkeypatch: pytest.MonkeyPatch
) -> None:
    now, there, topic = [0.0], [True], kafka.new_topic(5, prefix="deleted")
    options = Kafka(pattern="deleted-.*", bootstrap_servers=kafka.servers, name="orders", timeout_s=10.0).kafka
    input_ = KafkaInput(options, broker=Failing, clock=lambda: now[0])
    opened.append(input_)
    partitions = Broker.partitions
    monkeypatch.setattr(Broker, "partitions", lambda *given: partitions(*given) if there else {})
    input_.start({})
    assert len(input_.plan(2, 1).parts) == 1
    there.clear()
    now[0] = 20.0
    assert input_.plan(1, 1).revoked == []
    monkeypatch.setattr(Failing, "fails", True)
    now[0] = 40.0
    assert input_.plan(1, 1).revoked == [f"{topic}/{number}" for number in range(4)]
    assert input_._connected.confirm(0.0) == ""


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "give either topics, like Kafka\\('orders', ...\\), or a pattern"),
        ({"topics": "a", "pattern": "b"}, "give either topics, .* or a pattern"),
        ({"pattern": "("}, "pattern='\\(' is no regular expression"),
        ({"topics": []}, "topics=\\[\\]: name a topic"),
        ({"pattern": "a.*", "dead_letters": KafkaTopic("a.dead", bootstrap_servers="x")}, "'a.dead' is read by this"),
        ({"topics": "a", "first_poll": "newest"}, "first_poll='newest': give one of 'earliest', 'latest'"),
        ({"topics": "a", "first_poll": datetime(2026, 1, 1)}, "has no zone"),
        ({"topics": "a", "null_values": "drop"}, "null_values='drop': give one of 'emit', 'skip'"),
        ({"topics": "a", "stop": "now"}, "stop='now': give 'end', an offset, a datetime, or a mapping"),
        ({"topics": "a", "group_id": ""}, "group_id='': give the name"),
        ({"topics": "a", "timeout_s": 0}, "timeout_s=0: give seconds"),
        ({"topics": "a", "refresh_s": -1}, "refresh_s=-1: give seconds"),
        ({"topics": "a", "bootstrap_servers": ""}, "bootstrap_servers: name a broker"),
        ({"topics": "a", "config": {"enable.auto.commit": True}}, "config: enable.auto.commit is the source's own: an"),
        ({"topics": "a", "values": "avro"}, "values='avro': give Avro\\(...\\), JsonSchema"),
        ({"topics": "a", "start": -1}, "start=-1: give 'earliest', 'latest', an offset, a datetime, or a mapping"),
        ({"topics": "a", "start": {"a": 5}}, "start: 'a' is no partition of a topic, like 'orders/0'"),
        ({"topics": "a", "start": {"b/0": 5}}, "start: b/0 is not of the topics that this source reads \\(a\\)"),
        ({"topics": "a", "stop": {"a/0": "latest"}}, "stop of a/0='latest': give 'end', an offset"),
        ({"topics": "a", "stop": {"a/0": datetime(2026, 1, 1)}}, "has no zone"),
        ({"topics": "a", "records_per_s": 0}, "records_per_s=0: give records per second and partition, above 0"),
        ({"topics": "a", "ordered_by": "value"}, "ordered_by='value': give 'key', or None"),
        ({"topics": "a", "ordered_by": "key", "guarantee": "at_most_once"}, "nothing is tried again then"),
        (
            {"topics": "a", "acks_upstream": True, "track": "offset > 5"},
            "acks_upstream=True with track: the other job's",
        ),
        ({"topics": "a", "ordered_by": "key", "track": "offset > 5"}, "ordered_by='key' with track: an untracked"),
        *(
            ({"topics": "a", "group": Membership(Group(), "x"), "checkpoint": checkpoint}, "give ZooKeeperOffsets\\(gr")
            for checkpoint in ("kafka", KafkaOffsets("a", bootstrap_servers="x", group_id="x"))
        ),
        ({"topics": "a", "config": {"group.id": "x"}}, "config: group.id is the source's own: give it as group_id"),
        ({"topics": "a", "config": {"auto.offset.reset": "x"}}, "auto.offset.reset is the source's own: give first_"),
        ({"topics": "a", "config": {"oauth_cb": print}}, "config: oauth_cb is a builtin_function_or_method: give text"),
    ],
)
def test_options_that_make_no_sense_are_refused_by_name(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Kafka(**{"bootstrap_servers": "localhost:1", "name": "orders", **options})


def test_settings_of_librdkafka_are_passed_through_and_one_that_it_has_not_is_a_sentence(tmp_path: Path) -> None:
    def started(**config: Any) -> None:
        source = Kafka("a", bootstrap_servers="127.0.0.1:1", name="orders", timeout_s=0.2, config=config)
        source.input()[0].start({})

    with pytest.raises(SourceError, match=r'No such configuration property: "sasl.passwort": check config'):
        started(**{"sasl.passwort": "x"})
    with pytest.raises(SourceError, match=r"ssl\.ca\.location.* failed: .*: check config"):
        started(**{"security.protocol": "ssl", "ssl.ca.location": str(tmp_path / "no.pem")})
    secret = {"security.protocol": "sasl_plaintext", "sasl.mechanism": "PLAIN", "sasl.password": "hunter2"}
    source = Kafka("a", bootstrap_servers="x:1", name="orders", config=secret)
    assert source.kafka.connection.settings["sasl.password"] == "hunter2"
    assert "hunter2" not in repr(source.kafka)


# -- in executors


@pytest.mark.slow
def test_slices_of_kafka_are_pickled_and_read_without_spark_and_without_grpc(
    kafka: MockKafka, opened: list[KafkaInput]
) -> None:
    driven = Driven(kafka_input(kafka, kafka.new_topic(3)))
    opened.append(driven.input)  # type: ignore[arg-type]
    assert read_elsewhere(driven.slices(driven.drain(), 1)) == "[2, 1] False False"


def test_two_ranges_that_are_read_in_turn_by_one_reader_do_not_get_each_others_records(kafka: MockKafka) -> None:
    topic = kafka.new_topic(2_000, 2_000)
    reader = reader_of(kafka_input(kafka, topic).options.connection)
    first, second = (reader.read(At(topic, number), 0, 2_000) for number in (0, 1))
    values: dict[int, list[Any]] = {0: [], 1: []}
    for pair in itertools.zip_longest(first, second):
        for number, found in enumerate(pair):
            values[number] += found.values if isinstance(found, Fetched) else []
    assert values == {number: [b"%d.%d" % (number, k) for k in range(2_000)] for number in (0, 1)}


# -- partitions that are shared out


def test_in_a_group_the_partitions_that_are_given_are_planned_and_no_others(
    kafka: MockKafka, opened: list[KafkaInput]
) -> None:
    topic = kafka.new_topic(5, 5, 5, 5)
    input_ = kafka_input(kafka, topic, stop=None)
    opened.append(input_)
    assert isinstance(input_, SharedInput)
    input_.start({})
    assert input_.partitions() == [f"{topic}/{number}" for number in range(4)]
    assert input_.plan(100, 1).parts == []
    input_.assign({f"{topic}/2": Committed(Ranges.below(4)), f"{topic}/0": Committed()})
    assert {(part.number, part.start, part.stop) for part in input_.plan(3, 1).parts} == {(0, 0, 2), (2, 4, 5)}
    input_.revoke([f"{topic}/0"])
    kafka.commit("orders", topic, [(0, 3)])
    input_.advance(f"{topic}/0", Ranges.below(1))
    assert input_.plan(100, 1).parts == []
    # The late commit of the former owner did not replace the commit of the next one.
    input_._connected.confirm(10)
    assert kafka.committed("orders", topic)[0] == (3, "")
    input_.assign({f"{topic}/0": Committed(Ranges.below(3))})
    assert [(part.number, part.start, part.stop) for part in input_.plan(100, 1).parts] == [(0, 3, 5)]


def test_a_partition_that_is_paused_is_left_alone_and_is_not_the_end(
    kafka: MockKafka, opened: list[KafkaInput]
) -> None:
    topic = kafka.new_topic(5, 5)
    input_ = kafka_input(kafka, topic)
    opened.append(input_)
    assert isinstance(input_, PausableInput)
    input_.start({})
    input_.pause({f"{topic}/0"})
    assert [(part.number, part.start, part.stop) for part in input_.plan(100, 1).parts] == [(1, 0, 5)]
    waiting = input_.plan(100, 1)
    assert (waiting.parts, waiting.is_end) == ([], False)
    input_.pause(set())
    assert [(part.number, part.start, part.stop) for part in input_.plan(100, 1).parts] == [(0, 0, 5)]
    assert input_.plan(100, 1).is_end


# -- a whole run


def options_of(kafka: MockKafka, cluster: Cluster, **more: Any) -> dict[str, Any]:
    given = {"bootstrap_servers": kafka.servers, "name": "orders", "stop": "end", "environment": cluster.environment()}
    return given | {"retry": Retry(max_retries=1, initial_s=0.0), "max_dead_share": 1.0, **more}


def test_a_poison_record_ends_in_the_dead_letters_with_topic_partition_and_offset_and_a_restart_finds_nothing_to_do(
    kafka: MockKafka, tmp_path: Path
) -> None:
    cluster, checkpoint, topic = Cluster(tmp_path), MemoryCheckpoint(), kafka.new_topic(20, 10)
    options = options_of(kafka, cluster, checkpoint=checkpoint, dead_letters=tmp_path / "dead.jsonl")
    summary = Kafka(topic, batch_records=7, **options).run(NO_SPARK, failing(lambda row: row.value == b"0.13"))
    assert (summary.acked, summary.dead_lettered) == (29, 1)
    assert summary.checkpoint == f"4 partitions of {topic}, 0 offsets behind the end"
    (letter,) = [json.loads(line) for line in (tmp_path / "dead.jsonl").open()]
    assert (letter["topic"], letter["partition"], letter["offset"], letter["value"]) == (topic, 0, 13, "0.13")
    assert {number: offset for number, (offset, _) in kafka.committed("orders", topic).items()}[0] == 20
    assert Kafka(topic, **options).run(NO_SPARK, save_all).records == 0
    # Without a checkpoint, the source goes on from the offsets that it has committed.
    assert Kafka(topic, **replaced(options, checkpoint=None)).run(NO_SPARK, save_all).records == 0


def replaced(options: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {**options, **more}


def test_a_checkpoint_in_kafkas_offsets_keeps_holes_too(kafka: MockKafka, tmp_path: Path) -> None:
    cluster, topic = Cluster(tmp_path), kafka.new_topic(20, 20)
    options = options_of(kafka, cluster, checkpoint="kafka", group_id=topic, retry=Retry(initial_s=1000, cap_s=1000))
    for batch in (batches := Kafka(topic, **options).batches(NO_SPARK)):
        failing(lambda row: row.value in (b"0.3", b"1.0"))(batch)
        batch.done()
        break
    batches.close()
    assert {number: offset for number, (offset, _) in kafka.committed(topic, topic).items()} == {0: 3, 1: 0, 2: 0, 3: 0}
    seen: list[Any] = []

    def process(batch: Any) -> None:
        seen.extend(row.value for row in batch.df.rows())
        save_all(batch)

    summary = Kafka(topic, **options).run(NO_SPARK, process)
    assert (sorted(seen), summary.records) == ([b"0.3", b"1.0"], 2)
    assert Kafka(topic, **options).run(NO_SPARK, save_all).records == 0


def test_holes_that_do_not_fit_beside_an_offset_are_cut_and_the_prefix_is_right(
    kafka: MockKafka, caplog: pytest.LogCaptureFixture
) -> None:
    topic = kafka.new_topic(5)
    runs = [3, *([1, 1] * 500)]
    stores = [
        KafkaOffsets(topic, bootstrap_servers=kafka.servers, group_id=topic, metadata_bytes_max=400) for _ in range(2)
    ]
    assert isinstance(stores[0], SharedCheckpointStore)
    for store in stores:
        store.open("orders", "kafka")
    assert stores[0].load() == {}
    stores[0].save({f"{topic}/0": Committed(Ranges.from_runs(runs)), f"{topic}/1": Committed(Ranges.below(2))})
    loaded = stores[1].load()
    done = loaded[f"{topic}/0"].done
    assert done.prefix == 3
    assert 50 < done.holes < 500
    assert done == Ranges.from_runs(runs).first_holes(done.holes)
    assert stores[1].load_partitions([f"{topic}/1", f"{topic}/2"]) == {f"{topic}/1": Committed(Ranges.below(2))}
    assert "500 holes do not fit into the 400 bytes beside an offset" in caplog.text
    for store in stores:
        store.close()


def test_commits_of_others_are_ignored_and_those_of_newer_versions_refused(kafka: MockKafka) -> None:
    topic = kafka.new_topic(9)
    store = KafkaOffsets(topic, bootstrap_servers=kafka.servers, group_id=topic)
    store.open("orders", "kafka")
    kafka.commit(topic, topic, [(0, 4)], CommitMetadata("billing", "h:1", Ranges.below(4)).to_text(4096))
    kafka.commit(topic, topic, [(1, 4)], "not ours")
    assert store.load() == {}
    kafka.commit(topic, topic, [(2, 4)], json.dumps({"acker": 2, "source": "orders", "by": "h:1"}))
    with pytest.raises(
        CheckpointError, match=rf"the commit of {topic}/2 has version 2, and this acker reads .* up to 1"
    ):
        store.load()
    store.close()
    with pytest.raises(CheckpointError, match="hold the progress of Kafka's records, not of 'files'"):
        store.open("orders", "files")


@pytest.mark.slow
def test_a_checkpoint_that_cannot_be_committed_says_so_and_nothing_is_lost() -> None:
    with MockKafka() as kafka:
        topic = kafka.new_topic(3)
        store = KafkaOffsets(topic, bootstrap_servers=kafka.servers, group_id=topic, timeout_s=0.5)
        store.open("orders", "kafka")
        assert store.load() == {}
    store._limit_s = 0.0
    with pytest.raises(CheckpointError, match=r"what is done could not be committed to the offsets of group .*Nothing"):
        store.save({f"{topic}/0": Committed(Ranges.below(2))})
    store.close()


# -- dead letters in a topic


def letter(value: bytes | None, offset: int = 3) -> DeadLetter:
    origin = {"topic": "orders", "partition": 0, "offset": offset}
    return DeadLetter("orders", "ValueError: bad", 3, 0, 1.0, 2.0, origin, value)


def read_letters(kafka: MockKafka, topic: str) -> list[tuple[str, dict[str, Any]]]:
    driven = Driven(kafka_input(kafka, topic, group_id=f"read-{topic}"))
    rows = rows_of(driven.slices(driven.drain(), 1))
    return [(row["key"].decode(), json.loads(row["value"])) for row in rows]


def test_dead_letters_are_in_the_topic_when_write_returns(kafka: MockKafka) -> None:
    topic = kafka.new_topic(prefix="dead")
    store = KafkaTopic(topic, bootstrap_servers=kafka.servers, timeout_s=10)
    assert isinstance(store, DeadLetterStore)
    store.open()
    store.write([letter(b"bad", 3), letter(b"\xff", 4), letter(None, 5)])
    written = dict(read_letters(kafka, topic))
    assert sorted(written) == [f"orders:0:{offset}" for offset in (3, 4, 5)]
    one = written["orders:0:3"]
    assert (one["value"], one["reason"], one["offset"]) == ("bad", "ValueError: bad", 3)
    assert (written["orders:0:4"]["value_base64"], written["orders:0:5"]["value"]) == ("/w==", None)
    store.close()


@pytest.mark.parametrize("config", [{"acks": 0}, {"acks": "1"}, {"request.required.acks": 1}])
def test_a_topic_of_letters_that_does_not_wait_for_all_replicas_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="config: acks must be 'all', so that all in-sync replicas have a message"):
        KafkaTopic("dead", bootstrap_servers="127.0.0.1:1", config={"enable.idempotence": False, **config})
    KafkaTopic("dead", bootstrap_servers="127.0.0.1:1", config={"enable.idempotence": False, "acks": "all"})


VALUES: list[Any] = [
    b"\\" * 2_000_000,
    random.Random(5).randbytes(1_500_000),
    "\u00e4".encode() * 700_000,
    {"sku": "a" * 1_000_000, "qty": 1},
    b"a" * 999_000,
]


@pytest.mark.sampled(5)
@pytest.mark.slow
@pytest.mark.parametrize("value", VALUES, ids=["escaped", "binary", "text", "columns", "just too long"])
def test_a_letter_that_is_too_long_for_a_message_comes_in_parts_that_hold_all_of_it(
    kafka: MockKafka, value: Any
) -> None:
    topic = kafka.new_topic(prefix="dead")
    store = KafkaTopic(topic, bootstrap_servers=kafka.servers, timeout_s=10)
    columns = None if isinstance(value, dict) else {"key": "k", "headers": [{"key": "a", "value": None}]}
    store.write([replace(letter(value), schema="key binary", columns=columns), letter(b"next", 4)])
    store.close()
    messages = read_letters(kafka, topic)
    parts = [DeadLetter.of_json(json.dumps(text)) for key, text in messages if key == "orders:0:3"]
    assert [text["value"] for key, text in messages if key == "orders:0:4"] == ["next"]
    whole = json.dumps(value).encode() if isinstance(value, dict) else value
    assert 1 < len(parts) < 10
    assert all(part.value_bytes == len(whole) for part in parts)
    assert (parts[0].schema, parts[0].columns, dict(parts[0].origin)) == ("key binary", columns, letter(b"").origin)
    found = {part.origin.get("from_byte", 0): part.value for part in parts}
    assert list(found) == sorted(found)
    assert b"".join(each for each in found.values() if isinstance(each, bytes)) == whole
    assert all("only a part of the record" in part.why_not_again for part in parts)


def test_a_letter_whose_record_has_a_key_as_large_as_a_message_is_no_endless_loop(kafka: MockKafka) -> None:
    store = KafkaTopic(kafka.new_topic(), bootstrap_servers=kafka.servers, timeout_s=10)
    store.open()
    keyed = letter(b"bad")
    says = r"dead letters cannot be written to topic .*[Mm]essage size too large.*: raise message.max.bytes in config"
    with pytest.raises(SourceError, match=says):
        store.write([replace(keyed, origin={**keyed.origin, "key": "k" * 1_200_000})])
    store.write([replace(keyed, origin={**keyed.origin, "key": "k" * 10_000})])
    store.close()


def test_at_most_once_without_a_checkpoint_offsets_are_committed_before_their_records_are_emitted(
    kafka: MockKafka, tmp_path: Path
) -> None:
    cluster, topic, seen = Cluster(tmp_path), kafka.new_topic(20, 10), list[str]()
    options = options_of(kafka, cluster, group_id=topic, batch_records=8, guarantee="at_most_once")
    options.pop("dead_letters", None)
    crashed = Kafka(topic, **options)._new_run(NO_SPARK)
    crashed.__enter__()
    for _ in range(2):
        batch = crashed.next_batch()
        assert batch is not None
        rows = frame_of(batch).rows()
        seen += [row.value.decode() for row in rows]
        if batch.number == 1:
            crashed.settle_batch(batch)
    Kafka(topic, **options).run(NO_SPARK, lambda batch: seen.extend(r.value.decode() for r in frame_of(batch).rows()))
    assert sorted(seen) == sorted([f"0.{k}" for k in range(20)] + [f"1.{k}" for k in range(10)])


def test_a_run_whose_letters_go_to_a_topic_ends_when_they_are_there(kafka: MockKafka, tmp_path: Path) -> None:
    cluster, topic, dead = Cluster(tmp_path), kafka.new_topic(20), kafka.new_topic(prefix="dead")
    letters = KafkaTopic(dead, bootstrap_servers=kafka.servers)
    summary = Kafka(topic, **options_of(kafka, cluster, group_id=topic, dead_letters=letters)).run(
        NO_SPARK, failing(lambda row: row.value == b"0.7")
    )
    assert (summary.acked, summary.dead_lettered) == (19, 1)
    assert [key for key, _ in read_letters(kafka, dead)] == [f"{topic}:0:7"]


@pytest.mark.slow
def test_letters_that_no_broker_takes_are_an_error_and_none_of_them_comes_later() -> None:
    with MockKafka() as kafka:
        store = KafkaTopic(kafka.new_topic(), bootstrap_servers=kafka.servers, timeout_s=1)
        store.open()
    with pytest.raises(SourceError, match=r"dead letters cannot be written to topic .*Nothing is lost: their records"):
        store.write([letter(b"bad")])
    store.close()
    with pytest.raises(SourceError, match=r"no broker at 127\.0\.0\.1:1 has answered for topic 'dead'"):
        KafkaTopic("dead", bootstrap_servers="127.0.0.1:1", timeout_s=0.3).open()
