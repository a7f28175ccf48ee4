"""JSON lines: one JSON object per line, parsed into columns by Arrow.

A line is malformed if it is no JSON object, or if its values do not fit the schema. Only that line fails, and it does
not affect the other lines. Fields that the schema does not name are ignored; missing fields become null, which a field
that is NOT NULL refuses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.json

from acker_client.source.decoding.columns import refuse_changed, without_missing
from acker_client.source.decoding.lines import Lines, not_utf8, too_long

OPENING = ord("{")
CLOSING = ord("}")


@dataclass(frozen=True, slots=True)
class JsonParser:
    """Parses JSON lines into exactly the columns of ``schema``. Raises ``ValueError`` for a type that no line has."""

    schema: pa.Schema

    def __post_init__(self) -> None:
        _parsed_schema(self.schema)

    def parse(self, lines: Lines) -> tuple[pa.RecordBatch, dict[int, str]]:
        unreadable = too_long(lines) or not_utf8(lines)
        for index in np.flatnonzero(~_look_like_objects(lines)).tolist():
            unreadable.setdefault(index, f"{lines.where(index)}: not a JSON object")
        if not unreadable and len(lines):
            whole = self._parse(lines.raw[int(lines.starts[0]) :], len(lines))
            if isinstance(whole, pa.RecordBatch):
                return whole, {}
        return self._parse_readable(lines, unreadable)

    def _parse_readable(self, lines: Lines, unreadable: dict[int, str]) -> tuple[pa.RecordBatch, dict[int, str]]:
        """Parse all but the ``unreadable`` lines, and find further lines that the parser refuses."""
        readable = [index for index in range(len(lines)) if index not in unreadable]
        rows = np.zeros(len(lines), np.int64)
        missing = np.ones(len(lines), bool)
        found, parsed = 0, [pa.RecordBatch.from_pylist([], self.schema)]
        for indices, outcome in self._parse_in_halves(lines, readable):
            if isinstance(outcome, str):
                unreadable[indices[0]] = f"{lines.where(indices[0])}: malformed JSON ({outcome})"
                continue
            parsed.append(outcome)
            rows[indices] = np.arange(found, found + len(indices))
            missing[indices] = False
            found += len(indices)
        return pa.concat_batches(parsed).take(pa.array(rows, mask=missing)), unreadable

    def _parse_in_halves(self, lines: Lines, indices: list[int]) -> Iterator[tuple[list[int], pa.RecordBatch | str]]:
        """Parse the lines at ``indices``; if that fails, parse each half, down to the single malformed lines."""
        if not indices:
            return
        outcome = self._parse(b"\n".join(lines.line(index) for index in indices), len(indices))
        if isinstance(outcome, pa.RecordBatch) or len(indices) == 1:
            yield indices, outcome
            return
        middle = len(indices) // 2
        yield from self._parse_in_halves(lines, indices[:middle])
        yield from self._parse_in_halves(lines, indices[middle:])

    def _parse(self, content: bytes, count: int) -> pa.RecordBatch | str:
        """Return ``count`` rows, or the reason why they cannot be parsed.

        Every line begins and ends like an object, so no object spans several lines, and each line makes at least one
        row. So if there are as many rows as lines, each line has made one row.
        """
        reading = pyarrow.json.ReadOptions(use_threads=False, block_size=len(content) + 1)
        parsing = pyarrow.json.ParseOptions(
            explicit_schema=_parsed_schema(self.schema), unexpected_field_behavior="ignore"
        )
        try:
            table = pyarrow.json.read_json(pa.BufferReader(content), reading, parsing)
            if table.num_rows != count:
                return f"{table.num_rows} objects on {count} lines"
            batch: pa.RecordBatch = table.select(self.schema.names).combine_chunks().to_batches()[0]
            for index, field in enumerate(self.schema):
                batch = batch.set_column(index, field, _retyped(batch.column(index), field.type))
            return without_missing(batch)
        except pa.ArrowException as error:
            return str(error).partition("\n")[0]


@cache
def _parsed_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema that Arrow's parser gets. Raises ``ValueError`` for a column type that no JSON line has."""
    return pa.schema([(field.name, _parsed_as(field.type)) for field in schema])


def _parsed_as(type_: Any) -> Any:
    """Return the type that Arrow's parser gets. All fields are nullable, since it refuses a null struct with a field
    that is NOT NULL. It would take a number for a date, and round every number to a float."""
    if pa.types.is_struct(type_):
        return pa.struct([(field.name, _parsed_as(field.type)) for field in type_])
    if pa.types.is_list(type_):
        return pa.list_(_parsed_as(type_.value_type))
    if pa.types.is_map(type_) or pa.types.is_duration(type_):
        raise ValueError(
            f"JSON lines cannot have a column of type {type_}: give it another type, such as a struct instead of a map,"
            " or read the lines as text"
        )
    if pa.types.is_date(type_):
        return pa.string()
    return pa.float64() if pa.types.is_float32(type_) else type_


def _retyped(column: Any, type_: Any) -> Any:
    """Return a parsed column as ``type_``. Raises ``ArrowInvalid`` if a value does not fit."""
    if pa.types.is_struct(type_):
        inner = [_retyped(values, field.type) for values, field in zip(column.flatten(), type_, strict=True)]
        return pa.StructArray.from_arrays(inner, fields=list(type_), mask=column.is_null())
    if pa.types.is_list(type_):
        items = _retyped(column.values, type_.value_type)
        return pa.ListArray.from_arrays(column.offsets, items, type=type_, mask=column.is_null())
    made = column.cast(type_)
    refuse_changed(column, made)
    return made


def _look_like_objects(lines: Lines) -> npt.NDArray[np.bool_]:
    """Whether each line begins with ``{`` and ends with ``}``, apart from white space."""
    content = np.frombuffer(lines.raw, np.uint8)
    some = lines.ends > lines.starts
    looks = np.zeros(len(lines), bool)
    looks[some] = (content[lines.starts[some]] == OPENING) & (content[lines.ends[some] - 1] == CLOSING)
    for index in np.flatnonzero(some & ~looks).tolist():
        line = lines.line(index).strip()
        looks[index] = line[:1] == b"{" and line[-1:] == b"}"
    return looks
