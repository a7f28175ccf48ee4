"""Watcher: the thread that renews a source's lease and collects its outcomes while Spark works.

Decides nothing about outcomes: it hands over the result of each watch, in order.
"""

from __future__ import annotations

import logging
import queue
import threading
from typing import Protocol

from acker_client.client import AckerClient
from acker_client.cluster.watched import WatchResult
from acker_client.errors import AckerError, Closed
from acker_client.source.errors import SourceError

log = logging.getLogger("acker_client.source")

WAIT_S = 5.0
PAUSE_S = 1.0
# Number of errors in a row per logged line.
ERRORS_A_LINE = 30


class Watching(Protocol):
    """How a run gets its outcomes."""

    def next_result(self, timeout_s: float) -> WatchResult | None:
        """Return the result of the next watch, in order; None: there was none within ``timeout_s``."""
        ...

    def stop(self) -> None: ...


class Watcher:
    """Watches from a thread of its own until it is stopped."""

    def __init__(self, client: AckerClient) -> None:
        self._client = client
        self._brought: queue.SimpleQueue[WatchResult] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._errors = 0
        self._died_of: BaseException | None = None
        self._thread = threading.Thread(target=self._run_watches, name="acker-watcher", daemon=True)
        self._thread.start()

    def next_result(self, timeout_s: float) -> WatchResult | None:
        """See :class:`Watching`. Raises :class:`SourceError` when the thread has died."""
        if self._died_of is not None:
            raise SourceError(f"no outcomes arrive any more: {self._died_of!r}") from self._died_of
        try:
            return self._brought.get(timeout=timeout_s) if timeout_s > 0 else self._brought.get_nowait()
        except queue.Empty:
            return None

    def stop(self) -> None:
        """Stop, without waiting for a running poll, which ends when the client is closed."""
        self._stopped.set()

    def _run_watches(self) -> None:
        try:
            while not self._stopped.is_set():
                self._poll()
        except Closed:
            return
        except BaseException as error:
            self._died_of = error
            raise

    def _poll(self) -> None:
        try:
            watched = self._client.watch(WAIT_S)
        except Closed:
            raise
        except AckerError as error:
            self._errors += 1
            if not self._stopped.is_set():
                if self._errors % ERRORS_A_LINE == 1:
                    log.warning("watching for outcomes: %s; trying again", error)
                self._stopped.wait(PAUSE_S)
            return
        self._errors = 0
        if watched.says_something:
            self._brought.put(watched)
