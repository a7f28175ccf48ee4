"""Drivers over a million lines in S3: one is killed at ten random moments, and two run by mistake."""

from __future__ import annotations

import contextlib
import gzip
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from acker_client.source.checkpoints.content import Layout
from acker_client.source.put_back.store import read_files
from tests.source.s3_server import ENVIRONMENT, S3Server
from tests.spark.conftest import ROOT
from tests.spark.store_driver import POISON

LINES, OBJECTS, KILLS = 1_000_000, 40, 10
# A driver without an event is killed after this time, whatever it does.
IDLE_S = 40.0
POISON_LINES = {3, 400_000, 999_999}


def line(number: int) -> str:
    return f"{POISON if number in POISON_LINES else 'line'} {number}"


class Driver:
    """The program ``store_driver`` in a process group of its own, with the JVM and the workers that it starts."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.store_driver", *arguments],
            cwd=ROOT,
            env={**os.environ, **ENVIRONMENT},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.errors: list[str] = []
        self._reader = threading.Thread(target=self._read_errors)
        self._reader.start()

    def events(self) -> Iterator[str]:
        assert self.process.stdout is not None
        # Not `yield from`, which would close the file with the generator.
        for event in self.process.stdout:  # noqa: UP028
            yield event

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def end(self) -> tuple[int, str]:
        """Wait for the end; return the exit status and what the process has written to standard error."""
        assert self.process.stdout is not None
        for _ in self.process.stdout:
            pass
        status = self.process.wait()
        self._reader.join()
        self.process.stdout.close()
        return status, "".join(self.errors)

    def _read_errors(self) -> None:
        errors: IO[str] | None = self.process.stderr
        assert errors is not None
        self.errors.extend(errors)
        errors.close()


@pytest.mark.long
def test_a_driver_over_a_million_lines_in_s3_is_killed_at_ten_moments_and_two_run_by_mistake_and_nothing_is_lost(
    server_process: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    moments = random.Random(21)
    with S3Server() as s3:
        bucket = s3.new_bucket()
        for index in range(OBJECTS):
            numbers = range(index * LINES // OBJECTS, (index + 1) * LINES // OBJECTS)
            content = "".join(f"{line(number)}\n" for number in numbers).encode()
            suffix = ".gz" if index % 5 == 0 else ""
            s3.put(bucket, f"in/{index % 3}/{index:02}.txt{suffix}", gzip.compress(content) if suffix else content)
        arguments = (server_process().address, bucket, s3.query, str(tmp_path / "out"))

        for _ in range(KILLS):
            driver = Driver(*arguments)
            last = moments.randrange(5)
            # On a fast machine the earlier drivers may have done everything: then no event comes.
            idle = threading.Timer(IDLE_S, driver.kill)
            idle.start()
            for event, _line in enumerate(driver.events()):
                if event == last:
                    break
            idle.cancel()
            timer = threading.Timer(2 * moments.random(), driver.kill)
            timer.start()
            status, errors = driver.end()
            timer.join()
            assert status == -signal.SIGKILL, errors

        first = Driver(*arguments)
        next(first.events())
        second = Driver(*arguments)
        added = 0
        while second.process.poll() is None:
            # Both have something to commit, until the second one is told.
            s3.put(bucket, f"in/late/{added:04}.txt", f"late {added}\n")
            added += 1
            with contextlib.suppress(subprocess.TimeoutExpired):
                second.process.wait(1.0)
        status, errors = second.end()
        assert status == 1, errors
        assert "source 'objects' runs twice: another driver, " in errors
        assert "began before this one" in errors
        assert first.process.poll() is None
        while done_in(s3, bucket) < LINES + added:
            with contextlib.suppress(subprocess.TimeoutExpired):
                pytest.fail(f"the first driver ended with status {first.process.wait(1.0)}")
        first.process.send_signal(signal.SIGTERM)
        status, errors = first.end()
        assert status == 0, errors

        written = Counter(
            value for path in (tmp_path / "out").glob("part-*") for value in path.read_text().splitlines()
        )
        expected = {line(number) for number in range(LINES)} | {f"late {number}" for number in range(added)}
        poisons = {line(number) for number in POISON_LINES}
        assert written.keys() == expected - poisons
        dead = [
            each.letter.value.decode()
            for _, lines in read_files(f"s3://{bucket}/dead{s3.query}")
            for each in lines
            if each.letter is not None and isinstance(each.letter.value, bytes)
        ]
        assert set(dead) == poisons
        assert done_in(s3, bucket) == LINES + added
        again = sum(written.values()) - len(written)
        print(f"\n{KILLS} kills and a second driver; {again:,} of {len(expected):,} lines were written again")


def done_in(s3: S3Server, bucket: str) -> int:
    """Return how many records are done by the checkpoint."""
    layout = Layout("the checkpoint", "objects", "files", "", "")
    committed, _ = layout.parse(s3.get(bucket, "state/objects.ckpt"))
    return sum(int((each.done.stops - each.done.starts).sum()) for each in committed.values())
