"""``python -m tests.schedules --seeds 200``: plain clients on real servers with every fault, against an oracle."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from tests.schedules.cluster import end_with_parent
from tests.schedules.conductor import Result
from tests.schedules.seeds import run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.schedules", description=__doc__)
    parser.add_argument("--seed", type=int, nargs="+", help="run these seeds alone, and print what happens in them")
    parser.add_argument("--from", dest="first", type=int, default=1, help="the first of --seeds")
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds")
    parser.add_argument("--times", type=int, default=1, help="how often each")
    parser.add_argument("--processes", type=int, default=1, help="how many at once")
    parser.add_argument("--mutant", default="", help="break the clients in this way (tests/schedules/mutants.py)")
    parser.add_argument("--keep", action="store_true", help="keep the folders of those that fail")
    given = parser.parse_args()
    seeds = given.seed if given.seed is not None else range(given.first, given.first + given.seeds)
    chosen = [seed for seed in seeds for _ in range(given.times)]
    began, failed, kinds = time.perf_counter(), list[int](), Counter[str]()
    for result in _results(chosen, given.processes, given.mutant, keeps=given.keep):
        kinds.update(finding.partition(":")[0] for finding in result.findings)
        if result.findings or given.seed is not None:
            print(result.schedule, *result.transcript, *result.findings[:20], sep="\n", flush=True)
        if result.findings:
            failed.append(result.schedule.seed)
            print(f"again: python -m tests.schedules --seed {result.schedule.seed} --times 5", flush=True)
        print(_line(result), flush=True)
    took_s = time.perf_counter() - began
    print(f"{len(chosen)} runs in {took_s:.0f} s, {took_s / len(chosen):.1f} s each; {len(failed)} failed: {failed}")
    print(dict(kinds))
    return 1 if failed else 0


def _line(result: Result) -> str:
    outcomes = ", ".join(f"{count} {verdict}" for verdict, count in sorted(result.outcomes.items()))
    faults = " ".join(fault.kind for fault in result.schedule.faults)
    end = f"{len(result.findings)} FINDINGS" if result.findings else "ok"
    return (
        f"seed {result.schedule.seed}: {end} in {result.seconds:.1f} s, R = {result.schedule.replicas}, {outcomes},"
        f" {result.excused} excused, {result.troubles} troubles; {faults}"
    )


def _results(seeds: list[int], processes: int, mutant: str, *, keeps: bool) -> Iterator[Result]:
    run_one = partial(run, mutant=mutant, keeps=keeps)
    if processes == 1:
        yield from map(run_one, seeds)
        return
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), end_with_parent) as pool:
        yield from pool.map(run_one, seeds)


if __name__ == "__main__":
    sys.exit(main())
