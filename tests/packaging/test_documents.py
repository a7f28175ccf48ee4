"""Documents and manifests agree with the code."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest

from acker_service.config import OPTIONS, flag
from tests.packaging import programs

ROOT = Path(__file__).parents[2]
PACKAGES = [
    "acker_service",
    "acker_zookeeper",
    "proto/acker_protocol",
    "client/acker_client",
    "acker_testing",
    "command/acker_command",
]
DOCUMENTS = [ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs/decisions").glob("*.md"))]
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


def test_make_targets_that_contributing_names_exist() -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = re.findall(r"`make ((?:[a-z-]+ ?)+)", (ROOT / "CONTRIBUTING.md").read_text())
    assert len(named) > 10
    assert {target for names in named for target in names.split()} <= set(targets)


def test_the_changelog_has_this_version() -> None:
    version = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version
    assert f"## [{version[1]}]" in (ROOT / "CHANGELOG.md").read_text()


def test_every_package_has_a_docstring_and_stands_in_the_architecture() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    for package in ("acker_service", "client/acker_client"):
        for path in (ROOT / package).rglob("__init__.py"):
            assert ast.get_docstring(ast.parse(path.read_text())), f"{path} has no docstring"
            name = path.parent.relative_to((ROOT / package).parent).as_posix()
            assert f"| `{name}` |" in text, f"{name} is not in the table of packages in ARCHITECTURE.md"


@functools.cache
def modules() -> list[Path]:
    """Return all modules of the repository."""
    places = [ROOT / package for package in (*PACKAGES, "tests", "benchmarks")]
    return [path for place in places for path in place.rglob("*.py")]


def modules_named(path: str) -> list[Path]:
    """Return the modules whose path ends with ``path``, as documents name them."""
    return [module for module in modules() if module.as_posix().endswith(f"/{path}")]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_modules_that_a_document_names_exist(document: Path) -> None:
    for path in re.findall(r"`([\w/]+\.py)`", document.read_text()):
        assert modules_named(path), f"{document.name}: there is no {path}"


def test_functions_that_the_architecture_names_are_in_their_modules() -> None:
    text = " ".join((ROOT / "ARCHITECTURE.md").read_text().split())
    named = re.findall(r"`([\w.]+)` \(`([\w/]+\.py)`\)", text)
    assert len(named) > 20
    for function, path in named:
        sources = [module.read_text() for module in modules_named(path)]
        for name in function.split("."):
            found = re.compile(rf"\b(def|class) {name}\b")
            assert any(found.search(source) for source in sources), f"{path} has no {function}"


def test_every_decision_is_listed() -> None:
    folder = ROOT / "docs/decisions"
    listed = re.findall(r"\]\((\d{3}-[\w-]+\.md)\)", (folder / "README.md").read_text())
    assert listed == sorted(path.name for path in folder.glob("[0-9]*.md"))


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md"])
@pytest.mark.parametrize(
    ("lacks", "says"), [("", ""), ("python", "the acker needs Python"), ("java", "java: not found")]
)
def test_the_first_command_fetches_nothing_where_python_is_too_old_or_java_is_missing(
    tmp_path: Path, page: str, lacks: str, says: str
) -> None:
    (command,) = re.findall(r"^```sh\n(python -c .*?\n.*?\n)", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    if lacks == "python":
        command = command.replace("(3, 11)", "(99, 0)")
    programs = {"python": f'[ "$1" = -m ] && echo fetched && exit; exec {sys.executable} "$@"', "java": "exit 0"}
    for name, script in programs.items():
        if name != lacks or name == "python":
            (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
            (tmp_path / name).chmod(0o755)
    shell = ["/bin/sh", "-c", command]
    run = subprocess.run(shell, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert (run.returncode == 0, run.stdout) == ((True, "fetched\n") if not lacks else (False, ""))
    assert says in run.stderr
    assert run.stderr.count("\n") == bool(lacks)


@functools.cache
def sources_of_packages() -> dict[Path, str]:
    """Return the texts of the shipped modules, without import lines."""
    paths = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if path.parent.name != "v1")
    return {path: re.sub(r"^(from|import) .*$", "", path.read_text(), flags=re.MULTILINE) for path in paths}


def glossary() -> list[str]:
    """Return the words of the glossary in ARCHITECTURE.md."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    rows = text.partition("| word | meaning |\n|---|---|\n")[2].partition("\n\n")[0]
    return [row.split("|")[1].strip() for row in rows.splitlines()]


@pytest.mark.parametrize("word", glossary())
def test_each_word_of_the_glossary_is_used(word: str) -> None:
    pattern = re.compile(rf"\b{word}(s|es)?\b".replace(" ", "[ _]"), re.IGNORECASE)
    users = [path for path, text in sources_of_packages().items() if pattern.search(text.replace("_", " "))]
    assert users, f"{word!r} is in the glossary of ARCHITECTURE.md and nowhere in the code"


def test_no_two_classes_have_one_name() -> None:
    names: dict[str, list[str]] = {}
    for path, text in sources_of_packages().items():
        for name in re.findall(r"^class ([A-Z]\w*)", text, re.MULTILINE):
            names.setdefault(name, []).append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in names.items() if len(paths) > 1} == {}
