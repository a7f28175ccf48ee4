"""Client: updates folded, slotted and serialised per second, from columns to wire bytes.

Each root has four updates, in random order. One pass folds a report (XOR per root, wire order), digests it, cuts it
into messages and serialises them: all that a client does before the socket. No server is needed. The plain calls, one
for each record, are measured too: a Storm-like loop has no columns.

    python -m benchmarks.client [--quick]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np

from acker_client.reports.accumulator import Accumulator
from acker_protocol import ids, wire
from acker_protocol.ids import Column
from acker_protocol.messages import Identity
from acker_protocol.reports import fold, pack
from benchmarks import machine

UPDATES_A_ROOT = 4
UPDATES = (64_000, 1_000_000)
ROUNDS = 31
PLAIN_CALLS = 100_000
TARGET_PER_S = 15e6


def columns(updates: int) -> tuple[Column, Column]:
    """Return (roots, ack vals) of this many updates, shuffled."""
    dice = np.random.default_rng(0)
    roots = np.repeat(ids.root_ids(1 << 40, np.arange(updates // UPDATES_A_ROOT, dtype=np.uint64)), UPDATES_A_ROOT)
    dice.shuffle(roots)
    return roots, dice.integers(0, 1 << 64, len(roots), np.uint64)


def serialised(roots: Column, vals: Column) -> list[bytes]:
    """Return the messages of one report, as they go to the socket."""
    messages = pack(Identity(1, 2, sequenced=True), fold(roots, vals))
    return [wire.encode(message).SerializeToString() for message in messages]


def per_second(work: Callable[[], object], amount: int, rounds: int) -> float:
    """Return how many of ``amount`` items are done per second: the median of the rounds, after a warm-up."""
    work()
    elapsed = []
    for _ in range(rounds):
        begin = time.perf_counter()
        work()
        elapsed.append(time.perf_counter() - begin)
    return amount / statistics.median(elapsed)


def measure_columns(updates: int, rounds: int) -> dict[str, float]:
    """Return updates per second through a whole pass, and through folding alone."""
    roots, vals = columns(updates)
    messages = serialised(roots, vals)
    return {
        "updates": len(roots),
        "messages": len(messages),
        "bytes": sum(len(message) for message in messages),
        "folded_per_s": round(per_second(lambda: fold(roots, vals), len(roots), rounds)),
        "updates_per_s": round(per_second(lambda: serialised(roots, vals), len(roots), rounds)),
    }


def measure_plain(rounds: int) -> float:
    """Return ``ack`` calls per second into the buffer of a plain client, including taking the buffer's content."""
    roots, vals = columns(PLAIN_CALLS)
    rows = list(zip(roots.tolist(), vals.tolist(), strict=True))

    def work() -> None:
        accumulator = Accumulator()
        for root, edge in rows:
            accumulator.ack(root, edge)
        accumulator.take_drafts()

    return round(per_second(work, len(rows), rounds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    rounds = 5 if parser.parse_args().quick else ROUNDS
    reports = [measure_columns(updates, rounds) for updates in UPDATES]
    figures = {
        "updates_per_s": min(measured["updates_per_s"] for measured in reports),
        "reports": reports,
        "plain_acks_per_s": measure_plain(max(3, rounds // 6)),
        "target_per_s": TARGET_PER_S,
    }
    print(json.dumps({"machine": machine.describe(), "client": figures}, indent=2))
    for measured in reports:
        rate = f"{measured['updates_per_s'] / 1e6:.1f} M updates/s"
        print(f"folded, slotted, serialised, {measured['updates']} a report: {rate}", file=sys.stderr)


if __name__ == "__main__":
    main()
