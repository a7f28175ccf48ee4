"""Progress: how a run looks while it runs, on standard error. Decides nothing and counts nothing: it shows counts.

On a terminal a live panel (rich); otherwise a plain line every few seconds. A strike has a line of its own.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from acker_command.demo.counts import RunCounts

PLAIN_INTERVAL_S = 5.0
LIVE_PER_S = 5
BAR_WIDTH = 48


class Progress(AbstractContextManager["Progress"]):
    """A view of ``counts``; runs from ``with`` until its end."""

    def __init__(self, counts: RunCounts, console: Console | None = None) -> None:
        self._counts = counts
        self._console = console or _console()
        self._activity = "starting"
        self._since = time.monotonic()
        self._over = threading.Event()
        self._exits = ExitStack()

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            live = Live(
                get_renderable=self._panel, console=self._console, refresh_per_second=LIVE_PER_S, transient=True
            )
            self._exits.enter_context(live)
        else:
            lines = threading.Thread(target=self._print_lines, name="progress", daemon=True)
            lines.start()
            self._exits.callback(lines.join)
            self._exits.callback(self._over.set)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._exits.close()

    def say(self, activity: str) -> None:
        """What is being done now."""
        self._activity = activity
        self._tell("  ", activity, "dim")

    def strike(self, what: str) -> None:
        """A fault has happened."""
        self._tell("⚡", what, "yellow")

    def _tell(self, mark: str, text: str, style: str) -> None:
        self._console.print(Text(f"{time.monotonic() - self._since:6.1f} s  {mark} {text}", style))

    def _print_lines(self) -> None:
        while not self._over.wait(PLAIN_INTERVAL_S):
            self._tell("  ", line(self._counts), "")

    def _panel(self) -> RenderableType:
        counts = self._counts
        bar = ProgressBar(total=max(counts.records, 1), completed=counts.answered, width=BAR_WIDTH)
        grid = Table.grid(padding=(0, 3))
        for _ in figures(counts):
            grid.add_column(justify="right")
        grid.add_row(*(Text(name, "dim") for name, _ in figures(counts)))
        grid.add_row(*(Text(value, "bold") for _, value in figures(counts)))
        head = Table.grid(padding=(0, 2))
        head.add_row(bar, f"{time.monotonic() - self._since:.0f} s")
        return Group(Text(), head, Text(self._activity, "dim"), grid)


def _console() -> Console:
    """Standard error under a descriptor of its own, which stays when 2 is led elsewhere for a while (``silence``)."""
    return Console(file=open(os.dup(sys.stderr.fileno()), "w"), highlight=False, soft_wrap=True)


def figures(counts: RunCounts) -> list[tuple[str, str]]:
    """What a view shows, in order: (name, value)."""
    return [
        ("records", f"{counts.records:,}"),
        ("pending", f"{counts.pending:,}"),
        ("acked", f"{counts.acked:,}"),
        ("failed", f"{counts.failed:,}"),
        ("replayed", f"{counts.replayed:,}"),
        ("dead letters", f"{counts.dead_lettered:,}"),
        ("records/s", f"{counts.records_per_s:,.0f}"),
    ]


def line(counts: RunCounts) -> str:
    """The same as one plain line."""
    return ", ".join(f"{name} {value}" for name, value in figures(counts))
