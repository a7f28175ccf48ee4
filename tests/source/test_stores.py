"""Files and Parquet in object stores: the same records as from local files, and never those of a replaced object."""

from __future__ import annotations

import gzip
import io
import itertools
import logging
import pickle
import platform
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow.fs import FSSpecHandler, LocalFileSystem, PyFileSystem

from acker_client.source import Batch, CheckpointError, Files, InputChanged, Parquet, Retry, SourceError
from acker_client.source.decoding.lines import TextParser
from acker_client.source.files.input import FileInput
from acker_client.source.parquet.input import ParquetInput
from acker_client.source.parquet.places import schema_of
from acker_client.source.records.input import Committed
from acker_client.source.storage import connecting
from acker_client.source.storage.store import Opened, Store
from acker_client.source.storage.troubles import explain
from acker_client.source.waiting import OutOfReach
from tests.source.driven import Driven, Tail, read_elsewhere, rows_of
from tests.source.executors import NO_SPARK, Cluster, failing, save_all
from tests.source.logs import MemoryCheckpoint
from tests.source.s3_server import S3Server, filesystem_at, nothing
from tests.source.stores import Listed, filesystem_over, touch, values_in

NUMBERS = pa.schema([("value", pa.string())])


@pytest.fixture
def server(s3_server: S3Server) -> S3Server:
    return s3_server


def parquet_of(values: list[str], rows_per_group: int = 4) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"value": pa.array(values, pa.string())}), file, row_group_size=rows_per_group)
    return file.getvalue()


# -- the same records as from local files

lines = st.lists(st.sampled_from([b"\n", b"\r\n", b"a\n", b"bb\n", b"\xff\n", b"no newline"]), max_size=9).map(b"".join)
trees = st.dictionaries(st.sampled_from(["a.txt", "b/c.txt", "b/d.txt.gz", "e.txt.gz"]), lines, min_size=1, max_size=4)


def records_of(driven: Driven, root: str) -> list[tuple[Any, ...]]:
    """Return the rows as executors read them, with paths below ``root``, and check the origins."""
    records = driven.drain(3)
    rows = rows_of(driven.slices(records, 2))
    originals = driven.originals(records)
    assert [(row["path"], row["line"]) for row in rows] == [
        (original.origin["path"], original.origin["line"]) for original in originals
    ]
    return [
        (row["path"].removeprefix(root), row["line"], row["value"], original.value)
        for row, original in zip(rows, originals, strict=True)
    ]


@pytest.mark.slow
@given(trees, st.sampled_from([8, 4 << 20]), st.data())
@settings(max_examples=60, deadline=None)
def test_objects_give_the_records_that_local_files_give_after_any_restart(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes], block_bytes: int, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("twin")
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    made: list[tuple[str, Callable[[], FileInput]]] = [
        (f"{folder}/", lambda: FileInput(f"{folder}/**/*", TextParser(), block_bytes=block_bytes)),
        (
            "",
            lambda: FileInput("**/*", TextParser(), filesystem=filesystem_over(folder), block_bytes=block_bytes),
        ),
    ]
    done = data.draw(st.sets(st.integers(0, 30)))
    seen = []
    for root, make in made:
        driven = Driven(make())
        first = records_of(driven, root)
        driven.finish(sorted(k for k in done if k < len(first)))
        again = Driven(make(), driven.committed())
        seen.append((first, records_of(again, root)))
        if all(k in done for k in range(len(first))):
            assert driven.description.startswith("end of the input")
    assert seen[0] == seen[1]


def test_lines_and_rows_in_s3_are_read_through_urls_and_through_a_filesystem(
    server: S3Server, bucket: str, tmp_path: Path
) -> None:
    server.put(bucket, "in/a.txt", "one\ntwo\n")
    server.put(bucket, "in/deep/b.txt.gz", gzip.compress(b"three\nfour"))
    server.put(bucket, "in/c.txt", "")
    server.put(bucket, "rows/a.parquet", parquet_of([str(k) for k in range(10)]))
    server.put(bucket, "rows/_SUCCESS", "")
    for paths, filesystem, root in (
        (f"s3://{bucket}/in/**/*.txt*{server.query}", None, "s3://"),
        (f"{bucket}/in/**/*.txt*", server.filesystem(), ""),
    ):
        driven = Driven(FileInput(paths, TextParser(), filesystem=filesystem))
        rows = rows_of(pickle.loads(pickle.dumps(driven.slices(driven.drain()))))
        assert [tuple(row.values()) for row in rows] == [
            ("one", f"{root}{bucket}/in/a.txt", 1),
            ("two", f"{root}{bucket}/in/a.txt", 2),
            ("three", f"{root}{bucket}/in/deep/b.txt.gz", 1),
            ("four", f"{root}{bucket}/in/deep/b.txt.gz", 2),
        ]
    for paths, filesystem in (
        (f"s3://{bucket}/rows{server.query}", None),
        (f"{bucket}/rows/*.parquet", server.filesystem()),
    ):
        assert schema_of(paths, filesystem) == NUMBERS
        driven = Driven(ParquetInput(paths, NUMBERS, filesystem=filesystem))
        assert values_in(driven.slices(driven.drain())) == [str(k) for k in range(10)]
        driven.finish([0, 1, 5])
        again = Driven(ParquetInput(paths, NUMBERS, filesystem=filesystem), driven.committed())
        assert values_in(again.slices(again.drain())) == [str(k) for k in range(10) if k not in (0, 1, 5)]


