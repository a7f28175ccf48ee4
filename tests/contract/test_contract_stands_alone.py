"""Tests of this folder check the contract alone: they import no package of this project."""

from __future__ import annotations

import ast
from pathlib import Path

FOLDER = Path(__file__).parent
OURS = {
    "acker_protocol",
    "acker_client",
    "acker_service",
    "acker_command",
    "acker_testing",
    "acker_zookeeper",
    "tests",
}


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return {name.partition(".")[0] for name in names}


def test_the_contract_is_tested_with_nothing_of_ours() -> None:
    files = sorted(FOLDER.glob("*.py"))
    assert len(files) > 8
    for path in files:
        assert not imported(path) & OURS, path.name
        assert "import_module" not in path.read_text().replace('"import_module"', ""), path.name
