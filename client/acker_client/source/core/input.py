"""Input: the port between a source and one kind of input (files; later Kafka and Kinesis).

An input numbers its records in the order in which it plans to read them, keeps what it needs to read any of them again
until they are done, and says what a checkpoint has to hold. It never sees a root id, a verdict or a server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from acker_client.source.core.tracker import Records

# What a checkpoint holds of an input, in the input's own words; it goes through JSON.
Progress = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Origins:
    """Where records come from: ``paths[path_ids[k]]``, line ``lines[k]`` (from 1), for the k-th of them."""

    paths: tuple[str, ...]
    path_ids: npt.NDArray[np.int64]
    lines: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Original:
    """One record as it stands in the input; ``value`` None: it cannot be read any more."""

    path: str
    line: int
    byte: int
    value: bytes | None


class Input(Protocol):
    """All records are given and returned as ascending numbers, int64[k]. Everything here runs in the driver."""

    @property
    def kind(self) -> str:
        """Name of the kind of input, as a checkpoint names it."""
        ...

    def start(self, progress: Progress | None) -> None:
        """Begin where a checkpoint left off. Raises ``SourceError`` when the input is not what it was."""
        ...

    def plan(self, records_max: int, partitions: int) -> Records:
        """Plan the next records, at most so many, to be read by about ``partitions`` tasks; none: the end was
        reached."""
        ...

    def slices(self, records: Records, partitions: int) -> Sequence[Any]:
        """Slices (the read port of ``acker_client.spark``) that give ``records`` the numbers 0 to k - 1 of a batch."""
        ...

    def locate(self, records: Records) -> Origins:
        """Where records come from, without reading them."""
        ...

    def originals(self, records: Records) -> list[Original]:
        """Records as they stand in the input."""
        ...

    def advance(self, done_below: int) -> None:
        """Forget the records below ``done_below``, all of which are done."""
        ...

    def progress(self) -> Progress:
        """What a checkpoint has to hold for ``start`` to go on at the last ``advance``."""
        ...

    def describe(self) -> str:
        """The same for a human, in a few words."""
        ...
