"""Reads rows of Parquet files in executors, and what the driver has to know of a file.

A row with a value that does not fit its column is unreadable. A local file counts as changed if its size, beginning or
footer differs (the footer has sizes and statistics of every column), an object if its tag does. Needs pyarrow and
numpy; imports neither grpc nor pyspark.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from dataclasses import field as default
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from acker_client.source.decoding.columns import refuse_changed, without_missing
from acker_client.source.decoding.content import (
    READ_S,
    LocalContent,
    StoredContent,
    on_other_machines,
    replaced,
    unreadable,
)
from acker_client.source.decoding.lines import Offsets, ReadRows
from acker_client.source.decoding.values import ddl_of, json_rows
from acker_client.source.errors import InputChanged, SourceError
from acker_client.source.paths import printable
from acker_client.source.records.input import Chosen, Original
from acker_client.source.storage.troubles import is_of_store
from acker_client.source.waiting import OutOfReach, outlast, outlast_each

ROWS_TOGETHER = 16_384
HEAD_BYTES = 1024
CODECS = "snappy, gzip, zstd, lz4 and brotli"
FOOTER_BYTES_MAX = 16 << 20

RowContent = LocalContent | StoredContent


class NoParquet(SourceError):
    """The file is not a Parquet file, or is not complete yet."""


@dataclass(frozen=True, slots=True)
class RowPart:
    """Rows ``start`` to ``stop`` of one file, all in row group ``group``, which begins at row ``group_start``.

    ``partition``: the file's absolute path or URL. ``shown``: the path as the user wrote it. ``digest``: recognizes the
    file. ``at``: where it is.
    """

    partition: str
    shown: str
    start: int
    stop: int
    group: int
    group_start: int
    digest: str
    at: RowContent


@dataclass(frozen=True, slots=True)
class RowSlice:
    """The ``chosen`` rows in columns of ``schema``, in order. They have the batch's numbers ``start`` to ``stop``.
    ``driver``: the host that has planned them."""

    start: int
    stop: int
    chosen: tuple[Chosen[RowPart], ...]
    schema: pa.Schema
    driver: str = default(default_factory=lambda: platform.node())

    def read(self) -> Iterator[ReadRows]:
        """Read the rows, some thousands at a time. Raises :class:`InputChanged`."""
        with on_other_machines(self.driver):
            yield from self._read()

    def _read(self) -> Iterator[ReadRows]:
        number = self.start
        for each in self.chosen:
            for rows in read_rows(each):
                columns, unreadable = converted(rows, self.schema, each.part.shown)
                stop = number + rows.num_rows
                yield ReadRows(np.arange(number, stop, dtype=np.uint64), columns, unreadable)
                number = stop


@dataclass(frozen=True, slots=True)
class Footer:
    """The driver's knowledge of a file: its columns, its ``digest``, and the number of rows of each row group."""

    columns: pa.Schema
    digest: str
    groups: tuple[int, ...]


def read_footer(content: RowContent, shown: str) -> tuple[RowContent, Footer]:
    """Return the content with the tag that it has now, and its footer. Raises as ``open_parquet`` does."""
    if isinstance(content, StoredContent):
        with content.store.open(content.path) as opened:
            content = replace(content, tag=opened.tag)
            with _parquet_file(opened.file, content, shown) as file:
                return content, _footer_of(file, content.tag)
    with open_parquet(content, shown) as file:
        return content, _footer_of(file, digest_of(content, shown))


def _footer_of(file: pq.ParquetFile, digest: str) -> Footer:
    groups = tuple(file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups))
    return Footer(normal_schema(file), digest, groups)


@contextmanager
def open_parquet(content: RowContent, shown: str) -> Iterator[pq.ParquetFile]:
    """Open a file. Raises ``InputChanged`` if it cannot be read, ``NoParquet`` if it is no Parquet."""
    with _opened(content, shown) as source, _parquet_file(source, content, shown) as file:
        yield file


@contextmanager
def _parquet_file(source: Any, content: RowContent, shown: str) -> Iterator[pq.ParquetFile]:
    is_remote = isinstance(content, StoredContent)
    try:
        file = pq.ParquetFile(source, coerce_int96_timestamp_unit="us", pre_buffer=is_remote)
    except OSError as error:
        raise _unreadable(content, error, shown) from None
    except pa.ArrowException as error:
        raise NoParquet(f"Parquet: {shown} is no Parquet file, or a damaged one ({error}): leave it out") from None
    with file:
        yield file


