"""Offsets: the content of the node of one partition's checkpoint. Pure.

Decides the format (version, source, kind of input, partition, run lengths of done positions, the input's mark, the
writer, a digest), and how much fits into a node. The prefix is the done positions before the first open position. If a
node has no room for all done ranges beyond the prefix, it keeps only the lowest ranges, and a restart reads the others
again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from acker_client.source.checkpoints.head import Head
from acker_client.source.errors import CheckpointError
from acker_client.source.records.input import Answered, Committed
from acker_client.source.records.ranges import Ranges

FORMAT = "acker-offsets"
VERSION = 1


@dataclass(frozen=True, slots=True)
class Offset:
    """The content of the node of one ``partition``, for ``source``, whose input is of this ``kind``. ``place``: the
    node's location, for a person."""

    source: str
    kind: str
    partition: str
    place: str

    def dump(self, committed: Committed, by: str, bytes_max: int) -> tuple[bytes, int]:
        """Return the content, at most ``bytes_max`` long, and the number of ranges that did not fit. Raises
        ``CheckpointError`` if not even the prefix fits."""
        ranges = committed.done
        content = self._content(committed, by)
        while len(content) > bytes_max and ranges.holes:
            kept = min(ranges.holes - 1, int(ranges.holes * bytes_max / len(content) * 0.98))
            ranges = ranges.first_holes(kept)
            content = self._content(replace(committed, done=ranges), by)
        if len(content) > bytes_max:
            raise CheckpointError(
                f"checkpoint {self.place}: what the input needs to find its place in {self.partition} takes"
                f" {len(content)} bytes, and a node holds {bytes_max}: raise jute.maxbuffer of ZooKeeper and node_bytes"
            )
        return content, committed.done.holes - ranges.holes

    def load(self, content: bytes) -> Committed:
        """Parse the result of ``dump``. Raises ``CheckpointError``."""
        saved = self._head.parse(content, self._digest_of)
        try:
            answered = Answered.from_json(saved.get("answered"))
            return Committed(Ranges.from_runs(saved["done"]), dict(saved["mark"]), answered)
        except (KeyError, OverflowError, TypeError, ValueError) as error:
            raise self._head.incomplete(self.partition, error) from None

    def _content(self, committed: Committed, by: str) -> bytes:
        said = {"done": committed.done.to_runs(), "mark": dict(committed.mark)}
        head = {"format": FORMAT, "version": VERSION, "source": self.source, "input": self.kind}
        head["answered"] = committed.answered.to_json()
        return _compact(
            {**head, "partition": self.partition, "by": by, **said, "digest": _digest(self.partition, said)}
        )

    @property
    def _head(self) -> Head:
        return Head(
            self.place,
            FORMAT,
            (VERSION,),
            {"source": self.source, "input": self.kind, "partition": self.partition},
            another="another group",
            begin_anew="delete the node to read the partition from its beginning",
            apart="give each source its own group; all sources of one group must have one name",
        )

    def _digest_of(self, saved: Mapping[str, Any]) -> str:
        return _digest(self.partition, {name: saved.get(name) for name in ("done", "mark")})


def _digest(partition: str, said: dict[str, Any]) -> str:
    return hashlib.blake2b(_compact({"partition": partition, **said}), digest_size=8).hexdigest()


def _compact(content: dict[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":"), sort_keys=True).encode()
