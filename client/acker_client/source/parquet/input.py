"""Lists Parquet files and counts their rows (in the driver), and reads the rows (in executors).

A file is a partition, and the position of a row is its index in the file. A part is a row group, or as many of its rows
as fit into a batch. A row with a value that does not fit its column is unreadable. A file must not change while it is
read. It counts as changed if its size, beginning or footer differs (the footer has sizes and statistics of every
column). Needs pyarrow and numpy; imports neither grpc nor pyspark.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from acker_client.source.decoding.lines import Offsets, ReadRows
from acker_client.source.decoding.values import ddl_of, json_rows
from acker_client.source.disk import to_read
from acker_client.source.errors import CheckpointError, InputChanged, SourceError
from acker_client.source.paths import Found, Paths, check_not_own, find_files, origins_of, printable
from acker_client.source.records.balance import sliced
from acker_client.source.records.input import Chosen, Committed, Mark, Original, Plan
from acker_client.source.records.ranges import Ranges

log = logging.getLogger("acker_client.source")

ROWS_TOGETHER = 16_384
HEAD_BYTES = 1024
CODECS = "snappy, gzip, zstd, lz4 and brotli"
FOOTER_BYTES_MAX = 16 << 20
FIX = "give new data a new file name, or remove the checkpoint to read the input from its beginning"


class NoParquet(SourceError):
    """The file is not a Parquet file, or is not complete yet."""


@dataclass(frozen=True, slots=True)
class RowPart:
    """Rows ``start`` to ``stop`` of one file, all in row group ``group``, which begins at row ``group_start``.

    ``partition``: the file's absolute path. ``shown``: the path as the user wrote it. ``digest``: recognizes the file.
    """

    partition: str
    shown: str
    start: int
    stop: int
    group: int
    group_start: int
    digest: str


@dataclass(frozen=True, slots=True)
class RowSlice:
    """The ``chosen`` rows in columns of ``schema``, in order. They have the batch's numbers ``start`` to ``stop``."""

    start: int
    stop: int
    chosen: tuple[Chosen[RowPart], ...]
    schema: pa.Schema

    def read(self) -> Iterator[ReadRows]:
        """Read the rows, some thousands at a time. Raises :class:`InputChanged`."""
        number = self.start
        for each in self.chosen:
            for rows in read_rows(each):
                columns, unreadable = converted(rows, self.schema, each.part.shown)
                stop = number + rows.num_rows
                yield ReadRows(np.arange(number, stop, dtype=np.uint64), columns, unreadable)
                number = stop


