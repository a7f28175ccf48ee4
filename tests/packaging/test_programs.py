"""The README's programs run as they stand."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from acker_client.source import DeadLetter
from acker_client.source.dead_letters.letters_file import DeadLetterFile
from tests.packaging import programs
from tests.service.caller import eventually
from tests.source.kafka_broker import MockKafka
from tests.source.kinesis_server import ENVIRONMENT, KinesisServer

ORDERS = """\
{"items": [{"sku": "apple", "qty": 2}, {"sku": "pear", "qty": 1}]}

{"items": [{"sku": "plum", "qty": 7}]}
"""


def program(word: str, folder: Path, address: str = "localhost:7070") -> Path:
    """The README's one program that holds ``word``, as a file, its server where ours is."""
    (text,) = (text for text in programs.programs() if word in text)
    path = folder / "program.py"
    path.write_text(text.replace("localhost:7070", address))
    return path


def environment() -> dict[str, str]:
    """As in an activated environment."""
    return os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def run(path: Path, **settings: str) -> str:
    """Run a program in its folder, in a process of its own: what it says."""
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
def test_the_first_program_runs_as_it_stands_in_a_process_of_its_own(
    tmp_path: Path, start_server: Callable[..., Any]
) -> None:
    import pyarrow.parquet

    (tmp_path / "orders").mkdir()
    (tmp_path / "orders" / "monday.jsonl").write_text(ORDERS)
    run(program("orders/*.jsonl", tmp_path, start_server().address))
    rows = pyarrow.parquet.read_table(tmp_path / "out").to_pylist()
    assert sorted((row["sku"], row["qty"]) for row in rows) == [("apple", 2), ("pear", 1), ("plum", 7)]
    assert {Path(row["path"]).name for row in rows} == {"monday.jsonl"}


@pytest.mark.long
@pytest.mark.jvm
def test_the_program_of_a_stream_runs_as_it_stands(tmp_path: Path, start_server: Callable[..., Any]) -> None:
    import pyarrow.parquet

    (tmp_path / "notes").mkdir()
    for number, note in enumerate(('{"items": [{"sku": "pear"}, {"sku": "plum"}]}', "no JSON")):
        (tmp_path / "notes" / f"{number}.json").write_text(json.dumps({"id": number, "note": note}))
    run(program("tracked(", tmp_path, start_server().address))
    rows = pyarrow.parquet.read_table(tmp_path / "skus").to_pylist()
    assert sorted((row["id"], row["sku"]) for row in rows) == [(0, "pear"), (0, "plum")]
    (letter,) = map(json.loads, (tmp_path / "notes.dead").open())
    assert (letter["key"], letter["value"]) == ({"id": 1}, {"id": 1, "note": "no JSON"})


@pytest.mark.long
@pytest.mark.jvm
def test_the_program_of_kinesis_runs_as_it_stands_in_a_process_of_its_own(
    tmp_path: Path, start_server: Callable[..., Any]
) -> None:
    import pyarrow.parquet

    path = program("Kinesis(", tmp_path, start_server().address)
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
def test_the_program_of_kafka_runs_as_it_stands_in_a_process_of_its_own(
    tmp_path: Path, start_server: Callable[..., Any]
) -> None:
    import pyarrow.parquet

    with MockKafka() as kafka:
        kafka.create("orders")
        kafka.write("orders", 1, [line.encode() for line in ORDERS.splitlines() if line])
        path = program('Kafka("orders"', tmp_path, start_server().address)
        path.write_text(path.read_text().replace("localhost:9092", kafka.servers))
        run(path)
        assert kafka.committed("orders", "orders")[1][0] == 2
    rows = pyarrow.parquet.read_table(tmp_path / "out").to_pylist()
    assert sorted((row["offset"], row["sku"], row["qty"]) for row in rows) == [
        (0, "apple", 2),
        (0, "pear", 1),
        (1, "plum", 7),
    ]


@cache
def rows_of(paths: tuple[Path, ...]) -> list[dict[str, Any]]:
    import pyarrow.parquet

    return [row for path in paths for row in pyarrow.parquet.read_table(path).to_pylist()]


def rows_in(folder: Path) -> list[dict[str, Any]]:
    """What Spark has committed there so far."""
    return rows_of(tuple(folder.glob("*.parquet")))


@pytest.mark.long
@pytest.mark.jvm
def test_the_program_of_files_that_grow_reads_on_through_a_rotation_and_ends_at_a_signal(
    tmp_path: Path, start_server: Callable[..., Any]
) -> None:
    log = tmp_path / "logs" / "app.log"
    log.parent.mkdir()
    log.write_text("fine\nERROR 1\nERR")
    path = program("follow_s=2.0", tmp_path, start_server().address)
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
def test_the_commands_and_the_program_of_dead_letters_try_one_again(
    tmp_path: Path, start_server: Callable[..., Any]
) -> None:
    origin = {"path": "orders/monday.jsonl", "line": 3, "byte": 70}
    value, reason = b'{"items": [{"sku": "kiwi"}]}', "items: KeyError: 'qty'"
    letters = DeadLetterFile(tmp_path / "dead.jsonl")
    letters.write([DeadLetter("orders", reason, 4, 0, 1_700_000_000.0, 1_700_000_060.0, origin, value)])
    letters.close()
    readme = programs.README.read_text()
    (commands,) = re.findall(r"^```sh\n(acker dead-letters .*?)^```$", readme, re.MULTILINE | re.DOTALL)
    options: dict[str, Any] = {"cwd": tmp_path, "env": environment(), "capture_output": True, "text": True}
    shown = subprocess.run(["sh", "-e", "-c", commands], check=True, **options).stdout
    assert "1 put back into again.jsonl, 0 left in dead.jsonl" in shown
    again = program("PutBack(", tmp_path, start_server().address)
    run(again)
    assert rows_in(tmp_path / "out") == [{"sku": "kiwi", "qty": 1, "path": "orders/monday.jsonl", "line": 3}]


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
