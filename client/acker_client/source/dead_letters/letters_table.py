"""Dead letters as rows of a table in Spark's catalog. Each write is an append of its own, which Spark commits.

A source that dies right after a write may write the same letters again, so a letter is written at least once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from acker_client.error_text import shorten
from acker_client.source.dead_letters.pieces import in_pieces
from acker_client.source.errors import SourceError
from acker_client.source.records.dead_letter import NOTHING_LOST, DeadLetter

# "letter" is the line of JSON that a file of dead letters would hold.
COLUMNS = {
    "source": "string",
    "reason": "string",
    "failed": "int",
    "interrupted": "int",
    "first_try": "timestamp",
    "last_try": "timestamp",
    "origin": "map<string, string>",
    "value": "string",
    "letter": "string",
}
SCHEMA = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())

# The driver hands rows to Spark in pieces of about this size.
PIECE_CHARS = 32 << 20


class Table:
    """A table as a ``DeadLetterStore``: ``dead_letters=Table("db.dead")``.

    ``name``: a table in Spark's catalog. The source creates it, in Spark's default format, if it does not exist. A
    table that exists needs the columns ``source string, reason string, failed int, interrupted int, first_try
    timestamp, last_try timestamp, origin map<string, string>, value string, letter string``, in any order, and may have
    more. ``value`` is null for bytes that are not UTF-8. ``letter`` is the whole letter in JSON.
    """

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not name.strip():
            raise ValueError(f"Table({name!r}): name a table of Spark's catalog, like Table('db.dead')")
        self.name = name
        self._spark: Any = None

    def __str__(self) -> str:
        return f"table {self.name}"

    def __repr__(self) -> str:
        return f"Table({self.name!r})"

    def set_session(self, spark: Any) -> None:
        """Write with this session from now on."""
        self._spark = spark

    def open(self) -> None:
        """Create the table if it does not exist, and check its columns. Raises ``SourceError``."""
        from acker_client.spark.driver.tables import create_table

        try:
            lacking = create_table(self._spark, self.name, COLUMNS)
        except Exception as error:
            raise SourceError(
                f"dead letters cannot be written to {self} ({shorten(error)}): create its database, or name another"
                " table"
            ) from error
        if lacking:
            raise SourceError(
                f"dead letters cannot be written to {self}: it lacks {', '.join(lacking)}. Add these columns, or name a"
                " table that does not exist, which the source creates"
            )

    def write(self, letters: Iterable[DeadLetter]) -> None:
        """Append ``letters``, and return when Spark has committed them. Raises ``SourceError``."""
        from acker_client.spark.driver.tables import append_rows

        try:
            for rows in in_pieces(map(_row, letters), _chars_of, PIECE_CHARS):
                append_rows(self._spark, self.name, rows, SCHEMA)
        except Exception as error:
            raise SourceError(f"dead letters cannot be written to {self} ({shorten(error)}). {NOTHING_LOST}") from error

    def close(self) -> None:
        """Release the session."""
        self._spark = None


def _chars_of(row: tuple[Any, ...]) -> int:
    return len(row[-1])


def _row(letter: DeadLetter) -> tuple[Any, ...]:
    return (
        _text(letter.source),
        _text(letter.reason),
        letter.failed,
        letter.interrupted,
        datetime.fromtimestamp(letter.first_s, UTC),
        datetime.fromtimestamp(letter.last_s, UTC),
        {_text(name): _origin_text(each) for name, each in letter.origin.items()},
        _value(letter.value),
        _line(letter),
    )


def _origin_text(value: Any) -> str:
    return _text(value if isinstance(value, str) else json.dumps(value))


def _value(value: bytes | Mapping[str, Any] | None) -> str | None:
    if isinstance(value, Mapping):
        return _text(json.dumps(dict(value), ensure_ascii=False))
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def _line(letter: DeadLetter) -> str:
    line = letter.to_json()
    return line if _is_utf8(line) else letter.to_json(is_ascii=True)


def _text(text: str) -> str:
    """Return a text that Spark can take: names of files, and reasons, may hold parts of characters."""
    return text if _is_utf8(text) else text.encode(errors="replace").decode()


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
