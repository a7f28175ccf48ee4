"""Ledger: updates a second through a whole shard in memory, at several numbers of pending roots.

Steady state: every step starts one generation of roots and acks three older generations. The roots of the oldest end
with this ack. One update in four is an init. Reports are sorted and digested beforehand, as they arrive from the wire.
Ticks and watches come as often as in a server; the figure includes their cost. ``updates_per_cpu_s`` is the same per
second of processor time, for machines that have other things to do. Run it: ``python benchmarks/ledger.py``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from acker_protocol.ids import Column, mix64_column
from acker_protocol.messages import Apply, Entries, Identity, InitScope, Limits, Status, Watch
from acker_service.core.shard import Shard

PENDING = (10_000, 100_000, 1_000_000, 10_000_000)
ENTRIES = (4096, 32768)
ACKS = 3
ROUNDS = 5
UPDATES_A_ROUND = 8_000_000
TICK_S = 0.05
SESSION = 7
LIMITS = Limits(message_timeout_ms=600_000)


@dataclass(slots=True)
class Generation:
    """The roots that one report starts: their init vals and the ack vals of each of their three reports."""

    roots: Column
    vals: list[Column]


class LedgerLoad:
    """A shard at a number of pending roots, and the calls that keep it there."""

    def __init__(self, pending: int, entries: int) -> None:
        self.entries = min(entries, pending // ACKS)
        self.shard = Shard(incarnation=1, generation=1, max_pending=4 * pending + 10_000_000)
        self.watch()
        self._number, self._sequence = 1, 0
        self.longest_growing_ms = 0.0
        self._ages = [(k + 1) * (pending // self.entries - 1) // ACKS for k in range(ACKS)]
        self.alive: deque[Generation] = deque()
        for age in reversed(range(self._ages[-1])):
            self._begin(age)

    def generate(self) -> Generation:
        roots = mix64_column(np.arange(self._number, self._number + self.entries, dtype=np.uint64))
        self._number += self.entries
        roots = roots[np.argsort(mix64_column(roots))]
        acks = [mix64_column(roots ^ np.uint64(k + 1)) for k in range(ACKS)]
        return Generation(roots, [acks[0] ^ acks[1] ^ acks[2], *acks])

    def messages(self, steps: int) -> Iterator[Apply]:
        """Yield the messages of the next steps. The caller collects them before it starts the clock."""
        for _ in range(steps):
            self.alive.append(self.generate())
            yield self._message(self.alive[-1], 0)
            for k, age in enumerate(self._ages):
                yield self._message(self.alive[-1 - age], k + 1)
            self.alive.popleft()

    def watch(self, confirmed: int = 0) -> int:
        reply = self.shard.watch(
            Watch("benchmark", SESSION, 3_600_000, LIMITS, confirmed, max_outcomes=4_000_000), time.monotonic()
        )
        return reply.cursor

    def _begin(self, age: int) -> None:
        """Start a generation as if it were ``age`` steps old, with the acks that it would have had by then."""
        generation = self.generate()
        self.alive.append(generation)
        val = generation.vals[0].copy()
        for k, reached in enumerate(self._ages):
            if age >= reached:
                val ^= generation.vals[k + 1]
        message, begin = self._message(Generation(generation.roots, [val]), 0), time.monotonic()
        self.shard.apply(message, begin)
        self.shard.tick(begin)
        self.longest_growing_ms = max(self.longest_growing_ms, (time.monotonic() - begin) * 1e3)

    def _message(self, generation: Generation, which: int) -> Apply:
        identity = Identity(SESSION, self._sequence, sequenced=True)
        self._sequence += 1
        scope = None if which else InitScope(SESSION, 0)
        return Apply(identity, self._sequence, Entries(generation.roots, generation.vals[which]), scope)


@dataclass(frozen=True, slots=True)
class Round:
    """The figures of one round. ``pending``: the average number of pending roots after a call."""

    updates_per_s: float
    updates_per_cpu_s: float
    longest_apply_ms: float
    longest_tick_ms: float
    pending: float


def run(load: LedgerLoad) -> Round:
    steps = max(1, UPDATES_A_ROUND // (load.entries * (ACKS + 1)))
    messages = list(load.messages(steps))
    apply, pause, tick_pause = load.shard.apply, 0.0, 0.0
    cursor = load.watch()
    begin_cpu, begin = time.thread_time(), time.monotonic()
    last = ticked = begin
    for message in messages:
        if apply(message, last).status != Status.APPLIED:
            raise RuntimeError("the shard did not take an update")
        now = time.monotonic()
        pause, last = max(pause, now - last), now
        if now - ticked >= TICK_S:
            load.shard.tick(now)
            cursor = load.watch(cursor)
            last = ticked = time.monotonic()
            tick_pause = max(tick_pause, last - now)
    cursor = load.watch(cursor)
    elapsed, elapsed_cpu = time.monotonic() - begin, time.thread_time() - begin_cpu
    load.watch(cursor)
    # The first message of a step begins a generation, and the last one ends one. Between them there is one more.
    between = load.shard.stats.pending
    pending = between + load.entries * ACKS / (ACKS + 1)
    updates = len(messages) * load.entries
    return Round(updates / elapsed, updates / elapsed_cpu, pause * 1e3, tick_pause * 1e3, pending)


def measure(pending: int, entries: int, rounds: int = ROUNDS) -> dict[str, float]:
    """Measure updates per second (median of the rounds), bytes per pending root and the longest calls. One round warms
    up.

    ``longest_growing_ms``: the longest time of a report of inits plus a tick, while the table grows from 0 to
    ``pending``.
    """
    load = LedgerLoad(pending, entries)
    measured = [run(load) for _ in range(rounds + 1)][1:]
    stats = load.shard.stats
    if stats.pending != len(load.alive) * load.entries or stats.failed or stats.timed_out:
        raise RuntimeError(f"the shard lost count: {stats}")
    return {
        "pending": round(measured[-1].pending),
        "entries_per_report": load.entries,
        "updates_per_s": round(statistics.median(each.updates_per_s for each in measured)),
        "updates_per_cpu_s": round(statistics.median(each.updates_per_cpu_s for each in measured)),
        "bytes_per_pending_root": round(stats.ledger_bytes / measured[-1].pending, 1),
        "longest_growing_ms": round(load.longest_growing_ms, 2),
        "longest_apply_ms": round(max(each.longest_apply_ms for each in measured), 2),
        "longest_tick_ms": round(max(each.longest_tick_ms for each in measured), 2),
    }


def measure_all(pending: tuple[int, ...] = PENDING) -> dict[str, list[dict[str, float]]]:
    return {"ledger": [measure(roots, entries) for roots in pending for entries in ENTRIES]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pending", type=int, nargs="+", default=PENDING, help="numbers of pending roots")
    print(json.dumps(measure_all(tuple(parser.parse_args().pending)), indent=1))


if __name__ == "__main__":
    main()
