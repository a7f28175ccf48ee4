"""A gz of lines. It is read completely or not at all.

A local gz is recognized by its size, beginning and checksum, an object by its tag. Before any line of a gz is planned,
the gz is unpacked once to its end, so that no record comes from a damaged gz.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from acker_client.source.decoding.content import Content, LinePart, size_of
from acker_client.source.decoding.gz import Damaged, EntryPoint, Packed, Unpacked
from acker_client.source.decoding.lines import LF
from acker_client.source.errors import FIX, CheckpointError, InputChanged, SourceError
from acker_client.source.files.line_file import BaseFile, Block, FileMark
from acker_client.source.records.input import Mark
from acker_client.source.records.ranges import Positions, Ranges

log = logging.getLogger("acker_client.source")


class GzFile(BaseFile):
    """A gz of lines. ``_count_lines`` refuses a damaged or unfinished gz."""

    __slots__ = ("_digest", "_is_reported", "_line", "_version")

    def __init__(self, partition: str, shown: str, content: Content, mark: FileMark | None) -> None:
        super().__init__(partition, shown, content, mark)
        self.lines = mark.total if mark else None
        self._line = mark.lines if mark else 0
        self._digest = mark.digest if mark else ""
        # The version of the file that ``blocks`` has last read to its end, or found damaged.
        self._version: object = None
        self._is_reported = False

    def fits(self, content: Content) -> bool:
        try:
            return not self._digest or self._digest_at(content) == self._digest
        except InputChanged:
            return False

    def check(self) -> None:
        if self._mark is not None and self._mark.total is None:
            raise CheckpointError(f"{self.shown} was no gz when it was read: {FIX}")
        if self._digest and self._digest_at(self.content) != self._digest:
            raise CheckpointError(f"{self.shown} is not what it was when its lines were read: {FIX}")

    def is_read(self) -> bool:
        return self.lines is not None and self._line >= self.lines

    def blocks(self, file: BinaryIO, block_bytes: int, *, is_followed: bool) -> Iterator[Block]:
        """Yield the lines that are not planned yet. Yields nothing for an incomplete gz that is followed."""
        version = self.content.version(file)
        if is_followed and (version == self._version or not size_of(file)):
            return
        if self.is_read():
            self._check_same(file)
            self._version = version
            return
        try:
            where = self._count_lines(file, block_bytes)
        except (Damaged, OSError) as error:
            self._version = version
            self._report_damage(error, is_followed=is_followed)
            return
        for block in self._read_blocks(file, where, block_bytes):
            self._line = block.line + len(block.starts)
            yield block
        # Not earlier: a store may be away in the middle, and then the next call goes on.
        self._version = version

    def add_part(self, part: LinePart) -> None:
        """Do nothing: lines of a gz are found by their number."""

    def forget_positions(self, done: Ranges) -> None:
        """Do nothing: nothing is kept of a part."""

    def mark(self, done: Ranges) -> Mark:
        is_complete = self.lines is not None and done.prefix >= self.lines
        return {"lines": self.lines, "complete": is_complete, "digest": self._digest, **self._location()}

    def _count_lines(self, file: BinaryIO, block_bytes: int) -> tuple[EntryPoint, int, int]:
        """Unpack the whole file once to count its lines, and return where to begin with the next unplanned one.

        That is an entry point, a byte of the content at or before the beginning of that line, and the number of line
        feeds before that byte. Raises ``Damaged`` for a damaged or unfinished gz.
        """
        self._digest = self.content.digest_of_gz(file)
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
        """Yield the lines from ``self._line`` on. ``where``: the result of ``_count_lines``.

        A line that is longer than a block is yielded alone.
        """
        entry, start, line = where
        stream = Unpacked(file, entry)
        stream.skip_to(start)
        while content := stream.read_all(block_bytes):
            ends = stream.position - len(content) + 1 + np.flatnonzero(np.frombuffer(content, np.uint8) == LF)
            if len(ends):
                alone = 1 if ends[0] - start > block_bytes else len(ends)
                for some in (ends[:alone], ends[alone:]):
                    starts = np.concatenate(([start], some))
                    yield from self._block(entry, starts[:-1], int(starts[-1]), line)
                    start, line = int(starts[-1]), line + len(some)
            if stream.entry.position <= start:
                entry = stream.entry
        if start < stream.position:
            yield from self._block(entry, np.array([start], np.int64), stream.position, line)

    def _block(self, entry: EntryPoint, starts: Positions, stop: int, line: int) -> Iterator[Block]:
        begin = max(0, self._line - line)
        if begin < len(starts):
            yield Block(self._empty_part(Packed(self._digest, entry)), starts[begin:], stop, line + begin)

    def _check_same(self, file: BinaryIO) -> None:
        if self.content.digest_of_gz(file) != self._digest:
            raise InputChanged(
                f"{self.shown} has changed since it was read: a complete gz file must not change. Write it under"
                f" another name and rename it then; to go on, {FIX}"
            )

    def _report_damage(self, error: Exception, *, is_followed: bool) -> None:
        problem = f"{self.shown} is no whole gz ({error}), and none of its lines was read"
        self._digest = ""
        if not is_followed:
            raise SourceError(f"Files: {problem}: bring it back whole, or leave it out") from None
        if not self._is_reported:
            log.warning("%s: it is looked at again once it changes", problem)
        self._is_reported = True

    def _digest_at(self, content: Content) -> str:
        with content.open(self.shown) as file:
            return content.digest_of_gz(file)
