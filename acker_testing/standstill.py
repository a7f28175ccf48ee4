"""Standstill: a process that answers nothing, though it is there.

Decides when it stands still: SIGSTOP is taken by one of its threads, and until that one gets a processor the others go
on, also with a call that comes after the signal.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

PAUSE_S = 0.001
# As /proc calls the state of a thread: stopped, stopped by a debugger, ended.
STILL = frozenset("TtZX")


def stop(pid: int) -> None:
    """SIGSTOP; returns when all threads of the process stand still (where there is no /proc, at once)."""
    os.kill(pid, signal.SIGSTOP)
    while any(_runs(thread) for thread in Path(f"/proc/{pid}/task").glob("*")):
        time.sleep(PAUSE_S)


def _runs(thread: Path) -> bool:
    try:
        return (thread / "stat").read_text().rpartition(")")[2].split()[0] not in STILL
    except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
        return False
