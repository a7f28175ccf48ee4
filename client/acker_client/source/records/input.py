"""Input: the port between a source and one kind of input (files, Kafka, Kinesis, a frame).

The words of the port, from the outside in:

partition   what an input has one or more of, each in an order of its own (a file; a topic's partition; a shard). It
            has a name that a checkpoint can hold, and may turn up at any time.
position    of a record within its partition, from 0 up; never another record's. It need not exist: a log may have
            compacted it away, which shows when it is planned (it lies between two parts) or when it is read (*absent*).
part        positions ``start`` up to ``stop`` of one partition, planned together and read again as often as need be.
chosen      a part, or some positions of it: what a batch is made of, and what is asked about.
done        of a partition: the prefix of its positions that are done, and the ranges beyond it (``Ranges``).
mark        what an input writes down beside what is done, to find its place again and to see that the partition is
            still the one that was read.

An input never sees a record number, a root id, a verdict or a server. It runs in the driver, but for its slices, which
are pickled and read in executors, and need neither gRPC nor Spark.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np
import pyarrow as pa

from acker_client.cluster.handed_on import HandedOn
from acker_client.source.records.ranges import Positions, Ranges

# What stands in a checkpoint beside what is done, in the input's own words; it goes through JSON.
Mark = Mapping[str, Any]


class Part(Protocol):
    """Positions ``start <= position < stop`` of ``partition``; an input adds what it needs to read them."""

    @property
    def partition(self) -> str: ...
    @property
    def start(self) -> int: ...
    @property
    def stop(self) -> int: ...


P = TypeVar("P", bound=Part)


@dataclass(frozen=True, slots=True, eq=False)
class Chosen(Generic[P]):
    """Some positions of a part: ``offsets: int64[k]`` from its start, ascending; None: all of them."""

    part: P
    offsets: Positions | None = None

    def __len__(self) -> int:
        return self.part.stop - self.part.start if self.offsets is None else len(self.offsets)

    @property
    def positions(self) -> Positions:
        """The positions in the partition: int64[k]."""
        if self.offsets is None:
            return np.arange(self.part.start, self.part.stop, dtype=np.int64)
        return self.part.start + self.offsets


@dataclass(frozen=True, slots=True)
class Plan(Generic[P]):
    """What comes next: ``parts``, those of one partition in ascending order. No parts: nothing just now, ask again;
    ``is_end``: there is nothing now and never will be. ``revoked``: partitions that this source may read no more; what
    is not done of them is dropped, and left to whoever has them now. One that is planned again,
    and was not assigned, is a new one of that name: what lies below its first part does not exist."""

    parts: Sequence[P] = ()
    is_end: bool = False
    revoked: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Answered:
    """How many records of a partition have their answer, over all runs, and how many of them are ``dead`` letters."""

    records: int = 0
    dead: int = 0

    def __add__(self, other: Answered) -> Answered:
        return Answered(self.records + other.records, self.dead + other.dead)

    def to_json(self) -> list[int]:
        return [self.records, self.dead]

    @classmethod
    def from_json(cls, saved: object) -> Answered:
        """Read what ``to_json`` gave, or None from a checkpoint of an older acker. Raises ``ValueError``."""
        if saved is None:
            return cls()
        if not (
            isinstance(saved, list) and len(saved) == 2 and all(type(count) is int and count >= 0 for count in saved)
        ):
            raise ValueError(f"{saved!r} is not the number of records and of dead letters")
        return cls(*saved)


NONE_ANSWERED = Answered()


@dataclass(frozen=True, slots=True)
class Committed:
    """What a checkpoint holds of one partition."""

    done: Ranges = field(default_factory=Ranges)
    mark: Mark = field(default_factory=dict)
    answered: Answered = NONE_ANSWERED


@dataclass(frozen=True, slots=True)
class Original:
    """One record as it stands in the input. ``origin``: where, by name; ``value``: bytes, or columns that go through
    JSON; None: it cannot be read any more."""

    origin: Mapping[str, Any]
    value: bytes | Mapping[str, Any] | None


class Input(Protocol[P]):
    """One kind of input. Every call is the driver's, from one thread."""

    @property
    def kind(self) -> str:
        """Name of the kind of input, as a checkpoint names it."""
        ...

    def start(self, committed: Mapping[str, Committed]) -> None:
        """Begin where a checkpoint left off: no part may begin below the prefix of its partition. What is done beyond
        the prefix may be planned again; it is not read. Raises ``SourceError`` when the input is not what it was."""
        ...

    def plan(self, records_max: int, tasks: int) -> Plan[P]:
        """Plan the next positions, at most so many, to be read by about ``tasks`` tasks."""
        ...

    def slices(self, chosen: Sequence[Chosen[P]], tasks: int) -> Sequence[Any]:
        """Slices (the read port of ``acker_client.spark``), about ``tasks`` of them, which give what is chosen, in
        order, the numbers 0 to k - 1 of a batch. A position that does not exist is left out when it is read."""
        ...

    def origins(self, chosen: Sequence[Chosen[P]]) -> pa.RecordBatch:
        """Where records come from, without reading them: a row for each, in columns of the input's own names. Joined
        by colons the values of a row are what a person calls the record."""
        ...

    def originals(self, chosen: Sequence[Chosen[P]]) -> list[Original]:
        """Records as they stand in the input, read once more."""
        ...

    def advance(self, partition: str, done: Ranges) -> None:
        """More of a partition is done: forget what only that needed. Called before ``mark``, and without a checkpoint
        too."""
        ...

    def mark(self, partition: str, done: Ranges) -> Mark:
        """What ``start`` needs to go on behind ``done``."""
        ...

    def describe(self, done: Mapping[str, Ranges]) -> str:
        """How far the input is done, for a person, in a few words."""
        ...