class ParquetInput:
    """Rows of Parquet files as an ``Input``, in columns of ``schema``.

    ``follow_s``: the interval at which the paths are listed again, for new files; None: the files are read once.
    ``clock``: monotonic seconds.
    """

    kind = "parquet"

    def __init__(
        self,
        paths: Paths,
        schema: pa.Schema,
        *,
        own_files: Sequence[Path] = (),
        follow_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.schema = schema
        self._paths = paths
        self._own_files = own_files
        self._follow_s = follow_s
        self._clock = clock
        self._listed_s = 0.0
        # (size, time of change) by path, for files that are read and for files that are not complete yet.
        self._stats: dict[str, tuple[int, int]] = {}
        self._unfinished: dict[str, tuple[int, int]] = {}
        self._files: list[Found] = []
        self._rows: dict[str, int] = {}
        self._digests: dict[str, str] = {}
        self._parts: Iterator[RowPart] = iter(())
        self._left: RowPart | None = None

    def start(self, committed: Mapping[str, Committed]) -> None:
        self._files = self._find_files()
        if not self._files:
            log.warning("Parquet: there is no file in %r yet; looking for one every %g s", self._paths, self._follow_s)
        self._rows, self._digests = {}, {}
        there = {found.path: found for found in self._files}
        for path, each in committed.items():
            self._refuse_changed(path, there.get(path), each)
        self._parts = self._walk(self._files, {path: each.done.prefix for path, each in committed.items()})
        self._left = None

    def plan(self, records_max: int, tasks: int) -> Plan[RowPart]:
        parts: list[RowPart] = []
        room = records_max
        while room > 0 and (part := self._left or self._next_part()) is not None:
            taken, self._left = _cut_part(part, room)
            parts.append(taken)
            room -= taken.stop - taken.start
        return Plan(parts, is_end=not parts and self._follow_s is None)

    def slices(self, chosen: Sequence[Chosen[RowPart]], tasks: int) -> list[RowSlice]:
        return sliced(chosen, tasks, lambda start, stop, some: RowSlice(start, stop, some, self.schema))

    def origins(self, chosen: Sequence[Chosen[RowPart]]) -> pa.RecordBatch:
        return origins_of([(each.part.shown, each.positions) for each in chosen], "row")

    def originals(self, chosen: Sequence[Chosen[RowPart]]) -> list[Original]:
        return [original for each in chosen for original in _originals(each, self.schema)]

    def advance(self, partition: str, done: Ranges) -> None:
        """Do nothing: this input keeps no data of parts."""

    def mark(self, partition: str, done: Ranges) -> Mark:
        return {"rows": self._rows[partition], "digest": self._digests[partition]}

    def describe(self, done: Mapping[str, Ranges]) -> str:
        total = len(self._files)
        prefixes = {found: done.get(found.path, Ranges()).prefix for found in self._files}
        left = [found for found, prefix in prefixes.items() if prefix < self._rows.get(found.path, prefix + 1)]
        if not left:
            end = "end of the input" if self._follow_s is None else "all that is there so far"
            return f"{end} ({total} {'file' if total == 1 else 'files'})"
        at = f", {left[0].shown} to row {prefixes[left[0]]}" if left[0].path in self._rows else ""
        return f"{total - len(left)} of {total} files{at}"

    def _refuse_changed(self, path: str, found: Found | None, committed: Committed) -> None:
        """Refuse a file that has changed since it was read, or was removed before it was done."""
        try:
            rows, digest = int(committed.mark["rows"]), str(committed.mark["digest"])
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"the checkpoint does not say how far {path} is done ({error!r})") from None
        if found is None and committed.done.prefix < rows:
            raise CheckpointError(
                f"{path} was read to row {committed.done.prefix} only, and is not among the files any more: bring it"
                " back, or remove the checkpoint to read the input from its beginning"
            )
        if found is not None and digest_of(path, found.shown) != digest:
            raise CheckpointError(f"{found.shown} is not what it was when its rows were read: {FIX}")
        self._rows[path], self._digests[path] = rows, digest

    def _find_files(self) -> list[Found]:
        self._listed_s = self._clock()
        files = find_parquet_files(self._paths, may_be_none=self._follow_s is not None)
        check_not_own(files, self._own_files, "Parquet", self._paths)
        return files

    def _next_part(self) -> RowPart | None:
        part = next(self._parts, None)
        if part is None and self._follow_s is not None and self._clock() - self._listed_s >= self._follow_s:
            known = {found.path for found in self._files}
            self._check_same()
            new = [found for found in self._find_files() if found.path not in known or found.path in self._unfinished]
            self._files += [found for found in new if found.path not in known]
            self._parts = self._walk(new, {})
            part = next(self._parts, None)
        return part

    def _check_same(self) -> None:
        """Raise ``InputChanged`` if a known file has changed, because its new rows would never be read."""
        for found in self._files:
            before = self._stats.get(found.path)
            with suppress(FileNotFoundError):
                if before is None or before == (now := _stat_of(found.path)):
                    continue
                if digest_of(found.path, found.shown) != self._digests[found.path]:
                    raise InputChanged(f"{found.shown} is not what it was when its rows were read: {FIX}")
                self._stats[found.path] = now

    def _is_unfinished(self, found: Found) -> bool:
        """Whether a file may still be written: it has no footer yet. Always False if files are not followed."""
        if self._follow_s is None:
            return False
        before = self._unfinished.pop(found.path, None)
        try:
            now = _stat_of(found.path)
            if before != now:
                open_parquet(found.path, found.shown).close()
                self._stats[found.path] = now
                return False
        except FileNotFoundError:  # renamed since, or removed
            self._files = [each for each in self._files if each.path != found.path]
            return True
        except OSError as error:
            raise InputChanged(f"{found.shown} cannot be read ({error.strerror}): {to_read(error)}") from None
        except NoParquet as error:
            if before is None:
                log.warning("%s It is looked at again once it changes", error)
        self._unfinished[found.path] = now
        return True

    def _walk(self, files: Sequence[Found], prefixes: Mapping[str, int]) -> Iterator[RowPart]:
        """Yield the row groups of ``files`` that are not done, from ``prefixes`` on."""
        for found in list(files):
            if self._is_unfinished(found):
                continue
            with open_parquet(found.path, found.shown) as file:
                metadata = file.metadata
                check_columns(normal_schema(file), self.schema, found.shown)
            digest = self._digests[found.path] = digest_of(found.path, found.shown)
            self._rows[found.path] = metadata.num_rows
            stop, prefix = 0, prefixes.get(found.path, 0)
            for group in range(metadata.num_row_groups):
                start, stop = stop, stop + metadata.row_group(group).num_rows
                if max(start, prefix) < stop:
                    yield RowPart(found.path, found.shown, max(start, prefix), stop, group, start, digest)


