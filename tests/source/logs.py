"""A log in memory as an input. Like Kafka's, its partitions grow, are compacted, and are assigned and revoked."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from acker_client.source import Chosen, Committed, DeadLetter, Input, Options, Original, Plan, Ranges, Source
from acker_client.source.decoding.lines import ReadRows


@dataclass(frozen=True)
class LogPart:
    partition: str
    start: int
    stop: int


@dataclass(frozen=True)
class LogSlice:
    """Reads the planned records that are still in the log. Compaction may have removed others since."""

    start: int
    stop: int
    wanted: tuple[tuple[str, int], ...]
    log: Log

    def read(self) -> Iterator[ReadRows]:
        found = [k for k, (partition, position) in enumerate(self.wanted) if position in self.log.records[partition]]
        values = [self.log.records[partition][position] for partition, position in (self.wanted[k] for k in found)]
        numbers = self.start + np.array(found, np.uint64)
        yield ReadRows(numbers.astype(np.uint64), pa.RecordBatch.from_pydict({"value": pa.array(values, pa.string())}))


@dataclass
class Log:
    """The content of the log. ``is_ended``: nothing will be added; ``revoked``: partitions to revoke at the next
    plan."""

    records: dict[str, dict[int, str]] = field(default_factory=dict)
    is_ended: bool = True
    revoked: list[str] = field(default_factory=list)
    asked: int = 0
    # A position is never used twice, even if compaction removed the last record.
    _ends: dict[str, int] = field(default_factory=dict)

    def append(self, partition: str, count: int) -> None:
        log = self.records.setdefault(partition, {})
        first = self._ends.get(partition, 0)
        self._ends[partition] = first + count
        log |= {position: f"{partition}{position}" for position in range(first, first + count)}

    def end_of(self, partition: str) -> int:
        return self._ends.get(partition, 0)

    def compact(self, partition: str, *positions: int) -> None:
        for position in positions:
            del self.records[partition][position]


def log_of(**records: int) -> Log:
    """Return a log with this many records in each partition: ``log_of(a=10)``."""
    log = Log()
    for partition, count in records.items():
        log.append(partition, count)
    return log


class LogInput:
    """The log as an input, which is a ``SharedInput`` and a ``PausableInput``."""

    kind = "log"

    def __init__(self, log: Log) -> None:
        self.log = log
        self._next: dict[str, int] = {}
        self._gone: set[str] = set()
        self._assigned: set[str] | None = None
        self._paused: set[str] = set()

    def partitions(self) -> list[str]:
        return sorted(self.log.records)

    def assign(self, committed: Mapping[str, Committed]) -> None:
        self._assigned = (self._assigned or set()) | set(committed)
        self._next |= {partition: each.done.prefix for partition, each in committed.items()}

    def revoke(self, partitions: Sequence[str]) -> None:
        assert self._assigned is not None
        assert self._assigned >= set(partitions)
        self._assigned -= set(partitions)

    def pause(self, partitions: Collection[str]) -> None:
        self._paused = set(partitions)

    def start(self, committed: Mapping[str, Committed]) -> None:
        self._next = {partition: each.done.prefix for partition, each in committed.items()}

    def plan(self, records_max: int, tasks: int) -> Plan[LogPart]:
        self.log.asked += 1
        revoked, self.log.revoked = self.log.revoked, []
        self._gone |= set(revoked)
        parts: list[LogPart] = []
        for partition, records in self.log.records.items():
            start, end = self._next.get(partition, min(records, default=0)), self.log.end_of(partition)
            stop = min(end, start + records_max - sum(part.stop - part.start for part in parts))
            if start < stop and self._may_plan(partition):
                parts.append(LogPart(partition, start, stop))
                self._next[partition] = stop
        is_end = self.log.is_ended and not parts and not self._paused
        return Plan(parts, is_end=is_end, revoked=revoked)

    def _may_plan(self, partition: str) -> bool:
        is_assigned = self._assigned is None or partition in self._assigned
        return is_assigned and partition not in self._gone | self._paused

    def slices(self, chosen: Sequence[Chosen[LogPart]], tasks: int) -> list[LogSlice]:
        wanted = [(each.part.partition, int(position)) for each in chosen for position in each.positions]
        return [LogSlice(0, len(wanted), tuple(wanted), self.log)]

    def origins(self, chosen: Sequence[Chosen[LogPart]]) -> pa.RecordBatch:
        rows = [{"partition": each.part.partition, "offset": int(at)} for each in chosen for at in each.positions]
        return pa.RecordBatch.from_pylist(rows, pa.schema([("partition", pa.string()), ("offset", pa.int64())]))

    def originals(self, chosen: Sequence[Chosen[LogPart]]) -> list[Original]:
        return [
            Original(row, (self.log.records[row["partition"]].get(row["offset"]) or "").encode() or None)
            for row in self.origins(chosen).to_pylist()
        ]

    def advance(self, partition: str, done: Ranges) -> None:
        """Do nothing: the log keeps its records."""

    def mark(self, partition: str, done: Ranges) -> Mapping[str, Any]:
        return {"log": "test"}

    def describe(self, done: Mapping[str, Ranges]) -> str:
        return ", ".join(f"{partition} to {done[partition].prefix}" for partition in sorted(done))


class LogSource(Source):
    def __init__(self, log: Log, **options: Any) -> None:
        given: Any = {"name": "log", **options}
        super().__init__(Options.of(given))
        self.log = log

    def input(self) -> tuple[Input[Any], Any]:
        return LogInput(self.log), "value string"


class MemoryCheckpoint:
    """A ``CheckpointStore`` in memory."""

    def __init__(self) -> None:
        self.saved: dict[str, Committed] = {}
        self.saves = 0
        self.is_open = False

    def open(self, source: str, kind: str) -> None:
        assert not self.is_open
        self.is_open = True

    def load(self) -> dict[str, Committed]:
        return dict(self.saved)

    def save(self, committed: Mapping[str, Committed]) -> None:
        self.saved = dict(committed)
        self.saves += 1

    def close(self) -> None:
        self.is_open = False


class MemoryLetters:
    """A ``DeadLetterStore`` in memory."""

    def __init__(self) -> None:
        self.letters: list[DeadLetter] = []

    def open(self) -> None:
        """Always open."""

    def write(self, letters: Any) -> None:
        self.letters += letters

    def close(self) -> None:
        """Never closed."""

    def __str__(self) -> str:
        return "memory"
