"""``python -m tests.pipelines.bodies --seed 17``: run sink bodies by seed, say what is wrong, shrink what fails."""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.pipelines.bench import Bench
from tests.pipelines.bodies.body import Body, generate
from tests.pipelines.bodies.runner import Result, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.pipelines.bodies", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this seed alone, and print its body")
    parser.add_argument("--from", dest="first", type=int, default=1, help="the first of --seeds")
    parser.add_argument("--seeds", type=int, default=50, help="how many seeds")
    parser.add_argument("--shrink", action="store_true", help="make a failing body as small as it goes")
    given = parser.parse_args()
    seeds = [given.seed] if given.seed is not None else range(given.first, given.first + given.seeds)
    logging.disable(logging.CRITICAL)
    with Bench() as bench:
        bench.spark.conf.set("spark.acker.servers", str(bench._address))
        return report(bench, seeds, shrinks=given.shrink, shows=given.seed is not None)


def report(bench: Any, seeds: Sequence[int], *, shrinks: bool, shows: bool) -> int:
    """Run ``seeds`` and print the findings. Return 1 if there are any, else 0."""
    began = time.monotonic()
    kinds: Counter[str] = Counter()
    acked = records = 0
    for seed in seeds:
        body = generate(seed)
        result = once(bench, body)
        acked, records = acked + result.acked, records + result.records
        kinds.update({kind for kind, _ in result.findings})
        if result.findings and shrinks:
            body, result = shrunk(bench, body, result)
        if result.findings or shows:
            print(f"{body}\n    {result}", flush=True)
    took = time.monotonic() - began
    print(f"{len(seeds)} bodies in {took:.0f} s; {acked} of {records} ACKED; findings: {dict(kinds) or 'none'}")
    return 1 if kinds else 0


def once(bench: Any, body: Body) -> Result:
    """Run a body in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="acker-body-", ignore_cleanup_errors=True) as folder:
        return run(body, bench.spark, str(bench._address), Path(folder))


def shrunk(bench: Any, body: Body, result: Result) -> tuple[Body, Result]:
    """Return the smallest body found that has a finding of the same kind, and its result."""
    kinds = {kind for kind, _ in result.findings}
    for less in _smaller(body):
        its = once(bench, less)
        if kinds & {kind for kind, _ in its.findings}:
            return shrunk(bench, less, its)
    return body, result


def _smaller(body: Body) -> Iterator[Body]:
    for index, act in enumerate(body.acts):
        before, after = body.acts[:index], body.acts[index + 1 :]
        if before or after:
            yield replace(body, acts=before + after)
        lesser = [replace(act, between=act.between[:at] + act.between[at + 1 :]) for at in range(len(act.between))]
        lesser += [replace(act, mishap="", then="raise")] if act.mishap else []
        lesser += [replace(act, in_thread=False)] if act.in_thread else []
        lesser += [replace(act, day=None)] if act.day is not None else []
        for less in lesser:
            yield replace(body, acts=(*before, less, *after))
    if body.records > 6:
        yield replace(body, records=6)
    if body.slices > 1:
        yield replace(body, slices=1)
    if body.says_done:
        yield replace(body, says_done=False)


if __name__ == "__main__":
    sys.exit(main())
