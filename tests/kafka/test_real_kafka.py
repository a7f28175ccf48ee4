"""The Kafka source on a real Apache Kafka: features that the mock cluster lacks."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from confluent_kafka import Producer

from acker_client.source import (
    Batch,
    Committed,
    InputChanged,
    Kafka,
    KafkaOffsets,
    KafkaTopic,
    Ranges,
    Retry,
    SourceError,
)
from acker_client.source.kafka.input import KafkaInput
from acker_command.offsets import offsets
from acker_command.options import run
from tests.kafka.broker import RealKafka, admin, eventually
from tests.source.driven import Driven
from tests.source.executors import NO_SPARK, Cluster, failing, frame_of, save_all

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]

AWAY_S = 30.0
COMPACTED = {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.0001"}


@pytest.fixture
def opened() -> Iterator[list[KafkaInput]]:
    inputs: list[KafkaInput] = []
    yield inputs
    for each in inputs:
        each.close()


def driven_of(
    real_kafka: RealKafka, opened: list[KafkaInput], topic: str, committed: Any = None, **more: Any
) -> Driven:
    given = {"name": "orders", "group_id": topic, "stop": "end", "bootstrap_servers": real_kafka.servers, **more}
    input_: Any = Kafka(topic, **given).input()[0]
    opened.append(input_)
    return Driven(input_, committed)


def offsets_of(slices: Any) -> list[int]:
    return [offset for piece in slices for read in piece.read() for offset in read.columns.column("offset").to_pylist()]


def values_of(slices: Any) -> list[bytes]:
    return [value for piece in slices for read in piece.read() for value in read.columns.column("value").to_pylist()]


def compact(real_kafka: RealKafka, topic: str, opened: list[KafkaInput], at_most: int) -> list[int]:
    """Write until the beginning of the topic is compacted to ``at_most`` records. Returns their offsets."""
    left: list[int] = []

    def is_compacted() -> bool:
        real_kafka.write(topic, 0, [b"filler"], key=b"filler")
        driven = driven_of(real_kafka, opened, topic, group_id=f"look-{time.monotonic_ns()}")
        left[:] = offsets_of(driven.slices(driven.drain(100_000), 1))
        opened.pop().close()
        return len([offset for offset in left if offset < 200]) <= at_most

    eventually(is_compacted)
    return left


def test_what_is_compacted_away_under_the_reader_is_absent_and_the_rest_is_read(
    real_kafka: RealKafka, opened: list[KafkaInput]
) -> None:
    topic = real_kafka.new_topic(config=COMPACTED)
    for k in range(200):
        real_kafka.write(topic, 0, [b"%d" % k], key=b"%d" % (k % 7))
    driven = driven_of(real_kafka, opened, topic)
    records = driven.drain()
    assert len(records) == 200
    slices = driven.slices(records, 2)
    left = compact(real_kafka, topic, opened, 60)
    read = offsets_of(slices)
    assert set(range(193, 200)) <= set(read) <= set(left) | set(read)
    assert len(read) <= 60
    assert driven.values([0, 199]) == [None, b"199"]


def test_a_run_over_a_compacted_topic_ends_with_every_record_acked_or_absent(
    real_kafka: RealKafka, opened: list[KafkaInput], tmp_path: Path
) -> None:
    cluster, topic = Cluster(tmp_path), real_kafka.new_topic(config=COMPACTED)
    for k in range(200):
        real_kafka.write(topic, 0, [b"%d" % k], key=b"%d" % (k % 7))
    left = compact(real_kafka, topic, opened, 60)
    options: dict[str, Any] = {
        "name": "orders",
        "group_id": topic,
        "bootstrap_servers": real_kafka.servers,
        "stop": "end",
    }
    options |= {"environment": cluster.environment(), "checkpoint": tmp_path / "c", "batch_records": 50}
    summary = Kafka(topic, **options).run(NO_SPARK, save_all)
    assert summary.acked + summary.absent == left[-1] + 1
    assert summary.acked <= len(left)
    assert (summary.open, summary.replayed) == (0, 0)
    assert real_kafka.committed(topic) == {(topic, 0): left[-1] + 1}
    assert Kafka(topic, **options).run(NO_SPARK, save_all).records == 0


def test_markers_and_aborted_records_of_transactions_are_absent_and_open_ones_are_not_planned(
    real_kafka: RealKafka, opened: list[KafkaInput]
) -> None:
    topic = real_kafka.new_topic()
    producer = Producer({"bootstrap.servers": real_kafka.servers, "transactional.id": topic})
    producer.init_transactions(30)
    for number, is_kept in enumerate((True, False, True)):
        producer.begin_transaction()
        for k in range(3):
            producer.produce(topic, f"{number}.{k}")
        producer.flush(30)
        producer.commit_transaction(30) if is_kept else producer.abort_transaction(30)
    # Nine records and three markers. The last marker has the last offset and appears a moment later.
    eventually(lambda: real_kafka.end_of(topic) == 12)
    driven = driven_of(real_kafka, opened, topic)
    records = driven.drain()
    assert len(records) == 12
    assert values_of(driven.slices(records, 1)) == [b"0.0", b"0.1", b"0.2", b"2.0", b"2.1", b"2.2"]
    producer.begin_transaction()
    producer.produce(topic, "open")
    producer.flush(30)
    assert len(driven_of(real_kafka, opened, topic, group_id="other").drain()) == 12
    producer.abort_transaction(30)


def test_records_that_are_deleted_under_the_reader_are_absent_and_counted(
    real_kafka: RealKafka, opened: list[KafkaInput], caplog: pytest.LogCaptureFixture
) -> None:
    topic = real_kafka.new_topic()
    real_kafka.write(topic, 0, [b"%d" % k for k in range(100)])
    driven = driven_of(real_kafka, opened, topic)
    slices = driven.slices(driven.drain(), 1)
    real_kafka.delete_below(topic, 0, 70)
    assert offsets_of(slices) == list(range(70, 100))
    assert f"LOST: up to 50 records of {topic}/0, offsets 0 to 49, were deleted" in caplog.text
    assert f"LOST: up to 20 records of {topic}/0, offsets 50 to 69, were deleted" in caplog.text
    caplog.clear()
    again = driven_of(
        real_kafka, opened, topic, {f"{topic}/0": Committed(Ranges.from_runs([10, 5, 5]))}, group_id="again"
    )
    assert offsets_of(again.slices(again.drain(), 1)) == list(range(70, 100))
    assert f"LOST: up to 55 records of {topic}/0, between offsets 10 and 70, were deleted" in caplog.text


def test_a_topic_that_is_deleted_and_made_anew_is_refused(real_kafka: RealKafka, opened: list[KafkaInput]) -> None:
    topic = real_kafka.new_topic()
    real_kafka.write(topic, 0, [b"x"] * 20)
    driven = driven_of(real_kafka, opened, topic)
    slices = driven.slices(driven.drain(), 1)
    real_kafka.delete(topic)
    real_kafka.create(topic)
    real_kafka.write(topic, 0, [b"other"] * 5)
    with pytest.raises(
        InputChanged, match=rf"{topic}/0 was read up to offset 10, and ends at 5 now: the topic was del"
    ):
        offsets_of(slices[-1:] if len(slices) > 1 else slices_from(driven, 10))
    with pytest.raises(InputChanged, match=rf"{topic}/0 was read up to offset 20, and ends at 5 now"):
        driven_of(real_kafka, opened, topic, {f"{topic}/0": Committed(Ranges.below(20))}, group_id="again")


def test_a_topic_that_is_made_anew_and_has_grown_beyond_what_was_read_is_refused_by_its_id(
    real_kafka: RealKafka, opened: list[KafkaInput]
) -> None:
    topic = real_kafka.new_topic()
    real_kafka.write(topic, 0, [b"x"] * 20)
    driven = driven_of(real_kafka, opened, topic, stop=None, refresh_s=0.01)
    driven.finish(driven.plan(10))
    # The first answer about ids comes with some later plan.
    eventually(lambda: not len(driven.input.plan(0, 1).parts) and bool(driven.input.mark(f"{topic}/0", Ranges())))
    committed = dict(driven.committed())
    assert len(committed[f"{topic}/0"].mark["topic_id"]) > 16
    again = driven_of(real_kafka, opened, topic, committed)
    assert len(again.plan(100)) == 10
    real_kafka.delete(topic)
    real_kafka.create(topic)
    real_kafka.write(topic, 0, [b"other"] * 50)
    refused = f"topic '{topic}' was deleted and created again: it had the id "
    with pytest.raises(InputChanged, match=refused):
        driven_of(real_kafka, opened, topic, committed)
    with pytest.raises(InputChanged, match=refused):
        eventually(lambda: driven.input.plan(0, 1).is_end)
    # The end of that run is committed to the new topic, with the id of the old one.
    driven.input.close()  # type: ignore[attr-defined]
    without_a_checkpoint = driven_of(real_kafka, opened, topic)
    with pytest.raises(InputChanged, match=refused):
        without_a_checkpoint.plan(100)


def test_the_error_for_a_topic_that_is_deleted_while_it_is_read_names_it(
    real_kafka: RealKafka, opened: list[KafkaInput]
) -> None:
    topic = real_kafka.new_topic()
    real_kafka.write(topic, 0, [b"x"] * 20)
    for refresh_s in (0.01, 1000.0):
        driven = driven_of(
            real_kafka, opened, topic, stop=None, refresh_s=refresh_s, timeout_s=1.0, group_id=f"{topic}-{refresh_s}"
        )
        assert len(driven.plan(10)) == 10
    real_kafka.delete(topic)
    for each in opened:
        with pytest.raises(SourceError, match=rf"Kafka: .*topic '{topic}' does not exist at .*: create it, or name"):
            eventually(lambda each=each: each.plan(10, 1).is_end)  # type: ignore[misc]


def slices_from(driven: Driven, record: int) -> Any:
    return driven.slices(range(record, 20), 1)


def test_a_broker_that_is_away_for_half_a_minute_costs_time_and_nothing_else(
    real_kafka: RealKafka, opened: list[KafkaInput], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    topic = real_kafka.new_topic()
    real_kafka.write(topic, 0, [b"%d" % k for k in range(1_000)])
    driven = driven_of(real_kafka, opened, topic, stop=None)
    records = driven.plan(1_000)
    slices = driven.slices(records)

    def answers(times: int) -> bool:
        driven.input.plan(100, 2)
        return caplog.text.count("Kafka answers again") == times

    # The kill comes last: a Kafka of one node that was frozen sometimes takes no writes until it is started again.
    for times, away, back in ((1, real_kafka.pause, real_kafka.resume), (2, real_kafka.kill, real_kafka.start)):
        away()
        returning = threading.Timer(AWAY_S, back)
        returning.start()
        plan = driven.input.plan(100, 2)
        assert (plan.parts, plan.is_end) == ((), False)
        assert len(offsets_of(slices)) == 1_000
        returning.join()
        eventually(partial(answers, times))
    real_kafka.write(topic, 0, [b"late"])
    assert len(driven.plan(100)) == 1
    assert caplog.text.count("waiting for it") == 2


def test_what_is_committed_is_seen_by_the_tools_and_partitions_that_turn_up_are_read_from_their_beginning(
    real_kafka: RealKafka, opened: list[KafkaInput], tmp_path: Path
) -> None:
    topic = real_kafka.new_topic(2)
    for partition in range(2):
        real_kafka.write(topic, partition, [b"x"] * 10)
    driven = driven_of(real_kafka, opened, topic, stop=None, first_poll="latest", refresh_s=0.01)
    real_kafka.write(topic, 0, [b"y"] * 3)
    assert driven.input.plan(100, 1).parts == []
    assert real_kafka.committed(topic) == {(topic, 0): 13, (topic, 1): 10}
    real_kafka.write(topic, 1, [b"z"] * 4)
    real_kafka.add_partitions(topic, 3)
    real_kafka.write(topic, 2, [b"w"] * 5)
    records = driven.plan(100)
    while len(records) < 9:
        records = np.concatenate((records, driven.plan(100)))
    assert sorted(set(values_of(driven.slices(records)))) == [b"w", b"z"]
    driven.finish([record for record in records if record])
    driven.committed()
    driven.input.plan(1, 1)
    eventually(lambda: real_kafka.committed(topic).get((topic, 2)) == 5)
    # A partition that was added between two runs is read from its beginning, even with "latest".
    real_kafka.add_partitions(topic, 4)
    real_kafka.write(topic, 3, [b"v"])
    again = driven_of(real_kafka, opened, topic, first_poll="latest")
    assert b"v" in values_of(again.slices(again.drain()))


def test_a_source_that_begins_at_a_time_reads_the_first_record_of_it_on(
    real_kafka: RealKafka, opened: list[KafkaInput]
) -> None:
    topic = real_kafka.new_topic(config={"retention.ms": "-1"})
    for k in range(9):
        real_kafka.write(topic, 0, [b"%d" % k], timestamp=1_700_000_000_000 + k)
    for millisecond, begins in ((6, 6), (0, 0), (100, 9)):
        since = datetime.fromtimestamp(1_700_000_000 + millisecond / 1000, UTC)
        driven = driven_of(real_kafka, opened, topic, first_poll=since, group_id=f"{topic}-{millisecond}")
        assert offsets_of(driven.slices(driven.drain(), 1)) == list(range(begins, 9))


def test_holes_in_kafkas_offsets_are_as_many_as_a_broker_takes(real_kafka: RealKafka, tmp_path: Path) -> None:
    cluster, topic = Cluster(tmp_path), real_kafka.new_topic()
    real_kafka.write(topic, 0, [b"%d" % k for k in range(12_000)])
    options: dict[str, Any] = {"name": "orders", "bootstrap_servers": real_kafka.servers, "stop": "end"}
    options |= {"environment": cluster.environment(), "checkpoint": "kafka", "retry": Retry(initial_s=9e3, cap_s=9e3)}
    for batch in (batches := Kafka(topic, **options).batches(NO_SPARK)):
        failing(lambda row: int(row.value) % 3 == 0)(batch)
        batch.done()
        break
    batches.close()
    assert real_kafka.committed("orders")[topic, 0] == 0
    summary = Kafka(topic, **options).run(NO_SPARK, save_all)
    # 4,000 are not done. About 1,450 gaps fit, and done records beyond them are read again.
    assert 4_000 < summary.records < 12_000 - 2 * 1_400
    assert real_kafka.committed("orders")[topic, 0] == 12_000


def test_a_broker_that_takes_less_beside_an_offset_gets_less(real_kafka: RealKafka) -> None:
    topic = real_kafka.new_topic()
    store = KafkaOffsets(topic, bootstrap_servers=real_kafka.servers, group_id=topic, metadata_bytes_max=20_000)
    store.open("orders", "kafka")
    store.save({f"{topic}/0": Committed(Ranges.from_runs([7, *([1, 1] * 9_000)]))})
    (loaded,) = store.load().values()
    store.close()
    assert (loaded.done.prefix, loaded.done.holes > 300) == (7, True)


def test_sasl_settings_are_passed_through_and_no_permission_is_a_sentence(
    real_kafka: RealKafka, opened: list[KafkaInput]
) -> None:
    topic, forbidden = real_kafka.new_topic(), real_kafka.new_topic()
    real_kafka.write(topic, 0, [b"x"])
    bindings = [
        admin.AclBinding(
            admin.ResourceType.TOPIC,
            forbidden,
            admin.ResourcePatternType.LITERAL,
            "User:reader",
            "*",
            operation,
            admin.AclPermissionType.DENY,
        )
        for operation in (admin.AclOperation.READ, admin.AclOperation.DESCRIBE)
    ]
    login = {"security.protocol": "sasl_plaintext", "sasl.mechanism": "PLAIN", "sasl.username": "reader"}
    more: dict[str, Any] = {"bootstrap_servers": real_kafka.sasl_servers, "timeout_s": 5.0}
    config = {**login, "sasl.password": "secret"}
    driven = driven_of(real_kafka, opened, topic, config=config, **more)
    assert values_of(driven.slices(driven.drain(), 1)) == [b"x"]
    for binding in bindings:
        real_kafka.admin.create_acls([binding])[binding].result(30)
    with pytest.raises(SourceError, match=rf"no permission for topic '{forbidden}' .*: give this user the right to it"):
        driven_of(real_kafka, opened, forbidden, config=config, **more).drain()
    with pytest.raises(SourceError, match=r"has answered for .* in 2 s .*Authentication failed.*security settings in"):
        driven_of(real_kafka, opened, topic, config={**login, "sasl.password": "wrong"}, **more | {"timeout_s": 2.0})


def test_dead_letters_in_a_topic_last_and_a_topic_that_is_not_there_is_a_sentence(
    real_kafka: RealKafka, tmp_path: Path
) -> None:
    cluster, topic, dead = Cluster(tmp_path), real_kafka.new_topic(), real_kafka.new_topic()
    real_kafka.write(topic, 0, [b"%d" % k for k in range(20)])
    options: dict[str, Any] = {"name": "orders", "bootstrap_servers": real_kafka.servers, "stop": "end"}
    options |= {"environment": cluster.environment(), "retry": Retry(max_retries=0), "max_dead_share": 1.0}
    letters = KafkaTopic(dead, bootstrap_servers=real_kafka.servers, config={"compression.type": "gzip"})
    run = Kafka(topic, group_id=topic, dead_letters=letters, **options)
    assert run.run(NO_SPARK, failing(lambda row: row.value == b"7")).dead_lettered == 1
    missing = KafkaTopic("no-such-topic", bootstrap_servers=real_kafka.servers, timeout_s=1)
    with pytest.raises(SourceError, match=r"topic 'no-such-topic' does not exist at .*: create it, or name another"):
        missing.open()


def test_times_bound_what_is_read_and_acker_offsets_moves_a_source_to_a_time(
    real_kafka: RealKafka, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = real_kafka.new_topic(2, config={"retention.ms": "-1"})
    for partition in range(2):
        for k in range(10):
            value = b"%d.%d" % (partition, k)
            real_kafka.write(topic, partition, [value], timestamp=1_700_000_000_000 + 1_000 * k + partition)
    options: dict[str, Any] = {
        "name": topic,
        "bootstrap_servers": real_kafka.servers,
        "checkpoint": tmp_path / "a.ckpt",
    }
    read: list[bytes] = []

    def run_once(**bounds: Any) -> list[bytes]:
        read.clear()

        def process(batch: Batch) -> None:
            read.extend(row.value for row in frame_of(batch).rows())
            save_all(batch)

        Kafka(topic, environment=Cluster(tmp_path).environment(), **options, **bounds).run(NO_SPARK, process)
        return sorted(read)

    def at(seconds: float) -> datetime:
        return datetime.fromtimestamp(1_700_000_000 + seconds, UTC)

    assert run_once(start=at(3), stop=at(7)) == [b"0.3", b"0.4", b"0.5", b"0.6", b"1.3", b"1.4", b"1.5", b"1.6"]
    assert run_once(stop={f"{topic}/0": 8}) == [b"0.7", b"1.7", b"1.8", b"1.9"]
    words = [topic, "--bootstrap-servers", real_kafka.servers, "--checkpoint", str(tmp_path / "a.ckpt"), "--json"]
    for where, moved in (("2023-11-14T22:13:25", [5, 5]), ("latest", [10, 10]), ("9", [9, 9])):
        assert run(offsets, [*words, "--to", where]) == 0
        told = json.loads(capsys.readouterr().out)
        assert [each["target"] for each in told["partitions"]] == moved
        assert real_kafka.committed(topic) == {(topic, number): offset for number, offset in enumerate(moved)}
    assert run_once(stop="end") == [b"0.9", b"1.9"]


def test_gauges_of_partitions_agree_with_what_the_brokers_tools_show(real_kafka: RealKafka, tmp_path: Path) -> None:
    topic = real_kafka.new_topic(3)
    for partition, count in enumerate((20, 5, 0)):
        real_kafka.write(topic, partition, [b"%d" % k for k in range(count)])
    source = Kafka(
        topic,
        name=topic,
        bootstrap_servers=real_kafka.servers,
        environment=Cluster(tmp_path).environment(),
        batch_records=10,
        retry=Retry(initial_s=9e3, cap_s=9e3),
    )
    for batch in source.batches(NO_SPARK):
        failing(lambda row: row.value in (b"3", b"7"))(batch)
        batch.done()
        if batch.number == 2:
            source.stop()
    states = {(each.topic, int(each.name)): each for each in source._run.partition_states()}  # type: ignore[union-attr]
    assert {at: each.committed for at, each in states.items()} == real_kafka.committed(topic)
    assert {at: each.end for at, each in states.items()} == {(topic, 0): 20, (topic, 1): 5, (topic, 2): 0}
    assert [states[topic, number].lag for number in range(3)] == [17, 2, 0]
