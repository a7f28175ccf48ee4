"""ViewPace: how often a client asks for the view while some server gives it a reason to. Pure.

Decides the pauses. They have jitter, so that clients do not ask in step, and grow once the newest reason is old.
Does not decide whom to ask.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from acker_client.backoff import Clock, Random

# The shortest pause, without jitter.
VIEW_S = 0.5
# Pauses grow after this time. Reports wait for a server for seconds, so a server that is back has to be known soon.
STEADY_S = 60.0
# A pause is this part of the time since then. Jitter makes it up to half longer, so the client notices a lost server at
# most 3/16 of that time late.
SHARE = 1 / 8
# The longest pause, without jitter.
PAUSE_MAX_S = 5.0


class ViewPace:
    """Belongs to one process. Threads may share it: at worst two of them ask at once."""

    def __init__(self, clock: Clock, random: Random) -> None:
        self._clock, self._random = clock, random
        # When the view was last asked for, and how long to wait afterwards.
        self._asked_at = float("-inf")
        self._pause_s = 0.0
        # The reasons at the last look, and when the newest of them came.
        self._reasons: AbstractSet[str] = frozenset()
        self._since = clock()

    def is_due(self, reasons: AbstractSet[str]) -> bool:
        """Whether to ask now. ``reasons``: names of what may have changed; empty if nothing has."""
        if not reasons <= self._reasons:
            self._since = self._clock()
            self._pause_s = self._jittered(VIEW_S)
        self._reasons = reasons
        return bool(reasons) and self._clock() - self._asked_at >= self._pause_s

    def asked(self) -> None:
        """Note that the client asks now."""
        self._asked_at = self._clock()
        age_s = self._asked_at - self._since if self._reasons else 0.0
        self._pause_s = self._jittered(max(VIEW_S, min(PAUSE_MAX_S, (age_s - STEADY_S) * SHARE)))

    def ask_at_once(self) -> None:
        """Forget when the view was last asked for."""
        self._asked_at = float("-inf")

    def _jittered(self, pause_s: float) -> float:
        return pause_s * (0.5 + self._random())
