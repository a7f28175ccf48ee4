"""Reads the bytes of a part: from a file, from a file that was renamed, or from a gz.

Reads the file at the part's path. If that path now has another inode, it reads the file with the right inode in the
same folder. A file that is missing or has changed is an error; other bytes are never returned.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import BinaryIO

from acker_client.source.decoding.gz import STREAMS, Damaged, Packed, Unpacked, digest_of
from acker_client.source.errors import InputChanged


@dataclass(frozen=True, slots=True)
class LinePart:
    """Whole lines of one file: lines ``start`` to ``stop``, counted from 0.

    The lines are bytes ``first_byte`` to ``stop_byte`` of the content. ``partition``: the file's absolute path.
    ``shown``: the path as the user wrote it. For a file that may be renamed, ``inode`` identifies it, and ``path`` is
    where the file was last seen. ``packed``: how to reach the part in a gz; None for a plain file.
    """

    partition: str
    shown: str
    start: int
    stop: int
    first_byte: int
    stop_byte: int
    path: str = ""
    inode: int | None = None
    packed: Packed | None = None

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def file(self) -> str:
        """The path to read."""
        return self.path or self.partition


def read_content(part: LinePart, start: int, stop: int) -> bytes:
    """Return bytes ``start`` to ``stop`` of a file's content, or fewer at its end. Raises :class:`InputChanged`."""
    if part.packed is not None:
        return _unpacked(part, part.packed, start, stop)
    try:
        with open_part(part) as file:
            file.seek(start)
            return file.read(stop - start)
    except OSError as error:
        raise _unreadable(part.file, part.shown, error) from None


def read_bytes(path: str, shown: str, start: int, stop: int) -> bytes:
    """Return bytes of a file, or fewer at its end. Raises :class:`InputChanged` if it cannot be read."""
    try:
        with open(path, "rb") as file:
            file.seek(start)
            return file.read(stop - start)
    except OSError as error:
        raise _unreadable(path, shown, error) from None


def open_part(part: LinePart) -> BinaryIO:
    """Open the part's file. Raises ``OSError`` as ``open`` does, ``InputChanged`` if another file is there now."""
    return open_file(part.file, part.shown, part.inode)


def open_file(path: str, shown: str, inode: int | None) -> BinaryIO:
    """Open the file at ``path``. With an ``inode``, open the file with that inode, also if it was renamed."""
    if inode is None:
        return open(path, "rb")
    for _ in range(10):  # it may be renamed again between the search and the open
        for candidate in (path, renamed(path, inode)):
            try:
                file = open(candidate, "rb") if candidate else None  # noqa: SIM115 (the caller closes it)
            except FileNotFoundError:
                file = None
            if file is not None and os.fstat(file.fileno()).st_ino == inode:
                return file
            if file is not None:
                file.close()
    raise InputChanged(f"{shown} was removed before its lines were done: keep what was rotated until it has been read")


def renamed(path: str, inode: int) -> str | None:
    """Return the path of the file with ``inode`` in the folder of ``path``; None if it is not there."""
    folder = os.path.dirname(path)
    try:
        with os.scandir(folder) as entries:
            return next((os.path.join(folder, entry.name) for entry in entries if entry.inode() == inode), None)
    except OSError:
        return None


def paths_by_inode(folder: str) -> dict[int, str]:
    """Return the paths in ``folder`` by inode; nothing if it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return {entry.inode(): entry.path for entry in entries}
    except OSError:
        return {}


def _unpacked(part: LinePart, packed: Packed, start: int, stop: int) -> bytes:
    stream = STREAMS.take_stream(part.file, packed.digest, start) or _stream(part, packed)
    try:
        stream.skip_to(start)
        content = stream.read_all(stop - start)
    except (OSError, Damaged) as error:
        stream.close()
        raise InputChanged(f"{part.shown} cannot be unpacked any more ({error}): bring it back as it was") from None
    STREAMS.put_back(part.file, packed.digest, stream)
    return content


def _stream(part: LinePart, packed: Packed) -> Unpacked:
    try:
        file = open_part(part)
    except OSError as error:
        raise _unreadable(part.file, part.shown, error) from None
    if digest_of(file) != packed.digest:
        file.close()
        raise InputChanged(f"{part.shown} has changed since its lines were counted: write a new file beside it instead")
    return Unpacked(file, packed.entry)


def _unreadable(path: str, shown: str, error: OSError) -> InputChanged:
    return InputChanged(f"{shown} cannot be read any more: {error.strerror} ({path})")
