"""Errors of sources. Each message says what to do."""

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

# The way to go on after a file was changed. An error's last words.
FIX = "give new data a new file name, or remove the checkpoint to read the input from its beginning"


class SourceError(AckerError):
    """A source cannot start or go on. Nothing is lost: records that are not done are read again at the next start."""


class CheckpointError(SourceError):
    """The checkpoint is damaged, belongs to another source, or does not match the input any more."""


class InputChanged(SourceError):
    """A file or a frame has changed since its lines or rows were counted."""


class QueryStopped(SourceError):
    """The streaming query was stopped before every row of its micro-batch was acked or became a dead letter."""


class TooManyDeadLetters(SourceError):
    """The share of records that used up their retries is above ``max_dead_share``."""


class Broken(SourceError):
    """Several batches in a row failed as a whole."""


class Fenced(CheckpointError):
    """Another source owns these ``partitions`` now, so this one writes nothing more for them."""

    def __init__(self, message: str, partitions: Sequence[str]) -> None:
        super().__init__(message)
        self.partitions = tuple(partitions)
