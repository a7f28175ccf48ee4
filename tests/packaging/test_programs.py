"""The example programs of README.md and docs/ run without changes."""

from __future__ import annotations

import ast
import json
import os
import re
import runpy
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from acker_client.source import DeadLetter
from acker_client.source.dead_letters.letters_file import DeadLetterFile
from tests.packaging import programs
from tests.service.caller import eventually
from tests.source.kafka_broker import PARTITIONS, MockKafka
from tests.source.kinesis_server import ENVIRONMENT, KinesisServer
from tests.source.s3_server import S3Server
from tests.source.schema_registry import SchemaRegistryServer

ORDERS = """\
{"items": [{"sku": "apple", "qty": 2}, {"sku": "pear", "qty": 1}]}

{"items": [{"sku": "plum", "qty": 7}]}
"""


def program(word: str, folder: Path, address: str = "localhost:7070") -> Path:
    """Write the only program that contains ``word`` to a file, with ``address`` as its server, and return the path."""
    path = folder / "program.py"
    path.write_text(programs.only(word).replace("localhost:7070", address))
    return path


def environment() -> dict[str, str]:
    """Return environment variables as in an activated virtual environment."""
    return os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def run(path: Path, **settings: str) -> str:
    """Run a program in its folder, in a separate process, and return its output."""
    done = subprocess.run(
        ["python", path],
        cwd=path.parent,
        env=environment() | settings,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
@pytest.mark.jvm
def test_the_first_program_runs_as_it_stands_in_a_process_of_its_own(tmp_path: Path) -> None:
    import pyarrow.parquet

    (tmp_path / "orders").mkdir()
    (tmp_path / "orders" / "monday.jsonl").write_text(ORDERS)
    run(program("max_dead_share=0.01", tmp_path))
    rows = pyarrow.parquet.read_table(tmp_path / "out").to_pylist()
    assert sorted((row["sku"], row["qty"]) for row in rows) == [("apple", 2), ("pear", 1), ("plum", 7)]
    assert {Path(row["path"]).name for row in rows} == {"monday.jsonl"}


@pytest.mark.long
@pytest.mark.jvm
def test_the_program_of_a_stream_runs_as_it_stands(tmp_path: Path) -> None:
    import pyarrow.parquet

    (tmp_path / "notes").mkdir()
    for number, note in enumerate(('{"items": [{"sku": "pear"}, {"sku": "plum"}]}', "no JSON")):
        (tmp_path / "notes" / f"{number}.json").write_text(json.dumps({"id": number, "note": note}))
    run(program("tracked(", tmp_path))
    rows = pyarrow.parquet.read_table(tmp_path / "skus").to_pylist()
    assert sorted((row["id"], row["sku"]) for row in rows) == [(0, "pear"), (0, "plum")]
    (letter,) = map(json.loads, (tmp_path / "notes.dead").open())
    assert (letter["key"], letter["value"]) == ({"id": 1}, {"id": 1, "note": "no JSON"})


@pytest.mark.long
@pytest.mark.jvm
def test_the_program_of_kinesis_runs_as_it_stands_in_a_process_of_its_own(tmp_path: Path) -> None:
    import pyarrow.parquet

    path = program("Kinesis(", tmp_path)
    with KinesisServer() as kinesis:
        kinesis.create("orders", 2)
        kinesis.put("orders", [line for line in ORDERS.splitlines() if line])
        said = run(path, **ENVIRONMENT, AWS_ENDPOINT_URL_KINESIS=kinesis.url)
    assert "end of the stream (2 shards)" in said
    rows = pyarrow.parquet.read_table(tmp_path / "out").to_pylist()
    assert sorted((row["sku"], row["qty"]) for row in rows) == [("apple", 2), ("pear", 1), ("plum", 7)]
    assert {row["shard"][:8] for row in rows} == {"shardId-"}


@pytest.mark.long
@pytest.mark.jvm
def test_the_program_of_object_stores_runs_as_it_stands_in_a_process_of_its_own(
    tmp_path: Path,
) -> None:
    import pyarrow.parquet

    path = program("s3://shop", tmp_path)
    with S3Server() as s3:
        s3.client.create_bucket(Bucket="shop")
        s3.put("shop", "orders/monday/orders.jsonl", ORDERS)
        said = run(path, **ENVIRONMENT, AWS_ENDPOINT_URL_S3=s3.url)
        assert "end of the input (1 file)" in said
        assert {key.partition("/")[0] for key in s3.keys("shop")} == {"orders", "state", "dead"}
    rows = pyarrow.parquet.read_table(tmp_path / "out").to_pylist()
    assert sorted((row["sku"], row["qty"]) for row in rows) == [("apple", 2), ("pear", 1), ("plum", 7)]
    assert {row["path"] for row in rows} == {"s3://shop/orders/monday/orders.jsonl"}


@pytest.mark.long
@pytest.mark.jvm
def test_the_program_of_kafka_runs_as_it_stands_in_a_process_of_its_own(tmp_path: Path) -> None:
    import pyarrow.parquet

    with MockKafka() as kafka:
        kafka.create("orders")
        kafka.write("orders", 1, [line.encode() for line in ORDERS.splitlines() if line])
        path = program('keep=["partition", "offset"]', tmp_path)
        path.write_text(path.read_text().replace("localhost:9092", kafka.servers))
        run(path)
        assert kafka.committed("orders", "orders")[1][0] == 2
    rows = pyarrow.parquet.read_table(tmp_path / "out").to_pylist()
    assert sorted((row["offset"], row["sku"], row["qty"]) for row in rows) == [
        (0, "apple", 2),
        (0, "pear", 1),
        (1, "plum", 7),
    ]


@pytest.mark.long
@pytest.mark.jvm
def test_the_program_of_values_with_a_schema_runs_as_it_stands_in_a_process_of_its_own(
    tmp_path: Path, start_server: Callable[..., Any]
) -> None:
    with MockKafka() as kafka, SchemaRegistryServer() as registry:
        fields = [{"name": "sku", "type": "string"}, {"name": "qty", "type": "int"}, {"name": "at", "type": "long"}]
        schema = json.dumps({"type": "record", "name": "Sold", "fields": fields})
        serialize = AvroSerializer(SchemaRegistryClient({"url": registry.url}), schema)
        context = SerializationContext("sold", MessageField.VALUE)
        values = [serialize({"sku": sku, "qty": qty, "at": 1}, context) for sku, qty in (("apple", 2), ("pear", 1))]
        kafka.create("sold")
        kafka.write("sold", 1, [values[0], b"no Avro", values[1]])
        path = program("values=Avro(", tmp_path, start_server().address)
        text = path.read_text().replace("localhost:9092", kafka.servers)
        path.write_text(text.replace("http://localhost:8081", registry.url))
        said = run(path)
    assert parquet_in(tmp_path / "sold", "offset", "sku", "qty") == [(0, "apple", 2), (2, "pear", 1)]
    assert re.search(r"acked +2 ", said)
    (letter,) = map(json.loads, (tmp_path / "sold.dead").open())
    assert (letter["offset"], letter["value"]) == (1, "no Avro")
    assert "the value does not decode as avro" in letter["reason"]


@cache
def rows_of(paths: tuple[Path, ...]) -> list[dict[str, Any]]:
    import pyarrow.parquet

    return [row for path in paths for row in pyarrow.parquet.read_table(path).to_pylist()]


def rows_in(folder: Path) -> list[dict[str, Any]]:
    """Return the rows that Spark has committed in ``folder`` so far."""
    return rows_of(tuple(folder.glob("*.parquet")))


@pytest.mark.long
@pytest.mark.jvm
def test_the_program_of_files_that_grow_reads_on_through_a_rotation_and_ends_at_a_signal(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "app.log"
    log.parent.mkdir()
    log.write_text("fine\nERROR 1\nERR")
    path = program("follow_s=2.0", tmp_path)
    with subprocess.Popen(
        ["python", path], cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as running:
        try:
            eventually(lambda: len(rows_in(tmp_path / "out")) == 1, 120)
            with log.open("a") as writer:
                log.rename(log.with_name("app.log.1"))
                log.write_text("ERROR 3\n")
                writer.write("OR 2\n")
            eventually(lambda: len(rows_in(tmp_path / "out")) == 3, 60)
            running.terminate()
            out, _ = running.communicate(timeout=60)
        finally:
            running.kill()
    assert running.returncode == 0
    assert re.search(r"acked +4 ", out)
    assert sorted(row["value"] for row in rows_in(tmp_path / "out")) == ["ERROR 1", "ERROR 2", "ERROR 3"]


@pytest.mark.long
@pytest.mark.jvm
def test_the_commands_and_the_program_of_dead_letters_try_one_again(tmp_path: Path) -> None:
    origin = {"path": "orders/monday.jsonl", "line": 3, "byte": 70}
    value, reason = b'{"items": [{"sku": "kiwi"}]}', "items: KeyError: 'qty'"
    letters = DeadLetterFile(tmp_path / "dead.jsonl")
    letters.write([DeadLetter("orders", reason, 4, 0, 1_700_000_000.0, 1_700_000_060.0, origin, value)])
    letters.close()
    page = (programs.ROOT / "docs/sources/put-back.md").read_text()
    (commands,) = re.findall(r"^```sh\n(acker dead-letters .*?)^```$", page, re.MULTILINE | re.DOTALL)
    options: dict[str, Any] = {"cwd": tmp_path, "env": environment(), "capture_output": True, "text": True}
    shown = subprocess.run(["sh", "-e", "-c", commands], check=True, **options).stdout
    assert "1 put back into again.jsonl, 0 left in dead.jsonl" in shown
    again = program("PutBack(", tmp_path)
    run(again)
    assert rows_in(tmp_path / "out") == [{"sku": "kiwi", "qty": 1, "path": "orders/monday.jsonl", "line": 3}]


GOOD = '{"items": [{"sku": "apple", "qty": 2}]}'
BAD = '{"items": [{"sku": "kiwi"}]}'


@pytest.mark.long
def test_the_program_of_a_stream_prints_how_each_try_of_a_record_ended(
    tmp_path: Path, start_server: Callable[..., Any]
) -> None:
    (tmp_path / "orders").mkdir()
    (tmp_path / "orders" / "monday.jsonl").write_text(f"{GOOD}\n{BAD}\n")
    said = run(program("source.outcomes(spark, process)", tmp_path, start_server().address)).splitlines()
    assert sorted(line.rpartition("/")[2].rstrip() for line in said) == [
        "monday.jsonl:1 ACKED 1 done",
        "monday.jsonl:2 FAILED 1 tried again items: KeyError: 'qty'",
        "monday.jsonl:2 FAILED 2 done items: KeyError: 'qty'",
    ]


@pytest.mark.long
def test_the_program_of_a_listener_keeps_how_each_record_ended(
    tmp_path: Path, start_server: Callable[..., Any]
) -> None:
    (tmp_path / "orders").mkdir()
    (tmp_path / "orders" / "monday.jsonl").write_text('{"sku": "apple", "qty": 2}\nno JSON\n')
    run(program("class Journal(Listener)", tmp_path, start_server().address))
    rows = sorted(line.split(",") for line in (tmp_path / "orders.csv").read_text().splitlines())
    assert [(how, Path(path).name, line) for how, path, line, *_ in rows] == [
        ("acked", "monday.jsonl", "1"),
        ("dead letter", "monday.jsonl", "2"),
    ]
    assert "not a JSON object" in rows[1][3]


@pytest.mark.long
def test_the_program_of_a_topic_of_outcomes_writes_one_for_each_record(
    tmp_path: Path, start_server: Callable[..., Any]
) -> None:
    with MockKafka() as kafka:
        kafka.create("orders")
        kafka.create("orders.outcomes")
        kafka.write("orders", 1, [b"one", b"two"])
        path = program('KafkaTopic("orders.outcomes"', tmp_path, start_server().address)
        path.write_text(path.read_text().replace("localhost:9092", kafka.servers))
        run(path)
        assert messages_in(kafka, "orders.outcomes") == 2
        assert kafka.committed("orders", "orders")[1][0] == 2


@pytest.mark.long
def test_the_program_of_a_policy_gives_up_for_a_reason_and_queries_its_dead_letters(
    tmp_path: Path, start_server: Callable[..., Any]
) -> None:
    (tmp_path / "orders").mkdir()
    (tmp_path / "orders" / "monday.jsonl").write_text(f"{GOOD}\n{BAD}\n")
    said = run(program("class ByReason", tmp_path, start_server().address))
    assert re.search(r"failed +1 ", said)
    assert said.splitlines()[-1] == f"2 items: KeyError: 'qty' {BAD}"


def start(path: Path) -> subprocess.Popen[str]:
    """Start a program in its folder, in a separate process."""
    return subprocess.Popen(
        ["python", path], cwd=path.parent, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def parquet_in(folder: Path, *columns: str) -> list[tuple[Any, ...]]:
    """Return the rows of the Parquet files in a folder, sorted."""
    import pyarrow.parquet

    return sorted(tuple(row[name] for name in columns) for row in pyarrow.parquet.read_table(folder).to_pylist())


@pytest.mark.long
def test_the_batch_job_and_its_port_write_the_same(tmp_path: Path) -> None:
    items = [("apple", 2), ("pear", 1), ("plum", 7), ("apple", 0)]
    lines = [{"id": at, "items": [{"sku": sku, "qty": qty}]} for at, (sku, qty) in enumerate(items)]
    written = []
    for name in ("before", "after"):
        folder = tmp_path / name
        (folder / "orders").mkdir(parents=True)
        (folder / "orders" / "monday.json").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        if name == "before":
            run(program('spark.read.json("orders/"', folder))
        else:
            run(program('explode("items", into="item")', folder))
        written.append(parquet_in(folder / "totals", "id", "sku", "qty", "price", "total"))
    assert written == [[(0, "apple", 2, 0.5, 1.0), (1, "pear", 1, 1.25, 1.25)]] * 2


@pytest.mark.long
def test_the_streaming_job_that_is_ported_writes_the_same_and_drops_in_silence(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    for number, note in enumerate(('{"items": [{"sku": "pear"}, {"sku": "plum"}]}', "no JSON")):
        (tmp_path / "notes" / f"{number}.json").write_text(json.dumps({"id": number, "note": note}))
    run(program('F.from_json("note"', tmp_path))
    assert parquet_in(tmp_path / "skus", "id", "sku") == [(0, "pear"), (0, "plum")]


@pytest.mark.long
def test_the_sink_that_writes_a_folder_for_each_batch_runs_as_it_stands(tmp_path: Path) -> None:
    path = program('write_parquet(rows, "out", batch', tmp_path)
    calls = """
from acker_testing import Pipeline

with Pipeline() as pipeline:
    records, schema = [{"day": "monday", "qty": 1}], "day string, qty int"
    result = pipeline.run(records, lambda batch: save(batch.df, batch), schema=schema)
    assert len(result.acked) == 1
    print([tuple(row) for row in pipeline.spark.read.parquet("out").select("day", "qty").collect()])
"""
    path.write_text(path.read_text() + calls)
    assert "[('monday', 1)]" in run(path)
    assert [folder.name.partition("-")[0] for folder in (tmp_path / "out").glob("batch=*")] == ["batch=pipeline"]


class Posted(BaseHTTPRequestHandler):
    """Keeps the bodies of requests."""

    bodies: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        self.bodies.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.mark.long
def test_the_program_that_measures_the_cost_of_tracking_shows_both_speeds(
    tmp_path: Path,
) -> None:
    (tmp_path / "lines.txt").write_text("one two\nthree\n" * 500)
    said = run(program("def measured", tmp_path))
    assert re.findall(r"^tracking (true|false): [\d,]+ records/s$", said, re.MULTILINE) == ["false", "true"] * 3
    assert parquet_in(tmp_path / "words", "word") == sorted([("one",), ("two",), ("three",)] * 500)


@pytest.mark.long
def test_the_program_of_a_collector_posts_each_line(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("one\ntwo\n")
    path = program('name="post"', tmp_path)
    with ThreadingHTTPServer(("127.0.0.1", 0), Posted) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        path.write_text(path.read_text().replace("localhost:8080", f"127.0.0.1:{server.server_port}"))
        said = run(path)
        server.shutdown()
    assert sorted(Posted.bodies) == ["one", "two"]
    assert re.search(r"acked +2 ", said)


@pytest.mark.long
def test_the_program_of_a_udf_acks_what_its_select_has_written(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("one\ntwo\n")
    said = run(program('loud("value")', tmp_path))
    assert parquet_in(tmp_path / "loud", "value", "ack") == [("ONE", True), ("TWO", True)]
    assert re.search(r"acked +2 ", said)


@pytest.fixture(params=[1, 3])
def addresses(request: pytest.FixtureRequest, start_server: Callable[..., Any]) -> str:
    """The addresses of one server, or of three."""
    return ",".join(start_server(id=number).address for number in range(request.param))


@pytest.mark.long
def test_the_program_of_a_row_udf_prints_acks_and_failures(tmp_path: Path, addresses: str) -> None:
    (tmp_path / "lines.txt").write_text("one two\n\nthree\n")
    said = run(program('words("value")', tmp_path, addresses))
    assert sorted(said.splitlines()) == [
        "'' FAILED words: ValueError: an empty line",
        "'one two' ACKED ",
        "'three' ACKED ",
    ]


@pytest.mark.long
def test_the_program_of_a_row_udf_ends_if_its_input_is_empty(tmp_path: Path, start_server: Callable[..., Any]) -> None:
    (tmp_path / "lines.txt").touch()
    assert not run(program('words("value")', tmp_path, start_server().address))


@pytest.mark.long
def test_the_program_of_a_pandas_udf_prints_acks_and_failures(tmp_path: Path, addresses: str) -> None:
    (tmp_path / "lines.txt").write_text("one\nspam two\nthree\nfour\n")
    said = run(program('score("value")', tmp_path, addresses))
    assert sorted(said.splitlines()) == [
        "done four",
        "done one",
        "done three",
        "failed spam two score: ValueError: spam",
    ]


class FailsOneInTen(Posted):
    """Refuses each tenth request, before it keeps its body."""

    bodies: ClassVar[list[str]] = []
    _lock = threading.Lock()
    _requests = 0

    def do_POST(self) -> None:
        with self._lock:
            FailsOneInTen._requests += 1
            is_refused = not FailsOneInTen._requests % 10
        if is_refused:
            self.send_error(503)
        else:
            super().do_POST()


@pytest.mark.long
def test_the_program_that_posts_replays_what_a_service_refuses_until_it_has_every_line(
    tmp_path: Path, addresses: str
) -> None:
    FailsOneInTen.bodies.clear()
    lines = [f"line {number}" for number in range(50)]
    (tmp_path / "lines.txt").write_text("".join(f"{line}\n" for line in lines))
    path = program("while not lines.isEmpty()", tmp_path, addresses)
    with ThreadingHTTPServer(("127.0.0.1", 0), FailsOneInTen) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        path.write_text(path.read_text().replace("localhost:8080", f"127.0.0.1:{server.server_port}"))
        said = run(path).splitlines()
        server.shutdown()
    assert sorted(FailsOneInTen.bodies) == sorted(lines)
    assert sorted(line.removesuffix(" ACKED ") for line in said if line.endswith(" ACKED ")) == sorted(lines)
    failed = [line for line in said if "FAILED" in line]
    assert len(failed) + len(lines) == len(said) == FailsOneInTen._requests
    assert all(line.endswith("FAILED post: HTTP Error 503: Service Unavailable") for line in failed)
    FailsOneInTen._requests = 0


@pytest.mark.long
def test_the_program_of_a_process_client_runs_as_it_stands(tmp_path: Path, addresses: str) -> None:
    said = run(program('process_client("localhost:7070")', tmp_path, addresses))
    assert sorted(said.splitlines()) == ["jumps over FAILED", "the lazy dog ACKED", "the quick brown fox ACKED"]


def messages_in(kafka: MockKafka, topic: str) -> int:
    """Return the number of messages in all partitions of ``topic``."""
    consumer = Consumer({"bootstrap.servers": kafka.servers, "group.id": "count"})
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    ends = [consumer.get_watermark_offsets(partition, timeout=10)[1] for partition in partitions]
    consumer.close()
    return sum(ends)


@pytest.mark.long
def test_the_programs_of_two_jobs_ack_a_record_once_the_second_has_written_it(
    tmp_path: Path, start_server: Callable[..., Any]
) -> None:
    address = start_server().address
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    (tmp_path / "first" / "sales").mkdir()
    (tmp_path / "first" / "sales" / "monday.jsonl").write_text("one\ntwo\n")
    with MockKafka() as kafka:
        kafka.create("sales")
        paths = [
            program('hand_on("sales"', tmp_path / "first", address),
            program("acks_upstream=True", tmp_path / "second", address),
        ]
        for path in paths:
            path.write_text(path.read_text().replace("localhost:9092", kafka.servers))
        with start(paths[0]) as first:
            try:
                eventually(lambda: first.poll() is not None or messages_in(kafka, "sales") == 2, 240)
                assert first.poll() is None, first.communicate()[1]
                run(paths[1])
                out, errors = first.communicate(timeout=120)
            finally:
                first.kill()
    assert first.returncode == 0, errors
    assert re.search(r"acked +2 ", out)
    assert parquet_in(tmp_path / "second" / "sold", "sale") == [("one",), ("two",)]


def test_the_lines_of_a_group_of_drivers_run_as_they_stand(tmp_path: Path) -> None:
    names = runpy.run_path(str(program("ZooKeeperGroup(", tmp_path)))
    assert set(names["options"]) == {"name", "group", "checkpoint"}


def words() -> set[str]:
    """Return the words that tests pass to ``program`` to select an example."""
    calls = (node for node in ast.walk(ast.parse(Path(__file__).read_text())) if isinstance(node, ast.Call))
    given = (call.args[0] for call in calls if call.args and getattr(call.func, "id", "") == "program")
    found = {word.value for word in given if isinstance(word, ast.Constant)}
    # Run by tests/spark/test_examples.py and by tests/deploy/test_sidecar.py.
    return {str(word) for word in found} | {"def each_item", "start_http_server(7072)"}


def test_every_program_of_the_documents_is_run() -> None:
    for name, text in programs.programs().items():
        assert [word for word in words() if word in text], f"no test runs {name}"


def test_the_program_without_spark_runs_as_it_stands(
    tmp_path: Path, start_server: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    runpy.run_path(str(program('open_source("sentences")', tmp_path, start_server().address)))
    told = capsys.readouterr().out.splitlines()
    assert sorted(told) == ["jumps over ACKED", "the lazy dog ACKED", "the quick brown fox ACKED"]


@pytest.mark.long
@pytest.mark.jvm
def test_the_program_of_a_pipeline_runs_as_it_stands_under_a_pytest_of_its_own(tmp_path: Path) -> None:
    path = program("Pipeline()", tmp_path).rename(tmp_path / "test_orders.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def test_the_program_of_unit_tests_runs_as_it_stands(tmp_path: Path) -> None:
    runpy.run_path(str(program("LocalServer(", tmp_path)))
