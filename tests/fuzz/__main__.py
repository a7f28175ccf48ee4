"""``python -m tests.fuzz --inputs 1000000``: damaged input for all readers. Prints each input that broke a rule."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

from tests.fuzz.targets import Target, targets

# How many inputs of one target are drawn from one seed, so that a failure can be drawn again.
INPUTS_A_SEED = 1000


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="how many inputs for all targets together")
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--only", default="", help="the targets whose name begins with this")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        chosen = [each for each in targets(Path(folder)) if each.name.startswith(given.only)]
        weights = sum(each.weight for each in chosen)
        return sum(fuzz(each, given.inputs * each.weight // weights, given.seed) for each in chosen) and 1


def fuzz(target: Target, inputs: int, seed: int) -> int:
    """Feed ``inputs`` to a target, and return how many broke a rule."""
    began, accepted, failures = time.perf_counter(), 0, Counter[str]()
    for first in range(0, inputs, INPUTS_A_SEED):
        draw = random.Random(seed * 1_000_003 + first)
        for _ in range(min(INPUTS_A_SEED, inputs - first)):
            content = target.draw(draw)
            try:
                accepted += target.read(content)
            except Exception as error:  # noqa: BLE001  # whatever comes is what we look for
                where = traceback.extract_tb(error.__traceback__)[-1]
                name = f"{type(error).__name__}: {str(error)[:200]} ({where.filename}:{where.lineno})"
                failures[name] += 1
                if failures[name] == 1:
                    print(f"{target.name}: {name}\n  {content[:2000]!r}", flush=True)
    rate = inputs / (time.perf_counter() - began + 1e-9)
    print(
        f"{target.name}: {inputs} inputs, {accepted} accepted, {failures.total()} failed, {rate:.0f} a second",
        flush=True,
    )
    return failures.total()


if __name__ == "__main__":
    sys.exit(main())
