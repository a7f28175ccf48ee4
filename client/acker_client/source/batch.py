"""Batch: what user code gets from a source, and what the source keeps of it until it is settled."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from acker_client.source.flight import Fallen
from acker_client.source.rim import Frame
from acker_client.source.tracker import Emitted


@dataclass(slots=True)
class Batch:
    """A batch of records. ``df``: its rows, with their anchors; ``records``: how many records it has; ``replays``: how
    many of them have been emitted before; ``number``: from 1 up within a run."""

    number: int
    records: int
    replays: int
    df: Any
    frame: Frame = field(repr=False)
    emitted: Emitted = field(repr=False)
    # The registration of the source under which it was opened.
    generation: int | None = field(repr=False)
    # How often its records have been in a batch that broke as a whole, and must be alone therefore.
    depth: int = field(repr=False, default=0)
    # The server has lost its state while the batch was open: everything is LOST already, whatever else is heard of it.
    is_lost: bool = field(repr=False, default=False)
    # What went through a sink of it, or was raised by its job.
    error: BaseException | None = field(repr=False, default=None)
    # Records that are LOST because it broke, to be replayed apart from others.
    broken: list[Fallen] = field(repr=False, default_factory=list)

    @property
    def is_broken(self) -> bool:
        """Whether it failed as a whole, and not for want of a server."""
        return self.error is not None and not self.is_lost
