"""Plans the lines of the input's files, and cuts them into parts that executors can read. Runs in the driver.

A file is a partition, and the position of a line is its index. Files are read in the order of the paths. The files of
one pattern are sorted. ``local_files`` and ``stored_files`` decide which files there are, and whether each one is still
the same. ``line_file`` finds the lines inside a file.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from acker_client.source.decoding.content import LinePart, read_content
from acker_client.source.decoding.json_lines import JsonParser
from acker_client.source.decoding.lines import LINE_BYTES_MAX, LineSlice, Parser, find_lines
from acker_client.source.decoding.values import ddl_of
from acker_client.source.errors import InputChanged
from acker_client.source.files.line_file import BLOCK_BYTES, Block
from acker_client.source.files.line_files import EXAMPLE
from acker_client.source.files.local_files import LocalFiles
from acker_client.source.files.stored_files import StoredFiles
from acker_client.source.paths import Paths, given_paths, origins_of
from acker_client.source.records.balance import sliced
from acker_client.source.records.input import Chosen, Committed, Mark, Original, Plan
from acker_client.source.records.ranges import Ranges
from acker_client.source.storage.connecting import store_of
from acker_client.source.storage.reach import Reach
from acker_client.source.waiting import OutOfReach

log = logging.getLogger("acker_client.source")


class FileInput:
    """Lines of files as an ``Input``.

    ``filesystem``: the filesystem of pyarrow that the paths are in; None: local files, or what their URLs say.
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
        filesystem: Any = None,
        own_files: Sequence[Path | str] = (),
        block_bytes: int = BLOCK_BYTES,
        follow_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.parser = parser
        self._paths = paths
        self._block_bytes = block_bytes
        self._follow_s = follow_s
        self._clock = clock
        self._blocks: Iterator[Block] | None = None
        self._left: Block | None = None
        self._listed_s = 0.0
        own = [path for path in own_files if isinstance(path, str)]
        found = store_of(given_paths(paths, asker=self.asker, example=EXAMPLE), filesystem, self.asker)
        store, patterns = found or (None, [])
        self._reach = Reach(store, patterns, clock)
        self._files: LocalFiles | StoredFiles
        if store is None:
            local = [path for path in own_files if isinstance(path, Path)]
            self._files = LocalFiles(paths, self.asker, local, is_followed=self._is_followed)
        else:
            self._files = StoredFiles(store, patterns, self.asker, own, is_followed=self._is_followed)

    @property
    def _is_followed(self) -> bool:
        return self._follow_s is not None

    def start(self, committed: Mapping[str, Committed]) -> None:
        self._reach.begin(lambda: self._files.start(committed))
        self._listed_s = self._clock()
        if not len(self._files):
            log.warning(
                "%s: nothing matches %r yet; looking for it every %g s", self.asker, self._paths, self._follow_s
            )
        self._blocks = self._left = None

    def plan(self, records_max: int, tasks: int) -> Plan[LinePart]:
        parts: list[LinePart] = []
        if not self._reach.may_ask():
            return Plan()
        part_records = max(1, records_max // (2 * tasks))
        room = records_max
        try:
            while room > 0 and (block := self._left or self._next_block()) is not None:
                part, self._left = block.cut(min(part_records, room))
                self._files.add_part(part)
                parts.append(part)
                room -= len(part)
        except OutOfReach as error:
            self._blocks = None
            self._reach.note_away(error)
            return Plan(parts)
        return Plan(parts, is_end=not parts and not self._is_followed, moved=self._files.take_moved())

    def is_reachable(self) -> bool:
        return self._reach.is_reachable()

    def slices(self, chosen: Sequence[Chosen[LinePart]], tasks: int) -> list[LineSlice]:
        parts = self._files.located([each.part for each in chosen])
        present = [Chosen(part, each.offsets) for part, each in zip(parts, chosen, strict=True)]
        return sliced(present, tasks, lambda start, stop, some: LineSlice(start, stop, some, self.parser))

    def origins(self, chosen: Sequence[Chosen[LinePart]]) -> pa.RecordBatch:
        return origins_of([(each.part.shown, each.positions + 1) for each in chosen], "line")

    def originals(self, chosen: Sequence[Chosen[LinePart]]) -> list[Original]:
        parts = self._files.last_located([each.part for each in chosen])
        found = [original for each, now in zip(chosen, parts, strict=True) for original in _originals(each, now)]
        if not isinstance(self.parser, JsonParser):
            return found
        return [replace(original, schema=ddl_of(self.parser.schema)) for original in found]

    def advance(self, partition: str, done: Ranges) -> None:
        self._files.advance(partition, done)

    def mark(self, partition: str, done: Ranges) -> Mark:
        return self._files.mark(partition, done)

    def describe(self, done: Mapping[str, Ranges]) -> str:
        count, left, where = self._files.progress(done)
        of = f"{count} {'file' if count == 1 else 'files'}"
        if not left:
            return f"all that is there so far ({of})" if self._is_followed else f"end of the input ({of})"
        return f"{count - left} of {of}{f', {where}' if where else ''}"

    def close(self) -> None:
        """Close the open files, and end the threads that open the next objects."""
        self._blocks = self._left = None

    def _next_block(self) -> Block | None:
        if self._blocks is None:
            self._blocks = self._walk()
        block = next(self._blocks, None)
        if block is None and self._follow_s is not None and self._clock() - self._listed_s >= self._follow_s:
            self._files.list_again()
            self._listed_s = self._clock()
            self._blocks = self._walk()
            block = next(self._blocks, None)
        self._reach.note_answer()
        return block

    def _walk(self) -> Iterator[Block]:
        """Yield the lines of all files that are not planned yet, in blocks."""
        for file, opened in self._files.unplanned():
            with opened:
                yield from file.blocks(opened, self._block_bytes, is_followed=self._is_followed)


def _originals(chosen: Chosen[LinePart], now: LinePart) -> list[Original]:
    """Read the chosen lines again. ``now``: the part with the current path of its file."""
    part, wanted = chosen.part, (chosen.positions - chosen.part.start).tolist()
    first, stop = part.first_byte, part.stop_byte
    is_cut = stop - first > LINE_BYTES_MAX  # then the part is one line
    try:
        raw = read_content(now, first, min(stop, first + LINE_BYTES_MAX))
        line_end = read_content(now, stop - 2, stop) if is_cut else b""
    except InputChanged:
        return [Original(_origin(part, index, first), None) for index in wanted]
    starts, ends = find_lines(raw, at_beginning=first == 0)
    originals = []
    for index in wanted:
        if index >= len(starts):
            originals.append(Original(_origin(part, index, first), None))
            continue
        start = first + int(starts[index])
        length = stop - start - (2 if line_end == b"\r\n" else line_end.endswith(b"\n")) if is_cut else None
        origin = _origin(part, index, start if index else first)
        originals.append(Original(origin, raw[starts[index] : ends[index]], length))
    return originals


def _origin(part: LinePart, index: int, byte: int) -> dict[str, str | int]:
    return {"path": part.shown, "line": part.start + index + 1, "byte": byte}
