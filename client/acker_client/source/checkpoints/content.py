"""The content of a checkpoint, which is JSON: how far a source is done. Pure.

It holds the version, the source, the kind of input, a digest over the partitions, and (for people) the last writer. The
identity too, once the input has asked for it. For each partition: the done records as run lengths, the input's mark,
and the number of answered records.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from acker_client.source.checkpoints.head import Head
from acker_client.source.records.input import Answered, Committed
from acker_client.source.records.ranges import Ranges
from acker_client.source.records.stores import Committer

FORMAT = "acker-checkpoint"
VERSION = 2

# The key of the content, by version.
_CONTENT = {1: "progress", 2: "partitions"}

# The text over which the digest goes.
_COMPACT = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Layout:
    """Describes the part of the content at ``place`` that stands before its partitions. ``another`` and
    ``begin_anew`` are advice, as in ``Head``."""

    place: str
    source: str
    kind: str
    another: str
    begin_anew: str

    def parse(self, content: bytes) -> tuple[dict[str, Committed], dict[str, Any]]:
        """Return the entries by partition, and all that was saved. Also reads what an older version wrote. Raises
        ``CheckpointError``."""
        head = Head(
            self.place,
            FORMAT,
            _CONTENT,
            {"source": self.source, "input": self.kind},
            another=self.another,
            begin_anew=self.begin_anew,
            apart="give every source a checkpoint of its own",
        )
        saved = head.parse(content, lambda saved: digest_of(saved.get(_CONTENT[saved["version"]])))
        try:
            is_old = saved["version"] == 1
            return (_of_version_1(saved["progress"]) if is_old else _committed(saved["partitions"])), saved
        except (KeyError, OverflowError, TypeError, ValueError) as error:
            raise head.incomplete("each partition", error) from None

    def fields(self, identity: str, by: Committer | None, now_s: float, more: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields before the partitions. ``now_s``: Unix seconds; ``more``: those of the store."""
        identified = {"identity": identity} if identity else {}
        fields = {"format": FORMAT, "version": VERSION, "source": self.source, "input": self.kind, **identified, **more}
        if by is None:
            return fields
        time = datetime.fromtimestamp(now_s, UTC).isoformat("T", "seconds")
        signature = {"source": by.source, "session": by.session, "host": by.host, "pid": by.pid, "time": time}
        return {**fields, "by": signature}


def _committed(partitions: list[dict[str, Any]]) -> dict[str, Committed]:
    """Parse the partitions that ``save`` wrote. Raises for other content."""
    return {
        str(each["partition"]): Committed(
            Ranges.from_runs(each["done"]), dict(each["mark"]), Answered.from_json(each.get("answered"))
        )
        for each in partitions
    }


def _of_version_1(progress: dict[str, Any]) -> dict[str, Committed]:
    """Convert version 1, which had only lines of files, and only the finished prefix of each file."""
    return {
        str(file["path"]): Committed(
            Ranges.below(int(file["lines"])),
            {"bytes": int(file["bytes"]), "complete": bool(file["complete"]), "digest": str(file["mark"])},
        )
        for file in progress["files"]
    }


def content_of(head: Mapping[str, Any], committed: Mapping[str, Committed]) -> Iterator[bytes]:
    """Yield the file's content: ``head``, one line per partition, and their digest.

    It is never in memory as a whole, because there may be a million partitions, and one may hold many numbers.
    """
    digest, comma = hashlib.blake2b(b"[", digest_size=16), ""
    yield b"{\n" + "".join(f" {json.dumps(key)}: {json.dumps(head[key])},\n" for key in head).encode()
    yield b' "partitions": ['
    for name, each in committed.items():
        done, answered = each.done.to_runs(), each.answered.to_json()
        entry = {"partition": name, "done": done, "mark": dict(each.mark), "answered": answered}
        digest.update(f"{comma}{_COMPACT.encode(entry)}".encode())
        yield f"{comma}\n  {json.dumps(entry)}".encode()
        comma = ","
    digest.update(b"]")
    yield f'\n ],\n "digest": "{digest.hexdigest()}"\n}}\n'.encode()


def digest_of(content: object) -> str:
    """Return a checksum over the content of a checkpoint."""
    return hashlib.blake2b(_COMPACT.encode(content).encode(), digest_size=16).hexdigest()
