"""The objects of an input in a store: which there are, and whether each one is still what it was.

An object is complete when it appears, and never changes. An object that is replaced is refused, also after it was
removed. An object that was replaced before any of it was read is read in its new version. There may be a million
objects, so what is known of them is in columns, and only objects with open records have a Python object.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, BinaryIO

import numpy as np

from acker_client.source.decoding.content import LinePart, StoredContent
from acker_client.source.errors import FIX, CheckpointError, InputChanged, SourceError
from acker_client.source.files.line_file import FileMark, LineFile
from acker_client.source.files.line_files import PACKED, check_names, line_file
from acker_client.source.records.input import Committed, Mark
from acker_client.source.records.ranges import Ranges
from acker_client.source.storage.ahead import ahead
from acker_client.source.storage.listing import find_objects
from acker_client.source.storage.objects import Backlog, Objects
from acker_client.source.storage.store import Opened, Store
from acker_client.source.waiting import OutOfReach

_PACKED = "(?i)(?:" + "|".join(re.escape(suffix) for suffix in sorted({*PACKED, ".tar.gz"})) + ")$"


class StoredFiles:
    """The objects that ``patterns`` name in ``store``. ``asker``: the name of the source in error messages. ``own``:
    URLs that the source itself writes to."""

    def __init__(
        self, store: Store, patterns: Sequence[str], asker: str, own: Sequence[str], *, is_followed: bool
    ) -> None:
        self.store = store
        self._patterns = patterns
        self._asker = asker
        self._own = own
        self._is_followed = is_followed
        self._backlog = Backlog(Objects.of([]))
        # By partition: the objects that are not done, and the marks of those that are.
        self._files: dict[str, tuple[int, LineFile]] = {}
        self._ended: dict[str, Mark] = {}
        # Partitions that were opened for the records of the next batch.
        self._fresh: set[str] = set()
        # Partitions of which all lines were planned since the last plan.
        self._planned: set[str] = set()

    def __len__(self) -> int:
        return len(self._backlog.known)

    def start(self, committed: Mapping[str, Committed]) -> None:
        listed = self._list()
        self._backlog = Backlog(listed)
        self._files, self._ended, self._fresh, self._planned = {}, {}, set(), set()
        gone: list[tuple[str, int, int]] = []
        for (partition, each), place in zip(committed.items(), listed.places_of(committed).tolist(), strict=True):
            mark = FileMark.of(partition, each)
            if place < 0 and not mark.complete:
                raise CheckpointError(
                    f"{partition} was read to line {mark.lines} only, and is not among the files any more: bring it"
                    " back, or remove the checkpoint to read the input from its beginning"
                )
            if place >= 0 and (mark.size, mark.modified_ns) != (listed.sizes[place], listed.modified_ns[place]):
                self._refuse_other(partition, mark.digest)
            if mark.complete:
                self._ended[partition] = each.mark
                if place >= 0:
                    self._backlog.is_done[place] = True
                else:
                    gone.append((partition, mark.size, mark.modified_ns))
            else:
                content = StoredContent(self.store, self.store.path_of(partition), mark.digest)
                self._files[partition] = place, line_file(partition, partition, content, mark)
        self._backlog.add(Objects.of(gone), np.ones(len(gone), np.bool_))

    def list_again(self) -> None:
        """List the paths again, and find the objects that are new. Raises ``InputChanged`` for one that was replaced,
        or that was removed before it was read to its end."""
        listed = self._list()
        known = self._backlog.known
        places = listed.places_of_all(known)
        for index in np.flatnonzero((places < 0) & ~self._backlog.is_done).tolist():
            self._check_read(index)
        for index in np.flatnonzero(known.differ(listed, places)).tolist():
            self._check_changed(index)
        new = known.take_over(listed, places)
        self._backlog.add(new, np.zeros(len(new), np.bool_))

    def unplanned(self) -> Iterator[tuple[LineFile, BinaryIO]]:
        """Yield the objects that may have lines to plan, each of them open."""
        for index, (opened, file) in ahead(self._open, self._backlog, lambda each: each[1].close()):
            yield self._file_of(index, opened), file
            self._note_planned(index)

    def add_part(self, part: LinePart) -> None:
        if part.partition not in self._files:
            return  # all lines of the object are done
        index, file = self._files[part.partition]
        self._fresh.add(part.partition)
        self._backlog.unfinished.discard(index)
        file.add_part(part)

    def advance(self, partition: str, done: Ranges) -> None:
        if partition not in self._files:
            return
        index, file = self._files[partition]
        file.forget_positions(done)
        if file.lines is not None and done.prefix >= file.lines:
            self._ended[partition] = self.mark(partition, done)
            self._backlog.is_done[index] = True
            del self._files[partition]

    def mark(self, partition: str, done: Ranges) -> Mark:
        if partition not in self._files:
            return self._ended[partition]
        index, file = self._files[partition]
        size, modified_ns = int(self._backlog.known.sizes[index]), int(self._backlog.known.modified_ns[index])
        return {**file.mark(done), "size": size, "modified_ns": modified_ns}

    def take_moved(self) -> list[str]:
        """Return the objects of which all lines were planned since the last call. Their mark may say now that they are
        complete, because an earlier run has done their last lines."""
        planned, self._planned = sorted(self._planned), set()
        return planned

    def located(self, parts: Sequence[LinePart]) -> list[LinePart]:
        """Return the parts. Raises ``InputChanged`` if an object that was not opened for this batch was replaced.

        Executors check the others.
        """
        contents = {part.partition: part.content for part in parts if part.partition not in self._fresh}
        for partition, content in contents.items():
            with suppress(OutOfReach):
                content.check_same(partition)
        self._fresh.clear()
        return list(parts)

    def last_located(self, parts: Sequence[LinePart]) -> list[LinePart]:
        return list(parts)

    def progress(self, done: Mapping[str, Ranges]) -> tuple[int, int, str]:
        """Return the number of objects, the number of those that are not done, and where the first of these stands."""
        known, is_done = self._backlog.known, self._backlog.is_done
        left = int(np.count_nonzero(~is_done))
        if not left:
            return len(known), 0, ""
        shown = known[int(np.argmin(is_done))]
        at = done.get(shown, Ranges()).prefix
        return len(known), left, f"{shown} to line {at}" if at or shown in self._files else ""

    def _list(self) -> Objects:
        listed = find_objects(
            self.store,
            self._patterns,
            asker=self._asker,
            in_folder=self._refuse_folder,
            may_be_none=self._is_followed,
        )
        # Only names that end like those of packed files are looked at one by one.
        check_names(listed.names_that_match(_PACKED), self._asker)
        listed.check_not_own(self._own, self._asker)
        return listed

    def _refuse_folder(self, store: Store, path: str) -> Objects:
        shown = store.shown(path)
        raise SourceError(f"{self._asker}: {shown!r} is a directory: write {shown.rstrip('/') + '/*'!r}")

    def _open(self, index: int) -> tuple[Opened, BinaryIO]:
        opened = self.store.open(self.store.path_of(self._backlog.known[index]))
        file: Any = opened.buffered()
        file.peek(1)
        return opened, file

    def _file_of(self, index: int, opened: Opened) -> LineFile:
        """Return the object at ``index``, which was opened just now."""
        partition = self._backlog.known[index]
        content = StoredContent(self.store, self.store.path_of(partition), opened.tag)
        if partition not in self._files:
            self._files[partition] = index, line_file(partition, partition, content, None)
            self._backlog.is_done[index] = False
        _, file = self._files[partition]
        if index in self._backlog.unfinished:
            file.move(content, partition)
        elif file.content != content:
            raise InputChanged(f"{partition} is not what it was when its lines were read: {FIX}")
        return file

    def _note_planned(self, index: int) -> None:
        """Note that all lines of an object are planned. The user may replace an object that is empty or not a whole
        gz."""
        partition = self._backlog.known[index]
        if partition in self._files:
            lines = self._files[partition][1].lines
            if lines:
                self._planned.add(partition)
            else:
                self._backlog.unfinished.add(index)
            if lines == 0:
                self._backlog.is_done[index] = True
                del self._files[partition]
        self._backlog.note_opened(index)

    def _check_read(self, index: int) -> None:
        """Raise ``InputChanged`` if an object that is gone was not read to its end."""
        partition = self._backlog.known[index]
        if partition not in self._files or not self._files[partition][1].is_read():
            raise InputChanged(
                f"{partition} was removed before it was read to its end: keep objects until they have been read"
            )

    def _check_changed(self, index: int) -> None:
        """Raise ``InputChanged`` if an object of which something was read was replaced."""
        partition = self._backlog.known[index]
        if index in self._backlog.unfinished:
            self._backlog.again.add(index)
        elif partition in self._files:
            self._files[partition][1].content.check_same(partition)
        elif partition in self._ended:
            StoredContent(self.store, self.store.path_of(partition), str(self._ended[partition]["digest"])).check_same(
                partition
            )

    def _refuse_other(self, partition: str, tag: str) -> None:
        if self.store.tag(self.store.path_of(partition)) != tag:
            raise CheckpointError(f"{partition} is not what it was when its lines were read: {FIX}")
