"""A Kinesis stream in memory that behaves and fails as AWS documents it, on a simulated clock.

Unlike moto it has sequence numbers of 56 digits with gaps, no iterator at the end of a closed shard, at most five reads
of a shard a second, iterators that expire after five minutes, and records that age out. ``like_moto``: it returns an
iterator after the end of a closed shard.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from acker_client.source.kinesis.connection import (
    RECORD,
    Begin,
    Expired,
    ListedShard,
    NotThere,
    ReadAnswer,
    StreamIdentity,
    Throttled,
)
from acker_testing import SimulatedTime

ITERATOR_S = 300.0
START = 49_590_338_271_490_256_608_559_692_538_361_571_095_921_575_989_136_588_898


@dataclass
class Written:
    sequence_number: int
    key: str
    data: bytes
    arrived_s: float


@dataclass
class TwinShard:
    parents: tuple[str, ...] = ()
    is_closed: bool = False
    records: list[Written] = field(default_factory=list)
    # How many of the oldest records have aged out.
    aged: int = 0


class TwinKinesis:
    """A stream. ``faults[method]``: errors that the next calls of a method raise. ``reads``: (shard, time) of each
    read. ``read_s``: how long a read takes."""

    def __init__(self, time: SimulatedTime, shards: int = 2, *, like_moto: bool = False) -> None:
        self.time = time
        self.like_moto = like_moto
        self.created_ms = 1_700_000_000_000
        self.streams: dict[str, TwinShard] = {self._named(k): TwinShard() for k in range(shards)}
        self.faults: dict[str, deque[Exception]] = {}
        self.reads: list[tuple[str, float]] = []
        self.read_s = 0.0
        # If not None, the most records in an answer. The answer then also says in whole seconds how far it is behind.
        self.answer_max: int | None = None
        self._written = 0

    # -- what a producer and an operator do

    def put(self, shard: int, *data: str) -> None:
        found = self.streams[self._named(shard)]
        assert not found.is_closed
        for each in data:
            self._written += 1
            number = START + self._written * 1_000_003
            found.records.append(Written(number, f"key-{each}", each.encode(), self.time.clock()))

    def split(self, shard: int) -> None:
        self._close(shard)
        for _ in range(2):
            self._add((self._named(shard),))

    def merge(self, first: int, second: int) -> None:
        self._close(first)
        self._close(second)
        self._add((self._named(first), self._named(second)))

    def age(self, shard: int, records: int) -> None:
        """Let the oldest ``records`` of a shard age out."""
        self.streams[self._named(shard)].aged = records

    def drop(self, shard: int) -> None:
        """Let a closed shard age out altogether."""
        del self.streams[self._named(shard)]

    def fail(self, method: str, *errors: Exception) -> None:
        self.faults.setdefault(method, deque()).extend(errors)

    def of_parents(self, name: str) -> set[str]:
        """Return all records that were ever written to the parents of a shard."""
        return {each.data.decode() for parent in self.streams[name].parents for each in self.streams[parent].records}

    def _named(self, shard: int) -> str:
        return f"shardId-{shard:012d}"

    def _close(self, shard: int) -> None:
        self.streams[self._named(shard)].is_closed = True

    def _add(self, parents: tuple[str, ...]) -> None:
        number = 1 + max(int(name.partition("-")[2]) for name in self.streams)
        self.streams[self._named(number)] = TwinShard(parents)

    # -- the door

    def describe(self) -> StreamIdentity:
        self._raise("describe")
        now = datetime.fromtimestamp(self.time.clock(), UTC)
        return StreamIdentity("arn:aws:kinesis:eu-central-1:1:stream/orders", self.created_ms, now)

    def shards(self) -> list[ListedShard]:
        self._raise("shards")
        return [ListedShard(name, shard.parents, shard.is_closed) for name, shard in self.streams.items()]

    def iterator(self, shard: str, begin: Begin) -> str:
        self._raise("iterator")
        if shard not in self.streams:
            raise NotThere(f"ResourceNotFoundException: Shard {shard} does not exist")
        return f"{shard}:{self._index(self.streams[shard], begin)}:{self.time.clock()}"

    def read_records(self, iterator: str, records_max: int) -> ReadAnswer:
        name, index, issued_s = iterator.split(":")
        now = self.time.clock()
        recent = [at for shard, at in self.reads if shard == name and at > now - 1.0]
        self.reads.append((name, now))
        self.time.sleep(self.read_s)
        self._raise("read")
        if len(recent) >= 5:
            raise Throttled("ProvisionedThroughputExceededException: Rate exceeded for shard")
        if now - float(issued_s) > ITERATOR_S:
            raise Expired("ExpiredIteratorException: Iterator expired")
        if name not in self.streams:
            raise NotThere(f"ResourceNotFoundException: Shard {name} does not exist")
        shard = self.streams[name]
        start = max(int(index), shard.aged)
        found = shard.records[start : start + min(records_max, self.answer_max or records_max)]
        stop = start + len(found)
        is_end = shard.is_closed and stop == len(shard.records) and not self.like_moto
        behind_ms = 0 if stop == len(shard.records) else 1 + int(1000 * (now - shard.records[stop].arrived_s))
        if self.answer_max is not None:
            behind_ms -= behind_ms % 1000
        return ReadAnswer(_rows(found), None if is_end else f"{name}:{stop}:{now}", behind_ms)

    def _index(self, shard: TwinShard, begin: Begin) -> int:
        if begin.kind == "TRIM_HORIZON":
            return 0
        if begin.kind == "LATEST":
            return len(shard.records)
        if begin.timestamp is not None:
            since = begin.timestamp.timestamp()
            return sum(record.arrived_s < since for record in shard.records)
        number = int(begin.sequence_number or 0)
        if not START < number <= START + self._written * 1_000_003:
            raise NotThere("InvalidArgumentException: StartingSequenceNumber did not come from this stream")
        at = 0 if begin.kind == "AT_SEQUENCE_NUMBER" else 1
        return sum(record.sequence_number < number + at for record in shard.records)

    def _raise(self, method: str) -> None:
        faults = self.faults.get(method)
        if faults:
            raise faults.popleft()


def _rows(records: list[Written]) -> pa.RecordBatch:
    rows: list[dict[str, Any]] = [
        {
            "data": record.data,
            "partition_key": record.key,
            "sequence_number": str(record.sequence_number),
            "arrival_timestamp": datetime.fromtimestamp(record.arrived_s, UTC),
        }
        for record in records
    ]
    return pa.RecordBatch.from_pylist(rows, RECORD)
