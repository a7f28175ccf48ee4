"""Files: which files there are, where their lines stand, and up to where each has been done. Runs in the driver.

Decides the order of reading (as the paths are given, each pattern sorted), how lines are cut into parts that executors
can read, and which file is not what the checkpoint remembers. Lines are counted here once, block by block and without
Python code per line; executors count again when they read. Reads a file up to the size it has when its turn comes.
"""

from __future__ import annotations

import glob
import hashlib
import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np

from acker_client.source.core.input import Original, Origins, Progress
from acker_client.source.core.tracker import NO_RECORDS, Records
from acker_client.source.disk import to_read
from acker_client.source.errors import CheckpointError, InputChanged, SourceError
from acker_client.source.inputs.lines import LF, LINE_BYTES_MAX, LineSlice, Parser, Part, find_lines, read_bytes

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

BLOCK_BYTES = 4 << 20
# The first and the last so many bytes before the committed position tell whether a file is still the same.
MARK_BYTES = 1024
GONE = "gone"
PACKED = frozenset({".gz", ".bz2", ".xz", ".zst", ".lz4", ".zip", ".parquet", ".orc", ".avro"})


@dataclass(frozen=True, slots=True)
class FileProgress:
    """Up to where a file is done: ``lines`` and ``bytes``; ``complete``: that was all of it. ``mark``: digest of its
    ends."""

    lines: int = 0
    bytes: int = 0
    complete: bool = False
    mark: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """A file of the input: its absolute path, and the path as the user wrote it."""

    path: str
    shown: str


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Whole lines of a file that are not planned yet: they begin at ``starts: int64[n]``, the last ends at ``stop``."""

    file: Found
    starts: Records
    stop: int
    first_line: int

    def cut(self, count: int) -> tuple[Part, Block | None]:
        """The first ``count`` lines as a part, and what is left."""
        whole = count >= len(self.starts)
        stop = self.stop if whole else int(self.starts[count])
        taken = min(count, len(self.starts))
        part = Part(self.file.path, self.file.shown, int(self.starts[0]), stop, self.first_line, taken)
        return part, None if whole else Block(self.file, self.starts[count:], self.stop, self.first_line + count)


class FileInput:
    """Lines of files as an input (see ``input.Input``). Records are numbered from 0 in the order of reading."""

    kind = "files"

    def __init__(
        self, paths: Paths, parser: Parser, *, own_files: Sequence[Path] = (), block_bytes: int = BLOCK_BYTES
    ) -> None:
        self.parser = parser
        self._paths = paths
        self._own_files = {os.path.abspath(path) for path in own_files}
        self._block_bytes = block_bytes
        self._files: list[Found] = []
        self._done: dict[str, FileProgress] = {}
        self._parts: list[Part] = []
        self._firsts: list[int] = []
        self._planned = 0
        self._done_below = 0
        self._ends: dict[str, int] = {}
        self._blocks: Iterator[Block] = iter(())
        self._left: Block | None = None

    def start(self, progress: Progress | None) -> None:
        self._files = find_files(self._paths)
        for found in self._files:
            if found.path in self._own_files:
                raise SourceError(f"Files: {found.shown!r} is written by this source: keep it out of {self._paths!r}")
        self._done = {} if progress is None else _read_progress(progress)
        for found in self._files:
            self._take_up(found)
        self._check_present()
        self._parts, self._firsts, self._planned, self._done_below = [], [], 0, 0
        self._ends, self._left = {}, None
        self._blocks = self._walk()

    def plan(self, records_max: int, partitions: int) -> Records:
        first = self._planned
        part_records = max(1, records_max // (2 * partitions))
        while self._planned - first < records_max:
            block = self._left or next(self._blocks, None)
            if block is None:
                break
            part, self._left = block.cut(min(part_records, records_max - (self._planned - first)))
            self._parts.append(part)
            self._firsts.append(self._planned)
            self._planned += part.count
        return np.arange(first, self._planned, dtype=np.int64)

    def slices(self, records: Records, partitions: int) -> list[LineSlice]:
        parts = list(self._chosen(records))
        for part in parts:
            _check_reaches(part)
        slices: list[LineSlice] = []
        number = 0
        for together in _balance(parts, partitions):
            stop = number + sum(len(part) for part in together)
            slices.append(LineSlice(number, stop, tuple(together), self.parser))
            number = stop
        return slices

    def locate(self, records: Records) -> Origins:
        parts = self._parts_of(records)
        used, path_of = np.unique(parts, return_inverse=True)
        first_lines = np.array([self._parts[part].first_line for part in used], np.int64)
        firsts = np.array([self._firsts[part] for part in used], np.int64)
        lines = first_lines[path_of] + records - firsts[path_of] if len(used) else NO_RECORDS
        return Origins(tuple(self._parts[part].shown for part in used), path_of, lines)

    def originals(self, records: Records) -> list[Original]:
        return [original for part in self._chosen(records) for original in _originals(part)]

    def advance(self, done_below: int) -> None:
        gone = bisect_right(self._firsts, done_below)
        # The part in which `done_below` stands is kept, unless all that is planned is done.
        gone = gone if done_below >= self._planned else max(0, gone - 1)
        for part in self._parts[:gone]:
            self._done[part.path] = self._progress_in(part, part.count)
        del self._parts[:gone]
        del self._firsts[:gone]
        self._done_below = done_below

    def progress(self) -> Progress:
        for path, file in self._done.items():
            if not file.mark:
                self._done[path] = replace(file, mark=_mark(path, file.bytes))
        done = dict(self._done)
        if self._parts and self._done_below > self._firsts[0]:
            part = self._parts[0]
            file = self._progress_in(part, self._done_below - self._firsts[0])
            done[part.path] = replace(file, mark=_mark(part.path, file.bytes))
        return {"files": [{"path": path} | asdict(file) for path, file in done.items()]}

    def describe(self) -> str:
        total = len(self._files)
        ended = sum(1 for found in self._files if self._is_ended(found))
        if ended == total:
            return f"end of the input ({total} {'file' if total == 1 else 'files'})"
        at = ""
        if self._parts:
            part = self._parts[0]
            at = f", {part.shown} to line {part.first_line - 1 + max(0, self._done_below - self._firsts[0])}"
        return f"{ended} of {total} files{at}"

    def _is_ended(self, found: Found) -> bool:
        done = self._done.get(found.path, FileProgress())
        return done.complete or done.bytes >= self._ends.get(found.path, done.bytes + 1)

    def _progress_in(self, part: Part, lines: int) -> FileProgress:
        at = _byte_of(part, lines)
        return FileProgress(part.first_line - 1 + lines, at, complete=at >= self._ends[part.path])

    def _take_up(self, found: Found) -> None:
        """Check that a file is still what the checkpoint remembers; one that has grown since is not complete any
        more."""
        done = self._done.get(found.path)
        if done is None:
            return
        size = _check_unchanged(found, done)
        self._done[found.path] = replace(done, complete=size == done.bytes)

    def _check_present(self) -> None:
        there = {found.path for found in self._files}
        for path, file in self._done.items():
            if not file.complete and path not in there:
                raise CheckpointError(
                    f"{path} was read to line {file.lines} only, and is not among the files any more: bring it back, or"
                    " remove the checkpoint to read the input from its beginning"
                )

    def _walk(self) -> Iterator[Block]:
        """The lines of all files from where each was left, a block at a time."""
        for found in self._files:
            try:
                self._ends[found.path] = size = os.stat(found.path).st_size
                yield from _blocks_of(found, self._done.get(found.path, FileProgress()), size, self._block_bytes)
            except OSError as error:
                raise InputChanged(f"{found.shown} cannot be read ({error.strerror}): {to_read(error)}") from None

    def _parts_of(self, records: Records) -> Records:
        """Index of the part of each record. LookupError for one that is done and forgotten, or was never planned."""
        if len(records) and not (self._parts and self._firsts[0] <= records[0] <= records[-1] < self._planned):
            raise LookupError("these records are not planned yet, or done and forgotten")
        return np.searchsorted(np.array(self._firsts, np.int64), records, side="right") - 1

    def _chosen(self, records: Records) -> Iterator[Part]:
        """The parts that ``records`` stand in, cut to the records wanted."""
        if not len(records):
            return
        parts = self._parts_of(records)
        starts = np.flatnonzero(np.concatenate(([True], parts[1:] != parts[:-1])))
        for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(records)], strict=True):
            index = int(parts[start])
            part = self._parts[index]
            if stop - start == part.count:
                yield part
            else:
                yield replace(part, selected=tuple((records[start:stop] - self._firsts[index]).tolist()))


def find_files(paths: Paths) -> list[Found]:
    """Expand paths and patterns (``**`` too), in the order given, each pattern sorted, no file twice.

    Raises ``SourceError`` for a pattern that matches nothing, a directory, and what is not a file of lines.
    """
    given = [paths] if isinstance(paths, str | os.PathLike) or not isinstance(paths, Iterable) else list(paths)
    for path in given:
        if not isinstance(path, str | os.PathLike):
            raise SourceError(f"Files: {path!r} is no path: name a file, or a pattern like 'orders/*.jsonl'")
    if not given:
        raise SourceError("Files: no path was given: name a file, or a pattern like 'orders/*.jsonl'")
    found: dict[str, Found] = {}
    for pattern in given:
        for shown in _expand(os.fspath(pattern)):
            found.setdefault(os.path.abspath(shown), Found(os.path.abspath(shown), shown))
    return list(found.values())


def _expand(pattern: str) -> list[str]:
    if "://" in pattern:
        raise SourceError(f"Files: {pattern!r} is a URL, and Files reads local paths: mount it or copy it first")
    if os.path.isdir(pattern):
        raise SourceError(f"Files: {pattern!r} is a directory: write {os.path.join(pattern, '*')!r}")
    matches = [pattern] if os.path.exists(pattern) else sorted(glob.glob(pattern, recursive=True))
    files = [match for match in matches if not os.path.isdir(match)]
    if not files:
        raise SourceError(f"Files: nothing matches {pattern!r} (working directory: {os.getcwd()})")
    for file in files:
        if Path(file).suffix.lower() in PACKED:
            raise SourceError(f"Files: {file!r} is not a file of lines: unpack or convert it, or narrow the pattern")
    return files


def _blocks_of(found: Found, done: FileProgress, size: int, block_bytes: int) -> Iterator[Block]:
    """The lines of a file from ``done`` to ``size``, in blocks of whole lines of about ``block_bytes``."""
    start, line = done.bytes, done.lines
    with open(found.path, "rb") as file:
        while start < size:
            starts, stop = _read_block(file, start, size, block_bytes)
            if stop == start:
                raise InputChanged(f"{found.shown} has become shorter while it was read: write a new file beside it")
            yield Block(found, starts, stop, line + 1)
            start, line = stop, line + len(starts)


def _read_block(file: BinaryIO, start: int, size: int, block_bytes: int) -> tuple[Records, int]:
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


def _byte_of(part: Part, line: int) -> int:
    """Where the line with index ``line`` of a part begins in the file."""
    if line in (0, part.count):
        return part.stop if line else part.start
    starts, _ = find_lines(read_bytes(part.path, part.shown, part.start, part.stop))
    if line >= len(starts):
        raise InputChanged(f"{part.shown} has changed while it was read: write a new file beside it instead")
    return part.start + int(starts[line])


def _balance(parts: list[Part], partitions: int) -> Iterator[list[Part]]:
    """Group parts, in order, into at most ``partitions`` groups of about the same number of lines."""
    total = sum(len(part) for part in parts)
    together: list[Part] = []
    before, group = 0, 0
    for part in parts:
        wanted = before * partitions // max(1, total)
        if together and wanted != group:
            yield together
            together = []
        group = wanted
        together.append(part)
        before += len(part)
    if together:
        yield together


def _originals(part: Part) -> list[Original]:
    wanted = range(part.count) if part.selected is None else part.selected
    try:
        raw = read_bytes(part.path, part.shown, part.start, min(part.stop, part.start + LINE_BYTES_MAX))
    except InputChanged:
        return [Original(part.shown, part.first_line + index, part.start, None) for index in wanted]
    starts, ends = find_lines(raw, at_beginning=part.start == 0)
    originals = []
    for index in wanted:
        value = raw[starts[index] : ends[index]] if index < len(starts) else None
        byte = part.start + (int(starts[index]) if 0 < index < len(starts) else 0)
        originals.append(Original(part.shown, part.first_line + index, byte, value))
    return originals


def _check_reaches(part: Part) -> None:
    """A record that is emitted must still be there; executors check the rest when they read."""
    try:
        size = os.stat(part.path).st_size
    except OSError as error:
        raise InputChanged(f"{part.shown} cannot be read any more ({error.strerror}): {to_read(error)}") from None
    if size < part.stop:
        raise InputChanged(
            f"{part.shown} had {part.stop} bytes when its lines were counted and now has {size}: a file must not shrink"
            " while it is read; write a new file beside it"
        )


def _check_unchanged(found: Found, file: FileProgress) -> int:
    """The size of a file. Raises ``CheckpointError`` if it is not the one that was read up to ``file``, and
    ``InputChanged`` if it cannot be read at all."""
    try:
        size = os.stat(found.path).st_size
        with open(found.path, "rb"):
            pass
    except OSError as error:
        raise InputChanged(f"{found.shown} cannot be read ({error.strerror}): {to_read(error)}") from None
    fix = "give new data a new file name, or remove the checkpoint to read the input from its beginning"
    if size < file.bytes:
        raise CheckpointError(f"{found.shown} was read to byte {file.bytes} and now has only {size}: {fix}")
    if _mark(found.path, file.bytes) != file.mark:
        raise CheckpointError(f"{found.shown} is not what it was when it was read to byte {file.bytes}: {fix}")
    if size > file.bytes and read_bytes(found.path, found.shown, file.bytes - 1, file.bytes) != b"\n":
        raise CheckpointError(
            f"{found.shown} has grown, and its last line (line {file.lines}) had been read when nothing ended it: end"
            f" every line with a line feed before a source reads it; {fix}"
        )
    return size


def _mark(path: str, position: int) -> str:
    """Digest of what stands at the beginning of a file and right before ``position``; GONE if it was taken away."""
    try:
        head = read_bytes(path, path, 0, min(MARK_BYTES, position))
        tail = read_bytes(path, path, max(0, position - MARK_BYTES), position)
    except InputChanged:
        return GONE
    return hashlib.blake2b(head + tail, digest_size=16).hexdigest()


def _read_progress(progress: Progress) -> dict[str, FileProgress]:
    try:
        return {
            file["path"]: FileProgress(
                int(file["lines"]), int(file["bytes"]), bool(file["complete"]), str(file["mark"])
            )
            for file in progress["files"]
        }
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"the checkpoint does not say how far which file is done ({error!r})") from None
