"""The README's programs as files: ``python programs.py FOLDER`` writes one for each ``python`` block of README.md.

So that `make check` types them and the tests run them as they stand. Decides nothing about what they hold.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def programs(readme: Path = README) -> list[str]:
    """The text of each ``python`` block, in order."""
    return re.findall(r"^```python\n(.*?)^```$", readme.read_text(), re.MULTILINE | re.DOTALL)


def write(folder: Path) -> list[Path]:
    """Write the programs as ``program_1.py`` and so on; what an earlier README had is removed."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("program_*.py"):
        old.unlink()
    paths = [folder / f"program_{number}.py" for number in range(1, len(programs()) + 1)]
    for path, text in zip(paths, programs(), strict=True):
        path.write_text(text)
    return paths


if __name__ == "__main__":
    write(Path(sys.argv[1]))
