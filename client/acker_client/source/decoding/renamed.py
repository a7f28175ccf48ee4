"""Local files that may be renamed while they are read: the inode says which file it is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import BinaryIO

from acker_client.source.errors import InputChanged


def open_file(path: str, shown: str, inode: int | None) -> BinaryIO:
    """Open the local file at ``path``. With an ``inode``, open the file with that inode, also if it was renamed."""
    if inode is None:
        return open(path, "rb")
    for _ in range(10):  # it may be renamed again between the search and the open
        for candidate in _candidates(path, inode):
            try:
                file = open(candidate, "rb") if candidate else None  # noqa: SIM115 (the caller closes it)
            except FileNotFoundError:
                file = None
            if file is not None and os.fstat(file.fileno()).st_ino == inode:
                return file
            if file is not None:
                file.close()
    raise InputChanged(f"{shown} was removed before its lines were done: keep what was rotated until it has been read")


def _candidates(path: str, inode: int) -> Iterator[str | None]:
    yield path
    # Reads the folder, so it comes after the path was tried.
    yield paths_by_inode(os.path.dirname(path)).get(inode)


def paths_by_inode(folder: str) -> dict[int, str]:
    """Return the paths in ``folder`` by inode; nothing if it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return {entry.inode(): entry.path for entry in entries}
    except OSError:
        return {}
