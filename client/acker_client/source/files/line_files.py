"""One file of the input, plain or gz: its lines, their positions, and its mark for the checkpoint.

A plain file is recognized by its beginning and by the bytes before the end of its last finished line. A gz is
recognized by its size, beginning and checksum. Lines are counted block by block, without Python code per line. Before
any line of a gz is planned, the gz is unpacked once to its end, so that no record comes from a damaged gz.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol

import numpy as np

from acker_client.source.decoding.content import LinePart, open_file, read_bytes, read_content
from acker_client.source.decoding.gz import Damaged, EntryPoint, Packed, Unpacked, digest_of, is_gz
from acker_client.source.decoding.lines import LF, find_lines
from acker_client.source.disk import to_read
from acker_client.source.errors import CheckpointError, InputChanged, SourceError
from acker_client.source.paths import Found
from acker_client.source.records.input import Committed, Mark
from acker_client.source.records.ranges import Positions, Ranges

log = logging.getLogger("acker_client.source")

BLOCK_BYTES = 4 << 20
# A file counts as unchanged if its first bytes and the last bytes before the committed position are the same.
MARK_BYTES = 1024
GONE = "gone"
CODECS = "plain text and .gz"
# How packed files begin. A text does not begin with these bytes.
PACKED = {
    b"\x1f\x8b\x08": "gzip, and its name does not end in .gz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
    b"\xff\x06\x00\x00sNaPpY": "snappy",
    b"\xfd7zXZ\x00": "xz",
    b"BZh91AY&SY": "bzip2",
    b"\x89LZO\x00": "lzo",
    b"PK\x03\x04": "zip",
    b"7z\xbc\xaf\x27\x1c": "7z",
    b"Obj\x01": "Avro",
    b"SEQ\x06": "a SequenceFile",
}
FIX = "give new data a new file name, or remove the checkpoint to read the input from its beginning"


@dataclass(frozen=True, slots=True)
class FileMark:
    """How far a file is done.

    ``lines``: the number of lines in the finished prefix. ``complete``: whether that was the whole file. ``digest``
    recognizes the file. ``path``, ``inode``: location and identity of a file that may be renamed. ``is_renamed``: it
    was renamed.

    For a plain file, ``bytes``: the length of the prefix; ``reach``: the byte at which the last finished line ends;
    ``reach_lines``: the number of lines before that byte. ``total``: the number of lines of a gz; None for a plain
    file.
    """

    path: str
    lines: int
    complete: bool
    digest: str
    bytes: int = 0
    reach_lines: int = 0
    reach: int = 0
    total: int | None = None
    inode: int | None = None
    is_renamed: bool = False

    @classmethod
    def of(cls, partition: str, committed: Committed) -> FileMark:
        """Parse the result of ``LineFile.mark``. Raises ``CheckpointError`` for other content."""
        mark, done = committed.mark, committed.done
        path, inode, is_renamed = str(mark.get("path", partition)), mark.get("inode"), bool(mark.get("renamed"))
        try:
            is_complete, digest = bool(mark["complete"]), str(mark["digest"])
            if "lines" in mark:
                return cls(path, done.prefix, is_complete, digest, 0, 0, 0, int(mark["lines"]), inode, is_renamed)
            at = int(mark["bytes"])
            reach = int(mark.get("reach", at))
            return cls(path, done.prefix, is_complete, digest, at, done.reach, reach, None, inode, is_renamed)
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"the checkpoint does not say how far each file is done ({error!r})") from None


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Whole lines of a file that are not planned yet.

    They begin at bytes ``starts`` (int64[n]), and the last one ends at ``stop``. ``line``: the index of the first line.
    ``of``: a part of this file without lines; new parts copy its location and how to unpack it.
    """

    of: LinePart
    starts: Positions
    stop: int
    line: int

    def cut(self, count: int) -> tuple[LinePart, Block | None]:
        """Return the first ``count`` lines as a part, and the rest as a block (None: nothing is left)."""
        taken = min(count, len(self.starts))
        stop = self.stop if taken == len(self.starts) else int(self.starts[taken])
        of, first, line = self.of, int(self.starts[0]), self.line
        part = LinePart(of.partition, of.shown, line, line + taken, first, stop, of.path, of.inode, of.packed)
        left = None if stop == self.stop else Block(of, self.starts[taken:], self.stop, line + taken)
        return part, left


