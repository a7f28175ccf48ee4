"""Result: the figures of a run, whether it passed, and how it is printed.

A result is the object that ``--json`` prints: the figures, whether the run ``passed``, and which promises are
``broken``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from acker_command.demo.categories import CATEGORIES, NAME
from acker_command.demo.faults import Strike, harmless

BAR_WIDTH = 20
WIDTH = 100
# Figures that must be 0: the promise, and the noun for what was found.
NONE = {
    "lost": ("none lost: each record has an outcome", "without"),
    "answered_twice": ("no record has two final outcomes", "with two"),
    "false_acks": ("none falsely acked: committed whole at its ACK", "false"),
    "wrong_counts": ("counts of words over acked roots are the input's", "words differ"),
    "dead_without_cause": ("only poison and unreadable lines are dead letters", "others"),
    "spared": ("all poison and unreadable lines are dead letters", "acked"),
}
NUMBERS = (
    *("records", "acked", "dead_lettered", "lost", "false_acks", ""),
    *("replayed", "failed", "timed_out", "interrupted", "", "batches", "seconds", "records_per_s"),
)


def conclude(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result with these figures."""
    broken = [promise for promise, holds, _ in checks(figures) if not holds]
    return {"passed": not broken, **figures, "broken": broken}


def checks(figures: Mapping[str, Any]) -> list[tuple[str, bool, str]]:
    """Return the checks that decide the exit status: the promise, whether it holds, and what was found."""
    records, acked, dead = (figures[name] for name in ("records", "acked", "dead_lettered"))
    is_at_end, faults = figures["checkpoint_at_end"], figures["faults"]
    found = [
        ("every record is acked or dead-lettered", acked + dead == records, f"{acked:,} + {dead:,} of {records:,}"),
        *((promise, figures[name] == 0, f"{figures[name]:,} {what}") for name, (promise, what) in NONE.items()),
        ("the checkpoint is at the end of the input", is_at_end, "at the end" if is_at_end else "behind it"),
    ]
    if faults:
        happened = sum(faults.values())
        found.append(
            ("every planned fault has happened", happened == len(faults), f"{happened} of {len(faults)}"),
        )
        free = harmless((Strike[name.upper()] for name in faults), figures["replicas"])
        replays = sum(figures["replayed_by_fault"][strike.name.lower()] for strike in free)
        servers = "servers that come, go and restart" if Strike.ONE_ADDED in free else "planned restart"
        found.append((f"killed worker, re-run task, {servers}: no replay", replays == 0, f"{replays:,} replays"))
    return found


def show(result: Mapping[str, Any], examples: Sequence[str], console: Console | None = None) -> None:
    """Print the numbers, the words, the faults and the promises. ``examples``: records that were falsely acked."""
    console = console or Console(highlight=False)
    if not console.is_terminal:
        console.width = WIDTH
    numbers, words = _table("records", ""), _table("word", "", "", "times")
    for name in NUMBERS:
        numbers.add_row(name.replace("_", " "), f"{result[name]:,}" if name else "")
    for word, count in result["top_words"].items():
        bar = "█" * max(1, round(BAR_WIDTH * count / max(result["top_words"].values())))
        words.add_row(word, Text(CATEGORIES.get(word, NAME), "dim"), Text(bar, "cyan"), f"{count:,}")
    top = Table.grid(padding=(0, 4))
    top.add_row(numbers, words)
    strikes = _table("", "what was broken on purpose", "replayed")
    again = max(result["failed"] - result["dead_lettered"], 0)
    strikes.add_row(_check_mark(result["failed"] > 0), "records raise, some of them each time", f"{again:,}")
    for name, happened in result["faults"].items():
        strikes.add_row(_check_mark(happened), Strike[name.upper()].value, f"{result['replayed_by_fault'][name]:,}")
    promises = _table("", "what has to hold", "")
    for promise, holds, found in checks(result):
        promises.add_row(_check_mark(holds), promise, Text(found, "dim" if holds else "bold red"))
    for table in (top, strikes, promises) if result["faults"] else (top, promises):
        console.print(Text(), table, sep="\n")
    for example in examples:
        console.print(Text(f"falsely acked: {example}", "red"))


def _table(*names: str) -> Table:
    """Return a table with these columns, the last one right-aligned for figures."""
    table = Table(*names, box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.columns[-1].justify = "right"
    return table


def _check_mark(holds: bool) -> Text:
    return Text("✓", "green") if holds else Text("✗", "bold red")