@pytest.mark.slow
def test_slices_of_objects_are_read_in_another_process_without_spark_and_without_grpc(
    server: S3Server, bucket: str
) -> None:
    server.put(bucket, "a.txt", "one\ntwo\n")
    driven = Driven(FileInput(f"s3://{bucket}/a.txt{server.query}", TextParser()))
    assert read_elsewhere(driven.slices(driven.drain(), 1)) == "[2] False False"


def test_a_range_is_read_and_not_the_whole_object(server: S3Server, bucket: str) -> None:
    server.put(bucket, "a.txt", "".join(f"{k:07}\n" for k in range(1000)))
    driven = Driven(FileInput(f"s3://{bucket}/a.txt{server.query}", TextParser()))
    records = driven.drain(100)
    driven.slices(records)
    server.calls.clear()
    server.ranges.clear()
    assert values_in(driven.slices(records[100:125], 1)) == [f"{k:07}" for k in range(100, 125)]
    # The driver looks once, because the object was not opened for this batch. The executor looks before and after.
    assert [method for method, _ in server.calls] == ["HEAD", "HEAD", "GET", "HEAD"]
    assert server.ranges == ["bytes=800-999"]


def test_objects_that_appear_are_followed_and_a_source_ends_when_it_is_told_to(
    server: S3Server, bucket: str, tmp_path: Path
) -> None:
    tail = Tail(f"s3://{bucket}/in/*{server.query}")
    assert tail.new() == []
    server.put(bucket, "in/b.txt", "b\n")
    assert [tail.new(), tail.new()] == [["b"], []]
    server.put(bucket, "in/a.txt", "a\nno line feed")
    assert [tail.new(), tail.new()] == [["a", "no line feed"], []]
    assert tail.driven.description == f"0 of 2 files, s3://{bucket}/in/b.txt to line 0"
    tail.driven.finish([0, 1, 2])
    committed = tail.driven.committed()
    assert tail.driven.description == "all that is there so far (2 files)"
    server.put(bucket, "in/c.txt", "c\n")
    again = Tail(f"s3://{bucket}/in/*{server.query}", committed)
    assert [again.new(), again.new()] == [["c"], []]


def test_rows_of_objects_that_appear_are_followed(server: S3Server, bucket: str) -> None:
    now_s = [0.0]
    server.put(bucket, "in/a.parquet", parquet_of(["a"]))
    paths = f"s3://{bucket}/in{server.query}"
    source = ParquetInput(paths, NUMBERS, follow_s=2.0, clock=lambda: now_s[0])
    driven = Driven(source)

    def new() -> list[str]:
        now_s[0] += 2.0
        return values_in(driven.slices(driven.parts.add_parts(source.plan(100, 2).parts)))

    assert [new(), new()] == [["a"], []]
    server.put(bucket, "in/b.parquet", parquet_of(["b", "c"]))
    assert [new(), new()] == [["b", "c"], []]
    server.put(bucket, "in/a.parquet", parquet_of(["another"]))
    with pytest.raises(InputChanged, match=r"a\.parquet is not what it was when its rows were read"):
        new()


# -- replaced objects


def lines_input(server: S3Server, bucket: str, committed: Any = None, name: str = "a.txt") -> Driven:
    return Driven(FileInput(f"s3://{bucket}/{name}{server.query}", TextParser()), committed)


CONTENTS: dict[str, tuple[Callable[[list[str]], bytes], Callable[[S3Server, str, Any], Driven]]] = {
    "a.txt": (lambda values: "".join(f"{value}\n" for value in values).encode(), lines_input),
    "a.txt.gz": (
        lambda values: gzip.compress("".join(f"{value}\n" for value in values).encode(), mtime=0),
        lambda server, bucket, committed: lines_input(server, bucket, committed, "a.txt.gz"),
    ),
    "a.parquet": (
        parquet_of,
        lambda server, bucket, committed: Driven(
            ParquetInput(f"s3://{bucket}/a.parquet{server.query}", NUMBERS), committed
        ),
    ),
}
OLD, NEW = [f"old {k}" for k in range(10)], [f"new {k}" for k in range(10)]


