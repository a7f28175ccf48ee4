"""The README's programs run as they stand."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.packaging import programs

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


@pytest.mark.spark
def test_the_first_program_runs_as_it_stands_in_a_process_of_its_own(
    tmp_path: Path, start_server: Callable[..., Any]
) -> None:
    import pyarrow.parquet

    (tmp_path / "orders").mkdir()
    (tmp_path / "orders" / "monday.jsonl").write_text(ORDERS)
    first = program("Files(", tmp_path, start_server().address)
    # As in an activated environment.
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["python", first], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stderr
    rows = pyarrow.parquet.read_table(tmp_path / "out").to_pylist()
    assert sorted((row["sku"], row["qty"]) for row in rows) == [("apple", 2), ("pear", 1), ("plum", 7)]
    assert {Path(row["path"]).name for row in rows} == {"monday.jsonl"}


@pytest.mark.spark
def test_the_program_of_kafka_runs_as_it_stands_in_a_process_of_its_own(
    tmp_path: Path, start_server: Callable[..., Any]
) -> None:
    import pyarrow.parquet

    from tests.source.kafka_broker import MockKafka

    with MockKafka() as kafka:
        kafka.create("orders")
        kafka.write("orders", 1, [line.encode() for line in ORDERS.splitlines() if line])
        path = program('Kafka("orders"', tmp_path, start_server().address)
        path.write_text(path.read_text().replace("localhost:9092", kafka.servers))
        environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
        done = subprocess.run(
            ["python", path], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=240
        )
        assert done.returncode == 0, done.stderr
        assert kafka.committed("orders", "orders")[1][0] == 2
    rows = pyarrow.parquet.read_table(tmp_path / "out").to_pylist()
    assert sorted((row["offset"], row["sku"], row["qty"]) for row in rows) == [
        (0, "apple", 2),
        (0, "pear", 1),
        (1, "plum", 7),
    ]


def test_the_program_without_spark_runs_as_it_stands(
    tmp_path: Path, start_server: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    runpy.run_path(str(program('open_source("sentences")', tmp_path, start_server().address)))
    told = capsys.readouterr().out.splitlines()
    assert sorted(told) == ["jumps over ACKED", "the lazy dog ACKED", "the quick brown fox ACKED"]


@pytest.mark.spark
def test_the_program_of_a_pipeline_runs_as_it_stands_under_a_pytest_of_its_own(tmp_path: Path) -> None:
    path = program("Pipeline()", tmp_path).rename(tmp_path / "test_orders.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def test_the_program_of_unit_tests_runs_as_it_stands(tmp_path: Path) -> None:
    runpy.run_path(str(program("LocalServer(", tmp_path)))
