"""Batch size: how many records the next batch gets. Pure.

Derives the size from the time that the work on earlier batches took. A batch should be long enough to hide the fixed
cost of each batch in Spark and the driver, and short enough that a crash, a failure or the wait for outcomes costs
little.
"""

from __future__ import annotations

FIRST = 100_000
SMALLEST, LARGEST = 10_000, 500_000
# How long the work on a batch should take.
TARGET_S = 20.0
# A batch is at most this many times as large as the one before it, because its records may need more work.
GROWTH = 4


class BatchSize:
    """The size of a run's batches.

    ``fixed``: the user's own size, which never changes; None for an adaptive size. ``most``: upper limit of an adaptive
    size. ``timeout_s``: the time after which work on a batch is cancelled; None if it never is.
    """

    __slots__ = ("_is_fixed", "_most", "_target_s", "records")

    def __init__(self, fixed: int | None, most: int, timeout_s: float | None = None) -> None:
        self._is_fixed = fixed is not None
        self._most = min(most, LARGEST)
        self._target_s = TARGET_S if timeout_s is None else min(TARGET_S, timeout_s / 4)
        self.records = min(FIRST, self._most) if fixed is None else fixed

    def note_work(self, records: int, seconds: float, *, has_timed_out: bool = False) -> None:
        """Note that the work on a batch of ``records`` took ``seconds``, and succeeded unless it ``has_timed_out``."""
        if self._is_fixed:
            return
        fitting = records * self._target_s / seconds if seconds > 0 else float("inf")
        if seconds > self._target_s:
            least = 1 if has_timed_out else SMALLEST
            self.records = min(self.records, max(least, int(fitting)))
        elif records >= self.records:
            # A batch that is not full does not predict a larger one: most of its time is the fixed cost of a batch.
            self.records = int(min(self._most, GROWTH * records, fitting))