@pytest.mark.parametrize("name", CONTENTS)
def test_an_object_that_is_replaced_before_anything_of_it_was_read_is_read_as_it_is_then(
    server: S3Server, bucket: str, name: str
) -> None:
    content, make = CONTENTS[name]
    server.put(bucket, name, content(OLD))
    driven = make(server, bucket, None)  # lists
    server.put(bucket, name, content(NEW))
    assert values_in(driven.slices(driven.drain())) == NEW
    driven.finish([0])
    again = make(server, bucket, driven.committed())
    assert values_in(again.slices(again.drain())) == NEW[1:]


@pytest.mark.parametrize("name", CONTENTS)
def test_an_object_that_is_replaced_after_it_was_planned_is_refused_by_the_task(
    server: S3Server, bucket: str, name: str
) -> None:
    content, make = CONTENTS[name]
    server.put(bucket, name, content(OLD))
    driven = make(server, bucket, None)
    slices = driven.slices(driven.drain())
    server.put(bucket, name, content(NEW))
    with pytest.raises(InputChanged, match=rf"{name} has changed since its records were counted: write a new file"):
        values_in(slices)
    # A replay is refused by the driver, before its task begins.
    with pytest.raises(InputChanged, match=rf"{name} has changed since its records were counted"):
        driven.slices([0])
    assert driven.values([0]) == [None]


@pytest.mark.parametrize("name", CONTENTS)
def test_an_object_that_is_replaced_at_any_call_of_a_read_is_refused_before_the_task_reports(
    server: S3Server, bucket: str, name: str
) -> None:
    content, make = CONTENTS[name]

    def planned() -> Any:
        server.before = nothing
        server.put(bucket, name, content(OLD))
        driven = make(server, bucket, None)
        return driven.slices(driven.drain(), 1)

    slices = planned()
    server.calls.clear()
    assert values_in(slices) == OLD
    for moment in range(len(server.calls)):
        slices = planned()
        server.before = replacing(server, bucket, name, moment)
        with pytest.raises(InputChanged, match=rf"{name}.* (has changed since its records|cannot be unpacked)"):
            values_in(slices)


def replacing(server: S3Server, bucket: str, name: str, moment: int) -> Callable[[str, str], None]:
    """Return a ``before`` that replaces an object before the call with this number."""
    calls = itertools.count()

    def before(method: str, path: str) -> None:
        if path.endswith(name) and next(calls) == moment:
            server.before = nothing
            server.put(bucket, name, CONTENTS[name][0](NEW))

    return before


@pytest.mark.parametrize("name", CONTENTS)
@pytest.mark.parametrize("done", [3, 10])
def test_an_object_that_is_replaced_before_a_restart_is_refused(
    server: S3Server, bucket: str, name: str, done: int
) -> None:
    content, make = CONTENTS[name]
    server.put(bucket, name, content(OLD))
    driven = make(server, bucket, None)
    driven.finish(driven.drain()[:done])
    committed = driven.committed()
    server.put(bucket, name, content([*NEW, "one more"]))
    with pytest.raises(CheckpointError, match=rf"s3://{bucket}/{name} is not what it was when its .* were read: give"):
        make(server, bucket, committed)


@pytest.mark.parametrize("name", CONTENTS)
def test_an_object_of_the_same_size_and_second_is_refused_before_anything_of_it_is_read(
    server: S3Server, bucket: str, name: str
) -> None:
    content, make = CONTENTS[name]
    server.put(bucket, name, content(OLD))
    driven = make(server, bucket, None)
    driven.finish(driven.drain()[:3])
    committed = driven.committed()
    (mark,) = [dict(each.mark) for each in committed.values()]
    server.put(bucket, name, content(NEW))
    # As if both objects were written in the same second: a listing shows no difference, but the ETag does.
    listed = server.filesystem().get_file_info(f"{bucket}/{name}")
    mark |= {"size": listed.size, "modified_ns": listed.mtime_ns}
    committed = {partition: replace(each, mark=mark) for partition, each in committed.items()}
    again = make(server, bucket, committed)
    with pytest.raises(InputChanged, match="is not what it was when its"):
        again.drain()


def test_an_object_that_is_replaced_while_it_is_followed_is_refused_also_if_it_was_away_meanwhile(
    server: S3Server, bucket: str
) -> None:
    for is_away in (False, True):
        server.put(bucket, "in/a.txt", "one\n")
        tail = Tail(f"s3://{bucket}/in/*{server.query}")
        assert tail.new() == ["one"]
        tail.driven.finish([0])
        tail.driven.committed()
        if is_away:
            server.client.delete_object(Bucket=bucket, Key="in/a.txt")
            assert tail.new() == []
        server.put(bucket, "in/a.txt", "one\ntwo\n")
        with pytest.raises(InputChanged, match=r"in/a\.txt has changed since its records were counted"):
            tail.look()


