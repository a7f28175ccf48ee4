"""Options of a source: what may be asked of it, checked once, with errors that name the option and the fix."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from acker_client.core.registration import check_lease
from acker_client.source.core.listener import Listener
from acker_client.source.core.retry import Retry


@dataclass(frozen=True, slots=True)
class Options:
    """Everything about a source that does not depend on the kind of its input; see ``Files`` for what each means."""

    name: str
    checkpoint: Path | None
    dead_letters: Path | None
    retry: Retry
    max_dead_share: float
    batch_records: int
    max_uncommitted: int
    partitions: int | None
    deadline_s: float
    lease_s: float
    listener: Listener

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise ValueError("name: give the source a name, like name='orders'; checkpoints, logs and metrics carry it")
        if not isinstance(self.retry, Retry):
            raise ValueError(f"retry={self.retry!r}: give a Retry, like Retry(max_retries=3)")
        if not isinstance(self.listener, Listener):
            raise ValueError(
                f"listener={self.listener!r}: give a Listener (a subclass that overrides what it wants to see)"
            )
        if not 0 <= self.max_dead_share <= 1:
            raise ValueError(f"max_dead_share={self.max_dead_share}: give a share from 0 to 1 (1: never stop)")
        for option in ("batch_records", "max_uncommitted"):
            _check_count(option, getattr(self, option))
        if self.partitions is not None:
            _check_count("partitions", self.partitions)
        if self.max_uncommitted < self.batch_records:
            raise ValueError(
                f"max_uncommitted={self.max_uncommitted} is less than batch_records={self.batch_records}: no batch"
                " would fit"
            )
        if not 0 < self.deadline_s < float("inf"):
            raise ValueError(f"deadline_s={self.deadline_s}: give seconds, above 0")
        check_lease(self.lease_s)
        self._check_paths()

    @property
    def own_files(self) -> tuple[Path, ...]:
        """The files that this source writes, and which are therefore no input of it."""
        checkpoint = [] if self.checkpoint is None else [self.checkpoint, *(_beside(self.checkpoint))]
        return (*checkpoint, *([] if self.dead_letters is None else [self.dead_letters]))

    def _check_paths(self) -> None:
        for option in ("checkpoint", "dead_letters"):
            path = getattr(self, option)
            if path is not None and path.is_dir():
                raise ValueError(f"{option}={str(path)!r} is a directory: give a file in it")
            if path is not None and not path.absolute().parent.is_dir():
                raise ValueError(f"{option}={str(path)!r}: its directory does not exist; create it first")
        if self.dead_letters is not None and self.checkpoint is not None:
            taken = {os.path.abspath(path) for path in (self.checkpoint, *_beside(self.checkpoint))}
            if os.path.abspath(self.dead_letters) in taken:
                raise ValueError(f"dead_letters and checkpoint are the same file ({self.dead_letters}): give two")


def _beside(checkpoint: Path) -> tuple[Path, Path]:
    return checkpoint.with_name(checkpoint.name + ".lock"), checkpoint.with_name(checkpoint.name + ".new")


def _check_count(option: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{option}={value!r}: give a whole number, at least 1")
