"""Reads records from dead letters, as rows like the original ones.

A record is a line of a file of dead letters, and its position is the position of the line. A row has the columns of its
source: those that the letters name, or the original text with its path and line. It may also be converted to the
columns of a schema. A record that becomes a dead letter again keeps its first origin.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from acker_client.source.decoding.columns import without_missing
from acker_client.source.decoding.content import LinePart
from acker_client.source.decoding.gz import is_gz
from acker_client.source.decoding.json_lines import JsonParser
from acker_client.source.decoding.lines import Lines, not_utf8
from acker_client.source.decoding.values import ddl_of, jsonable, of_json
from acker_client.source.files.input import FileInput
from acker_client.source.files.line_files import EXAMPLE, find_line_files
from acker_client.source.paths import Paths, given_paths
from acker_client.source.put_back.letter_lines import letter_of
from acker_client.source.records.dead_letter import DeadLetter
from acker_client.source.records.input import Chosen, Original
from acker_client.source.storage.connecting import START_S, store_of
from acker_client.source.storage.listing import find_objects
from acker_client.source.storage.objects import Objects
from acker_client.source.storage.store import Store
from acker_client.source.waiting import outlast

TEXT = pa.schema([("value", pa.string()), ("path", pa.string()), ("line", pa.int64())])


class Unreadable(ValueError):
    """A letter cannot be turned into a row again. The message says why."""


@dataclass(frozen=True, slots=True)
class LetterParser:
    """Parses letters into rows of ``schema``; without one into ``value string, path string, line bigint``.

    ``ddl``: the columns that every letter has to name, "" for lines of text; None: letters of any source are converted
    to the columns of ``schema``.
    """

    schema: pa.Schema | None = None
    ddl: str | None = None

    def parse(self, lines: Lines) -> tuple[pa.RecordBatch, dict[int, str]]:
        schema = TEXT if self.schema is None else self.schema
        ddl = "" if self.schema is None else ddl_of(self.schema)
        rows: list[pa.RecordBatch] = [pa.RecordBatch.from_pylist([], schema)]
        unreadable: dict[int, str] = {}
        for index in range(len(lines)):
            try:
                rows.append(self._row(letter_of(lines.line(index)), lines, index, ddl))
            except Unreadable as error:
                unreadable[index] = str(error)
                rows.append(pa.RecordBatch.from_arrays([pa.nulls(1, field.type) for field in schema], schema=schema))
        return pa.concat_batches(rows), unreadable

    def _row(self, letter: DeadLetter | str, lines: Lines, index: int, ddl: str) -> pa.RecordBatch:
        """Return the one row of a letter. ``ddl``: the columns of the row, "" for a line of text."""
        if isinstance(letter, str):
            raise Unreadable(f"{lines.where(index)}: {letter}")
        if letter.why_not_again:
            raise Unreadable(f"{letter.where}: {letter.why_not_again}: read it where it stands")
        if self.ddl is not None and letter.schema != self.ddl:
            raise Unreadable(
                f"{letter.where}: its columns are {letter.schema!r}, and those of the first letter {self.ddl!r}: put"
                " back letters of one source at a time, or give PutBack a schema"
            )
        if isinstance(letter.value, Mapping):
            if self.schema is None:
                raise Unreadable(f"{letter.where}: the letter holds columns: give PutBack the schema that they had")
            return _columns_row(letter, letter.value, self.schema)
        if self.schema is not None and letter.columns is not None and letter.schema == ddl:
            return _columns_row(letter, _whole_row(letter, letter.columns, self.schema), self.schema)
        if letter.value is None:
            raise Unreadable(f"{letter.where}: the record has no value: give PutBack the schema {letter.schema!r}")
        line = _line_of(letter, letter.value, lines.part)
        return _text_row(letter, line) if self.schema is None else _json_row(line, self.schema)


class PutBackInput(FileInput):
    """Files of dead letters as an ``Input``."""

    kind = "put-back"
    asker = "PutBack"

    def originals(self, chosen: Sequence[Chosen[LinePart]]) -> list[Original]:
        return [_first_original(original) for original in super().originals(chosen)]


def first_columns(paths: Paths, filesystem: Any = None) -> str:
    """Return the columns that the first readable letter names; "" if it names none, or if there is no letter yet."""
    for name, open_file in _files(paths, filesystem):
        with suppress(EOFError, OSError, zlib.error), open_file() as raw:  # reading reports the error
            file: Any = gzip.GzipFile(fileobj=raw) if is_gz(name) else raw
            for line in file:
                letter = letter_of(line)
                if isinstance(letter, DeadLetter) and not letter.why_not_again:
                    return letter.schema
    return ""


def _files(paths: Paths, filesystem: Any) -> Iterator[tuple[str, Callable[[], BinaryIO]]]:
    """Yield the names of files of letters, and how to open them."""
    found = store_of(given_paths(paths, asker=PutBackInput.asker, example=EXAMPLE), filesystem, PutBackInput.asker)
    if found is None:
        for file in find_line_files(paths, asker=PutBackInput.asker, may_be_none=True):
            yield file.path, partial(_open_local, file.path)
        return
    store, patterns = found

    def none_in_folder(store: Store, folder: str) -> Objects:
        return Objects.of([])  # the input refuses it

    listed = outlast(
        lambda: find_objects(store, patterns, asker=PutBackInput.asker, in_folder=none_in_folder, may_be_none=True),
        str(store),
        START_S,
    )
    for index in range(len(listed)):
        path = store.path_of(listed[index])
        yield path, partial(_open_object, store, path)


def _open_local(path: str) -> BinaryIO:
    return open(path, "rb")


def _open_object(store: Store, path: str) -> BinaryIO:
    return store.open(path).buffered()


def _first_original(line: Original) -> Original:
    """Return the original of the record inside a dead letter; ``line`` itself if the line is not a letter."""
    letter = letter_of(line.value) if isinstance(line.value, bytes) else ""
    if isinstance(letter, str):
        return line
    return Original(letter.origin, letter.value, letter.value_bytes, letter.schema, letter.columns)


def _line_of(letter: DeadLetter, value: bytes, part: LinePart) -> Lines:
    """Return the record as a single line, with its original path and line number."""
    path, line, byte = (letter.origin.get(name) for name in ("path", "line", "byte"))
    number = line if isinstance(line, int) else part.start + 1
    first = byte if isinstance(byte, int) else 0
    where = replace(
        part,
        shown=str(path or part.shown),
        start=number - 1,
        stop=number,
        first_byte=first,
        stop_byte=first + len(value),
    )
    return Lines(where, value, np.zeros(1, np.int64), np.array([len(value)], np.int64))


def _text_row(letter: DeadLetter, line: Lines) -> pa.RecordBatch:
    unreadable = not_utf8(line)
    if unreadable:
        raise Unreadable(unreadable[0])
    path, number = letter.origin.get("path"), letter.origin.get("line")
    row = {
        "value": line.raw.decode(),
        "path": path if isinstance(path, str) else None,
        "line": number if isinstance(number, int) else None,
    }
    return pa.RecordBatch.from_pylist([row], TEXT)


def _json_row(line: Lines, schema: pa.Schema) -> pa.RecordBatch:
    try:
        parser = JsonParser(schema)
    except ValueError as error:
        raise Unreadable(f"{line.where(0)}: {error}") from None
    row, unreadable = parser.parse(line)
    if unreadable:
        raise Unreadable(unreadable[0])
    return row


def _whole_row(letter: DeadLetter, columns: Mapping[str, Any], schema: pa.Schema) -> dict[str, Any]:
    """Return all columns of a row. The letter's value is the one that is neither in its origin nor in ``columns``."""
    columns = {**letter.origin, **columns}
    lacking = [field.name for field in schema if field.name not in columns]
    if len(lacking) != 1:
        raise Unreadable(f"{letter.where}: its letter is damaged: it lacks the columns {lacking}, not one")
    return {**columns, lacking[0]: jsonable(letter.value)}


def _columns_row(letter: DeadLetter, row: Mapping[str, Any], schema: pa.Schema) -> pa.RecordBatch:
    try:
        values = {field.name: of_json(row.get(field.name), field.type) for field in schema}
        return without_missing(pa.RecordBatch.from_pylist([values], schema))
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError, pa.ArrowException) as error:
        raise Unreadable(f"{letter.where}: a value does not fit its column ({error})") from None
