"""Unpacks gzip files from front to back in pieces, with bounded memory.

A complete gz consists of members, one after the other, each with the right checksum. Zeros may follow. Unpacking can
begin only at the beginning of a member. This module does not decide what a line is.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

# Tells zlib to expect a gzip header and to verify the checksum.
GZIP_BITS = 16 + zlib.MAX_WBITS
READ_BYTES = 64 << 10
# A gz counts as unchanged if its size, its first and its last EDGE_BYTES are the same. The last bytes hold checksums.
EDGE_BYTES = 1024
# The number of gz files that a process keeps open, so that the next batch goes on where the last one ended.
OPEN_MAX = 4


class Damaged(Exception):
    """The file is no gzip, or an incomplete one. The message says what is wrong."""


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """The beginning of a member of a gz: byte ``at`` of the file, and byte ``position`` of the content."""

    at: int = 0
    position: int = 0


@dataclass(frozen=True, slots=True)
class Packed:
    """How to reach a part of a gz: unpack from ``entry`` on, in the file with this ``digest``."""

    digest: str
    entry: EntryPoint


class Unpacked:
    """The content of a gz. ``position``: the position of the next byte. ``entry``: the member that contains it."""

    __slots__ = ("_file", "_left", "_member", "entry", "position")

    def __init__(self, file: BinaryIO, entry: EntryPoint) -> None:
        file.seek(entry.at)
        self._file = file
        self._left = b""
        self._member: zlib._Decompress | None = None
        self.entry = entry
        self.position = entry.position

    def read(self, count: int) -> bytes:
        """Return between one and ``count`` bytes; no bytes at the end. Raises :class:`Damaged`."""
        while self._member is not None or self._begin_member():
            content = self._unpack(count)
            if content:
                self.position += len(content)
                return content
        return b""

    def read_all(self, count: int) -> bytes:
        """Return ``count`` bytes, fewer only at the end."""
        pieces = []
        while count and (content := self.read(count)):
            pieces.append(content)
            count -= len(content)
        return b"".join(pieces)

    def skip_to(self, position: int) -> None:
        while self.position < position and self.read(min(position - self.position, READ_BYTES * 16)):
            pass

    def close(self) -> None:
        self._file.close()

    def _unpack(self, count: int) -> bytes:
        assert self._member is not None
        raw = self._left or self._file.read(READ_BYTES)
        try:
            content = self._member.decompress(raw, count)
        except zlib.error as error:
            raise Damaged(str(error).partition(": ")[2] or str(error)) from None
        self._left = self._member.unconsumed_tail
        if self._member.eof:
            self._left, self._member = self._member.unused_data, None
        elif not raw and not content:
            raise Damaged("it ends in the middle")
        return content

    def _begin_member(self) -> bool:
        if self._at():
            self._skip_zeros()
        if not self._left:
            self._left = self._file.read(READ_BYTES)
        if not self._left:
            return False
        self.entry = EntryPoint(self._at(), self.position)
        self._member = zlib.decompressobj(GZIP_BITS)
        return True

    def _at(self) -> int:
        return self._file.tell() - len(self._left)

    def _skip_zeros(self) -> None:
        while True:
            self._left = self._left.lstrip(b"\0")
            if self._left or not (raw := self._file.read(READ_BYTES)):
                return
            self._left = raw


def digest_of(file: BinaryIO) -> str:
    """Return a digest of a file's size, beginning and end. The end holds the checksum and length of the last member."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    content = size.to_bytes(8, "little") + file.read(EDGE_BYTES)
    file.seek(max(0, size - EDGE_BYTES))
    return hashlib.blake2b(content + file.read(), digest_size=16).hexdigest()


def is_gz(path: str) -> bool:
    """Whether a file is a gz, by its name."""
    return Path(path).suffix.lower() == ".gz"


class Streams:
    """The gz files that this process has open, by path and digest, each at the position up to which it was read.

    A task of the next batch reads on from there, so that nothing is unpacked twice.
    """

    def __init__(self) -> None:
        self._open: dict[tuple[str, str], Unpacked] = {}

    def take_stream(self, path: str, digest: str, position: int) -> Unpacked | None:
        """Remove and return a stream at or before ``position``, or None. Give it back with ``put_back``."""
        stream = self._open.pop((path, digest), None)
        if stream is not None and stream.position > position:
            stream.close()
            return None
        return stream

    def put_back(self, path: str, digest: str, stream: Unpacked) -> None:
        before = self._open.pop((path, digest), None)
        self._open[path, digest] = stream
        if before is not None:
            before.close()
        while len(self._open) > OPEN_MAX:
            self._open.pop(next(iter(self._open))).close()


STREAMS = Streams()