class LineFile(Protocol):
    """One file.

    ``partition``: its name in the checkpoint. ``found``: its current location. ``inode``: its identity if it may be
    renamed. ``lines``: the number of its lines, once all are counted.
    """

    partition: str
    found: Found
    inode: int | None
    lines: int | None

    def move(self, found: Found) -> None:
        """Set the current location."""
        ...

    def fits(self, path: str) -> bool:
        """Whether the file at ``path`` begins with all that was read of this file."""
        ...

    def check(self) -> None:
        """Raise ``CheckpointError`` if this is not the file that the checkpoint describes."""
        ...

    def is_read(self) -> bool:
        """Whether all lines that existed at the last call of ``blocks`` are planned."""
        ...

    def blocks(self, block_bytes: int, *, is_followed: bool) -> Iterator[Block]:
        """Yield the lines that are not planned yet.

        ``is_followed``: the file may still grow, so a last line without a line feed is left for later.
        """
        ...

    def add_part(self, part: LinePart) -> None:
        """Remember a planned part."""
        ...

    def forget_positions(self, done: Ranges) -> None: ...

    def mark(self, done: Ranges) -> Mark: ...


def line_file(partition: str, found: Found, mark: FileMark | None, inode: int | None) -> LineFile:
    """Return the file at ``found``. ``mark``: its mark in the checkpoint, if any. ``inode``: None if not followed."""
    return (GzFile if is_gz(found.path) else PlainFile)(partition, found, mark, inode)


class _File:
    """The common part of plain files and gz: their location."""

    # There may be a million files.
    __slots__ = ("_is_renamed", "_mark", "found", "inode", "lines", "partition")

    def __init__(self, partition: str, found: Found, mark: FileMark | None, inode: int | None) -> None:
        self.partition = partition
        self.found = found
        self.inode = inode
        self.lines: int | None = None
        self._mark = mark
        self._is_renamed = mark is not None and mark.is_renamed

    def move(self, found: Found) -> None:
        self._is_renamed |= found.path != self.found.path
        self.found = found

    def _empty_part(self, packed: Packed | None = None) -> LinePart:
        path = "" if self.found.path == self.partition else self.found.path
        return LinePart(self.partition, self.found.shown, 0, 0, 0, 0, path, self.inode, packed)

    def _location(self) -> dict[str, Any]:
        """Return the part of a mark that locates a file that may be renamed."""
        if self.inode is None:
            return {}
        renamed = {"renamed": True} if self._is_renamed else {}
        return {"path": self.found.path, "inode": self.inode, **renamed}


