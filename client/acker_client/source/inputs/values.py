"""Values: columns of a row as JSON has them, for dead letters. Nothing of a value is lost but its type."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from typing import Any


def jsonable(value: Any) -> Any:
    """What goes through JSON as it is, stays; dates and times are ISO 8601, bytes are UTF-8 or else base64, and other
    values (a decimal, a NaN) their text. A map is a list of pairs, as its keys may be anything."""
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


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return base64.b64encode(value).decode()
