"""Tally: the numbers of a run, each defined once. Counts; prints nothing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Tally:
    """``records``: lines of the input. ``emitted``: emissions of records, replays included. ``acked``: records whose
    final answer was ACKED. ``failed``, ``timed_out``, ``interrupted``: outcomes FAILED, TIMED_OUT and LOST (an
    abandoned batch, a server that came back without its state); a record may have several before it is acked.
    ``replayed``: emissions beyond a record's first. ``dead_lettered``: records that were given up, each a line in the
    dead letters. ``seconds``: from the first batch to the last answer."""

    records: int = 0
    emitted: int = 0
    acked: int = 0
    failed: int = 0
    timed_out: int = 0
    interrupted: int = 0
    replayed: int = 0
    dead_lettered: int = 0
    seconds: float = 0.0

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