class PlainFile(_File):
    """A plain file of lines. Keeps the positions of the lines that a later mark may need."""

    __slots__ = ("_byte", "_is_torn", "_known", "_line", "_parts", "_sealed", "_size")

    def __init__(self, partition: str, found: Found, mark: FileMark | None, inode: int | None) -> None:
        super().__init__(partition, found, mark, inode)
        self.lines = mark.lines if mark and mark.complete else None
        # The number of lines and bytes planned so far, and the file's size at the last call of ``blocks``.
        self._line, self._byte = (mark.lines, mark.bytes) if mark else (0, 0)
        self._size: int | None = mark.bytes if mark and mark.complete else None
        self._known = {self._line: self._byte} | ({mark.reach_lines: mark.reach} if mark else {})
        self._parts: list[LinePart] = []
        # Recognizes the file: (byte, digest up to that byte).
        self._sealed = (mark.reach, mark.digest) if mark else (0, "")
        self._is_torn = False

    def fits(self, path: str) -> bool:
        byte, digest = self._sealed
        try:
            return os.stat(path).st_size >= byte and (not digest or _digest(path, None, byte) == digest)
        except OSError:
            return False

    def check(self) -> None:
        """Also refuse a file whose last line was read without a line feed and has grown since."""
        found, (reach, digest) = self.found, self._sealed
        size = _size_of(found)
        if size < reach:
            raise CheckpointError(f"{found.shown} was read to byte {reach} and now has only {size}: {FIX}")
        if digest and _digest(found.path, None, reach) != digest:
            raise CheckpointError(f"{found.shown} is not what it was when it was read to byte {reach}: {FIX}")
        if size > reach > 0 and read_bytes(found.path, found.shown, reach - 1, reach) != b"\n":
            last = self._mark.reach_lines if self._mark else self._line
            raise CheckpointError(
                f"{found.shown} has grown, and its last line (line {last}) was read before a line feed ended it:"
                f" end every line with a line feed before a source reads it; {FIX}"
            )
        if size != self._byte:
            self._size = self.lines = None

    def is_read(self) -> bool:
        return self._size is not None and self._byte >= self._size

    def blocks(self, block_bytes: int, *, is_followed: bool) -> Iterator[Block]:
        """Yield the lines that are not planned yet.

        A last line of a followed file is read without its line feed only if the file was renamed and has not grown
        since the last call.
        """
        with _open_found(self.found, self.inode) as file:
            before, self._size = self._size, os.fstat(file.fileno()).st_size
            if is_followed:
                self._check_not_truncated(file, self._size)
            if not self._byte:
                self._refuse_packed(file)
            is_closed = not is_followed or (self._is_renamed and self._size == before)
            while self._byte < self._size:
                starts, stop = _read_block(file, self._byte, self._size, block_bytes, is_closed=is_closed)
                if not len(starts) and is_closed:
                    raise InputChanged(
                        f"{self.found.shown} has become shorter while it was read: write a new file beside it"
                    )
                if not len(starts):
                    break
                block = Block(self._empty_part(), starts, stop, self._line)
                self._line, self._byte = self._line + len(starts), stop
                yield block
            if is_followed:
                self._is_torn = is_closed and self._byte > 0 and _byte_before(file, self._byte) != b"\n"
                self._sealed = (self._byte, _digest_of_lines(file, self._byte))
        self.lines = self._line

    def add_part(self, part: LinePart) -> None:
        self._parts.append(part)

    def forget_positions(self, done: Ranges) -> None:
        """Drop positions that no mark needs any more. A mark needs the ends of the prefix and of the last done line."""
        # Keep the part that ends at the prefix, because it knows that position.
        self._parts = [part for part in self._parts if part.stop >= done.prefix]
        self._known = {line: self._known[line] for line in (done.prefix, done.reach) if line in self._known}

    def mark(self, done: Ranges) -> Mark:
        at, reach = self._byte_of(done.prefix), self._byte_of(done.reach)
        is_complete = self._size is not None and at >= self._size
        digest = _digest(self.found.path, self.inode, reach)
        return {"bytes": at, "complete": is_complete, "reach": reach, "digest": digest, **self._location()}

    def _refuse_packed(self, file: BinaryIO) -> None:
        """Raise ``SourceError`` for a packed file, whose lines would all fail."""
        head = file.read(max(map(len, PACKED)))
        for start, codec in PACKED.items():
            if head.startswith(start):
                raise SourceError(
                    f"Files: {self.found.shown} is packed ({codec}), and Files reads {CODECS}: unpack it or name it"
                    " right, or leave it out"
                )

    def _check_not_truncated(self, file: BinaryIO, size: int) -> None:
        """Raise ``InputChanged`` if a followed file changed in any way other than by new lines at its end.

        A file of the same size may have been rewritten, so its digest is checked too.
        """
        byte, digest = self._sealed
        if self._is_torn and size > byte:
            raise InputChanged(
                f"{self.found.shown} was renamed and did not grow, so its last line (line {self._line}) was read"
                f" before a line feed ended it. It has grown since: end every line with a line feed; to go on, {FIX}"
            )
        if size < self._byte or (digest and _digest_of_lines(file, byte) != digest):
            raise InputChanged(
                f"{self.found.shown} was read to byte {self._byte}, and was truncated or written anew since: what was"
                " added meanwhile may be gone. Rotate files by renaming them (logrotate's `create`, not"
                f" `copytruncate`); to go on, {FIX}"
            )

    def _byte_of(self, line: int) -> int:
        """Return the byte at which the line with index ``line`` begins. This is also the end of the line before it."""
        byte = self._known.get(line)
        if byte is None:
            byte = self._known[line] = self._byte_of_line(line)
        return byte

    def _byte_of_line(self, line: int) -> int:
        for part in self._parts:
            if part.start <= line <= part.stop:
                return _byte_of(part, line)
        # The line was done before this run began, and the checkpoint does not hold its position. Count again.
        before, start = max((known for known in self._known.items() if known[0] <= line), default=(0, 0))
        with _open_found(self.found, self.inode) as file:
            while start < (self._size or 0):
                starts, stop = _read_block(file, start, self._size or 0, BLOCK_BYTES, is_closed=True)
                if line < before + len(starts):
                    return int(starts[line - before])
                if not len(starts):
                    break
                before, start = before + len(starts), stop
        raise InputChanged(f"{self.found.shown} has become shorter while it was read: write a new file beside it")


