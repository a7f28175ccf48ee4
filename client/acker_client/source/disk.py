"""Advice for files that cannot be read or written, and for URLs; durable and private creation of files."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
_MISSING = (errno.ENOENT, errno.ENOTDIR)
# A scheme has at least two characters: one letter is a drive of Windows.
_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+:)/+(?P<rest>.*)", re.DOTALL)


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


def to_mount(path: str) -> str:
    """Return advice for a URL that was given in place of a path; "" for a path."""
    url = _URL.fullmatch(path)
    if url is None or os.path.isdir(url["scheme"]):
        return ""
    scheme, rest = url["scheme"].lower(), url["rest"]
    if scheme == "file:":
        return f"write {'/' + rest!r}"
    if scheme == "dbfs:":
        mounted = f"/{rest}" if rest.startswith("Volumes/") else f"/dbfs/{rest}"
        return f"write {mounted!r}, where Databricks mounts it"
    return "mount it and write the path (on Databricks /Volumes/... or /dbfs/mnt/...), or copy it to a local path first"


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
