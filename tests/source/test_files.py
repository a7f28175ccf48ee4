"""Files as an input: where they resume, and what they refuse."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import pickle
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acker_client.source.decoding.lines import TextParser
from acker_client.source.errors import CheckpointError, InputChanged, SourceError
from acker_client.source.files.input import FileInput
from acker_client.source.files.line_files import find_line_files
from acker_client.source.records.input import Committed
from acker_client.source.records.ranges import Ranges
from tests.source.disks import without_rights
from tests.source.driven import Driven, rows_of

contents = st.lists(st.sampled_from([b"\n", b"\r\n", b"a\n", b"bb\n", b"\xff\n", b"no newline"]), max_size=9).map(
    b"".join
)


@pytest.mark.slow
@given(st.lists(contents, min_size=1, max_size=3), st.data())
@settings(max_examples=150, deadline=None)
def test_a_restart_at_any_point_reads_exactly_the_records_not_done(
    tmp_path_factory: pytest.TempPathFactory, files: list[bytes], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("files")
    for index, content in enumerate(files):
        (folder / f"{index}.txt").write_bytes(content)
    pattern = f"{folder}/*.txt"
    driven = Driven(FileInput(pattern, TextParser(), block_bytes=8))
    records = driven.drain(data.draw(st.integers(1, 5)))
    everything = _lines(driven, records)
    left = set(records.tolist())
    for _ in range(data.draw(st.integers(0, 3))):
        finished = data.draw(st.sets(st.sampled_from(sorted(left)))) if left else set()
        left -= finished
        driven.finish(sorted(finished))
        again = Driven(FileInput(pattern, TextParser()), driven.committed())
        assert _lines(again, again.drain()) == [everything[record] for record in sorted(left)]
    if not left:
        assert driven.description.startswith("end of the input")


def _lines(driven: Driven, records: np.ndarray) -> list[tuple[Any, ...]]:
    return [(*original.origin.values(), original.value) for original in driven.originals(records)]


def started(folder: Path, text: str, done: int) -> dict[str, Committed]:
    (folder / "a.txt").write_text(text)
    driven = Driven(FileInput(folder / "a.txt", TextParser()))
    driven.drain()
    driven.finish_below(done)
    return driven.committed()


def resumed(paths: Path | str, committed: dict[str, Committed]) -> Driven:
    return Driven(FileInput(paths, TextParser()), committed)


def test_a_file_that_grew_goes_on_where_it_was_left(tmp_path: Path) -> None:
    committed = started(tmp_path, "one\ntwo\n", 2)
    with (tmp_path / "a.txt").open("a") as file:
        file.write("three\n")
    driven = resumed(tmp_path / "a.txt", committed)
    assert _lines(driven, driven.drain()) == [(f"{tmp_path}/a.txt", 3, 8, b"three")]


def test_a_new_file_is_read_also_if_it_sorts_before_those_that_are_done(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("b\n")
    driven = Driven(FileInput(f"{tmp_path}/*.txt", TextParser()))
    driven.finish(driven.drain())
    (tmp_path / "a.txt").write_text("a\n")
    again = resumed(f"{tmp_path}/*.txt", driven.committed())
    assert again.values(again.drain()) == [b"a"]


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
    committed = started(tmp_path, "one\ntwo\nthree\n", 2)
    (tmp_path / "a.txt").write_text(now)
    with pytest.raises(CheckpointError, match=says):
        resumed(tmp_path / "a.txt", committed)


@pytest.mark.parametrize(("line", "is_noticed"), [("CHANGED\n", False), ("longer than before\n", True)])
def test_an_edit_in_the_middle_of_what_was_read_is_noticed_if_it_moves_what_follows(
    tmp_path: Path, line: str, is_noticed: bool
) -> None:
    lines = [f"{k:07}\n" for k in range(1000)]
    committed = started(tmp_path, "".join(lines), 1000)
    (tmp_path / "a.txt").write_text("".join([*lines[:500], line.rjust(8, " "), *lines[501:]]))
    if is_noticed:
        with pytest.raises(CheckpointError, match="is not what it was when it was read to byte 8000"):
            resumed(tmp_path / "a.txt", committed)
    else:
        assert not len(resumed(tmp_path / "a.txt", committed).drain())


def test_a_last_line_that_went_on_after_it_was_read_is_refused(tmp_path: Path) -> None:
    committed = started(tmp_path, "one\ntw", 2)
    with (tmp_path / "a.txt").open("a") as file:
        file.write("o\n")
    with pytest.raises(CheckpointError, match="its last line \\(line 2\\) was read before a line feed ended it"):
        resumed(tmp_path / "a.txt", committed)


def test_a_file_that_went_away_half_read_is_refused_and_one_that_was_complete_is_not(tmp_path: Path) -> None:
    for done in (1, 2):
        (tmp_path / "b.txt").write_text("other\n")
        committed = started(tmp_path, "one\ntwo\n", done)
        (tmp_path / "a.txt").unlink()
        if done == 1:
            with pytest.raises(CheckpointError, match="was read to line 1 only, and is not among the files any more"):
                resumed(f"{tmp_path}/*.txt", committed)
        else:
            assert len(resumed(f"{tmp_path}/*.txt", committed).drain()) == 1


def test_a_record_whose_file_shrank_is_not_replayed_as_something_else(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    driven = Driven(FileInput(tmp_path / "a.txt", TextParser()))
    records = driven.drain()
    (tmp_path / "a.txt").write_text("one\n")
    with pytest.raises(InputChanged, match="must not shrink"):
        driven.slices(records, 1)


def test_a_file_that_was_replaced_after_it_was_read_and_before_the_commit_is_refused_at_the_next_start(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    driven = Driven(FileInput(tmp_path / "a.txt", TextParser()))
    records = driven.drain()
    (tmp_path / "a.txt").write_text("three\nfour\nfive\n")
    driven.finish(records)
    with pytest.raises(CheckpointError, match=r"a\.txt is not what it was when it was read to byte 8"):
        resumed(tmp_path / "a.txt", driven.committed())


def test_a_mark_of_another_make_is_refused() -> None:
    with pytest.raises(CheckpointError, match="does not say how far"):
        resumed(__file__, {"a": Committed(Ranges.below(1), {"offset": 3})})


def test_a_change_behind_the_prefix_and_before_the_last_record_done_is_refused_too(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\nthree\n")
    driven = Driven(FileInput(tmp_path / "a.txt", TextParser()))
    driven.finish(driven.drain()[[0, 2]])
    committed = driven.committed()
    (tmp_path / "a.txt").write_text("one\nTWO\nthree\n")
    with pytest.raises(CheckpointError, match="is not what it was when it was read to byte 14"):
        resumed(tmp_path / "a.txt", committed)


def test_a_checkpoint_cut_to_fewer_holes_resumes_from_the_rest(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("".join(f"{k}\n" for k in range(30)))
    driven = Driven(FileInput(tmp_path / "a.txt", TextParser(), block_bytes=16))
    driven.finish(driven.drain()[[0, 5, 20]])
    again = Driven(FileInput(tmp_path / "a.txt", TextParser(), block_bytes=16), driven.committed())
    again.plan(2)
    (path,) = again.parts.done
    cut = again.parts.done[path].first_holes(1)
    committed = {path: Committed(cut, again.input.mark(path, cut))}
    third = resumed(tmp_path / "a.txt", committed)
    assert third.values(third.drain()) == [str(k).encode() for k in range(30) if k not in (0, 5)]


def test_records_that_are_done_are_forgotten_and_asking_for_them_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n" * 10)
    driven = Driven(FileInput(tmp_path / "a.txt", TextParser(), block_bytes=16))
    records = driven.drain()
    driven.finish_below(10)
    with pytest.raises(LookupError):
        driven.originals(records[:1])
    assert len(driven.originals(records[10:])) == 10


def test_memory_does_not_grow_with_a_file_even_without_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n" * 2000)
    source = FileInput(tmp_path / "a.txt", TextParser(), block_bytes=16)
    driven = Driven(source)
    path, kept = str(tmp_path / "a.txt"), []
    while len(records := driven.plan(20)):
        driven.finish(records)
        source.advance(path, driven.parts.done[path])
        kept.append(len(pickle.dumps(source._files._files[path])))
    assert max(kept) < 2 * min(kept)


def test_paths_are_read_in_the_order_given_each_pattern_sorted_and_no_file_twice(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "deep/c.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x\n")
    found = find_line_files([tmp_path / "b.txt", f"{tmp_path}/**/*.txt"])
    assert [Path(file.path).name for file in found] == ["b.txt", "a.txt", "c.txt"]


def test_a_file_to_which_links_lead_is_read_once_also_where_folders_go_round_in_a_circle(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "a.log").write_text("x\n")
    (tmp_path / "logs" / "current.log").symlink_to("a.log")
    (tmp_path / "logs" / "0").symlink_to(".")
    found = find_line_files(f"{tmp_path}/logs/**/*.log")
    assert [file.path for file in found] == [f"{tmp_path}/logs/a.log"]


@pytest.mark.parametrize(("given", "written"), [("link", "folder"), ("folder", "link"), ("link", "link")])
def test_a_file_that_the_source_writes_is_refused_as_input_also_where_a_link_leads_to_its_folder(
    tmp_path: Path, given: str, written: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")
    for name in ("a.jsonl", "dead.jsonl"):
        (tmp_path / "folder" / name).write_text("x\n")
    paths, own = f"{tmp_path}/{given}/*", [tmp_path / written / "dead.jsonl"]
    with pytest.raises(SourceError, match=rf"{given}/dead\.jsonl' is written by this source: keep it out of"):
        Driven(FileInput(paths, TextParser(), own_files=own))


def test_a_link_to_nothing_and_a_file_that_went_away_are_named_unless_files_are_followed(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("x\n")
    (tmp_path / "b.log").symlink_to(tmp_path / "nothing")
    for paths in (f"{tmp_path}/*.log", f"{tmp_path}/b.log"):
        with pytest.raises(InputChanged, match=r"b.log cannot be read \(No such file or directory\): bring it back"):
            Driven(FileInput(paths, TextParser()))
    assert len(Driven(FileInput(f"{tmp_path}/*.log", TextParser(), follow_s=1.0)).input.plan(10, 1).parts) == 1


def test_paths_that_are_not_files_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SourceError, match="pipe' is a pipe, a socket or a device: copy it into a file, or leave it"):
        find_line_files(f"{tmp_path}/*")


def test_a_file_whose_name_is_not_utf8_is_read_like_the_others_and_its_name_is_shown_escaped(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.log")).write_text("x\ny\n")
    (tmp_path / "a.log").write_text("z\n")
    driven = Driven(FileInput(f"{tmp_path}/*.log", TextParser()))
    records = driven.drain()
    rows = rows_of(pickle.loads(pickle.dumps(driven.slices(records))))
    shown = f"{tmp_path}/caf\\xe9.log"
    assert [(row["value"], row["path"]) for row in rows] == [("z", f"{tmp_path}/a.log"), ("x", shown), ("y", shown)]
    assert driven.originals(records)[1].origin["path"] == shown
    driven.finish(records[:2])
    assert driven.description == f"1 of 2 files, {shown} to line 1"
    again = resumed(f"{tmp_path}/*.log", driven.committed())
    assert again.values(again.drain()) == [b"y"]


def test_a_file_whose_name_looks_like_a_pattern_is_taken_as_it_stands(tmp_path: Path) -> None:
    (tmp_path / "a[1].txt").write_text("x\n")
    assert len(find_line_files(tmp_path / "a[1].txt")) == 1


@pytest.mark.parametrize(
    ("paths", "says"),
    [
        ("{folder}/*.nothing", "nothing matches .*nothing"),
        ("{folder}", "is a directory: write '.*\\*'"),
        ("ftp://host/key", "ftp://host/key' is a URL that is not read: known are s3://, gs://, .* through Frame"),
        ("dbfs:/mnt/orders/*.jsonl", "is a URL .*: write '/dbfs/mnt/orders/\\*.jsonl', where Databricks mounts it"),
        ("dbfs:/Volumes/a/b/c", "write '/Volumes/a/b/c', where"),
        ("file:///nowhere/orders", "nothing matches '/nowhere/orders'"),
        ("{folder}/packed.zst", "packed.zst' is not a file of lines, and Files reads plain text and .gz: unpack or"),
        ("{folder}/packed.snappy", "packed.snappy' is not a file of lines, and Files reads plain text and .gz: unpack"),
        ("{folder}/packed.tar.gz", "unpack or convert it"),
        ([], "no path was given"),
    ],
)
def test_paths_that_make_no_sense_are_refused_by_name(tmp_path: Path, paths: str | list[str], says: str) -> None:
    for name in ("packed.zst", "packed.snappy", "packed.tar.gz"):
        (tmp_path / name).write_bytes(b"x")
    given = paths.format(folder=tmp_path) if isinstance(paths, str) else paths
    with pytest.raises(SourceError, match=says):
        find_line_files(given)


@pytest.mark.parametrize(
    ("head", "codec"),
    [
        (gzip.compress(b"x"), "gzip, and its name does not end in .gz"),
        (bz2.compress(b"x"), "bzip2"),
        (lzma.compress(b"x"), "xz"),
        (pa.compress(b"x", "zstd", asbytes=True), "zstd"),
        (b"\xff\x06\x00\x00sNaPpY\x01", "snappy"),
        (b"PK\x03\x04\x14", "zip"),
        (b"Obj\x01\x04", "Avro"),
    ],
    # The bytes of a gzip hold the time, and names of tests have to be the same in all workers.
    ids=["gzip", "bzip2", "xz", "zstd", "snappy", "zip", "avro"],
)
@pytest.mark.parametrize("follow_s", [None, 1.0])
def test_a_packed_file_is_refused_by_its_content_whatever_its_name(
    tmp_path: Path, head: bytes, codec: str, follow_s: float | None
) -> None:
    (tmp_path / "a.jsonl").write_bytes(head)
    driven = Driven(FileInput(tmp_path / "a.jsonl", TextParser(), follow_s=follow_s))
    says = rf"a\.jsonl is packed \({re.escape(codec)}\), and Files reads plain text and \.gz: unpack it"
    with pytest.raises(SourceError, match=says):
        driven.input.plan(10, 1)


def test_a_folder_whose_name_looks_like_a_url_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "orders:").mkdir()
    (tmp_path / "orders:" / "a.txt").write_text("x\n")
    assert len(find_line_files("orders:/*.txt")) == 1


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Yield a folder that every user may enter. Other users may not enter pytest's folders."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.parametrize("is_resumed", [False, True])
def test_a_file_that_may_not_be_read_is_named_and_has_not_changed(open_folder: Path, is_resumed: bool) -> None:
    path = open_folder / "a.txt"
    path.write_bytes(b"one\ntwo\n")
    driven = Driven(FileInput(path, TextParser()))
    if is_resumed:
        driven.finish(driven.plan(1))
    committed = driven.committed()
    path.chmod(0)
    says = rf"{path} cannot be read \(Permission denied\): give this user the right to read it"
    with without_rights(), pytest.raises(InputChanged, match=says):
        resumed(path, committed).plan(10)


@pytest.mark.parametrize("paths", [5, ["a", 3], None, [b"a"]])
def test_values_of_other_types_are_refused_as_paths(paths: Any) -> None:
    with pytest.raises(SourceError, match="is no path: name a file"):
        find_line_files(paths)