def _opened(content: RowContent, shown: str) -> AbstractContextManager[Any]:
    """Return what pyarrow reads a file from."""
    if isinstance(content, StoredContent):
        return content.open_unbuffered(shown)
    path = content.path
    # pyarrow takes a path that is not valid UTF-8 only as bytes, and only here.
    return nullcontext(path if path == printable(path) else pa.OSFile(os.fsencode(path)))


def _unreadable(content: RowContent, error: OSError, shown: str) -> SourceError:
    if isinstance(content, StoredContent):
        return content.store.explained(error, content.path)
    what = error.strerror or str(error)
    return unreadable(error, what, shown)


def digest_of(content: RowContent, shown: str) -> str:
    """Return what recognizes a file: the tag of an object, else a digest of size, beginning and footer. The footer
    lists where each column's data are."""
    if isinstance(content, StoredContent):
        return content.tag
    with content.open(shown) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 8))
        footer = 8 + int.from_bytes(file.read(4), "little")
        file.seek(max(0, size - min(footer, FOOTER_BYTES_MAX)))
        tail = file.read()
        file.seek(0)
        head = size.to_bytes(8, "little") + file.read(HEAD_BYTES) + tail
    return hashlib.blake2b(head, digest_size=16).hexdigest()


def check_same(part: RowPart) -> None:
    """Raise ``InputChanged`` if the file is not the one of which the rows were counted."""
    if digest_of(part.at, part.shown) != part.digest:
        raise replaced(part.shown)
    part.at.check_same(part.shown)


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
    """Yield the chosen rows, some thousands at a time, in the file's columns. Raises ``InputChanged``, also after the
    last rows if the file was replaced meanwhile, and ``OutOfReach`` if its store is away for long."""
    part = chosen.part
    if digest_of(part.at, part.shown) != part.digest:
        raise replaced(part.shown)
    wanted, at, last = chosen.positions - part.group_start, 0, 0
    for schema, rows in outlast_each(lambda: _row_batches(part), part.shown, READ_S):
        first, last = np.searchsorted(wanted, (at, at + rows.num_rows)).tolist()
        if first < last:
            yield _normal_rows(rows, schema, wanted[first:last] - at)
        at += rows.num_rows
        if last == len(wanted):
            break
    # A missing row would count as one that does not exist.
    if last < len(wanted):
        raise replaced(part.shown)
    outlast(lambda: check_same(part), part.shown, READ_S)


def _row_batches(part: RowPart) -> Iterator[tuple[pa.Schema, pa.RecordBatch]]:
    """Yield the file's columns and the rows of the part's row group. Raises ``InputChanged`` if they cannot be
    unpacked.

    The planner cannot check the codec: pyarrow ends the process if it is asked for one that it does not know.
    """
    with open_parquet(part.at, part.shown) as file:
        schema = normal_schema(file)
        try:
            for rows in file.iter_batches(batch_size=ROWS_TOGETHER, row_groups=[part.group]):
                yield schema, rows
        except OSError as error:
            if isinstance(part.at, StoredContent) and is_of_store(error):
                raise part.at.store.explained(error, part.at.path) from None
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
    return without_missing(pa.RecordBatch.from_arrays(columns, schema=schema))


def _as(column: Any, type_: Any) -> Any:
    """Cast a column. Nanoseconds are cut to microseconds, the finest unit of Spark, and fractions are rounded to those
    of a float; other losses are errors."""
    if column.type == type_:
        return column
    made = pc.cast(column, options=pc.CastOptions(target_type=type_, allow_time_truncate=True))
    refuse_changed(column, made)
    return made


def _fits(given: Any, wanted: Any) -> bool:
    try:
        _as(pa.nulls(0, given), wanted)
    except pa.ArrowException:
        return False
    return True


def _nulls(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(1, field.type) for field in schema], schema=schema)


def originals_of(chosen: Chosen[RowPart], schema: pa.Schema) -> list[Original]:
    """Read rows again, and return all columns of the file, those of ``schema`` as they are in the rows of the source.
    Columns of a row that does not fit are as in the file. The value is None if the file is gone or another one. Raises
    ``OutOfReach`` if its store is away for long."""
    origins = [{"path": chosen.part.shown, "row": position} for position in chosen.positions.tolist()]
    values: list[dict[str, Any]] = []
    try:
        for rows in read_rows(chosen):
            columns, unreadable = converted(rows, schema, chosen.part.shown)
            for row, (given, made) in enumerate(zip(json_rows(rows), json_rows(columns), strict=True)):
                values.append(given if row in unreadable else given | made)
    except OutOfReach:
        raise
    except SourceError:
        return [Original(origin, None) for origin in origins]
    return [Original(origin, value, schema=ddl_of(schema)) for origin, value in zip(origins, values, strict=True)]
