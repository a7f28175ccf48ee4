"""Reads the bytes of a part: from a local file, from one that was renamed, from an object in a store, or from a gz.

A local file is read at its path. If that path now has another inode, the file with the right inode in the same folder
is read, provided that it begins with all that was read of the file: a new file may get the inode of a removed one. An
object is read only if it still has its tag, before the read and after it. A file that is missing or has changed is an
error; other bytes are never returned.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO, Protocol

from acker_client.source.decoding.gz import STREAMS, Damaged, Packed, Unpacked, digest_of
from acker_client.source.decoding.renamed import open_file
from acker_client.source.disk import to_read
from acker_client.source.errors import InputChanged
from acker_client.source.storage.store import Opened, Store
from acker_client.source.waiting import outlast

# A local file counts as unchanged if its first bytes and the last bytes before a position are the same.
MARK_BYTES = 1024
# How long a read waits for a store that is away.
READ_S = 60.0


class NotHere(InputChanged):
    """A local file is missing. ``shown``: its path as the user wrote it."""

    def __init__(self, message: str, shown: str) -> None:
        super().__init__(message)
        self.shown = shown


class Content(Protocol):
    """Where the bytes of one file are, and what recognizes them. Picklable, and small."""

    @property
    def path(self) -> str: ...

    @property
    def may_grow(self) -> bool:
        """Whether lines may be added to the file. Otherwise it is complete as it is."""
        ...

    def open(self, shown: str) -> BinaryIO:
        """Open the file. Raises ``InputChanged`` if it is not there or is another one now, ``OutOfReach`` if its store
        is away. ``shown``: its path for errors."""
        ...

    def check_same(self, shown: str) -> None:
        """Raise ``InputChanged`` if bytes that were read since ``open`` may be those of another file."""
        ...

    def digest(self, file: BinaryIO, position: int) -> str:
        """Return what recognizes the bytes of an open file before ``position``."""
        ...

    def digest_at(self, position: int, shown: str) -> str:
        """Return what ``digest`` returns of the file. Raises ``InputChanged`` as ``open`` does."""
        ...

    def digest_of_gz(self, file: BinaryIO) -> str:
        """Return what recognizes an open gz."""
        ...

    def version(self, file: BinaryIO) -> object:
        """Return something that differs once the open file was written to."""
        ...


@dataclass(frozen=True, slots=True)
class LocalContent:
    """A local file. ``inode`` identifies a file that may be renamed; ``path`` is where it was last seen. ``sealed``: a
    position and the digest of the bytes before it, which the file must still have; no digest: it is not compared."""

    path: str
    inode: int | None = None
    sealed: tuple[int, str] = (0, "")

    @property
    def may_grow(self) -> bool:
        return True

    def open(self, shown: str) -> BinaryIO:
        position, digest = self.sealed
        try:
            file = open_file(self.path, shown, self.inode)
            if not digest or self.digest(file, position) == digest:
                return file
        except OSError as error:
            raise unreadable(error, str(error.strerror), shown) from None
        file.close()
        raise InputChanged(
            f"{shown} was removed or written anew before its lines were done: keep what was rotated until it has been"
            " read"
        )

    def check_same(self, shown: str) -> None:
        """Do nothing: lines may be added while a file is read, and the reader counts the lines."""

    def digest(self, file: BinaryIO, position: int) -> str:
        file.seek(0)
        head = file.read(min(MARK_BYTES, position))
        file.seek(max(0, position - MARK_BYTES))
        tail = file.read(min(MARK_BYTES, position))
        return hashlib.blake2b(head + tail, digest_size=16).hexdigest()

    def digest_at(self, position: int, shown: str) -> str:
        with self.open(shown) as file:
            return self.digest(file, position)

    def digest_of_gz(self, file: BinaryIO) -> str:
        return digest_of(file)

    def version(self, file: BinaryIO) -> object:
        stat = os.fstat(file.fileno())
        return stat.st_size, stat.st_mtime_ns


@dataclass(frozen=True, slots=True)
class StoredContent:
    """The object at ``path`` of a store that has this ``tag``."""

    store: Store
    path: str
    tag: str

    @property
    def may_grow(self) -> bool:
        return False

    def open(self, shown: str) -> BinaryIO:
        return self._open(shown).buffered()

    def open_unbuffered(self, shown: str) -> AbstractContextManager[Any]:
        """Open the object as a file of pyarrow. Raises as ``open`` does."""
        return self._open(shown).native()

    def _open(self, shown: str) -> Opened:
        opened = self.store.open(self.path)
        if opened.tag != self.tag:
            opened.close()
            raise replaced(shown)
        return opened

    def check_same(self, shown: str) -> None:
        if self.store.tag(self.path) != self.tag:
            raise replaced(shown)

    def digest(self, file: BinaryIO, position: int) -> str:
        return self.tag

    def digest_at(self, position: int, shown: str) -> str:
        return self.tag

    def digest_of_gz(self, file: BinaryIO) -> str:
        return self.tag

    def version(self, file: BinaryIO) -> object:
        return self.tag

    def read(self, shown: str, start: int, stop: int) -> bytes:
        """Return bytes ``start`` to ``stop``, in one range."""
        with self._open(shown) as opened:
            content = opened.read_at(start, stop)
        self.check_same(shown)
        return content


@dataclass(frozen=True, slots=True)
class LinePart:
    """Whole lines of one file: lines ``start`` to ``stop``, counted from 0.

    The lines are bytes ``first_byte`` to ``stop_byte`` of the content. ``partition``: the file's absolute path or URL.
    ``shown``: the path as the user wrote it. ``at``: where the file is; None: at the path ``partition``. ``packed``:
    how to reach the part in a gz; None for a plain file.
    """

    partition: str
    shown: str
    start: int
    stop: int
    first_byte: int
    stop_byte: int
    at: Content | None = None
    packed: Packed | None = None

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def content(self) -> Content:
        return self.at or LocalContent(self.partition)


def read_content(part: LinePart, start: int, stop: int) -> bytes:
    """Return bytes ``start`` to ``stop`` of a file's content, or fewer at its end. Raises ``InputChanged``, and
    ``OutOfReach`` if its store is away for longer than ``READ_S``."""
    if isinstance(part.at, StoredContent):
        return outlast(partial(_read_stored, part, part.at, start, stop), part.shown, READ_S)
    if part.packed is not None:
        return _unpacked(part, part.packed, start, stop)
    with part.content.open(part.shown) as file:
        try:
            file.seek(start)
            return file.read(stop - start)
        except OSError as error:
            raise InputChanged(f"{part.shown} cannot be read any more ({error.strerror}): {to_read(error)}") from None


def _read_stored(part: LinePart, content: StoredContent, start: int, stop: int) -> bytes:
    if part.packed is None:
        return content.read(part.shown, start, stop)
    unpacked = _unpacked(part, part.packed, start, stop)
    content.check_same(part.shown)
    return unpacked


@contextmanager
def on_other_machines(driver: str) -> Iterator[None]:
    """Name both machines if a local file that the driver has is missing on this one. ``driver``: the driver's host."""
    try:
        yield
    except NotHere as missing:
        here = platform.node()
        if here == driver:
            raise
        raise InputChanged(
            f"{missing.shown} is on {driver}, where the driver runs, and not on {here}, where an executor reads it: put"
            " it where every machine has it under this path (a shared volume), or into an object store, like"
            " s3://bucket/key"
        ) from None


