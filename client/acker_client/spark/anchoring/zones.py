"""Zones: timestamps in UTC, whatever the zone of the session.

Spark passes timestamps to Python in the session's zone. A step that follows another one in the same task gets them in
UTC. The hours that a function over batches sees must not depend on which of the two it is.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pyarrow as pa
from pyarrow import types

UTC = "UTC"


def in_utc(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return ``batch`` with all timestamps that have a zone, nested ones too, in UTC. Copies no values."""
    fields = [_field_in_utc(field) for field in batch.schema]
    if fields == list(batch.schema):
        return batch
    columns = [column.cast(field.type) for column, field in zip(batch.columns, fields, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def scalar_in_utc(scalar: Any) -> Any:
    """Return an Arrow scalar; in UTC if it is a timestamp with a zone."""
    kind = _type_in_utc(scalar.type)
    return scalar if kind == scalar.type else scalar.cast(kind)


def _field_in_utc(field: pa.Field) -> pa.Field:
    return field.with_type(_type_in_utc(field.type))


@lru_cache(maxsize=1024)
def _type_in_utc(kind: Any) -> Any:
    if types.is_timestamp(kind):
        return pa.timestamp(kind.unit, UTC) if kind.tz else kind
    if types.is_struct(kind):
        return pa.struct([_field_in_utc(field) for field in kind])
    if types.is_map(kind):
        return pa.map_(_field_in_utc(kind.key_field), _field_in_utc(kind.item_field), kind.keys_sorted)
    if types.is_list(kind):
        return pa.list_(_field_in_utc(kind.value_field))
    return pa.large_list(_field_in_utc(kind.value_field)) if types.is_large_list(kind) else kind
