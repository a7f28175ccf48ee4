"""Advice for files that cannot be read or written; durable and private creation of files."""

from __future__ import annotations

import errno
import os
from pathlib import Path

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
_MISSING = (errno.ENOENT, errno.ENOTDIR)


def to_write(error: OSError) -> str:
    """Return advice for a file that cannot be opened for writing, or written."""
    if error.errno in _FULL:
        return "make room, or name a file elsewhere"
    if error.errno in _FORBIDDEN:
        return "give this user the right to write there, or name a file elsewhere"
    if error.errno in _MISSING:
        return "create its directory, or name a file elsewhere"
    return "name a file elsewhere"


def to_read(error: OSError) -> str:
    """Return advice for a file that cannot be opened for reading, or read."""
    if error.errno in _FORBIDDEN:
        return "give this user the right to read it"
    return "bring it back, or name another"


def sync_directory(path: Path) -> None:
    """Make the directory entry of a created or renamed file durable. Its content needs an ``fsync`` of its own."""
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def open_private(path: str, flags: int) -> int:
    """Open a file, as an ``opener``. A file that this creates belongs to this user alone (0600)."""
    return os.open(path, flags, 0o600)
