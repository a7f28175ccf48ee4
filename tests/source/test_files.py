"""Files as an input: what they resume from, and what they refuse."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acker_client.source.core.input import Progress
from acker_client.source.errors import CheckpointError, InputChanged, SourceError
from acker_client.source.inputs.files import FileInput, find_files
from acker_client.source.inputs.lines import TextParser
from tests.source.disks import without_rights

contents = st.lists(st.sampled_from([b"\n", b"\r\n", b"a\n", b"bb\n", b"\xff\n", b"no newline"]), max_size=9).map(
    b"".join
)


def drain(source: FileInput, records_max: int = 1000) -> np.ndarray:
    planned = [np.empty(0, np.int64)]
    while len(records := source.plan(records_max, 2)):
        planned.append(records)
    return np.concatenate(planned)


@given(st.lists(contents, min_size=1, max_size=3), st.data())
@settings(max_examples=150, deadline=None)
def test_a_restart_reads_exactly_what_was_not_done_whatever_the_point(
    tmp_path_factory: pytest.TempPathFactory, files: list[bytes], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("files")
    for index, content in enumerate(files):
        (folder / f"{index}.txt").write_bytes(content)
    source = FileInput(f"{folder}/*.txt", TextParser(), block_bytes=8)
    source.start(None)
    records = drain(source, data.draw(st.integers(1, 5)))
    everything = [(o.path, o.line, o.value) for o in source.originals(records)]
    points = sorted(data.draw(st.lists(st.integers(0, len(records)), max_size=3)))
    for done in points:
        source.advance(done)
        progress = json.loads(json.dumps(source.progress()))
        again = FileInput(f"{folder}/*.txt", TextParser())
        again.start(progress)
        rest = [(o.path, o.line, o.value) for o in again.originals(drain(again))]
        assert rest == everything[done:]
    if points and points[-1] == len(records):
        assert source.describe().startswith("end of the input")


def started(folder: Path, text: str, done: int) -> tuple[FileInput, dict[str, object]]:
    (folder / "a.txt").write_text(text)
    source = FileInput(folder / "a.txt", TextParser())
    source.start(None)
    drain(source)
    source.advance(done)
    return FileInput(folder / "a.txt", TextParser()), source.progress()


def test_a_file_that_grew_goes_on_where_it_was_left(tmp_path: Path) -> None:
    source, progress = started(tmp_path, "one\ntwo\n", 2)
    with (tmp_path / "a.txt").open("a") as file:
        file.write("three\n")
    source.start(progress)
    assert [(o.line, o.value) for o in source.originals(drain(source))] == [(3, b"three")]


def test_a_new_file_is_read_also_if_it_sorts_before_those_that_are_done(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("b\n")
    source = FileInput(f"{tmp_path}/*.txt", TextParser())
    source.start(None)
    drain(source)
    source.advance(1)
    (tmp_path / "a.txt").write_text("a\n")
    again = FileInput(f"{tmp_path}/*.txt", TextParser())
    again.start(source.progress())
    assert [o.value for o in again.originals(drain(again))] == [b"a"]


@pytest.mark.parametrize(
    ("now", "says"),
    [
        ("one\n", "was read to byte 8 and now has only 4"),
        ("eins\ntwo\nthree\n", "is not what it was when it was read to byte 8"),
    ],
)
def test_a_file_that_shrank_or_changed_before_the_committed_position_is_refused(
    tmp_path: Path, now: str, says: str
) -> None:
    source, progress = started(tmp_path, "one\ntwo\nthree\n", 2)
    (tmp_path / "a.txt").write_text(now)
    with pytest.raises(CheckpointError, match=says):
        source.start(progress)


def test_a_last_line_that_went_on_after_it_was_read_is_refused(tmp_path: Path) -> None:
    source, progress = started(tmp_path, "one\ntw", 2)
    with (tmp_path / "a.txt").open("a") as file:
        file.write("o\n")
    with pytest.raises(CheckpointError, match="its last line \\(line 2\\) had been read when nothing ended it"):
        source.start(progress)


def test_a_file_that_went_away_half_read_is_refused_and_one_that_was_complete_is_not(tmp_path: Path) -> None:
    for done in (1, 2):
        (tmp_path / "b.txt").write_text("other\n")
        _, progress = started(tmp_path, "one\ntwo\n", done)
        (tmp_path / "a.txt").unlink()
        source = FileInput(f"{tmp_path}/*.txt", TextParser())
        if done == 1:
            with pytest.raises(CheckpointError, match="was read to line 1 only, and is not among the files any more"):
                source.start(progress)
        else:
            source.start(progress)
            assert len(drain(source)) == 1


def test_a_record_whose_file_shrank_is_not_replayed_as_something_else(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    source = FileInput(tmp_path / "a.txt", TextParser())
    source.start(None)
    records = drain(source)
    (tmp_path / "a.txt").write_text("one\n")
    with pytest.raises(InputChanged, match="must not shrink"):
        source.slices(records, 1)


def test_progress_of_another_make_is_refused() -> None:
    source = FileInput(__file__, TextParser())
    with pytest.raises(CheckpointError, match="does not say how far"):
        source.start({"files": [{"path": "a"}]})


def test_records_that_are_done_are_forgotten_and_asking_for_them_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n" * 10)
    source = FileInput(tmp_path / "a.txt", TextParser(), block_bytes=16)
    source.start(None)
    records = drain(source)
    source.advance(10)
    with pytest.raises(LookupError):
        source.originals(records[:1])
    assert len(source.originals(records[10:])) == 10


def test_paths_are_read_in_the_order_given_each_pattern_sorted_and_no_file_twice(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "deep/c.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x\n")
    found = find_files([tmp_path / "b.txt", f"{tmp_path}/**/*.txt"])
    assert [Path(file.path).name for file in found] == ["b.txt", "a.txt", "c.txt"]


def test_a_file_whose_name_looks_like_a_pattern_is_taken_as_it_stands(tmp_path: Path) -> None:
    (tmp_path / "a[1].txt").write_text("x\n")
    assert len(find_files(tmp_path / "a[1].txt")) == 1


@pytest.mark.parametrize(
    ("paths", "says"),
    [
        ("{folder}/*.nothing", "nothing matches .*nothing"),
        ("{folder}", "is a directory: write '.*\\*'"),
        ("s3://bucket/key", "is a URL"),
        ("{folder}/packed.gz", "unpack or convert it"),
        ([], "no path was given"),
    ],
)
def test_paths_that_make_no_sense_are_refused_by_name(tmp_path: Path, paths: str | list[str], says: str) -> None:
    (tmp_path / "packed.gz").write_bytes(b"x")
    given = paths.format(folder=tmp_path) if isinstance(paths, str) else paths
    with pytest.raises(SourceError, match=says):
        find_files(given)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that everybody may enter; pytest's own are its user's."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.parametrize("is_resumed", [False, True])
def test_a_file_that_may_not_be_read_is_named_and_has_not_changed(open_folder: Path, is_resumed: bool) -> None:
    path = open_folder / "a.txt"
    path.write_bytes(b"one\ntwo\n")
    source = FileInput(path, TextParser())
    source.start(None)
    if is_resumed:
        drain(source, 1)
        source.advance(1)
    progress = source.progress()
    path.chmod(0)
    says = rf"{path} cannot be read \(Permission denied\): give this user the right to read it"
    with without_rights(), pytest.raises(InputChanged, match=says):
        resume(path, progress)


def resume(path: Path, progress: Progress) -> None:
    again = FileInput(path, TextParser())
    again.start(progress)
    again.plan(10, 1)


@pytest.mark.parametrize("paths", [5, ["a", 3], None, [b"a"]])
def test_what_is_no_path_is_refused(paths: Any) -> None:
    with pytest.raises(SourceError, match="is no path: name a file"):
        find_files(paths)
