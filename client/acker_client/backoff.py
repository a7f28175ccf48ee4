"""Backoff: when to try again, and when to stop. Pure: clock, sleep and randomness are arguments.

Decides the waits (exponential, full jitter, a cap that cannot overflow) and keeps the one budget that all tries share.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Clock = Callable[[], float]
Random = Callable[[], float]
Sleep = Callable[[float], None]

# 2.0 ** 64 is far beyond any cap and far from overflow, so a retry that goes on for days still gets its cap.
_DOUBLINGS_MAX = 64


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits of ``random() * min(cap_s, first_s * 2**attempt)`` s: full jitter, so that clients do not retry in step."""

    first_s: float = 0.05
    cap_s: float = 2.0

    def wait_s(self, attempt: int, random: Random) -> float:
        """Return the seconds to wait after the ``attempt``-th failure in a row, counted from 0."""
        return random() * min(self.cap_s, self.first_s * 2.0 ** min(attempt, _DOUBLINGS_MAX))


class Deadline:
    """One budget for everything that a call does: tries, waits, handshakes. ``clock`` gives seconds, monotonic."""

    __slots__ = ("_clock", "_end", "budget_s")

    def __init__(self, budget_s: float, clock: Clock) -> None:
        self._clock = clock
        self._end = clock() + budget_s
        self.budget_s = budget_s

    @property
    def left_s(self) -> float:
        """Seconds left; 0 when the budget is spent."""
        return max(0.0, self._end - self._clock())

    def expire(self) -> None:
        """Spend the rest of the budget now, so that calls with this deadline give up."""
        self._end = self._clock()


class Patience:
    """The waits of one operation within its deadline. Progress makes the next wait short again."""

    __slots__ = ("_backoff", "_failures", "_random", "_sleep", "deadline", "tries")

    def __init__(self, deadline: Deadline, sleep: Sleep, random: Random, backoff: Backoff = Backoff()) -> None:
        self.deadline = deadline
        self.tries = 1
        self._failures = 0
        self._sleep = sleep
        self._random = random
        self._backoff = backoff

    def wait(self, at_least_s: float = 0.0) -> bool:
        """Wait before the next try. Return False, without waiting, if the budget would be spent by then."""
        wait_s = max(at_least_s, self._backoff.wait_s(self._failures, self._random))
        if wait_s >= self.deadline.left_s:
            return False
        self._sleep(wait_s)
        self._failures += 1
        self.tries += 1
        return True

    def progressed(self) -> None:
        """Note an answer: the next failure counts as the first in a row."""
        self._failures = 0
