"""Outcomes in a Kafka topic, on librdkafka's mock cluster, and the keys that inputs give to outcomes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from acker_client import Verdict
from acker_client.source import Kafka, KafkaTopic, OutcomeStore, RecordOutcome, Retry, SourceError
from acker_client.source.errors import InputChanged
from acker_client.source.kafka import keys, slices
from acker_client.source.records.parts import Lookup
from tests.source.driven import Driven, rows_of
from tests.source.executors import NO_SPARK, Cluster, failing, save_all
from tests.source.kafka_broker import MockKafka
from tests.source.logs import Log as InMemory
from tests.source.logs import LogSource, MemoryCheckpoint, MemoryLetters
from tests.source.test_kafka import kafka_input
from tests.source.test_outcomes import done_in


@pytest.fixture(scope="module")
def kafka() -> Iterator[MockKafka]:
    with MockKafka() as started:
        yield started


def source(kafka: MockKafka, cluster: Cluster, topic: str, **options: Any) -> Kafka:
    given: dict[str, Any] = {"bootstrap_servers": kafka.servers, "name": topic, "stop": "end", "timeout_s": 10.0}
    given |= {"environment": cluster.environment(), "dead_letters": MemoryLetters(), "max_dead_share": 1.0}
    return Kafka(topic, **{**given, "retry": Retry(max_retries=1, initial_s=0, cap_s=0), **options})


def write(kafka: MockKafka, topic: str, partition: int, values: Mapping[bytes | None, bytes]) -> None:
    for key, value in values.items():
        kafka.write(topic, partition, [value], key=key)


def written_to(kafka: MockKafka, topic: str) -> list[tuple[bytes, dict[str, Any]]]:
    """Return (key, value) of all messages."""
    driven = Driven(kafka_input(kafka, topic, group_id=f"read-{topic}"))
    return [(row["key"], json.loads(row["value"])) for row in rows_of(driven.slices(driven.drain(), 1))]


@pytest.mark.long
def test_each_try_is_a_line_of_json_under_the_key_of_its_record(kafka: MockKafka, tmp_path: Path) -> None:
    topic, into = kafka.new_topic(), kafka.new_topic(prefix="outcomes")
    write(kafka, topic, 0, {b"k0": b"good", b"\xff": b"bad", None: b"no key"})
    outcomes = KafkaTopic(into, bootstrap_servers=kafka.servers)
    assert isinstance(outcomes, OutcomeStore)
    process = failing(lambda row: row.value == b"bad", "items: KeyError: 'qty'")
    assert source(kafka, Cluster(tmp_path), topic, outcomes=outcomes).run(NO_SPARK, process).acked == 2
    found = written_to(kafka, into)
    assert sorted((key, text["verdict"], text["final"], text["attempts"]) for key, text in found) == [
        (b"k0", "ACKED", True, 1),
        (f"{topic}:0:2".encode(), "ACKED", True, 1),
        (b"\xff", "FAILED", False, 1),
        (b"\xff", "FAILED", True, 2),
    ]
    (last,) = (text for key, text in found if key == b"\xff" and text["final"])
    assert last == {
        "source": topic, "origin": {"topic": topic, "partition": 0, "offset": 1}, "key": {"base64": "/w=="},
        "verdict": "FAILED", "final": True, "reason": "items: KeyError: 'qty'", "attempts": 2,
    }  # fmt: skip


@pytest.mark.slow
def test_a_topic_that_is_away_ends_the_run_and_its_records_are_read_again(tmp_path: Path) -> None:
    log, checkpoint, cluster = InMemory(), MemoryCheckpoint(), Cluster(tmp_path)
    log.append("a", 3)
    options: dict[str, Any] = {"environment": cluster.environment(), "checkpoint": checkpoint}
    with MockKafka() as kafka:
        outcomes = KafkaTopic(kafka.new_topic(), bootstrap_servers=kafka.servers, timeout_s=1)
        outcomes.open()
    with pytest.raises(SourceError, match=r"outcomes cannot be written to topic .*Nothing is lost: their records"):
        LogSource(log, outcomes=outcomes, **options).run(NO_SPARK, save_all)
    assert done_in(checkpoint) == set()
    again = LogSource(log, **options).outcomes(NO_SPARK, save_all)
    assert [each.verdict for each in again] == [Verdict.ACKED] * 3


def test_a_topic_that_cannot_be_reached_again_is_named_by_what_should_be_written_to_it() -> None:
    away = KafkaTopic("outcomes", bootstrap_servers="127.0.0.1:1", timeout_s=1)
    with pytest.raises(SourceError, match=r"^outcomes cannot be written to topic"):
        away.write([RecordOutcome("lines", {"line": 1}, None, Verdict.ACKED, "", 1, True)])


def test_the_topic_of_outcomes_is_not_one_that_the_source_reads(kafka: MockKafka, tmp_path: Path) -> None:
    outcomes = KafkaTopic("orders.outcomes", bootstrap_servers=kafka.servers)
    with pytest.raises(ValueError, match=r"outcomes: topic 'orders\.outcomes' is read by this source"):
        source(kafka, Cluster(tmp_path), "orders.outcomes", outcomes=outcomes)


def test_the_stream_has_the_keys_of_records(kafka: MockKafka, tmp_path: Path) -> None:
    topic = kafka.new_topic()
    for number in (0, 1):
        write(kafka, topic, number, {f"{number}.0".encode(): b"one", f"{number}.1".encode(): b"two"})
    stream = source(kafka, Cluster(tmp_path), topic).outcomes(NO_SPARK, save_all)
    assert sorted(each.key for each in stream) == ["0.0", "0.1", "1.0", "1.1"]


def test_outcomes_of_a_key_come_in_order_if_the_source_keeps_it(kafka: MockKafka, tmp_path: Path) -> None:
    topic = kafka.new_topic()
    for key, value in ((b"a", b"bad"), (b"b", b"one"), (b"a", b"two"), (b"a", b"bad"), (b"a", b"three")):
        kafka.write(topic, 0, [value], key=key)
    process = failing(lambda row: row.value == b"bad")
    stream = list(source(kafka, Cluster(tmp_path), topic, ordered_by="key").outcomes(NO_SPARK, process))
    found = [(each.origin["offset"], each.verdict.name, each.is_final) for each in stream if each.key == "a"]
    assert found == [
        *[(0, "FAILED", False), (0, "FAILED", True), (2, "ACKED", True)],
        *[(3, "FAILED", False), (3, "FAILED", True), (4, "ACKED", True)],
    ]
    assert [each.origin["offset"] for each in stream if each.key == "b"] == [1]


def test_outcomes_have_no_keys_from_the_partition_on_that_cannot_be_read_again(
    kafka: MockKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    topic, read_chosen = kafka.new_topic(), slices.read_chosen
    for number in (0, 1):
        write(kafka, topic, number, {f"{number}.0".encode(): b"one"})

    def read(reader: Any, chosen: Any) -> Any:
        if chosen.part.number:
            raise InputChanged("the topic was deleted")
        return read_chosen(reader, chosen)

    monkeypatch.setattr(keys, "read_chosen", read)
    driven = Driven(kafka_input(kafka, topic, group_id="keys"))
    assert Lookup(driven.input, driven.parts).keys(driven.drain()) == ["0.0", None]
    assert "outcomes have none: the topic was deleted" in caplog.text


def test_an_outcome_without_a_key_is_keyed_by_its_origin_whatever_characters_that_has(kafka: MockKafka) -> None:
    into = kafka.new_topic(prefix="outcomes")
    store = KafkaTopic(into, bootstrap_servers=kafka.servers)
    origin = {"path": "a\udcff.txt", "line": 1}
    store.write([RecordOutcome("lines", origin, None, Verdict.ACKED, "", 1, True)])
    store.close()
    ((key, text),) = written_to(kafka, into)
    assert (key, text["origin"]["line"]) == (b"a\xed\xb3\xbf.txt:1", 1)
