"""Documents and manifests hold what the code holds."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import metrics_table
import options
import programs
import pytest

from acker_service.config import OPTIONS, flag

ROOT = Path(__file__).parents[2]
MANIFESTS = ["Dockerfile", "deploy/compose.yaml", "deploy/k8s/acker.yaml", "deploy/k8s/sidecar.yaml"]


def test_the_readme_lists_the_options_of_the_server():
    text = options.README.read_text()
    assert options.written(text) == text


def test_the_readme_of_the_deployment_lists_the_metrics_of_the_server():
    text = metrics_table.README.read_text()
    assert metrics_table.written(text) == text


def test_the_readme_lists_the_options_of_files_and_says_what_each_means():
    texts = options.texts_of_files(options.README.read_text())
    assert list(texts) == [name for name, _ in options.options_of_files()]
    assert all(texts.values())


def test_every_program_of_the_readme_is_python():
    texts = programs.programs()
    assert len(texts) >= 3
    for text in texts:
        ast.parse(text)


@pytest.mark.parametrize("manifest", MANIFESTS)
def test_manifests_name_options_that_exist(manifest):
    flags = set(re.findall(r'"(--[a-z-]+)"', (ROOT / manifest).read_text()))
    assert flags <= {flag(option.name) for option in OPTIONS}


def test_the_changelog_has_this_version():
    version = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version
    assert f"## [{version[1]}]" in (ROOT / "CHANGELOG.md").read_text()


def rooms() -> dict[str, str]:
    """What the map of rooms says of each folder (or module) of ARCHITECTURE's tables, by its path."""
    found, base = {}, ""
    for line in (ROOT / "ARCHITECTURE.md").read_text().splitlines():
        if table := re.match(r"\| `(acker_\w+/[\w/]*)` \| decides \|", line):
            base = table[1]
        elif base and line.startswith("| `"):
            names, text = line.strip("|").split("|", 1)
            found |= {base + name: text for name in re.findall(r"`([\w/]+)`", names)}
        elif base and not line.startswith("|"):
            base = ""
    return found


@pytest.mark.parametrize("package", ["acker_service", "client/acker_client"])
def test_the_map_of_rooms_names_every_module_in_its_folder(package):
    known = rooms()
    for path in (ROOT / package).rglob("*.py"):
        place = path.relative_to((ROOT / package).parent).with_suffix("")
        folder, name = f"{place.parent}/", place.name
        if name != "__init__":
            assert str(place) in known or f"`{name}`" in known[folder], f"{place} is not on the map in ARCHITECTURE.md"


def test_every_place_that_is_named_for_a_question_exists():
    text = (ROOT / "ARCHITECTURE.md").read_text().partition("## Where is ...?")[2].partition("\n## ")[0]
    paths = re.findall(r"`([\w/]+\.py)`", text)
    assert len(paths) > 20
    modules = {str(path) for path in ROOT.rglob("acker_*/**/*.py")}
    for path in paths:
        assert any(module.endswith(f"/{path}") for module in modules), f"there is no {path}"
