"""``python -m tests.plain --seeds 200``: random plain programs on real Spark and real servers, against an oracle."""

from __future__ import annotations

import argparse
import os
import sys

from tests.plain import mutants
from tests.plain.bench import Bench


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.plain", description=__doc__)
    parser.add_argument("--seed", type=int, nargs="+", help="run these seeds alone, and print what happens in them")
    parser.add_argument("--from", dest="first", type=int, default=1, help="the first of --seeds")
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds")
    parser.add_argument("--mutant", default="", help="break the product in this way (tests/plain/mutants.py)")
    given = parser.parse_args()
    os.environ[mutants.VARIABLE] = given.mutant
    mutants.apply()
    seeds = given.seed or range(given.first, given.first + given.seeds)
    with Bench() as bench:
        return bench.report(seeds, shows=given.seed is not None)


if __name__ == "__main__":
    sys.exit(main())
