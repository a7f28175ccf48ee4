"""Running time: a clock that stands still while its process does. Pure.

Decides what counts as a pause: two readings of the clock PAUSE_S or more apart, where ticks come every 50 ms. A paused
process cannot have heard from anybody, so leases, deadlines and memories must not run out by the pause; and what its
callers sent meanwhile waits in its sockets, so time goes on only when they have had RESUME_S to be served.

A process whose every tick is late is not paused but slow, and its timeouts still have to come: only a pause after at
least RUN_S of running time is excused as a whole. Of any other gap PAUSE_S counts at most.
"""

from __future__ import annotations

# Ticks are planned every 50 ms; on a machine that is merely busy they come some hundreds of ms apart.
PAUSE_S = 1.0
RESUME_S = 2.0
RUN_S = 10.0


class RunningTime:
    """Seconds, of which ``paused`` were taken out. To be asked often, under one lock, also when nothing happens."""

    def __init__(self, now: float) -> None:
        self._last = now
        # What has run since the last pause, and what is left of the time after it in which the sockets are served.
        self._ran = RUN_S
        self._grace = 0.0
        self.paused = 0.0
        self.pauses = 0

    def at(self, now: float) -> float:
        """Running time at ``now``, in seconds of the same clock as ``now``; never goes back."""
        elapsed = max(0.0, now - self._last)
        self._last += elapsed
        counted = self._counted(elapsed)
        self._ran += counted
        self.paused += elapsed - counted
        return self._last - self.paused

    def _counted(self, elapsed: float) -> float:
        if elapsed >= PAUSE_S and self._ran >= RUN_S:
            self.pauses += 1
            self._ran, self._grace = 0.0, RESUME_S
            return 0.0
        step = min(elapsed, PAUSE_S)
        spent = min(step, self._grace)
        self._grace -= spent
        return step - spent
