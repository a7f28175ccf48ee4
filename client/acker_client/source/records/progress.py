"""Progress: what a source does at one moment, for bars, log lines and programs. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from acker_client.source.records.summary import Summary

NOT_STARTED = "not started"
PLANNING = "planning a batch"
OPENING = "waiting for room at the servers"
WORKING = "working"
SETTLING = "settling"
OUTCOMES = "waiting for outcomes"
UNTAKEN = "waiting until outcomes are taken"
NEW_RECORDS = "waiting for new records"
RETRY = "waiting for a retry"
ENDED = "ended"


def counted(count: int, one: str, many: str = "") -> str:
    """Return a count and what is counted, such as "1 record" and "2,000 records"."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a source. It has read ``records`` records. ``failed`` counts attempts: FAILED, TIMED_OUT or
    LOST. The other numbers of records are as in ``Summary``. ``retrying``: records that wait for their retry.

    ``doing``: in words; ``doing_s``: for how long; ``left_s``: how much longer, if that is known. ``batch``: the number
    of the latest batch, 0 before the first; ``batch_records``: its size; ``batch_attempt``: 1 + the number of batches
    in a row that failed as a whole with its records.
    """

    name: str
    records: int
    acked: int
    dead_lettered: int
    failed: int
    open: int
    elapsed_s: float
    records_per_s: float
    retrying: int = 0
    doing: str = NOT_STARTED
    doing_s: float = 0.0
    left_s: float | None = None
    batch: int = 0
    batch_records: int = 0
    batch_attempt: int = 0

    @classmethod
    def of(cls, summary: Summary, **now: Any) -> Self:
        """Return the progress of ``summary``. ``now``: fields that a summary does not have."""
        numbers = {name: getattr(summary, name) for name in ("name", "records", "acked", "dead_lettered")}
        failed = summary.failed + summary.timed_out + summary.lost
        # Counts are read while they change: more may have ended than had been read a moment before.
        left = max(0, summary.open)
        rate = summary.records_per_s
        return cls(**numbers, failed=failed, open=left, elapsed_s=summary.elapsed_s, records_per_s=rate, **now)

    @property
    def done(self) -> int:
        """The number of records that are not open any more, absent and dropped records included."""
        return self.records - self.open

    @property
    def is_idle(self) -> bool:
        """Whether nothing is worked on."""
        return self.doing in (NOT_STARTED, NEW_RECORDS, ENDED)

    def line(self, records_per_s: float) -> str:
        """Return all of it on one line. ``records_per_s``: the rate to show."""
        failed = f", {self.failed:,} failed attempts" if self.failed else ""
        dead = f", {self.dead_lettered:,} dead letters" if self.dead_lettered else ""
        return (
            f"{self.records:,} read, {self.acked:,} acked{dead}{failed}, {records_per_s:,.0f} records/s, {self._now()}"
        )

    def _now(self) -> str:
        if self.doing in (WORKING, SETTLING, OPENING) and self.batch:
            attempt = f", attempt {self.batch_attempt}" if self.batch_attempt > 1 else ""
            records = counted(self.batch_records, "record")
            return f"batch {self.batch} ({records}{attempt}): {self.doing} for {self.doing_s:.0f} s"
        batches = counted(self.batch, "batch", "batches")
        if self.left_s is None:
            return f"{batches}, {self.doing}"
        return f"{batches}, {self.doing} of {counted(self.retrying, 'record')} in {self.left_s:.0f} s"
