"""Drain: a server that takes nothing new, and stops once its batches and sources have ended.

Decides when a drain is over. Refuses nothing itself: the shard refuses new batches and sources, and the registry lists
the server as draining.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from acker_protocol.messages import DrainReply
from acker_service.namespaces import Namespaces
from acker_service.process.logs import Log

log = Log("acker.server")


class Drain:
    """The drain of one server, which may last ``at_most_s``. Call :meth:`check` every few dozen milliseconds: it calls
    ``on_drained`` once."""

    def __init__(self, namespaces: Namespaces, at_most_s: float, on_drained: Callable[[], object]) -> None:
        self._namespaces, self._at_most_s, self._on_drained = namespaces, at_most_s, on_drained
        self._lock = threading.Lock()
        self._until: float | None = None

    def begin(self, announce: Callable[[], object]) -> DrainReply:
        """Take no new batches and no new sources from now on. The first call also calls ``announce``."""
        with self._lock:
            is_first = not self._namespaces.is_draining
            reply = self._namespaces.drain()
            if is_first:
                self._until = time.monotonic() + self._at_most_s
                announce()
                log.info("drain_began", left=reply.detail, drain_s=self._at_most_s)
        return reply

    def check(self) -> None:
        """Note the end of the drain if it is over."""
        if self._until is None or ((left := self._namespaces.left) and time.monotonic() < self._until):
            return
        self._until = None
        if left:
            log.warning("drained", left=left, drain_s=self._at_most_s)
        else:
            log.info("drained")
        self._on_drained()
