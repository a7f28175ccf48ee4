"""Converts column values to JSON, for dead letters, and back.

Only the type of a value is lost. So a letter also has the columns of its row as DDL text, which Spark reads.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

from acker_client.source.decoding.fitting import fit_of

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECONDS = {"s": 1_000_000, "ms": 1_000, "us": 1}
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DDL = {
    pa.bool_(): "boolean", pa.int8(): "tinyint", pa.int16(): "smallint", pa.int32(): "int", pa.int64(): "bigint",
    pa.float32(): "float", pa.float64(): "double", pa.date32(): "date", pa.timestamp("us"): "timestamp_ntz",
    pa.string(): "string", pa.large_string(): "string", pa.binary(): "binary", pa.large_binary(): "binary",
    pa.duration("us"): "interval day to second", pa.null(): "void",
}  # fmt: skip


def ddl_of(schema: pa.Schema) -> str:
    """Return columns as the DDL text that Spark reads, all nullable; "" if one has a type that Spark lacks."""
    try:
        return ", ".join(f"{_name(field.name)} {_ddl_type(field.type)}" for field in schema)
    except KeyError:
        return ""


def _name(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else f"`{name.replace('`', '``')}`"


def _ddl_type(type_: Any) -> str:
    """Return a type as DDL text. Raises ``KeyError`` for a type that Spark lacks."""
    if pa.types.is_struct(type_):
        return f"struct<{', '.join(f'{_name(field.name)}: {_ddl_type(field.type)}' for field in type_)}>"
    if pa.types.is_map(type_):
        return f"map<{_ddl_type(type_.key_type)}, {_ddl_type(type_.item_type)}>"
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return f"array<{_ddl_type(type_.value_type)}>"
    if pa.types.is_decimal128(type_):
        return f"decimal({type_.precision}, {type_.scale})"
    if pa.types.is_timestamp(type_) and type_.tz is not None and type_.unit == "us":
        return "timestamp"
    return _DDL[type_]


def json_rows(rows: pa.RecordBatch | pa.Table) -> list[dict[str, Any]]:
    """Convert each row for JSON, as ``jsonable`` does, to a dict by column.

    Also converts what Python's own types do not hold: a timestamp (or date) before the year 1 or after 9999 becomes its
    microseconds (or days) since 1970, a duration its microseconds, and a string that is not UTF-8 ``{"base64": ...}``.
    """
    if all(map(_is_plain, rows.schema.types)):
        with suppress(UnicodeDecodeError):
            plain: list[dict[str, Any]] = rows.to_pylist()
            return plain
    names: list[str] = rows.schema.names
    columns: list[Any] = rows.columns
    return [
        {name: json_value(column[row]) for name, column in zip(names, columns, strict=True)}
        for row in range(rows.num_rows)
    ]


def _is_plain(type_: Any) -> bool:
    """Return whether all values of a type are their own form in JSON, if its text is UTF-8."""
    type_ = type_.value_type if pa.types.is_dictionary(type_) else type_
    return bool(pa.types.is_integer(type_) or pa.types.is_string(type_))


def json_value(value: Any) -> Any:
    """Convert an Arrow scalar for JSON; see ``json_rows``."""
    if not value.is_valid:
        return None
    if isinstance(value, pa.ExtensionScalar | pa.DictionaryScalar):
        return json_value(value.value)
    if isinstance(value, pa.StructScalar | pa.ListScalar):
        return _json_nested(value)
    if isinstance(value, pa.TimestampScalar):
        return _json_timestamp(value.value, value.type)
    if isinstance(value, pa.Date32Scalar):
        return _json_date(value.value)
    if isinstance(value, pa.DurationScalar) and value.type.unit in _MICROSECONDS:
        return value.value * _MICROSECONDS[value.type.unit]
    if isinstance(value, pa.Time64Scalar):
        return value.cast(pa.string()).as_py()  # Python's own times have no nanoseconds
    try:
        return jsonable(value.as_py())
    except UnicodeDecodeError:
        return _text(value.as_buffer().to_pybytes())


def _json_nested(value: Any) -> dict[str, Any] | list[Any]:
    if isinstance(value, pa.StructScalar):
        return {field.name: json_value(value[index]) for index, field in enumerate(value.type)}
    if isinstance(value, pa.MapScalar):
        return [[json_value(pair[0]), json_value(pair[1])] for pair in value.values]
    return [json_value(each) for each in value.values]


def _json_timestamp(ticks: int, type_: Any) -> str | int:
    us, nanoseconds = divmod(ticks, 1_000) if type_.unit == "ns" else (ticks * _MICROSECONDS[type_.unit], 0)
    try:
        moment = _EPOCH + timedelta(microseconds=us)
    except OverflowError:
        return us
    if not nanoseconds:
        return (moment if type_.tz else moment.replace(tzinfo=None)).isoformat()
    # Python drops the digits of nanoseconds when it reads them, and Spark has none.
    digits = f"{moment.replace(tzinfo=None).isoformat(timespec='microseconds')}{nanoseconds:03d}"
    return f"{digits}+00:00" if type_.tz else digits


def _json_date(days: int) -> str | int:
    try:
        return (_EPOCH + timedelta(days=days)).date().isoformat()
    except OverflowError:
        return days


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
    """Convert the result of ``jsonable`` or ``json_rows`` back to a value from which Arrow makes this type.

    Raises ``ValueError`` or ``TypeError``, also for a number that the type would change.
    """
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
    if isinstance(value, int) and pa.types.is_temporal(type_):
        return value
    if pa.types.is_timestamp(type_):
        return datetime.fromisoformat(value)
    if pa.types.is_date(type_):
        return date.fromisoformat(value)
    if pa.types.is_time(type_):
        return time.fromisoformat(value)
    if pa.types.is_decimal(type_):
        return Decimal(value)
    if pa.types.is_floating(type_):
        # Infinity and NaN are text in JSON.
        return fit_of(type_)(float(value) if isinstance(value, str) else value)
    if pa.types.is_integer(type_):
        return fit_of(type_)(value)
    if pa.types.is_binary(type_) or pa.types.is_large_binary(type_) or pa.types.is_fixed_size_binary(type_):
        return base64.b64decode(value["base64"]) if isinstance(value, Mapping) else value.encode()
    return value


def _text(value: bytes) -> str | dict[str, str]:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
