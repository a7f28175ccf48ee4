"""Batch: what user code gets from a source, and what the source keeps of it until it is settled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Self

from acker_client.error_text import gist
from acker_client.source.engine.environment import BatchFrame
from acker_client.source.errors import SourceError
from acker_client.source.records.in_flight import Failures
from acker_client.source.records.tracker import EmissionRange

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(slots=True, repr=False)
class Batch:
    """A batch of records. ``df``: its rows, with their anchors; ``records``: how many records it has; ``replays``: how
    many of them have been emitted before; ``number``: from 1 up within a run.

    It is settled when the loop over the batches comes back for the next one. A loop that is left in any other way
    (``break``, ``return``, an exception) abandons it, unless :meth:`done` was called. As a context manager it is done
    when its block ends, and abandoned when an exception leaves the block, also one that is caught further out.

    ``id``: ``NAME-SESSION-NUMBER``, never another batch's, whatever restarts. SESSION is random, 16 hexadecimal digits,
    new in each run. NAME is the source's, with ``_`` for what is no letter, digit, ``_`` or ``.`` of ASCII. Records
    that are replayed are in a batch of another id.
    """

    number: int
    id: str
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
    # What takes its output back should it be abandoned; None: a record of it may be acked before it is settled.
    undo: list[Callable[[], object]] | None = None
    # What it has written where, by places: the same rows may be written there again.
    written: dict[str, object] = field(default_factory=dict)

    @property
    def df(self) -> DataFrame:
        """Its rows, as a tracked frame."""
        df: DataFrame = self.frame.df
        return df

    def done(self) -> None:
        """Its work is complete, by your word: what its sinks and ``ack()`` columns did up to now has delivered their
        rows, also where nobody can prove it (a writer that may stop early, a write that failed and was replaced by
        another). It is settled as *done*, also where the loop is left before it comes back. The word does not cover a
        sink that raised, rows that no sink took, or what runs or fails after it.
        """
        self.is_done = True
        self.frame.evidence.vouch()

    def on_abandon(self, step: Callable[[], object]) -> None:
        """Call ``step`` should the batch be abandoned, before its records are replayed: it takes output back.

        None of its records is ACKED then. A process that is killed calls nothing, and nothing is called where a sink
        took rows of another batch, too, or the source tries nothing again (``guarantee``). Raises ``SourceError`` where
        the source has ``held=False``, as its records may be ACKED by then.
        """
        if self.undo is None:
            raise SourceError("on_abandon: the source has held=False, so records of an abandoned batch may be ACKED")
        self.undo.append(step)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None:
            # That the block has ended is no word on what its sinks have done.
            self.is_done = True
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
