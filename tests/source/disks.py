"""Full and forbidden disks, made with permissions, resource limits and ``/dev/full``."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65534


@contextmanager
def without_rights() -> Iterator[None]:
    """Apply permissions even if the tests run as root."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


@contextmanager
def forbidden(folder: Path) -> Iterator[None]:
    """Forbid to create or open anything in ``folder``."""
    folder.chmod(0o500)
    try:
        with without_rights():
            yield
    finally:
        folder.chmod(0o700)


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """Limit files to ``size`` bytes. A write across the limit is a partial write."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def full(path: Path) -> Path:
    """Put ``path`` on a full device and return it. The file opens, but no byte can be written."""
    path.symlink_to("/dev/full")
    return path
