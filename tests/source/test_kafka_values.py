"""Values of Kafka whose schema is in a schema registry: Avro, JSON Schema and Protobuf, as columns."""

from __future__ import annotations

import itertools
import json
import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

from acker_client.source import Avro, Batch, JsonSchema, Kafka, Protobuf, PutBack, Retry, SourceError
from acker_client.source.engine.environment import arrow_schema
from acker_client.source.kafka.connection import Unreachable
from acker_client.source.kafka.decoder import decoder_of
from acker_client.source.kafka.input import KafkaInput
from acker_client.source.kafka.schema_registry import SchemaRegistry, registry_of
from acker_client.source.kafka.values import Decoding, RegistryConnection
from tests.fuzz.mutations import BYTES, mutated
from tests.source.driven import Driven, read_elsewhere
from tests.source.executors import NO_SPARK, Cluster, Log, frame_of
from tests.source.kafka_broker import MockKafka
from tests.source.schema_registry import SchemaRegistryServer

FIELD = descriptor_pb2.FieldDescriptorProto


def avro_schema(**fields: Any) -> str:
    return json.dumps(
        {"type": "record", "name": "Order", "fields": [{"name": name, **type_} for name, type_ in fields.items()]}
    )


def json_schema(**fields: str) -> str:
    return json.dumps({"title": "Order", "type": "object", "properties": {k: {"type": v} for k, v in fields.items()}})


