"""Transcripts: commands, one a line, each with what followed from it, indented. ``#`` begins a comment."""

from __future__ import annotations

from collections.abc import Callable


def retold(text: str, say: Callable[[str], list[str]]) -> str:
    """A transcript with what ``say(command)`` gives now."""
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith((" ", "\t")):
            continue
        lines.append(line)
        if line and not line.startswith("#"):
            lines += [f"    {answer}" for answer in say(line)]
    return "\n".join(lines) + "\n"