def test_an_empty_object_and_a_gz_that_is_not_whole_are_read_once_they_are_replaced(
    server: S3Server, bucket: str, caplog: pytest.LogCaptureFixture
) -> None:
    whole = gzip.compress(b"packed\n")
    server.put(bucket, "in/a.txt", "")
    server.put(bucket, "in/b.txt.gz", whole[:-1])
    tail = Tail(f"s3://{bucket}/in/*{server.query}")
    assert [tail.new(), tail.new()] == [[], []]
    (line,) = [line for line in caplog.messages if "no whole gz" in line]
    assert line.startswith(f"s3://{bucket}/in/b.txt.gz is no whole gz (it ends in the middle)")
    server.put(bucket, "in/a.txt", "plain\n")
    server.put(bucket, "in/b.txt.gz", whole)
    assert sorted(tail.new()) == ["packed", "plain"]
    assert tail.new() == []


def test_empty_objects_that_were_replaced_are_read_after_an_outage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_object, away = Store.open, set[str]()

    def open_if_reachable(store: Store, path: str) -> Opened:
        if path in away:
            raise OutOfReach("SlowDown")
        return open_object(store, path)

    monkeypatch.setattr(Store, "open", open_if_reachable)
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text("")
    tail = Tail("*.txt", filesystem=filesystem_over(tmp_path), block_bytes=4)
    assert tail.new() == []
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(f"{name}_1\n{name}_2\n")
    for left in ({"a.txt", "b.txt"}, {"b.txt"}):
        away.update(left)
        tail.now_s += 100.0
        assert tail.new() == (["a_1", "a_2"] if left == {"b.txt"} else [])
        away.clear()
    tail.now_s += 100.0
    assert [tail.new(), tail.new()] == [["b_1", "b_2"], []]


def test_an_empty_object_that_was_replaced_and_is_replaced_again_half_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_at = Opened.read_at

    def read_beginning(opened: Opened, start: int, stop: int) -> bytes:
        if start >= 16:
            raise OutOfReach("SlowDown")
        return read_at(opened, start, stop)

    monkeypatch.setattr("acker_client.source.storage.store.BUFFER_BYTES", 16)
    (tmp_path / "a.txt").write_text("")
    tail = Tail("*.txt", filesystem=filesystem_over(tmp_path), block_bytes=4)
    assert tail.new() == []
    (tmp_path / "a.txt").write_text("one\n" * 8)
    with monkeypatch.context() as outage:
        outage.setattr(Opened, "read_at", read_beginning)
        assert len(tail.look()) == 4
    (tmp_path / "a.txt").write_text("two\n" * 9)
    tail.now_s += 100.0
    with pytest.raises(InputChanged, match=r"a\.txt is not what it was when its lines were read"):
        tail.look()


def test_an_object_that_is_removed_is_let_go_once_it_is_done_and_before_that_it_is_an_error(
    server: S3Server, bucket: str
) -> None:
    server.put(bucket, "in/a.txt", "one\ntwo\n")
    tail = Tail(f"s3://{bucket}/in/*{server.query}", block_bytes=4)
    assert values_in(tail.driven.slices(tail.driven.parts.add_parts(tail.input.plan(1, 1).parts))) == ["one"]
    server.client.delete_object(Bucket=bucket, Key="in/a.txt")
    # The source may have read lines ahead before that. Then it plans them, and the task does not find the object.
    with pytest.raises(InputChanged, match=r"in/a\.txt cannot be read \(it is not there\): bring it back"):
        values_in(tail.driven.slices(tail.look()))
    server.put(bucket, "in/a.txt", "one\n" * 3_000_000)
    tail = Tail(f"s3://{bucket}/in/*{server.query}")
    tail.input.plan(1, 1)
    server.client.delete_object(Bucket=bucket, Key="in/a.txt")
    with pytest.raises(InputChanged, match=r"in/a\.txt cannot be read \(it is not there\)"):
        tail.input.plan(4_000_000, 1)
    server.put(bucket, "in/a.txt", "one\n")
    tail = Tail(f"s3://{bucket}/in/*{server.query}")
    assert tail.new() == ["one"]
    tail.driven.finish([0])
    committed = tail.driven.committed()
    server.client.delete_object(Bucket=bucket, Key="in/a.txt")
    assert [tail.new(), tail.new()] == [[], []]
    assert Tail(f"s3://{bucket}/in/*{server.query}", committed).new() == []


def test_a_gz_that_is_removed_before_it_was_whole_is_an_error(server: S3Server, bucket: str) -> None:
    server.put(bucket, "in/a.gz", gzip.compress(b"one\n")[:-1])
    tail = Tail(f"s3://{bucket}/in/*{server.query}")
    assert tail.new() == []
    server.client.delete_object(Bucket=bucket, Key="in/a.gz")
    with pytest.raises(InputChanged, match=r"in/a\.gz was removed before it was read to its end: keep objects until"):
        tail.look()


