"""Batch: what user code gets from a source, and what the source keeps of it until it is settled."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Self

from acker_client.core.gist import gist
from acker_client.source.core.in_flight import Failures
from acker_client.source.core.tracker import EmissionRange
from acker_client.source.errors import SourceError
from acker_client.source.run.environment import BatchFrame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(slots=True, repr=False)
class Batch:
    """A batch of records. ``df``: its rows, with their anchors; ``records``: how many records it has; ``replays``: how
    many of them have been emitted before; ``number``: from 1 up within a run.

    It is settled when the loop over the batches comes back for the next one. A loop that is left in any other way
    (``break``, ``return``, an exception) abandons it, unless :meth:`done` was called. As a context manager it is done
    when its block ends, and abandoned when an exception leaves the block, also one that is caught further out.
    """

    number: int
    records: int
    replays: int
    frame: BatchFrame
    emitted: EmissionRange
    # How often its records have been in a batch that broke as a whole, and must be alone therefore.
    depth: int = 0
    # A server has lost it, or its state, while the batch was open: what failed may have failed for that.
    is_lost: bool = False
    # Its work is complete, as the user has said.
    is_done: bool = False
    # What went through a sink of it, or was raised by its job.
    error: BaseException | None = None
    # Why its records may be unfinished through no fault of their own; nothing (""): there is no such reason.
    unfinished_because: str = ""
    # Records that are LOST because it broke, to be replayed apart from others.
    broken: list[Failures] = field(default_factory=list)

    @property
    def df(self) -> DataFrame:
        """Its rows, as a tracked frame."""
        df: DataFrame = self.frame.df
        return df

    def done(self) -> None:
        """Its work is complete: should the loop be left before it comes back, the batch is settled all the same."""
        self.is_done = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None:
            self.done()
        else:
            # Not the exception itself: its traceback holds the loop, which would then not end when it is left.
            self.error = SourceError(f"the block of the batch raised {gist(error)}")

    def __repr__(self) -> str:
        state = "lost" if self.is_lost else "broken" if self.error is not None else "done" if self.is_done else "open"
        return f"<Batch {self.number}: {self.records} records, {self.replays} of them replays, {state}>"

    @property
    def is_broken(self) -> bool:
        """Whether it failed as a whole, and not for want of a server."""
        return self.error is not None and not self.is_lost
