"""A member of a group in its own process, without Spark. It reads a log of files, and records its steps in a journal.

Usage: ``python -m tests.source.group_member SETTINGS``. SETTINGS is JSON: hosts, group, session_s, assignor, log (a
folder with a file for each partition; each record is its position, 8 bytes), journal (a file). It ends on SIGTERM.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from acker_client.source.errors import Fenced
from acker_client.source.records.input import Committed
from acker_client.source.records.ranges import Ranges
from acker_client.source.zookeeper.group import ZooKeeperGroup
from acker_client.source.zookeeper.offset_store import ZooKeeperOffsets

BATCH = 25
# Every seventh record is done one batch later, so that the committed ranges have holes.
LATE = 7
PAUSE_S = 0.01


class Member:
    def __init__(self, settings: dict[str, Any]) -> None:
        self._log = Path(settings["log"])
        self._journal = os.open(settings["journal"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._group = ZooKeeperGroup(
            settings["hosts"], settings["group"], session_s=settings["session_s"], assignor=settings["assignor"]
        )
        self._store = ZooKeeperOffsets(group=self._group)
        self._store.open("orders", "log")
        self._group.open("orders", self._partitions)
        self._done: dict[str, Ranges] = {}
        self._next: dict[str, int] = {}
        self._late: dict[str, list[int]] = {}
        self._ends = False
        signal.signal(signal.SIGTERM, self._end)
        self._say("joined", consumer=self._group.consumer)

    def run(self) -> None:
        while not self._ends:
            self._hand_over()
            fresh = {each: self._read(each) for each in sorted(self._done)}
            self._commit({each: positions for each, positions in fresh.items() if positions})
            time.sleep(PAUSE_S)
        self._group.close()
        self._store.close()
        self._say("left", partitions=sorted(self._done))

    def _hand_over(self) -> None:
        handover = self._group.poll()
        for each in (*handover.lost, *handover.revoked):
            del self._done[each], self._next[each], self._late[each]
        if handover.lost:
            self._say("lost", partitions=handover.lost)
        if handover.revoked:
            # Journal this before the release: afterwards the next owner may claim the partition at once. Everything
            # done is already committed.
            self._say("released", partitions=handover.revoked)
            self._group.release(handover.revoked)
        if handover.assigned:
            self._say("assigned", partitions=handover.assigned)
            begun_s = time.monotonic()
            loaded = self._store.load_partitions(handover.assigned)
            for each in handover.assigned:
                done = loaded[each].done if each in loaded else Ranges()
                self._done[each], self._next[each], self._late[each] = done, done.prefix, []
                self._say("loaded", partition=each, runs=done.to_runs(), begun_s=begun_s)

    def _read(self, partition: str) -> list[int]:
        """Read the next records, and return the positions that are done now."""
        start = self._next[partition]
        with open(self._log / partition.replace("/", "-"), "rb") as file:
            file.seek(8 * start)
            content = file.read(8 * BATCH)
        records = np.frombuffer(content[: len(content) // 8 * 8], np.int64)
        assert records.tolist() == list(range(start, start + len(records)))
        self._next[partition] = start + len(records)
        found = records[~self._done[partition].contains(records)].tolist()
        now, self._late[partition] = self._late[partition], [each for each in found if each % LATE == 0]
        return sorted([*now, *(each for each in found if each % LATE)])

    def _commit(self, fresh: dict[str, list[int]]) -> None:
        if not fresh:
            return
        self._say("processed", positions=fresh)
        for each, positions in fresh.items():
            self._done[each] = self._done[each].union(Ranges.of(np.array(positions, np.int64)))
        begun_s = time.monotonic()
        fenced: tuple[str, ...] = ()
        try:
            self._store.save({each: Committed(done) for each, done in self._done.items()})
        except Fenced as error:
            fenced = error.partitions
            self._say("fenced", partitions=fenced)
        kept = {each: positions for each, positions in fresh.items() if each not in fenced}
        self._say("committed", positions=kept, begun_s=begun_s)

    def _partitions(self) -> list[str]:
        return [name.replace("-", "/") for name in os.listdir(self._log)]

    def _say(self, what: str, **said: Any) -> None:
        line = json.dumps({"what": what, "at_s": time.monotonic(), **said})
        os.write(self._journal, f"{line}\n".encode())

    def _end(self, number: int, frame: FrameType | None) -> None:
        self._ends = True


if __name__ == "__main__":
    Member(json.loads(sys.argv[1])).run()
