"""Writes the table of figures into README.md from .build/bench.json: ``python -m benchmarks.readme``. Never by hand."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from benchmarks import targets
from benchmarks.run import PATH

README = Path(__file__).parents[1] / "README.md"
PLACE = re.compile(r"(<!-- figures: .*? -->\n).*?(<!-- end of figures -->)", re.DOTALL)


def table(figures: dict[str, Any]) -> str:
    """The machine in a sentence, and the table in Markdown."""
    machine = figures["machine"]
    named = ", ".join(f"{name} {machine[name]}" for name in ("python", "numpy", "numba", "grpcio", "pyspark"))
    head = f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB; {named}. "
    head += "Medians (of `frame` and `kafka`: of the rounds' ratios).\n\n"
    lines = [f"| {' | '.join(row)} |" for row in targets.table(figures)]
    return head + "\n".join(["| part | what | figure | target | |", "|---|---|---|---|---|", *lines]) + "\n"


def main() -> int:
    figures = json.loads(PATH.read_text())
    if figures["quick"]:
        sys.exit(f"{PATH} is of a quick run, which gives no figures to quote: run make bench")
    README.write_text(PLACE.sub(lambda place: place[1] + table(figures) + place[2], README.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