def size_of(file: BinaryIO) -> int:
    """Return the size of an open file. Moves nothing, so that a buffer keeps what it holds."""
    raw = getattr(file, "raw", None)
    return raw.size if isinstance(raw, Opened) else os.fstat(file.fileno()).st_size


def location_of(content: Content, is_renamed: bool) -> Mapping[str, Any]:
    """Return the part of a mark that locates a local file that may be renamed; nothing for others."""
    if not isinstance(content, LocalContent) or content.inode is None:
        return {}
    return {"path": content.path, "inode": content.inode, **({"renamed": True} if is_renamed else {})}


def _unpacked(part: LinePart, packed: Packed, start: int, stop: int) -> bytes:
    path = part.content.path
    stream = STREAMS.take_stream(path, packed.digest, start) or _stream(part, packed)
    try:
        stream.skip_to(start)
        content = stream.read_all(stop - start)
    except (OSError, Damaged) as error:
        stream.close()
        raise InputChanged(f"{part.shown} cannot be unpacked any more ({error}): bring it back as it was") from None
    except BaseException:
        stream.close()
        raise
    STREAMS.put_back(path, packed.digest, stream)
    return content


def _stream(part: LinePart, packed: Packed) -> Unpacked:
    file = part.content.open(part.shown)
    if part.content.digest_of_gz(file) != packed.digest:
        file.close()
        raise replaced(part.shown)
    return Unpacked(file, packed.entry)


def unreadable(error: OSError, what: str, shown: str) -> InputChanged:
    """Return the error for a local file that cannot be opened. ``what`` says why."""
    message = f"{shown} cannot be read ({what}): {to_read(error)}"
    return NotHere(message, shown) if isinstance(error, FileNotFoundError) else InputChanged(message)


def replaced(shown: str) -> InputChanged:
    """Return the error for a file that is not the one of which the records were counted."""
    return InputChanged(f"{shown} has changed since its records were counted: write a new file beside it instead")
