"""Silence: how long a server has not answered, and when to log it. Pure: the caller passes the time.

Decides after how long and how often a wait is logged.
"""

from __future__ import annotations

# A shorter wait is not logged.
NOTICED_S = 1.0
# If no try was made for this long, nobody knows whether the server was silent. The next try then starts a new silence.
IDLE_S = 30.0
# Minimum time between two lines about waiting, however often the server comes and goes.
AGAIN_S = 30.0


class Silence:
    """The silence of one server. Threads may share it: at worst a line is logged twice. Times are monotonic seconds."""

    __slots__ = ("_address", "_heard_at", "_is_reported", "_reported_at", "_since", "_until")

    def __init__(self, address: str) -> None:
        self._address = address
        self._since: float | None = None
        self._until = self._heard_at = float("-inf")
        self._is_reported = False
        self._reported_at = float("-inf")

    @property
    def since(self) -> float | None:
        """Start of the first unanswered try after the last answer; None if the last try was answered."""
        return self._since

    @property
    def heard_at(self) -> float:
        """When a try was last answered; minus infinity if never."""
        return self._heard_at

    def lasts_s(self, now: float) -> float:
        """How long the server has not answered; 0 if it answered the last try, or none was made for IDLE_S."""
        return 0.0 if self._since is None or now - self._until > IDLE_S else now - self._since

    def shown_s(self, now: float, begun_at: float) -> float:
        """Return the part of ``lasts_s`` that tries have proven. It begins at ``begun_at`` at the earliest, because the
        server may not have run before. It ends with the last try, because the server may be back since."""
        if self._since is None or not self.lasts_s(now):
            return 0.0
        return max(0.0, self._until - max(self._since, begun_at))

    def unanswered(self, asked_at: float, now: float, why: object) -> str | None:
        """Note a try without an answer, which began at ``asked_at``. Return the line to log, or None."""
        is_new = self._since is None or asked_at - self._until > IDLE_S
        # A long call may end after later calls were answered.
        begun_at = max(asked_at, self._heard_at)
        self._since = since = begun_at if is_new or self._since is None else self._since
        self._until = now
        if now - since < NOTICED_S or now - self._reported_at < AGAIN_S:
            return None
        self._is_reported, self._reported_at = True, now
        return f"waiting for the acker at {self._address}: no answer for {_seconds(now - since)} ({why})"

    def answered(self, now: float) -> str | None:
        """Note an answered try. Return the line to log, or None."""
        since, self._since = self._since, None
        self._heard_at = now
        if since is None or not self._is_reported:
            return None
        self._is_reported = False
        return f"the acker at {self._address} answers again, after {_seconds(now - since)}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f} s"
