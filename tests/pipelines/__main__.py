"""``python -m tests.pipelines --seed 17``: run programs by their seeds, say what is wrong, and shrink what fails."""

from __future__ import annotations

import argparse
import sys

from tests.pipelines.bench import Bench, unchanged
from tests.pipelines.program import with_untracked, without_tracking

CHANGES = {"on": unchanged, "some": with_untracked, "off": without_tracking}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.pipelines", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this seed alone, and print its program")
    parser.add_argument("--from", dest="first", type=int, default=1, help="the seed to begin with")
    parser.add_argument("--seeds", type=int, default=20, help="how many seeds")
    parser.add_argument("--shrink", action="store_true", help="make a failing program as small as it goes")
    parser.add_argument("--tracking", choices=CHANGES, default="on", help="track all records, some, or none")
    parser.add_argument("--die", help=argparse.SUPPRESS)
    parser.add_argument("--server", help=argparse.SUPPRESS)
    given = parser.parse_args()
    seeds = [given.seed] if given.seed is not None else range(given.first, given.first + given.seeds)
    with Bench(server=given.server) as bench:
        if given.die:
            bench.die(given.seed, given.die)
            return 0
        return bench.report(seeds, shrinks=given.shrink, shows=given.seed is not None, change=CHANGES[given.tracking])


if __name__ == "__main__":
    sys.exit(main())
