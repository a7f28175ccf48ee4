"""Expected: what each line must give, derived in plain Python from the files themselves.

Decides what is right. Shares no code with the pipeline: it knows neither Spark nor Arrow nor the acker, and reads the
lines itself. A word is a run of ASCII letters and underscores, lower-cased; words of less than four are dropped; each
is looked up in the table of categories; equal words of a line are counted.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from acker_command.demo.categories import CATEGORIES, NAME

UInts = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]

_WORD = re.compile(rb"[a-z_]{4,}")


@dataclass(frozen=True, slots=True)
class Expected:
    """One entry a record, in the order of the input: ``digests`` uint64[n] of the rows that it must give (0: none),
    ``poison`` bool[n], ``unreadable`` bool[n]. One entry a row, ascending by record: ``row_records``, ``row_words``
    (index into ``words``) and ``row_counts``, int64[m]. ``first_of``: path -> its first record; ``starts``: int64[files
    + 1]."""

    paths: tuple[str, ...]
    first_of: dict[str, int]
    starts: Ints
    digests: UInts
    poison: npt.NDArray[np.bool_]
    unreadable: npt.NDArray[np.bool_]
    row_records: Ints
    row_words: Ints
    row_counts: Ints
    words: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.digests)

    def place(self, record: int) -> str:
        """Where a record stands, for people: ``path:line``."""
        file = int(np.searchsorted(self.starts, record, side="right")) - 1
        return f"{self.paths[file]}:{record - int(self.starts[file]) + 1}"

    def totals(self, records: npt.NDArray[np.bool_]) -> dict[str, int]:
        """Count of each word over the records where ``records: bool[n]`` holds; words that do not occur are left
        out."""
        kept = records[self.row_records]
        sums = np.bincount(self.row_words[kept], self.row_counts[kept], minlength=len(self.words))
        return {self.words[index]: int(sums[index]) for index in np.flatnonzero(sums)}


def derive(paths: Iterable[str], is_poison: Callable[[str], bool]) -> Expected:
    """Read ``paths`` and derive what every line of them must give."""
    vocabulary: defaultdict[bytes, int] = defaultdict()
    vocabulary.default_factory = vocabulary.__len__
    word_ids: list[int] = []
    ends: list[int] = []
    poison: list[int] = []
    unreadable: list[int] = []
    starts = [0]
    names = tuple(paths)
    for path in names:
        for line in _lines(path):
            try:
                text = line.decode()
            except UnicodeDecodeError:
                unreadable.append(len(ends))
            else:
                word_ids.extend(map(vocabulary.__getitem__, _WORD.findall(line.lower())))
                if is_poison(text):
                    poison.append(len(ends))
            ends.append(len(word_ids))
        starts.append(len(ends))
    words = tuple(word.decode() for word in vocabulary)
    records, ids, counts = _count(np.array(word_ids, np.int64), np.array(ends, np.int64), len(words))
    hashes = word_hashes(words)
    rows = row_digests(hashes[ids], category_hashes(words)[ids], counts)
    return Expected(
        paths=names,
        first_of=dict(zip(names, starts[:-1], strict=True)),
        starts=np.array(starts, np.int64),
        digests=sums_of_runs(rows, np.searchsorted(records, np.arange(len(ends) + 1))),
        poison=_marks(poison, len(ends)),
        unreadable=_marks(unreadable, len(ends)),
        row_records=records,
        row_words=ids,
        row_counts=counts,
        words=words,
    )


def hash_of(text: str) -> int:
    """64 bits of a word or a category."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def word_hashes(words: Iterable[str]) -> UInts:
    return np.array([hash_of(word) for word in words], np.uint64)


def category_hashes(words: Iterable[str]) -> UInts:
    """Hash of the category that each word must have been joined with."""
    known = {category: hash_of(category) for category in {*CATEGORIES.values(), NAME}}
    return np.array([known[CATEGORIES.get(word, NAME)] for word in words], np.uint64)


def row_digests(words: UInts, categories: UInts, counts: Ints) -> UInts:
    """Digest of each row (word, category, count), uint64[n]: what a record gave is the sum of its rows' digests."""
    return _scramble(words ^ _scramble(categories + _scramble(counts.astype(np.uint64))))


def sums_of_runs(values: UInts, bounds: Ints) -> UInts:
    """Sums modulo 2**64 of ``values[bounds[i]:bounds[i + 1]]``; an empty run gives 0."""
    sums = np.concatenate((np.zeros(1, np.uint64), np.cumsum(values, dtype=np.uint64)))
    totals: UInts = sums[bounds[1:]] - sums[bounds[:-1]]
    return totals


def _lines(path: str) -> list[bytes]:
    """What stands before each newline, and what stands after the last one if it is not empty."""
    content = Path(path).read_bytes()
    return [line[:-1] if line.endswith(b"\n") else line for line in re.findall(rb"[^\n]*\n|[^\n]+", content)]


def _count(word_ids: Ints, ends: Ints, words: int) -> tuple[Ints, Ints, Ints]:
    """(record, word, count) of each different word of each record, ascending."""
    records = np.repeat(np.arange(len(ends)), np.diff(ends, prepend=0))
    keys, counts = np.unique(records * max(words, 1) + word_ids, return_counts=True)
    return keys // max(words, 1), keys % max(words, 1), counts.astype(np.int64)


def _scramble(values: UInts) -> UInts:
    """A bijection of 64 bits (MurmurHash3's finaliser), so that sums of digests do not cancel."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    values = (values ^ (values >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return values ^ (values >> np.uint64(33))


def _marks(indices: list[int], length: int) -> npt.NDArray[np.bool_]:
    marks = np.zeros(length, np.bool_)
    marks[indices] = True
    return marks
