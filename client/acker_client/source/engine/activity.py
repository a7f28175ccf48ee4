"""Activity: what a run does now. The run notes it, and any thread may ask."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from acker_client.source.records.in_flight import InFlight
from acker_client.source.records.progress import NOT_STARTED, Progress
from acker_client.source.records.summary import Summary


@dataclass(frozen=True, slots=True)
class _Now:
    doing: str = NOT_STARTED
    since_s: float = 0.0
    until_s: float | None = None
    batch: int = 0
    records: int = 0
    attempt: int = 0


class Activity:
    """Knows the current work of one run. ``clock`` is the run's clock."""

    def __init__(self, name: str, clock: Callable[[], float]) -> None:
        self._name = name
        self._clock = clock
        # Replaced as a whole, so that another thread never sees half of a change.
        self._now = _Now(since_s=clock())

    def begin(self, doing: str, until_s: float | None = None) -> None:
        """Note what the run does from now on; ``until_s``: until this time, if that is known."""
        since_s = self._now.since_s if doing == self._now.doing else self._clock()
        self._now = replace(self._now, doing=doing, since_s=since_s, until_s=until_s)

    def open_batch(self, doing: str, number: int, records: int, attempt: int) -> None:
        """Note the batch that the run is about to open."""
        self._now = _Now(doing, self._clock(), None, number, records, attempt)

    def progress(self, in_flight: InFlight, elapsed_s: float) -> Progress:
        """Return what the run has done in ``elapsed_s``, and does now."""
        now, time_s = self._now, self._clock()
        return Progress.of(
            Summary.of(self._name, in_flight.counts, elapsed_s=elapsed_s, checkpoint=""),
            retrying=in_flight.schedule.waiting,
            doing=now.doing,
            doing_s=time_s - now.since_s,
            left_s=None if now.until_s is None else max(0.0, now.until_s - time_s),
            batch=now.batch,
            batch_records=now.records,
            batch_attempt=now.attempt,
        )