def test_a_checkpoint_reads_nothing_and_a_restart_begins_at_the_first_record_that_is_not_done(
    server: S3Server, bucket: str
) -> None:
    server.put(bucket, "a.txt", "".join(f"{k}\n" for k in range(1000)))
    driven = lines_input(server, bucket)
    driven.finish(driven.drain(100)[:137])
    server.calls.clear()
    committed = driven.committed()
    assert server.calls == []
    again = lines_input(server, bucket, committed)
    first, *_ = again.input.plan(10, 1).parts
    assert first.start == 137


def test_each_of_several_restarts_reads_exactly_the_lines_of_an_object_that_are_not_done(
    server: S3Server, bucket: str
) -> None:
    server.put(bucket, "a.txt", "".join(f"{k}\n" for k in range(20)))
    left, committed = set(range(20)), None
    for done in ({0, 1, 2, 5}, {3, 4, 13}, {6, 7, 19}, {8, 15}):
        driven = lines_input(server, bucket, committed)
        records = driven.drain()
        values = [int(value) for value in driven.values(records)]
        assert values == sorted(left)
        driven.finish([record for record, value in zip(records, values, strict=True) if value in done])
        left, committed = left - done, dict(driven.committed())


@pytest.mark.parametrize(("name", "block_bytes"), [("a.txt", 4 << 20), ("a.txt.gz", 4 << 20), ("a.txt.gz", 8)])
def test_an_object_that_is_done_while_lines_of_it_are_left_to_plan_is_planned_to_its_end(
    tmp_path: Path, name: str, block_bytes: int
) -> None:
    text = "".join(f"{k}\n" for k in range(20)).encode()
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)

    def driven_from(committed: dict[str, Committed]) -> Driven:
        filesystem = filesystem_over(tmp_path)
        return Driven(FileInput(name, TextParser(), filesystem=filesystem, block_bytes=block_bytes), committed)

    driven = driven_from({})
    driven.finish([record for record in driven.drain().tolist() if record != 5])
    again = driven_from(driven.committed())
    records = again.plan(4)
    assert again.values(records) == [b"5"]
    again.finish(records)
    (committed,) = again.committed().values()
    assert committed.mark["complete"]
    assert not len(again.plan(4))
    assert again.description == "end of the input (1 file)"


def test_an_object_that_went_away_half_read_is_refused_at_the_next_start(server: S3Server, bucket: str) -> None:
    server.put(bucket, "a.txt", "one\ntwo\n")
    server.put(bucket, "b.txt", "other\n")
    driven = lines_input(server, bucket, name="*.txt")
    driven.finish(driven.drain()[:1])
    server.client.delete_object(Bucket=bucket, Key="a.txt")
    with pytest.raises(CheckpointError, match=r"a\.txt was read to line 1 only, and is not among the files any more"):
        lines_input(server, bucket, driven.committed(), "*.txt")


def test_an_object_that_ends_with_its_batch_is_complete_once_its_records_are_done(
    server: S3Server, bucket: str
) -> None:
    server.put(bucket, "a.txt", "one\ntwo\n")
    driven = lines_input(server, bucket)
    driven.finish(driven.plan(2))
    assert driven.committed()[f"s3://{bucket}/a.txt"].mark["complete"]
    assert driven.description == "end of the input (1 file)"
    server.client.delete_object(Bucket=bucket, Key="a.txt")
    server.put(bucket, "b.txt", "other\n")
    again = lines_input(server, bucket, driven.committed(), "*.txt")
    assert again.values(again.drain()) == [b"other"]


# -- outages and errors


