"""Errors of a source, each with what to do about it."""

from __future__ import annotations

from collections.abc import Sequence

from acker_client.errors import AckerError

__all__ = [
    "Broken",
    "CheckpointError",
    "Fenced",
    "InputChanged",
    "QueryStopped",
    "SourceError",
    "TooManyDeadLetters",
]


class SourceError(AckerError):
    """A source cannot go on, or cannot start. Nothing is lost: what is not done is read again at the next start."""


class CheckpointError(SourceError):
    """The checkpoint does not fit: damaged, of another source, or the input changed under it."""


class InputChanged(SourceError):
    """A file, or a frame, is no longer what it was when its lines, or rows, were counted."""


class QueryStopped(SourceError):
    """The streaming query of a micro-batch was stopped before every row of it had its answer."""


class TooManyDeadLetters(SourceError):
    """A larger share of records than ``max_dead_share`` spent its retries."""


class Broken(SourceError):
    """Batch after batch broke as a whole, and none got through in between."""


class Fenced(CheckpointError):
    """Some ``partitions`` are another source's by now: nothing more of them is written by this one."""

    def __init__(self, message: str, partitions: Sequence[str]) -> None:
        super().__init__(message)
        self.partitions = tuple(partitions)
