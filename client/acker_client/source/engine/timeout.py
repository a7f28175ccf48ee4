"""Timeout: ends the work of a held batch that takes longer than ``message_timeout_s``.

Decides when the batch's Spark jobs are cancelled: at the timeout, and then every second until the work is judged,
because the program may catch the error and begin another job. Decides nothing about records: ``settling`` does, when
the cancelled work has returned. Code that hangs outside Spark's jobs cannot be ended. The log then names the batch,
and the line that its thread executes.
"""

from __future__ import annotations

import logging
import sys
import sysconfig
import threading
import traceback

from acker_client.error_text import shorten
from acker_client.source.engine.batch import Batch
from acker_client.source.engine.timer import Timer

log = logging.getLogger("acker_client.source")

# Time between two cancellations.
AGAIN_S = 1.0
# Number of cancellations per logged line: one line a minute.
CANCELLATIONS_A_LINE = 60

_LIBRARIES = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))


class BatchTimeout:
    """The timeout of one open batch. Create it in the thread that works on the batch."""

    def __init__(self, batch: Batch, timeout_s: float, timer: Timer) -> None:
        self._batch = batch
        self._timeout_s = timeout_s
        self._thread = threading.get_ident()
        # Seconds that do not count as work, because writes of this batch waited for writes of other batches.
        self._waited_s = 0.0
        self._cancellations = 0
        self.stop = timer(timeout_s, self._end_work)

    def _end_work(self) -> float:
        evidence = self._batch.evidence
        more_s = 0.0 if evidence is None else evidence.waited_s - self._waited_s
        if more_s > 0 and not self._cancellations:
            self._waited_s += more_s
            return more_s
        self._batch.timed_out_after_s = self._timeout_s
        if self._cancellations % CANCELLATIONS_A_LINE == 0:
            self._log()
        self._cancellations += 1
        cancel_jobs(self._batch)
        return AGAIN_S

    def _log(self) -> None:
        number, records = self._batch.number, self._batch.records
        if not self._cancellations:
            log.warning(
                "batch %d of %d records is not done after message_timeout_s=%g: its Spark jobs are cancelled",
                number,
                records,
                self._timeout_s,
            )
            return
        log.warning(
            "batch %d of %d records hangs, although its Spark jobs were cancelled %.0f s ago: code outside Spark's jobs"
            " cannot be ended; its thread is at %s",
            number,
            records,
            self._cancellations * AGAIN_S,
            self._place(),
        )

    def _place(self) -> str:
        """Return the innermost line of the batch's thread that is not in a library."""
        frame = sys._current_frames().get(self._thread)
        if frame is None:
            return "an unknown line, as it has ended"
        stack = traceback.extract_stack(frame)
        own = [each for each in stack if not each.filename.startswith(_LIBRARIES)]
        last = (own or stack)[-1]
        return f"{last.filename}:{last.lineno} in {last.name}"


def cancel_jobs(batch: Batch) -> None:
    """Cancel the Spark jobs that the work on a batch runs now. Any thread may call it, again and again."""
    try:
        if batch.evidence is not None:
            batch.evidence.cancel_jobs()
    except Exception as error:  # noqa: BLE001  # Spark may be stopping; the next call tries again
        log.warning("batch %d: its Spark jobs could not be cancelled: %s", batch.number, shorten(error))
