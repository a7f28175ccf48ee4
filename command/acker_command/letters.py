"""Letters: selects, sorts and groups dead letters. Pure.

Decides that the newest comes first, that letters are grouped by the first line of their reason, and how a span of time
is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from acker_client.error_text import shorten
from acker_client.source.records.dead_letter import DeadLetter

_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True, slots=True)
class Wanted:
    """Selects letters of one ``source`` that died at ``since_s`` (Unix seconds) or later. ``reason``: text that the
    reason of a letter contains, in upper or lower case. None: any."""

    source: str | None = None
    reason: str | None = None
    since_s: float | None = None

    def holds(self, letter: DeadLetter) -> bool:
        return (
            (self.source is None or letter.source == self.source)
            and (self.reason is None or self.reason.casefold() in letter.reason.casefold())
            and (self.since_s is None or letter.last_s >= self.since_s)
        )


@dataclass(frozen=True, slots=True)
class Alike:
    """A group of letters: its name, their number, when the first and the last of them died, and the last as example."""

    name: str
    count: int
    first_s: float
    last_s: float
    example: DeadLetter


def newest_first(letters: Iterable[DeadLetter]) -> list[DeadLetter]:
    """Return the letters with the newest first. At equal times, the letter that was written last comes first."""
    return sorted(letters, key=lambda letter: letter.last_s)[::-1]


def alike(letters: Sequence[DeadLetter], what: str) -> list[Alike]:
    """Group ``letters`` by "reason" or "source", and return the largest group first. ``letters`` must be sorted,
    with the newest first."""
    groups: dict[str, list[DeadLetter]] = {}
    for letter in letters:
        groups.setdefault(short(letter.reason) if what == "reason" else letter.source, []).append(letter)
    found = [
        Alike(name, len(those), min(each.last_s for each in those), those[0].last_s, those[0])
        for name, those in groups.items()
    ]
    return sorted(found, key=lambda group: (-group.count, group.name))


def short(reason: str) -> str:
    """Return the first line of a reason."""
    return shorten(reason)


def shown_value(letter: DeadLetter) -> str:
    """Return the record's value as text."""
    if letter.value is None:
        return f"(not here: {letter.why_not_again})" if letter.why_not_again else "(none)"
    if isinstance(letter.value, bytes):
        return letter.value.decode(errors="backslashreplace")
    return listed_columns(letter.value)


def listed_columns(columns: Mapping[str, Any]) -> str:
    """Return columns as text, one on a line."""
    return "\n".join(f"{name}: {each}" for name, each in columns.items())


def time_of(seconds: float) -> str:
    """Return a time in UTC, to the second."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def since(text: str, now_s: float) -> float:
    """Return the Unix seconds of a time (``2026-11-22``, ``2026-11-22T08:30``, UTC by default), or of a span before now
    (``90m``, ``2h``, ``3d``). Raises ``ValueError``."""
    span = _SPAN.fullmatch(text.strip())
    if span:
        return now_s - float(span[1]) * _SECONDS[span[2]]
    time = datetime.fromisoformat(text.strip())
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def json_of(letter: DeadLetter) -> dict[str, Any]:
    """Return a letter as ``--json`` prints it: as in its file, but with its origin as a separate object."""
    value = letter.value.decode(errors="backslashreplace") if isinstance(letter.value, bytes) else letter.value
    return {
        "source": letter.source,
        "reason": letter.reason,
        "attempts": {"failed": letter.failed, "interrupted": letter.interrupted},
        "first": datetime.fromtimestamp(letter.first_s, UTC).isoformat(timespec="milliseconds"),
        "last": datetime.fromtimestamp(letter.last_s, UTC).isoformat(timespec="milliseconds"),
        "origin": dict(letter.origin),
        "value": value,
        "schema": letter.schema,
        "columns": None if letter.columns is None else dict(letter.columns),
        "can_be_put_back": not letter.why_not_again,
    }
