"""Fits values of Python to the type of a column.

A value that does not fit is refused with its place in the record, and is never changed to one that fits: Arrow alone
would cut 1.5 to 1. Fields that the type does not name are ignored, and missing ones are null, which a field that is
NOT NULL refuses. A date, a time stamp or a decimal may also be text, since JSON has no other form for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from struct import pack, unpack
from typing import Any
from uuid import UUID

import pyarrow as pa

# Converts a value that is not None. Raises ``Misfit``.
Fit = Callable[[Any], Any]
SHOWN_MAX = 60


class Misfit(ValueError):
    """A value that does not fit its column. ``where``: its place in the record, like ``.items[3].qty``."""

    def __init__(self, text: str, where: str = "") -> None:
        super().__init__(text)
        self.text, self.where = text, where

    def __str__(self) -> str:
        return f"{self.where.lstrip('.')}: {self.text}" if self.where else self.text


def fit_of(type_: Any) -> Fit:
    """Return the function that fits values to an Arrow type. Raises ``ValueError`` for a type that no record has."""
    if pa.types.is_struct(type_):
        return _struct(type_)
    if pa.types.is_map(type_):
        return _map(type_)
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return _list(type_.value_field)
    if pa.types.is_integer(type_):
        return _integer(type_)
    for is_of, fit in SCALARS.items():
        if is_of(type_):
            return fit
    raise ValueError(f"values cannot have a column of type {type_}: give it another type, or leave it out")


def fitted_column(values: Sequence[Any], type_: Any, fit: Fit) -> tuple[pa.Array, dict[int, str]]:
    """Return a column of ``type_``, null where a value is None or does not fit, and why by the index of the value."""
    misfits: dict[int, str] = {}
    rows: list[Any] = []
    for index, value in enumerate(values):
        try:
            rows.append(None if value is None else fit(value))
        except Misfit as misfit:
            misfits[index] = str(misfit)
            rows.append(None)
    try:
        return pa.array(rows, type_), misfits
    except (pa.ArrowException, ValueError, OverflowError):
        # Such as a decimal with too many digits. The error names no row.
        for index, row in enumerate(rows):
            rows[index], reason = _alone(row, type_)
            if reason:
                misfits[index] = reason
        return pa.array(rows, type_), misfits


def _alone(row: Any, type_: Any) -> tuple[Any, str]:
    """Return a row and "", or None and the reason why Arrow refuses it."""
    try:
        pa.array([row], type_)
    except (pa.ArrowException, ValueError, OverflowError) as error:
        return None, str(error).partition("\n")[0]
    return row, ""


def _struct(type_: Any) -> Fit:
    fields = [(field.name, _nullable(field)) for field in type_]

    def fit(value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise _misfit(value, "a record")
        row = {}
        for name, child in fields:
            try:
                row[name] = child(value.get(name))
            except Misfit as misfit:
                raise Misfit(misfit.text, f".{name}{misfit.where}") from None
        return row

    return fit


def _map(type_: Any) -> Fit:
    key, item = _nullable(type_.key_field), _nullable(type_.item_field)

    def fit(value: Any) -> list[tuple[Any, Any]]:
        if not isinstance(value, Mapping):
            raise _misfit(value, "a map")
        pairs = []
        for name, each in value.items():
            try:
                pairs.append((key(name), item(each)))
            except Misfit as misfit:
                raise Misfit(misfit.text, f"[{name!r}]{misfit.where}") from None
        return pairs

    return fit


def _list(field: Any) -> Fit:
    item = _nullable(field)

    def fit(value: Any) -> list[Any]:
        if not isinstance(value, list | tuple):
            raise _misfit(value, "a list")
        items = []
        for index, each in enumerate(value):
            try:
                items.append(item(each))
            except Misfit as misfit:
                raise Misfit(misfit.text, f"[{index}]{misfit.where}") from None
        return items

    return fit


def _nullable(field: Any) -> Fit:
    """Return the function that fits values of a field, None among them."""
    fit, nullable = fit_of(field.type), field.nullable

    def fit_or_none(value: Any) -> Any:
        if value is not None:
            return fit(value)
        if nullable:
            return None
        raise Misfit("is NOT NULL, and missing or null")

    return fit_or_none


def _integer(type_: Any) -> Fit:
    low, high = (0, 1 << type_.bit_width) if pa.types.is_unsigned_integer(type_) else _bounds(type_.bit_width)

    def fit(value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise _misfit(value, f"an {type_}")
        if not low <= value < high:
            raise _misfit(value, f"an {type_}, being out of its range")
        return value

    return fit


def _bounds(bits: int) -> tuple[int, int]:
    return -(1 << bits - 1), 1 << bits - 1


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _misfit(value, "a boolean")
    return value


def _floating(value: Any) -> float:
    if isinstance(value, float) or (isinstance(value, int) and not isinstance(value, bool) and abs(value) <= 1 << 53):
        return float(value)
    raise _misfit(value, "a number that a double holds")


def _single(value: Any) -> float:
    number = _floating(value)
    try:
        (held,) = unpack("<f", pack("<f", number))
    except OverflowError:
        held = None
    # A fraction is rounded, as any fraction of a float is.
    if held is None or (isinstance(value, int) and held != value):
        raise _misfit(value, "a number that a float holds")
    return number


def _string(value: Any) -> str:
    if isinstance(value, UUID):
        return str(value)
    if not isinstance(value, str):
        raise _misfit(value, "text")
    return value


def _binary(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise _misfit(value, "bytes")
    return value


def _decimal(value: Any) -> Decimal:
    if isinstance(value, Decimal):
        return value
    if isinstance(value, int | str) and not isinstance(value, bool):
        try:
            return Decimal(value)
        except InvalidOperation:
            pass
    raise _misfit(value, "a decimal")


def _timestamp(value: Any) -> datetime:
    if isinstance(value, datetime):
        return value
    if isinstance(value, str):
        try:
            return datetime.fromisoformat(value)
        except ValueError:
            pass
    raise _misfit(value, "a time stamp")


def _date(value: Any) -> date:
    if isinstance(value, date) and not isinstance(value, datetime):
        return value
    if isinstance(value, str):
        try:
            return date.fromisoformat(value)
        except ValueError:
            pass
    raise _misfit(value, "a date")


SCALARS: dict[Callable[[Any], bool], Fit] = {
    pa.types.is_boolean: _boolean,
    pa.types.is_float32: _single,
    pa.types.is_floating: _floating,
    pa.types.is_string: _string,
    pa.types.is_large_string: _string,
    pa.types.is_binary: _binary,
    pa.types.is_large_binary: _binary,
    pa.types.is_decimal: _decimal,
    pa.types.is_timestamp: _timestamp,
    pa.types.is_date: _date,
}


def _misfit(value: Any, wanted: str) -> Misfit:
    shown = repr(value)
    shown = shown if len(shown) <= SHOWN_MAX else f"{shown[:SHOWN_MAX]}..."
    return Misfit(f"{shown} is not {wanted}")
