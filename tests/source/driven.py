"""Driven: calls an input as a run of a source does, but without roots or a server."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from acker_client.source.checkpoints.checkpoint_file import CheckpointFile
from acker_client.source.decoding.lines import TextParser
from acker_client.source.files.input import FileInput
from acker_client.source.records.input import Committed, Input, Original, Plan
from acker_client.source.records.parts import Lookup, Parts
from acker_client.source.records.ranges import Ranges

Numbers = Sequence[int] | np.ndarray


class Driven:
    """Plans, reads and finishes records of ``input_``, beginning at ``committed``."""

    def __init__(self, input_: Input[Any], committed: Mapping[str, Committed] | None = None) -> None:
        self.input = input_
        self.parts: Parts[Any] = Parts({name: each.done for name, each in (committed or {}).items()})
        self._committed = dict(committed or {})
        self._open: set[int] = set()
        self._moved: set[str] = set()
        input_.start(self._committed)

    def plan(self, records_max: int = 1000, tasks: int = 2) -> np.ndarray:
        """Return the numbers of the next records that are not done; an empty array at the end."""
        while True:
            plan = self.input.plan(records_max, tasks)
            records = self.take(plan)
            if len(records) or plan.is_end:
                return records

    def take(self, plan: Plan[Any]) -> np.ndarray:
        """Return the numbers of the planned records that are not done."""
        records = self.parts.add_parts(plan.parts)
        self._open |= set(records.tolist())
        self._moved |= set(plan.moved)
        return records

    def drain(self, records_max: int = 1000) -> np.ndarray:
        planned = [np.empty(0, np.int64)]
        while len(records := self.plan(records_max)):
            planned.append(records)
        return np.concatenate(planned)

    def slices(self, records: Numbers, tasks: int = 2) -> Sequence[Any]:
        return self.input.slices(self.parts.chosen(np.asarray(records, np.int64)), tasks)

    def origins(self, records: Numbers) -> pa.RecordBatch:
        return Lookup(self.input, self.parts).origins(np.asarray(records, np.int64))

    def originals(self, records: Numbers) -> list[Original]:
        return Lookup(self.input, self.parts).originals(np.asarray(records, np.int64))

    def values(self, records: Numbers) -> list[Any]:
        return [original.value for original in self.originals(records)]

    def finish(self, records: Numbers) -> None:
        self._open -= set(np.asarray(records).tolist())
        self.parts.finish(Ranges.of(np.sort(np.asarray(records, np.int64))))
        self.parts.forget_parts(min(self._open, default=self.parts.planned))

    def finish_below(self, record: int) -> None:
        self.finish(sorted(number for number in self._open if number < record))

    def committed(self) -> dict[str, Committed]:
        """Return the content of the checkpoint as it is after being written as JSON and read back."""
        moved, self._moved = self._moved & set(self.parts.done), set()
        for partition in self.parts.take_changed() | moved:
            done = self.parts.done[partition]
            self.input.advance(partition, done)
            mark = json.loads(json.dumps(dict(self.input.mark(partition, done))))
            self._committed[partition] = Committed(Ranges.from_runs(done.to_runs()), mark)
        return self._committed

    @property
    def description(self) -> str:
        return self.input.describe(self.parts.done)


class Tail:
    """Follows the lines of files. Looks for new ones only when a test asks for it."""

    def __init__(self, paths: str, committed: Mapping[str, Committed] | None = None, **options: Any) -> None:
        self.now_s = 0.0
        self.input = FileInput(paths, TextParser(), follow_s=2.0, clock=lambda: self.now_s, **options)
        self.driven = Driven(self.input, committed)

    def look(self, records_max: int = 1000) -> list[int]:
        """List the files, and return the numbers of the new records."""
        self.now_s += 2.0
        plan = self.input.plan(records_max, 2)
        assert not plan.is_end
        return list(map(int, self.driven.take(plan)))

    def read(self, records: list[int]) -> list[str]:
        """Return the lines of records, as executors read them."""
        slices = self.driven.slices(records, 2)
        return [value for each in slices for rows in each.read() for value in rows.columns.column("value").to_pylist()]

    def new(self, records_max: int = 1000) -> list[str]:
        return self.read(self.look(records_max))

    def finish_all(self) -> dict[str, Committed]:
        self.driven.finish(sorted(self.driven._open))
        return dict(self.driven.committed())


def checkpoint(path: Path, *, source: str = "orders", kind: str = "files") -> CheckpointFile:
    """Return a new checkpoint store, opened."""
    store = CheckpointFile(path)
    store.open(source, kind)
    return store


def read_elsewhere(slices: Sequence[Any]) -> str:
    """Read pickled slices in another process. Return the text of its row counts, and whether it has loaded Spark and
    gRPC."""
    program = (
        "import pickle, sys; slices = pickle.load(sys.stdin.buffer);"
        "print([r.columns.num_rows for s in slices for r in s.read()], 'pyspark' in sys.modules, 'grpc' in sys.modules)"
    )
    content = pickle.dumps(slices)
    run = subprocess.run([sys.executable, "-c", program], input=content, capture_output=True, check=True)
    return run.stdout.decode().strip()


def rows_of(slices: Sequence[Any]) -> list[dict[str, Any]]:
    """Return all rows of slices in order. Checks that they have all numbers of the slices."""
    rows: list[dict[str, Any]] = []
    numbers: list[int] = []
    for piece in slices:
        for read in piece.read():
            assert read.columns.validate(full=True) is None
            numbers += read.numbers.tolist()
            rows += read.columns.to_pylist()
        assert numbers == list(range(piece.stop))
    return rows
