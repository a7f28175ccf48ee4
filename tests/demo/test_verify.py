"""The verifier: it must find every kind of error."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from acker_command.demo.corpus import Corpus
from acker_command.demo.expected import Expected, derive
from acker_command.demo.verify import Verifier

LINES = ["return this word", "", "while word word", "a b"]
Row = tuple[int, int, str, str, int]

RIGHT: list[Row] = [
    (101, 1, "return", "keyword", 1),
    (101, 1, "this", "english", 1),
    (101, 1, "word", "name", 1),
    (103, 3, "while", "keyword", 1),
    (103, 3, "word", "name", 2),
]
ROOTS = np.array([101, 102, 103, 104], np.uint64)
RECORDS = np.arange(4)


class Sink:
    """Commits rows (root id, line, word, category, count) as the demo's sink does."""

    def __init__(self, folder: Path, path: str) -> None:
        self.folder, self.path, self.commits = folder, path, 0

    def commit(self, rows: list[Row]) -> None:
        root_ids, lines, words, categories, counts = zip(*rows, strict=True) if rows else ([],) * 5
        table = pa.table(
            {
                "root_id": pa.array(root_ids, pa.int64()),
                "path": pa.array([self.path] * len(rows), pa.string()),
                "line": pa.array(lines, pa.int64()),
                "word": pa.array(words, pa.string()),
                "category": pa.array(categories, pa.string()),
                "count": pa.array(counts, pa.int64()),
            }
        )
        self.commits += 1
        staging = self.folder.parent / f"staging-{self.commits}"
        staging.mkdir()
        pq.write_table(table, staging / "part-0.parquet")
        staging.rename(self.folder / f"commit-{self.commits}")


@pytest.fixture
def sink(tmp_path: Path) -> Sink:
    text = tmp_path / "text"
    text.write_text("".join(line + "\n" for line in LINES))
    (tmp_path / "committed").mkdir()
    return Sink(tmp_path / "committed", str(text))


@pytest.fixture
def verifier(sink: Sink) -> Verifier:
    return verifier_of(sink, lambda text: False)


def verifier_of(sink: Sink, is_poison: Callable[[str], bool]) -> Verifier:
    text = Corpus((sink.path,), (len(LINES),))
    derived: Future[Expected] = Future()
    derived.set_result(derive(text, is_poison))
    return Verifier(text, derived, sink.folder, lambda origins: text.numbers(origins["path"], origins["line"]))


def test_complete_commits_are_found_true(sink: Sink, verifier: Verifier) -> None:
    sink.commit(RIGHT[:3])
    verifier.acked(ROOTS[:2], RECORDS[:2])
    sink.commit(RIGHT[3:])
    verifier.acked(ROOTS[2:], RECORDS[2:])
    found = verifier.conclude()
    assert (found["false_acks"], found["lost"], found["wrong_counts"]) == (0, 0, 0)
    assert next(iter(found["top_words"].items())) == ("word", 3)


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda rows: rows[1:], id="a row is missing"),
        pytest.param(lambda rows: [], id="nothing was written"),
        pytest.param(lambda rows: [*rows, rows[0]], id="a row was written twice"),
        pytest.param(lambda rows: [(101, 1, "return", "keyword", 2), *rows[1:]], id="a count is wrong"),
        pytest.param(lambda rows: [(101, 1, "return", "name", 1), *rows[1:]], id="a category is wrong"),
        pytest.param(lambda rows: [(101, 1, "returns", "keyword", 1), *rows[1:]], id="a word is wrong"),
        pytest.param(lambda rows: [(102, 1, "return", "keyword", 1), *rows[1:]], id="a row stands under another root"),
        pytest.param(lambda rows: [(101, 2, "return", "keyword", 1), *rows[1:]], id="a row names another line"),
    ],
)
def test_an_ack_of_what_was_not_committed_whole_is_a_false_one(
    sink: Sink, verifier: Verifier, spoil: Callable[[list[Row]], list[Row]]
) -> None:
    sink.commit(spoil(RIGHT))
    verifier.acked(ROOTS, RECORDS)
    assert verifier.counts["false_acks"] > 0
    assert str(sink.path) in verifier.examples[0]


def test_what_is_committed_after_the_ack_does_not_count(sink: Sink, verifier: Verifier) -> None:
    sink.commit(RIGHT[:3])
    verifier.acked(ROOTS, RECORDS)
    sink.commit(RIGHT[3:])
    assert verifier.conclude()["false_acks"] == 1


def test_the_same_rows_committed_twice_under_one_root_are_found(sink: Sink, verifier: Verifier) -> None:
    sink.commit(RIGHT)
    sink.commit(RIGHT)
    verifier.acked(ROOTS, RECORDS)
    assert verifier.counts["false_acks"] == 2


def test_rows_under_a_root_that_was_never_acked_do_not_count(sink: Sink, verifier: Verifier) -> None:
    sink.commit([(9, *row[1:]) for row in RIGHT])
    sink.commit(RIGHT)
    verifier.acked(ROOTS, RECORDS)
    found = verifier.conclude()
    assert (found["false_acks"], found["wrong_counts"]) == (0, 0)


def test_rows_that_come_under_an_acked_root_later_are_found_at_the_end(sink: Sink, verifier: Verifier) -> None:
    sink.commit(RIGHT)
    verifier.acked(ROOTS, RECORDS)
    sink.commit([(102, 2, "more", "english", 1)])
    found = verifier.conclude()
    assert (found["false_acks"], found["wrong_counts"]) == (0, 1)


def test_records_without_an_answer_and_with_two_are_counted(sink: Sink, verifier: Verifier) -> None:
    sink.commit(RIGHT)
    verifier.acked(ROOTS[:2], RECORDS[:2])
    verifier.dead(RECORDS[1:2])
    found = verifier.conclude()
    assert (found["lost"], found["answered_twice"], found["dead_without_cause"]) == (2, 1, 1)


def test_an_acked_line_that_is_poison_is_found(sink: Sink) -> None:
    verifier = verifier_of(sink, lambda text: text.startswith("while"))
    sink.commit(RIGHT)
    verifier.acked(ROOTS, RECORDS)
    assert verifier.conclude()["spared"] == 1
