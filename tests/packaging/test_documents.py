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
