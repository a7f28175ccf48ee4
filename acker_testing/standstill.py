"""Standstill: stops a process, which then still exists but answers nothing.

Decides when the process counts as stopped. One of its threads takes SIGSTOP. Until that thread gets a processor, the
other threads continue, and may even answer a call that comes after the signal.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

PAUSE_S = 0.001
# States of a thread in /proc: stopped, stopped by a debugger, zombie, dead.
STILL = frozenset("TtZX")


def stop(pid: int) -> None:
    """Send SIGSTOP, and return when all threads have stopped (at once on systems without /proc).

    Raises ProcessLookupError if there is no such process.
    """
    os.kill(pid, signal.SIGSTOP)
    while any(_runs(thread) for thread in Path(f"/proc/{pid}/task").glob("*")):
        time.sleep(PAUSE_S)


def stop_child(process: subprocess.Popen[Any]) -> None:
    """Like :func:`stop`, for a child process; does nothing if it has ended."""
    if process.poll() is None:
        stop(process.pid)


def _runs(thread: Path) -> bool:
    try:
        return (thread / "stat").read_text().rpartition(")")[2].split()[0] not in STILL
    except (FileNotFoundError, ProcessLookupError):  # the thread has ended
        return False
