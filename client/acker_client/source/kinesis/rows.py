"""Records that the driver holds, and slices of these records. Executors unpack the slices. Decides the columns.

The driver reads each record once. AWS limits an account to five reads and 2 MB per second of a shard, so reading
records twice would halve the throughput. Also, a record may age out of the stream before its retry. Needs pyarrow and
numpy; imports neither grpc, pyspark nor boto3.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from acker_client.source.decoding.lines import ReadRows
from acker_client.source.records.input import Chosen
from acker_client.source.records.ranges import Positions, Ranges

COLUMNS = "data binary, partition_key string, sequence_number string, shard string, arrival_timestamp timestamp"


class Held:
    """Records of one shard that were read together and are not done yet.

    ``positions``: int64[n], ascending. ``rows``: n records.
    """

    __slots__ = ("positions", "rows")

    def __init__(self, positions: Positions, rows: pa.RecordBatch) -> None:
        self.positions = positions
        self.rows = rows

    @property
    def bytes(self) -> int:
        return int(self.rows.nbytes)

    def keep_rows(self, mask: npt.NDArray[np.bool_]) -> None:
        """Drop the records outside of ``mask``. Copies the others, so that the memory is freed."""
        if not mask.all():
            self.positions = self.positions[mask]
            self.rows = self.rows.take(pa.array(np.flatnonzero(mask)))

    def forget_done(self, done: Ranges) -> None:
        self.keep_rows(~done.contains(self.positions))

    def at(self, positions: Positions) -> pa.RecordBatch:
        """Return the records at ``positions`` (int64[k], ascending). Raises LookupError if one was dropped."""
        rows = np.searchsorted(self.positions, positions)
        if not np.array_equal(self.positions[rows[rows < len(self.positions)]], positions):
            raise LookupError("these records are done and forgotten")
        return self.rows.take(pa.array(rows))

    def partition_keys(self, start: int, stop: int) -> list[str | None]:
        """Return the partition key at each position from ``start`` to ``stop``; None where none is held."""
        keys: list[str | None] = [None] * (stop - start)
        first, last = np.searchsorted(self.positions, (start, stop)).tolist()
        some = self.rows.column("partition_key").slice(first, last - first).to_pylist()
        for position, key in zip(self.positions[first:last].tolist(), some, strict=True):
            keys[position - start] = key
        return keys


@dataclass(frozen=True, slots=True, eq=False)
class RecordPart:
    """Positions ``start`` to ``stop`` of a shard. ``held`` contains the records."""

    partition: str
    start: int
    stop: int
    held: Held = field(repr=False)


@dataclass(frozen=True, slots=True, repr=False)
class RecordSlice:
    """Numbers ``start`` to ``stop`` of a batch. ``content``: the rows as an Arrow stream, unpacked by executors."""

    start: int
    stop: int
    content: bytes

    def __repr__(self) -> str:
        return f"<RecordSlice: numbers {self.start} to {self.stop}, {len(self.content)} bytes>"

    def read(self) -> Iterator[ReadRows]:
        number = self.start
        with pa.ipc.open_stream(self.content) as stream:
            for rows in stream:
                stop = number + rows.num_rows
                yield ReadRows(np.arange(number, stop, dtype=np.uint64), rows)
                number = stop


def sliced_rows(start: int, stop: int, chosen: Sequence[Chosen[RecordPart]]) -> RecordSlice:
    """Return the slice of the batch's numbers ``start`` to ``stop``: the chosen records, in order."""
    sink = pa.BufferOutputStream()
    writer: Any = None
    for each in chosen:
        rows = shown(each)
        writer = writer or pa.ipc.new_stream(sink, rows.schema)
        writer.write_batch(rows)
    if writer is not None:
        writer.close()
    return RecordSlice(start, stop, sink.getvalue().to_pybytes())


def shown(chosen: Chosen[RecordPart]) -> pa.RecordBatch:
    """Return the chosen records in the columns that the user sees."""
    rows = chosen.part.held.at(chosen.positions)
    shard: Any = pa.repeat(pa.scalar(chosen.part.partition, pa.string()), rows.num_rows)
    names = ["data", "partition_key", "sequence_number", "shard", "arrival_timestamp"]
    columns = [shard if name == "shard" else rows.column(name) for name in names]
    return pa.RecordBatch.from_arrays(columns, names=names)
