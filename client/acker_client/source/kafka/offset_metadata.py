"""The metadata that a source writes beside a committed offset. It also says which source made the commit. Pure.

The text is JSON: version, source, writer, checkpoint, run, whether the run is over, the topic's id, the ranges that are
done beyond the offset, and a checksum that includes the offset. Older ackers wrote no checkpoint, no run, no end and no
id. The highest ranges are left out if the text would be too long. The offset is always right. A commit with other
metadata belongs to another program.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from acker_client.source.records.input import NONE_ANSWERED, Answered
from acker_client.source.records.ranges import Ranges

VERSION = 1


class RunId(NamedTuple):
    """One run of a source, ordered by its beginning. ``turn``: higher than that of each run whose commits it found when
    it began. ``id``: random hexadecimal digits, which order runs that began together."""

    turn: int
    id: str


# The run of a commit that an older acker made. It comes before all others.
UNKNOWN_RUN = RunId(0, "")
# The turn of ``acker offsets``, which moves offsets while no driver runs. It comes before all drivers.
MOVED = 0


class NewerVersion(ValueError):
    """The metadata was written by a newer version of the acker."""


@dataclass(frozen=True, slots=True)
class CommitMetadata:
    """The content of the metadata.

    ``source``: the name of the source that committed. ``by``: its host and process. ``done``: the prefix up to the
    offset, and the ranges that are done beyond it. ``answered``: the number of answered records. ``checkpoint``: the
    identity of the checkpoint that the source has; "" if it has none that can be told from others. ``run``: the run
    that committed. ``is_over``: it has ended with this commit. ``topic_id``: the id of the topic whose offset it is; ""
    if unknown.
    """

    source: str
    by: str
    done: Ranges
    answered: Answered = NONE_ANSWERED
    checkpoint: str = ""
    run: RunId = UNKNOWN_RUN
    is_over: bool = False
    topic_id: str = ""

    @property
    def is_moved(self) -> bool:
        """Whether ``acker offsets`` made the commit, and not a driver."""
        return self.run.turn == MOVED and self.run != UNKNOWN_RUN

    def to_text(self, bytes_max: int) -> str:
        """Return at most ``bytes_max`` bytes of ASCII, with as many of the lowest done ranges as fit; "" if not even
        the names fit."""
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
        """Parse a result of ``to_text`` for ``offset``; None if another program wrote it. Raises ``NewerVersion``."""
        try:
            written = json.loads(text)
            version, source, by = written["acker"], written["source"], written["by"]
        except (KeyError, RecursionError, TypeError, ValueError):
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
            ranges = Ranges.from_runs([offset, *_runs_of(done)])
            checkpoint, topic_id = _name(written.get("checkpoint")), _name(written.get("topic_id"))
            run, is_over = _run(written.get("run")), written.get("over") is True
            return cls(source, by, ranges, answered, checkpoint, run, is_over, topic_id)
        except ValueError:
            return None

    def _text(self, holes: int) -> str:
        done = _text_of(self.done.first_holes(holes).to_runs()[1:])
        checksum = _checksum(self.source, self.done.prefix, done)
        content: dict[str, object] = {"acker": VERSION, "source": self.source, "by": self.by, "done": done}
        content |= {"sum": checksum, "answered": self.answered.to_json()}
        if self.checkpoint:
            content["checkpoint"] = self.checkpoint
        if self.run != UNKNOWN_RUN:
            content["run"] = self.run
        if self.is_over:
            content["over"] = True
        if self.topic_id:
            content["topic_id"] = self.topic_id
        return json.dumps(content, separators=(",", ":"))


def _name(written: object) -> str:
    return written if isinstance(written, str) else ""


def _run(written: object) -> RunId:
    match written:
        case [int(turn), str(id_)]:
            return RunId(turn, id_)
        case _:
            return UNKNOWN_RUN


def _checksum(source: str, offset: int, done: str) -> str:
    return hashlib.blake2b(json.dumps([source, offset, done]).encode(), digest_size=6).hexdigest()


def _text_of(runs: Iterable[int]) -> str:
    """Encode run lengths as varints (seven bits a byte, lowest first, high bit: more bytes follow), in base 64."""
    content = bytearray()
    for run in runs:
        left = run
        while left > 0x7F:
            content.append(left & 0x7F | 0x80)
            left >>= 7
        content.append(left)
    return base64.b64encode(content).decode()


def _runs_of(text: str) -> list[int]:
    """Decode a result of ``_text_of``. Raises ``ValueError`` for other text."""
    runs, run, shift = [], 0, 0
    for byte in base64.b64decode(text, validate=True):
        run |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            runs.append(run)
            run, shift = 0, 0
    if shift or any(each >> 63 for each in runs):
        raise ValueError("the last run length is cut off, or one has more than 63 bits")
    return runs
