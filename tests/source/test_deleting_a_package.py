"""An input can be deleted with its folder and one line in ``source/__init__.py``. Everything else still works."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import acker_client
import acker_protocol

READS_FILES = """
import sys
from pathlib import Path

import acker_client.source

folder = Path(sys.argv[1])
assert Path(acker_client.source.__file__).is_relative_to(folder)
assert not set(sys.argv[2:]) & set(dir(acker_client.source))
lines = folder / "orders.txt"
lines.write_text("one\\ntwo\\n")
source = acker_client.source.Files(str(lines), name="orders")
input_, schema = source.input()
input_.start({})
assert [(part.start, part.stop) for part in input_.plan(10, 1).parts] == [(0, 2)]
print(source)
"""


@pytest.mark.slow
@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", ["frame", "kafka", "kinesis", "parquet", "put_back"])
def test_an_input_is_deleted_with_its_folder_and_one_line_of_a_list(name: str, tmp_path: Path) -> None:
    copy = tmp_path / "acker_client"
    shutil.copytree(Path(acker_client.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.rmtree(copy / "source" / name)
    package = f"acker_client.source.{name}"
    listing = copy / "source" / "__init__.py"
    lines = listing.read_text().splitlines(keepends=True)
    kept = [line for line in lines if package not in line]
    assert len(kept) == len(lines) - 1
    listing.write_text("".join(kept))

    assert [path for path in sorted(copy.rglob("*.py")) if package in imported_by(path)] == []
    protocol = Path(acker_protocol.__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-c", READS_FILES, str(tmp_path), *import_module(package).__all__],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{protocol}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("<Files 'orders', not started")


def imported_by(path: Path) -> set[str]:
    """Return the packages ``acker_client.source.*`` that a module imports, also inside a function."""
    names = set(_imported(ast.parse(path.read_text())))
    return {".".join(name.split(".")[:3]) for name in names if name.startswith("acker_client.source.")}


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
