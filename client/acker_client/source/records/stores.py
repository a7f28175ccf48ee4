"""Stores: the ports of what outlasts a run. Files implement them in ``stores``; a user may give others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from acker_client.source.records.dead_letter import DeadLetter
from acker_client.source.records.input import Committed


@dataclass(frozen=True, slots=True)
class Committer:
    """Who commits: a run of a ``source``, by its ``session`` at the servers, and the process that it is."""

    source: str
    session: int
    host: str
    pid: int


@runtime_checkable
class CheckpointStore(Protocol):
    """Keeps what is done of one source; one run holds it at a time. Every method raises ``CheckpointError`` with what
    to do. Its ``str()`` says where it is."""

    def open(self, source: str, kind: str) -> None:
        """Take it for a run of ``source``, whose input is of this ``kind``; refused where another run holds it."""
        ...

    def load(self) -> dict[str, Committed]:
        """What was saved last, by partition; nothing: nothing was. Refused where it is another source's or kind's."""
        ...

    def save(self, committed: Mapping[str, Committed]) -> None:
        """Replace what was saved. It lasts when this returns; when it raises, what was saved before is still there."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


@runtime_checkable
class SharedCheckpointStore(CheckpointStore, Protocol):
    """A checkpoint that the sources of a group share: each writes the partitions that it owns, and no others. Here
    ``save`` raises ``Fenced`` for those that are another's by now; the others are saved then."""

    def load_partitions(self, partitions: Sequence[str]) -> dict[str, Committed]:
        """What was saved last of these, which this source has just been assigned; one of which nothing was is left
        out."""
        ...


@runtime_checkable
class SignedCheckpointStore(CheckpointStore, Protocol):
    """A checkpoint that also says who wrote it, for the people who look after it."""

    def sign(self, by: Committer) -> None:
        """Whoever commits from now on; called once, before the first ``save``."""
        ...


@runtime_checkable
class DeadLetterStore(Protocol):
    """Keeps dead letters. Methods raise ``SourceError`` with what to do. Its ``str()`` says where it is."""

    def open(self) -> None:
        """Make sure that letters can be written, before there is any; may be called again."""
        ...

    def write(self, letters: Iterable[DeadLetter]) -> None:
        """Add ``letters``, in order; they last when this returns. When it raises, their records are not done."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...
