"""Driver: a real run of a source over an input in memory. Each of its batches is a job of the Spark model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from acker_client.source import (
    Batch,
    Chosen,
    Committed,
    DeadLetter,
    Emissions,
    Input,
    Listener,
    Options,
    Original,
    Plan,
    Ranges,
    Source,
)
from acker_client.source.decoding.lines import ReadRows
from acker_client.source.engine.environment import FramePlan
from acker_client.source.records.in_flight import Failures
from acker_protocol.messages import Verdict
from tests.simulation.oracle import Oracle
from tests.simulation.pipeline import CLASSES, UNREADABLE, VALUE
from tests.simulation.transcript import Transcript


@dataclass(frozen=True)
class MemoryPart:
    partition: str
    start: int
    stop: int


@dataclass(frozen=True)
class MemorySlice:
    """Records ``start`` to ``stop`` (exclusive) of a batch. ``values``: one each; None if the record does not exist."""

    start: int
    stop: int
    values: tuple[int | None, ...]

    def read(self) -> Iterator[ReadRows]:
        found = [at for at, value in enumerate(self.values) if value is not None]
        values = [value for value in self.values if value is not None]
        numbers = np.array([self.start + at for at in found], np.uint64)
        bad = {at: "not of the format" for at, value in enumerate(values) if value % CLASSES == UNREADABLE}
        columns = pa.RecordBatch.from_arrays([pa.array(values, pa.int64())], names=[VALUE])
        yield ReadRows(numbers, columns, bad)


class MemoryInput:
    """Partitions of values. None is a position that does not exist. The oracle's number of the record at position p of
    partition k is ``10 * p + k``."""

    kind = "memory"

    def __init__(self, partitions: Sequence[Sequence[int | None]]) -> None:
        self._partitions = {f"p{k}": values for k, values in enumerate(partitions)}
        self._next: dict[str, int] = {}

    def start(self, committed: Mapping[str, Committed]) -> None:
        self._next = {partition: each.done.prefix for partition, each in committed.items()}

    def plan(self, records_max: int, tasks: int) -> Plan[MemoryPart]:
        parts: list[MemoryPart] = []
        for partition, values in self._partitions.items():
            start = self._next.get(partition, 0)
            stop = min(len(values), start + records_max)
            if start < stop:
                parts.append(MemoryPart(partition, start, stop))
                self._next[partition] = stop
                records_max -= stop - start
        return Plan(parts, is_end=not parts)

    def slices(self, chosen: Sequence[Chosen[MemoryPart]], tasks: int) -> list[MemorySlice]:
        values = [self._partitions[each.part.partition][int(at)] for each in chosen for at in each.positions]
        bounds = np.linspace(0, len(values), min(tasks, len(values)) + 1).astype(int).tolist()
        return [MemorySlice(start, stop, tuple(values[start:stop])) for start, stop in pairwise(bounds) if start < stop]

    def origins(self, chosen: Sequence[Chosen[MemoryPart]]) -> pa.RecordBatch:
        rows = [{"partition": each.part.partition, "offset": int(at)} for each in chosen for at in each.positions]
        return pa.RecordBatch.from_pylist(rows, pa.schema([("partition", pa.string()), ("offset", pa.int64())]))

    def originals(self, chosen: Sequence[Chosen[MemoryPart]]) -> list[Original]:
        return [Original(row, b"") for row in self.origins(chosen).to_pylist()]

    def advance(self, partition: str, done: Ranges) -> None:
        """Do nothing: there is nothing to forget."""

    def mark(self, partition: str, done: Ranges) -> Mapping[str, Any]:
        return {}

    def describe(self, done: Mapping[str, Ranges]) -> str:
        return ", ".join(f"{partition} to {done[partition].prefix}" for partition in sorted(done))


class MemorySource(Source):
    """A source over a :class:`MemoryInput`."""

    def __init__(self, partitions: Sequence[Sequence[int | None]], **options: Any) -> None:
        given: Any = {"name": "simulated", **options}
        super().__init__(Options.of(given))
        self.partitions = partitions

    def input(self) -> tuple[Input[Any], Any]:
        return MemoryInput(self.partitions), "value bigint"


@dataclass
class MemoryCheckpoint:
    """A ``CheckpointStore`` in memory."""

    saved: dict[str, Committed] = field(default_factory=dict)

    def open(self, source: str, kind: str) -> None:
        """Always open."""

    def load(self) -> dict[str, Committed]:
        return dict(self.saved)

    def save(self, committed: Mapping[str, Committed]) -> None:
        self.saved = dict(committed)

    def close(self) -> None:
        """Never closed."""


@dataclass
class MemoryLetters:
    """A ``DeadLetterStore`` in memory."""

    letters: list[DeadLetter] = field(default_factory=list)

    def open(self) -> None:
        """Always open."""

    def write(self, letters: Any) -> None:
        self.letters += letters

    def close(self) -> None:
        """Never closed."""


@dataclass
class Witness(Listener):
    """Passes the outcomes of a run to the oracle. ``batch_key``: returns the oracle's number of a batch of this run."""

    oracle: Oracle
    transcript: Transcript
    batch_key: Callable[[int], int]

    def on_emit(self, batch: int, emitted: Emissions, is_replay: bool) -> None:
        records, batch = _records(emitted), self.batch_key(batch)
        for record, root in zip(records, emitted.roots.tolist(), strict=True):
            self.transcript.name_root(root, f"r{record}b{batch}")
        self.transcript.say(f"driver: batch {batch} has {'again' if is_replay else 'new'} records {records}")
        self.oracle.emitted(batch, records, emitted.roots.tolist())

    def on_ack(self, acked: Emissions) -> None:
        self.transcript.say(f"driver: records {_records(acked)} are acked")
        for root in acked.roots.tolist():
            self.oracle.ended(root, Verdict.ACKED, "")

    def on_fail(self, failed: Emissions, why: Failures) -> None:
        for k, (record, root) in enumerate(zip(_records(failed), failed.roots.tolist(), strict=True)):
            verdict, reason = Verdict(int(why.verdicts[k])), why.reason(k).partition("\n")[0]
            self.transcript.say(f"driver: record {record} is {verdict.name}: {reason}")
            self.oracle.ended(root, verdict, reason)

    def on_absent(self, absent: Emissions) -> None:
        self.transcript.say(f"driver: records {_records(absent)} do not exist")
        for root in absent.roots.tolist():
            self.oracle.ended(root, None, "")

    def on_dead_letter(self, dead: Emissions, why: Failures) -> None:
        self.transcript.say(f"driver: records {_records(dead)} go to the dead letters")
        for record in _records(dead):
            self.oracle.died(record)


def _records(emissions: Emissions) -> list[int]:
    """Return the oracle's numbers of the records, computed from their origins. The run numbers records differently."""
    rows = emissions.origins().to_pylist()
    return [int(row["offset"]) * 10 + int(row["partition"][1:]) for row in rows]


@dataclass
class BatchFrame:
    """Stands for the frame of a batch and for the evidence of its write."""

    plan: FramePlan
    error: BaseException | None = None
    unfinished_because: str = ""
    without: frozenset[int] = frozenset()
    has_run: bool = True
    is_shared: bool = False
    waited_s: float = 0.0
    folders: frozenset[str] = frozenset()

    @property
    def df(self) -> Any:
        return self

    @property
    def evidence(self) -> Any:
        return self

    def judge(self) -> BaseException | None:
        return self.error

    def cancel_jobs(self) -> None:
        """Do nothing: no batch of the simulation has a timeout."""

    def release(self) -> None:
        """Do nothing: nothing is kept."""


Process = Callable[[Batch], None]