def test_an_outage_is_waited_for_and_nothing_is_lost_or_read_twice(
    server: S3Server, bucket: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for name in "abc":
        server.put(bucket, f"in/{name}.txt", f"{name}1\n{name}2\n")
    now_s = [0.0]
    source = FileInput(
        f"{bucket}/in/*", TextParser(), filesystem=server.filesystem(), block_bytes=4, clock=lambda: now_s[0]
    )
    driven = Driven(source)
    values: list[Any] = []

    def plan() -> None:
        records = driven.parts.add_parts(source.plan(1, 1).parts)
        values.extend(driven.values(records))

    plan()
    for _ in range(5):
        assert source.is_reachable()
        server.before = lambda method, path: (500, "InternalError")
        now_s[0] += 100.0  # an answer counts for a second only
        assert not source.is_reachable()
        assert not source.plan(1, 1).parts
        assert not source.plan(1, 1).is_end
        server.before = nothing
        now_s[0] += 100.0
        plan()
    assert values == [b"a1", b"a2", b"b1", b"b2", b"c1", b"c2"]
    says = [line for line in caplog.messages if "waiting for it" in line or "answers again" in line]
    assert says[0].startswith("the s3 filesystem does not answer, or not well (")
    assert says[1] == "the s3 filesystem answers again"


@pytest.mark.long
def test_a_task_waits_for_a_store_that_is_away_for_a_while(server: S3Server, bucket: str) -> None:
    server.put(bucket, "a.txt", "one\ntwo\n")
    server.put(bucket, "a.parquet", parquet_of(["one", "two"]))
    filesystem = server.filesystem()
    for source in (
        FileInput(f"{bucket}/a.txt", TextParser(), filesystem=filesystem),
        ParquetInput(f"{bucket}/a.parquet", NUMBERS, filesystem=filesystem),
    ):
        driven = Driven(source)
        slices = driven.slices(driven.drain(), 1)
        calls = iter(range(20))

        def before(method: str, path: str, calls: Iterator[int] = calls) -> tuple[int, str] | None:
            return (503, "SlowDown") if next(calls, 20) < 4 else None

        server.before = before
        assert values_in(slices) == ["one", "two"]
        server.before = nothing


FAILURES = {
    (403, "AccessDenied"): "no permission, or no valid credentials .*set AWS_ACCESS_KEY_ID",
    (403, "InvalidAccessKeyId"): "no permission, or no valid credentials .*INVALID_ACCESS_KEY_ID",
    (403, "SignatureDoesNotMatch"): "no permission, or no valid credentials",
    (400, "ExpiredToken"): "cannot be used|no permission, or no valid credentials",
    (301, "PermanentRedirect"): r"is in another region, and was asked for elsewhere .*write \?region=REGION",
}


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure[1])
def test_what_a_store_refuses_is_one_sentence_that_says_what_to_do(
    server: S3Server, bucket: str, failure: tuple[int, str]
) -> None:
    server.put(bucket, "in/a.txt", "one\n")
    server.before = lambda method, path: failure if method == "GET" else None
    with pytest.raises(SourceError, match=FAILURES[failure]) as raised:
        lines_input(server, bucket, name="in/*.txt")
    assert not isinstance(raised.value, OutOfReach)
    assert "\n" not in str(raised.value)
    assert f"s3://{bucket}" in str(raised.value)


def test_an_object_is_gone_also_if_the_reply_says_so_by_its_status_alone() -> None:
    error = OSError("AWS Error RESOURCE_NOT_FOUND during GetObject operation:")
    found = explain(error, "s3", "s3://bucket", "s3://bucket/in/a.txt")
    assert isinstance(found, InputChanged)
    assert "s3://bucket/in/a.txt cannot be read (it is not there)" in str(found)


def test_a_bucket_that_does_not_exist_is_named_however_it_is_asked_for(server: S3Server) -> None:
    for name in ("in/*.txt", "a.txt"):
        for follow_s in (None, 1.0):
            with pytest.raises(SourceError, match=r"there is no s3://nowhere: create it, or name another; \?region="):
                Driven(FileInput(f"s3://nowhere/{name}{server.query}", TextParser(), follow_s=follow_s))


def test_an_endpoint_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("acker_client.source.storage.reach.START_S", 0.0)
    filesystem = filesystem_at("http://127.0.0.1:1")
    with pytest.raises(
        OutOfReach, match=r"does not answer.*Failed to connect to 127\.0\.0\.1.*check the network, and \?reg"
    ):
        Driven(FileInput("bucket/a.txt", TextParser(), filesystem=filesystem))


@pytest.mark.parametrize(
    ("paths", "options", "says"),
    [
        (["s3://a/x", "s3://b/x"], {}, "Files: the paths are in several places: give each bucket, and the local paths"),
        (["s3://a/x?region=x", "/b/x"], {}, "Files: the paths are in several places"),
        ("s3://a/x?nonsense=1", {}, "s3://a: pyarrow does not take this URL .*nonsense"),
        ("x", {"filesystem": "s3"}, "Files: filesystem='s3' is no filesystem of pyarrow: give one, like pyarrow.fs.S3"),
        ("s3://a/x", {"filesystem": LocalFileSystem()}, "'s3://a/x' is a URL, and filesystem is given: write the path"),
        ("hdfs://nowhere:8020/x", {}, "hdfs://nowhere:8020: pyarrow cannot load Hadoop's library .*set JAVA_HOME"),
        (["a", 3], {"filesystem": LocalFileSystem()}, "Files: 3 is no path"),
    ],
)
def test_paths_that_name_no_store_are_refused(
    paths: Any, options: dict[str, Any], says: str, monkeypatch: pytest.MonkeyPatch, server: S3Server
) -> None:
    monkeypatch.setenv("ARROW_LIBHDFS_DIR", "/nowhere")
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(SourceError, match=says):
        FileInput(paths, TextParser(), **options)


