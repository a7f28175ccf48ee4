"""Silence: how long the acker has not answered, and when that is worth a line in the log. Pure: time comes in.

Decides that a wait of more than a second is logged, with the server's address, and how often.
"""

from __future__ import annotations

# From here on a wait is one that somebody notices.
NOTICED_S = 1.0
# After so long without a try nobody knows of a silence any more: what is tried next begins anew.
IDLE_S = 30.0
# At most one line of waiting in so long, however often the server comes and goes.
AGAIN_S = 30.0


class Silence:
    """Of one process. Threads may share it: at worst a line comes twice. Times are monotonic seconds."""

    __slots__ = ("_address", "_heard_at", "_is_reported", "_reported_at", "_since", "_until")

    def __init__(self, address: str) -> None:
        self._address = address
        self._since: float | None = None
        self._until = self._heard_at = float("-inf")
        self._is_reported = False
        self._reported_at = float("-inf")

    @property
    def since(self) -> float | None:
        """When the first try began that was not answered, with none answered after it; None: the last one was."""
        return self._since

    @property
    def heard_at(self) -> float:
        """When a try was last answered; minus infinity: none was."""
        return self._heard_at

    def lasts_s(self, now: float) -> float:
        """For how long nobody has answered; 0: the last try was answered, or nobody has tried for a while."""
        return 0.0 if self._since is None or now - self._until > IDLE_S else now - self._since

    def shown_s(self, now: float, begun_at: float) -> float:
        """Of that time, how much tries have shown, from ``begun_at`` on and up to the end of the last: who was not
        asked since may be back, and who was started then was not there before."""
        if self._since is None or not self.lasts_s(now):
            return 0.0
        return max(0.0, self._until - max(self._since, begun_at))

    def unanswered(self, asked_at: float, now: float, why: object) -> str | None:
        """A try that began at ``asked_at`` was not answered; what to log of it, if anything."""
        is_new = self._since is None or asked_at - self._until > IDLE_S
        # A call that waits long may end after others that were answered meanwhile.
        begun_at = max(asked_at, self._heard_at)
        self._since = since = begun_at if is_new or self._since is None else self._since
        self._until = now
        if now - since < NOTICED_S or now - self._reported_at < AGAIN_S:
            return None
        self._is_reported, self._reported_at = True, now
        return f"waiting for the acker at {self._address}: no answer for {_seconds(now - since)} ({why})"

    def answered(self, now: float) -> str | None:
        """A try was answered; what to log of it, if anything."""
        since, self._since = self._since, None
        self._heard_at = now
        if since is None or not self._is_reported:
            return None
        self._is_reported = False
        return f"the acker at {self._address} answers again, after {_seconds(now - since)}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f} s"
