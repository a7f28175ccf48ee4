"""The local files of an input: which there are, and which file of the last listing each one is.

A file is read up to the size that it has when its turn comes. If files are followed, this module finds new files, and
continues with a file that was renamed.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

from acker_client.source.decoding.content import LinePart, LocalContent, size_of
from acker_client.source.decoding.renamed import paths_by_inode
from acker_client.source.disk import to_read
from acker_client.source.errors import CheckpointError, InputChanged
from acker_client.source.files.line_file import FileMark, LineFile
from acker_client.source.files.line_files import find_line_files, line_file
from acker_client.source.paths import Found, Paths, printable
from acker_client.source.records.input import Committed, Mark
from acker_client.source.records.ranges import Ranges

log = logging.getLogger("acker_client.source")

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
        self, file: LineFile, inode: int, known: Container[int | None], *, may_be_here: bool = True
    ) -> Found | None:
        """Return the current location of ``file``, which has ``inode``; None if it is gone.

        A new file at its path counts as the same file if it begins with all that was read, unless its inode is among
        ``known``, the inodes of all known files. ``may_be_here``: whether the file may still be at its path.
        """
        path = file.content.path
        here = self.by_path.get(path) if may_be_here else None
        paths = self.by_inode.get(inode, [])
        if here and path in paths:
            return here  # if it does not fit, it was truncated; a later check refuses it
        replacement = here and (self.inodes[path] not in known) and path
        for candidate in (*paths, self._renamed(path, inode), replacement):
            if candidate and file.fits(LocalContent(candidate)):
                return self.by_path.get(candidate) or _beside(candidate, file.shown)
        return None

    def _renamed(self, path: str, inode: int) -> str | None:
        folder = os.path.dirname(path)
        if folder not in self.folders:
            self.folders[folder] = paths_by_inode(folder)
        return self.folders[folder].get(inode)


class LocalFiles:
    """The local files that ``paths`` name. ``asker``: the name of the source in error messages."""

    def __init__(self, paths: Paths, asker: str, own_files: Sequence[Path], *, is_followed: bool) -> None:
        self._paths = paths
        self._asker = asker
        self._own_files = own_files
        self._is_followed = is_followed
        # By partition: all files that may have parts, and the files among them that may have more lines to plan.
        self._files: dict[str, LineFile] = {}
        self._live: dict[str, LineFile] = {}
        # By partition: how many listings in a row have missed a live file.
        self._missing: dict[str, int] = {}
        # Partitions whose mark in the checkpoint has an earlier location of their file.
        self._moved: set[str] = set()

    def __len__(self) -> int:
        return len(self._live)

    def start(self, committed: Mapping[str, Committed]) -> None:
        listing = self._list()
        self._files, self._live, self._missing, self._moved = {}, {}, {}, set()
        marks = {partition: FileMark.of(partition, committed[partition]) for partition in _by_age(committed)}
        # A path or an inode may have had several files. It belongs to the last one, or to the one that has both.
        paths = {mark.path: partition for partition, mark in marks.items()}
        inodes = {mark.inode: partition for partition, mark in marks.items()}
        last = {path: marks[partition].inode for path, partition in paths.items()}
        inodes |= {
            inode: paths[path]
            for path, inode in last.items()
            if inode is not None
            and listing.inodes.get(path) == inode
            and _is_there(path, paths[path], inodes[inode], marks)
        }
        known = {
            found.path: file
            for partition, mark in marks.items()
            for found, file in self._resume(partition, mark, listing, paths, inodes)
        }
        for file in self._in_order(known, listing):
            self._live[file.partition] = self._files[file.partition] = file

    def list_again(self) -> None:
        """List the paths again, and find the files that are new, were renamed, or were removed."""
        listing = self._list()
        gone = self._locate(list(self._live.values()), listing)
        self._missing = {file.partition: self._missing.get(file.partition, 0) + 1 for file in gone}
        for file in gone:
            self._handle_missing(file)
        taken = {_inode_of(file) for file in self._live.values() if file.partition not in self._missing}
        for path, found in listing.by_path.items():
            if listing.inodes[path] not in taken:
                file = self._add_new(found, listing)
                self._live[file.partition] = file
                taken.add(listing.inodes[path])

    def unplanned(self) -> Iterator[tuple[LineFile, BinaryIO]]:
        """Yield the files that may have lines to plan, each of them open."""
        for file in list(self._live.values()):
            if file.partition in self._missing:
                continue
            try:
                # A new file may have its inode. A file that was truncated in its place has an error of its own.
                opened = (file.recognized if _has_left(file) else file.content).open(file.shown)
            except InputChanged:
                if not (_has_left(file) and file.is_read()):
                    raise
                continue  # the next listing finds a copy of it, or counts it as missing
            yield file, opened

    def add_part(self, part: LinePart) -> None:
        self._files[part.partition].add_part(part)

    def advance(self, partition: str, done: Ranges) -> None:
        self._files[partition].forget_positions(done)

    def mark(self, partition: str, done: Ranges) -> Mark:
        return self._files[partition].mark(done)

    def take_moved(self) -> list[str]:
        """Return the partitions whose file has another location since the last call."""
        moved, self._moved = sorted(self._moved), set()
        return moved

    def located(self, parts: Sequence[LinePart]) -> list[LinePart]:
        """Return the parts with the current location of their files. Raises ``InputChanged`` if their bytes are gone.

        Executors check the content when they read it.
        """
        return [_present(part) for part in self.last_located(parts)]

    def last_located(self, parts: Sequence[LinePart]) -> list[LinePart]:
        """Return the parts with the current location of their files, or the last one of a file that is gone."""
        partitions = {part.partition for part in parts}
        left = [file for file in map(self._live.get, partitions) if file is not None and _has_left(file)]
        if left and self._is_followed:
            self._locate(left, self._list())
        # A part without a content of its own is of a file that is not followed.
        return [part if part.at is None else replace(part, at=self._files[part.partition].recognized) for part in parts]

    def progress(self, done: Mapping[str, Ranges]) -> tuple[int, int, str]:
        """Return the number of files, the number of those that are not done, and where the first of these stands."""
        # Copied at once, because any thread may ask.
        left = [file for file in list(self._files.values()) if not _is_ended(file, done)]
        files = {**self._live, **{file.partition: file for file in left}}
        if not left:
            return len(files), 0, ""
        at = done.get(left[0].partition, Ranges()).prefix
        where = f"{left[0].shown} to line {at}" if at or left[0].lines is not None else ""
        return len(files), len(left), where

    def _list(self) -> Listing:
        files = find_line_files(
            self._paths, asker=self._asker, may_be_none=self._is_followed, own_files=self._own_files
        )
        return Listing.of(files, may_be_gone=self._is_followed)

    def _resume(
        self,
        partition: str,
        mark: FileMark,
        listing: Listing,
        paths: Mapping[str, str],
        inodes: Mapping[int | None, str],
    ) -> Iterator[tuple[Found, LineFile]]:
        """Yield the file of a mark, if the file still exists. ``paths``, ``inodes``: the last partition that had each.

        Raises ``CheckpointError`` for another file in its place, or if the file was removed before it was done.
        """
        here = listing.by_path.get(mark.path)
        file = line_file(partition, here.shown if here else mark.path, LocalContent(mark.path), mark)
        self._files[partition] = file
        if mark.inode is not None:
            may_be_here = paths[mark.path] == partition
            is_gone = inodes[mark.inode] != partition
            here = None if is_gone else listing.locate(file, mark.inode, inodes, may_be_here=may_be_here)
        if here is None:
            if not mark.complete:
                raise CheckpointError(
                    f"{mark.path} was read to line {mark.lines} only, and is not among the files any more: bring it"
                    " back, or remove the checkpoint to read the input from its beginning"
                )
            # The file is read no more. It keeps its partition name, so that no other file gets this name.
            file.content = LocalContent(mark.path, mark.inode)
            return
        file.move(LocalContent(here.path), here.shown)
        file.check()
        file.content = LocalContent(here.path, self._inode_at(here.path, listing, mark.inode is not None))
        if mark.inode is not None and file.content != LocalContent(mark.path, mark.inode):
            self._moved.add(partition)
        yield here, file

    def _inode_at(self, path: str, listing: Listing, was_followed: bool) -> int | None:
        if not self._is_followed and not was_followed:
            return None
        return listing.inodes.get(path) or os.stat(path).st_ino

    def _in_order(self, known: Mapping[str, LineFile], listing: Listing) -> Iterator[LineFile]:
        """Yield all files. Files that no path names any more come first, because their lines are the oldest."""
        yield from (file for path, file in known.items() if path not in listing.by_path)
        taken = {_inode_of(file) for file in known.values()}
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
        # A mark without an inode has no path either: its partition has the name of the path.
        inode = listing.inodes[found.path] if self._is_followed or partition != found.path else None
        file = line_file(partition, found.shown, LocalContent(found.path, inode), None)
        self._files[partition] = file
        return file

    def _locate(self, files: Sequence[LineFile], listing: Listing) -> list[LineFile]:
        """Set the current location of files. Returns those of them that are gone."""
        gone, known = [], {_inode_of(file) for file in self._live.values()}
        for file in files:
            inode = _inode_of(file)
            assert inode is not None
            now = listing.locate(file, inode, known)
            if now is None:
                gone.append(file)
                continue
            if now.path != file.content.path:
                log.info("%s is called %s now, and is read on there", file.shown, now.shown)
            content = LocalContent(now.path, listing.inodes.get(now.path, inode))
            if content != file.content:
                self._moved.add(file.partition)
            file.move(content, now.shown)
        return gone

    def _handle_missing(self, file: LineFile) -> None:
        """Drop a file that several listings have missed. Raises ``InputChanged`` if it was not read to its end."""
        if self._missing[file.partition] < MISSING_MAX:
            return
        if not file.is_read():
            raise InputChanged(
                f"{file.shown} was removed, or written anew, before it was read to its end: keep what was rotated"
                " until it has been read"
            )
        del self._live[file.partition], self._missing[file.partition]


def _by_age(partitions: Collection[str]) -> list[str]:
    """Return the partitions with those of one path sorted by age: `app.log`, `app.log#2` ... `app.log#10`. They share
    the places that they had."""
    numbered = [_path_and_number(partition) for partition in partitions]
    by_age = sorted(zip(numbered, partitions, strict=True))
    of_path = {path: iter([name for (its, _), name in by_age if its == path]) for path, _ in numbered}
    return [next(of_path[path]) for path, _ in numbered]


def _is_there(path: str, partition: str, last: str, marks: Mapping[str, FileMark]) -> bool:
    """Whether the file at ``path`` is the one of ``partition``, which was there with this inode, and not the file of
    ``last``, the last partition that had the inode. A mark keeps the place of a file that was removed since."""

    def fits(name: str) -> bool:
        return line_file(name, path, LocalContent(path), marks[name]).fits(LocalContent(path))

    if partition == last:
        return True
    is_newer = _path_and_number(partition)[0] == _path_and_number(last)[0]
    return fits(partition) and not (is_newer and fits(last))


def _path_and_number(partition: str) -> tuple[str, int]:
    path, _, number = partition.rpartition("#")
    return (path, int(number)) if path and number.isdecimal() else (partition, 1)


def _beside(path: str, shown: str) -> Found:
    """Return the file at ``path``, shown like ``shown``, a file in the same folder."""
    return Found(path, os.path.join(os.path.dirname(shown), printable(os.path.basename(path))))


def _is_ended(file: LineFile, done: Mapping[str, Ranges]) -> bool:
    return file.lines is not None and done.get(file.partition, Ranges()).prefix >= file.lines


def _inode_of(file: LineFile) -> int | None:
    return file.content.inode if isinstance(file.content, LocalContent) else None


def _has_left(file: LineFile) -> bool:
    """Return whether a file that may be renamed is not at its path any more."""
    inode = _inode_of(file)
    try:
        return inode is not None and os.stat(file.content.path).st_ino != inode
    except OSError:
        return True


def _present(part: LinePart) -> LinePart:
    with part.content.open(part.shown) as file:
        size = size_of(file)
    if size < part.stop_byte and part.packed is None:
        raise InputChanged(
            f"{part.shown} had {part.stop_byte} bytes when its lines were counted and now has {size}: a file must"
            " not shrink while it is read; write a new file beside it"
        )
    return part
