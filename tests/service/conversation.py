"""Conversation: a shard's calls and answers as lines of text, so that schedules are easy to read.

Each command is one line. The indented lines below it are the shard's answer. ``#`` begins a comment. Commands:

    watch lines [lease 30s] [close]                  open a source, renew its lease, receive and confirm its outcomes
    open 1 of lines: a b c [timeout 5s]              open a batch of these records
    init 1 as r1: a=x b=y                            report emitted records, with these initial edges
    report r2: a^x b^y^z c!disk full                 XOR edges into trees; ``!`` fails a tree, with a reason
    settle 1 done | abandon                          settle a batch
    wait 5s                                          advance the clock
    restart                                          dump the shard's state, and restore it in a new shard

Names stand for numbers: a record's letter for its root id, an edge's name for its value, and a report's name for its
identity.
"""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from acker_protocol import ids, reports
from acker_protocol.messages import (
    Apply,
    Entries,
    Identity,
    InitScope,
    Limits,
    OpenBatch,
    Settle,
    Settlement,
    Verdict,
    Watch,
)
from acker_service.core.shard import Shard

ACK, FAIL = 1, 2
LETTERS = "abcdefghijklmnop"


@dataclass
class Conversation:
    """One shard, and the numbers that the names of a transcript stand for."""

    shard: Shard = field(default_factory=lambda: Shard(incarnation=1, generation=2))
    now: float = 0.0
    sessions: dict[str, int] = field(default_factory=dict)
    confirmed: dict[str, int] = field(default_factory=dict)
    # Per batch: the source, and the letters of its records.
    batches: dict[int, tuple[str, str]] = field(default_factory=dict)
    roots: dict[str, int] = field(default_factory=dict)

    def say(self, line: str) -> list[str]:
        """Run one command and return the lines of its answer."""
        command, _, rest = line.partition(" ")
        return list(getattr(self, f"say_{command}")(rest))

    def say_watch(self, rest: str) -> Iterator[str]:
        name, *options = rest.split()
        given = dict(zip(options[::2], options[1::2], strict=False))
        session = self.sessions.setdefault(name, len(self.sessions) + 1)
        lease_ms = round(1000 * seconds(given.get("lease", "600s")))
        confirmed = self.confirmed.get(name, 0)
        request = Watch(name, session, lease_ms, confirmed=confirmed, close="close" in options)
        reply = self.shard.watch(request, self.now)
        self.confirmed[name] = reply.cursor
        yield reply.status.name + (", new" if reply.is_new else "") + (f": {reply.detail}" if reply.detail else "")
        letters = {root: letter for letter, root in self.roots.items()}
        told = zip(reply.outcomes.root_ids.tolist(), reply.outcomes.verdicts.tolist(), strict=True)
        lines = [
            f"{letters[root]} {Verdict(verdict).name} {reply.outcomes.reason(n)}".strip()
            for n, (root, verdict) in enumerate(told)
        ]
        yield from sorted(lines)

    def say_open(self, rest: str) -> Iterator[str]:
        head, given = rest.split(":")
        number, _, name = head.split()
        letters, _, timeout = given.partition("timeout")
        records = letters.split()
        first = 1000 * int(number)
        self.batches[int(number)] = name, "".join(records)
        self.roots.update({letter: ids.root_id(first, n) for n, letter in enumerate(records)})
        limits = Limits(message_timeout_ms=round(1000 * seconds(timeout or "600s")))
        request = OpenBatch(self.sessions[name], int(number), first, len(records), limits=limits)
        reply = self.shard.open_batch(request, self.now)
        yield reply.status.name + (f": {reply.detail}" if reply.detail else "")

    def say_init(self, rest: str) -> Iterator[str]:
        head, given = rest.split(":")
        number, _, report = head.split()
        name, letters = self.batches[int(number)]
        edges = {letter: edge_of(edge) for letter, edge in (each.split("=") for each in given.split())}
        entries = reports.fold(self._column(list(edges)), np.array(list(edges.values()), np.uint64))
        at = sorted(letters.index(letter) for letter in edges)
        covered = np.array([[n, n + 1] for n in at], np.uint64).reshape(-1, 2)
        yield from self._apply(report, entries, InitScope(self.sessions[name], int(number), covered))

    def say_report(self, rest: str) -> Iterator[str]:
        report, given = rest.split(":", 1)
        vals: dict[str, int] = {}
        reasons: dict[int, str] = {}
        for each in re.findall(r"\w[\^!](?:(?! \w[\^!]).)*", given):
            letter, what = each[0], each[2:].strip()
            if each[1] == "!":
                reasons[self.roots[letter]] = what
            vals.setdefault(letter, 0)
            for edge in what.split("^") if each[1] == "^" else ():
                vals[letter] ^= edge_of(edge)
        kinds = np.array([ACK | (FAIL if self.roots[letter] in reasons else 0) for letter in vals], np.uint8)
        entries = reports.fold_updates(
            self._column(list(vals)), np.array(list(vals.values()), np.uint64), kinds, reasons
        )
        yield from self._apply(report, entries, None)

    def say_settle(self, rest: str) -> Iterator[str]:
        number, how = rest.split()
        settlement = {"done": Settlement.DONE, "abandon": Settlement.ABANDON}[how]
        session = self.sessions[self.batches[int(number)][0]]
        [reply] = self.shard.settle([Settle(session, int(number), settlement)], self.now)
        yield reply.status.name + (f": {reply.detail}" if reply.detail else "")

    def say_wait(self, rest: str) -> Iterator[str]:
        self.now += seconds(rest)
        self.shard.tick(self.now)
        yield f"pending {self.shard.stats.pending}"

    def say_restart(self, _: str) -> Iterator[str]:
        parts = [dict(part) if isinstance(part, dict) else part for part in self.shard.dump(self.now)]
        self.shard = Shard.restore(parts, incarnation=2, now=self.now)
        yield f"pending {self.shard.stats.pending}"

    def _apply(self, report: str, entries: Entries, inits: InitScope | None) -> Iterator[str]:
        message = Apply(Identity(1, zlib.crc32(report.encode())), reports.digest(entries), entries, inits)
        reply = self.shard.apply(message, self.now)
        # The distinct statuses of the sections, in alphabetical order.
        statuses = {reply.status.name} if not len(reply.section_statuses) else set()
        statuses |= {type(reply.status)(status).name for status in reply.section_statuses.tolist()}
        known = f", {reply.inits_known} known" if reply.inits_known else ""
        conflicting = f", {reply.inits_conflicting} conflicting" if reply.inits_conflicting else ""
        yield ", ".join(sorted(statuses)) + known + conflicting + (f": {reply.detail}" if reply.detail else "")

    def _column(self, letters: list[str]) -> ids.Column:
        return np.array([self.roots[letter] for letter in letters], np.uint64)