def message(name: str, *fields: tuple[str, int, Any]) -> Any:
    """Return a generated class of a message with these (name, number, type) fields. A type is a scalar of Protobuf, a
    list of one, or a message class."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{name}.proto", package="shop", syntax="proto3")
    made = file.message_type.add(name=name)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(descriptor_pb2.FileDescriptorProto.FromString(timestamp_pb2.DESCRIPTOR.serialized_pb))
    for each, number, type_ in fields:
        label = FIELD.LABEL_REPEATED if isinstance(type_, list) else FIELD.LABEL_OPTIONAL
        of = type_[0] if isinstance(type_, list) else type_
        if of == "time":
            file.dependency.append("google/protobuf/timestamp.proto")
            made.field.add(
                name=each, number=number, label=label, type=FIELD.TYPE_MESSAGE, type_name=".google.protobuf.Timestamp"
            )
        else:
            made.field.add(name=each, number=number, label=label, type=of)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"shop.{name}"))


ORDER = message(
    "Order",
    ("id", 1, FIELD.TYPE_INT64),
    ("sku", 2, FIELD.TYPE_STRING),
    ("tags", 3, [FIELD.TYPE_STRING]),
    ("at", 4, "time"),
)
AVRO = avro_schema(id={"type": "long"}, sku={"type": "string"}, tags={"type": {"type": "array", "items": "string"}})
COLUMNS = "id bigint NOT NULL, sku string, tags array<string>"


NUMBERS = itertools.count()


@dataclass
class Written:
    """Writes values of one format with schemas of a registry. ``bad``: values that do not decode, with the reason."""

    values: Any
    good: list[tuple[bytes, dict[str, Any]]] = field(default_factory=list)
    bad: list[tuple[bytes, str]] = field(default_factory=list)


def serialized(serialize: Any, value: Any) -> bytes:
    content: bytes = serialize(value, SerializationContext("orders", MessageField.VALUE))
    return content


def cut_off(content: bytes) -> bytes:
    return content[:-2]


def avro(client: SchemaRegistryClient, url: str) -> Written:
    def by(schema: str) -> Any:
        return AvroSerializer(client, schema)

    long, text, tags = {"type": "long"}, {"type": "string"}, {"type": {"type": "array", "items": "string"}}
    first = serialized(by(avro_schema(id=long, sku=text, tags=tags)), {"id": 1, "sku": "kiwi", "tags": ["a", "b"]})
    more = avro_schema(id=long, qty={"type": ["null", "int"], "default": None}, sku={"type": ["null", "string"]})
    changed = serialized(by(more), {"id": 2, "qty": 7, "sku": None})
    another = serialized(by(avro_schema(id=text, sku=text)), {"id": "two", "sku": "x"})
    lacking = serialized(by(avro_schema(sku=text)), {"sku": "x"})
    return Written(
        Avro(COLUMNS, url),
        [(first, {"id": 1, "sku": "kiwi", "tags": ["a", "b"]}), (changed, {"id": 2, "sku": None, "tags": None})],
        [
            (another, "value.id: 'two' is not an int64"),
            (lacking, "value.id: is NOT NULL, and missing or null"),
            (cut_off(first), ""),
        ],
    )


def json_(client: SchemaRegistryClient, url: str) -> Written:
    def by(schema: str) -> Any:
        return JSONSerializer(schema, client)

    first = serialized(
        by(json_schema(id="integer", sku="string", tags="array")), {"id": 1, "sku": "kiwi", "tags": ["a"]}
    )
    changed = serialized(by(json_schema(id="integer", qty="integer")), {"id": 2, "qty": 7})
    another = serialized(by(json_schema(id="number")), {"id": 1.5})
    lacking = serialized(by(json_schema(sku="string")), {"sku": "x"})
    return Written(
        JsonSchema(COLUMNS, url),
        [(first, {"id": 1, "sku": "kiwi", "tags": ["a"]}), (changed, {"id": 2, "sku": None, "tags": None})],
        [
            (another, "value.id: 1.5 is not an int64"),
            (lacking, "value.id: is NOT NULL, and missing or null"),
            (first[:5] + b'{"id": "one"}', "'one' is not of type 'integer'"),
            (cut_off(first), ""),
        ],
    )


def protobuf(client: SchemaRegistryClient, url: str) -> Written:
    def by(kind: Any) -> Any:
        return ProtobufSerializer(kind, client, {"use.deprecated.format": False})

    at = datetime(2026, 11, 25, 9, tzinfo=UTC)
    order = ORDER(id=1, sku="kiwi", tags=["a", "b"])
    order.at.FromDatetime(at)
    first = serialized(by(ORDER), order)
    wider = message("Order", ("id", 1, FIELD.TYPE_INT64), ("qty", 5, FIELD.TYPE_INT32))
    changed = serialized(by(wider), wider(id=2, qty=7))
    other_type = message("Order", ("id", 1, FIELD.TYPE_STRING), ("sku", 2, FIELD.TYPE_STRING))
    another = serialized(by(other_type), other_type(id="two", sku="x"))
    cancel = message("Cancel", ("id", 1, FIELD.TYPE_INT64))
    return Written(
        Protobuf(f"{COLUMNS}, at timestamp", url, message=ORDER),
        [
            (first, {"id": 1, "sku": "kiwi", "tags": ["a", "b"], "at": at}),
            (changed, {"id": 2, "sku": "", "tags": [], "at": None}),
        ],
        [
            (another, "value.id: field 1 was written with another type"),
            (serialized(by(cancel), cancel(id=3)), "it is a message shop.Cancel, not shop.Order"),
            (cut_off(first), ""),
        ],
    )


FORMATS = [avro, json_, protobuf]
# Values that no serialiser of a registry has written.
STRANGE = [
    (b"", ""),
    (b"plain text", ""),
    (b"\x00", ""),
    (b"\x00" + struct.pack(">I", 999) + b"\x02\x02x", "the schema registry has no schema for it"),
]


@pytest.fixture(params=FORMATS, ids=lambda each: each.__name__.strip("_"))
def written(request: pytest.FixtureRequest) -> Written:
    """Values of one format, whose schemas are in a mock registry of confluent-kafka's in this process."""
    url = f"mock://{next(NUMBERS)}"
    made: Written = request.param(registry_of(RegistryConnection(url, timeout_s=10.0)).client, url)
    return made


def options_of(kafka: MockKafka, topic: str, **more: Any) -> dict[str, Any]:
    given = {"bootstrap_servers": kafka.servers, "name": topic, "stop": "end", "timeout_s": 10.0}
    return {**given, **more}


@pytest.fixture
def opened() -> Iterator[list[KafkaInput]]:
    """Yield a list. Inputs that a test adds to it are closed at the end."""
    inputs: list[KafkaInput] = []
    yield inputs
    for each in inputs:
        each.close()


