"""Input: the port between a source and one kind of input (files, Kafka, Kinesis, a frame).

partition   an ordered sequence of records (a file, a topic's partition, a shard). A partition has a name for the
            checkpoint. New partitions may appear at any time.
position    the place of a record in its partition, from 0 up, never reused. A position can be missing, for example in a
            compacted log. It then lies between two parts, or is found missing when read (*absent*).
part        the positions ``start`` up to ``stop`` of one partition, planned together. May be read several times.
chosen      a part, or some of its positions. A batch consists of them.
done        the positions of a partition that are done: a prefix, and ranges beyond it (``Ranges``).
mark        the input's own data in a checkpoint. The input uses it to find its place again, and to check that the
            partition is still the same.

An input never sees a record number, a root id, a verdict or a server. It runs in the driver. Only its slices are
pickled and read in executors; they need neither gRPC nor Spark.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from acker_client.cluster.handed_on import HandedOn
from acker_client.source.records.ranges import Positions, Ranges

# The input's own entry in a checkpoint. It must survive JSON.
Mark = Mapping[str, Any]
# A number for the key of each position: uint64[n]. Positions with equal numbers keep their order.
OrderKeys = npt.NDArray[np.uint64]


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
    """The next ``parts``, ascending within each partition. Empty if nothing can be read now, but perhaps later.
    ``is_end``: there will never be more. ``revoked``: partitions that this source may no longer read. The source drops
    their open records, which the new owner reads. If a revoked partition is planned again without being assigned, it is
    a new partition with the same name, and nothing below its first part exists. ``keys``: for each part the keys of its
    positions, if the source keeps the order of records with one key; otherwise empty. ``moved``: partitions with
    another mark since the last plan, although none of their records was done."""

    parts: Sequence[P] = ()
    is_end: bool = False
    revoked: Sequence[str] = ()
    keys: Sequence[OrderKeys] = ()
    moved: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Answered:
    """Number of answered records of a partition over all runs, and how many of them are ``dead`` letters."""

    records: int = 0
    dead: int = 0

    def __add__(self, other: Answered) -> Answered:
        return Answered(self.records + other.records, self.dead + other.dead)

    def __sub__(self, other: Answered) -> Answered:
        return Answered(self.records - other.records, self.dead - other.dead)

    def to_json(self) -> list[int]:
        return [self.records, self.dead]

    @classmethod
    def from_json(cls, saved: object) -> Answered:
        """Read the result of ``to_json``, or None from a checkpoint of an older acker. Raises ``ValueError``."""
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
    """A checkpoint's entry for one partition."""

    done: Ranges = field(default_factory=Ranges)
    mark: Mark = field(default_factory=dict)
    answered: Answered = NONE_ANSWERED


@dataclass(frozen=True, slots=True)
class Observed:
    """A partition as its metrics show it. ``topic``: what it is a partition of; ``name``: its name in there.
    ``position``: the position to be planned next. ``end``: the position after the last record there is; None if
    unknown. ``committed``: the position that the input itself has committed; None if only the checkpoint holds one."""

    topic: str
    name: str
    position: int
    end: int | None = None
    committed: int | None = None


@dataclass(frozen=True, slots=True)
class Original:
    """One record as it is in the input. ``origin``: names and values that locate the record. ``value``: its bytes, or
    columns that survive JSON; None if it has no value, or cannot be read any more. ``value_bytes``, ``schema`` and
    ``columns``: as in ``DeadLetter``."""

    origin: Mapping[str, Any]
    value: bytes | Mapping[str, Any] | None
    value_bytes: int | None = None
    schema: str = ""
    columns: Mapping[str, Any] | None = None


