"""Disks that are full or forbidden, as the system itself has them."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65534


@contextmanager
def without_rights() -> Iterator[None]:
    """Permissions hold: whoever is root, and above them, is somebody else meanwhile."""
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
    """Nothing can be made or opened in ``folder``."""
    folder.chmod(0o500)
    try:
        with without_rights():
            yield
    finally:
        folder.chmod(0o700)


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """No file may grow beyond ``size`` bytes: what a write begins below and would end above is written in part."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def full(path: Path) -> Path:
    """``path``, on a device that has no room: it opens, and no byte can be written."""
    path.symlink_to("/dev/full")
    return path