def driven_of(opened: list[KafkaInput], topic: str, **options: Any) -> Driven:
    input_: Any = Kafka(topic, **options).input()[0]
    opened.append(input_)
    return Driven(input_)


@pytest.mark.matrix
def test_values_come_as_the_columns_that_are_declared_however_their_writers_schemas_change(
    kafka: MockKafka, written: Written, tmp_path: Path
) -> None:
    topic = kafka.new_topic()
    kafka.write(topic, 0, [*(value for value, _ in written.good), None], key=b"k")
    seen: list[Any] = []

    def process(batch: Batch) -> None:
        seen.extend(row.value for row in frame_of(batch).rows())
        frame_of(batch).ack(frame_of(batch).rows())

    options = options_of(kafka, topic, environment=Cluster(tmp_path).environment(), values=written.values)
    assert Kafka(topic, **options).run(NO_SPARK, process).acked == len(written.good) + 1
    assert seen == [*(row for _, row in written.good), None]


def test_a_record_that_does_not_decode_goes_to_the_dead_letters_with_its_reason_and_costs_no_other_a_retry(
    kafka: MockKafka, written: Written, tmp_path: Path
) -> None:
    topic, bad = kafka.new_topic(), [*written.bad, *STRANGE]
    values = [value for value, _ in written.good] * 5
    for k, (value, _) in enumerate(bad):
        values.insert(2 * k, value)
    kafka.write(topic, 0, values)
    log = Log()
    options = options_of(kafka, topic, environment=Cluster(tmp_path).environment(), values=written.values)
    options |= {"dead_letters": tmp_path / "dead.jsonl", "retry": Retry(max_retries=1), "max_dead_share": 1.0}
    source = Kafka(topic, **options, listener=log, checkpoint=tmp_path / "a.ckpt")
    summary = source.run(NO_SPARK, lambda batch: frame_of(batch).ack(frame_of(batch).rows()))
    letters = {each["offset"]: each for each in map(json.loads, (tmp_path / "dead.jsonl").open())}
    assert letters.keys() == {2 * k for k in range(len(bad))}
    for k, (_, why) in enumerate(bad):
        reason = letters[2 * k]["reason"]
        assert reason.startswith(f"{topic}:0:{2 * k}: the value does not decode as ")
        assert why in reason
    # The letters have the bytes as they are, and all other records were emitted once.
    assert {each["schema"].split(",")[1] for each in letters.values()} == {" value binary"}
    assert (summary.acked, summary.dead_lettered, summary.open) == (len(values) - len(bad), len(bad), 0)
    assert summary.replayed == len(bad)
    assert sorted(log.acked) == [k for k in range(len(values)) if k not in letters]


def test_with_tracking_off_a_record_that_does_not_decode_ends_alone_in_the_dead_letters_with_its_reason(
    kafka: MockKafka, written: Written, tmp_path: Path
) -> None:
    topic = kafka.new_topic()
    values = [value for value, _ in written.good] * 10
    values.insert(7, written.bad[0][0])
    kafka.write(topic, 0, values)
    options = options_of(kafka, topic, environment=Cluster(tmp_path).environment(), values=written.values)
    options |= {"dead_letters": tmp_path / "dead.jsonl", "retry": Retry(0, initial_s=0.0), "max_dead_share": 1.0}
    summary = Kafka(topic, **options, tracking=False).run(NO_SPARK, lambda batch: frame_of(batch).rows() and None)
    assert (summary.acked, summary.dead_lettered, summary.open) == (len(values) - 1, 1, 0)
    (letter,) = map(json.loads, (tmp_path / "dead.jsonl").open())
    assert letter["offset"] == 7
    assert f"{topic}:0:7: the value does not decode as " in letter["reason"]


