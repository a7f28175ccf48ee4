"""A tracked Structured Streaming query over Spark's own Kafka connector, on a real Apache Kafka."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PATHS, ServerProcess
from tests.kafka.broker import RealKafka, connector
from tests.kafka.stream import MICRO_BATCHES, POISON

PROGRAM = Path(__file__).with_name("stream.py")
PARTITIONS = 4

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]


@pytest.mark.parametrize("rows", [40_000, 1_000_000])
def test_every_record_is_written_or_dead_at_each_commit_over_a_killed_worker_a_failed_write_and_a_stop(
    real_kafka: RealKafka, server_process: Callable[..., ServerProcess], tmp_path: Path, rows: int
) -> None:
    topic = real_kafka.new_topic(PARTITIONS)
    for partition in range(PARTITIONS):
        real_kafka.write(topic, partition, [b"%d" % number for number in range(partition, rows, PARTITIONS)])
    found = run(server_process().address, real_kafka.servers, topic, str(rows), str(tmp_path), connector())
    a_batch = rows // MICRO_BATCHES
    poison = a_batch // POISON
    assert found["killed"]
    assert "was stopped before every row" in found["stopped"]
    assert (found["committed_when_stopped"], found["rows_after_restart"]) == (2, 2 * a_batch)
    for number, commit in enumerate(found["commits"], 1):
        numbers = range(number * a_batch)
        good = [k for k in numbers if k % POISON != 13]
        assert commit["dead"] == sorted(set(numbers) - set(good))
        assert commit["written"] == [len(good), len(good), 0, 0, numbers[-1], 2 * sum(good)]
    # Again: the micro-batch whose write failed, the one that was stopped, and the poison. Nothing else.
    assert (len(found["commits"]), found["batches"]) == (
        MICRO_BATCHES,
        {
            f"{a_batch}, 0 of them again": MICRO_BATCHES + 1,
            f"{a_batch}, {a_batch} of them again": 1,
            f"{poison}, {poison} of them again": MICRO_BATCHES,
        },
    )


def run(*arguments: str) -> dict[str, Any]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*PATHS, os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, str(PROGRAM), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
