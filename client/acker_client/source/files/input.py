"""Lists the files of the input, and plans their lines. Runs in the driver.

A file is a partition, and the position of a line is its index. Files are read in the order of the paths. The files of
one pattern are sorted. Lines are cut into parts that executors can read. If files are followed, this module finds new
files, and continues with a file that was renamed. A file is read up to the size that it has when its turn comes.
``line_files`` finds the lines inside a file.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa

from acker_client.source.decoding.content import LinePart, open_part, paths_by_inode, read_content
from acker_client.source.decoding.json_lines import JsonParser
from acker_client.source.decoding.lines import LINE_BYTES_MAX, LineSlice, Parser, find_lines
from acker_client.source.decoding.values import ddl_of
from acker_client.source.disk import to_read
from acker_client.source.errors import CheckpointError, InputChanged, SourceError
from acker_client.source.files.line_files import BLOCK_BYTES, CODECS, Block, FileMark, LineFile, line_file
from acker_client.source.paths import Found, Paths, check_not_own, find_files, origins_of, printable
from acker_client.source.records.balance import sliced
from acker_client.source.records.input import Chosen, Committed, Mark, Original, Plan
from acker_client.source.records.ranges import Ranges

log = logging.getLogger("acker_client.source")

# Ends of names of files that are packed, or not made of lines.
PACKED = frozenset(
    {".7z", ".arrow", ".avro", ".br", ".bz2", ".deflate", ".feather", ".lz", ".lz4", ".lzma", ".lzo", ".lzo_deflate"}
    | {".orc", ".parquet", ".rar", ".snappy", ".sz", ".tar", ".tbz2", ".tgz", ".txz", ".xz", ".z", ".zip", ".zlib"}
    | {".zst", ".zstd"}
)
# A listing may miss a file that is renamed meanwhile. A file counts as removed once this many listings missed it.
MISSING_MAX = 2


@dataclass(slots=True)
class Listing:
    """The files found by one listing: by path, and the paths by inode."""

    by_path: dict[str, Found] = field(default_factory=dict)
    by_inode: dict[int, list[str]] = field(default_factory=dict)
    inodes: dict[str, int] = field(default_factory=dict)
    # The paths in a folder by inode, for folders in which a file is missing. Each folder is scanned once.
    folders: dict[str, dict[int, str]] = field(default_factory=dict)

    @classmethod
    def of(cls, files: Sequence[Found], *, may_be_gone: bool) -> Listing:
        listing = cls()
        for found in files:
            try:
                inode = os.stat(found.path).st_ino
            except OSError as error:
                if may_be_gone and isinstance(error, FileNotFoundError):
                    continue  # renamed since, or removed
                raise InputChanged(f"{found.shown} cannot be read ({error.strerror}): {to_read(error)}") from None
            listing.by_path[found.path] = found
            listing.inodes[found.path] = inode
            listing.by_inode.setdefault(inode, []).append(found.path)
        return listing

    def locate(
        self, path: str, shown: str, inode: int, fits: Callable[[str], bool], others: Container[int | None] = ()
    ) -> Found | None:
        """Return the current location of the file that was at ``path`` and has ``inode``; None if it is gone.

        A new file at ``path`` counts as the same file if it begins with all that was read, unless its inode belongs to
        one of the known ``others``. ``fits`` checks this beginning for a path.
        """
        here = self.by_path.get(path)
        paths = self.by_inode.get(inode, [])
        if path in paths:
            return here  # if it does not fit, it was truncated; a later check refuses it
        replacement = here and (self.inodes[path] not in others) and path
        for candidate in (*paths, self._renamed(path, inode), replacement):
            if candidate and fits(candidate):
                return self.by_path.get(candidate) or _beside(candidate, shown)
        return None

    def _renamed(self, path: str, inode: int) -> str | None:
        folder = os.path.dirname(path)
        if folder not in self.folders:
            self.folders[folder] = paths_by_inode(folder)
        return self.folders[folder].get(inode)


class FileInput:
    """Lines of files as an ``Input``.

    ``follow_s``: the interval at which the paths are listed again, for files that are new, have grown or were renamed;
    None: the files are read once. ``clock``: monotonic seconds.
    """

    kind = "files"
    # The name of the source in error messages.
    asker = "Files"

    def __init__(
        self,
        paths: Paths,
        parser: Parser,
        *,
        own_files: Sequence[Path] = (),
        block_bytes: int = BLOCK_BYTES,
        follow_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.parser = parser
        self._paths = paths
        self._own_files = own_files
        self._block_bytes = block_bytes
        self._follow_s = follow_s
        self._clock = clock
        # By partition: all files that may have parts, and the files among them that may have more lines to plan.
        self._files: dict[str, LineFile] = {}
        self._live: dict[str, LineFile] = {}
        self._missing: dict[str, int] = {}
        self._blocks: Iterator[Block] = iter(())
        self._left: Block | None = None
        self._listed_s = 0.0

    @property
    def _is_followed(self) -> bool:
        return self._follow_s is not None

    def start(self, committed: Mapping[str, Committed]) -> None:
        listing = self._list()
        if not listing.by_path:
            log.warning(
                "%s: nothing matches %r yet; looking for it every %g s", self.asker, self._paths, self._follow_s
            )
        self._files, self._live, self._missing = {}, {}, {}
        marks = {partition: FileMark.of(partition, each) for partition, each in committed.items()}
        known = {
            found.path: file
            for partition, mark in marks.items()
            for found, file in self._resume(partition, mark, listing)
        }
        for file in self._in_order(known, listing):
            self._live[file.partition] = self._files[file.partition] = file
        self._blocks, self._left = self._walk(), None

    def plan(self, records_max: int, tasks: int) -> Plan[LinePart]:
        parts: list[LinePart] = []
        part_records = max(1, records_max // (2 * tasks))
        room = records_max
        while room > 0 and (block := self._left or self._next_block()) is not None:
            part, self._left = block.cut(min(part_records, room))
            self._files[part.partition].add_part(part)
            parts.append(part)
            room -= len(part)
        return Plan(parts, is_end=not parts and not self._is_followed)

    def slices(self, chosen: Sequence[Chosen[LinePart]], tasks: int) -> list[LineSlice]:
        present = [Chosen(self._check_present(each.part), each.offsets) for each in chosen]
        return sliced(present, tasks, lambda start, stop, some: LineSlice(start, stop, some, self.parser))

    def origins(self, chosen: Sequence[Chosen[LinePart]]) -> pa.RecordBatch:
        return origins_of([(each.part.shown, each.positions + 1) for each in chosen], "line")

    def originals(self, chosen: Sequence[Chosen[LinePart]]) -> list[Original]:
        found = [original for each in chosen for original in _originals(each, self._located(each.part))]
        if not isinstance(self.parser, JsonParser):
            return found
        return [replace(original, schema=ddl_of(self.parser.schema)) for original in found]

    def advance(self, partition: str, done: Ranges) -> None:
        self._files[partition].forget_positions(done)

    def mark(self, partition: str, done: Ranges) -> Mark:
        return self._files[partition].mark(done)

    def describe(self, done: Mapping[str, Ranges]) -> str:
        left = [file for file in self._files.values() if not _is_ended(file, done)]
        files = {**self._live, **{file.partition: file for file in left}}
        of = f"{len(files)} {'file' if len(files) == 1 else 'files'}"
        if not left:
            return f"all that is there so far ({of})" if self._is_followed else f"end of the input ({of})"
        at = done.get(left[0].partition, Ranges()).prefix
        where = f", {left[0].found.shown} to line {at}" if at or left[0].lines is not None else ""
        return f"{len(files) - len(left)} of {of}{where}"

    # -- identify files

    def _list(self) -> Listing:
        files = find_line_files(self._paths, asker=self.asker, may_be_none=self._is_followed)
        check_not_own(files, self._own_files, self.asker, self._paths)
        self._listed_s = self._clock()
        return Listing.of(files, may_be_gone=self._is_followed)

    def _resume(self, partition: str, mark: FileMark, listing: Listing) -> Iterator[tuple[Found, LineFile]]:
        """Yield the file of a mark, if the file still exists.

        Raises ``CheckpointError`` for another file in its place, or if the file was removed before it was done.
        """
        here = listing.by_path.get(mark.path)
        if mark.inode is not None:
            fits = line_file(partition, Found(mark.path, mark.path), mark, None).fits
            here = listing.locate(mark.path, here.shown if here else mark.path, mark.inode, fits)
        if here is None:
            if not mark.complete:
                raise CheckpointError(
                    f"{mark.path} was read to line {mark.lines} only, and is not among the files any more: bring it"
                    " back, or remove the checkpoint to read the input from its beginning"
                )
            # The file is read no more. It keeps its partition name, so that no other file gets this name.
            self._files[partition] = line_file(partition, Found(mark.path, mark.path), mark, mark.inode)
            return
        file = line_file(partition, Found(mark.path, here.shown), mark, None)
        file.move(here)
        file.check()
        file.inode = self._inode_at(here.path, listing, mark.inode is not None)
        yield here, file

    def _inode_at(self, path: str, listing: Listing, was_followed: bool) -> int | None:
        if not self._is_followed and not was_followed:
            return None
        return listing.inodes.get(path) or os.stat(path).st_ino

    def _in_order(self, known: Mapping[str, LineFile], listing: Listing) -> Iterator[LineFile]:
        """Yield all files. Files that no path names any more come first, because their lines are the oldest."""
        yield from (file for path, file in known.items() if path not in listing.by_path)
        taken = {file.inode for file in known.values() if file.inode is not None}
        for path, found in listing.by_path.items():
            if path in known:
                yield known[path]
            elif listing.inodes[path] not in taken:
                yield self._add_new(found, listing)
                if self._is_followed:
                    taken.add(listing.inodes[path])

    def _add_new(self, found: Found, listing: Listing) -> LineFile:
        """Add an unknown file. Its partition has the name of its path, with a number if that name is taken."""
        partition, number = found.path, 1
        while partition in self._files:
            number += 1
            partition = f"{found.path}#{number}"
        file = line_file(partition, found, None, listing.inodes[found.path] if self._is_followed else None)
        self._files[partition] = file
        return file

    def _list_files(self) -> None:
        """List the paths again, and find the files that are new, were renamed, or were removed."""
        listing = self._list()
        taken: set[int] = set()
        others = {file.inode for file in self._live.values()}
        for file in list(self._live.values()):
            assert file.inode is not None
            now = listing.locate(file.found.path, file.found.shown, file.inode, file.fits, others)
            self._missing[file.partition] = 0 if now else self._missing.get(file.partition, 0) + 1
            if now is None:
                self._handle_missing(file)
                continue
            if now.path != file.found.path:
                log.info("%s is called %s now, and is read on there", file.found.shown, now.shown)
            file.move(now)
            file.inode = listing.inodes.get(now.path, file.inode)
            taken.add(file.inode)
        for path, found in listing.by_path.items():
            if listing.inodes[path] not in taken:
                file = self._add_new(found, listing)
                self._live[file.partition] = file
                taken.add(listing.inodes[path])

    def _handle_missing(self, file: LineFile) -> None:
        """Drop a file that several listings have missed. Raises ``InputChanged`` if it was not read to its end."""
        if self._missing[file.partition] < MISSING_MAX:
            return
        if not file.is_read():
            raise InputChanged(
                f"{file.found.shown} was removed, or written anew, before it was read to its end: keep what was rotated"
                " until it has been read"
            )
        del self._live[file.partition], self._missing[file.partition]

    # -- plan lines

    def _next_block(self) -> Block | None:
        block = next(self._blocks, None)
        if block is None and self._follow_s is not None and self._clock() - self._listed_s >= self._follow_s:
            self._list_files()
            self._blocks = self._walk()
            block = next(self._blocks, None)
        return block

    def _walk(self) -> Iterator[Block]:
        """Yield the lines of all files that are not planned yet, in blocks."""
        for file in list(self._live.values()):
            if not self._missing.get(file.partition):
                yield from file.blocks(self._block_bytes, is_followed=self._is_followed)

    def _located(self, part: LinePart) -> LinePart:
        """Return the part with the current path of its file."""
        file = self._files[part.partition]
        return part if part.inode is None else replace(part, path=file.found.path, inode=file.inode)

    def _check_present(self, part: LinePart) -> LinePart:
        """Return the part with the current path of its file. Raises ``InputChanged`` if its bytes are gone.

        Executors check the content when they read it.
        """
        now = self._located(part)
        try:
            with open_part(now) as file:
                size = os.fstat(file.fileno()).st_size
        except OSError as error:
            raise InputChanged(f"{part.shown} cannot be read any more ({error.strerror}): {to_read(error)}") from None
        if size < part.stop_byte and part.packed is None:
            raise InputChanged(
                f"{part.shown} had {part.stop_byte} bytes when its lines were counted and now has {size}: a file must"
                " not shrink while it is read; write a new file beside it"
            )
        return now


def find_line_files(paths: Paths, *, asker: str = "Files", may_be_none: bool = False) -> list[Found]:
    """Return the files that ``paths`` name; see ``find_files``.

    Raises ``SourceError`` also for a directory, and for a file that is not made of lines.
    """
    found = find_files(
        paths,
        asker=asker,
        example="orders/*.jsonl",
        in_directory=lambda path: _refuse_directory(path, asker),
        may_be_none=may_be_none,
    )
    for file in found:
        name = Path(file.path)
        if name.suffix.lower() in PACKED or [suffix.lower() for suffix in name.suffixes[-2:]] == [".tar", ".gz"]:
            what = "use Parquet" if file.path.endswith(".parquet") else "unpack or convert it"
            raise SourceError(
                f"{asker}: {file.shown!r} is not a file of lines, and {asker} reads {CODECS}: {what}, or narrow the"
                " pattern"
            )
    return found


def _refuse_directory(path: str, asker: str) -> list[str]:
    raise SourceError(f"{asker}: {path!r} is a directory: write {os.path.join(path, '*')!r}")


def _beside(path: str, shown: str) -> Found:
    """Return the file at ``path``, shown like ``shown``, a file in the same folder."""
    return Found(path, os.path.join(os.path.dirname(shown), printable(os.path.basename(path))))


def _is_ended(file: LineFile, done: Mapping[str, Ranges]) -> bool:
    return file.lines is not None and done.get(file.partition, Ranges()).prefix >= file.lines


def _originals(chosen: Chosen[LinePart], now: LinePart) -> list[Original]:
    """Read the chosen lines again. ``now``: the part with the current path of its file."""
    part, wanted = chosen.part, (chosen.positions - chosen.part.start).tolist()
    try:
        stop = min(part.stop_byte, part.first_byte + LINE_BYTES_MAX)
        raw = read_content(now, part.first_byte, stop)
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