def test_untracked_records_are_chosen_by_their_decoded_values_and_one_that_does_not_decode_is_tracked(
    kafka: MockKafka, written: Written, tmp_path: Path
) -> None:
    topic = kafka.new_topic()
    values = [*(value for value, _ in written.good), written.bad[0][0]]
    kafka.write(topic, 0, values)
    log, seen = Log(), list[int]()

    def process(batch: Batch) -> None:
        rows = frame_of(batch).rows()
        seen.extend(row.value["id"] for row in rows)
        frame_of(batch).ack(rows)

    def is_first(batch: pa.RecordBatch) -> Any:
        return pc.equal(pc.struct_field(batch.column("value"), "id"), 1)

    options = options_of(kafka, topic, environment=Cluster(tmp_path).environment(), values=written.values)
    options |= {"dead_letters": tmp_path / "dead.jsonl", "retry": Retry(0), "max_dead_share": 1.0, "listener": log}
    summary = Kafka(topic, **options, track=is_first).run(NO_SPARK, process)
    assert (summary.acked, summary.absent, summary.dead_lettered, summary.open) == (1, 1, 1, 0)
    assert (seen, log.acked, log.dead) == ([1, 2], [0], [2])


def test_a_dead_letter_of_a_record_that_decodes_has_its_row_and_its_bytes_and_is_put_back_as_that_row(
    kafka: MockKafka, written: Written, tmp_path: Path
) -> None:
    topic = kafka.new_topic()
    kafka.write(topic, 0, [value for value, _ in written.good], key=b"k", headers=[("h", b"1")], timestamp=5)
    cluster = Cluster(tmp_path)
    options: dict[str, Any] = {
        "environment": cluster.environment(),
        "retry": Retry(max_retries=0),
        "max_dead_share": 1.0,
    }

    def fail_all(batch: Batch) -> None:
        frame_of(batch).fail({row.root: "KeyError: 'x'" for row in frame_of(batch).rows()})

    source = Kafka(
        topic, **options_of(kafka, topic, values=written.values, dead_letters=tmp_path / "dead.jsonl", **options)
    )
    assert source.run(NO_SPARK, fail_all).dead_lettered == len(written.good)
    rows: list[Any] = []
    again = PutBack(str(tmp_path / "dead.jsonl"), name="again", checkpoint=tmp_path / "again.ckpt", **options)

    def take(batch: Batch) -> None:
        for piece in frame_of(batch).plan.slices:
            rows.extend(row for read in piece.read() for row in read.columns.to_pylist())
        frame_of(batch).ack(frame_of(batch).rows())

    assert again.run(NO_SPARK, take).acked == len(written.good)
    assert [row["value"] for row in rows] == [row for _, row in written.good]
    assert [(row["key"], row["offset"], row["headers"]) for row in rows] == [
        (b"k", k, [{"key": "h", "value": b"1"}]) for k in range(len(written.good))
    ]
    letters = [json.loads(line) for line in (tmp_path / "dead.jsonl").open()]
    assert all(letter["value"]["raw"] for letter in letters)


def test_bytes_of_any_kind_decode_to_a_row_or_fail_alone(written: Written) -> None:
    columns = arrow_schema(written.values.schema)
    decoder = decoder_of(written.values.decoding(columns, 10.0))
    draw, valid = random.Random(7), [value for value, _ in (*written.good, *written.bad)]
    rows = [row for _, row in written.good]
    outcomes = set[bool]()
    for _ in range(400):
        strange = mutated(draw, draw.choice(valid), valid, BYTES)
        values = [written.good[0][0], strange, written.good[1][0]]
        column, reasons = decoder.decode("orders", values, [None] * 3)
        assert column.validate(full=True) is None
        assert [column.to_pylist()[k] for k in (0, 2)] == rows
        assert reasons.keys() <= {1}
        # What has decoded has each column that may not be null.
        assert reasons or column.to_pylist()[1]["id"] is not None
        outcomes.add(bool(reasons))
    assert outcomes == {True, False}


