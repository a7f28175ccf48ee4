"""Files: which files there are, where their lines stand, and up to where each has been done. Runs in the driver.

A file is a partition, and a line's position is its index. Decides the order of reading (as the paths are given, each
pattern sorted), how lines are cut into parts that executors can read, and which file is not what the checkpoint
remembers. Lines are counted here once, block by block and without Python code per line; executors count again when
they read. Reads a file up to the size it has when its turn comes.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa

from acker_client.source.core.input import Chosen, Committed, Mark, Original, Plan
from acker_client.source.core.ranges import Positions, Ranges
from acker_client.source.disk import to_read
from acker_client.source.errors import CheckpointError, InputChanged, SourceError
from acker_client.source.inputs.balance import sliced
from acker_client.source.inputs.lines import LF, LINE_BYTES_MAX, LinePart, LineSlice, Parser, find_lines, read_bytes
from acker_client.source.inputs.paths import Found, Paths, check_not_own, find_files, origins_of

BLOCK_BYTES = 4 << 20
# The first and the last so many bytes before the committed position tell whether a file is still the same.
MARK_BYTES = 1024
GONE = "gone"
PACKED = frozenset({".gz", ".bz2", ".xz", ".zst", ".lz4", ".zip", ".parquet", ".orc", ".avro"})


@dataclass(frozen=True, slots=True)
class FileMark:
    """Where a file is done: ``lines`` and ``bytes`` of its prefix; ``complete``: that was all of it. ``reach``: where
    the last line ends that is done, the ``reach_lines``-th; ``digest``: of the file's beginning and of what stands
    before ``reach``."""

    lines: int
    bytes: int
    complete: bool
    reach_lines: int
    reach: int
    digest: str

    @classmethod
    def of(cls, committed: Committed) -> FileMark:
        """What ``FileInput.mark`` gave. Raises ``CheckpointError`` when it cannot have."""
        mark = committed.mark
        try:
            at = int(mark["bytes"])
            reach = int(mark.get("reach", at))
            done = committed.done
            return cls(done.prefix, at, bool(mark["complete"]), done.reach, reach, str(mark["digest"]))
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"the checkpoint does not say how far which file is done ({error!r})") from None


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Whole lines of a file that are not planned yet: they begin at bytes ``starts: int64[n]``, the last ends at
    ``stop``; ``line``: the index of the first."""

    file: Found
    starts: Positions
    stop: int
    line: int

    def cut(self, count: int) -> tuple[LinePart, Block | None]:
        """The first ``count`` lines as a part, and what is left."""
        taken = min(count, len(self.starts))
        stop = self.stop if taken == len(self.starts) else int(self.starts[taken])
        first, line = int(self.starts[0]), self.line
        part = LinePart(self.file.path, self.file.shown, line, line + taken, first, stop)
        left = None if stop == self.stop else Block(self.file, self.starts[taken:], self.stop, line + taken)
        return part, left


