"""Running time: a clock that stops while its process is paused. Pure.

Decides what counts as a pause: two readings of the clock PAUSE_S or more apart, although ticks come every 50 ms. A
paused process receives nothing, so a pause must not use up leases, deadlines or retention times. After a pause, the
messages that callers sent meanwhile still wait in the sockets. The clock stops for RESUME_S more, to serve them.

If every tick is late, the process is slow but not paused, and its timeouts must still expire. So a gap counts as no
time only if at least RUN_S of running time came before it. Any other gap counts as at most PAUSE_S.
"""

from __future__ import annotations

# Ticks are planned every 50 ms. On a busy machine they come some hundreds of ms apart.
PAUSE_S = 1.0
RESUME_S = 2.0
RUN_S = 10.0


class RunningTime:
    """Converts clock readings to running time. ``paused`` is the total time left out, in seconds.

    Call :meth:`at` often and under one lock, even when nothing happens, as a long gap looks like a pause.
    """

    def __init__(self, now: float) -> None:
        self._last = now
        # Running time since the last pause, and the rest of the RESUME_S after it.
        self._ran = RUN_S
        self._grace = 0.0
        self.paused = 0.0
        self.pauses = 0

    def at(self, now: float) -> float:
        """Return the running time at ``now``, in seconds; it never goes back."""
        elapsed = max(0.0, now - self._last)
        self._last += elapsed
        counted = self._running_part(elapsed)
        self._ran += counted
        self.paused += elapsed - counted
        return self._last - self.paused

    def _running_part(self, elapsed: float) -> float:
        if elapsed >= PAUSE_S and self._ran >= RUN_S:
            self.pauses += 1
            self._ran, self._grace = 0.0, RESUME_S
            return 0.0
        step = min(elapsed, PAUSE_S)
        spent = min(step, self._grace)
        self._grace -= spent
        return step - spent
