"""Corpus: the files that the demo reads, and how many records (lines) they hold.

Decides which files belong to the input and what a line is: what stands before a newline, and the rest of a file after
its last one where there is any. Never looks into a line.
"""

from __future__ import annotations

import glob
import os
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from acker_command.demo.errors import DemoError


@dataclass(frozen=True, slots=True)
class Corpus:
    """``paths``: the files in the order in which they are read; ``counts``: lines of each."""

    paths: tuple[str, ...]
    counts: tuple[int, ...]

    @property
    def records(self) -> int:
        return sum(self.counts)

    @property
    def root(self) -> str:
        """What all paths begin with, up to a slash."""
        return os.path.join(os.path.commonpath([os.path.dirname(path) for path in self.paths]), "")

    def first_of(self) -> dict[str, int]:
        """Path -> its first record."""
        return dict(zip(self.paths, accumulate((0, *self.counts)), strict=False))

    def lines(self) -> Iterator[tuple[str, int, bytes]]:
        """Every line in order: its path below ``root``, its number there, from 1, and its content."""
        root = self.root
        for path in self.paths:
            below = path.removeprefix(root)
            for line, content in enumerate(lines_of(_read(path)), 1):
                yield below, line, content


def lines_of(content: bytes) -> list[bytes]:
    """The lines of a file, without their newlines."""
    lines = content.split(b"\n")
    if not lines[-1]:
        lines.pop()
    return lines


def find(patterns: Sequence[str]) -> list[str]:
    """Files that ``patterns`` (files, folders or globs) name; without any, the .py files of the standard library."""
    if not patterns:
        return sorted(_python_files(sysconfig.get_path("stdlib")))
    paths: set[str] = set()
    for pattern in patterns:
        matched = [path for path in _matches(pattern) if os.path.isfile(path)]
        if not matched:
            raise DemoError(
                f"--input {pattern}: no file matches; give a file, a folder, or a quoted glob ('logs/**/*.txt')"
            )
        paths.update(os.path.abspath(path) for path in matched)
    return sorted(paths)


def measure(paths: Sequence[str], records_max: int | None, folder: Path) -> Corpus:
    """Count the lines of ``paths``. With ``records_max``, only the first so many lines; the file that the end falls
    into is copied, shortened, into ``folder``. Files without a line are left out."""
    kept: list[str] = []
    counts: list[int] = []
    left = records_max
    for path in paths:
        content = _read(path)
        count = len(lines_of(content))
        if left is not None and count > left:
            path, count = str(_shorten(path, content, left, folder)), left  # noqa: PLW2901  # the copy takes its place
        if count:
            kept.append(path)
            counts.append(count)
        left = None if left is None else left - count
        if left == 0:
            break
    if not kept:
        raise DemoError("--input: the files hold no line at all; give some text")
    return Corpus(tuple(kept), tuple(counts))


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise DemoError(f"--input {path}: cannot be read ({error.strerror})") from error


def _shorten(path: str, content: bytes, count: int, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    shortened = folder / os.path.basename(path)
    shortened.write_bytes(b"".join(line + b"\n" for line in lines_of(content)[:count]))
    return shortened


def _matches(pattern: str) -> list[str]:
    if os.path.isdir(pattern):
        return glob.glob(os.path.join(glob.escape(pattern), "**", "*"), recursive=True)
    return glob.glob(os.path.expanduser(pattern), recursive=True)


def _python_files(folder: str) -> Iterator[str]:
    for at, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in ("site-packages", "dist-packages", "__pycache__")]
        yield from (os.path.join(at, name) for name in files if name.endswith(".py"))
