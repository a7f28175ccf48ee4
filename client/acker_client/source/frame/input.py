"""Rows of a user's own DataFrame as an input. A position is the index of a row in its Spark partition.

Decides which rows come next (some of each partition, so that a batch keeps all tasks busy) and how a row is named (by
its key, otherwise by partition and row). Checks that a checkpoint belongs to the same frame. A slice only lists rows.
Spark reads them, and this module gets their values through ``PersistedRows``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from acker_client.source.decoding.values import ddl_of, json_rows
from acker_client.source.errors import CheckpointError
from acker_client.source.records.input import Chosen, Committed, Mark, Original, Plan
from acker_client.source.records.ranges import Positions, Ranges


@dataclass(frozen=True, slots=True)
class FramePart:
    """Rows ``start`` up to ``stop`` of one partition of the frame. ``partition``: its number as text."""

    partition: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True, eq=False)
class FrameSlice:
    """``rows`` of one partition (int64, ascending). In the batch they have the numbers ``start`` up to ``stop``."""

    start: int
    stop: int
    partition: int
    rows: Positions


class PersistedRows(Protocol):
    """The frame as persisted by Spark."""

    @property
    def counted(self) -> Mapping[int, tuple[int, int]]:
        """(number of rows, digest over all rows), by partition. Empty partitions are left out."""
        ...

    @property
    def columns(self) -> Sequence[str]: ...

    def read_rows(self, slices: Sequence[FrameSlice], columns: Sequence[str]) -> pa.Table:
        """Return the rows of ``slices``, in order. Raises ``InputChanged`` if they have changed."""
        ...


class FrameInput:
    """Rows of a frame as an ``Input``. ``key``: the columns that name a row."""

    kind = "frame"

    def __init__(self, frame: PersistedRows, key: Sequence[str] = ()) -> None:
        self._frame = frame
        self._key = tuple(key)
        self._counted = {str(partition): counted for partition, counted in sorted(frame.counted.items())}
        self._planned: dict[str, int] = {}

    def start(self, committed: Mapping[str, Committed]) -> None:
        for partition, each in committed.items():
            if dict(each.mark) != self.mark(partition, each.done):
                raise CheckpointError(
                    f"partition {partition} of the frame is not what it was when the checkpoint was written: give the"
                    " frame that was read then, in the same order, or remove the checkpoint to read the input from its"
                    " beginning"
                )
        done = {partition: each.done.prefix for partition, each in committed.items()}
        self._planned = {partition: done.get(partition, 0) for partition in self._counted}

    def plan(self, records_max: int, tasks: int) -> Plan[FramePart]:
        left = {name: self._counted[name][0] - at for name, at in self._planned.items() if at < self._counted[name][0]}
        total = sum(left.values())
        room, parts = min(records_max, total), []
        for name, rows in left.items():
            # Compute each share from the rows and the room that are left, so that rounding loses nothing.
            share = min(rows, -(-rows * room // total)) if total else 0
            total, room = total - rows, room - share
            if share:
                at = self._planned[name]
                parts.append(FramePart(name, at, at + share))
                self._planned[name] = at + share
        return Plan(parts, is_end=not parts)

    def slices(self, chosen: Sequence[Chosen[FramePart]], tasks: int) -> list[FrameSlice]:
        stops = np.cumsum([len(each) for each in chosen]).tolist()
        return [
            FrameSlice(stop - len(each), stop, int(each.part.partition), each.positions)
            for each, stop in zip(chosen, stops, strict=True)
        ]

    def origins(self, chosen: Sequence[Chosen[FramePart]]) -> pa.RecordBatch:
        if self._key:
            table = self._read_rows(chosen, self._key)
            columns = [column.combine_chunks() for column in table.columns]
            return pa.RecordBatch.from_arrays(columns, names=list(self._key))
        slices = self.slices(chosen, 1)
        none = np.empty(0, np.int64)
        partitions = np.repeat(
            np.array([each.partition for each in slices], np.int64), [len(each.rows) for each in slices]
        )
        rows = np.concatenate([none, *(each.rows for each in slices)])
        return pa.RecordBatch.from_arrays([pa.array(partitions), pa.array(rows)], names=["partition", "row"])

    def originals(self, chosen: Sequence[Chosen[FramePart]]) -> list[Original]:
        rows = self._read_rows(chosen, self._frame.columns)
        places = [(each.partition, row) for each in self.slices(chosen, 1) for row in each.rows.tolist()]
        return [
            Original(self._origin(partition, row, value), value, schema=ddl_of(rows.schema))
            for (partition, row), value in zip(places, json_rows(rows), strict=True)
        ]

    def advance(self, partition: str, done: Ranges) -> None:
        """Do nothing: Spark keeps the frame as long as the run lasts."""

    def mark(self, partition: str, done: Ranges) -> Mark:
        rows, digest = self._counted.get(partition, (0, 0))
        return {"rows": rows, "digest": f"{digest:016x}"}

    def describe(self, done: Mapping[str, Ranges]) -> str:
        total = sum(rows for rows, _ in self._counted.values())
        prefixes = sum(done.get(name, Ranges()).prefix for name in self._counted)
        if prefixes == total:
            return f"end of the frame ({total} {'row' if total == 1 else 'rows'})"
        return f"{prefixes} of {total} rows of the frame"

    def _read_rows(self, chosen: Sequence[Chosen[FramePart]], columns: Sequence[str]) -> pa.Table:
        return self._frame.read_rows(self.slices(chosen, 1), columns)

    def _origin(self, partition: int, row: int, value: Mapping[str, Any]) -> Mapping[str, Any]:
        if not self._key:
            return {"partition": partition, "row": row}
        return {"key": {name: value[name] for name in self._key}}
