"""Batch size: how many records the next batch gets. Pure.

Decides from the time that the work on earlier batches took. A batch should be long enough to hide what Spark and the
driver do for each one, and short enough that a crash, a failure or the wait for outcomes costs little.
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

    ``fixed``: the user's own size, which never changes; None for a size that adapts. ``most``: its upper limit then.
    ``timeout_s``: the time after which work on a batch is cancelled, if there is one.
    """

    __slots__ = ("_is_fixed", "_most", "_target_s", "records")

    def __init__(self, fixed: int | None, most: int, timeout_s: float | None = None) -> None:
        self._is_fixed = fixed is not None
        self._most = min(most, LARGEST)
        self._target_s = TARGET_S if timeout_s is None else min(TARGET_S, timeout_s / 4)
        self.records = min(FIRST, self._most) if fixed is None else fixed

    def note_work(self, records: int, seconds: float) -> None:
        """Note that the work on a batch of ``records`` has taken ``seconds``, and succeeded."""
        if self._is_fixed:
            return
        fitting = records * self._target_s / seconds if seconds > 0 else float("inf")
        if seconds > self._target_s:
            self.records = min(self._most, max(SMALLEST, int(fitting)))
        elif records >= self.records:
            # A batch that is not full does not predict a larger one: most of its time is the fixed cost of a batch.
            self.records = int(min(self._most, GROWTH * records, fitting))
