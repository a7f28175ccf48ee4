"""View: how a run looks on standard error: a live panel on a terminal, elsewhere a plain line every few seconds."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from contextlib import ExitStack
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

PLAIN_INTERVAL_S = 5.0
LIVE_PER_S = 5
BAR_WIDTH = 48


class DemoView(ExitStack):
    """Shows ``counts`` while the ``with`` block runs. ``began_s``: when the first batch began."""

    def __init__(self, counts: Counter[str], console: Console | None = None) -> None:
        super().__init__()
        # A separate descriptor, because 2 is redirected while Spark starts.
        stderr = os.fdopen(os.dup(2), "w")
        self._console = console or Console(file=stderr, highlight=False, soft_wrap=True)
        self._counts, self._activity, self._started_s = counts, "starting", time.monotonic()
        self.began_s: float | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            console, rate = self._console, LIVE_PER_S
            self.enter_context(
                Live(get_renderable=self._panel, console=console, refresh_per_second=rate, transient=True)
            )
        else:
            over = threading.Event()
            lines = threading.Thread(target=self._print_lines, args=(over,), daemon=True)
            lines.start()
            self.callback(lines.join)
            self.callback(over.set)
        return self

    def say(self, activity: str) -> None:
        self._activity = activity
        self._print(f"   {activity}", "dim")

    def strike(self, what: str) -> None:
        self._print(f"⚡ {what}", "yellow")

    def figures(self) -> dict[str, int]:
        """Return the figures that a view shows, in order."""
        counts = self._counts
        seconds = 0.0 if self.began_s is None else time.monotonic() - self.began_s
        return {
            "records": counts["records"],
            "pending": counts["emitted"]
            - sum(counts[name] for name in ("acked", "failed", "timed_out", "interrupted")),
            "acked": counts["acked"],
            "failed": counts["failed"],
            "replayed": counts["replayed"],
            "dead letters": counts["dead_lettered"],
            "records/s": round((counts["acked"] + counts["dead_lettered"]) / seconds) if seconds else 0,
        }

    def _print(self, text: str, style: str = "") -> None:
        self._console.print(Text(f"{time.monotonic() - self._started_s:6.1f} s  {text}", style))

    def _print_lines(self, over: threading.Event) -> None:
        while not over.wait(PLAIN_INTERVAL_S):
            self._print("   " + ", ".join(f"{name} {value:,}" for name, value in self.figures().items()))

    def _panel(self) -> Group:
        figures = self.figures()
        done = figures["acked"] + figures["dead letters"]
        bar, grid = Table.grid(padding=(0, 2)), Table.grid(*figures, padding=(0, 3))
        bar.add_row(ProgressBar(figures["records"], done, BAR_WIDTH), f"{time.monotonic() - self._started_s:.0f} s")
        for column in grid.columns:
            column.justify = "right"
        grid.add_row(*(Text(name, "dim") for name in figures))
        grid.add_row(*(Text(f"{value:,}", "bold") for value in figures.values()))
        return Group(Text(), bar, Text(self._activity, "dim"), grid)
