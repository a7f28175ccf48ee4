"""Tracker: measures what a source's driver does in memory. Figures: outcomes a second into the in-flight window and
from there into a checkpoint, memory of records in flight, lines a second out of files.

Outcomes come in stretches of a million, as a watch brings them, in the order of a ledger's sweep (random) and with one
in a hundred not acked, so that the checkpoint has as many holes. As in a run, the driver finds the record of each
outcome, schedules replays, and folds done records into the ranges of twelve partitions, as run lengths. Emissions come
in batches of half a million. The figures of memory say by how much the process grows: with all records in flight, and
at the peak while outcomes come. Lines are counted, cut into slices and made into Arrow columns, without Spark. All
figures are medians.
Run it: ``python benchmarks/tracker.py``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from acker_client.source.decoding.lines import TextParser
from acker_client.source.files.input import FileInput
from acker_client.source.records.in_flight import InFlight
from acker_client.source.records.input import Chosen
from acker_client.source.records.parts import Parts
from acker_client.source.records.retry import Retry
from acker_client.source.records.tracker import compiled
from acker_protocol.ids import root_ids
from acker_protocol.messages import Cause, Outcomes, Verdict

ROUNDS = 3
STRETCH = 1_000_000
BATCH = 500_000
PARTITIONS = 12
LINES = 2_000_000
MB = 1 << 20


@dataclass(frozen=True, slots=True)
class Planned:
    """A part of a partition."""

    partition: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Applied:
    """The figures of one round. ``apply_s``: seconds to apply all outcomes. ``commit_s``: seconds from then until the
    run lengths of the checkpoint are ready. Memory in MB: with all records in flight, and at the peak."""

    apply_s: float
    commit_s: float
    in_flight_mb: float
    peak_mb: float
    holes: int


def measure_all(outcomes: int = 10_000_000, rounds: int = ROUNDS) -> dict[str, float]:
    """Apply ``outcomes`` outcomes to one window. Return seconds and rates, as medians of ``rounds``."""
    compiled()
    applied = [_apply(outcomes) for _ in range(rounds)]
    apply_s = statistics.median(each.apply_s for each in applied)
    commit_s = statistics.median(each.commit_s for each in applied)
    plan_s, read_s = (statistics.median(column) for column in zip(*(_read() for _ in range(rounds)), strict=True))
    return {
        "outcomes": outcomes,
        "apply_s": round(apply_s, 3),
        "commit_s": round(commit_s, 3),
        "outcomes_per_s": round(outcomes / apply_s),
        "outcomes_to_checkpoint_per_s": round(outcomes / (apply_s + commit_s)),
        "holes": applied[0].holes,
        # From the first round: later ones reuse memory that the process has already.
        "in_flight_mb": round(applied[0].in_flight_mb),
        "peak_mb": round(applied[0].peak_mb),
        "lines": LINES,
        "lines_planned_per_s": round(LINES / plan_s),
        "lines_read_per_s": round(LINES / read_s),
    }


def _apply(count: int) -> Applied:
    """Apply ``count`` outcomes, schedule replays of the failed ones, and prepare a checkpoint of the others."""
    order = np.random.default_rng(1).permutation(count)
    before_mb = _resident_mb()
    in_flight, parts = InFlight(1 << 40, Retry(), draw=lambda: 0.5), Parts[Planned]({})
    for number, first in enumerate(range(0, count, BATCH)):
        start = number // PARTITIONS * BATCH
        part = Planned(f"topic:{number % PARTITIONS}", start, start + min(BATCH, count - first))
        in_flight.emit(parts.add_parts([part]), replays=0)
    in_flight_mb = _resident_mb() - before_mb
    apply_s = 0.0
    peak_mb = in_flight_mb
    for at in range(0, count, STRETCH):
        outcomes = _outcomes(order[at : at + STRETCH], in_flight.tracker.base)
        begin_s = time.perf_counter()
        in_flight.apply_outcomes(outcomes, now=0.0)
        apply_s += time.perf_counter() - begin_s
        peak_mb = max(peak_mb, _resident_mb() - before_mb)
    begin_s = time.perf_counter()
    parts.finish(in_flight.take_finished())
    parts.forget_parts(in_flight.compact())
    runs = [parts.done[partition].to_runs() for partition in parts.take_changed()]
    commit_s = time.perf_counter() - begin_s
    assert in_flight.counts.acked + in_flight.schedule.waiting == count
    assert sum(sum(done[0::2]) for done in runs) == in_flight.counts.acked
    return Applied(apply_s, commit_s, in_flight_mb, peak_mb, sum(done.holes for done in parts.done.values()))


def _outcomes(numbers: np.ndarray[tuple[int], np.dtype[np.int64]], base: int) -> Outcomes:
    """Return the outcomes of these emissions. One in a hundred is not acked."""
    is_bad = numbers % 100 == 99
    verdicts = np.where(is_bad, Verdict.FAILED, Verdict.ACKED).astype(np.uint8)
    return Outcomes(root_ids(base, numbers.astype(np.uint64)), verdicts, is_bad.astype(np.uint32), (Cause.UNFINISHED,))


def _resident_mb() -> float:
    """Return the resident memory of the process in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MB


def _read() -> tuple[float, float]:
    """Return (seconds to plan, seconds to read) files of LINES lines."""
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
