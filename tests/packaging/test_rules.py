"""The tables in tests/source/rules.md name tests that exist, or give a reason where a rule has no test."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RULES = ROOT / "tests" / "source" / "rules.md"
ROW = re.compile(r"^\| ([AKSZ]\d+) \| (.+?) \| (.+?) \| (.+?) \|$", re.MULTILINE)
TEST = re.compile(r"`([\w/]+\.py)::(\w+)`")


def rows() -> list[tuple[str, str, str]]:
    """Return (number, what is done here, shown by) for each rule."""
    return [(number, here, shown) for number, _, here, shown in ROW.findall(RULES.read_text())]


def names_in(path: Path) -> set[str]:
    """Return the names that a test module defines or assigns."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


def test_rules_are_numbered_from_one_up_in_each_model() -> None:
    for model in "AKSZ":
        numbers = [int(number[1:]) for number, _, _ in rows() if number[0] == model]
        assert numbers == list(range(1, len(numbers) + 1))


def test_no_line_of_the_tables_is_left_out() -> None:
    lines = [line for line in RULES.read_text().splitlines() if re.match(r"\| [AKSZ]\d", line)]
    assert len(lines) == len(rows()) >= 60


@pytest.mark.sampled(93)
@pytest.mark.parametrize(("number", "here", "shown"), rows(), ids=lambda value: value if len(value) < 4 else "")
def test_a_rule_is_shown_by_tests_that_exist_or_says_why_not(number: str, here: str, shown: str) -> None:
    for file, name in TEST.findall(shown):
        path = ROOT / file if "/" in file else RULES.parent / file
        assert path.exists(), f"{number}: there is no {file}"
        assert name in names_in(path), f"{number}: there is no {name} in {file}"
    assert here.startswith(("kept", "differs: ")), f"{number}: {here}"
    assert TEST.search(shown) or shown.startswith("see "), f"{number}: {shown}"
