"""Refuses nulls in columns and fields that are NOT NULL, which Arrow itself lets through."""

from __future__ import annotations

from typing import Any

import pyarrow as pa


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
