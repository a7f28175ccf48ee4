"""Deliberate faults for code in Spark's workers. Each happens once, in the task that reaches it first."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from pyspark import TaskContext

PATIENCE_S = 60.0


def first_time(folder: Path, name: str = "once") -> bool:
    """Return True to the first caller across all processes, by a file that only one of them can create."""
    try:
        os.close(os.open(folder / name, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def attempt_of(folder: Path, name: str) -> int:
    """Return how often this was called before, across all processes: 0, 1, 2 ..."""
    number = 0
    while not first_time(folder, f"{name}.{number}"):
        number += 1
    return number


def await_file(path: Path) -> None:
    """Wait until another process has made ``path``."""
    deadline = time.monotonic() + PATIENCE_S
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path} never came")
        time.sleep(0.005)


def task() -> TaskContext:
    """Return the context of the calling task."""
    context = TaskContext.get()
    assert context is not None
    return context


def kill_this_worker() -> None:
    """Send SIGKILL to this process, as the kernel does when memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)


def lose_shuffle_file(local_dir: Path) -> int:
    """Delete one map task's shuffle output under ``spark.local.dir``; return the number of deleted files."""
    found = sorted(local_dir.glob("**/shuffle_*_0.data"), key=lambda path: path.stat().st_mtime)
    for path in found[-1:]:
        path.unlink(missing_ok=True)
    return len(found[-1:])
