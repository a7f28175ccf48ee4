"""Probes: whether a server is live, and whether it is ready for calls.

Decides when a server is stuck, and why it should get no calls now. The HTTP pages and the gRPC health service ask this
module. Never stops a server.
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus

from acker_service.http.server import Page, text
from acker_service.namespaces import Namespaces
from acker_service.process.ticker import Ticker
from acker_service.process.workers import Workers

# If no tick came for this time, the server is stuck.
STUCK_S = 10.0
# A server is not ready if the shard's lock is not free within ANSWER_S, or if a call has waited WAITED_S for a thread.
# Probes time out after a second.
ANSWER_S = 0.75
WAITED_S = 5.0


class Probes:
    """The probes of one server. ``is_serving``: set by the server when it starts and stops."""

    def __init__(self, namespaces: Namespaces, workers: Sequence[Workers], ticker: Ticker) -> None:
        self._namespaces, self._workers, self._ticker = namespaces, workers, ticker
        self.is_serving = False

    def not_ready_reason(self) -> str:
        """Return why this server should get no calls now, or "". Waits up to ANSWER_S for the shard's lock."""
        if not self.is_serving:
            return "stopping"
        if self._namespaces.is_draining:
            return "draining"
        if not self._namespaces.answers(ANSWER_S):
            return f"the shard did not answer within {ANSWER_S} s"
        waited_s = max(workers.waited_s for workers in self._workers)
        return f"a call has waited for a thread for {waited_s:.1f} s" if waited_s > WAITED_S else ""

    def livez(self) -> Page:
        # A stopping server has no ticks, and writing a large state may take long.
        silent_s = self._ticker.silent_s if self.is_serving else 0.0
        if silent_s > STUCK_S:
            return text(HTTPStatus.SERVICE_UNAVAILABLE, f"stuck: no tick for {silent_s:.1f} s")
        return text(HTTPStatus.OK, "ok")

    def readyz(self) -> Page:
        trouble = self.not_ready_reason()
        return text(HTTPStatus.SERVICE_UNAVAILABLE, trouble) if trouble else text(HTTPStatus.OK, "ok")
