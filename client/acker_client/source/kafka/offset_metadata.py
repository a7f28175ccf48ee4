"""Commit metadata: what a source writes beside an offset that it commits, and whose a commit is. Pure.

Decides the text (JSON: version, source, who wrote it, what is done beyond the offset, a checksum over it with the
offset), how little of it there is where it has to be short (what is done beyond the lowest holes is left out, the
offset is always right), and that whatever it did not write itself is another's.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass

from acker_client.source.records.input import NONE_ANSWERED, Answered
from acker_client.source.records.ranges import Ranges

VERSION = 1


class NewerVersion(ValueError):
    """Written by a version of the acker that comes later."""


@dataclass(frozen=True, slots=True)
class CommitMetadata:
    """``source``: who committed; ``by``: where that was running; ``done``: the prefix, which is the offset, and what
    is done beyond it; ``answered``: how many records have their answer."""

    source: str
    by: str
    done: Ranges
    answered: Answered = NONE_ANSWERED

    def to_text(self, bytes_max: int) -> str:
        """At most ``bytes_max`` bytes of ASCII, cut to the lowest holes; "": not even the names fit."""
        low, high = 0, self.done.holes
        while low < high:
            middle = (low + high + 1) // 2
            if len(self._text(middle)) <= bytes_max:
                low = middle
            else:
                high = middle - 1
        text = self._text(low)
        return text if len(text) <= bytes_max else ""

    @classmethod
    def from_text(cls, text: str, offset: int) -> CommitMetadata | None:
        """What ``to_text`` gave for a commit of ``offset``; None: somebody else wrote it. Raises ``NewerVersion``."""
        try:
            written = json.loads(text)
            version, source, by = written["acker"], written["source"], written["by"]
        except (ValueError, KeyError, TypeError):
            return None
        if not (isinstance(version, int) and isinstance(source, str) and isinstance(by, str)):
            return None
        if version > VERSION:
            raise NewerVersion(f"version {version}, and this acker reads versions up to {VERSION}")
        done = written.get("done")
        if not isinstance(done, str) or written.get("sum") != _checksum(source, offset, done):
            return None
        try:
            answered = Answered.from_json(written.get("answered"))
            return cls(source, by, Ranges.from_runs([offset, *_runs_of(done)]), answered)
        except ValueError:
            return None

    def _text(self, holes: int) -> str:
        done = _text_of(self.done.first_holes(holes).to_runs()[1:])
        checksum = _checksum(self.source, self.done.prefix, done)
        content = {"acker": VERSION, "source": self.source, "by": self.by, "done": done, "sum": checksum}
        content["answered"] = self.answered.to_json()
        return json.dumps(content, separators=(",", ":"))


def _checksum(source: str, offset: int, done: str) -> str:
    return hashlib.blake2b(json.dumps([source, offset, done]).encode(), digest_size=6).hexdigest()


def _text_of(runs: Iterable[int]) -> str:
    """Run lengths as bytes of seven bits each, the lowest first, all but the last with a high bit; in base 64."""
    content = bytearray()
    for run in runs:
        left = run
        while left > 0x7F:
            content.append(left & 0x7F | 0x80)
            left >>= 7
        content.append(left)
    return base64.b64encode(content).decode()


def _runs_of(text: str) -> list[int]:
    """Raises ``ValueError`` for what ``_text_of`` cannot have written."""
    runs, run, shift = [], 0, 0
    for byte in base64.b64decode(text, validate=True):
        run |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            runs.append(run)
            run, shift = 0, 0
    if shift or any(each >> 63 for each in runs):
        raise ValueError("the last run length is cut off, or one is no offset")
    return runs