class GzFile(_File):
    """A gz of lines. It is read completely or not at all: ``_count_lines`` refuses a damaged or unfinished gz."""

    __slots__ = ("_digest", "_is_reported", "_line", "_stat")

    def __init__(self, partition: str, found: Found, mark: FileMark | None, inode: int | None) -> None:
        super().__init__(partition, found, mark, inode)
        self.lines = mark.total if mark and mark.complete else None
        self._line = mark.lines if mark else 0
        self._digest = mark.digest if mark else ""
        # Size and time of change at the last call of ``blocks``.
        self._stat: tuple[int, int] | None = None
        self._is_reported = False

    def fits(self, path: str) -> bool:
        try:
            return not self._digest or _digest_of_gz(Found(path, path), None) == self._digest
        except InputChanged:
            return False

    def check(self) -> None:
        if self._mark is not None and self._mark.total is None:
            raise CheckpointError(f"{self.found.shown} was no gz when it was read: {FIX}")
        if self._digest and _digest_of_gz(self.found, self.inode) != self._digest:
            raise CheckpointError(f"{self.found.shown} is not what it was when its lines were read: {FIX}")

    def is_read(self) -> bool:
        return self.lines is not None and self._line >= self.lines

    def blocks(self, block_bytes: int, *, is_followed: bool) -> Iterator[Block]:
        """Yield the lines that are not planned yet. Yields nothing for an incomplete gz that is followed."""
        with _open_found(self.found, self.inode) as file:
            stat = os.fstat(file.fileno())
            before, self._stat = self._stat, (stat.st_size, stat.st_mtime_ns)
            if is_followed and (before == self._stat or not stat.st_size):
                return
            if self.is_read():
                self._check_same(file)
                return
            try:
                where = self._count_lines(file, block_bytes)
            except (Damaged, OSError) as error:
                self._report_damage(error, is_followed=is_followed)
                return
            for block in self._read_blocks(file, where, block_bytes):
                self._line = block.line + len(block.starts)
                yield block

    def add_part(self, part: LinePart) -> None:
        """Do nothing: lines of a gz are found by their number."""

    def forget_positions(self, done: Ranges) -> None:
        """Do nothing: nothing is kept of a part."""

    def mark(self, done: Ranges) -> Mark:
        is_complete = self.lines is not None and done.prefix >= self.lines
        return {"lines": self.lines, "complete": is_complete, "digest": self._digest, **self._location()}

    def _count_lines(self, file: BinaryIO, block_bytes: int) -> tuple[EntryPoint, int, int]:
        """Unpack the whole file once to count its lines. Raises ``Damaged``.

        Returns where to begin: the entry point, a byte of the content, and the number of lines that end before that
        byte. The first unplanned line begins at that byte or after it.
        """
        self._digest = digest_of(file)
        stream, lines, content = Unpacked(file, EntryPoint()), 0, b""
        where = (EntryPoint(), 0, 0)
        while True:
            if lines < self._line:
                where = (stream.entry, stream.position, lines)
            piece = stream.read_all(block_bytes)
            if not piece:
                break
            content = piece
            lines += content.count(b"\n")
        self.lines = lines + (content[-1:] not in (b"", b"\n"))
        return where

    def _read_blocks(self, file: BinaryIO, where: tuple[EntryPoint, int, int], block_bytes: int) -> Iterator[Block]:
        """Yield the lines from ``self._line`` on. ``where``: the result of ``_count_lines``."""
        entry, start, line = where
        stream = Unpacked(file, entry)
        stream.skip_to(start)
        while content := stream.read_all(block_bytes):
            ends = stream.position - len(content) + 1 + np.flatnonzero(np.frombuffer(content, np.uint8) == LF)
            if len(ends):
                yield from self._block(entry, np.concatenate(([start], ends[:-1])), int(ends[-1]), line)
                start, line = int(ends[-1]), line + len(ends)
            if stream.entry.position <= start:
                entry = stream.entry
        if start < stream.position:
            yield from self._block(entry, np.array([start], np.int64), stream.position, line)

    def _block(self, entry: EntryPoint, starts: Positions, stop: int, line: int) -> Iterator[Block]:
        begin = max(0, self._line - line)
        if begin < len(starts):
            yield Block(self._empty_part(Packed(self._digest, entry)), starts[begin:], stop, line + begin)

    def _check_same(self, file: BinaryIO) -> None:
        if digest_of(file) != self._digest:
            raise InputChanged(
                f"{self.found.shown} has changed since it was read: a complete gz file must not change. Write it under"
                f" another name and rename it then; to go on, {FIX}"
            )

    def _report_damage(self, error: Exception, *, is_followed: bool) -> None:
        problem = f"{self.found.shown} is no whole gz ({error}), and none of its lines was read"
        self._digest = ""
        if not is_followed:
            raise SourceError(f"Files: {problem}: bring it back whole, or leave it out") from None
        if not self._is_reported:
            log.warning("%s: it is looked at again once it changes", problem)
        self._is_reported = True


