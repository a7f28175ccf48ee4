"""Refuses what Arrow itself lets through: nulls in columns and fields that are NOT NULL, and floats that are not the
numbers they were made of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

# Up to this number, every whole number has its own double.
WHOLE_MAX = 1 << 53


def without_missing(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return ``rows``. Raises ``ArrowInvalid`` if one lacks a value that is NOT NULL. Does not look into maps."""
    for field, column in zip(rows.schema, rows.columns, strict=True):
        _refuse_missing(field.name, field, column)
    return rows


def _refuse_missing(name: str, field: Any, column: Any) -> None:
    if column.null_count and not field.nullable:
        raise pa.ArrowInvalid(f"{name} is NOT NULL, and missing or null")
    # A null struct has no fields that could be missing.
    values = column.drop_null()
    if pa.types.is_struct(field.type):
        for child, inner in zip(field.type, values.flatten(), strict=True):
            _refuse_missing(f"{name}.{child.name}", child, inner)
    elif pa.types.is_list(field.type):
        _refuse_missing(f"{name}[]", field.type.value_field, values.flatten())


def refuse_changed(given: Any, made: Any) -> None:
    """Raise ``ArrowInvalid`` if a cast has made a float of a number that is too large for it, or of a whole number that
    the float changes. A number above 2^53 is a double, and rounded like a fraction. ``given``, ``made``: the column
    before and after the cast. A reader of JSON does not tell 1e11 from 100000000000, so both are refused."""
    if given.type == made.type or pa.types.is_null(given.type):
        return
    if pa.types.is_struct(made.type):
        before, after = given.flatten(), made.flatten()
        for index, field in enumerate(made.type):
            # Like the cast, finds fields by name. A missing one is null.
            place = given.type.get_field_index(field.name)
            if place >= 0:
                refuse_changed(before[place], after[index])
    elif pa.types.is_map(made.type):
        refuse_changed(_entries(given), _entries(made))
    elif pa.types.is_nested(made.type):
        refuse_changed(_entries(given) if pa.types.is_map(given.type) else given.flatten(), made.flatten())
    elif pa.types.is_float32(made.type):
        numbers, floats = (column.cast(pa.float64()).to_numpy(zero_copy_only=False) for column in (given, made))
        is_whole = (np.abs(numbers) <= WHOLE_MAX) & (np.floor(numbers) == numbers)
        is_changed = (np.isinf(floats) != np.isinf(numbers)) | (is_whole & (numbers != floats))
        if is_changed.any():
            number = numbers[is_changed][0].item()
            raise pa.ArrowInvalid(f"{number} is not a number that a float holds, but a double does")


def _entries(maps: Any) -> Any:
    """Return the keys and values of all maps as structs. Arrow flattens no maps."""
    start, stop = (maps.offsets[at].as_py() for at in (0, len(maps)))
    return pa.StructArray.from_arrays([maps.keys[start:stop], maps.items[start:stop]], names=["key", "value"])
