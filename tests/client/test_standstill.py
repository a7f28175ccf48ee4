"""Stopping a process: all of its threads have stopped when the call returns."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from acker_testing import standstill

# Each thread raises its own count while it runs. Hashing 4096 bytes releases Python's lock (GIL), so all run at once.
PROGRAM = """
import hashlib, sys, threading
import numpy as np
counts = np.memmap(sys.argv[1], np.int64, "r+")
def count(at):
    while True:
        hashlib.sha256(bytes(4096))
        counts[at] += 1
for at in range(len(counts)):
    threading.Thread(target=count, args=(at,)).start()
"""


@contextmanager
def running(*arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", *map(str, arguments)], stdin=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.long
def test_no_thread_of_a_process_goes_on_after_it_was_stopped(tmp_path: Path) -> None:
    path = tmp_path / "counts"
    counts = np.memmap(path, np.int64, "w+", shape=(4,))
    with running(PROGRAM, path) as process:
        for _ in range(50):
            before = counts.copy()
            while not np.all(counts > before):
                assert process.poll() is None
                os.sched_yield()
            standstill.stop(process.pid)
            stopped = counts.copy()
            for _ in range(100):
                os.sched_yield()
            assert np.array_equal(counts, stopped)
            process.send_signal(signal.SIGCONT)


def test_a_process_that_stands_still_may_be_stopped_again() -> None:
    with running("input()") as process:
        for _ in range(2):
            standstill.stop(process.pid)


def test_a_process_that_has_ended_is_left_alone() -> None:
    with running("") as process:
        process.wait()
        standstill.stop_child(process)
