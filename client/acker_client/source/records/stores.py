"""Stores: the ports for checkpoints, dead letters and outcomes. Users may implement their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from acker_client.source.records.dead_letter import DeadLetter
from acker_client.source.records.input import Committed, Input, P
from acker_client.source.records.outcome import RecordOutcome


@dataclass(frozen=True, slots=True)
class Committer:
    """The run that commits: its ``source``, its ``session`` at the servers, and its process.

    ``retries``: whether it may process a record again that another run has committed meanwhile.
    """

    source: str
    session: int
    host: str
    pid: int
    retries: bool = True


@runtime_checkable
class CheckpointStore(Protocol):
    """Keeps the progress of one source; one run holds it at a time. Each method may raise ``CheckpointError``, which
    says what to do. ``str()`` returns the location."""

    def open(self, source: str, kind: str) -> None:
        """Take the store for a run of ``source``, whose input is of this ``kind``. Fails if another run holds it."""
        ...

    def load(self) -> dict[str, Committed]:
        """Return the last saved state by partition; empty if none. Fails if another source or kind saved the state."""
        ...

    def save(self, committed: Mapping[str, Committed]) -> None:
        """Replace the saved state. The new state is durable on return. If this raises, the old state remains."""
        ...

    def close(self) -> None:
        """Release the store."""
        ...


@runtime_checkable
class SharedCheckpointStore(CheckpointStore, Protocol):
    """A checkpoint that the sources of a group share. Each writes only the partitions that it owns. ``save`` raises
    ``Fenced`` for partitions that another source owns by now, after it has saved the other partitions."""

    def load_partitions(self, partitions: Sequence[str]) -> dict[str, Committed]:
        """Return the last saved state of partitions that were just assigned. Omits partitions without a saved state."""
        ...


@runtime_checkable
class SignedCheckpointStore(CheckpointStore, Protocol):
    """A checkpoint that also records which run wrote it, for its administrators."""

    def sign(self, by: Committer) -> None:
        """Set the run that commits from now on. Called once, before the first ``save``."""
        ...


@runtime_checkable
class IdentifiedCheckpointStore(CheckpointStore, Protocol):
    """A checkpoint with an identity: random text, which an input writes beside the progress that it commits elsewhere.
    So it notices progress that another checkpoint has committed under the same name."""

    def identity(self) -> str:
        """Return the identity of the open store; "" if none was drawn yet."""
        ...

    def draw_identity(self) -> str:
        """Return the identity. Draws it if there is none. It is durable when this returns."""
        ...


@runtime_checkable
class CommittingInput(Input[P], Protocol[P]):
    """An input that also commits its progress to the system that it reads."""

    def set_checkpoint(self, store: CheckpointStore) -> None:
        """Set the open store of the run. Called before ``start``, if the run has a checkpoint."""
        ...


@runtime_checkable
class DeadLetterStore(Protocol):
    """Keeps dead letters. Methods may raise ``SourceError``, which says what to do. ``str()`` returns the location."""

    def open(self) -> None:
        """Check that letters can be written, before there are any. May be called again."""
        ...

    def write(self, letters: Iterable[DeadLetter]) -> None:
        """Add ``letters``, in order. They are durable when this returns. If it raises, their records are not done.

        After an ``OutOfReach`` (``acker_client.source.waiting``) the run goes on with other records, and calls this
        again with the same letters, unless the store is away for long. Any other error ends the run.
        """
        ...

    def close(self) -> None:
        """Release the store."""
        ...


@runtime_checkable
class SparkDeadLetterStore(DeadLetterStore, Protocol):
    """Keeps dead letters where Spark writes them."""

    def set_session(self, spark: Any) -> None:
        """Set the session of the run. Called before ``open``."""
        ...


@runtime_checkable
class OutcomeStore(Protocol):
    """Keeps outcomes. Methods may raise ``SourceError``, which says what to do. ``str()`` returns the location."""

    def open(self) -> None:
        """Check that outcomes can be written, before there are any. May be called again."""
        ...

    def write(self, outcomes: Iterable[RecordOutcome]) -> None:
        """Add ``outcomes``, in order. They are durable when this returns. If it raises, their records are not done."""
        ...

    def close(self) -> None:
        """Release the store."""
        ...
