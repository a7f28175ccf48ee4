"""Logs: one line per event, with named fields, as text or JSON.

Decides the format of a line, and how many lines of one event and how much of a field are written, since both may come
from outside. Uses the standard library's logging, so that lines of gRPC have the same format. The name of an event is a
few words in snake_case; everything that varies is a field.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Hashable
from datetime import UTC, datetime
from itertools import accumulate, takewhile
from typing import Any, TextIO

_FIELDS = "acker_fields"
# How many lines of one event are written in a minute. Other programs' lines count by the names of their loggers.
LINES_A_MINUTE = 120
# The longest text of a field, as JSON.
FIELD_BYTES = 512
# Most bytes that JSON needs for one character.
_BYTES_A_CHARACTER = 12


class Log:
    """Logs events under a name: ``log.info("serving", address="127.0.0.1:7070")``."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def info(self, event: str, **fields: object) -> None:
        self._logger.info(event, extra={_FIELDS: fields})

    def warning(self, event: str, **fields: object) -> None:
        self._logger.warning(event, extra={_FIELDS: fields})

    def error(self, event: str, **fields: object) -> None:
        self._logger.error(event, extra={_FIELDS: fields})

    def exception(self, event: str, **fields: object) -> None:
        """Like :meth:`error`, with the traceback of the exception that is being handled."""
        self._logger.exception(event, extra={_FIELDS: fields})  # noqa: LOG004  # its callers are handling an exception


class RateLimit:
    """Limits log lines that callers of the server can cause: ``lines`` per key in ``every_s``. Counts the suppressed
    lines.

    It tracks at most ``keys_max`` keys. Further keys share one limit, so the total number of lines is bounded.
    """

    def __init__(self, clock: Callable[[], float], every_s: float = 60.0, keys_max: int = 256, lines: int = 1) -> None:
        self._clock, self._every_s, self._keys_max, self._lines = clock, every_s, keys_max, lines
        self._lock = threading.Lock()
        # By key: when its first line was admitted, how many were admitted since then, and how many suppressed.
        self._keys: dict[Hashable, tuple[float, int, int]] = {}
        # Number of suppressed lines of all keys, since the start.
        self.suppressed = 0

    def admit(self, key: Hashable) -> int | None:
        """Return how many lines were suppressed since the last one of this key; None if this line must be
        suppressed."""
        with self._lock:
            now = self._clock()
            if key not in self._keys and len(self._keys) >= self._keys_max:
                self._forget_expired(now)
                key = key if len(self._keys) < self._keys_max else None
            since, admitted, suppressed = self._keys.get(key, (now, 0, 0))
            if now - since >= self._every_s:
                since, admitted = now, 0
            if admitted == self._lines:
                self._keys[key] = since, admitted, suppressed + 1
                self.suppressed += 1
                return None
            self._keys[key] = since, admitted + 1, 0
            return suppressed

    def _forget_expired(self, now: float) -> None:
        self._keys = {key: seen for key, seen in self._keys.items() if now - seen[0] < self._every_s}


class LineLimit(logging.Filter):
    """Lets LINES_A_MINUTE lines of each event pass. The next line of an event has the number of those that were left
    out as its field ``left_out``."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._limit = RateLimit(clock, lines=LINES_A_MINUTE)

    @property
    def left_out(self) -> int:
        """How many lines were left out so far."""
        return self._limit.suppressed

    def filter(self, record: logging.LogRecord) -> bool:
        is_event = hasattr(record, _FIELDS)
        left_out = self._limit.admit((record.name, record.getMessage() if is_event else None))
        if left_out:
            fields = _fields(record)
            # A line that its caller limits, too, has the field already.
            setattr(record, _FIELDS, fields | {"left_out": left_out + fields.get("left_out", 0)})
        return left_out is not None


def configure(stream: TextIO, *, format: str, level: str, clock: Callable[[], float] = time.monotonic) -> LineLimit:
    """Send the log lines of this process to ``stream``, and return their limit. ``format``: text or json; ``level``: as
    logging names it."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Json() if format == "json" else _Text())
    limit = LineLimit(clock)
    handler.addFilter(limit)
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    return limit


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        words = [_time(record), f"{record.levelname:<7}", record.getMessage()]
        words += [f"{name}={_quoted(value)}" for name, value in _fields(record).items()]
        line = " ".join(words)
        return line + "\n" + self.formatException(record.exc_info) if record.exc_info else line


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        line |= _fields(record)
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields: dict[str, Any] = getattr(record, _FIELDS, {})
    return {name: _cut(value) if isinstance(value, str) else value for name, value in fields.items()}


def _cut(text: str) -> str:
    """Return the text, or as many of its characters as FIELD_BYTES of JSON hold, and three dots."""
    if len(text) * _BYTES_A_CHARACTER <= FIELD_BYTES or len(json.dumps(text)) - 2 <= FIELD_BYTES:
        return text
    sizes = accumulate(len(json.dumps(character)) - 2 for character in text)
    return text[: sum(1 for _ in takewhile(lambda size: size <= FIELD_BYTES - len("..."), sizes))] + "..."


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _quoted(value: object) -> str:
    text = str(value)
    # Values from outside may hold terminal control codes, or text that looks like another line or field.
    return text if text and text.isprintable() and not set(text) & set(' "=') else json.dumps(text)
