"""One shard: how far it is read, which records are held, and its mark in the checkpoint. Pure.

A position counts records in the order of reading, from the first record that was read. Sequence numbers have 56 digits,
with gaps, and are compared for equality only. Reading from a sequence number always returns the same records in the
same order. So a checkpoint needs only one sequence number to find all positions again, including those beyond holes.

Records age out of a shard from its beginning. If the record at which a restart would resume has aged out, the remaining
records are read as new ones, from the first unused position on.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa

from acker_client.source.errors import CheckpointError
from acker_client.source.kinesis.connection import LATEST, Begin, StreamIdentity
from acker_client.source.kinesis.rows import Held, RecordPart
from acker_client.source.records.input import Committed, Mark
from acker_client.source.records.ranges import Ranges

log = logging.getLogger("acker_client.source")

KEEP = "keep records longer (the stream's retention period), or run the source more often"
REMOVE = "give the source another checkpoint, or remove this one to begin anew"


@dataclass(frozen=True, slots=True)
class ShardMark:
    """A shard's mark in the checkpoint.

    ``at``: the sequence number of the first record that is not done, if that record was read. Otherwise ``after``: the
    sequence number of the last record that was read. ``end``: set once the shard was read to its end. The shard
    is over when all positions below ``end`` are done.

    After a restart, records of an earlier run may be done that this run has not read again yet. So the done prefix may
    end behind the last record that was read. Then ``at`` is that last record, and ``skip`` is the number of done
    records from ``at`` on, with ``at``.

    ``began``: when a source with "latest" first started. Shards that are not in the checkpoint begin there.
    """

    at: str | None = None
    after: str | None = None
    end: int | None = None
    skip: int = 0
    began: datetime | None = None

    @classmethod
    def of(cls, shard: str, mark: Mark, stream: StreamIdentity) -> ShardMark:
        """Parse a result of ``ShardReading.mark``. Raises ``CheckpointError`` for other content or another stream."""
        if not mark:
            return cls()
        try:
            arn, created_ms = str(mark["stream"]), int(mark["created_ms"])
            end = None if mark.get("end") is None else int(mark["end"])
            skip = int(mark.get("skip", 0))
            began_ms = mark.get("began_ms")
            began = None if began_ms is None else datetime.fromtimestamp(int(began_ms) / 1000, UTC)
        except (KeyError, OSError, OverflowError, TypeError, ValueError) as error:
            raise CheckpointError(f"the checkpoint does not say how far {shard} is done ({error!r})") from None
        if arn != stream.arn:
            raise CheckpointError(f"the checkpoint is of stream {arn}, not of {stream.arn}: {REMOVE}")
        if created_ms != stream.created_ms:
            raise CheckpointError(
                f"stream {arn} was deleted and created anew since the checkpoint was written: {REMOVE}; what the old"
                " stream held is gone"
            )
        return cls(mark.get("at"), mark.get("after"), end, skip, began)

    def begin_or(self, first: Begin) -> Begin:
        """Return where to read on; ``first`` if nothing was read yet."""
        if self.at is not None:
            return Begin.at(self.at)
        return first if self.after is None else Begin.after(self.after)


class ShardReading:
    """One shard that is being read. ``due_s``: when it may be read next. ``is_behind``: it has more records now."""

    def __init__(self, name: str, first: Begin, committed: Committed, mark: ShardMark) -> None:
        self.name = name
        self.done = committed.done
        # With "latest", position 0 belongs to no record: it stands for the point where reading began. Position 0 is
        # done immediately, so that the checkpoint contains the shard as soon as a record was read. A restart then
        # begins at the same point.
        if first == LATEST and not self.done.reach:
            self.done = Ranges.below(1)
        # No part begins below the committed prefix.
        self._first = self.done.prefix
        self.next = self._first - mark.skip
        self.iterator: str | None = None
        self.due_s = 0.0
        self.failures = 0
        self.is_behind = True
        self.is_caught_up = False
        self.is_drained = False
        # Whether the shard has ended in this run, and no plan has told of it.
        self.is_end_new = False
        self._mark = mark
        self._begin = mark.begin_or(first)
        self._last: str | None = None
        self._held: list[Held] = []
        if mark.end is not None and self.done.prefix >= mark.end:
            self.is_drained = True

    @property
    def begin(self) -> Begin:
        """The point where a new iterator must begin, to continue behind the last record that was read."""
        return self._begin if self._last is None else Begin.after(self._last)

    def begin_at(self, begin: Begin) -> None:
        """Change the starting point. Has no effect once a record was read."""
        self._begin = begin

    @property
    def has_begun(self) -> bool:
        """Whether any record of the shard was read in this run."""
        return self._last is not None

    @property
    def is_settled(self) -> bool:
        """Whether the shard was read to its end and all its records are done."""
        return self.is_drained and self.done.prefix >= self.next

    @property
    def bytes(self) -> int:
        """The size of the records that are held."""
        return sum(held.bytes for held in self._held)

    def number_rows(self, rows: pa.RecordBatch) -> list[RecordPart]:
        """Number ``rows``, the shard's next rows, and hold the open ones. Returns one part, or none."""
        if not rows.num_rows:
            return []
        if self._last is None:
            self._check_first(str(rows.column("sequence_number")[0]))
        self._last = str(rows.column("sequence_number")[-1])
        self.next += rows.num_rows
        start = max(self.next - rows.num_rows, min(self._first, self.next))
        rows = rows.slice(start - self.next + rows.num_rows)
        if not rows.num_rows:
            return []
        held = Held(np.arange(start, self.next, dtype=np.int64), rows)
        held.forget_done(self.done)
        if len(held.positions):
            self._held.append(held)
        return [RecordPart(self.name, start, self.next, held)]

    def note_end(self) -> None:
        """Note that the shard was read to its end."""
        if self.next < self.done.reach:
            self._skip_aged()
            self.done = Ranges.below(self.next)
        self.is_drained = self.is_end_new = True

    def age_out(self) -> None:
        """Note that the remaining records of the shard have aged out of the stream."""
        if self.next < self.done.reach or self._mark.at is not None or self.has_begun:
            log.error(
                "%s has aged out of the stream with records that were not done: they are lost; %s", self.name, KEEP
            )
        else:
            log.warning(
                "%s has aged out of the stream; all records that were read are done, but any records that were written"
                " to it later are lost; %s",
                self.name,
                KEEP,
            )
        if not self.has_begun:
            self.next = max(self.next, self.done.reach)
            self.done = Ranges.below(self.next)
        self.is_drained = self.is_end_new = True

    def advance(self, done: Ranges) -> None:
        self.done = done
        for held in self._held:
            held.forget_done(done)
        self._held = [held for held in self._held if len(held.positions)]

    def mark(self, done: Ranges, stream: StreamIdentity, began: datetime | None = None) -> Mark:
        mark: dict[str, Any] = {"stream": stream.arn, "created_ms": stream.created_ms}
        # Rounded down, so that no record falls between.
        mark |= {} if began is None else {"began_ms": math.floor(began.timestamp() * 1000)}
        at, after, skip = self._mark.at, self._mark.after, self._mark.skip
        if self._last is not None:
            skip = done.prefix - self.next + 1 if done.prefix > self.next else 0
            at, after = self._last if skip else self._sequence_number_at(done.prefix), self._last
        mark |= {"at": at} if at is not None else {"after": after}
        mark |= {"skip": skip} if skip else {}
        if self.is_drained:
            # If no record is held, those that are not done have aged out: a restart must not look for them again.
            mark["end"] = self.next if self._held else min(self.next, done.prefix)
        return mark

    def _check_first(self, sequence_number: str) -> None:
        """Check that the first record that was read is the record in the checkpoint's ``at``."""
        if self._mark.at is not None and sequence_number != self._mark.at:
            self._skip_aged()

    def _skip_aged(self) -> None:
        log.error(
            "%s: the record %s, at which the checkpoint resumes, has aged out of the stream before it was done; all"
            " records that aged out with it are lost; the remaining records are read, some of them a second time; %s",
            self.name,
            self._mark.at,
            KEEP,
        )
        self.next = max(self.next, self.done.reach)

    def _sequence_number_at(self, position: int) -> str | None:
        """Return the sequence number of the open record at ``position``; None if it was not read yet, or has aged out
        before."""
        if position >= self.next or not self._held:
            return None
        for held in self._held:
            if held.positions[0] <= position <= held.positions[-1]:
                return str(held.at(np.array([position], np.int64)).column("sequence_number")[0])
        raise LookupError(f"{self.name}: position {position} is not held")


def marks_of(committed: Mapping[str, Committed], stream: StreamIdentity) -> dict[str, ShardMark]:
    """Return the marks of a checkpoint by shard. Raises ``CheckpointError`` if one belongs to another stream."""
    return {shard: ShardMark.of(shard, each.mark, stream) for shard, each in committed.items()}
