"""Topic logs: what the driver knows of each partition, and how a plan is shared among partitions.

Pure, apart from its log lines.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from acker_client.source.kafka.names import At
from acker_client.source.kafka.slices import KafkaPart
from acker_client.source.records.ranges import Ranges

log = logging.getLogger("acker_client.source.kafka")

# A partition with a rate may catch up on this much time in which it was not read, and on a second if it had nothing.
CATCH_UP_S, IDLE_S = 60.0, 1.0


class Allowance:
    """The records of one partition that may be planned, at most ``records_per_s`` on average.

    ``available`` adds the records for the time since its last call, for ``CATCH_UP_S`` at most. It keeps unused records
    from before that call, but no more than come in ``IDLE_S``.
    """

    __slots__ = ("_at_s", "_rate", "_saved")

    def __init__(self, records_per_s: float, now_s: float) -> None:
        self._rate, self._at_s = records_per_s, now_s
        self._saved = self._kept

    def available(self, now_s: float) -> int:
        """Return how many records may be planned now."""
        earned = self._rate * min(CATCH_UP_S, max(0.0, now_s - self._at_s))
        self._saved, self._at_s = min(self._saved, self._kept) + earned, now_s
        return int(self._saved)

    def spend(self, records: int) -> None:
        """Note that ``records`` were planned."""
        self._saved -= records

    @property
    def _kept(self) -> float:
        return max(1.0, self._rate * IDLE_S)


@dataclass(slots=True)
class TopicLog:
    """One partition in the driver.

    ``next``: the next offset to plan. ``end``: the end of the log by the last answer. ``stop``: the offset at which
    this source ends, if it ends. ``done``: includes all offsets below the one at which this run began. ``committed``:
    the offset that the group has committed; None if this input does not commit. ``allowance``: None without a rate.
    ``short_since_s``: since when the log has ended before ``next``. ``missing_since_s``: since when its topic has not
    been listed. ``is_away``: no broker has given its end in the last answer; nothing of it is planned then.
    """

    next: int
    end: int
    stop: int | None = None
    done: Ranges = field(default_factory=Ranges)
    committed: int | None = None
    allowance: Allowance | None = None
    short_since_s: float | None = None
    missing_since_s: float | None = None
    is_away: bool = False

    @property
    def backlog(self) -> int:
        if self.missing_since_s is not None or self.is_away:
            return 0
        return max(0, (self.end if self.stop is None else min(self.stop, self.end)) - self.next)

    @property
    def is_over(self) -> bool:
        return self.stop is not None and self.next >= self.stop

    def parts(self, at: At, share: int, length_max: int) -> list[KafkaPart]:
        """Plan the next ``share`` offsets, in parts of at most ``length_max``."""
        start, self.next = self.next, self.next + share
        return [
            KafkaPart(at.topic, at.number, first, min(first + length_max, self.next))
            for first in range(start, self.next, length_max)
        ]


def shared_out(backlogs: Sequence[int], records_max: int) -> list[int]:
    """Return how many records of each partition come next, at most ``records_max`` in total.

    All partitions with enough records get the same share. The remainder of the division goes to the first ones.
    """
    level, left, deeper = 0, records_max, sorted(backlog for backlog in backlogs if backlog > 0)
    while deeper and left >= len(deeper):
        step = min(deeper[0] - level, left // len(deeper))
        level, left = level + step, left - step * len(deeper)
        deeper = [backlog for backlog in deeper if backlog > level]
    shares = [min(backlog, level) for backlog in backlogs]
    for index, backlog in enumerate(backlogs):
        more = min(left, 1, backlog - shares[index])
        shares[index], left = shares[index] + more, left - more
    return shares


def log_skipped(at: At, done: Ranges, first: int, low: int) -> None:
    """Log the records that were deleted before they were done. ``low``: where the log begins now."""
    bounds = zip(done.starts.tolist(), done.stops.tolist(), strict=True)
    lost = low - first - sum(max(0, min(stop, low) - max(start, first)) for start, stop in bounds)
    if first < low and lost > 0:
        log.error(
            "LOST: up to %d records of %s, between offsets %d and %d, were deleted (retention, or delete_records)"
            " before they were done",
            lost,
            at.name,
            first,
            low,
        )
