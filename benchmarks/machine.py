"""Machine: describes the machine that a figure was measured on, since a figure means nothing without it."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("acker", "numpy", "numba", "grpcio", "protobuf", "pyspark", "pyarrow", "pandas")


def describe() -> dict[str, str | int | float]:
    """Return processor, cores, memory, system, Python, and the versions of the packages that the figures depend on."""
    described: dict[str, str | int | float] = {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": platform.platform(),
        "python": sys.version.split()[0],
    }
    return described | {name: _version(name) for name in PACKAGES}


def status_mb(pid: int, field: str) -> float:
    """Return a figure of /proc/PID/status in MB; 0 if the process has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024 / 1e6
    return 0.0


def processor_s(pid: int) -> float:
    """Return the processor time of a process. Its clock has nanoseconds, and /proc only ticks."""
    return time.clock_gettime((~pid << 3) | 2)


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
