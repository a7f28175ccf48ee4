"""The expected result of each line, which ``expected`` derives without the pipeline."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acker_command.demo import corpus, expected
from acker_command.demo.corpus import Corpus

LETTERS = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_")


def counted_by_hand(line: str) -> Counter[str]:
    """Count the words of a line character by character, as a simple reference for ``derive``."""
    counts: Counter[str] = Counter()
    word = ""
    for character in line + " ":
        if character in LETTERS:
            word += character
            continue
        if len(word) >= 4:
            counts[word.lower()] += 1
        word = ""
    return counts


def written(path: Path, lines: list[str]) -> Corpus:
    return held(path, b"".join(line.encode() + b"\n" for line in lines))


def held(path: Path, content: bytes) -> Corpus:
    path.write_bytes(content)
    return Corpus((str(path),), (len(corpus.lines_of(content)),))


@given(st.lists(st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=40), max_size=8))
def test_every_line_gives_the_words_that_a_reader_with_a_pencil_would_count(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str]
) -> None:
    text = written(tmp_path_factory.mktemp("text") / "a.txt", lines)
    found = expected.derive(text, lambda text: False)
    assert len(found.digests) == len(lines)
    for record, line in enumerate(lines):
        rows = found.rows[found.rows["record"] == record]
        assert dict(zip(rows["word"], rows["count"], strict=True)) == counted_by_hand(line)


def test_a_non_ascii_letter_that_folds_to_ascii_is_not_part_of_a_word(tmp_path: Path) -> None:
    found = expected.derive(written(tmp_path / "a.txt", ["\u212aelvin \u0130stanbul"]), lambda text: False)
    assert set(found.rows["word"]) == {"elvin", "stanbul"}


def test_only_a_newline_or_the_end_of_the_file_ends_a_line(tmp_path: Path) -> None:
    for content, lines in [(b"", 0), (b"\n", 1), (b"a", 1), (b"a\n", 1), (b"a\nb", 2), (b"a\r\n\n\x0cb\x85\n", 3)]:
        assert len(corpus.lines_of(content)) == lines
        assert len(list(held(tmp_path / "text", content).lines())) == lines


def test_a_line_that_is_not_utf_8_is_unreadable_and_gives_nothing(tmp_path: Path) -> None:
    text = held(tmp_path / "text", b"good words\nbad \xff words\nmore words\n")
    found = expected.derive(text, lambda text: False)
    assert found.must_die.tolist() == [False, True, False]
    assert found.digests[1] == 0


def test_poison_is_marked_where_the_faults_say_so(tmp_path: Path) -> None:
    found = expected.derive(written(tmp_path / "text", ["one", "two", "three"]), lambda text: text == "two")
    assert found.must_die.tolist() == [False, True, False]


def test_line_of_returns_the_path_and_line_of_a_record(tmp_path: Path) -> None:
    (one,), (other,) = written(tmp_path / "a", ["x", "y"]).paths, written(tmp_path / "b", ["z"]).paths
    text = Corpus((one, other), (2, 1))
    assert [text.line_of(record) for record in range(3)] == [f"{one}:1", f"{one}:2", f"{other}:1"]
