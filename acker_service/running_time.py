"""Running time: a clock that stands still while its process does. Pure.

Decides what counts as a pause: two looks at the clock that lie PAUSE_S or more apart, where ticks make them some dozen
milliseconds apart. A paused process cannot have heard from anybody, so leases, deadlines and memories must not run out
by the pause; and what its callers sent meanwhile waits in its sockets, so time goes on only when they have had RESUME_S
to be served.
"""

from __future__ import annotations

# Planned are 50 ms; a machine that is merely busy makes some hundreds of it.
PAUSE_S = 1.0
RESUME_S = 2.0


class RunningTime:
    """Seconds, of which ``paused`` were taken out. To be asked often, under one lock, also when nothing happens."""

    def __init__(self, now: float) -> None:
        self._last = now
        self._resumes = now
        self.paused = 0.0
        self.pauses = 0

    def at(self, now: float) -> float:
        """Running time at ``now``, in seconds of the same clock as ``now``; never goes back."""
        elapsed = max(0.0, now - self._last)
        self._last += elapsed
        if elapsed >= PAUSE_S:
            self.pauses += 1
            self._resumes = self._last + RESUME_S
            self.paused += elapsed
        else:
            # What of this stretch lies before the end of the last pause's grace.
            self.paused += max(0.0, min(elapsed, self._resumes - (self._last - elapsed)))
        return self._last - self.paused
