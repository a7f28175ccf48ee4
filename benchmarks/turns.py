"""Turns: runs the jobs of a comparison in turn, round by round, so that a slow moment of the machine slows them all."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any


def seconds_of(job: Callable[[], object]) -> float:
    """Run a job and return its seconds."""
    begun = time.perf_counter()
    job()
    return time.perf_counter() - begun


def times_of(
    jobs: Mapping[str, Callable[[], Any]],
    rounds: int,
    warm_up: int = 1,
    measure: Callable[[Callable[[], Any]], float] = seconds_of,
) -> dict[str, list[float]]:
    """Return the seconds of each job, round by round, after ``warm_up`` runs of each that do not count. The first job
    of a round is the last one of the next round. ``measure``: runs a job and returns its seconds."""
    for job in jobs.values():
        for _ in range(warm_up):
            job()
    taken: dict[str, list[float]] = {name: [] for name in jobs}
    for turn in range(rounds):
        for name, job in list(jobs.items())[:: (-1) ** turn]:
            taken[name].append(measure(job))
            print(f"{name}: {taken[name][-1]:.2f} s", file=sys.stderr, flush=True)
    return taken


def medians_of(jobs: Mapping[str, Callable[[], object]], rounds: int, warm_up: int = 1) -> dict[str, float]:
    """Run jobs as :func:`times_of` does, and return the median seconds of each."""
    return medians(times_of(jobs, rounds, warm_up))


def medians(times: Mapping[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(taken) for name, taken in times.items()}


def speed_over(times: Mapping[str, list[float]], job: str, other: str) -> float:
    """Return how many times as fast as ``other`` a ``job`` is: the median over the rounds. A round that is slow for
    both jobs does not change the ratio."""
    return statistics.median(others / its for its, others in zip(times[job], times[other], strict=True))
