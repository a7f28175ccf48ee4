"""Dead letter: what is kept of one record that was tried often enough, and how it is written as JSON. Pure."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

# A longer value is cut in its letter; "bytes" says how long it was, and its origin where it is.
VALUE_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One record that spent its retries: why, how often it was tried, when (Unix seconds), from where, and itself.

    ``origin``: where it stands, by names of the input's own (``path``, ``line``, ``byte``). ``value``: its bytes, or
    columns that go through JSON; None: the input could not give it once more.
    """

    source: str
    reason: str
    failed: int
    interrupted: int
    first_s: float
    last_s: float
    origin: Mapping[str, Any]
    value: bytes | Mapping[str, Any] | None

    def to_json(self) -> str:
        """One line of JSON. ``value`` is the text, or an object of columns; what is not UTF-8 is ``value_base64``."""
        letter: dict[str, Any] = {
            "source": self.source,
            "reason": self.reason,
            "attempts": {"failed": self.failed, "interrupted": self.interrupted},
            "first": _iso(self.first_s),
            "last": _iso(self.last_s),
            **self.origin,
        }
        return json.dumps(letter | _value(self.value), ensure_ascii=False)


def _value(value: bytes | Mapping[str, Any] | None) -> dict[str, Any]:
    if value is None:
        return {"value": None}
    if isinstance(value, Mapping):
        text = json.dumps(dict(value), ensure_ascii=False).encode(errors="surrogatepass")
        return {"value": dict(value)} if len(text) <= VALUE_BYTES_MAX else _text(text)
    return _text(value)


def _text(value: bytes) -> dict[str, Any]:
    head = value[:VALUE_BYTES_MAX]
    cut = {"bytes": len(value)} if len(value) > len(head) else {}
    try:
        return {"value": head.decode(), **cut}
    except UnicodeDecodeError:
        return {"value_base64": base64.b64encode(head).decode(), **cut}


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
