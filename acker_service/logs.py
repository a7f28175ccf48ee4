"""Logs: one line an event, with named fields, as text or JSON.

Decides how a line looks. Goes through the standard library's logging, so that what gRPC logs comes out the same way.
An event is a few words in snake_case; whatever varies is a field, never part of the event's name.
"""

from __future__ import annotations

import json
import logging
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
        """As :meth:`error`, with the traceback of the exception that is being handled."""
        self._logger.exception(event, extra={_FIELDS: fields})


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
    return json.dumps(text) if not text or " " in text or '"' in text or "\n" in text else text
