"""Links between documents lead to files and headings that exist."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from tests.packaging import programs

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^ *(```+).*?^ *\1 *$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)\)")
HEADING = re.compile(r"^#{1,6} (.+?) *$", re.MULTILINE)
DOCUMENTS = [
    *programs.documents(),
    *sorted(path for path in ROOT.glob("*.md") if path.name != "README.md"),
    ROOT / "deploy/README.md",
]


def text_of(path: Path) -> str:
    """Return a document without its blocks of code."""
    return FENCE.sub("", path.read_text())


def links(text: str) -> list[str]:
    """Return the targets of local links and pictures in ``text``, ignoring text in backticks."""
    return [target for target in LINK.findall(re.sub(r"`[^`\n]*`", "`code`", text)) if "://" not in target]


@cache
def anchors(path: Path) -> frozenset[str]:
    """Return the anchors of a document, where forges and mkdocs derive the same one from a heading."""
    found: set[str] = set()
    for heading in HEADING.findall(text_of(path)):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
        plain = re.sub(r"[^\w\- ]", "", shown).strip()
        forge, mkdocs = plain.replace(" ", "-"), re.sub(r"[-\s]+", "-", plain)
        if forge == mkdocs:
            found.add(forge)
    return frozenset(found)


def broken(path: Path, text: str) -> list[str]:
    """Return the links in the ``text`` of ``path`` that lead nowhere."""
    found = []
    for target in links(text):
        file, _, anchor = target.partition("#")
        there = (path.parent / file).resolve() if file else path
        if not there.exists() or (anchor and anchor not in anchors(there)):
            found.append(target)
    return found


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_of_a_document_lead_somewhere(path: Path) -> None:
    assert broken(path, text_of(path)) == []


def test_a_link_that_leads_nowhere_is_found() -> None:
    text = "[a](docs/tutorial.md#nothing) [b](docs/none.md) [`c`](docs/tutorial.md#5-the-demo) ![d](docs/none.svg)"
    expected = ["docs/tutorial.md#nothing", "docs/none.md", "docs/none.svg"]
    assert broken(ROOT / "README.md", text) == expected


def test_every_page_but_the_decisions_is_in_the_navigation_of_the_site() -> None:
    listed = re.findall(r"^ *- (?:[\w ]+: )?([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert set(listed) >= {page for page in pages if not page.startswith("decisions/")}
    assert set(listed) <= pages
    assert len(listed) == len(set(listed))


def test_the_readme_leads_to_every_part_of_the_documentation() -> None:
    linked = {target.partition("#")[0] for target in links(text_of(ROOT / "README.md"))}
    parts = {path.parent.relative_to(ROOT).as_posix() for path in programs.documents()[1:]}
    assert {target.rpartition("/")[0] for target in linked} >= parts - {"docs/decisions"}
