"""Writes options into README.md: ``python tests/packaging/options.py``. A test holds the two together.

The server's options with their help. Of ``Files`` and ``Retry`` names and defaults only: what each means stands in
README.md and is kept.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

from acker_client.source import CommonOptions, Files, Options, Retry
from acker_service.config import OPTIONS, flag

README = Path(__file__).parents[2] / "README.md"
PLACE = re.compile(r"(<!-- options: .*? -->\n).*?(<!-- end of options -->)", re.DOTALL)
PLACE_OF_FILES = re.compile(r"(<!-- options of Files: .*? -->\n)(.*?)(<!-- end of options of Files -->)", re.DOTALL)
ROW = re.compile(r"^\| `(\w+)` \| .*? \| (.*) \|$", re.MULTILINE)
# What no user gives: it puts something else in the place of Spark and the server.
INTERNAL = {"environment"}


def table() -> str:
    """One row an option: flag, default, help."""
    rows = [f"| `{flag(option.name)}` | {_default(option.default)} | {option.metadata['help']} |" for option in OPTIONS]
    return "\n".join(["| option | default | |", "|---|---|---|", *rows]) + "\n"


def table_of_files(texts: dict[str, str]) -> str:
    """One row an option of ``Files``, those of ``Retry`` below it; ``texts``: what each means."""
    rows = [f"| `{name}` | {default} | {texts.get(name, '')} |" for name, default in options_of_files()]
    return "\n".join(["| option of `Files` | default | |", "|---|---|---|", *rows]) + "\n"


def options_of_files() -> Iterator[tuple[str, str]]:
    """(name, default as it is shown): its own in the order of the signature, then those that every source has."""
    for option in inspect.signature(Files).parameters.values():
        if option.kind is not inspect.Parameter.VAR_KEYWORD:
            yield option.name, _shown(option.default)
    fields = {option.name: option for option in dataclasses.fields(Options)}
    for name in CommonOptions.__annotations__:
        if name not in INTERNAL:
            is_made = fields[name].default_factory is not dataclasses.MISSING
            yield name, "none" if is_made else _shown(fields[name].default)
        if name == "retry":
            yield from ((each.name, _shown(each.default)) for each in inspect.signature(Retry).parameters.values())


def texts_of_files(text: str) -> dict[str, str]:
    """What README.md says of each."""
    place = PLACE_OF_FILES.search(text)
    return {} if place is None else dict(ROW.findall(place[2]))


def written(text: str) -> str:
    """The README with the tables in their places."""
    text = PLACE.sub(lambda place: place[1] + table() + place[2], text)
    return PLACE_OF_FILES.sub(lambda place: place[1] + table_of_files(texts_of_files(text)) + place[3], text)


def _default(value: object) -> str:
    return "off" if value is None or value is False else f"`{value}`"


def _shown(value: Any) -> str:
    if value in (inspect.Parameter.empty, dataclasses.MISSING):
        return "needed"
    if isinstance(value, Retry):
        return "`Retry()`"
    if isinstance(value, StrEnum):
        value = value.value
    return "none" if value is None else f"`{value!r}`"


if __name__ == "__main__":
    README.write_text(written(README.read_text()))
