"""Transcripts: one command per line, followed by its answers on indented lines. ``#`` begins a comment."""

from __future__ import annotations

from collections.abc import Callable


def retold(text: str, say: Callable[[str], list[str]]) -> str:
    """Return the transcript with the answers that ``say(command)`` gives now."""
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith((" ", "\t")):
            continue
        lines.append(line)
        if line and not line.startswith("#"):
            lines += [f"    {answer}" for answer in say(line)]
    return "\n".join(lines) + "\n"
