"""gz files of lines: they give the same lines as a plain file with the same content, and none if they are damaged."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acker_client.source.decoding import gz
from acker_client.source.decoding.lines import TextParser
from acker_client.source.errors import CheckpointError, InputChanged, SourceError
from acker_client.source.files.input import FileInput
from tests.source.driven import Driven, Tail, read_elsewhere

PIECES = [b"\n", b"\r\n", b"a\n", b"bb\n", b"\xff\n", b"no newline", b"long " * 50 + b"\n", b"\xef\xbb\xbf"]
members = st.lists(st.lists(st.sampled_from(PIECES), max_size=6).map(b"".join), min_size=1, max_size=4)


def packed(contents: list[bytes], *, zeros: int = 0) -> bytes:
    return b"".join(gzip.compress(content) for content in contents) + b"\0" * zeros


def read(driven: Driven, records: Any, tasks: int = 2) -> list[tuple[str | None, str | None]]:
    """Return rows as executors read them: (value, why it is unreadable or None)."""
    return [
        (value, rows.unreadable.get(index))
        for piece in driven.slices(records, tasks)
        for rows in piece.read()
        for index, value in enumerate(rows.columns.column("value").to_pylist())
    ]


def lines_of(content: bytes) -> list[bytes]:
    """Return lines as the input cuts them: only at line feeds, of which each may have a carriage return before it."""
    pieces = content.split(b"\n")
    lines = [piece.removesuffix(b"\r") for piece in pieces[:-1]] + ([pieces[-1]] if pieces[-1] else [])
    return [line.removeprefix(b"\xef\xbb\xbf") if not index else line for index, line in enumerate(lines)]


@given(st.lists(members, min_size=1, max_size=3), st.integers(0, 3), st.integers(1, 40), st.data())
@settings(max_examples=80, deadline=None)
def test_a_gz_gives_the_lines_that_it_would_give_unpacked_after_any_restart(
    tmp_path_factory: pytest.TempPathFactory,
    files: list[list[bytes]],
    zeros: int,
    block_bytes: int,
    data: st.DataObject,
) -> None:
    folder = tmp_path_factory.mktemp("gz")
    for index, contents in enumerate(files):
        (folder / f"{index}.txt.gz").write_bytes(packed(contents, zeros=zeros))
    expected = [line for path in sorted(folder.iterdir()) for line in lines_of(gzip.decompress(path.read_bytes()))]
    pattern = f"{folder}/*.gz"
    driven = Driven(FileInput(pattern, TextParser(), block_bytes=block_bytes))
    records = driven.drain(data.draw(st.integers(1, 5)))
    assert [original.value for original in driven.originals(records)] == expected
    rows = read(driven, records, data.draw(st.integers(1, 3)))
    assert [value for value, _ in rows] == [None if b"\xff" in line else line.decode() for line in expected]
    left = set(records.tolist())
    for _ in range(data.draw(st.integers(0, 3))):
        finished = data.draw(st.sets(st.sampled_from(sorted(left)))) if left else set()
        left -= finished
        driven.finish(sorted(finished))
        again = Driven(FileInput(pattern, TextParser(), block_bytes=block_bytes), driven.committed())
        assert again.values(again.drain(3)) == [expected[record] for record in sorted(left)]
    if not left:
        assert driven.description.startswith("end of the input")


def whole(folder: Path) -> bytes:
    content = "".join(f"line {k}\n" for k in range(1000)).encode()
    (folder / "a.gz").write_bytes(gzip.compress(content))
    return (folder / "a.gz").read_bytes()


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda raw: raw[:-1], "it ends in the middle"),
        (lambda raw: raw[: len(raw) // 2], "it ends in the middle"),
        (lambda raw: raw[:5], "it ends in the middle"),
        (lambda raw: raw[:-6] + bytes([raw[-6] ^ 1]) + raw[-5:], "incorrect data check"),
        (lambda raw: raw[:-1] + bytes([raw[-1] ^ 1]), "incorrect length check"),
        (lambda raw: b"no gz at all\n", "incorrect header check"),
        (lambda raw: raw + b"rubbish", "incorrect header check"),
        (lambda raw: raw + raw[:-3], "it ends in the middle"),
    ],
)
def test_nothing_of_a_damaged_gz_is_read_and_a_whole_copy_of_it_is_read_from_its_beginning(
    tmp_path: Path, damage: Any, says: str
) -> None:
    raw = whole(tmp_path)
    (tmp_path / "a.gz").write_bytes(damage(raw))
    driven = Driven(FileInput(f"{tmp_path}/a.gz", TextParser(), block_bytes=64))
    message = rf"{tmp_path}/a.gz is no whole gz \({says}\), and none of its lines was read: bring it back whole"
    with pytest.raises(SourceError, match=message):
        driven.plan(1)
    assert driven.committed() == {}
    (tmp_path / "a.gz").write_bytes(raw)
    again = Driven(FileInput(f"{tmp_path}/a.gz", TextParser()), driven.committed())
    assert len(again.drain()) == 1000


def test_an_empty_gz_and_one_of_nothing_have_no_lines(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(b"")
    (tmp_path / "b.gz").write_bytes(gzip.compress(b""))
    (tmp_path / "c.GZ").write_bytes(gzip.compress(b"one\n"))
    driven = Driven(FileInput(f"{tmp_path}/*", TextParser()))
    assert driven.values(driven.drain()) == [b"one"]


@pytest.mark.parametrize("done", [1, 1000])
def test_a_gz_that_is_another_one_than_the_checkpoint_knows_is_refused(tmp_path: Path, done: int) -> None:
    raw = whole(tmp_path)
    driven = Driven(FileInput(f"{tmp_path}/a.gz", TextParser()))
    driven.drain()
    driven.finish_below(done)
    committed = driven.committed()
    (tmp_path / "a.gz").write_bytes(raw + gzip.compress(b"more\n"))
    with pytest.raises(CheckpointError, match="is not what it was when its lines were read: give new data a new file"):
        Driven(FileInput(f"{tmp_path}/a.gz", TextParser()), committed)


def test_a_gz_that_was_renamed_while_it_was_partly_done_is_known_at_each_start_before_it_is_read_on(
    tmp_path: Path,
) -> None:
    (tmp_path / "b.gz").write_bytes(gzip.compress(b"one\ntwo\nthree\n"))
    tail = Tail(f"{tmp_path}/*")
    tail.driven.finish(tail.look()[:1])
    committed = dict(tail.driven.committed())
    (tmp_path / "b.gz").rename(tmp_path / "c.gz")
    (tmp_path / "a.log").write_text("x\n" * 50)
    again = Tail(f"{tmp_path}/*", committed)
    assert again.new(10) == ["x"] * 10
    last = Tail(f"{tmp_path}/*", again.finish_all())
    assert last.new() == [*["x"] * 40, "two", "three"]


def test_a_gz_that_changes_under_its_readers_is_an_error_never_other_records(tmp_path: Path) -> None:
    whole(tmp_path)
    driven = Driven(FileInput(f"{tmp_path}/a.gz", TextParser()))
    slices = driven.slices(driven.drain(), 1)
    (tmp_path / "other").write_bytes(gzip.compress("".join(f"LINE {k}\n" for k in range(1000)).encode()))
    (tmp_path / "other").rename(tmp_path / "a.gz")
    with pytest.raises(InputChanged, match="has changed since its records were counted"):
        list(slices[0].read())


@pytest.mark.slow
def test_slices_of_a_gz_are_read_elsewhere_without_spark_and_without_grpc(tmp_path: Path) -> None:
    whole(tmp_path)
    driven = Driven(FileInput(f"{tmp_path}/a.gz", TextParser(), block_bytes=1000))
    assert read_elsewhere(driven.slices(driven.drain(100), 2)) == "[500, 500] False False"


def test_batch_after_batch_of_a_gz_costs_a_process_one_pass_over_it_and_little_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole(tmp_path)
    driven = Driven(FileInput(f"{tmp_path}/a.gz", TextParser(), block_bytes=1000))
    batches = [driven.slices(driven.plan(100), 1) for _ in range(10)]
    unpacked: list[int] = []
    read_on = gz.Unpacked.read

    def counted(stream: gz.Unpacked, count: int) -> bytes:
        content = read_on(stream, count)
        unpacked.append(len(content))
        return content

    monkeypatch.setattr(gz.Unpacked, "read", counted)
    assert sum(rows.columns.num_rows for batch in batches for piece in batch for rows in piece.read()) == 1000
    assert sum(unpacked) == sum(len(f"line {k}\n") for k in range(1000))


def test_a_gz_that_unpacks_to_very_much_is_read_a_stretch_at_a_time(tmp_path: Path) -> None:
    deflate = zlib.compressobj(9, zlib.DEFLATED, gz.GZIP_BITS)

    def pieces() -> Iterator[bytes]:
        for _ in range(200):
            yield deflate.compress(b"x" * 99_999 + b"\n")
        yield deflate.flush()

    (tmp_path / "a.gz").write_bytes(b"".join(pieces()))
    stream = gz.Unpacked((tmp_path / "a.gz").open("rb"), gz.EntryPoint())
    sizes = [len(content) for content in iter(lambda: stream.read(1000), b"")]
    assert (max(sizes), sum(sizes)) == (1000, 20_000_000)
    stream.close()