def test_files_that_are_no_files_of_lines_are_refused_in_a_store_too(server: S3Server, bucket: str) -> None:
    server.put(bucket, "in/a.txt", "one\n")
    server.put(bucket, "in/b.tar.gz", "x")
    server.put(bucket, "in/c.parquet", "x")
    for name, says in (
        ("in/*", r"in/b\.tar\.gz' is not a file of lines, .*: unpack or convert it"),
        ("in/c*", r"in/c\.parquet' is not a file of lines, .*: use Parquet"),
        ("in", r"'s3://.*/in' is a directory: write 's3://.*/in/\*'"),
    ):
        with pytest.raises(SourceError, match=says):
            lines_input(server, bucket, name=name)
    server.put(bucket, "a.txt", gzip.compress(b"x"))
    with pytest.raises(SourceError, match=r"a\.txt is packed \(gzip"):
        lines_input(server, bucket).drain()
    with pytest.raises(SourceError, match=r"no file in 's3://.*/in' ends in \.parquet|b\.tar\.gz|is no Parquet file"):
        Driven(ParquetInput(f"s3://{bucket}/in{server.query}", NUMBERS)).drain()


# -- filesystems of the user's


class Unpicklable(Listed):
    def __init__(self) -> None:
        super().__init__(1)
        self.lock = threading.Lock()


def test_a_filesystem_that_cannot_be_pickled_is_refused_before_anything_is_read() -> None:
    with pytest.raises(SourceError, match=r"filesystem=.* cannot be pickled \(.*lock.*\), and executors need it"):
        FileInput("in/*", TextParser(), filesystem=PyFileSystem(Unpicklable()))


def test_files_of_fsspec_are_read_and_one_that_is_replaced_is_refused(tmp_path: Path) -> None:
    filesystem = PyFileSystem(FSSpecHandler(fsspec.filesystem("local")))
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    driven = Driven(FileInput(f"{tmp_path}/*.txt", TextParser(), filesystem=filesystem))
    slices = driven.slices(driven.drain())
    assert values_in(pickle.loads(pickle.dumps(slices))) == ["one", "two"]
    (tmp_path / "a.txt").write_text("ONE\nTWO\n")
    touch(tmp_path / "a.txt", 1.0)
    with pytest.raises(InputChanged, match=r"a\.txt has changed since its records were counted"):
        values_in(slices)
    driven.finish([0, 1])
    with pytest.raises(CheckpointError, match=r"a\.txt is not what it was when its lines were read"):
        Driven(FileInput(f"{tmp_path}/*.txt", TextParser(), filesystem=filesystem), driven.committed())


