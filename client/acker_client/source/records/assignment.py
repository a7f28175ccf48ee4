"""Assignment: the port between a source and the group in which it shares an input's partitions with other sources.

The words: partitions are *assigned* to a source, which is their owner from then on; it is asked to let go of some
(*revoked*), which it does once it has written down what is done of them (*released*); or it finds that it has *lost*
them, and nothing more of theirs may be written. The group decides who gets what (``acker_client.source.zookeeper``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class Handover:
    """What has changed since the last :meth:`Assignment.poll`. No partition stands in two of them."""

    assigned: Sequence[str] = ()
    revoked: Sequence[str] = ()
    lost: Sequence[str] = ()


@runtime_checkable
class Assignment(Protocol):
    """One source's membership of a group. Every call is the driver's, from one thread, between two batches."""

    def open(self, source: str, partitions: Callable[[], Sequence[str]]) -> None:
        """Join. ``partitions``: all that the input has just now, whoever owns them; called in ``poll`` only. Raises
        ``SourceError`` with what to do."""
        ...

    def poll(self) -> Handover:
        """What has changed; returns at once where nothing has. What is revoked stays this source's until released."""
        ...

    def release(self, partitions: Sequence[str]) -> None:
        """What is done of these, which were revoked, is written down: somebody else may have them."""
        ...

    def close(self) -> None:
        """Leave: whatever is this source's is released."""
        ...