def test_avro_is_read_in_the_terms_of_the_readers_schema(kafka: MockKafka, opened: list[KafkaInput]) -> None:
    url, topic = f"mock://{next(NUMBERS)}", kafka.new_topic()
    client = registry_of(RegistryConnection(url, timeout_s=10.0)).client
    old = AvroSerializer(client, avro_schema(number={"type": "long"}))
    kafka.write(topic, 0, [serialized(old, {"number": 5})])
    reader = avro_schema(id={"type": "long", "aliases": ["number"]}, sku={"type": "string", "default": "none"})
    values = Avro("id bigint, sku string", url, reader_schema=reader)
    driven = driven_of(opened, topic, **options_of(kafka, topic, values=values))
    (read,) = (each for piece in driven.slices(driven.drain()) for each in piece.read())
    assert read.columns.column("value").to_pylist() == [{"id": 5, "sku": "none"}]


# -- a registry that is away


@dataclass(frozen=True)
class Hasty(Avro):
    """Waits for the registry a tenth of a second, and for brokers as long as the source says."""

    def decoding(self, columns: pa.Schema, timeout_s: float) -> Decoding:
        return super().decoding(columns, 0.1)


def test_a_registry_that_is_down_is_waited_for_and_nothing_is_lost(
    kafka: MockKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("acker_client.source.kafka.input.PLAN_S", 0.05)
    monkeypatch.setattr("acker_client.source.kafka.input.REGISTRY_ANSWER_S", 0.0)
    caplog.set_level("INFO")
    topic, cluster = kafka.new_topic(), Cluster(tmp_path)
    with SchemaRegistryServer() as server:
        serialize = AvroSerializer(SchemaRegistryClient({"url": server.url}), AVRO)
        kafka.write(topic, 0, [serialized(serialize, {"id": k, "sku": "x", "tags": []}) for k in range(10)])
        options = options_of(kafka, topic, values=Hasty(COLUMNS, server.url), environment=cluster.environment())
        source = Kafka(topic, **{**options, "stop": None}, batch_records=5, retry=Retry(max_retries=0))
        acked, checks, check = list[int](), 0, SchemaRegistry.check

        def count(self: SchemaRegistry, timeout_s: float) -> None:
            nonlocal checks
            try:
                check(self, timeout_s)
            except Unreachable:
                checks += 1
                if checks == 3:
                    server.status = 0
                raise

        monkeypatch.setattr(SchemaRegistry, "check", count)
        for batch in source.batches(NO_SPARK):
            if batch.number == 1:
                # The task asks for a schema that it does not know yet, and waits in vain.
                server.status = 503
                with pytest.raises(Unreachable, match=r"the schema registry at http.* has not answered for 0\.1 s"):
                    list(frame_of(batch).plan.slices[0].read())
                batch.error = SourceError("the task failed")
                continue
            rows = frame_of(batch).rows()
            acked += [row.value["id"] for row in rows]
            frame_of(batch).ack(rows)
            batch.done()
            if len(acked) >= 10:
                source.stop()
    assert (sorted(acked), checks) == (list(range(10)), 3)
    assert source.summary().dead_lettered == 0
    assert caplog.text.count("has not answered for 0.05 s") == 1
    assert caplog.text.count("the schema registry answers again") == 1


def test_while_only_the_registry_is_away_originals_hold_the_bytes_and_it_is_asked_once(
    kafka: MockKafka, opened: list[KafkaInput], caplog: pytest.LogCaptureFixture
) -> None:
    topic = kafka.new_topic()
    with SchemaRegistryServer() as server:
        serialize = AvroSerializer(SchemaRegistryClient({"url": server.url}), AVRO)
        values = [serialized(serialize, {"id": k, "sku": "x", "tags": []}) for k in range(4)]
        for partition in range(2):
            kafka.write(topic, partition, values)
        options = options_of(kafka, topic, values=Hasty(COLUMNS, server.url))
        driven = driven_of(opened, options["name"], **options)
        records = driven.drain()
        server.status = 503
        assert driven.values(records) == 2 * values
        assert caplog.text.count("originals of records hold bytes in place of decoded values: the schema registry") == 1
        server.status = 0
        assert [value["value"]["id"] for value in driven.values(records)] == 2 * list(range(4))


def test_a_wait_for_the_registry_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now, slept = [0.0], list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    with SchemaRegistryServer() as server:
        registry = SchemaRegistry(RegistryConnection(server.url, timeout_s=230.0), lambda: now[0], sleep)
        server.status = 500
        with pytest.raises(Unreachable, match=r"has not answered for 230 s .*: check registry"):
            registry.get_schema(1)
    lines = [record.getMessage() for record in caplog.records if "waiting for the schema registry" in record.message]
    assert len(lines) == 4
    assert max(slept) <= 2.0


def test_a_registry_that_is_down_at_the_start_or_refuses_the_user_is_a_sentence(
    kafka: MockKafka, opened: list[KafkaInput]
) -> None:
    with SchemaRegistryServer() as server:
        options = options_of(kafka, kafka.new_topic(3), values=Hasty("id bigint", server.url))
        server.status = 401
        with pytest.raises(SourceError, match=r"registry at http.* refuses to answer .*: give this user the right"):
            driven_of(opened, options["name"], **options)
        server.status = 403
        driven = driven_of(opened, options["name"], **options)
        assert len(driven.drain()) == 3
    options["values"] = Hasty("id bigint", "http://user:secret@127.0.0.1:1")
    with pytest.raises(Unreachable, match=r"at http://127\.0\.0\.1:1 has not answered for 0\.1 s"):
        driven_of(opened, options["name"], **options)


def test_a_refusal_in_a_task_fails_the_task_and_no_record(kafka: MockKafka, opened: list[KafkaInput]) -> None:
    topic = kafka.new_topic()
    with SchemaRegistryServer() as server:
        serialize = AvroSerializer(SchemaRegistryClient({"url": server.url}), AVRO)
        kafka.write(topic, 0, [serialized(serialize, {"id": 1, "sku": "x", "tags": []})])
        driven = driven_of(opened, topic, **options_of(kafka, topic, values=Avro(COLUMNS, server.url)))
        slices = driven.slices(driven.drain())
        server.status = 403
        with pytest.raises(SourceError, match="refuses to answer"):
            list(slices[0].read())


@pytest.mark.long
def test_slices_are_pickled_and_read_in_another_process(kafka: MockKafka, opened: list[KafkaInput]) -> None:
    topic = kafka.new_topic()
    with SchemaRegistryServer() as server:
        serialize = AvroSerializer(SchemaRegistryClient({"url": server.url}), AVRO)
        kafka.write(topic, 0, [serialized(serialize, {"id": 1, "sku": "x", "tags": []})] * 7)
        driven = driven_of(opened, topic, **options_of(kafka, topic, values=Avro(COLUMNS, server.url)))
        slices = driven.slices(driven.drain(), 1)
        assert read_elsewhere(slices) == "[4, 3] False False"
        asked = [path for path in server.requests if path.startswith("/schemas/ids")]
        assert len(asked) == 1


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Avro("id bigint", "localhost:8081"), "registry='localhost:8081': give the URL, like"),
        (lambda: Avro("id bigint", "http://x", {"url": "http://y"}), "url is the source's own: give it as registry"),
        (
            lambda: Avro("id bigint", "http://x", {"max.retries": 3}),
            "max.retries is the source's own: the source waits",
        ),
        (lambda: Avro("id bigint", "http://x", {"proxy": print}), "proxy is a builtin_function_or_method: give text"),
        (lambda: Protobuf("id bigint", "http://x"), "message=None\\): give the class that protoc generated"),
    ],
)
def test_values_that_make_no_sense_are_refused_by_name(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make()


def test_a_readers_schema_that_is_no_schema_is_a_sentence(kafka: MockKafka, opened: list[KafkaInput]) -> None:
    values = Avro("id bigint", f"mock://{next(NUMBERS)}", reader_schema='{"type": "rekord"}')
    with pytest.raises(SourceError, match=r"values: reader_schema cannot be read \("):
        driven_of(opened, "a", **options_of(kafka, "a", values=values))


def test_a_setting_that_the_library_does_not_know_is_a_sentence(kafka: MockKafka, opened: list[KafkaInput]) -> None:
    values = Avro("id bigint", "http://localhost:1", {"ssl.ca.lokation": "x"})
    with pytest.raises(SourceError, match=r"Unrecognized properties: ssl\.ca\.lokation: check config"):
        driven_of(opened, "a", **options_of(kafka, "a", values=values))