class Input(Protocol[P]):
    """One kind of input. The driver makes every call, from one thread."""

    @property
    def kind(self) -> str:
        """The name of this kind of input in checkpoints."""
        ...

    def start(self, committed: Mapping[str, Committed]) -> None:
        """Begin after a checkpoint: no part may begin below the prefix of its partition. Done positions beyond the
        prefix may be planned again; the run does not read them. Raises ``SourceError`` for another input's checkpoint.
        """
        ...

    def plan(self, records_max: int, tasks: int) -> Plan[P]:
        """Plan the next positions, at most ``records_max``, for about ``tasks`` tasks."""
        ...

    def slices(self, chosen: Sequence[Chosen[P]], tasks: int) -> Sequence[Any]:
        """Return about ``tasks`` slices (the read port of ``acker_client.spark``). They number the ``chosen`` positions
        from 0 in this order, and skip positions that do not exist when they are read."""
        ...

    def origins(self, chosen: Sequence[Chosen[P]]) -> pa.RecordBatch:
        """Return the origins of records without reading them: a row for each, in the input's own columns. Joined by
        colons, the values of a row name the record in messages."""
        ...

    def originals(self, chosen: Sequence[Chosen[P]]) -> list[Original]:
        """Read the records again."""
        ...

    def advance(self, partition: str, done: Ranges) -> None:
        """Drop data that only ``done`` positions needed. Called before ``mark``, also if there is no checkpoint."""
        ...

    def mark(self, partition: str, done: Ranges) -> Mark:
        """Return the mark that a later ``start`` needs to continue after ``done``."""
        ...

    def describe(self, done: Mapping[str, Ranges]) -> str:
        """Describe progress to a person, in a few words."""
        ...


@runtime_checkable
class Closing(Protocol):
    """An input that has files or connections to close."""

    def close(self) -> None:
        """Close files and connections. Called after the last checkpoint of a run, and if a run failed to begin."""
        ...


@runtime_checkable
class RemoteInput(Input[P], Protocol[P]):
    """An input whose records may be out of reach for a while."""

    def is_reachable(self) -> bool:
        """Return whether records can be read now. May wait some seconds.

        Replays wait while it is False, and ``plan`` leaves out what cannot be read.
        """
        ...


@runtime_checkable
class PartlyRemoteInput(RemoteInput[P], Protocol[P]):
    """A remote input of which some partitions may be out of reach while others can be read."""

    def away(self) -> Collection[str]:
        """Return the partitions whose records could not be read when ``is_reachable`` was last asked. Their replays
        wait."""
        ...


@runtime_checkable
class SharedInput(Input[P], Protocol[P]):
    """An input whose partitions a group of sources shares (see ``acker_client.source.records.assignment``).

    In a group the run calls ``assign`` with no partitions right after ``start``. From then on the input plans only
    assigned partitions. Without a group it plans every partition that it finds. It keeps nothing about a revoked
    partition, even if that is assigned again. While more partitions may be assigned, the input is not at its end.
    """

    def partitions(self) -> Sequence[str]:
        """Return all existing partitions in the input's order, whichever source owns them."""
        ...

    def assign(self, committed: Mapping[str, Committed]) -> None:
        """Begin to plan these partitions, each after its committed positions. ``Committed`` is empty for a partition
        without a saved entry."""
        ...

    def revoke(self, partitions: Sequence[str]) -> None:
        """Drop all data of these partitions and plan them no more, because another source owns them."""
        ...


@runtime_checkable
class TakingUpInput(Input[P], Protocol[P]):
    """An input whose records may belong to trees of other jobs (see ``acker_client.cluster.handed_on``)."""

    @property
    def acks_upstream(self) -> bool:
        """Whether the outcomes of the records are reported to the trees of other jobs."""
        ...

    def taken_up(self, chosen: Sequence[Chosen[P]]) -> list[list[HandedOn]]:
        """Return the anchors that each record came with; none for a record that cannot be read any more."""
        ...


@runtime_checkable
class KeyedInput(Input[P], Protocol[P]):
    """An input whose records have keys of their own."""

    def keys(self, chosen: Sequence[Chosen[P]]) -> list[Any]:
        """Return the key of each record as it survives JSON; None for a record without one, or that cannot be read any
        more. May read the records again."""
        ...


@runtime_checkable
class SparseInput(Input[P], Protocol[P]):
    """An input that knows, without a Spark task, which of its planned positions exist."""

    def are_there(self, chosen: Sequence[Chosen[P]]) -> list[bool]:
        """Return for each position whether it exists. True if that is unknown just now."""
        ...


@runtime_checkable
class PausableInput(Input[P], Protocol[P]):
    """An input that can pause some partitions while it plans others."""

    def pause(self, partitions: Collection[str]) -> None:
        """Pause exactly these partitions until the next call. While a paused partition has more positions, the
        input is not at its end."""
        ...


@runtime_checkable
class ObservedInput(Input[P], Protocol[P]):
    """An input with so few and lasting partitions that each has metrics of its own."""

    def observe(self) -> Mapping[str, Observed]:
        """Return what is known of each partition that this source reads. Any thread may ask."""
        ...
