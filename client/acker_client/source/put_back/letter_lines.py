"""Lines of dead letters as they are read again: whole letters, and lines that are none."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass

from acker_client.source.errors import SourceError
from acker_client.source.records.dead_letter import DeadLetter


@dataclass(frozen=True, slots=True)
class ReadLine:
    """A line in a file of dead letters: its ``number`` from 1 and the letter. ``wrong`` says why it has no letter.
    ``place``: the object that the line is in, if there are several."""

    number: int
    raw: bytes
    letter: DeadLetter | None
    wrong: str = ""
    place: str = ""


@dataclass(frozen=True, slots=True)
class Moved:
    """The number of letters that were ``put_back``, and of lines that are ``left`` in the file.

    ``kept``: letters that were chosen but cannot be processed again.
    """

    put_back: int
    left: int
    kept: tuple[ReadLine, ...] = ()


@dataclass(frozen=True, slots=True)
class Sorted:
    """The lines of a file or object of letters: those that are ``moving``, those that are ``kept`` although they were
    chosen, and the content that is ``left``."""

    lines: Sequence[ReadLine]
    moving: Sequence[ReadLine]
    kept: tuple[ReadLine, ...]

    @classmethod
    def of(cls, content: bytes, is_chosen: Callable[[DeadLetter], bool]) -> Sorted:
        lines = lines_of(content)
        chosen = [(line, line.letter) for line in lines if line.letter is not None and is_chosen(line.letter)]
        kept = tuple(line for line, letter in chosen if letter.why_not_again)
        return cls(lines, [line for line, letter in chosen if not letter.why_not_again], kept)

    @property
    def left(self) -> bytes:
        gone = {line.number for line in self.moving}
        return b"".join(line.raw for line in self.lines if line.number not in gone)

    @property
    def moved(self) -> Moved:
        return Moved(len(self.moving), len(self.lines) - len(self.moving), self.kept)


def raw_letters(place: object, content: bytes) -> set[bytes]:
    """Return the lines of ``content``, without their ends. Raises ``SourceError`` if one is no letter. ``place``: where
    the content is."""
    there = lines_of(content)
    wrong = next((line for line in there if line.letter is None), None)
    if wrong is not None:
        raise SourceError(f"{place} is not a file of dead letters (line {wrong.number}: {wrong.wrong}): name another")
    return {line.raw.rstrip(b"\n") for line in there}


def new_letters(present: Container[bytes], moving: Iterable[ReadLine]) -> list[bytes]:
    """Return the lines of ``moving`` that are not ``present``, each once and without its end."""
    new = dict.fromkeys(line.raw.rstrip(b"\n") for line in moving)
    return [line for line in new if line not in present]


def joined(letters: Iterable[bytes]) -> bytes:
    """Return letters without their ends as the content of a file."""
    return b"".join(letter + b"\n" for letter in letters)


def lines_of(content: bytes) -> list[ReadLine]:
    return [_line(number, raw) for number, raw in enumerate(re.findall(rb"[^\n]*\n|[^\n]+", content), 1)]


def _line(number: int, raw: bytes) -> ReadLine:
    letter = letter_of(raw)
    if isinstance(letter, DeadLetter):
        return ReadLine(number, raw, letter)
    return ReadLine(number, raw, None, letter if raw.endswith(b"\n") else "not whole, or being written")


def letter_of(line: bytes) -> DeadLetter | str:
    """Return the letter on a line, or the text of the problem."""
    try:
        return DeadLetter.of_json(line.decode(errors="surrogatepass"))
    except ValueError as error:
        return str(error)
