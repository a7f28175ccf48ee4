"""The corpus: which files the demo reads, and how many lines."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

from acker_command.demo import DemoError, corpus


@pytest.mark.long
def test_without_input_it_is_the_standard_library_and_nothing_that_was_installed() -> None:
    paths = corpus.find_files([])
    assert f"{sysconfig.get_path('stdlib')}/json/decoder.py" in paths
    assert not any("site-packages" in path for path in paths)
    assert paths == sorted(paths)


def test_files_folders_and_globs_are_found_once_each(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    for name in ("a.txt", "deep/b.txt", "deep/er/c.txt"):
        (tmp_path / name).write_text("x\n")
    found = corpus.find_files([str(tmp_path / "a.txt"), str(tmp_path / "deep"), str(tmp_path / "**" / "*.txt")])
    assert [path.removeprefix(f"{tmp_path}/") for path in found] == ["a.txt", "deep/b.txt", "deep/er/c.txt"]


def test_a_pattern_that_nothing_matches_is_named(tmp_path: Path) -> None:
    with pytest.raises(DemoError, match=r"--input .*/\*\.txt: no file matches"):
        corpus.find_files([f"{tmp_path}/*.txt"])


def test_only_the_first_lines_are_taken_when_so_many_are_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1\n2\n3\n")
    (tmp_path / "b").write_text("")
    (tmp_path / "c").write_text("4\n5\n6")
    (tmp_path / "d").write_text("7\n")
    paths = [str(tmp_path / name) for name in "abcd"]
    whole = corpus.measure(paths, None, tmp_path / "short")
    assert (whole.counts, whole.records) == ((3, 3, 1), 7)
    some = corpus.measure(paths, 5, tmp_path / "short")
    assert (some.counts, some.records) == ((3, 2), 5)
    assert Path(some.paths[1]).read_text() == "4\n5\n"
    assert corpus.measure(paths, 3, tmp_path / "short").paths == (paths[0],)


def test_files_without_a_line_are_not_enough(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    with pytest.raises(DemoError, match="no line at all"):
        corpus.measure([str(tmp_path / "a")], None, tmp_path)