def find_parquet_files(paths: Paths, *, may_be_none: bool = False) -> list[Found]:
    """Return the files that ``paths`` name; see ``find_files``.

    A directory stands for the ``.parquet`` files in and below it, sorted. As in Spark, files and folders whose names
    begin with ``_`` or ``.`` are left out. Also raises ``SourceError`` for a directory without such files, unless
    ``may_be_none``.
    """

    def in_directory(path: str) -> list[str]:
        return _in_directory(path, may_be_none=may_be_none)

    example = "orders/*.parquet"
    return find_files(paths, asker="Parquet", example=example, in_directory=in_directory, may_be_none=may_be_none)


def schema_of(paths: Paths) -> pa.Schema:
    """Return the columns of the first file; see ``normal_schema``."""
    found = find_parquet_files(paths)[0]
    with open_parquet(found.path, found.shown) as file:
        return normal_schema(file)


def _stat_of(path: str) -> tuple[int, int]:
    stat = os.stat(path)
    return stat.st_size, stat.st_mtime_ns


def open_parquet(path: str, shown: str) -> pq.ParquetFile:
    """Open a file. Raises ``InputChanged`` if it cannot be read, ``NoParquet`` if it is no Parquet."""
    try:
        # pyarrow takes a path that is not valid UTF-8 only as bytes, and only here.
        source = path if path == printable(path) else pa.OSFile(os.fsencode(path))
        return pq.ParquetFile(source, coerce_int96_timestamp_unit="us")
    except OSError as error:
        what = error.strerror or str(error)
        raise InputChanged(f"{shown} cannot be read ({what}): {to_read(error)}") from None
    except pa.ArrowException as error:
        raise NoParquet(f"Parquet: {shown} is no Parquet file, or a damaged one ({error}): leave it out") from None


def digest_of(path: str, shown: str) -> str:
    """Return a digest of a file's size, beginning and footer. The footer lists where each column's data are."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 8))
            footer = 8 + int.from_bytes(file.read(4), "little")
            file.seek(max(0, size - min(footer, FOOTER_BYTES_MAX)))
            tail = file.read()
            file.seek(0)
            content = size.to_bytes(8, "little") + file.read(HEAD_BYTES) + tail
    except OSError as error:
        raise InputChanged(f"{shown} cannot be read ({error.strerror}): {to_read(error)}") from None
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def normal_schema(file: pq.ParquetFile) -> pa.Schema:
    """Return the file's columns, with INT96 (the timestamp of Spark and Impala) as an instant in UTC."""
    leaves = iter(file.schema.column(index).physical_type for index in range(len(file.schema)))
    return pa.schema([field.with_type(_normal(field.type, leaves)) for field in file.schema_arrow])


def check_columns(columns: pa.Schema, wanted: pa.Schema, shown: str) -> None:
    """Refuse a file in which a wanted column occurs twice or has a type that cannot be cast. It may be missing."""
    for field in wanted:
        if columns.get_all_field_indices(field.name)[1:]:
            raise SourceError(f"Parquet: {shown} has the column {field.name!r} twice: leave it out of the schema")
        index = columns.get_field_index(field.name)
        if index >= 0 and not _fits(columns.field(index).type, field.type):
            raise SourceError(
                f"Parquet: the column {field.name!r} of {shown} is {columns.field(index).type}, and {field.type} is"
                " wanted: read such files by a source of their own, or give another schema"
            )


def read_rows(chosen: Chosen[RowPart]) -> Iterator[pa.RecordBatch]:
    """Yield the chosen rows, some thousands at a time, in the file's columns. Raises ``InputChanged``."""
    part = chosen.part
    if digest_of(part.partition, part.shown) != part.digest:
        raise InputChanged(f"{part.shown} has changed since its rows were counted: write a new file beside it instead")
    wanted = chosen.positions - part.group_start
    with open_parquet(part.partition, part.shown) as file:
        schema, at = normal_schema(file), 0
        for rows in _row_batches(file, part):
            first, last = np.searchsorted(wanted, (at, at + rows.num_rows)).tolist()
            if first < last:
                yield _normal_rows(rows, schema, wanted[first:last] - at)
            at += rows.num_rows
            if last == len(wanted):
                return


