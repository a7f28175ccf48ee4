"""Run: runs every benchmark in a process of its own, one after the other. Makes one JSON file and one table.

    python -m benchmarks.run [--quick] [--storm] [--kafka] [--attacks] [--fleet] [--only PART ...]

Writes .build/bench.json and prints the table: what was measured, on which machine, and which targets are met. A part
that fails is named, the others go on, and the exit status is 1. Targets that are not met do not fail the run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import machine, targets

PATH = Path(__file__).parents[1] / ".build" / "bench.json"


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A benchmark: ``python -m benchmarks.NAME`` prints JSON with its figures under its name. ``quick``: flags of a
    trial run."""

    name: str
    quick: tuple[str, ...] = ("--quick",)


# Benchmarks that fetch much from Maven Central, or that measure no speed.
ON_REQUEST = (Benchmark("kafka"), Benchmark("storm"), Benchmark("attacks"), Benchmark("fleet"))
PARTS = (
    Benchmark("ledger", ("--pending", "10000", "100000")),
    Benchmark("service"),
    Benchmark("client"),
    Benchmark("tracker", ("--outcomes", "200000")),
    Benchmark("placement"),
    Benchmark("spark"),
    Benchmark("frame"),
    Benchmark("first"),
)
ALL = (*PARTS, *ON_REQUEST)


def measure(part: Benchmark, quick: bool) -> Any:
    """Run one part and return its figures. Raises RuntimeError if it fails. Its log goes to standard error."""
    begun = time.monotonic()
    print(f"benchmarks.{part.name} ...", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", f"benchmarks.{part.name}", *(part.quick if quick else ())]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"benchmarks.{part.name} ended with status {done.returncode}")
    print(f"benchmarks.{part.name}: {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    figures = json.loads(done.stdout)
    return figures.get(part.name, figures)


def show(rows: Sequence[Sequence[str]]) -> str:
    """Return the rows as text, in columns."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="a trial run with a small part of the work; do not quote its figures"
    )
    parser.add_argument("--storm", action="store_true", help="Apache Storm too, from Maven Central")
    parser.add_argument("--kafka", action="store_true", help="Apache Kafka too, from Maven Central")
    parser.add_argument("--attacks", action="store_true", help="a server under attack too; some six minutes")
    parser.add_argument("--fleet", action="store_true", help="a model of ten thousand executors too; some minutes")
    parser.add_argument("--only", nargs="+", metavar="PART", choices=[part.name for part in ALL])
    options = parser.parse_args()
    wanted = options.only or [part.name for part in ALL if part in PARTS or vars(options)[part.name]]
    figures: dict[str, Any] = {"machine": machine.describe(), "quick": options.quick}
    failed = []
    for part in (part for part in ALL if part.name in wanted):
        try:
            figures[part.name] = measure(part, options.quick)
        except (RuntimeError, ValueError) as error:
            failed.append(str(error))
    PATH.parent.mkdir(exist_ok=True)
    PATH.write_text(json.dumps(figures, indent=1) + "\n")
    print("  ".join(f"{name} {value}" for name, value in figures["machine"].items()))
    print(show([["part", "what", "figure", "target", ""], *targets.table(figures)]))
    print(f"all figures: {PATH}" + (" (a quick run: no figures to quote)" if options.quick else ""))
    print(*failed, sep="\n", end="\n" if failed else "", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
