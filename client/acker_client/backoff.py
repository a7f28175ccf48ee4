"""Backoff: when to try again, and when to stop. Pure: clock and randomness come in.

Decides the waits (exponential, full jitter, a cap that cannot overflow) and keeps the one budget that all tries share.
Never sleeps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Clock = Callable[[], float]
Random = Callable[[], float]

# 2.0 ** 64 is far beyond any cap and far from overflow, so a retry that goes on for days still gets its cap.
_DOUBLINGS_MAX = 64


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits of ``random() * min(cap_s, first_s * 2 ** attempt)`` seconds: full jitter, so that clients do not march in step."""

    first_s: float = 0.05
    cap_s: float = 2.0

    def wait_s(self, attempt: int, random: Random) -> float:
        """Seconds to wait after the ``attempt``-th failure, counted from 0."""
        return random() * min(self.cap_s, self.first_s * 2.0 ** min(attempt, _DOUBLINGS_MAX))


class Deadline:
    """One budget for everything a call does: tries, waits, handshakes."""

    __slots__ = ("_clock", "_end", "budget_s")

    def __init__(self, budget_s: float, clock: Clock) -> None:
        self._clock = clock
        self._end = clock() + budget_s
        self.budget_s = budget_s

    @property
    def left_s(self) -> float:
        """Seconds left; 0 when it is spent."""
        return max(0.0, self._end - self._clock())

    def allows(self, wait_s: float) -> bool:
        """Whether there is time to wait so long and then still do something."""
        return self.left_s > wait_s
