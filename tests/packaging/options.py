"""Writes the server's options into README.md: ``python tests/packaging/options.py``. A test holds the two together."""

from __future__ import annotations

import re
from pathlib import Path

from acker_service.config import OPTIONS, flag

README = Path(__file__).parents[2] / "README.md"
PLACE = re.compile(r"(<!-- options: .*? -->\n).*?(<!-- end of options -->)", re.DOTALL)


def table() -> str:
    """One row an option: flag, default, help."""
    rows = [f"| `{flag(option.name)}` | {_default(option.default)} | {option.metadata['help']} |" for option in OPTIONS]
    return "\n".join(["| option | default | |", "|---|---|---|", *rows]) + "\n"


def written(text: str) -> str:
    """The README with the table in its place."""
    return PLACE.sub(lambda place: place[1] + table() + place[2], text)


def _default(value: object) -> str:
    return "off" if value is None or value is False else f"`{value}`"


if __name__ == "__main__":
    README.write_text(written(README.read_text()))
