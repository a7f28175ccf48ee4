"""Documents and manifests hold what the code holds."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

from acker_service.config import OPTIONS, flag
from tests.packaging import programs

ROOT = Path(__file__).parents[2]
MANIFESTS = ["Dockerfile", "deploy/compose.yaml", "deploy/k8s/acker.yaml", "deploy/k8s/sidecar.yaml"]


def test_every_program_of_the_documents_is_python() -> None:
    texts = programs.programs()
    assert len(texts) >= 15
    for text in texts.values():
        ast.parse(text)


@pytest.mark.parametrize("manifest", MANIFESTS)
def test_manifests_name_options_that_exist(manifest: str) -> None:
    flags = set(re.findall(r'"(--[a-z-]+)"', (ROOT / manifest).read_text()))
    assert flags <= {flag(option.name) for option in OPTIONS}


def test_the_changelog_has_this_version() -> None:
    version = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version
    assert f"## [{version[1]}]" in (ROOT / "CHANGELOG.md").read_text()


def test_every_package_says_what_it_is_for_and_stands_in_the_architecture() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    for package in ("acker_service", "client/acker_client"):
        for path in (ROOT / package).rglob("__init__.py"):
            assert ast.get_docstring(ast.parse(path.read_text())), f"{path} has no docstring"
            name = str(path.parent.relative_to((ROOT / package).parent))
            assert name in ("acker_service", "acker_client") or f"`{name}`" in text, f"{name} is not in ARCHITECTURE.md"


def test_every_place_that_is_named_for_a_question_exists() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text().partition("## Where is ...?")[2].partition("\n## ")[0]
    paths = re.findall(r"`([\w/]+\.py)`", text)
    assert len(paths) > 20
    modules = {str(path) for path in ROOT.rglob("acker_*/**/*.py")}
    for path in paths:
        is_module = any(module.endswith(f"/{path}") for module in modules)
        assert is_module or (ROOT / path).exists(), f"there is no {path}"


PACKAGES = ["acker_service", "proto/acker_protocol", "client/acker_client", "acker_testing", "command/acker_command"]
# These speak of Spark's stages.
EXCEPTIONS = {
    "stage": {"look.py", "executions.py", "notes.py", "chain.py"},
}


@functools.cache
def sources_of_packages() -> dict[Path, str]:
    """The modules that are shipped, without the names of what they import."""
    paths = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if path.parent.name != "v1")
    return {path: re.sub(r"^(from|import) .*$", "", path.read_text(), flags=re.MULTILINE) for path in paths}


def table(head: str) -> list[str]:
    """The first column of the table of ARCHITECTURE that begins with ``head``."""
    rows = (ROOT / "ARCHITECTURE.md").read_text().partition(f"| {head} |\n|---|---|\n")[2].partition("\n\n")[0]
    return [row.split("|")[1].strip() for row in rows.splitlines()]


@pytest.mark.parametrize("word", table("word | meaning"))
def test_each_word_of_the_table_is_used(word: str) -> None:
    pattern = re.compile(rf"\b{word}(s|es)?\b".replace(" ", "[ _]"), re.IGNORECASE)
    users = [path for path, text in sources_of_packages().items() if pattern.search(text.replace("_", " "))]
    assert users, f"{word!r} is in ARCHITECTURE's table of words, and nowhere in the code"


@pytest.mark.parametrize("word", [word for words in table("not | but") for word in words.split(", ")])
def test_words_that_are_not_said_are_not_said(word: str) -> None:
    pattern = re.compile(rf"\b{word}s?\b", re.IGNORECASE)
    for path, text in sources_of_packages().items():
        if path.name in EXCEPTIONS.get(word, ()):
            continue
        found = pattern.search(text.replace("_", " "))
        assert not found, f"{path.relative_to(ROOT)} says {found and found[0]!r}; see the words in ARCHITECTURE.md"


def test_no_two_classes_have_one_name() -> None:
    names: dict[str, list[str]] = {}
    for path, text in sources_of_packages().items():
        for name in re.findall(r"^class ([A-Z]\w*)", text, re.MULTILINE):
            names.setdefault(name, []).append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in names.items() if len(paths) > 1} == {}
