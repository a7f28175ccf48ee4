"""Verify: whether what was reported of each record is true.

Decides, at each ACK and not later, whether what the sink had committed under that root id is what the line must give
(:mod:`expected` says what that is); and at the end, the other way round, whether the counts over all rows of acked
roots are those of the input. Reads nothing but committed Parquet files. A commit is a folder that appeared under its
final name.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from acker_command.demo.expected import Expected, Ints, UInts, hash_of, row_digests, sums_of_runs

NOTHING, ACKED, DEAD = 0, 1, 2
EXAMPLES_MAX = 5

NO_RECORD = -1


@dataclass(frozen=True, slots=True)
class Commit:
    """What one commit holds: per root, ascending, the sum of its rows' digests (uint64[n]) and the record that the rows
    say they come from (int64[n], NO_RECORD where they do not agree)."""

    roots: UInts
    digests: UInts
    records: Ints


@dataclass(slots=True)
class Verifier:
    """``answers``: int8[n], NOTHING, ACKED or DEAD for each record. ``false_acks``: ACKs at which what was committed
    under the root was not what the line must give. ``answered_twice``: records that got a second final answer.
    ``root``: what was left out of the committed paths, in front."""

    expected: Expected
    committed: Path
    root: str = ""
    answers: npt.NDArray[np.int8] = field(init=False)
    roots: UInts = field(init=False)
    false_acks: int = 0
    answered_twice: int = 0
    examples: list[str] = field(default_factory=list)
    _commits: dict[str, Commit] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.answers = np.zeros(len(self.expected), np.int8)
        self.roots = np.zeros(len(self.expected), np.uint64)

    def acked(self, roots: UInts, records: Ints) -> None:
        """Check ``roots: uint64[n]``, reported ACKED now, of ``records: int64[n]``, against what is committed now."""
        self._answer(records, ACKED)
        self.roots[records] = roots
        given, whence = self._committed_under(roots)
        due = self.expected.digests[records]
        wrong = np.flatnonzero((given != due) | ((due != 0) & (whence != records)))
        self.false_acks += len(wrong)
        for index in wrong[: EXAMPLES_MAX - len(self.examples)]:
            self.examples.append(f"{self.expected.place(int(records[index]))} as root {int(roots[index]):#018x}")

    def dead(self, records: Ints) -> None:
        """Note records that ended in the dead letters."""
        self._answer(records, DEAD)

    def count_of(self, answer: int) -> int:
        return int(np.count_nonzero(self.answers == answer))

    def conclude(self) -> Conclusion:
        """What is true of the whole run."""
        acked = self.answers == ACKED
        due = self.expected.totals(acked)
        given, top = self._totals(np.sort(self.roots[acked]))
        must_die = self.expected.poison | self.expected.unreadable
        dead = self.answers == DEAD
        return Conclusion(
            unanswered=self.count_of(NOTHING),
            answered_twice=self.answered_twice,
            false_acks=self.false_acks,
            wrong_counts=sum(1 for word in due.keys() | given.keys() if due.get(word) != given.get(word)),
            dead_without_cause=int(np.count_nonzero(dead & ~must_die)),
            spared=int(np.count_nonzero(acked & must_die)),
            examples=tuple(self.examples),
            top=tuple(top),
        )

    def _answer(self, records: Ints, answer: int) -> None:
        self.answered_twice += int(np.count_nonzero(self.answers[records])) + len(records) - len(np.unique(records))
        self.answers[records] = answer

    def _committed_under(self, roots: UInts) -> tuple[UInts, Ints]:
        """(digest, record) that all commits of this moment together hold under each of ``roots``."""
        for folder in self.committed.iterdir():
            if folder.name not in self._commits:
                self._commits[folder.name] = read_commit(folder, self.expected, self.root)
        digests = np.zeros(len(roots), np.uint64)
        records = np.full(len(roots), NO_RECORD, np.int64)
        for commit in self._commits.values():
            if not len(commit.roots):
                continue
            at = np.minimum(np.searchsorted(commit.roots, roots), len(commit.roots) - 1)
            found = commit.roots[at] == roots
            digests[found] += commit.digests[at[found]]
            records[found] = commit.records[at[found]]
        return digests, records

    def _totals(self, roots: UInts) -> tuple[dict[str, int], list[TopWord]]:
        """Counts of words over the committed rows of ``roots`` (ascending), read again from the files."""
        counts: Counter[tuple[str, str]] = Counter()
        for folder in sorted(self.committed.iterdir()):
            table = pq.read_table(folder, columns=["root_id", "word", "category", "count"])
            table = table.filter(pa.array(is_in(_roots_of(table), roots)))
            summed = table.group_by(["word", "category"]).aggregate([("count", "sum")])
            for row in summed.to_pylist():
                counts[row["word"], row["category"]] += row["count_sum"]
        totals: Counter[str] = Counter()
        for (word, _), count in counts.items():
            totals[word] += count
        top = [TopWord(word, category, count) for (word, category), count in counts.most_common(TOP_WORDS)]
        return dict(totals), top


TOP_WORDS = 12


@dataclass(frozen=True, slots=True)
class TopWord:
    word: str
    category: str
    count: int


@dataclass(frozen=True, slots=True)
class Conclusion:
    """``unanswered``: records without a final answer. ``wrong_counts``: words whose count over acked roots is not the
    input's. ``dead_without_cause``: dead letters that are neither poison nor unreadable. ``spared``: acked records that
    are."""

    unanswered: int
    answered_twice: int
    false_acks: int
    wrong_counts: int
    dead_without_cause: int
    spared: int
    examples: tuple[str, ...]
    top: tuple[TopWord, ...]


def read_commit(folder: Path, expected: Expected, root: str = "") -> Commit:
    """Read one committed folder of rows (root_id, path, line, word, category, count); paths are below ``root``."""
    table = pq.read_table(folder, read_dictionary=["path", "word", "category"]).unify_dictionaries().combine_chunks()
    roots, counts = _roots_of(table), table["count"].to_numpy().astype(np.int64)
    words, categories = _hashes(table["word"]), _hashes(table["category"])
    records = _records(table, expected, root)
    order = np.argsort(roots, kind="stable")
    unique, starts = np.unique(roots[order], return_index=True)
    rows = row_digests(words, categories, counts)[order]
    records = records[order]
    agree = np.maximum.reduceat(records, starts) == np.minimum.reduceat(records, starts) if len(starts) else starts > 0
    whence = np.where(agree, records[starts], NO_RECORD)
    return Commit(unique, sums_of_runs(rows, np.append(starts, len(rows))), whence)


def is_in(values: UInts, ascending: UInts) -> npt.NDArray[np.bool_]:
    """Which of ``values`` stand in ``ascending``."""
    if not len(ascending):
        return np.zeros(len(values), np.bool_)
    at = np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)
    found: npt.NDArray[np.bool_] = ascending[at] == values
    return found


def _roots_of(table: pa.Table) -> UInts:
    roots: UInts = table["root_id"].to_numpy().astype(np.int64).view(np.uint64)
    return roots


def _hashes(column: pa.ChunkedArray) -> UInts:
    """Hash of each of a column of dictionary-encoded strings."""
    indices, values = _decoded(column)
    return np.array([hash_of(value) for value in values], np.uint64)[indices]


def _records(table: pa.Table, expected: Expected, root: str) -> Ints:
    """The record that each row says it comes from."""
    indices, paths = _decoded(table["path"])
    first = np.array([expected.first_of.get(root + path, -(1 << 40)) for path in paths], np.int64)[indices]
    records: Ints = first + table["line"].to_numpy().astype(np.int64) - 1
    return records


def _decoded(column: pa.ChunkedArray) -> tuple[Ints, list[str]]:
    """(index of each row, values). A file without rows has no dictionary."""
    if not len(column):
        return np.empty(0, np.int64), []
    encoded = column.combine_chunks()
    encoded = encoded.chunk(0) if isinstance(encoded, pa.ChunkedArray) else encoded
    return pc.cast(encoded.indices, pa.int64()).to_numpy(), encoded.dictionary.to_pylist()
