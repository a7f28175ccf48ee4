"""Result: what a run has shown, whether that is enough, and how people and programs read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from acker_command.demo.counts import RunCounts
from acker_command.demo.faults import Strike
from acker_command.demo.verify import Conclusion, TopWord

BAR_WIDTH = 20
WIDTH = 100
# What the acker promises to sit through without a single replay, and what it does where each record is on two servers.
HARMLESS = (
    Strike.WORKER_KILLED,
    Strike.TASK_RERUN,
    Strike.SERVER_RESTARTED,
    Strike.ONE_ADDED,
    Strike.ONE_DRAINED,
    Strike.ALL_RESTARTED,
)
HARMLESS_TO_TWO = (Strike.ONE_KILLED,)


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that has to hold. ``found`` says what is the case."""

    promise: str
    holds: bool
    found: str


@dataclass(frozen=True, slots=True)
class DemoResult:
    """``planned``: the strikes that batches were armed with; ``struck``: those that fell. ``interrupted_by``: how many
    records were LOST or unfinished in the batch that a strike fell on; ``replicas``: on how many servers each record
    lived."""

    counts: RunCounts
    conclusion: Conclusion
    checkpoint_at_end: bool
    planned: tuple[Strike, ...]
    struck: tuple[Strike, ...]
    interrupted_by: Mapping[Strike, int]
    replicas: int = 1

    @property
    def passed(self) -> bool:
        return all(check.holds for check in self.checks())

    @property
    def _harmless(self) -> tuple[Strike, ...]:
        return HARMLESS if self.replicas == 1 else (*HARMLESS, *HARMLESS_TO_TWO)

    def checks(self) -> list[Check]:
        """What decides the exit status."""
        counts, found = self.counts, self.conclusion
        checks = [
            Check(
                "every record is acked or dead-lettered",
                counts.acked + counts.dead_lettered == counts.records,
                f"{counts.acked:,} + {counts.dead_lettered:,} of {counts.records:,}",
            ),
            _none("none lost: each record has an outcome", found.unanswered, "without"),
            _none("and only one", found.answered_twice, "with more"),
            _none("none falsely acked: committed whole at its ACK", found.false_acks, "false"),
            _none("counts of words over acked roots are the input's", found.wrong_counts, "words differ"),
            _none("only poison and unreadable lines are dead letters", found.dead_without_cause, "others"),
            _none("and all of them are", found.spared, "acked"),
            Check(
                "the checkpoint is at the end of the input",
                self.checkpoint_at_end,
                "at the end" if self.checkpoint_at_end else "behind it",
            ),
        ]
        if self.planned:
            fell = f"{len(self.struck)} of {len(self.planned)}"
            checks.append(Check("every planned fault has happened", self.struck == self.planned, fell))
            harmless = [strike for strike in self.planned if strike in self._harmless]
            needless = sum(self.interrupted_by.get(strike, 0) for strike in harmless)
            checks.append(_none(f"{_named(harmless)}: no replay", needless, "replays"))
        return checks


def as_json(result: DemoResult) -> dict[str, Any]:
    """The one object that ``--json`` prints."""
    counts, found = result.counts, result.conclusion
    return {
        "passed": result.passed,
        "records": counts.records,
        "acked": counts.acked,
        "failed": counts.failed,
        "timed_out": counts.timed_out,
        "interrupted": counts.interrupted,
        "replayed": counts.replayed,
        "dead_lettered": counts.dead_lettered,
        "lost": found.unanswered,
        "false_acks": found.false_acks,
        "answered_twice": found.answered_twice,
        "wrong_counts": found.wrong_counts,
        "checkpoint_at_end": result.checkpoint_at_end,
        "records_per_s": round(counts.records_per_s, 1),
        "seconds": round(counts.seconds, 2),
        "batches": result.counts.batches,
        "replicas": result.replicas,
        "replayed_by_fault": {strike.name.lower(): result.interrupted_by.get(strike, 0) for strike in result.planned},
        "faults": {strike.name.lower(): strike in result.struck for strike in result.planned},
        "top_words": {top.word: top.count for top in found.top},
        "broken": [check.promise for check in result.checks() if not check.holds],
    }


def as_table(result: DemoResult) -> RenderableType:
    """What a run ends with: the numbers, the words, the faults, the promises."""
    parts: list[RenderableType] = [Text(), _beside(_numbers(result), _words(result.conclusion.top))]
    if result.planned:
        parts += [Text(), _strikes(result)]
    return Group(*parts, Text(), _promises(result.checks(), result.conclusion.examples))


def show(result: DemoResult) -> None:
    """Print the table on standard output."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = WIDTH
    console.print(as_table(result))


def _named(strikes: Sequence[Strike]) -> str:
    """A few words for strikes that are harmless."""
    if Strike.ONE_ADDED in strikes:
        return "worker, task, servers that come, go and restart"
    return "killed worker, re-run task, planned restart"


def _none(promise: str, count: int, what: str) -> Check:
    return Check(promise, count == 0, f"{count:,} {what}")


def _beside(*tables: Table) -> Table:
    grid = Table.grid(padding=(0, 4))
    grid.add_row(*tables)
    return grid


def _numbers(result: DemoResult) -> Table:
    counts = result.counts
    table = _table("records", "")
    rows = [
        ("lines of the input", f"{counts.records:,}"),
        ("acked", f"{counts.acked:,}"),
        ("dead letters", f"{counts.dead_lettered:,}"),
        ("records lost", f"{result.conclusion.unanswered:,}"),
        ("falsely acked", f"{result.conclusion.false_acks:,}"),
        ("", ""),
        ("replayed", f"{counts.replayed:,}"),
        ("outcomes FAILED", f"{counts.failed:,}"),
        ("outcomes TIMED_OUT", f"{counts.timed_out:,}"),
        ("outcomes LOST, replayed", f"{counts.interrupted:,}"),
        ("", ""),
        ("batches", f"{result.counts.batches:,}"),
        ("seconds", f"{counts.seconds:,.1f}"),
        ("records/s", f"{counts.records_per_s:,.0f}"),
    ]
    for row in rows:
        table.add_row(*row)
    return table


def _words(words: Sequence[TopWord]) -> Table:
    table = _table("word", "", "", "times")
    most = max((top.count for top in words), default=1)
    for top in words:
        bar = "█" * max(1, round(BAR_WIDTH * top.count / most))
        table.add_row(top.word, Text(top.category, "dim"), Text(bar, "cyan"), f"{top.count:,}")
    return table


def _strikes(result: DemoResult) -> Table:
    table = _table("", "what was broken on purpose", "replayed")
    counts = result.counts
    again = max(counts.failed - counts.dead_lettered, 0)
    table.add_row(_mark(counts.failed > 0), "records raise, some of them each time", f"{again:,}")
    for strike in result.planned:
        replays = f"{result.interrupted_by.get(strike, 0):,}"
        table.add_row(_mark(strike in result.struck), strike.value, replays)
    return table


def _promises(checks: Sequence[Check], examples: Sequence[str]) -> RenderableType:
    table = _table("", "what has to hold", "")
    for check in checks:
        table.add_row(_mark(check.holds), check.promise, Text(check.found, "dim" if check.holds else "bold red"))
    return Group(table, *(Text(f"falsely acked: {example}", "red") for example in examples))


def _table(*names: str) -> Table:
    """Columns of these names, the last of them figures."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for index, name in enumerate(names):
        table.add_column(name, justify="right" if index == len(names) - 1 else "left")
    return table


def _mark(holds: bool) -> Text:
    return Text("✓", "green") if holds else Text("✗", "bold red")
