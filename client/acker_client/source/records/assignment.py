"""Assignment: the port between a source and its group. The sources of a group share the partitions of one input.

A partition is *assigned* to a source, which then owns it. If it is *revoked*, the source saves its progress and then
*releases* it. A source that has *lost* a partition may write nothing more for it. The group decides the assignment
(``acker_client.source.zookeeper``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class Handover:
    """Changes since the last :meth:`Assignment.poll`. A partition is in at most one of the lists."""

    assigned: Sequence[str] = ()
    revoked: Sequence[str] = ()
    lost: Sequence[str] = ()


@runtime_checkable
class Assignment(Protocol):
    """One source's membership of a group. One thread of the driver makes all calls, between two batches."""

    def open(self, source: str, partitions: Callable[[], Sequence[str]]) -> None:
        """Join the group. Raises ``SourceError`` if the source cannot join.

        ``partitions()`` returns all partitions of the input, whichever source owns them. ``open`` and ``poll`` call it.
        """
        ...

    def poll(self) -> Handover:
        """Return the changes; never waits for any. The source owns a revoked partition until it calls ``release``."""
        ...

    def release(self, partitions: Sequence[str]) -> None:
        """Give up revoked partitions after their progress was saved. Another source may take them from now on."""
        ...

    def close(self) -> None:
        """Leave the group and release all partitions."""
        ...
