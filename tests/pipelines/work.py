"""User code of a program's steps, and the faults that are injected into it. The code runs in Spark's workers."""

from __future__ import annotations

import os
import random
import signal
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

KEYS = 7


def numbers_in(t: str) -> set[int]:
    """Return the record numbers with which the tokens of a row begin."""
    found = set()
    for way in t.split("|"):
        digits = len(way) - len(way.lstrip("0123456789"))
        found.add(int(way[:digits]))
    return found


def marked(t: str, text: str) -> str:
    return "|".join(way + text for way in t.split("|"))


def first_time(folder: str, name: str) -> bool:
    """Return True to the first caller in any process, and False to all others."""
    try:
        os.close(os.open(f"{folder}/{name}", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


@dataclass(frozen=True)
class Harm:
    """Faults in user code: once for a whole task, or for the rows of certain records.

    ``notes``: folder with one file for each record that a raising row came from.
    """

    notes: str
    local_dir: str
    name: str
    poison: frozenset[int] = frozenset()
    flaky_once: frozenset[int] = frozenset()
    # User code raises at this evaluation of such a row: the first or the second.
    flaky_sight: int = 1
    flaky_share: float = 0.0
    kills: bool = False
    loses: bool = False
    shuffles: bool = False

    def meet(self, t: str) -> None:
        """Inject the faults due at a row. Runs before user code sees the row."""
        if self.loses and first_time(self.notes, f"lost.{self.name}"):
            self._lose_shuffle_file()
        if self.kills and first_time(self.notes, f"killed.{self.name}"):
            os.kill(os.getpid(), signal.SIGKILL)
        if not (self.poison or self.flaky_once or self.flaky_share):
            return
        numbers = numbers_in(t)
        if numbers & self.poison:
            self._raise(numbers, "poison")
        if [number for number in numbers & self.flaky_once if self._sight(number) == self.flaky_sight]:
            self._raise(numbers, "flaky once")
        if random.random() < self.flaky_share:
            self._raise(numbers, "flaky")

    def _sight(self, number: int) -> int:
        """Return how often user code has seen rows of record ``number``, this time included."""
        sight = 1
        while not first_time(self.notes, f"flaky.{self.name}.{number}.{sight}"):
            sight += 1
        return sight

    def _raise(self, numbers: set[int], why: str) -> None:
        for number in numbers:
            first_time(self.notes, f"raised.{number}")
        raise ValueError(f"{why}: {sorted(numbers)}")

    def _lose_shuffle_file(self) -> None:
        found = sorted(Path(self.local_dir).glob("**/shuffle_*_0.data"), key=lambda path: path.stat().st_mtime)
        for path in found[-1:]:
            path.unlink(missing_ok=True)


def tracked(batch: pa.RecordBatch) -> list[bool]:
    """The option ``track`` as a function; see ``program.is_tracked``."""
    return [int(value) % 3 != 0 for value in batch.column("value").to_pylist()]


# The same as a condition.
TRACKED = "cast(value as bigint) % 3 <> 0"


@dataclass(frozen=True)
class Parse:
    def rows(self, row: Any) -> Iterator[tuple[int, str]]:
        yield int(row.value) % KEYS, row.value

    def frame(self, frame: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"k": frame.value.astype("int64") % KEYS, "t": frame.value})

    def batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        values = batch.column("value").to_pylist()
        keys = [int(value) % KEYS for value in values]
        return pa.RecordBatch.from_arrays([pa.array(keys, pa.int64()), pa.array(values, pa.string())], ["k", "t"])


@dataclass(frozen=True)
class Fan:
    """Turns a row into zero to three rows."""

    salt: int
    harm: Harm

    def children(self, k: int, t: str) -> list[tuple[int, str]]:
        self.harm.meet(t)
        made = [((2 * k + child + self.salt) % KEYS, marked(t, f".{child}")) for child in range((k + self.salt) % 4)]
        if self.harm.shuffles:
            random.shuffle(made)
        return made

    def rows(self, row: Any) -> list[tuple[int, str]]:
        return self.children(row.k, row.t)

    def frame(self, frame: pd.DataFrame) -> tuple[pd.DataFrame, list[int]]:
        made, parents = self._all(frame.k.tolist(), frame.t.tolist())
        keys = pd.Series([k for k, _ in made], dtype="int64")
        return pd.DataFrame({"k": keys, "t": pd.Series([t for _, t in made], dtype="object")}), parents

    def batch(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, list[int]]:
        made, parents = self._all(batch.column("k").to_pylist(), batch.column("t").to_pylist())
        columns = [pa.array([k for k, _ in made], pa.int64()), pa.array([t for _, t in made], pa.string())]
        return pa.RecordBatch.from_arrays(columns, ["k", "t"]), parents

    def _all(self, keys: list[int], ways: list[str]) -> tuple[list[tuple[int, str]], list[int]]:
        made, parents = [], []
        for index, (k, t) in enumerate(zip(keys, ways, strict=True)):
            children = self.children(k, t)
            made += children
            parents += [index] * len(children)
        return made, parents


@dataclass(frozen=True)
class Keeping:
    """Gives a row a new key and keeps the rest."""

    salt: int
    harm: Harm

    def rows(self, row: Any) -> tuple[int]:
        self.harm.meet(row.t)
        return ((row.k + self.salt) % KEYS,)


@dataclass(frozen=True)
class Grouped:
    """Turns a group into one merged row, two merged rows, no row, or one row per row; the key decides."""

    salt: int
    harm: Harm

    def table(self, table: pa.Table) -> tuple[pa.Table, Any]:
        ways = table.column("t").to_pylist()
        k = table.column("k")[0].as_py()
        every = list(range(len(ways)))
        whole = "|".join(ways)
        # The rows of a group fail together.
        self.harm.meet(whole)
        made, parents = self._become(k, ways, whole, every)
        return _table(k, made), parents

    def tables(self, left: pa.Table, right: pa.Table) -> tuple[Any, ...]:
        """Do the same as ``table`` with the rows of two frames, as if they were one."""
        sides = left.num_rows
        ways = [*left.column("t").to_pylist(), *right.column("t").to_pylist()]
        k = (left if sides else right).column("k")[0].as_py()
        whole = "|".join(ways)
        self.harm.meet(whole)
        made, parents = self._become(k, ways, whole, list(range(len(ways))))
        if parents == "all":
            return _table(k, made), parents
        of_left = [[index for index in named if index < sides] for named in parents]
        of_right = [[index - sides for index in named if index >= sides] for named in parents]
        return _table(k, made), of_left, of_right

    def _become(self, k: int, ways: list[str], whole: str, every: list[int]) -> tuple[list[str], Any]:
        becomes: list[tuple[list[str], Any]] = [
            ([whole], "all"),
            ([marked(whole, ":0"), marked(whole, ":1")], [every, every]),
            ([], "all"),
            ([marked(t, ":x") for t in ways], [[index] for index in every]),
        ]
        return becomes[(k + self.salt) % 4]


def _table(k: int, made: list[str]) -> pa.Table:
    return pa.table([pa.array([k] * len(made), pa.int64()), pa.array(made, pa.string())], names=["k", "t"])


@dataclass(frozen=True)
class WriteRows:
    """Functions for ``foreachPartition``, ``foreach`` and the like, which write one file of lines per call."""

    folder: str
    raises: bool = False

    def partition(self, rows: Iterable[Any]) -> None:
        name = f"{self.folder}/{uuid.uuid4().hex}"
        with open(name + ".part", "w") as file:
            file.writelines(row.t + "\n" for row in rows)
        os.rename(name + ".part", name)
        self.end()

    def row(self, row: Any) -> None:
        with open(f"{self.folder}/{os.getpid()}.{uuid.uuid4().hex}", "w") as file:
            file.write(row.t + "\n")
        self.end()

    def first(self, rows: Iterable[Any]) -> None:
        """Write only the first row of the partition."""
        for row in rows:
            self.row(row)
            return

    def end(self) -> None:
        if self.raises:
            raise OSError("the other side hung up")


@dataclass(frozen=True)
class LateHarm:
    """A user's step before the sink that fails after it has read everything, once or always."""

    notes: str
    kills: bool
    once: bool

    def hand_on(self, batches: Iterator[Any]) -> Iterator[Any]:
        found = 0
        for batch in batches:
            found += len(batch)
            yield batch
        if found and (not self.once or first_time(self.notes, "late")):
            if self.kills:
                os.kill(os.getpid(), signal.SIGKILL)
            raise OSError("the disk is full")


def first_batch_only(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield the first batch and leave the others unread."""
    for batch in batches:
        yield batch
        return


def same(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches
