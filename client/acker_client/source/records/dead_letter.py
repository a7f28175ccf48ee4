"""Dead letter: a record that has no retries left, and its JSON form. Pure."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

# A longer value is cut in its letter. "bytes" then holds its full length, and the origin locates the whole record. Even
# if JSON has to escape every byte, the line stays below the longest line that put_back reads.
VALUE_BYTES_MAX = 16 << 20

# The end of an error about letters that cannot be written.
NOTHING_LOST = "Nothing is lost: their records are not done, and are read again at the next start"

_NEEDED = {"source", "reason", "attempts", "first", "last"}
_OWN = _NEEDED | {"value", "value_base64", "bytes", "schema", "columns"}


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One record without retries left: the reason, the numbers of failed and interrupted tries, the times of the first
    and the last try (Unix seconds), the origin and the value.

    ``origin``: the input's own names and values (``path``, ``line``, ``byte``). ``value``: the record's bytes, or
    columns that survive JSON; None if the record has no value, or the input could not read it again. ``schema``: the
    columns of the record's row as DDL text; "" for a line of text, and in a letter of an older acker. ``columns``: the
    columns of the row that neither ``value`` nor ``origin`` holds, as they survive JSON; None if the value is the whole
    row, or the record could not be read. ``value_bytes``: the full length of a value of which the letter holds only a
    part.
    """

    source: str
    reason: str
    failed: int
    interrupted: int
    first_s: float
    last_s: float
    origin: Mapping[str, Any]
    value: bytes | Mapping[str, Any] | None
    value_bytes: int | None = None
    schema: str = ""
    columns: Mapping[str, Any] | None = None

    @classmethod
    def of_json(cls, line: str) -> DeadLetter:
        """Parse the result of ``to_json``. Raises ``ValueError``, which says what is wrong."""
        try:
            read = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"not JSON: {error.msg}") from None
        except RecursionError:
            raise ValueError("not a dead letter: its brackets have no end") from None
        if not isinstance(read, dict) or not read.keys() >= _NEEDED:
            raise ValueError("not a dead letter")
        try:
            failed, interrupted = (int(read["attempts"][how]) for how in ("failed", "interrupted"))
            first_s, last_s = (datetime.fromisoformat(read[when]).timestamp() for when in ("first", "last"))
            value, value_bytes = _value_of(read), read.get("bytes")
        except (KeyError, OverflowError, TypeError, ValueError) as error:
            raise ValueError(f"not a dead letter: {error!r}") from None
        if not (isinstance(value_bytes, int) or value_bytes is None):
            raise ValueError(f"not a dead letter: its record has {value_bytes!r} bytes")
        schema, columns = read.get("schema", ""), read.get("columns")
        if not (isinstance(schema, str) and (isinstance(columns, dict) or columns is None)):
            raise ValueError("not a dead letter: its schema is no text, or its columns are no object")
        origin = {name: each for name, each in read.items() if name not in _OWN}
        texts = (str(read["source"]), str(read["reason"]))
        return cls(*texts, failed, interrupted, first_s, last_s, origin, value, value_bytes, schema, columns)

    @property
    def why_not_again(self) -> str:
        """Return why this letter is not enough to retry the record; "" if it is enough."""
        if self.value is None and self.columns is None:
            return "the input could not give its record once more"
        if self.value_bytes is not None:
            return f"it has only a part of the record, which has {self.value_bytes:,} bytes"
        return ""

    @property
    def where(self) -> str:
        """Return the record's origin as a person would write it, for example ``path:line``."""
        return ":".join(str(each) for name, each in self.origin.items() if name != "byte")

    def to_json(self, *, is_ascii: bool = False) -> str:
        """Return one line of JSON. ``value`` is text or an object of columns; bytes that are not UTF-8 are in
        ``value_base64``. ``is_ascii``: with all other characters escaped."""
        letter: dict[str, Any] = {
            "source": self.source,
            "reason": self.reason,
            "attempts": {"failed": self.failed, "interrupted": self.interrupted},
            "first": _iso(self.first_s),
            "last": _iso(self.last_s),
            **self.origin,
        }
        cut = {} if self.value_bytes is None else {"bytes": self.value_bytes}
        schema = {"schema": self.schema} if self.schema else {}
        columns = {} if self.columns is None else {"columns": dict(self.columns)}
        return json.dumps(letter | _value(self.value) | cut | schema | columns, ensure_ascii=is_ascii)


def _value_of(read: Mapping[str, Any]) -> bytes | dict[str, Any] | None:
    """Read the result of ``_value``. Raises ``KeyError``, ``TypeError`` or ``ValueError`` for anything else."""
    if "value_base64" in read:
        return base64.b64decode(read["value_base64"], validate=True)
    value = read["value"]
    if isinstance(value, str):
        return value.encode(errors="surrogatepass")
    if isinstance(value, dict) or value is None:
        return value
    raise TypeError("its value is neither text nor columns")


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
