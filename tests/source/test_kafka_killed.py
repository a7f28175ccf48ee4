"""A driver over Kafka, killed with -9 at random moments while records end in any order."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.source.kafka_broker import ROOT, MockKafka

Place = tuple[int, int]


def run(kafka: MockKafka, topic: str, folder: Path, checkpoint: str, batch: int, killed_at: int | None) -> bool:
    """Run a driver, and kill it at its event number ``killed_at`` (None: never). Return whether it ended by itself."""
    command = [sys.executable, "-m", "tests.source.kafka_driver", kafka.servers, topic, str(folder), checkpoint]
    driver = subprocess.Popen(
        [*command, str(batch)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    )
    assert driver.stdout is not None
    assert driver.stderr is not None
    for event, _ in enumerate(driver.stdout):
        if event == killed_at:
            driver.kill()
    errors = driver.stderr.read()
    driver.stdout.close()
    driver.stderr.close()
    status = driver.wait()
    assert status in (0, -9), errors
    return status == 0


def noted(folder: Path, name: str, at: int = 0) -> tuple[list[Place], int]:
    """Return the records in a file from byte ``at`` on, and the byte where they end."""
    content = (folder / name).read_bytes() if (folder / name).exists() else b""
    lines = content[at:].decode().splitlines()
    return [(int(partition), int(offset)) for partition, offset in map(str.split, lines)], len(content)


def kill_and_check(
    kafka: MockKafka, folder: Path, counts: list[int], checkpoint: str, batch: int, moment: Callable[[int], int | None]
) -> list[int]:
    """Run a driver, killed at event ``moment(run)``, until it ends by itself. Return for each run how many records were
    emitted again though they had ended."""
    folder.mkdir()
    topic = kafka.new_topic(*counts)
    ended: set[Place] = set()
    emitted_at = ended_at = number = 0
    again: list[int] = []
    is_over = False
    while not is_over:
        is_over = run(kafka, topic, folder, checkpoint, batch, moment(number))
        emitted, emitted_at = noted(folder, "emitted", emitted_at)
        assert len(set(emitted)) == len(emitted)
        again.append(len(set(emitted) & ended))
        more, ended_at = noted(folder, "ended", ended_at)
        ended |= set(more)
        number += 1
    assert ended == {(partition, offset) for partition, count in enumerate(counts) for offset in range(count)}
    # At most the records that ended after the last commit before the kill. There is a commit after each batch.
    assert max(again) <= batch
    return again


@pytest.mark.long
@pytest.mark.parametrize("checkpoint", ["file", "kafka"])
def test_after_a_kill_nothing_is_lost_and_only_what_had_no_outcome_is_emitted_again_plus_one_commit(
    kafka: MockKafka, tmp_path: Path, checkpoint: str
) -> None:
    moments = random.Random(checkpoint)
    kill_and_check(
        kafka,
        tmp_path / f"killed-{checkpoint}",
        [500, 300, 100, 200],
        checkpoint,
        100,
        lambda number: moments.randrange(2, 40) if number < 3 else None,
    )


@pytest.mark.long
def test_after_fifty_kills_over_200_000_records_nothing_is_lost_and_repeats_are_bounded(
    kafka: MockKafka, tmp_path: Path
) -> None:
    moments, batch = random.Random(50), 2_000
    again = kill_and_check(
        kafka,
        tmp_path / "killed-often",
        [50_000] * 4,
        "file",
        batch,
        lambda number: moments.randrange(1, 12) if number < 50 else None,
    )
    assert len(again) == 51
    print(f"\n{len(again) - 1} kills; emitted again though they had ended, run by run: {again}; bound {batch}")