def _open_found(found: Found, inode: int | None) -> BinaryIO:
    try:
        return open_file(found.path, found.shown, inode)
    except OSError as error:
        raise InputChanged(f"{found.shown} cannot be read ({error.strerror}): {to_read(error)}") from None


def _byte_before(file: BinaryIO, position: int) -> bytes:
    file.seek(position - 1)
    return file.read(1)


def _size_of(found: Found) -> int:
    """Return the size of a file. Raises ``InputChanged`` if it cannot be opened."""
    with _open_found(found, None) as file:
        return os.fstat(file.fileno()).st_size


def _digest_of_gz(found: Found, inode: int | None) -> str:
    with _open_found(found, inode) as file:
        return digest_of(file)


def _read_block(file: BinaryIO, start: int, size: int, block_bytes: int, *, is_closed: bool) -> tuple[Positions, int]:
    """Return (the first bytes of the lines that end in the next block, the end of the last of them).

    A line that is longer than a block is returned alone. ``is_closed``: a last line without a line feed counts.
    """
    file.seek(start)
    content = file.read(min(block_bytes, size - start))
    ends = start + 1 + np.flatnonzero(np.frombuffer(content, np.uint8) == LF)
    if is_closed and start + len(content) == size and not content.endswith(b"\n"):
        ends = np.append(ends, size)
    if content and not len(ends):
        end = _end_of_line(file, size, block_bytes) if start + len(content) < size else None
        ends = np.array([size if end is None else end], np.int64)[: end is not None or is_closed]
    return np.concatenate(([start], ends[:-1]))[: len(ends)], int(ends[-1]) if len(ends) else start


def _end_of_line(file: BinaryIO, size: int, block_bytes: int) -> int | None:
    """Return where the line at the position of ``file`` ends, including its line feed; None if it has no end yet."""
    while content := file.read(block_bytes):
        at = content.find(b"\n")
        if at >= 0:
            end = file.tell() - len(content) + at + 1
            return end if end <= size else None
    return None


def _byte_of(part: LinePart, line: int) -> int:
    """Return the byte at which line ``line`` begins. It is a line of the part, or the first line after the part."""
    if line in (part.start, part.stop):
        return part.first_byte if line == part.start else part.stop_byte
    starts, _ = find_lines(read_content(part, part.first_byte, part.stop_byte))
    if line - part.start >= len(starts):
        raise InputChanged(f"{part.shown} has changed while it was read: write a new file beside it instead")
    return part.first_byte + int(starts[line - part.start])


def _digest(path: str, inode: int | None, position: int) -> str:
    """Return a digest of a file's first bytes and of the bytes before ``position``; GONE if the file cannot be read."""
    try:
        with open_file(path, path, inode) as file:
            return _digest_of_lines(file, position)
    except (OSError, InputChanged):
        return GONE


def _digest_of_lines(file: BinaryIO, position: int) -> str:
    file.seek(0)
    head = file.read(min(MARK_BYTES, position))
    file.seek(max(0, position - MARK_BYTES))
    tail = file.read(min(MARK_BYTES, position))
    return hashlib.blake2b(head + tail, digest_size=16).hexdigest()
