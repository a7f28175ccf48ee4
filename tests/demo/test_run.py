"""Whole runs of the demo: servers, Spark, every fault, and the exit status."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from acker_command.demo.faults import OF_SEVERAL_SERVERS, strikes

RECORDS = "600"

# The sink's write silently drops one word. Its rows were read, so the acker acks them.
SABOTAGED = """
from acker_command.demo import command, pipeline

write = pipeline._write

def write_less(rows, *more):
    write(rows.where("word <> 'return'"), *more)

pipeline._write = write_less
command.demo()
"""


def run(command: Sequence[str], *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command, *options], capture_output=True, text=True, timeout=280, check=False
    )


@pytest.mark.long
@pytest.mark.jvm
def test_every_record_has_its_answer_and_no_ack_is_false_whatever_breaks(tmp_path: Path) -> None:
    keep = tmp_path / "kept"
    ran = run(["-m", "acker_command"], "demo", "--records", RECORDS, "--json", "--keep", str(keep))
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    assert told["records"] == told["acked"] + told["dead_lettered"] == int(RECORDS)
    assert (told["lost"], told["false_acks"], told["wrong_counts"], told["broken"]) == (0, 0, 0, [])
    assert told["faults"] == {strike.name.lower(): True for strike in strikes(1)}
    assert told["dead_lettered"] == len((keep / "dead.jsonl").read_text().splitlines()) > 0
    assert told["replayed"] > 0
    assert all(strike.value in ran.stderr for strike in strikes(1))


@pytest.mark.long
@pytest.mark.jvm
@pytest.mark.parametrize(("source", "servers"), [("kafka", 3), ("kinesis", 1), ("frame", 3)])
def test_whatever_the_lines_are_read_from_no_ack_is_false_and_the_checkpoint_ends_at_the_end(
    tmp_path: Path, source: str, servers: int
) -> None:
    keep = tmp_path / "kept"
    options = ("--source", source, "--servers", str(servers), "--records", "900", "--json", "--keep", str(keep))
    ran = run(["-m", "acker_command"], "demo", *options)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["records"] == found["acked"] + found["dead_lettered"] == 900
    assert (found["lost"], found["false_acks"], found["wrong_counts"], found["broken"]) == (0, 0, 0, [])
    assert found["faults"] == {strike.name.lower(): True for strike in strikes(servers)}
    assert found["dead_lettered"] == len((keep / "dead.jsonl").read_text().splitlines()) > 0


@pytest.mark.jvm
@pytest.mark.parametrize(
    ("source", "batch_records"),
    [
        pytest.param("kafka", "45", marks=pytest.mark.long),
        pytest.param("frame", "20", marks=pytest.mark.long),
        pytest.param("kinesis", "45", marks=pytest.mark.long),
    ],
)
def test_a_line_that_is_not_utf_8_is_the_one_dead_letter_where_a_source_hands_on_bytes(
    tmp_path: Path, source: str, batch_records: str
) -> None:
    (tmp_path / "text").write_bytes(b"some words\n\nbad \xff words\n   \nmore words, words\n" + b"and so on\n" * 40)
    keep = tmp_path / "kept"
    options = ("--source", source, "--input", str(tmp_path / "text"), "--batch-records", batch_records, "--no-faults")
    ran = run(["-m", "acker_command"], "demo", *options, "--json", "--keep", str(keep))
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert (found["acked"], found["dead_lettered"], found["broken"]) == (44, 1, [])
    (letter,) = map(json.loads, (keep / "dead.jsonl").read_text().splitlines())
    assert "UnicodeDecodeError" in letter["reason"]


@pytest.mark.long
@pytest.mark.jvm
def test_servers_that_die_come_go_and_restart_under_the_job_cost_no_replay_where_each_record_is_on_two(
    tmp_path: Path,
) -> None:
    options = ("--servers", "3", "--replicas", "2", "--records", "900", "--json")
    ran = run(["-m", "acker_command"], "demo", *options)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["faults"] == {strike.name.lower(): True for strike in strikes(3)}
    assert (found["lost"], found["false_acks"], found["broken"]) == (0, 0, [])
    assert {found["replayed_by_fault"][strike.name.lower()] for strike in OF_SEVERAL_SERVERS} == {0}
    assert "server 1, which drained, has ended by itself" in ran.stderr


@pytest.mark.long
@pytest.mark.jvm
def test_a_sink_that_drops_rows_is_found_out() -> None:
    ran = run(["-c", SABOTAGED], "--records", "300", "--batch-records", "300", "--no-faults", "--json")
    assert ran.returncode == 1, ran.stderr
    told = json.loads(ran.stdout)
    assert told["false_acks"] > 0
    assert told["wrong_counts"] == 1
    assert told["lost"] == 0


@pytest.mark.long
@pytest.mark.jvm
def test_ctrl_c_leaves_no_process_and_no_folder_behind(tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "acker_command", "demo", "--records", RECORDS]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True) as demo:
        assert demo.stderr is not None
        for line in demo.stderr:
            if "batches of" in line:
                break
        os.killpg(demo.pid, signal.SIGINT)
        rest = demo.stderr.read()
        assert demo.wait(60) == 130, rest
    assert "server and Spark are down" in rest
    assert "Traceback" not in rest
    assert not list(tmp_path.glob("acker-demo-*"))
    assert not processes_of(str(tmp_path), within_s=10)


def processes_of(mark: str, *, within_s: float) -> list[str]:
    """Wait until no command line contains ``mark``, at most ``within_s``. Returns those that still do."""
    deadline = time.monotonic() + within_s
    while found := [line for line in command_lines() if mark in line]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    return found


def command_lines() -> Iterator[str]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # the process has ended
            yield path.read_bytes().decode(errors="replace")
