"""One file of the input, plain or gz: its lines, their positions, and its mark for the checkpoint.

Decides what a checkpoint says of a file, and how lines are cut into parts. ``plain_file`` and ``gz_file`` find the
lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol

from acker_client.source.decoding.content import Content, LinePart, LocalContent, location_of
from acker_client.source.decoding.gz import Packed
from acker_client.source.errors import CheckpointError
from acker_client.source.records.input import Committed, Mark
from acker_client.source.records.ranges import Positions, Ranges

BLOCK_BYTES = 4 << 20
CODECS = "plain text and .gz"


@dataclass(frozen=True, slots=True)
class FileMark:
    """How far a file is done.

    ``lines``: the number of lines in the finished prefix. ``complete``: whether that was the whole file. ``digest``
    recognizes the file. ``total``: the number of lines of a gz; None for a plain file.

    Two positions of a plain file: byte ``bytes`` is where the line with index ``line`` begins, and byte ``reach`` the
    one with index ``reach_lines``. In a local file these are the ends of the finished prefix and of the last finished
    line. If the file was removed, they are a position at or before the end of the prefix, and the end of what was read.
    In an object both are the same position, at or before the end of the prefix.

    ``path``, ``inode``: location and identity of a local file that may be renamed. ``is_renamed``: it was renamed.
    ``size``, ``modified_ns``: what a listing said of an object in a store.
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
    size: int = -1
    modified_ns: int = 0
    line: int = 0

    @classmethod
    def of(cls, partition: str, committed: Committed) -> FileMark:
        """Parse the result of ``LineFile.mark``. Raises ``CheckpointError`` for other content."""
        mark, done = committed.mark, committed.done
        try:
            is_gz = "lines" in mark
            at = 0 if is_gz else int(mark["bytes"])
            line = int(mark.get("line", done.prefix))
            return cls(
                path=str(mark.get("path", partition)),
                lines=done.prefix,
                complete=bool(mark["complete"]),
                digest=str(mark["digest"]),
                bytes=at,
                reach_lines=int(mark.get("reach_line", done.reach if "reach" in mark else line)),
                reach=int(mark.get("reach", at)),
                total=int(mark["lines"]) if is_gz else None,
                inode=mark.get("inode"),
                is_renamed=bool(mark.get("renamed")),
                size=int(mark.get("size", -1)),
                modified_ns=int(mark.get("modified_ns", 0)),
                line=line,
            )
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
        part = LinePart(of.partition, of.shown, line, line + taken, first, stop, of.at, of.packed)
        left = None if stop == self.stop else Block(of, self.starts[taken:], self.stop, line + taken)
        return part, left


class LineFile(Protocol):
    """One file.

    ``partition``: its name in the checkpoint. ``content``: where it is now. ``shown``: its path as the user wrote it.
    ``lines``: the number of its lines, once all are counted.
    """

    partition: str
    shown: str
    content: Content
    lines: int | None

    @property
    def recognized(self) -> Content:
        """The content, which opens only if it begins with all that was read of this file."""
        ...

    def move(self, content: Content, shown: str) -> None:
        """Set the current location."""
        ...

    def fits(self, content: Content) -> bool:
        """Whether the file there begins with all that was read of this file."""
        ...

    def check(self) -> None:
        """Raise ``CheckpointError`` if this is not the file that the checkpoint describes."""
        ...

    def is_read(self) -> bool:
        """Whether all lines that existed at the last call of ``blocks`` are planned."""
        ...

    def blocks(self, file: BinaryIO, block_bytes: int, *, is_followed: bool) -> Iterator[Block]:
        """Yield the lines that are not planned yet. ``file``: this file, open.

        ``is_followed``: the file may still grow, so a last line without a line feed is left for later.
        """
        ...

    def add_part(self, part: LinePart) -> None:
        """Remember a planned part."""
        ...

    def forget_positions(self, done: Ranges) -> None: ...

    def mark(self, done: Ranges) -> Mark: ...


class BaseFile:
    """The common part of plain files and gz: their location."""

    # There may be a million files.
    __slots__ = ("_is_renamed", "_mark", "content", "lines", "partition", "shown")

    def __init__(self, partition: str, shown: str, content: Content, mark: FileMark | None) -> None:
        self.partition = partition
        self.shown = shown
        self.content = content
        self.lines: int | None = None
        self._mark = mark
        self._is_renamed = mark is not None and mark.is_renamed

    @property
    def recognized(self) -> Content:
        return self.content  # parts of a gz, and objects, have a digest of their own

    def move(self, content: Content, shown: str) -> None:
        self._is_renamed |= content.path != self.content.path
        self.content, self.shown = content, shown

    def _empty_part(self, packed: Packed | None = None) -> LinePart:
        content = self.content
        is_plain = isinstance(content, LocalContent) and content.inode is None and content.path == self.partition
        at = None if is_plain else content
        return LinePart(self.partition, self.shown, 0, 0, 0, 0, at, packed)

    def _location(self) -> Mapping[str, Any]:
        return location_of(self.content, self._is_renamed)