class FileInput:
    """Lines of files as an input (see ``core.input.Input``)."""

    kind = "files"

    def __init__(
        self, paths: Paths, parser: Parser, *, own_files: Sequence[Path] = (), block_bytes: int = BLOCK_BYTES
    ) -> None:
        self.parser = parser
        self._paths = paths
        self._own_files = own_files
        self._block_bytes = block_bytes
        self._files: list[Found] = []
        self._marks: dict[str, FileMark] = {}
        self._lines: dict[str, LineIndex] = {}
        self._blocks: Iterator[Block] = iter(())
        self._left: Block | None = None

    def start(self, committed: Mapping[str, Committed]) -> None:
        self._files = find_line_files(self._paths)
        check_not_own(self._files, self._own_files, "Files", self._paths)
        self._marks = {path: FileMark.of(each) for path, each in committed.items()}
        self._lines = {path: LineIndex(path, mark) for path, mark in self._marks.items()}
        for found in self._files:
            self._take_up(found)
        self._check_present()
        self._blocks, self._left = self._walk(), None

    def plan(self, records_max: int, tasks: int) -> Plan[LinePart]:
        parts: list[LinePart] = []
        part_records = max(1, records_max // (2 * tasks))
        while (room := records_max - sum(map(len, parts))) > 0:
            block = self._left or next(self._blocks, None)
            if block is None:
                break
            part, self._left = block.cut(min(part_records, room))
            self._lines[part.partition].add(part)
            parts.append(part)
        return Plan(parts, is_end=not parts)

    def slices(self, chosen: Sequence[Chosen[LinePart]], tasks: int) -> list[LineSlice]:
        for each in chosen:
            _check_reaches(each.part)
        return sliced(chosen, tasks, lambda start, stop, some: LineSlice(start, stop, some, self.parser))

    def origins(self, chosen: Sequence[Chosen[LinePart]]) -> pa.RecordBatch:
        return origins_of([(each.part.shown, each.positions + 1) for each in chosen], "line")

    def originals(self, chosen: Sequence[Chosen[LinePart]]) -> list[Original]:
        return [original for each in chosen for original in _originals(each)]

    def advance(self, partition: str, done: Ranges) -> None:
        self._lines[partition].forget(done)

    def mark(self, partition: str, done: Ranges) -> Mark:
        index = self._lines[partition]
        at, reach = index.byte_of(done.prefix), index.byte_of(done.reach)
        complete = index.end is not None and at >= index.end
        return {"bytes": at, "complete": complete, "reach": reach, "digest": _digest(partition, reach)}

    def describe(self, done: Mapping[str, Ranges]) -> str:
        total = len(self._files)
        ended = [found for found in self._files if self._is_ended(found, done)]
        if len(ended) == total:
            return f"end of the input ({total} {'file' if total == 1 else 'files'})"
        at = ""
        for found in self._files:
            if found not in ended and found.path in self._lines:
                at = f", {found.shown} to line {done.get(found.path, Ranges()).prefix}"
                break
        return f"{len(ended)} of {total} files{at}"

    def _is_ended(self, found: Found, done: Mapping[str, Ranges]) -> bool:
        index, mark = self._lines.get(found.path), self._marks.get(found.path)
        if index is not None and index.lines is not None:
            return done.get(found.path, Ranges()).prefix >= index.lines
        return mark is not None and mark.complete

    def _take_up(self, found: Found) -> None:
        """Check that a file is still what the checkpoint remembers; one that has grown since is not complete any
        more."""
        mark = self._marks.get(found.path)
        if mark is None:
            return
        size = _check_unchanged(found, mark)
        self._marks[found.path] = replace(mark, complete=size == mark.bytes)

    def _check_present(self) -> None:
        there = {found.path for found in self._files}
        for path, mark in self._marks.items():
            if not mark.complete and path not in there:
                raise CheckpointError(
                    f"{path} was read to line {mark.lines} only, and is not among the files any more: bring it back, or"
                    " remove the checkpoint to read the input from its beginning"
                )

    def _walk(self) -> Iterator[Block]:
        """The lines of all files from where each was left, a block at a time."""
        for found in self._files:
            index = self._lines.setdefault(found.path, LineIndex(found.path))
            line, start = index.at
            try:
                index.end = size = os.stat(found.path).st_size
                for block in _blocks_of(found, line, start, size, self._block_bytes):
                    line = block.line + len(block.starts)
                    yield block
            except OSError as error:
                raise InputChanged(f"{found.shown} cannot be read ({error.strerror}): {to_read(error)}") from None
            index.lines = line


class LineIndex:
    """Where lines of one file stand, as far as somebody may still ask: those of parts that are not done, and two that
    are known from the checkpoint. ``end``: where the file ended when its turn came; ``lines``: how many it has, once
    all are counted."""

    def __init__(self, path: str, mark: FileMark | None = None) -> None:
        self._path = path
        self.end: int | None = None
        self.lines: int | None = None
        self.at = (0, 0) if mark is None else (mark.lines, mark.bytes)
        self._known = dict([self.at] if mark is None else [self.at, (mark.reach_lines, mark.reach)])
        self._parts: list[LinePart] = []

    def add(self, part: LinePart) -> None:
        self._parts.append(part)

    def byte_of(self, line: int) -> int:
        """Where the line with index ``line`` begins, or the one before it ends."""
        byte = self._known.get(line)
        if byte is None:
            byte = self._known[line] = self._find(line)
        return byte

    def forget(self, done: Ranges) -> None:
        """Nobody asks any more for lines below the prefix, nor for others that were asked for, but for the reach."""
        # The part that ends where the prefix does still says where that is.
        self._parts = [part for part in self._parts if part.stop >= done.prefix]
        self._known = {line: self._known[line] for line in (done.prefix, done.reach) if line in self._known}

    def _find(self, line: int) -> int:
        for part in self._parts:
            if part.start <= line <= part.stop:
                return _byte_of(part, line)
        # Done before this run began, and neither the last nor the first of it: counted anew.
        before, start = max((known for known in self._known.items() if known[0] <= line), default=(0, 0))
        for block in _blocks_of(Found(self._path, self._path), before, start, self.end or start, BLOCK_BYTES):
            if line < block.line + len(block.starts):
                return int(block.starts[line - block.line])
        raise InputChanged(f"{self._path} has become shorter while it was read: write a new file beside it")


def find_line_files(paths: Paths) -> list[Found]:
    """The files that ``paths`` name. Raises ``SourceError`` also for a directory, and what is not a file of lines."""
    found = find_files(paths, asker="Files", example="orders/*.jsonl", in_directory=_refuse_directory)
    for file in found:
        if Path(file.path).suffix.lower() in PACKED:
            what = "use Parquet" if file.path.endswith(".parquet") else "unpack or convert it"
            raise SourceError(f"Files: {file.shown!r} is not a file of lines: {what}, or narrow the pattern")
    return found


def _refuse_directory(path: str) -> list[str]:
    raise SourceError(f"Files: {path!r} is a directory: write {os.path.join(path, '*')!r}")


def _blocks_of(found: Found, line: int, start: int, size: int, block_bytes: int) -> Iterator[Block]:
    """The lines of a file from byte ``start`` to ``size``, in blocks of whole lines of about ``block_bytes``. ``line``:
    the index of the first."""
    with open(found.path, "rb") as file:
        while start < size:
            starts, stop = _read_block(file, start, size, block_bytes)
            if stop == start:
                raise InputChanged(f"{found.shown} has become shorter while it was read: write a new file beside it")
            yield Block(found, starts, stop, line)
            start, line = stop, line + len(starts)


def _read_block(file: BinaryIO, start: int, size: int, block_bytes: int) -> tuple[Positions, int]:
    """(where the lines that end in the next block begin, where the last of them ends); of a longer line, it alone."""
    file.seek(start)
    content = file.read(min(block_bytes, size - start))
    ends = start + 1 + np.flatnonzero(np.frombuffer(content, np.uint8) == LF)
    if start + len(content) == size and not content.endswith(b"\n"):
        ends = np.append(ends, size)
    if content and not len(ends):
        ends = np.array([_end_of_line(file, size, block_bytes)])
    return np.concatenate(([start], ends[:-1]))[: len(ends)], int(ends[-1]) if len(ends) else start


def _end_of_line(file: BinaryIO, size: int, block_bytes: int) -> int:
    """Where the line ends that goes on where ``file`` stands, its line feed included."""
    while content := file.read(block_bytes):
        at = content.find(b"\n")
        if at >= 0:
            return min(size, file.tell() - len(content) + at + 1)
    return size


def _byte_of(part: LinePart, line: int) -> int:
    """Where the line with index ``line`` begins, of a part's lines or right behind them."""
    if line in (part.start, part.stop):
        return part.first_byte if line == part.start else part.stop_byte
    starts, _ = find_lines(read_bytes(part.partition, part.shown, part.first_byte, part.stop_byte))
    if line - part.start >= len(starts):
        raise InputChanged(f"{part.shown} has changed while it was read: write a new file beside it instead")
    return part.first_byte + int(starts[line - part.start])


def _originals(chosen: Chosen[LinePart]) -> list[Original]:
    part, wanted = chosen.part, (chosen.positions - chosen.part.start).tolist()
    try:
        stop = min(part.stop_byte, part.first_byte + LINE_BYTES_MAX)
        raw = read_bytes(part.partition, part.shown, part.first_byte, stop)
    except InputChanged:
        return [Original(_origin(part, index, part.first_byte), None) for index in wanted]
    starts, ends = find_lines(raw, at_beginning=part.first_byte == 0)
    originals = []
    for index in wanted:
        value = raw[starts[index] : ends[index]] if index < len(starts) else None
        byte = part.first_byte + (int(starts[index]) if 0 < index < len(starts) else 0)
        originals.append(Original(_origin(part, index, byte), value))
    return originals


def _origin(part: LinePart, index: int, byte: int) -> dict[str, str | int]:
    return {"path": part.shown, "line": part.start + index + 1, "byte": byte}


def _check_reaches(part: LinePart) -> None:
    """A record that is emitted must still be there; executors check the rest when they read."""
    try:
        size = os.stat(part.partition).st_size
    except OSError as error:
        raise InputChanged(f"{part.shown} cannot be read any more ({error.strerror}): {to_read(error)}") from None
    if size < part.stop_byte:
        raise InputChanged(
            f"{part.shown} had {part.stop_byte} bytes when its lines were counted and now has {size}: a file must not"
            " shrink while it is read; write a new file beside it"
        )


def _check_unchanged(found: Found, mark: FileMark) -> int:
    """The size of a file. Raises ``CheckpointError`` if it is not the one that was read, and
    ``InputChanged`` if it cannot be read at all."""
    try:
        size = os.stat(found.path).st_size
        with open(found.path, "rb"):
            pass
    except OSError as error:
        raise InputChanged(f"{found.shown} cannot be read ({error.strerror}): {to_read(error)}") from None
    fix = "give new data a new file name, or remove the checkpoint to read the input from its beginning"
    if size < mark.reach:
        raise CheckpointError(f"{found.shown} was read to byte {mark.reach} and now has only {size}: {fix}")
    if _digest(found.path, mark.reach) != mark.digest:
        raise CheckpointError(f"{found.shown} is not what it was when it was read to byte {mark.reach}: {fix}")
    if size > mark.reach > 0 and read_bytes(found.path, found.shown, mark.reach - 1, mark.reach) != b"\n":
        raise CheckpointError(
            f"{found.shown} has grown, and its last line (line {mark.reach_lines}) had been read when nothing ended it:"
            f" end every line with a line feed before a source reads it; {fix}"
        )
    return size


def _digest(path: str, position: int) -> str:
    """Digest of what stands at the beginning of a file and right before ``position``; GONE if it was taken away."""
    try:
        head = read_bytes(path, path, 0, min(MARK_BYTES, position))
        tail = read_bytes(path, path, max(0, position - MARK_BYTES), position)
    except InputChanged:
        return GONE
    return hashlib.blake2b(head + tail, digest_size=16).hexdigest()
