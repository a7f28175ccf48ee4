"""The programs of the documents as files: ``python programs.py FOLDER`` writes one for each ``python`` block.

The documents are README.md and all pages of docs/. `make check` type-checks the programs, and the tests run them.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAM = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def documents() -> list[Path]:
    """Return README.md and the pages of docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def programs() -> dict[str, str]:
    """Return the programs by name (page and number of the block in it). A program that two pages share is one."""
    found: dict[str, str] = {}
    for path in documents():
        page = re.sub(r"\W", "_", path.relative_to(ROOT).with_suffix("").as_posix().lower())
        for number, text in enumerate(PROGRAM.findall(path.read_text()), 1):
            if text not in found.values():
                found[f"{page}_{number}"] = text
    return found


def only(word: str) -> str:
    """Return the only program that contains ``word``."""
    (text,) = (text for text in programs().values() if word in text)
    return text


def write(folder: Path) -> list[Path]:
    """Write each program as a module of ``folder``, after removing all modules there. Returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.py"):
        old.unlink()
    paths = [folder / f"{name}.py" for name in programs()]
    for path, text in zip(paths, programs().values(), strict=True):
        path.write_text(text)
    return paths


if __name__ == "__main__":
    write(Path(sys.argv[1]))
