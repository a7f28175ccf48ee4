"""Reads the lines of slices of files in executors, as Arrow columns, without Python code per line.

A line ends before ``\\n`` or at the end of a file. One ``\\r`` before the ``\\n`` does not belong to it, nor does a
UTF-8 byte order mark at the beginning of a file. An empty line is a record. A line that is not valid UTF-8, or does not
fit the format, is *unreadable*: a record that fails, and its reason tells the position. A file that differs from what
the driver counted is an error; other records are never returned. Needs pyarrow and numpy; imports neither grpc nor
pyspark.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from acker_client.source.decoding.content import LinePart, on_other_machines, read_content
from acker_client.source.errors import InputChanged
from acker_client.source.records.input import Chosen
from acker_protocol.ids import Column

Offsets = npt.NDArray[np.int64]

LF = 10
CR = 13
BOM = b"\xef\xbb\xbf"
# A longer line fails, and is not read into memory.
LINE_BYTES_MAX = 256 << 20
# Small parts (many small files) are combined up to about this number of rows.
ROWS_TOGETHER = 16_384
# ... or bytes, because the offsets of an Arrow column have 32 bits.
BYTES_TOGETHER = 256 << 20


@dataclass(frozen=True, slots=True)
class Lines:
    """The lines of one part: line i is ``raw[starts[i]:ends[i]]``."""

    part: LinePart
    raw: bytes
    starts: Offsets
    ends: Offsets

    def __len__(self) -> int:
        return len(self.starts)

    def line(self, index: int) -> bytes:
        return self.raw[self.starts[index] : self.ends[index]]

    def where(self, index: int) -> str:
        """Return the position of a line as text for reasons: path, line number and byte."""
        return f"{self.part.shown}:{self.part.start + index + 1} (byte {self.byte(index)})"

    def byte(self, index: int) -> int:
        """Return the byte of its file at which a line begins."""
        if index == 0:
            return self.part.first_byte
        return self.part.first_byte + int(self.starts[index])


@dataclass(slots=True)
class ReadRows:
    """Rows of a slice: their ``numbers`` in the batch (uint64[n]), ``columns`` of n rows, and for each row that is
    ``unreadable`` the reason."""

    numbers: Column
    columns: pa.RecordBatch
    unreadable: dict[int, str] = field(default_factory=dict)


class Parser(Protocol):
    """Turns lines into the columns of a format, and finds the lines that do not fit it. Picklable."""

    def parse(self, lines: Lines) -> tuple[pa.RecordBatch, dict[int, str]]:
        """Return columns with one row per line, and a map from each row that could not be read to the reason.

        The columns are null in these rows.
        """
        ...


@dataclass(frozen=True, slots=True)
class LineSlice:
    """The ``chosen`` lines, in order. In the batch they have the numbers ``start`` to ``stop``. ``driver``: the host
    that has planned them."""

    start: int
    stop: int
    chosen: tuple[Chosen[LinePart], ...]
    parser: Parser
    driver: str = field(default_factory=lambda: platform.node())

    def read(self) -> Iterator[ReadRows]:
        """Read the parts; combine small ones. Raises :class:`InputChanged`."""
        with on_other_machines(self.driver):
            yield from self._read()

    def _read(self) -> Iterator[ReadRows]:
        waiting: list[tuple[pa.RecordBatch, dict[int, str]]] = []
        rows, size, number = 0, 0, self.start
        for each in self.chosen:
            columns, unreadable = _selected(each.offsets, *self.parser.parse(read_lines(each.part)))
            waiting.append((columns, unreadable))
            rows, size = rows + len(each), size + columns.nbytes
            if rows >= ROWS_TOGETHER or size >= BYTES_TOGETHER:
                yield _combine(number, waiting)
                waiting, rows, size, number = [], 0, 0, number + rows
        if waiting:
            yield _combine(number, waiting)


@dataclass(frozen=True, slots=True)
class TextParser:
    """Makes one row per line: ``value string, path string, line bigint``."""

    def parse(self, lines: Lines) -> tuple[pa.RecordBatch, dict[int, str]]:
        values, unreadable = text_column(lines)
        part, n = lines.part, len(lines)
        numbers = np.arange(part.start + 1, part.start + n + 1, dtype=np.int64)
        columns = [values, pa.repeat(pa.scalar(part.shown, pa.string()), n), pa.array(numbers)]
        return pa.RecordBatch.from_arrays(columns, names=["value", "path", "line"]), unreadable


def read_lines(part: LinePart) -> Lines:
    """Read a part and find its lines. Raises :class:`InputChanged` if they differ from the counted lines."""
    first, stop = part.first_byte, part.stop_byte
    if len(part) == 1 and stop - first > LINE_BYTES_MAX:
        return Lines(part, b"", np.zeros(1, np.int64), np.zeros(1, np.int64))
    raw = read_content(part, first, stop)
    starts, ends = find_lines(raw, at_beginning=first == 0)
    if len(raw) != stop - first or len(starts) != len(part):
        raise InputChanged(
            f"{part.shown}: bytes {first} to {stop} had {len(part)} lines when they were counted, and now have"
            f" {len(starts)}: a file must not change while it is read (appending is fine)"
        )
    return Lines(part, raw, starts, ends)


def find_lines(raw: bytes, *, at_beginning: bool = False) -> tuple[Offsets, Offsets]:
    """Return (starts, ends) of the lines of ``raw``, int64[n] each, without line ends and the byte order mark."""
    content = np.frombuffer(raw, np.uint8)
    ends = np.flatnonzero(content == LF)
    if len(raw) and content[-1] != LF:
        ends = np.append(ends, len(raw))
    starts = np.empty_like(ends)
    if len(ends):
        starts[0] = len(BOM) if at_beginning and raw.startswith(BOM) else 0
        starts[1:] = ends[:-1] + 1
    # A last line without \n keeps its \r, which is not the end of a line there.
    closed = (ends < len(raw)) & (ends > starts)
    ends = ends - (closed & (content[np.maximum(ends - 1, 0)] == CR)) if len(ends) else ends
    return starts, ends


def text_column(lines: Lines) -> tuple[pa.StringArray, dict[int, str]]:
    """Return lines as an Arrow string column, null where unreadable, and a map from unreadable rows to reasons."""
    unreadable = too_long(lines) or not_utf8(lines)
    lengths = lines.ends - lines.starts
    offsets = np.zeros(len(lines) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    validity = None
    if unreadable:
        valid = np.ones(len(lines), bool)
        valid[list(unreadable)] = False
        validity = pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())
    values = pa.StringArray.from_buffers(
        len(lines), pa.py_buffer(offsets.tobytes()), pa.py_buffer(_joined(lines)), validity, len(unreadable)
    )
    return values, unreadable


def _joined(lines: Lines) -> bytes:
    """Return the bytes of all lines without the line ends."""
    raw = lines.raw[int(lines.starts[0]) :] if len(lines) else b""
    total = int((lines.ends - lines.starts).sum())
    joined = raw.replace(b"\n", b"")
    if len(joined) != total:
        # Some lines end in \r\n. Remove only these \r, because a line may contain others.
        joined = raw.replace(b"\r\n", b"\n").replace(b"\n", b"")
    return joined


def too_long(lines: Lines) -> dict[int, str]:
    """Return the reason for a line that was not read because it is too long; empty if there is none."""
    if len(lines.part) != 1 or lines.part.stop_byte - lines.part.first_byte <= LINE_BYTES_MAX:
        return {}
    return {0: f"{lines.where(0)}: the line is longer than {LINE_BYTES_MAX >> 20} MiB"}


def not_utf8(lines: Lines) -> dict[int, str]:
    """Return the reasons for lines that are not valid UTF-8.

    A line feed is never part of a longer character, so all lines are valid if ``raw`` as a whole is.
    """
    try:
        lines.raw.decode()
    except UnicodeDecodeError:
        pass
    else:
        return {}
    bad = {}
    for index in range(len(lines)):
        try:
            lines.line(index).decode()
        except UnicodeDecodeError as error:
            at = lines.part.first_byte + int(lines.starts[index]) + error.start
            bad[index] = f"{lines.where(index)}: not valid UTF-8 at byte {at} ({error.reason})"
    return bad


def _selected(
    offsets: Offsets | None, columns: pa.RecordBatch, unreadable: dict[int, str]
) -> tuple[pa.RecordBatch, dict[int, str]]:
    if offsets is None:
        return columns, unreadable
    rows = {index: row for row, index in enumerate(offsets.tolist())}
    kept = {rows[index]: reason for index, reason in unreadable.items() if index in rows}
    return columns.take(pa.array(offsets)), kept


def _combine(number: int, parts: list[tuple[pa.RecordBatch, dict[int, str]]]) -> ReadRows:
    unreadable: dict[int, str] = {}
    rows = 0
    for columns, reasons in parts:
        unreadable |= {rows + row: reason for row, reason in reasons.items()}
        rows += columns.num_rows
    batches: list[Any] = [columns for columns, _ in parts]
    columns = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
    return ReadRows(np.arange(number, number + rows, dtype=np.uint64), columns, unreadable)
