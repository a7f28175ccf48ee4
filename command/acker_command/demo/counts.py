"""Counts: the numbers of a run, each defined once. Counts; prints nothing."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(slots=True)
class RunCounts:
    """``records``: lines of the input. ``emitted``: emissions of records, replays included. ``acked``: records whose
    final answer was ACKED. ``failed``, ``timed_out``, ``interrupted``: outcomes FAILED, TIMED_OUT and LOST (an
    abandoned batch, a server that came back without its state); a record may have several before it is acked.
    ``replayed``: emissions beyond a record's first. ``dead_lettered``: records that were given up, each a line in the
    dead letters. ``batches``: those that were handed out, replays included."""

    records: int = 0
    emitted: int = 0
    acked: int = 0
    failed: int = 0
    timed_out: int = 0
    interrupted: int = 0
    replayed: int = 0
    dead_lettered: int = 0
    batches: int = 0
    _started_s: float | None = None
    _stopped_s: float | None = None

    def start(self) -> None:
        """The first batch is about to begin."""
        self._started_s = time.monotonic()

    def stop(self) -> None:
        """The last answer is there."""
        self._stopped_s = time.monotonic()

    @property
    def seconds(self) -> float:
        """From start to stop, or until now."""
        if self._started_s is None:
            return 0.0
        return (time.monotonic() if self._stopped_s is None else self._stopped_s) - self._started_s

    @property
    def pending(self) -> int:
        """Emissions that have no outcome yet."""
        return self.emitted - self.acked - self.failed - self.timed_out - self.interrupted

    @property
    def answered(self) -> int:
        return self.acked + self.dead_lettered

    @property
    def records_per_s(self) -> float:
        return self.answered / self.seconds if self.seconds else 0.0
