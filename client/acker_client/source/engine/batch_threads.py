"""Batch threads: call the user's function for several batches of a run at once, each in a thread of its own.

Decides that the thread of the run opens and settles all batches, one after the other. So the code for records, replays
and the checkpoint needs no locks. The thread of a batch only makes its frame, calls the user's function, and finds out
whether the work is done. If the run ends early, the Spark jobs of all batches are cancelled, and the batches are
abandoned once their threads have ended.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Self

from acker_client.clean_up import CleanUp
from acker_client.source.engine.batch import Batch
from acker_client.source.engine.outcomes import LOOK_S
from acker_client.source.engine.run import Run
from acker_client.source.engine.timeout import AGAIN_S, cancel_jobs
from acker_client.source.errors import SourceError

log = logging.getLogger("acker_client.source")


class BatchThreads:
    """Threads for up to ``concurrency`` batches of one run. A context manager; use it only in the run's own thread."""

    def __init__(self, run: Run, process: Callable[[Batch], object], concurrency: int) -> None:
        self._run = run
        self._process = process
        self._concurrency = concurrency
        # Batches that are neither settled nor abandoned, and the threads whose end was not taken from `_ended` yet.
        self._open: list[Batch] = []
        self._working: dict[Batch, threading.Thread] = {}
        # Batches whose thread has ended, each with the error that the thread raised outside the user's function.
        self._ended: queue.SimpleQueue[tuple[Batch, BaseException | None]] = queue.SimpleQueue()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._working:
            numbers = ", ".join(str(batch.number) for batch in self._working)
            log.warning(
                "the run ends early: the Spark jobs of batch %s are cancelled, and their threads are waited for",
                numbers,
            )
        while self._working:
            for batch in self._working:
                cancel_jobs(batch)
            self._next_ended(AGAIN_S)
        steps = CleanUp()
        for batch in reversed(self._open):
            steps.add(partial(self._run.abandon_batch, batch, "the run ended before the batch did"))
        steps.__exit__(kind, error, at)

    def advance(self) -> None:
        """Open batches up to ``concurrency``, and settle the next batch whose work ends. Waits for that at most
        ``LOOK_S``. Raises the error that ends the run."""
        while len(self._open) < self._concurrency and (batch := self._run.open_batch()) is not None:
            batch.lane = min(set(range(self._concurrency)).difference(each.lane for each in self._open))
            self._open.append(batch)
            # Must come after the thread has started: `__exit__` waits for every thread in `_working`.
            self._working[batch] = self._run.start_thread(partial(self._work, batch), f"acker-batch-{batch.number}")
        if self._open and (ended := self._next_ended(LOOK_S)) is not None:
            batch, error = ended
            if error is not None:
                raise error
            self._open.remove(batch)
            self._run.settle_judged(batch)

    def _next_ended(self, wait_s: float) -> tuple[Batch, BaseException | None] | None:
        """Wait for the next thread to end. Return its batch, and its error from outside the user's function."""
        try:
            batch, error = self._ended.get(timeout=wait_s)
        except queue.Empty:
            gone = [batch for batch, thread in self._working.items() if not thread.is_alive()]
            if not gone or not self._ended.empty():
                return None
            # PySpark's thread ends without a call of `_work` if the session was stopped before that.
            batch, error = (
                gone[0],
                SourceError(
                    f"the thread of batch {gone[0].number} ended before its work began: was the Spark session stopped?"
                    " Start again with a new one; nothing is lost"
                ),
            )
        self._working.pop(batch, None)
        return batch, error

    def _work(self, batch: Batch) -> None:
        try:
            self._run.make_frame(batch)
            try:
                self._process(batch)
            except Exception as error:  # noqa: BLE001  # the user's job may raise anything
                self._run.judge_work(batch, error)
            else:
                self._run.judge_work(batch)
        except BaseException as error:  # noqa: BLE001  # the thread of the run raises it
            self._ended.put((batch, error))
        else:
            self._ended.put((batch, None))
