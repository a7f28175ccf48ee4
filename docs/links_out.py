"""Links out: on the site a link to a file outside docs/ is plain text, as the repository has no address of its own."""

from __future__ import annotations

import re
from typing import Any

LINK_OUT = re.compile(r"\[([^\]]+)\]\((?:\.\./)+(?:[\w-]+\.md|deploy/[\w./-]+|tests/[\w./-]+)(?:#[\w-]+)?\)")


def on_page_markdown(markdown: str, *, page: Any, **_: object) -> str:
    """Drop links from ``page`` that leave docs/; a test checks that their targets exist."""
    depth = page.file.src_uri.count("/")

    def shown(link: re.Match[str]) -> str:
        return link[1] if link[0].count("../") > depth else link[0]

    return LINK_OUT.sub(shown, markdown)
