"""Standstill: a process that answers nothing, though it is there.

Decides when it stands still: SIGSTOP is taken by one of its threads, and until that one gets a processor the others go
on, also with a call that comes after the signal.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

PAUSE_S = 0.001
# As /proc calls the state of a thread: stopped, stopped by a debugger, ended.
STILL = frozenset("TtZX")


def stop(pid: int) -> None:
    """SIGSTOP; returns when all threads of the process stand still (where there is no /proc, at once). Raises
    ProcessLookupError when there is no such process."""
    os.kill(pid, signal.SIGSTOP)
    while any(_runs(thread) for thread in Path(f"/proc/{pid}/task").glob("*")):
        time.sleep(PAUSE_S)


def stop_child(process: subprocess.Popen[Any]) -> None:
    """As :func:`stop`, for a process of this one's own; one that has ended is left alone."""
    if process.poll() is None:
        stop(process.pid)


def _runs(thread: Path) -> bool:
    try:
        return (thread / "stat").read_text().rpartition(")")[2].split()[0] not in STILL
    except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
        return False
