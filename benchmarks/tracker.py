"""Tracker: what a source's driver does, in memory: outcomes a second into the in-flight window, lines a second out of
files.

Outcomes come in stretches of a million, as a watch brings them, in the order of a ledger's sweep (random) and with
one in a hundred not acked. Lines are counted, cut into slices and made into Arrow columns, without Spark. Medians.
Run it: ``python benchmarks/tracker.py``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from acker_client.source.core.in_flight import InFlight
from acker_client.source.core.input import Chosen
from acker_client.source.core.retry import Retry
from acker_client.source.inputs.files import FileInput
from acker_client.source.inputs.lines import TextParser
from acker_protocol.messages import Outcomes, Verdict

ROUNDS = 3
STRETCH = 1_000_000
LINES = 2_000_000


def measure_all(outcomes: int = 10_000_000, rounds: int = ROUNDS) -> dict[str, float]:
    """``outcomes`` into one window; seconds and rates, medians of ``rounds``."""
    apply_s = statistics.median(_apply(outcomes) for _ in range(rounds))
    plan_s, read_s = (statistics.median(column) for column in zip(*(_read() for _ in range(rounds)), strict=True))
    return {
        "outcomes": outcomes,
        "apply_s": round(apply_s, 3),
        "outcomes_per_s": round(outcomes / apply_s),
        "lines": LINES,
        "lines_planned_per_s": round(LINES / plan_s),
        "lines_read_per_s": round(LINES / read_s),
    }


def _apply(count: int) -> float:
    """Seconds to apply ``count`` outcomes, to schedule the replays of what failed, and to find what is done."""
    in_flight = InFlight(1 << 40, Retry(), draw=lambda: 0.5)
    emitted = in_flight.emit(np.arange(count), replays=0)
    order = np.random.default_rng(1).permutation(count)
    roots = emitted.roots[order]
    verdicts = np.where(order % 100 == 99, Verdict.FAILED, Verdict.ACKED).astype(np.uint8)
    reasons = (order % 100 == 99).astype(np.uint32)
    begin_s = time.perf_counter()
    for start in range(0, count, STRETCH):
        part = slice(start, start + STRETCH)
        in_flight.apply(Outcomes(roots[part], verdicts[part], reasons[part], ("unfinished",)), now=0.0)
    in_flight.compact()
    seconds = time.perf_counter() - begin_s
    assert in_flight.counts.acked + in_flight.schedule.waiting == count
    return seconds


def _read() -> tuple[float, float]:
    """(seconds to plan, seconds to read) files of LINES lines."""
    with tempfile.TemporaryDirectory() as folder:
        for index in range(4):
            text = "".join(f"{k}: a line of an ordinary length, with some words in it\n" for k in range(LINES // 4))
            Path(folder, f"{index}.txt").write_text(text)
        source = FileInput(f"{folder}/*.txt", TextParser())
        begin_s = time.perf_counter()
        source.start({})
        slices = source.slices([Chosen(part) for part in source.plan(LINES, 4).parts], 4)
        planned_s = time.perf_counter()
        rows = sum(records.columns.num_rows for piece in slices for records in piece.read())
        read_s = time.perf_counter()
    assert rows == LINES
    return planned_s - begin_s, read_s - planned_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--outcomes", type=int, default=10_000_000, help="how many outcomes")
    print(json.dumps(measure_all(parser.parse_args().outcomes), indent=1))


if __name__ == "__main__":
    main()
