"""Moves dead letters out of their file into a file that the source ``PutBack`` reads.

The letters are written durably to the second file before they are removed from the first. A crash at any point
therefore loses none, and a letter that is in both files is not added again. Both files are replaced as a whole, under
the lock that a source takes to write dead letters. Lines that are no letters stay where they are.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from acker_client.source.dead_letters.letters_file import LOOK_S, is_at
from acker_client.source.disk import open_private, sync_directory, to_read, to_write
from acker_client.source.errors import SourceError
from acker_client.source.records.dead_letter import DeadLetter

# How long to wait for the lock of another process. A write of letters takes milliseconds.
WAIT_S = 10.0


@dataclass(frozen=True, slots=True)
class ReadLine:
    """A line in a file of dead letters: its ``number`` from 1 and the letter. ``wrong`` says why it has no letter."""

    number: int
    raw: bytes
    letter: DeadLetter | None
    wrong: str = ""


@dataclass(frozen=True, slots=True)
class Moved:
    """The number of letters that were ``put_back``, and of lines that are ``left`` in the file.

    ``kept``: letters that were chosen but cannot be processed again.
    """

    put_back: int
    left: int
    kept: tuple[ReadLine, ...] = ()


def read_letters(path: Path) -> list[ReadLine]:
    """Return the lines of a file of dead letters, in order. Raises ``SourceError`` if it cannot be read."""
    try:
        return _lines_of(path.read_bytes())
    except OSError as error:
        raise SourceError(f"{path} cannot be read ({error.strerror}): {to_read(error)}") from None


def put_back(path: Path, again: Path, is_chosen: Callable[[DeadLetter], bool], *, wait_s: float = WAIT_S) -> Moved:
    """Move the chosen letters from ``path`` to the end of ``again``, which is created if it does not exist.

    Raises ``SourceError``. Each letter is then still in one of the two files, or in both.
    """
    path, again = Path(os.path.realpath(path)), Path(os.path.realpath(again))
    if path == again:
        raise SourceError(f"{path} is where the letters are: name another file to put them back into")
    with _locked(path, wait_s, is_made=False) as dead:
        lines = _lines_of(_content(dead))
        chosen = [line for line in lines if line.letter is not None and is_chosen(line.letter)]
        kept = tuple(line for line in chosen if line.letter is not None and line.letter.why_not_again)
        moving = [line for line in chosen if line not in kept]
        if moving:
            with _locked(again, wait_s, is_made=True) as file:
                _replace(again, file, _content_with(again, _content(file), moving))
            gone = {line.number for line in moving}
            _replace(path, dead, b"".join(line.raw for line in lines if line.number not in gone))
    return Moved(len(moving), len(lines) - len(moving), kept)


def _content_with(again: Path, content: bytes, moving: list[ReadLine]) -> bytes:
    """Return ``content`` plus the ``moving`` letters that it lacks. Raises ``SourceError`` if a line is no letter."""
    there = _lines_of(content)
    wrong = next((line for line in there if line.letter is None), None)
    if wrong is not None:
        raise SourceError(f"{again} is not a file of dead letters (line {wrong.number}: {wrong.wrong}): name another")
    end = b"" if not content or content.endswith(b"\n") else b"\n"
    present = {line.raw.rstrip(b"\n") for line in there}
    new = dict.fromkeys(line.raw.rstrip(b"\n") for line in moving)
    return content + end + b"".join(line + b"\n" for line in new if line not in present)


def _lines_of(content: bytes) -> list[ReadLine]:
    return [_line(number, raw) for number, raw in enumerate(re.findall(rb"[^\n]*\n|[^\n]+", content), 1)]


def _line(number: int, raw: bytes) -> ReadLine:
    try:
        return ReadLine(number, raw, DeadLetter.of_json(raw.decode(errors="surrogatepass")))
    except ValueError as error:
        is_torn = not raw.endswith(b"\n")
        return ReadLine(number, raw, None, "not whole, or being written" if is_torn else str(error))


@contextmanager
def _locked(path: Path, wait_s: float, *, is_made: bool) -> Iterator[FileIO]:
    """Open and lock the file that is at ``path`` now."""
    deadline_s = time.monotonic() + wait_s
    while True:
        try:
            file = FileIO(path, "ab+" if is_made else "rb+", opener=open_private)
        except OSError as error:
            is_missing = isinstance(error, FileNotFoundError) and not is_made
            fix = to_read(error) if is_missing else to_write(error)
            raise SourceError(f"{path} cannot be opened ({error.strerror}): {fix}") from None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if time.monotonic() >= deadline_s:
                    raise SourceError(
                        f"{path} is in use by another process ({error.strerror}): try again once that has ended"
                    ) from None
                time.sleep(LOOK_S)
                continue
            if is_at(file, path):
                yield file
                return


def _content(file: FileIO) -> bytes:
    file.seek(0)
    return file.readall()


def _replace(path: Path, file: FileIO, content: bytes) -> None:
    """Replace a file as a whole and durably; keep its permissions."""
    draft = path.with_name(f".{path.name}.new")  # hidden, so that no pattern of a following source matches it
    try:
        with open(draft, "wb", opener=open_private) as new:
            os.fchmod(new.fileno(), os.fstat(file.fileno()).st_mode & 0o7777)
            new.write(content)
            new.flush()
            os.fsync(new.fileno())
        os.replace(draft, path)
        sync_directory(path)
    except OSError as error:
        raise SourceError(f"{path} cannot be written ({error.strerror}): {to_write(error)}") from None
