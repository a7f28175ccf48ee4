"""``python -m tests.simulation --seeds 500``: run cases by their seeds, and show what fails as a conversation."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial

from tests.simulation.case import Case
from tests.simulation.shrink import shrunk
from tests.simulation.world import Result, collect_seldom, of_seed, simulate

# How many failures are shown in full. Others get one line.
SHOWN = 3


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this seed alone, and print what happens in it")
    parser.add_argument("--from", dest="first", type=int, default=1, help="the first of --seeds")
    parser.add_argument("--seeds", type=int, default=500, help="how many seeds")
    parser.add_argument("--processes", type=int, default=1, help="how many at once")
    parser.add_argument("--shrink", action="store_true", help="make a failing case as small as it goes")
    parser.add_argument("--strict", action="store_true", help="accept no known gap as an excuse")
    given = parser.parse_args()
    if given.seed is not None:
        return _show(given.seed, shrinks=given.shrink, strict=given.strict)
    seeds = range(given.first, given.first + given.seeds)
    return _report(seeds, given.processes, shrinks=given.shrink, strict=given.strict)


def _show(seed: int, *, shrinks: bool, strict: bool) -> int:
    result = simulate(Case.of(seed), keeps_lines=not shrinks, strict=strict)
    if shrinks and result.kind:
        result = simulate(shrunk(result, strict=strict).case, keeps_lines=True, strict=strict)
    print(result.case, *result.lines, result.why or "no promise was broken", sep="\n")
    return 1 if result.kind else 0


def _report(seeds: range, processes: int, *, shrinks: bool, strict: bool) -> int:
    began, shown = time.perf_counter(), 0
    kinds, replays, virtual_s = Counter[str](), Counter[str](), 0.0
    for done, result in enumerate(_results(seeds, processes, strict=strict), 1):
        virtual_s += result.seconds
        replays.update(result.replays)
        if result.kind:
            kinds[result.kind] += 1
            print(f"seed {result.case.seed}: {result.why}", flush=True)
            if shown < SHOWN:
                shown += 1
                _show(result.case.seed, shrinks=shrinks, strict=strict)
        if done % 1000 == 0 or done == len(seeds):
            rate = done / (time.perf_counter() - began)
            print(f"{done} of {len(seeds)} seeds, {rate:.1f} a second, {sum(kinds.values())} failed", flush=True)
    print(f"{virtual_s / 3600:.1f} hours of virtual time; emissions that were replayed:")
    for why, count in sorted(replays.items(), key=lambda item: -item[1]):
        print(f"{count:9d}  {why}")
    return 1 if kinds else 0


def _results(seeds: range, processes: int, *, strict: bool) -> Iterator[Result]:
    run = partial(of_seed, strict=strict)
    if processes == 1:
        yield from map(run, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(processes, collect_seldom) as pool:
        yield from pool.imap(run, seeds, chunksize=20)


if __name__ == "__main__":
    sys.exit(main())