def test_urls_of_other_stores_lead_to_paths_in_them_and_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A local folder stands for each store, and the local file system for HDFS. pyarrow says which path a URI has."""
    (tmp_path / "c" / "in").mkdir(parents=True)
    (tmp_path / "c" / "in" / "a.txt").write_text("one\n")
    made = {
        "abfs://c@acc.dfs.core.windows.net": (filesystem_over(tmp_path), "c/"),
        "gs://c?retry_limit_seconds=20": (filesystem_over(tmp_path), "c"),
        "hdfs://host:8020/": (LocalFileSystem(), "/"),
    }
    monkeypatch.setattr(connecting, "from_uri", made.__getitem__)
    for url in ("abfs://c@acc.dfs.core.windows.net/in", "gs://c/in", f"hdfs://host:8020{tmp_path}/c/in"):
        driven = Driven(FileInput(f"{url}/*.txt", TextParser()))
        records = driven.drain()
        assert values_in(driven.slices(records)) == ["one"]
        driven.finish(records)
        assert list(driven.committed()) == [f"{url}/a.txt"]


def test_a_filesystem_that_cannot_tell_a_replaced_file_is_refused() -> None:
    driven = Driven(FileInput("in/a.txt", TextParser(), filesystem=PyFileSystem(Listed(1))))
    says = r"in/a\.txt: the py::listed filesystem says neither an ETag nor a time of change, so a replaced file wo"
    with pytest.raises(SourceError, match=says):
        driven.drain()


# -- whole sources


def test_a_source_reads_objects_and_a_restart_finds_nothing_to_do(
    server: S3Server, bucket: str, tmp_path: Path
) -> None:
    cluster = Cluster(tmp_path)
    server.put(bucket, "in/a.txt", "one\ntwo\n")
    server.put(bucket, "in/b.txt", "three\n")
    options: dict[str, Any] = {"name": "orders", "checkpoint": tmp_path / "c", "environment": cluster.environment()}
    for paths, filesystem in ((f"s3://{bucket}/in/*{server.query}", None), (f"{bucket}/in/*", server.filesystem())):
        (tmp_path / "c").unlink(missing_ok=True)
        source = Files(paths, filesystem=filesystem, **options)
        assert source.run(NO_SPARK, save_all).acked == 3
        assert Files(paths, filesystem=filesystem, **options).run(NO_SPARK, save_all).records == 0
    server.put(bucket, "rows/a.parquet", parquet_of(["x"]))
    (tmp_path / "c").unlink()
    rows = Parquet(f"s3://{bucket}/rows{server.query}", **options)
    assert rows.run(NO_SPARK, save_all).acked == 1
    assert Parquet(f"s3://{bucket}/rows{server.query}", **options).run(NO_SPARK, save_all).records == 0


def test_an_object_whose_last_lines_were_done_in_an_earlier_run_is_complete_once_its_open_ones_are_done(
    tmp_path: Path,
) -> None:
    cluster, checkpoint, folder = Cluster(tmp_path), MemoryCheckpoint(), tmp_path / "in"
    folder.mkdir()
    # An object of several blocks. The first batch of the second run has no line of the last block.
    (folder / "a.txt").write_text("".join(f"{k}".ljust(1 << 20, ".") + "\n" for k in range(6)))
    options: dict[str, Any] = {"name": "lines", "checkpoint": checkpoint, "environment": cluster.environment()}
    options["filesystem"] = filesystem_over(folder)
    first = Files("*.txt", retry=Retry(initial_s=1000.0, cap_s=1000.0), **options)

    def stop_with_a_hole(batch: Batch) -> None:
        failing(lambda row: row.value.startswith("1"))(batch)
        first.stop()

    assert first.run(NO_SPARK, stop_with_a_hole).acked == 5
    summary = Files("*.txt", batch_records=1, **options).run(NO_SPARK, save_all)
    assert (summary.acked, summary.checkpoint) == (1, "end of the input (1 file)")
    (folder / "a.txt").unlink()
    (folder / "b.txt").write_text("other\n")
    assert Files("*.txt", **options).run(NO_SPARK, save_all).acked == 1


@pytest.mark.parametrize("kind", [Files, Parquet])
def test_a_run_that_is_stopped_before_the_end_of_its_objects_ends_the_threads_that_open_them(
    tmp_path: Path, kind: type[Files | Parquet]
) -> None:
    content, _ = CONTENTS["a.txt" if kind is Files else "a.parquet"]
    for name in "abc":
        (tmp_path / name).write_bytes(content(OLD))
    options: dict[str, Any] = {"filesystem": filesystem_over(tmp_path), "batch_records": 1}
    source = kind("[abc]", name="orders", environment=Cluster(tmp_path).environment(), **options)
    threads: list[threading.Thread] = []

    def process(batch: Batch) -> None:
        save_all(batch)
        threads.extend(each for each in threading.enumerate() if each.name.startswith("acker-ahead"))
        source.stop()

    assert source.run(NO_SPARK, process).acked == 1
    assert threads
    for thread in threads:
        thread.join(10.0)
        assert not thread.is_alive()


@pytest.mark.parametrize("name", ["a.txt", "a.parquet"])
def test_a_local_file_that_is_missing_on_an_executors_machine_is_one_sentence_that_names_both(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / name
    path.write_bytes(CONTENTS[name][0](OLD))
    driven = Driven(FileInput(path, TextParser()) if name == "a.txt" else ParquetInput(path, NUMBERS))
    with monkeypatch.context() as patch:
        patch.setattr(platform, "node", lambda: "driver-0")
        slices = driven.slices(driven.drain())
    path.unlink()
    monkeypatch.setattr(platform, "node", lambda: "executor-7")
    says = rf"{path} is on driver-0, where the driver runs, and not on executor-7, where an executor reads it: put"
    with pytest.raises(InputChanged, match=says):
        values_in(slices)
    monkeypatch.setattr(platform, "node", lambda: "driver-0")
    with pytest.raises(InputChanged, match=rf"{path} cannot be read \(.*\): bring it back"):
        values_in(slices)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CONTENTS)
def test_an_object_that_is_replaced_at_any_call_of_a_run_never_gives_records_of_both(
    server: S3Server, bucket: str, name: str
) -> None:
    content, make = CONTENTS[name]
    outcomes: set[str] = set()
    for moment in itertools.count():
        server.before = nothing
        server.put(bucket, name, content(OLD))
        server.before = replacing(server, bucket, name, moment)
        try:
            driven = make(server, bucket, None)
            values = values_in(driven.slices(driven.drain(), 1))
        except InputChanged:
            outcomes.add("refused")
            continue
        if server.before is not nothing:  # the run has made fewer calls
            assert values == OLD
            break
        assert values == NEW
        outcomes.add("new")
    assert outcomes == {"refused", "new"}
