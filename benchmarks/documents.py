"""Documents: writes the figures of .build/bench.json into docs/benchmarks.md, and their chart beside it.

``python -m benchmarks.documents``. Without .build/bench.json it only redraws the chart, from the table in the document.
"""

from __future__ import annotations

import json
import re
import sys
from html import escape
from pathlib import Path
from typing import Any

from benchmarks import targets
from benchmarks.run import PATH

PAGE = Path(__file__).parents[1] / "docs/benchmarks.md"
CHART = PAGE.parent / "pictures/benchmarks.svg"
PLACE = re.compile(r"(<!-- figures: .*? -->\n).*?(<!-- end of figures -->)", re.DOTALL)
# A row with a ratio to the same job without the acker: what, figure, target, met or not.
ROW = re.compile(
    r"^\| (?:spark|frame|first|kafka) \| (.*(?:untracked|untracked and fused by hand|same reader|over mapInPandas)) "
    r"\| ([\d.]+) x \| >= ([\d.]+) x \| (.*?) \|$",
    re.MULTILINE,
)

WIDTH, LEFT, TOP, ROW_HEIGHT = 860, 430, 64, 26
PIXELS_OF_ONE = 130
TITLE = "Speed of a tracked job: 1 is the same job without the acker"
LABELS = {
    " over untracked and fused by hand": ", beside one fused by hand",
    " over untracked, same reader": " over a topic",
    " over untracked": "",
    " over mapInPandas": ", beside mapInPandas",
    "likewise, untracked and fused by hand": "words job over a topic, beside one fused by hand",
    "a query over Spark's own connector behind tracked": "query over Kafka behind tracked",
    "a query behind tracked": "query behind tracked",
}
MET, NOT_MET = "#2a7f62", "#c4572e"


def table(figures: dict[str, Any]) -> str:
    """Return a sentence about the machine, and the table in Markdown."""
    machine = figures["machine"]
    named = ", ".join(f"{name} {machine[name]}" for name in ("python", "numpy", "numba", "grpcio", "pyspark"))
    head = f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB; {named}. "
    head += "Medians (of `frame` and `kafka`: of the rounds' ratios).\n\n"
    lines = [f"| {' | '.join(row)} |" for row in targets.table(figures)]
    return head + "\n".join(["| part | what | figure | target | |", "|---|---|---|---|---|", *lines]) + "\n"


def chart(page: str) -> str:
    """Return an SVG of the tracked jobs in the table of ``page``: a bar for each, and a mark at its target."""
    rows = ROW.findall(page)
    bottom = TOP + ROW_HEIGHT * len(rows) + 4
    one = LEFT + PIXELS_OF_ONE
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 40}" role="img" aria-label="{TITLE}">',
        "<style>text { font: 13px sans-serif; }</style>",
        f'<rect width="{WIDTH}" height="{bottom + 40}" fill="#ffffff"/>',
        f'<text x="16" y="28" style="font: bold 16px sans-serif">{TITLE}</text>',
        '<text x="16" y="48" fill="#555555">More is better. The black mark is the target.</text>',
    ]
    for at, row in enumerate(rows):
        lines += _bar(TOP + ROW_HEIGHT * at, *row)
    lines += [
        f'<line x1="{one}" y1="{TOP - 8}" x2="{one}" y2="{bottom}" stroke="#888888" stroke-dasharray="3 3"/>',
        *_legend(16, bottom + 12, MET, "target met"),
        *_legend(126, bottom + 12, NOT_MET, "target not met"),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _bar(top: int, what: str, figure: str, target: str, met: str) -> list[str]:
    for long, short in LABELS.items():
        what = what.replace(long, short)
    color = MET if met == "met" else NOT_MET
    end, mark = LEFT + float(figure) * PIXELS_OF_ONE, LEFT + float(target) * PIXELS_OF_ONE
    return [
        f'<text x="{LEFT - 8}" y="{top + 15}" text-anchor="end">{escape(what.replace(",,", ",").rstrip(","))}</text>',
        f'<rect x="{LEFT}" y="{top + 3}" width="{end - LEFT:.0f}" height="16" fill="{color}"/>',
        f'<rect x="{mark:.0f}" y="{top}" width="2" height="22" fill="#000000"/>',
        f'<text x="{max(end, mark) + 8:.0f}" y="{top + 15}">{figure}</text>',
    ]


def _legend(left: int, top: int, color: str, text: str) -> list[str]:
    return [
        f'<rect x="{left}" y="{top}" width="12" height="12" fill="{color}"/>',
        f'<text x="{left + 18}" y="{top + 11}">{text}</text>',
    ]


def main() -> int:
    if PATH.exists():
        figures = json.loads(PATH.read_text())
        if figures["quick"]:
            sys.exit(f"{PATH} is of a quick run, which gives no figures to quote: run make bench")
        PAGE.write_text(PLACE.sub(lambda place: place[1] + table(figures) + place[2], PAGE.read_text()))
    CHART.write_text(chart(PAGE.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
