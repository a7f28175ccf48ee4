"""Container: how much memory this process may use. The only module that reads control groups.

Decides what a server takes for its memory if nobody says it: three quarters of the limit of its container, or half of
the machine's memory where there is no limit. The rest is head-room: for requests that arrive, for what an allocator
cannot use, and on a machine without a limit for other processes.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def default_memory(root: Path = Path("/"), machine_bytes: int | None = None) -> int:
    """Return the memory of a server in bytes. ``root``: where /proc and /sys are; ``machine_bytes``: of the machine."""
    if machine_bytes is None:
        machine_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = limit_bytes(root)
    # Version 1 writes a number near 2^63 for no limit.
    return machine_bytes // 2 if limit is None or limit >= machine_bytes else limit * 3 // 4


def limit_bytes(root: Path) -> int | None:
    """Return the smallest limit of the control groups that this process is in; None if there is none."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    limits = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            limits += _limits(root / "sys/fs/cgroup", path, "memory.max")
        elif "memory" in controllers.split(","):
            limits += _limits(root / "sys/fs/cgroup/memory", path, "memory.limit_in_bytes")
    return min(limits, default=None)


def _limits(mount: Path, path: str, name: str) -> list[int]:
    """Return the limits of a group and of the groups that it is in. A container may see its own group as the mount."""
    group, limits = mount / path.strip("/"), []
    for each in (group, *group.parents):
        # Without such a file, the group has no such controller, or the container does not see it. "max" is no limit.
        with contextlib.suppress(OSError, ValueError):
            limits.append(int((each / name).read_text()))
        if each == mount:
            break
    return limits