def schedule(seed: int, turns: int = 60) -> str:
    """Return the commands of a random schedule with two sources.

    It contains tasks that are repeated with the same and with other children, batches that are done, abandoned or left
    open, waits, and restarts of the shard.
    """
    dice, lines = random.Random(seed), [f"# a schedule drawn with seed {seed}", "watch one", "watch two"]
    open_batches: dict[int, dict[str, set[str]]] = {}
    reports_made: list[str] = []
    letters = iter(LETTERS)
    for turn in range(turns):
        drawn = dice.random()
        if drawn < 0.12 and (records := [letter for _, letter in zip(range(2), letters, strict=False)]):
            number = turn + 1
            open_batches[number] = {letter: {f"{letter}0"} for letter in records}
            lines.append(f"open {number} of {dice.choice(('one', 'two'))}: {' '.join(records)}")
            given = " ".join(f"{letter}={letter}0" for letter in records)
            reports_made.append(f"init {number} as i{number}: {given}")
            lines.append(reports_made[-1])
        elif drawn < 0.6 and open_batches:
            trees = list(open_batches.values())[-1]
            letter = dice.choice([letter for letter in trees if trees[letter]] or list(trees))
            taken = sorted(trees[letter])[:2]
            made = {f"{letter}{turn}{child}" for child in range(dice.choice((0, 0, 1, 2)))}
            trees[letter] = (trees[letter] - set(taken)) | made
            what = f"{letter}^{'^'.join([*taken, *sorted(made)])}" if taken or made else f"{letter}!tried again"
            reports_made.append(f"report t{turn}: {what}")
            lines.append(reports_made[-1])
        elif drawn < 0.7 and reports_made:
            again = dice.choice(reports_made)
            lines.append(again if dice.random() < 0.7 or again.startswith("init") else again + "^other")
        elif drawn < 0.8 and open_batches:
            number = list(open_batches)[-1]
            lines.append(f"settle {number} {dice.choice(('done', 'done', 'done', 'abandon'))}")
            if dice.random() < 0.8:
                del open_batches[number]
        elif drawn < 0.85:
            lines.append("restart")
        elif drawn < 0.9:
            lines.append(f"wait {dice.choice((1, 5, 10))}s")
        else:
            lines.append(f"watch {dice.choice(('one', 'two'))}")
    return "\n".join([*lines, *(f"settle {number} done" for number in open_batches), "watch one", "watch two"]) + "\n"


def edge_of(name: str) -> int:
    """Return the value of the edge with this name."""
    return zlib.crc32(name.strip().encode()) + 1


def seconds(text: str) -> float:
    """Parse a duration such as ``5s``."""
    return float(text.strip().removesuffix("s"))
