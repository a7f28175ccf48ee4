"""Faults: what the demo breaks on purpose, and when.

A strike is a fault that happens once: a process claims it by creating a file that must not exist. A thread beside the
job strikes servers (:func:`sabotage`). It waits until a task of the batch is in the middle of its work, so that the
server is gone when the batch reports. The other strikes happen in the executors and in the sink (:mod:`pipeline`).
"""

from __future__ import annotations

import enum
import math
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from acker_command.demo import Abort

LOOK_S = 0.01
POISON_MIN_CHARACTERS = 24


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


OF_SPARK = (Strike.WORKER_KILLED, Strike.TASK_RERUN, Strike.WRITE_FAILED)
OF_ONE_SERVER = (Strike.SERVER_RESTARTED, Strike.SERVER_LOST)
OF_SEVERAL_SERVERS = (Strike.ONE_KILLED, Strike.ONE_ADDED, Strike.ONE_DRAINED, Strike.ALL_RESTARTED)
# Strikes that cost a replay even with two servers for each record. With one for each record, ONE_KILLED also costs one.
COSTLY = (Strike.WRITE_FAILED, Strike.SERVER_LOST)


def strikes(servers: int) -> tuple[Strike, ...]:
    """Return all strikes for this number of servers."""
    return (*OF_SPARK, *(OF_ONE_SERVER if servers == 1 else OF_SEVERAL_SERVERS))


def schedule(batches: int, servers: int = 1) -> list[Strike]:
    """Return the strikes for a run of this many ``batches``. One batch gets none; few batches get the first strikes."""
    return list(strikes(servers)[: max(batches - 1, 0)])


def deal(strikes: list[Strike], records: int, batch_records: int) -> Strike | None:
    """Take the strike for a batch of ``records``. Small batches get none, because they end before it could happen."""
    return strikes.pop(0) if strikes and records >= batch_records // 2 else None


def harmless(strikes: Iterable[Strike], replicas: int) -> list[Strike]:
    """Return the strikes that must not cause a single replay."""
    costly = (*COSTLY, Strike.ONE_KILLED) if replicas == 1 else COSTLY
    return [strike for strike in strikes if strike not in costly]


@dataclass(frozen=True, slots=True)
class Faults:
    """The faults of one run; the pipeline pickles it for the executors. ``*_one_in`` 0: never.

    ``folder`` holds a file for each strike that has happened, and for each that may happen now.
    """

    folder: str
    seed: int = 0
    flaky_one_in: int = 0
    poison_one_in: int = 0

    def is_flaky(self, root_id: int) -> bool:
        """Return whether a record raises under this root id. A replay has another root id, and most likely passes."""
        mixed = ((root_id ^ (self.seed * 0x9E3779B97F4A7C15)) * 0xD6E8FEB86659FD93) & 0xFFFFFFFFFFFFFFFF
        return bool(self.flaky_one_in) and (mixed >> 32) % self.flaky_one_in == 0

    def is_poison(self, text: str) -> bool:
        """Return whether a line raises each time, until it is a dead letter. Only its content decides. Short lines
        never raise, because they are frequent: poison in ``else:`` would hit ten thousand records."""
        content = text.lstrip("\ufeff").strip()
        if not self.poison_one_in or len(content) < POISON_MIN_CHARACTERS:
            return False
        return zlib.crc32(content.encode(), self.seed & 0xFFFFFFFF) % self.poison_one_in == 0

    def claim(self, name: str) -> bool:
        """Mark ``name`` as happened. Return True to the first caller, and False to others."""
        try:
            os.close(os.open(os.path.join(self.folder, name), os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            return False
        return True

    def happened(self, name: str) -> bool:
        return os.path.exists(os.path.join(self.folder, name))


def arm(folder: Path, *, seed: int, records: int) -> Faults:
    """Return the faults for an input of this many ``records``. They cause a few dozen dead letters."""
    folder.mkdir(exist_ok=True)
    return Faults(str(folder), seed, flaky_one_in(records), min(max(records // 50, 40), 20_000))


def flaky_one_in(records: int) -> int:
    """Return n: if one of n records raises, some record raises three times in a row in at most one of 10,000 runs."""
    return round(math.cbrt(records * 10_000))


def mid_work(strike: Strike) -> str:
    """Return the name that a task claims in the middle of the batch that ``strike`` is for."""
    return f"{strike.name}-mid-work"


@contextmanager
def sabotage(
    faults: Faults, strike: Strike | None, hits: Mapping[Strike, Callable[[], None]], tell: Callable[[str], None]
) -> Iterator[None]:
    """Let ``strike`` happen while the ``with`` block runs. ``hits``: the actions of strikes on servers. ``tell``
    is called with what happened. Returns when the server is back. Raises :class:`Abort` if it does not come back."""
    if strike is None:
        yield
        return
    over = Event()

    def strike_servers() -> None:
        trigger = mid_work(strike) if strike in hits else strike.name
        while not faults.happened(trigger) and not over.wait(LOOK_S):
            pass
        if not faults.happened(trigger):
            return
        tell(strike.value)
        if strike in hits:
            faults.claim(strike.name)
            hits[strike]()

    with ThreadPoolExecutor(1) as beside:
        striking = beside.submit(strike_servers)
        try:
            yield
        finally:
            over.set()
            if error := striking.exception():
                raise Abort(str(error)) from error
