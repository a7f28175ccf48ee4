"""Body: the body of a user's sink function, generated from a seed.

This module also says which records each write has to write. It uses neither Spark nor the acker.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

DAYS = 3

# Transformations between the rows of a sink and a write. These keep all rows.
WHOLE = (
    "select", "column", "repartition", "coalesce", "sort", "sort within", "cache", "cache and count",
    "local checkpoint", "checkpoint", "map all", "pandas all", "join", "join to another", "window", "view", "table",
    "distinct", "group", "union", "aggregate",
)  # fmt: skip
# Steps for which Spark may shuffle the rows.
SHUFFLES = (
    "repartition", "sort", "join", "join to another", "window", "distinct", "group", "aggregate", "limit",
)  # fmt: skip
FILTERS = ("even", "none")
# Steps that may stop before the end of their input.
PARTS = ("limit", "map a piece", "map a batch", "udtf")

FILES = ("parquet", "json", "csv", "text", "orc", "directory in SQL")
TABLES = ("table", "insert into", "insert in SQL", "ctas", "partition in SQL", "partition if not exists", "jdbc")
RDD_FILES = ("rdd file", "union of RDDs", "union by the context")
HANDED = ("foreach partition", "foreach", "collect", "iterator", "pandas", *RDD_FILES)
# Writes that cannot be proven to have read all of their input.
UNPROVEN = (
    "python source", "python source that stops", "foreach partition that stops", "pipe", "pipe that stops",
    "union with a pipe that stops", "union with a piece",
)  # fmt: skip
LOOKS = (
    "count", "is empty", "take", "sum", "counts by day", "distinct days", "crosstab", "describe", "first",
    "rdd count", "aggregate by key",
)  # fmt: skip


@dataclass(frozen=True)
class Act:
    """One action of a body: a look (an action that writes nothing) or a write.

    ``day``: uses only the rows of that day; None: all rows. ``mishap``: the fault that the first attempts meet.
    ``times``: the number of these attempts. ``then``: what the body does about an exception.
    """

    what: str
    between: tuple[str, ...] = ()
    mode: str = "append"
    day: int | None = None
    mishap: str = ""
    times: int = 1
    then: str = "raise"
    in_thread: bool = False

    @property
    def writes(self) -> bool:
        return self.what not in LOOKS

    @property
    def delivers(self) -> bool:
        """Whether the act is a delivery. Collecting aggregated rows is a look, as the documents say."""
        is_grouped = bool({"group", "aggregate", "distinct"} & set(self.between))
        return self.writes and not (is_grouped and self.what in ("collect", "iterator", "pandas"))

    def keeps(self, number: int) -> bool:
        """Whether the act is meant to write the record ``number``."""
        is_of_day = self.day is None or number % DAYS == self.day
        return is_of_day and not ("even" in self.between and number % 2) and "none" not in self.between

    @property
    def is_provable(self) -> bool:
        """Whether the client can prove that the act has written all of its records, if nothing was raised."""
        is_whole = not set(self.between) & set(PARTS) and self.what not in UNPROVEN
        is_there = self.mode == "ignore" or self.what == "partition if not exists"
        # A retry only counts if it is the same action as the failed one. Collects are compared by the text of their
        # plans, which does not show what a function does. A union with an RDD of rows from outside the sink never
        # counts as the same union.
        is_unlike = self.what in ("collect", "pandas", "union by the context")
        is_comparable = not (self.mishap and self.then == "retry" and is_unlike)
        # A retry of the write does not make up for a failed look before it, or for a failure while the RDD is made.
        fails_before = {"cache and count", *(SHUFFLES if self.makes_rdd else ())}
        has_failed_before = self.mishap == "barred" and bool(fails_before & set(self.between))
        # A repeated checkpoint never counts as the same action, whether the first checkpoint failed or not.
        has_failed_before |= bool(self.mishap and {"checkpoint", "local checkpoint"} & set(self.between))
        return is_whole and not is_there and is_comparable and not has_failed_before

    @property
    def makes_rdd(self) -> bool:
        """Whether the act first makes an RDD of its rows, which makes Spark run the shuffles before the write."""
        return self.what in (*RDD_FILES, *UNPROVEN, "foreach", "foreach partition")

    @property
    def reads_all(self) -> bool:
        """Whether the act surely reads every row that it is given."""
        is_whole = not set(self.between) & {*FILTERS, *PARTS} and self.day is None
        return is_whole and self.what not in (*UNPROVEN, "is empty", "take", "first")


@dataclass(frozen=True)
class Body:
    """A sink body: ``acts`` in order. ``says_done``: it calls ``batch.done()`` if it finds all records written."""

    seed: int
    records: int
    slices: int
    arrow_rows: int
    acts: tuple[Act, ...]
    says_done: bool = False

    def owes(self, act: Act, number: int) -> bool:
        """Whether ``act`` has to write the record ``number``.

        Rows that a limit cuts off need not be written if another act delivers without a limit. Otherwise they must be.
        """
        has_other = any(each.delivers and "limit" not in each.between for each in self.acts)
        return act.delivers and act.keeps(number) and not ("limit" in act.between and has_other)

    def __str__(self) -> str:
        head = f"seed {self.seed}: {self.records} records in {self.slices} slices, Arrow batches of {self.arrow_rows}"
        lines = [head + (", says done" if self.says_done else "")]
        for act in self.acts:
            parts = [*act.between, f"{act.what} ({act.mode})" if act.writes else f"look: {act.what}"]
            parts += [f"of day {act.day}"] if act.day is not None else []
            parts += [f"{act.mishap} {act.times} x, then {act.then}"] if act.mishap else []
            parts += ["in a thread"] if act.in_thread else []
            lines.append("  " + ", ".join(parts))
        return "\n".join(lines)


def generate(seed: int) -> Body:
    chance = random.Random(seed)
    acts: list[Act] = []
    for _ in range(chance.choice((1, 1, 2, 2, 3))):
        roll = chance.random()
        if roll < 0.25:
            acts.append(_look(chance))
        elif roll < 0.4:
            acts += _by_day(chance)
        else:
            acts.append(_write(chance))
    return Body(
        seed,
        records=chance.choice((6, 12, 24)),
        slices=chance.choice((1, 2, 3)),
        arrow_rows=chance.choice((3, 10_000)),
        acts=tuple(acts),
        says_done=chance.random() < 0.1,
    )


def _look(chance: random.Random) -> Act:
    return Act(chance.choice(LOOKS), _between(chance, 1))


def _by_day(chance: random.Random) -> list[Act]:
    """Return one write per day. At most one of them fails."""
    one = _write(chance)
    bad = chance.randrange(DAYS) if one.mishap else -1
    return [
        Act(
            one.what, one.between, one.mode, day, one.mishap if day == bad else "", one.times,
            one.then if day == bad else "raise",
        )
        for day in range(DAYS)
    ]  # fmt: skip


def _write(chance: random.Random) -> Act:
    kinds = (FILES, FILES, TABLES, HANDED, UNPROVEN)
    what = chance.choice(chance.choice(kinds))
    between = _between(chance, 3)
    mishap = chance.choice(("", "", "", "barred", "barred", "in the way", "there already", "no table"))
    then = chance.choice(("raise", "swallow", "swallow", "retry", "retry", "elsewhere"))
    mode = chance.choice(("append", "append", "overwrite", "ignore", "error"))
    if mishap == "in the way" and what not in (*FILES, *RDD_FILES):
        mishap = "barred"
    if mishap == "no table" and what not in ("insert into", "insert in SQL", "partition in SQL"):
        mishap = "barred"
    if mishap == "there already" and what not in FILES[:-1]:
        mishap = ""
    if mishap == "there already":
        mode, then = chance.choice(("error", "ignore")), "swallow" if then == "retry" else then
    if what not in FILES[:-1] or (mode == "ignore" and mishap != "there already"):
        mode = "append"
    # Threads are always joined, because the client cannot know of a thread that has not begun yet.
    in_thread = chance.random() < 0.2
    return Act(what, between, mode, None, mishap, chance.choice((1, 1, 2)), then if mishap else "raise", in_thread)


def _between(chance: random.Random, most: int) -> tuple[str, ...]:
    kinds = (WHOLE, WHOLE, WHOLE, FILTERS, PARTS)
    return tuple(chance.choice(chance.choice(kinds)) for _ in range(chance.randrange(most + 1)))