@runtime_checkable
class Closing(Protocol):
    """An input that holds something open."""

    def close(self) -> None:
        """The run is over, also where it could not begin: all that is done has been written down. Let go of it."""
        ...


@runtime_checkable
class SharedInput(Input[P], Protocol[P]):
    """An input whose partitions a group of sources shares (see ``acker_client.source.records.assignment``).

    In a group the run calls ``assign`` with no partitions right after ``start``, and the input then plans only the
    partitions that it is assigned. Without a group it plans every partition that it finds. It remembers nothing about a
    partition that was revoked and is assigned again. While more partitions may be assigned, it is not at its end.
    """

    def partitions(self) -> Sequence[str]:
        """All that there are just now, in their own order, whoever owns them."""
        ...

    def assign(self, committed: Mapping[str, Committed]) -> None:
        """These are this source's from now on; each is planned from where it was committed: one of which nothing was
        saved comes with an empty ``Committed``."""
        ...

    def revoke(self, partitions: Sequence[str]) -> None:
        """These are not this source's any more: nothing of theirs is planned or kept."""
        ...


@runtime_checkable
class TakingUpInput(Input[P], Protocol[P]):
    """An input whose records may belong to trees of other jobs (see ``acker_client.cluster.handed_on``)."""

    @property
    def acks_upstream(self) -> bool:
        """Whether these trees are to hear of what becomes of the records."""
        ...

    def taken_up(self, chosen: Sequence[Chosen[P]]) -> list[list[HandedOn]]:
        """The anchors that each record came with; none of one that cannot be read any more."""
        ...


@runtime_checkable
class SparseInput(Input[P], Protocol[P]):
    """An input that can say, without a task of Spark's, which of the positions that it planned exist."""

    def are_there(self, chosen: Sequence[Chosen[P]]) -> list[bool]:
        """For each position whether it exists; also where nobody can say just now."""
        ...


@runtime_checkable
class PausableInput(Input[P], Protocol[P]):
    """An input that can leave some partitions alone while it plans others."""

    def pause(self, partitions: Collection[str]) -> None:
        """Plan none of these, and all others again, until the next call. While one of these has more, it is not the
        end."""
        ...
