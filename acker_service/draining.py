"""Drain: a server that takes nothing new, and stops once its batches and sources have ended.

Decides when a drain is over. Refuses nothing itself: the shard refuses new batches and sources, and the registry lists
the server as draining.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from acker_protocol.messages import DrainReply
from acker_service.locked_shard import SharedShard
from acker_service.process.logs import Log
from acker_service.process.ticker import Ticker

# How often a draining server checks whether it has finished.
POLL_S = 0.1

log = Log("acker.server")


class Drain:
    """The drain of one server, which may last ``at_most_s``. ``on_drained`` is called once, in a thread that
    :meth:`stop` waits for."""

    def __init__(self, shared: SharedShard, at_most_s: float, on_drained: Callable[[], object]) -> None:
        self._shared, self._at_most_s, self._on_drained = shared, at_most_s, on_drained
        self._lock = threading.Lock()
        self._ticker = Ticker("acker-drain", self._check, POLL_S)
        self._until: float | None = None
        self.is_over = False

    def begin(self, announce: Callable[[], object]) -> DrainReply:
        """Take no new batches and no new sources from now on. The first call also calls ``announce``."""
        with self._lock:
            is_first = not self._shared.is_draining
            reply = self._shared.drain()
            if is_first:
                self._until = time.monotonic() + self._at_most_s
                announce()
                log.info("drain_began", left=reply.detail, drain_s=self._at_most_s)
                self._ticker.start()
        return reply

    def stop(self) -> None:
        self._ticker.stop()

    def _check(self) -> None:
        left = self._shared.left
        if self._until is None or (left and time.monotonic() < self._until):
            return
        self._until, self.is_over = None, True
        if left:
            log.warning("drained", left=left, drain_s=self._at_most_s)
        else:
            log.info("drained")
        self._on_drained()
