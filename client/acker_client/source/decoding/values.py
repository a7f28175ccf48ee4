"""Converts column values to JSON, for dead letters, and back. Only the type of a value is lost."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa


def jsonable(value: Any) -> Any:
    """Convert a value to one that JSON can hold.

    JSON's own types stay as they are. Dates and times become ISO 8601. Bytes become text if they are UTF-8, otherwise
    ``{"base64": ...}``. Other values (a decimal, a NaN) become their text. A map comes as a list of pairs, because its
    keys may have any type.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return _text(value)
    if isinstance(value, Mapping):
        return {str(name): jsonable(each) for name, each in value.items()}
    if isinstance(value, Sequence):
        return [jsonable(each) for each in value]
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def of_json(value: Any, type_: Any) -> Any:
    """Convert the result of ``jsonable`` back to a value of this Arrow type. Raises ``ValueError`` or ``TypeError``."""
    if value is None:
        return None
    if pa.types.is_struct(type_):
        return {field.name: of_json(value.get(field.name), field.type) for field in type_}
    if pa.types.is_map(type_):
        return [(of_json(key, type_.key_type), of_json(each, type_.item_type)) for key, each in value]
    if pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_):
        return [of_json(each, type_.value_type) for each in value]
    return _scalar(value, type_)


def _scalar(value: Any, type_: Any) -> Any:
    if pa.types.is_timestamp(type_):
        return datetime.fromisoformat(value)
    if pa.types.is_date(type_):
        return date.fromisoformat(value)
    if pa.types.is_time(type_):
        return time.fromisoformat(value)
    if pa.types.is_decimal(type_):
        return Decimal(value)
    if pa.types.is_floating(type_):
        return float(value)
    if pa.types.is_binary(type_) or pa.types.is_large_binary(type_) or pa.types.is_fixed_size_binary(type_):
        return base64.b64decode(value["base64"]) if isinstance(value, Mapping) else value.encode()
    return value


def _text(value: bytes) -> str | dict[str, str]:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
