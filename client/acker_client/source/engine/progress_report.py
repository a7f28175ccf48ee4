"""Progress report: a bar, if one is wanted, and one line a minute in the log, while a run works.

Decides when a line is written: not while nothing happens. A failure to show progress never ends the run.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

from acker_client.error_text import shorten
from acker_client.source.engine.timer import Timer
from acker_client.source.records.progress import Progress

log = logging.getLogger("acker_client.source")

LINE_S = 60.0
BAR_S = 1.0
# The rate is that of the last so many seconds.
RATE_S = 60.0


class Bar(Protocol):
    """A line that is drawn again and again."""

    def show(self, progress: Progress, records_per_s: float) -> None: ...
    def close(self) -> None: ...


class ProgressReport:
    """Shows the progress of one run. ``ask``: returns it; ``bar``: where to show it besides the log."""

    def __init__(self, ask: Callable[[], Progress], bar: Bar | None) -> None:
        self._ask = ask
        self._bar = bar
        self._line_due_s = LINE_S
        # The line in the log that was due last, or would have been: numbers that have not changed are not logged again.
        self._logged: tuple[int, int, int] | None = None
        # (seconds since the run began, records done by then).
        self._history: deque[tuple[float, int]] = deque([(0.0, 0)])

    @property
    def every_s(self) -> float:
        return LINE_S if self._bar is None else BAR_S

    def tick(self) -> float | None:
        """Draw the bar, and log a line if one is due. Return the seconds until the next call; None after a failure."""
        return self.every_s if self._succeeds(self._show) else None

    def close(self) -> None:
        if self._bar is not None:
            self._succeeds(self._bar.close)

    def _succeeds(self, step: Callable[[], object]) -> bool:
        try:
            step()
        except Exception as error:  # noqa: BLE001  # a closed terminal, for example
            log.debug("progress is not shown any more: %s", shorten(error))
            return False
        return True

    def _show(self) -> None:
        progress = self._ask()
        rate = self._rate(progress)
        if self._bar is not None:
            self._bar.show(progress, rate)
        if progress.elapsed_s < self._line_due_s:
            return
        self._line_due_s = progress.elapsed_s + LINE_S
        numbers = progress.records, progress.done, progress.failed
        if not progress.is_idle or numbers != self._logged:
            log.info("source %r: %s", progress.name, progress.line(rate))
        self._logged = numbers

    def _rate(self, progress: Progress) -> float:
        self._history.append((progress.elapsed_s, progress.done))
        while len(self._history) > 2 and self._history[1][0] <= progress.elapsed_s - RATE_S:
            self._history.popleft()
        (began_s, before), (now_s, after) = self._history[0], self._history[-1]
        return (after - before) / (now_s - began_s) if now_s > began_s else 0.0


def start_report(report: ProgressReport, timer: Timer) -> Callable[[], None]:
    """Report until the returned function is called."""
    stop = timer(report.every_s, report.tick)

    def end() -> None:
        stop()
        report.close()

    return end
