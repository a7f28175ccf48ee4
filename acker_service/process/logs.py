"""Logs: one line per event, with named fields, as text or JSON.

Decides the format of a line. Uses the standard library's logging, so that lines of gRPC have the same format. The name
of an event is a few words in snake_case; everything that varies is a field.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Hashable
from datetime import UTC, datetime
from typing import Any, TextIO

_FIELDS = "acker_fields"


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
    """Limits log lines that callers of the server can cause: one per key in ``every_s``. Counts the suppressed lines.

    It tracks at most ``keys_max`` keys. Further keys share one limit, so the total number of lines is bounded.
    """

    def __init__(self, clock: Callable[[], float], every_s: float = 60.0, keys_max: int = 256) -> None:
        self._clock, self._every_s, self._keys_max = clock, every_s, keys_max
        self._lock = threading.Lock()
        self._keys: dict[Hashable, tuple[float, int]] = {}

    def admit(self, key: Hashable) -> int | None:
        """Return how many lines were suppressed since the last one of this key; None if this line must be
        suppressed."""
        with self._lock:
            now = self._clock()
            if key not in self._keys and len(self._keys) >= self._keys_max:
                self._forget_expired(now)
                key = key if len(self._keys) < self._keys_max else None
            last, suppressed = self._keys.get(key, (now - self._every_s, 0))
            if now - last < self._every_s:
                self._keys[key] = last, suppressed + 1
                return None
            self._keys[key] = now, 0
            return suppressed

    def _forget_expired(self, now: float) -> None:
        self._keys = {key: seen for key, seen in self._keys.items() if now - seen[0] < self._every_s}


def configure(stream: TextIO, *, format: str, level: str) -> None:
    """Send every log line of this process to ``stream``. ``format``: text or json; ``level``: as logging names it."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Json() if format == "json" else _Text())
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)


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


def _fields(record: logging.LogRecord) -> dict[str, object]:
    fields: dict[str, object] = getattr(record, _FIELDS, {})
    return fields


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _quoted(value: object) -> str:
    text = str(value)
    # Values from outside may hold terminal control codes, or text that looks like another line or field.
    return text if text and text.isprintable() and not set(text) & set(' "=') else json.dumps(text)
