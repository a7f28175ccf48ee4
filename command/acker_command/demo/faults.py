"""Faults: what the demo breaks on purpose, and when.

Decides which records raise, which batch a strike falls on, and that a strike falls once: a strike is claimed by
creating a file that must not exist, which one process of many can do, once. Knows neither Spark nor the acker.
"""

from __future__ import annotations

import enum
import math
import os
import zlib
from dataclasses import dataclass, field
from pathlib import Path


class Strike(enum.Enum):
    """One thing that goes wrong once. The value is what people read."""

    WORKER_KILLED = "a worker process is killed (SIGKILL) among its rows"
    TASK_RERUN = "a task fails after it has done and reported its work"
    WRITE_FAILED = "a write fails before it commits"
    SERVER_RESTARTED = "the server is restarted under load, with its state"
    SERVER_LOST = "the server is killed (SIGKILL) under load: its state is gone"
    ONE_KILLED = "one of the servers is killed (SIGKILL) under load"
    ONE_ADDED = "another server is added"
    ONE_DRAINED = "one server drains and leaves"
    ALL_RESTARTED = "all servers are restarted, one after the other, with their state"


# What falls on the tasks and on the write, however many servers there are.
OF_SPARK = (Strike.WORKER_KILLED, Strike.TASK_RERUN, Strike.WRITE_FAILED)
OF_ONE_SERVER = (Strike.SERVER_RESTARTED, Strike.SERVER_LOST)
OF_SEVERAL_SERVERS = (Strike.ONE_KILLED, Strike.ONE_ADDED, Strike.ONE_DRAINED, Strike.ALL_RESTARTED)


POISON_MIN_CHARACTERS = 24


@dataclass(frozen=True, slots=True)
class Faults:
    """The faults of one run; picklable, for the pipeline carries it to the executors. ``*_one_in`` 0: never.

    ``folder`` holds a file for each strike that has struck, and for each batch that has begun.
    """

    folder: str
    seed: int = 0
    flaky_one_in: int = 0
    poison_one_in: int = 0

    def is_flaky(self, root_id: int) -> bool:
        """Whether a record raises under this root id; its replay has another one, and most likely gets through."""
        return bool(self.flaky_one_in) and _draw(root_id, self.seed) % self.flaky_one_in == 0

    def is_poison(self, text: str) -> bool:
        """Whether a line raises each time, by its content, until it ends in the dead letters. Short lines never do, for
        they repeat: ``else:`` must not take ten thousand records with it."""
        content = text.lstrip("\ufeff").strip()
        return (
            bool(self.poison_one_in)
            and len(content) >= POISON_MIN_CHARACTERS
            and zlib.crc32(content.encode(), self.seed & 0xFFFFFFFF) % self.poison_one_in == 0
        )

    def claim(self, name: str) -> bool:
        """Mark ``name`` as happened; True for the one caller that did."""
        try:
            os.close(os.open(self._path(name), os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            return False
        return True

    def happened(self, name: str) -> bool:
        return os.path.exists(self._path(name))

    def _path(self, name: str) -> str:
        return os.path.join(self.folder, name)


@dataclass(slots=True)
class FaultSchedule:
    """Which strike falls on which batch: the next one on each batch that is large enough to be hit under load."""

    strikes: list[Strike]
    records_min: int
    dealt: list[Strike] = field(default_factory=list)

    def deal(self, records: int) -> Strike | None:
        """The strike for a batch of ``records``, or None."""
        if not self.strikes or records < self.records_min:
            return None
        strike = self.strikes.pop(0)
        self.dealt.append(strike)
        return strike


def poison_one_in(records: int) -> int:
    """A share of poison that gives some dozen dead letters, whatever the size of the input."""
    return min(max(records // 50, 40), 20_000)


def flaky_one_in(records: int) -> int:
    """A share of records that raise, such that none of them does so three times in a row (but in one run of ten
    thousand)."""
    return round(math.cbrt(records * 10_000))


def strikes(servers: int) -> tuple[Strike, ...]:
    """All that is to go wrong with so many servers."""
    return (*OF_SPARK, *(OF_ONE_SERVER if servers == 1 else OF_SEVERAL_SERVERS))


def schedule(batches: int, records_min: int, servers: int = 1) -> FaultSchedule:
    """One strike for each full batch after the first, which runs quietly; with few batches the first strikes of the
    list."""
    return FaultSchedule(list(strikes(servers))[: max(batches - 1, 0)], records_min)


def arm(folder: Path, *, seed: int, records: int) -> Faults:
    """Faults for an input of ``records``."""
    folder.mkdir(parents=True, exist_ok=True)
    return Faults(str(folder), seed, flaky_one_in(records), poison_one_in(records))


def disarm(folder: Path) -> Faults:
    """No faults at all; ``folder`` still shows which batches have begun."""
    folder.mkdir(parents=True, exist_ok=True)
    return Faults(str(folder))


def _draw(root_id: int, seed: int) -> int:
    """A number that depends on every bit of both."""
    mixed = ((root_id ^ (seed * 0x9E3779B97F4A7C15)) * 0xD6E8FEB86659FD93) & 0xFFFFFFFFFFFFFFFF
    return mixed >> 32