def _row_batches(file: pq.ParquetFile, part: RowPart) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the part's row group. Raises ``InputChanged`` if they cannot be unpacked.

    The planner cannot check the codec: pyarrow ends the process if it is asked for one that it does not know.
    """
    try:
        yield from file.iter_batches(batch_size=ROWS_TOGETHER, row_groups=[part.group])
    except OSError as error:
        raise InputChanged(
            f"Parquet: {part.shown} cannot be unpacked ({error}), and {CODECS} are read: write it anew with one of"
            " these, or leave it out"
        ) from None


def converted(rows: pa.RecordBatch, schema: pa.Schema, shown: str) -> tuple[pa.RecordBatch, dict[int, str]]:
    """Return ``rows`` in columns of ``schema``, and a map from each row whose values do not fit to the reason.

    The columns are null in these rows.
    """
    try:
        return _cast(rows, schema), {}
    except pa.ArrowInvalid:
        pass
    unreadable: dict[int, str] = {}
    pieces = []
    for row in range(rows.num_rows):
        try:
            pieces.append(_cast(rows.slice(row, 1), schema))
        except pa.ArrowInvalid as error:
            unreadable[row] = f"{shown}: a value does not fit its column ({str(error).partition(chr(10))[0]})"
            pieces.append(_nulls(schema))
    batches: Any = pieces
    return pa.concat_batches(batches), unreadable


def _in_directory(path: str, *, may_be_none: bool) -> list[str]:
    found: list[str] = []
    for folder, below, files in os.walk(path, onerror=_refuse_folder):
        below[:] = sorted(name for name in below if name[0] not in "._")
        for name in below:
            if "=" in name:
                raise SourceError(
                    f"Parquet: {os.path.join(folder, name)!r} holds a column in its name, and such columns are not"
                    f" read: name the files by a pattern, {os.path.join(path, '**', '*.parquet')!r}, to read them"
                    " without the column"
                )
        found += [os.path.join(folder, name) for name in files if name[0] not in "._" and name.endswith(".parquet")]
    if not found and not may_be_none:
        raise SourceError(f"Parquet: no file in {path!r} ends in .parquet: name the files, or a pattern")
    return sorted(found)


def _refuse_folder(error: OSError) -> None:
    """Raise ``InputChanged`` for an unreadable folder, so that its files are not left out silently."""
    if not isinstance(error, FileNotFoundError):
        raise InputChanged(f"{error.filename} cannot be read ({error.strerror}): {to_read(error)}") from None


def _cut_part(part: RowPart, count: int) -> tuple[RowPart, RowPart | None]:
    """Return the first ``count`` rows of a part, and the rest (None: nothing is left)."""
    at = part.start + count
    if at >= part.stop:
        return part, None
    of = (part.group, part.group_start, part.digest)
    return RowPart(part.partition, part.shown, part.start, at, *of), RowPart(
        part.partition, part.shown, at, part.stop, *of
    )


def _normal(type_: Any, leaves: Iterator[str]) -> Any:
    """Return a type with INT96 leaves as instants. ``leaves``: the physical types, in order."""
    if pa.types.is_struct(type_):
        return pa.struct([field.with_type(_normal(field.type, leaves)) for field in type_])
    if pa.types.is_map(type_):
        return pa.map_(_normal(type_.key_type, leaves), _normal(type_.item_type, leaves))
    if pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_):
        return pa.list_(type_.value_field.with_type(_normal(type_.value_type, leaves)))
    return pa.timestamp("us", tz="UTC") if next(leaves) == "INT96" else type_


def _normal_rows(rows: pa.RecordBatch, schema: pa.Schema, offsets: Offsets) -> pa.RecordBatch:
    chosen = rows if len(offsets) == rows.num_rows else rows.take(pa.array(offsets))
    columns = [_as(column, field.type) for column, field in zip(chosen.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, names=schema.names)


def _cast(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    names = rows.schema.names
    columns = [
        _as(rows.column(names.index(field.name)), field.type)
        if field.name in names
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _as(column: Any, type_: Any) -> Any:
    """Cast a column. Nanoseconds are cut to microseconds, the finest unit of Spark; other losses are errors."""
    if column.type == type_:
        return column
    return pc.cast(column, options=pc.CastOptions(target_type=type_, allow_time_truncate=True))


def _fits(given: Any, wanted: Any) -> bool:
    try:
        _as(pa.nulls(0, given), wanted)
    except pa.ArrowException:
        return False
    return True


def _nulls(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(1, field.type) for field in schema], schema=schema)


def _originals(chosen: Chosen[RowPart], schema: pa.Schema) -> list[Original]:
    """Read rows again, and return all columns of the file, those of ``schema`` as they are in the rows of the source.
    Columns of a row that does not fit are as in the file."""
    origins = [{"path": chosen.part.shown, "row": position} for position in chosen.positions.tolist()]
    values: list[dict[str, Any]] = []
    try:
        for rows in read_rows(chosen):
            columns, unreadable = converted(rows, schema, chosen.part.shown)
            for row, (given, made) in enumerate(zip(json_rows(rows), json_rows(columns), strict=True)):
                values.append(given if row in unreadable else given | made)
    except SourceError:
        return [Original(origin, None) for origin in origins]
    return [Original(origin, value, schema=ddl_of(schema)) for origin, value in zip(origins, values, strict=True)]
