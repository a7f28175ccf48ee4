"""Batch: the user's handle of a batch, with the state that the source keeps until the batch is settled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Self

from acker_client.error_text import shorten
from acker_client.source.engine.environment import BatchFrame, Evidence
from acker_client.source.errors import SourceError
from acker_client.source.records.in_flight import Failures
from acker_client.source.records.tracker import EmissionRange
from acker_protocol.messages import Verdict

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(slots=True, repr=False, eq=False)
class Batch:
    """A batch of records. ``df``: its rows, with their anchors; ``records``: number of records; ``replays``: number of
    records that were emitted before; ``number``: from 1 up within a run.

    The batch is settled when the loop over the batches asks for the next one. Leaving the loop in any other way
    (``break``, ``return``, an exception) abandons it, unless :meth:`done` was called. As a context manager it is done
    when its block ends. It is abandoned when an exception leaves the block, even one that is caught further out.

    ``id``: ``NAME-SESSION-NUMBER``, unique across restarts. NAME is the source's name, with ``_`` for every character
    but ASCII letters, digits, ``_`` and ``.``. SESSION is random, 16 hexadecimal digits, new in each run. Replayed
    records are in a batch with another id.
    """

    number: int
    id: str
    records: int
    replays: int
    emitted: EmissionRange
    # How many batches in a row failed with these records. Above 0, they are not mixed with other records.
    depth: int = 0
    # A server has lost the batch, or its own state, which may be why the work failed.
    is_lost: bool = False
    # The user has said that the work is complete.
    is_done: bool = False
    # The run has found out whether the work is done.
    is_judged: bool = False
    # Exception of a sink or of the job.
    error: BaseException | None = None
    # The timeout that ran out before the batch was settled; None if it has not run out. Set by another thread.
    timed_out_after_s: float | None = None
    # The reason why records may be unfinished through no fault of their own; "" if there is none.
    unfinished_because: str = ""
    # Records that are LOST because the batch failed, to be replayed in batches of their own.
    broken: list[Failures] = field(default_factory=list)
    # Steps that remove the batch's output if the batch is abandoned. None: records may be ACKED before the settlement.
    undo: list[Callable[[], object]] | None = None
    # The rows written to each place: the same rows may be written there again.
    written: dict[str, object] = field(default_factory=dict)
    # When the work began, by the run's clock, and how long it took.
    began_s: float = 0.0
    worked_s: float = 0.0
    # With ``concurrency``, the batches of one lane are worked on one after the other.
    lane: int = 0
    # None until the work begins.
    frame: BatchFrame | None = None

    @property
    def df(self) -> DataFrame:
        """The batch's rows, as a tracked frame."""
        assert self.frame is not None, "the work on this batch has not begun"
        df: DataFrame = self.frame.df
        return df

    @property
    def evidence(self) -> Evidence | None:
        """What Spark's driver knows about the work; None if the work has not begun."""
        return None if self.frame is None else self.frame.evidence

    def done(self) -> None:
        """Declare the work complete: the batch's sinks and ``ack()`` columns have delivered their rows. Use it where
        Spark gives no evidence (a writer that may stop early, a failed write that another one replaced). The batch is
        settled as *done*, even if the loop is left. This does not cover a sink that raised, rows that no sink took, or
        anything that runs afterwards.
        """
        self.is_done = True
        if self.evidence is not None:
            self.evidence.vouch()

    def on_abandon(self, step: Callable[[], object]) -> None:
        """Register a ``step`` that removes the batch's output. It is called if the batch is abandoned, before the
        records are replayed.

        None of the batch's records is ACKED then. The step is not called if the process is killed, if the batch shared
        a sink with rows of another batch, or if the source never retries (``guarantee``). Raises ``SourceError`` in a
        source with ``held=False``, because records may be ACKED before their batch is abandoned.
        """
        if self.undo is None:
            raise SourceError("on_abandon: the source has held=False, so records of an abandoned batch may be ACKED")
        self.undo.append(step)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None:
            # No `evidence.vouch`: the end of the block is no evidence that the sinks have delivered their rows.
            self.is_done = True
        else:
            # Do not keep the exception itself: its traceback refers to the loop's generator, which would then not be
            # closed when the loop is left.
            self.error = SourceError(f"the block of the batch raised {shorten(error)}")

    def __repr__(self) -> str:
        state = "lost" if self.is_lost else "broken" if self.error is not None else "done" if self.is_done else "open"
        return f"<Batch {self.number}: {self.records} records, {self.replays} of them replays, {state}>"

    @property
    def is_broken(self) -> bool:
        """Whether the batch failed as a whole for another reason than a lost server."""
        return self.error is not None and not self.is_lost

    @property
    def has_timed_out(self) -> bool:
        """Whether the batch failed after its timeout. Work that was done all the same counts as done."""
        return self.is_broken and self.timed_out_after_s is not None

    @property
    def broken_as(self) -> Verdict | None:
        """The verdict of each record without an outcome, if the batch failed as a whole; else None."""
        if not self.is_broken:
            return None
        return Verdict.TIMED_OUT if self.has_timed_out else Verdict.LOST
