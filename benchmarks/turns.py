"""Turns: jobs that are compared run in turn, round by round, so that what slows the machine slows them all."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping


def medians_of(jobs: Mapping[str, Callable[[], object]], rounds: int, warm_up: int = 1) -> dict[str, float]:
    """Median seconds of each job, after so many runs of it that are not counted."""
    for job in jobs.values():
        for _ in range(warm_up):
            job()
    taken: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(rounds):
        for name, job in jobs.items():
            begun = time.perf_counter()
            job()
            taken[name].append(time.perf_counter() - begun)
            print(f"{name}: {taken[name][-1]:.2f} s", file=sys.stderr, flush=True)
    return {name: statistics.median(times) for name, times in taken.items()}
