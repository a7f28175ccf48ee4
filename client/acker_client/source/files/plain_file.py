"""A plain file of lines.

A local file is recognized by its beginning and by the bytes before the end of its last finished line, an object by its
tag. Lines are counted block by block, without Python code per line.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from acker_client.source.decoding.content import Content, LinePart, LocalContent, read_content, size_of
from acker_client.source.decoding.lines import LF, find_lines
from acker_client.source.errors import FIX, CheckpointError, InputChanged, SourceError
from acker_client.source.files.line_file import BLOCK_BYTES, CODECS, BaseFile, Block, FileMark
from acker_client.source.records.input import Mark
from acker_client.source.records.ranges import Positions, Ranges

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
HEADS = tuple(PACKED)
HEAD_BYTES = max(map(len, HEADS))


class PlainFile(BaseFile):
    """A plain file of lines. Keeps the positions of the lines that a later mark may need."""

    __slots__ = ("_begin", "_byte", "_is_torn", "_known", "_line", "_parts", "_sealed", "_size")

    def __init__(self, partition: str, shown: str, content: Content, mark: FileMark | None) -> None:
        super().__init__(partition, shown, content, mark)
        self.lines = mark.lines if mark and mark.complete else None
        # The number of lines and bytes read so far, and the file's size at the last call of ``blocks``. Lines before
        # ``_begin`` are not planned.
        self._line, self._byte = (mark.line, mark.bytes) if mark else (0, 0)
        self._begin = mark.lines if mark else 0
        self._size: int | None = mark.bytes if mark and mark.complete else None
        self._known = {self._line: self._byte} | ({mark.reach_lines: mark.reach} if mark else {})
        self._parts: list[LinePart] = []
        # Recognizes the file: (line, the byte at which it begins, digest up to that byte).
        self._sealed = (mark.reach_lines, mark.reach, mark.digest) if mark else (0, 0, "")
        self._is_torn = False

    @property
    def recognized(self) -> Content:
        content = self.content
        if not isinstance(content, LocalContent):
            return content
        _, byte, digest = self._sealed
        return replace(content, sealed=(byte, digest))

    def fits(self, content: Content) -> bool:
        _, byte, digest = self._sealed
        try:
            with content.open(self.shown) as file:
                return size_of(file) >= byte and (not digest or content.digest(file, byte) == digest)
        except InputChanged:
            return False

    def check(self) -> None:
        """Also refuse a file whose last line was read without a line feed and has grown since."""
        last, reach, digest = self._sealed
        with self.content.open(self.shown) as file:
            size = size_of(file)
            if size < reach:
                raise CheckpointError(f"{self.shown} was read to byte {reach} and now has only {size}: {FIX}")
            if digest and self.content.digest(file, reach) != digest:
                raise CheckpointError(f"{self.shown} is not what it was when it was read to byte {reach}: {FIX}")
            if size > reach > 0 and _byte_before(file, reach) != b"\n":
                raise CheckpointError(
                    f"{self.shown} has grown, and its last line (line {last}) was read before a line feed ended it:"
                    f" end every line with a line feed before a source reads it; {FIX}"
                )
        if size != self._byte:
            self._size = self.lines = None

    def is_read(self) -> bool:
        return self._size is not None and self._byte >= self._size

    def blocks(self, file: BinaryIO, block_bytes: int, *, is_followed: bool) -> Iterator[Block]:
        """Yield the lines that are not planned yet.

        A last line of a followed file is read without its line feed only if the file was renamed and has not grown
        since the last call.
        """
        is_growing = is_followed and self.content.may_grow
        before, self._size = self._size, size_of(file)
        if is_growing:
            self._check_not_truncated(file, self._size)
            file.seek(0)
        if not self._byte:
            self._refuse_packed(file)
        is_closed = not is_growing or (self._is_renamed and self._size == before)
        # Made once, since malloc may give the memory of a block back to the system each time.
        is_lf = np.empty(max(0, min(block_bytes, self._size - self._byte)), np.bool_)
        while self._byte < self._size:
            starts, stop = _read_block(file, self._byte, self._size, block_bytes, is_lf, is_closed=is_closed)
            if not len(starts) and is_closed:
                raise _shorter(self.shown)
            if not len(starts):
                break
            skipped = max(0, self._begin - self._line)
            block = Block(self._empty_part(), starts[skipped:], stop, self._line + skipped)
            self._line, self._byte = self._line + len(starts), stop
            if self.content.may_grow:
                # Must come before the yield: a copy that takes the place of the file must begin with these lines too.
                self._seal(file)
            if not is_growing and stop >= self._size:
                # Must come before the yield: a caller with a full batch comes back only when it needs more lines.
                self.lines = self._line
            if len(block.starts):
                yield block
        if is_growing:
            self._is_torn = is_closed and self._byte > 0 and _byte_before(file, self._byte) != b"\n"
        self.lines = self._line

    def add_part(self, part: LinePart) -> None:
        self._parts.append(part)

    def forget_positions(self, done: Ranges) -> None:
        """Drop positions that no mark needs any more. A mark needs the ends of the prefix and of the last done line."""
        # Keep the part that ends at the prefix, because it knows that position.
        self._parts = [part for part in self._parts if part.stop >= done.prefix]
        before = max((line for line in self._known if line <= done.prefix), default=done.prefix)
        self._known = {line: self._known[line] for line in (before, done.reach) if line in self._known}

    def mark(self, done: Ranges) -> Mark:
        if not self.content.may_grow:
            return self._mark_of_object(done)
        try:
            at, reach = self._byte_of(done.prefix), self._byte_of(done.reach)
            places: Mark = {"reach": reach, "digest": self.recognized.digest_at(reach, self.shown)}
        except InputChanged:
            line, at = self._known_before(done.prefix)
            reach_line, reach, digest = self._sealed
            places = {"line": line, "reach_line": reach_line, "reach": reach, "digest": digest}
        is_complete = self._size is not None and at >= self._size
        return {"bytes": at, "complete": is_complete, **places, **self._location()}

    def _known_before(self, line: int) -> tuple[int, int]:
        """Return the last line up to ``line`` of which the first byte is known, and this byte, without a look at the
        file, which may be gone by now."""
        ends = ((part.stop, part.stop_byte) for part in self._parts)
        begins = ((part.start, part.first_byte) for part in self._parts)
        return max(known for known in (*self._known.items(), *begins, *ends) if known[0] <= line)

    def _mark_of_object(self, done: Ranges) -> Mark:
        line, at = self._known_before(done.prefix)
        is_complete = self.lines is not None and done.prefix >= self.lines
        digest = self.content.digest_at(at, self.shown)
        return {"bytes": at, "line": line, "complete": is_complete, "digest": digest}

    def _refuse_packed(self, file: BinaryIO) -> None:
        """Raise ``SourceError`` for a packed file, whose lines would all fail. The file is at its beginning."""
        head = file.read(HEAD_BYTES)
        if head.startswith(HEADS):
            codec = next(codec for start, codec in PACKED.items() if head.startswith(start))
            raise SourceError(
                f"Files: {self.shown} is packed ({codec}), and Files reads {CODECS}: unpack it or name it right, or"
                " leave it out"
            )

    def _seal(self, file: BinaryIO) -> None:
        """Recognize the file by all that was read. Raises ``InputChanged`` if it was written anew since the last block
        was yielded, and perhaps before this block was read."""
        # The seek to the end drops what a buffer still holds of the file.
        self._check_not_truncated(file, file.seek(0, os.SEEK_END))
        self._sealed = (self._line, self._byte, self.content.digest(file, self._byte))

    def _check_not_truncated(self, file: BinaryIO, size: int) -> None:
        """Raise ``InputChanged`` if a local file changed in any way other than by new lines at its end.

        A file of the same size may have been rewritten, so its digest is checked too.
        """
        _, byte, digest = self._sealed
        if self._is_torn and size > byte:
            raise InputChanged(
                f"{self.shown} was renamed and did not grow, so its last line (line {self._line}) was read"
                f" before a line feed ended it. It has grown since: end every line with a line feed; to go on, {FIX}"
            )
        if size < self._byte or (digest and self.content.digest(file, byte) != digest):
            raise InputChanged(
                f"{self.shown} was read to byte {self._byte}, and was truncated or written anew since: what was"
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
                return _byte_of(replace(part, at=self.recognized), line)
        # The line was done before this run began, and the checkpoint does not hold its position. Count again.
        before, start = max((known for known in self._known.items() if known[0] <= line), default=(0, 0))
        is_lf = np.empty(BLOCK_BYTES, np.bool_)
        with self.recognized.open(self.shown) as file:
            while start < (self._size or 0):
                starts, stop = _read_block(file, start, self._size or 0, BLOCK_BYTES, is_lf, is_closed=True)
                if line < before + len(starts):
                    return int(starts[line - before])
                if not len(starts):
                    break
                before, start = before + len(starts), stop
        raise _shorter(self.shown)


def _byte_before(file: BinaryIO, position: int) -> bytes:
    file.seek(position - 1)
    return file.read(1)


def _read_block(
    file: BinaryIO, start: int, size: int, block_bytes: int, is_lf: npt.NDArray[np.bool_], *, is_closed: bool
) -> tuple[Positions, int]:
    """Return (the first bytes of the lines that end in the next block, the end of the last of them).

    A line that is longer than a block is returned alone. ``is_lf``: memory for a block. ``is_closed``: a last line
    without a line feed counts.
    """
    file.seek(start)
    content = file.read(min(block_bytes, size - start))
    found = np.equal(np.frombuffer(content, np.uint8), LF, out=is_lf[: len(content)])
    ends = start + 1 + np.flatnonzero(found)
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


def _shorter(shown: str) -> InputChanged:
    return InputChanged(f"{shown} has become shorter while it was read: write a new file beside it")
