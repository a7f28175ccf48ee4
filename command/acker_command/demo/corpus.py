"""Corpus: the files that the demo reads, and their records.

A record is a line: the text before a newline, or the rest of a file after its last newline. Records are numbered from 0
over all files, in the order of reading.
"""

from __future__ import annotations

import glob
import os
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from acker_command.demo import DemoError

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Corpus:
    """``paths``: the files in the order of reading; ``counts``: the number of lines of each."""

    paths: tuple[str, ...]
    counts: tuple[int, ...]

    @property
    def records(self) -> int:
        return sum(self.counts)

    @cached_property
    def root(self) -> str:
        """The folder that all files are in, with a slash at its end."""
        return os.path.join(os.path.commonpath([os.path.dirname(path) for path in self.paths]), "")

    @cached_property
    def first_of(self) -> dict[str, int]:
        """The first record of each file, by its path and by its path below ``root``."""
        firsts = dict(zip(self.paths, accumulate((0, *self.counts)), strict=False))
        return firsts | {path.removeprefix(self.root): first for path, first in firsts.items()}

    def numbers(self, paths: Any, lines: Any) -> Ints:
        """Return the records at these columns of paths and line numbers; a negative number for an unknown path."""
        firsts = pd.Series(paths.to_pandas()).astype(object).map(self.first_of).fillna(-(1 << 40))
        numbers: Ints = firsts.to_numpy(np.int64) + lines.to_numpy() - 1
        return numbers

    def lines(self) -> Iterator[tuple[str, int, bytes]]:
        """Yield every line in order: its path below ``root``, its number in the file from 1, and its content."""
        for path in self.paths:
            for line, content in enumerate(lines_of(_read(path)), 1):
                yield path.removeprefix(self.root), line, content

    def line_of(self, record: int) -> str:
        """Return ``path:line`` of a record."""
        path, line, _ = next(islice(self.lines(), record, None))
        return f"{self.root}{path}:{line}"


def lines_of(content: bytes) -> list[bytes]:
    """Return the lines of a file, without their newlines."""
    lines = content.split(b"\n")
    return lines if lines[-1] else lines[:-1]


def find_files(patterns: Sequence[str]) -> list[str]:
    """Return the files that ``patterns`` (files, folders or globs) name, or the standard library's .py files."""
    if not patterns:
        found = glob.glob(os.path.join(sysconfig.get_path("stdlib"), "**", "*.py"), recursive=True)
        return sorted(path for path in found if "-packages" not in path)
    paths: set[str] = set()
    for pattern in patterns:
        wanted = (
            os.path.join(glob.escape(pattern), "**", "*") if os.path.isdir(pattern) else os.path.expanduser(pattern)
        )
        matched = [os.path.abspath(path) for path in glob.glob(wanted, recursive=True) if os.path.isfile(path)]
        if not matched:
            raise DemoError(
                f"--input {pattern}: no file matches; give a file, a folder, or a quoted glob ('logs/**/*.txt')"
            )
        paths.update(matched)
    return sorted(paths)


def measure(paths: Sequence[str], records_max: int | None, folder: Path) -> Corpus:
    """Count the lines of ``paths``, without files that have none. With ``records_max``, only the first lines count. If
    they end inside a file, the part of it that counts is copied into ``folder``."""
    counts: dict[str, int] = {}
    left = sys.maxsize if records_max is None else records_max
    for original in paths:
        path, lines = original, lines_of(_read(original))
        if len(lines) > left:
            lines, path = lines[:left], str(folder / os.path.basename(original))
            folder.mkdir(parents=True, exist_ok=True)
            Path(path).write_bytes(b"\n".join(lines) + b"\n")
        if lines:
            counts[path] = len(lines)
        left -= len(lines)
        if not left:
            break
    if not counts:
        raise DemoError("--input: the files hold no line at all; give some text")
    return Corpus(tuple(counts), tuple(counts.values()))


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise DemoError(f"--input {path}: cannot be read ({error.strerror})") from error
