"""Dead letters that are put back: moved without loss, and read once more as the same records."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acker_client.source import Batch, DeadLetter, Files, Kafka, Parquet, PutBack, Retry, SourceError
from acker_client.source.dead_letters.letters_file import DeadLetterFile
from acker_client.source.decoding.content import LinePart
from acker_client.source.decoding.lines import Lines, ReadRows
from acker_client.source.decoding.values import ddl_of, json_rows, jsonable, of_json
from acker_client.source.disk import sync_directory
from acker_client.source.engine.environment import arrow_schema
from acker_client.source.engine.source import Source
from acker_client.source.frame.input import FrameInput
from acker_client.source.put_back import store
from acker_client.source.put_back.input import LetterParser, PutBackInput, _columns_row, first_columns
from acker_client.source.put_back.letter_lines import Moved, letter_of
from acker_client.source.put_back.store import put_back, read_letters
from acker_client.source.records.dead_letter import VALUE_BYTES_MAX
from tests.source.disks import without_rights
from tests.source.driven import Driven
from tests.source.executors import NO_SPARK, Cluster, failing, frame_of, save_all
from tests.source.kafka_broker import MockKafka
from tests.source.kinesis_twin import TwinKinesis
from tests.source.test_frame_input import Listed
from tests.source.test_kinesis_source import TwinSource


def letter(value: Any = b"x", reason: str = "ValueError: no", **origin: Any) -> DeadLetter:
    origin = origin or {"path": "a.jsonl", "line": 7, "byte": 1234}
    return DeadLetter("orders", reason, 4, 1, 1_700_000_000.5, 1_700_000_060.0, origin, value)


def written(path: Path, *letters: DeadLetter) -> Path:
    store = DeadLetterFile(path)
    store.write(letters)
    store.close()
    return path


def values_in(path: Path) -> list[Any]:
    return [line.letter.value if line.letter else line.raw for line in read_letters(path)] if path.exists() else []


def everything(letter: DeadLetter) -> bool:
    return True


def is_even(letter: DeadLetter) -> bool:
    return isinstance(letter.value, bytes) and int(letter.value) % 2 == 0


class Crash(BaseException):
    """The process dies here."""


@given(
    st.lists(st.sampled_from([b"a", b"b", b"c", b"", b"\xff", None]), max_size=8),
    st.sets(st.sampled_from([b"a", b"b", b"", b"\xff"])),
    st.integers(0, 12),
    st.booleans(),
)
@settings(max_examples=80, deadline=None)
def test_a_crash_at_any_point_loses_no_letter_and_the_next_try_doubles_none(
    tmp_path_factory: pytest.TempPathFactory, contents: list[bytes | None], chosen: set[bytes], dies_at: int, torn: bool
) -> None:
    folder = tmp_path_factory.mktemp("put_back")
    dead, again = folder / "dead.jsonl", folder / "again.jsonl"
    numbered = [letter(value, path="a", line=number) for number, value in enumerate(contents)]
    written(dead, *numbered)
    with dead.open("ab") as file:
        file.write(b"damaged\n" + b'{"torn' * torn)
    steps = 0

    def dying(call: Any) -> Any:
        def step(*arguments: Any) -> Any:
            nonlocal steps
            steps += 1
            if steps == dies_at:
                raise Crash
            return call(*arguments)

        return step

    with pytest.MonkeyPatch.context() as patch:
        for name in ("replace", "fsync", "fchmod"):
            patch.setattr(os, name, dying(getattr(os, name)))
        patch.setattr(store, "sync_directory", dying(sync_directory))
        try:
            put_back(dead, again, lambda letter: letter.value in chosen)
        except Crash:
            there = [line.letter for path in (dead, again) if path.exists() for line in read_letters(path)]
            assert all(each in there for each in numbered)
    put_back(dead, again, lambda letter: letter.value in chosen)
    moved = [line.letter for line in read_letters(again)] if again.exists() else []
    assert moved == [each for each in numbered if each.value in chosen]
    left = read_letters(dead)
    assert [line.letter for line in left if line.letter] == [each for each in numbered if each.value not in chosen]
    assert [line.raw for line in left if not line.letter] == [b"damaged\n", b'{"torn'][: 1 + torn]


def test_a_source_that_writes_letters_meanwhile_loses_none(tmp_path: Path) -> None:
    dead, again = tmp_path / "dead.jsonl", tmp_path / "again.jsonl"
    running = DeadLetterFile(dead)
    running.write([letter(b"one")])
    os.chmod(dead, 0o640)
    assert put_back(dead, again, everything) == Moved(1, 0)
    running.write([letter(b"two")])
    running.close()
    assert (values_in(dead), values_in(again)) == ([b"two"], [b"one"])
    assert (dead.stat().st_mode & 0o777, again.stat().st_mode & 0o777) == (0o640, 0o600)


def of_another_user(dead: Path, monkeypatch: pytest.MonkeyPatch, *, runs_as: int) -> None:
    """Let the user 1000 own ``dead``, and let this process run as ``runs_as``."""
    inode, fstat = dead.stat().st_ino, os.fstat

    def owned(file: int) -> os.stat_result:
        stat = fstat(file)
        return os.stat_result((*stat[:4], 1000, 1001, *stat[6:10])) if stat.st_ino == inode else stat

    monkeypatch.setattr(os, "fstat", owned)
    monkeypatch.setattr(os, "geteuid", lambda: runs_as)


def test_both_files_belong_to_the_owner_of_the_letters_if_root_puts_them_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead, again, given = written(tmp_path / "dead.jsonl", letter(b"one")), tmp_path / "again.jsonl", []
    of_another_user(dead, monkeypatch, runs_as=0)
    monkeypatch.setattr(os, "fchown", lambda file, *owner: given.append(owner))
    assert put_back(dead, again, everything) == Moved(1, 0)
    assert given == [(1000, 1001)] * 2


@pytest.mark.parametrize(("runs_as", "left"), [(1002, ["dead.jsonl"]), (0, ["again.jsonl", "dead.jsonl"])])
def test_a_user_who_may_not_give_files_away_is_refused_and_leaves_no_draft(
    runs_as: int, left: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead, again = written(tmp_path / "dead.jsonl", letter(b"one")), tmp_path / "again.jsonl"

    def refuse(*_: int) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    with monkeypatch.context() as patched:
        of_another_user(dead, patched, runs_as=runs_as)
        patched.setattr(os, "fchown", refuse)
        with pytest.raises(SourceError, match=r"dead\.jsonl belongs to another user \(uid 1000\)|cannot be written"):
            put_back(dead, again, everything)
    assert sorted(each.name for each in tmp_path.iterdir()) == left
    assert values_in(dead) == [b"one"]
    assert put_back(dead, again, everything) == Moved(1, 0)


def test_a_file_system_that_refuses_to_change_owners_takes_the_letters_of_this_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: int) -> None:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(os, "fchown", refuse)
    dead = written(tmp_path / "dead.jsonl", letter(b"one"))
    assert put_back(dead, tmp_path / "again.jsonl", everything) == Moved(1, 0)


def test_letters_that_are_written_and_taken_out_at_the_same_time_are_all_there_once(tmp_path: Path) -> None:
    dead, again = tmp_path / "dead.jsonl", tmp_path / "again.jsonl"
    running = DeadLetterFile(dead)
    running.open()

    def write() -> None:
        for number in range(200):
            running.write([letter(b"%d" % number)])

    writer = Thread(target=write)
    writer.start()
    while writer.is_alive():
        put_back(dead, again, is_even)
    put_back(dead, again, is_even)
    running.close()
    assert values_in(dead) == [b"%d" % number for number in range(1, 200, 2)]
    assert values_in(again) == [b"%d" % number for number in range(0, 200, 2)]


def test_two_concurrent_put_backs_move_each_letter_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dead, lock = written(tmp_path / "dead.jsonl", letter(b"1"), letter(b"2")), fcntl.flock
    waited: list[bool] = []

    def wait(file: Any, how: int) -> None:
        if not waited:  # while this one waits, another has the file
            waited.append(True)
            assert put_back(dead, tmp_path / "first.jsonl", is_even) == Moved(1, 1)
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", wait)
    assert put_back(dead, tmp_path / "second.jsonl", everything) == Moved(1, 0)
    assert [values_in(tmp_path / f"{name}.jsonl") for name in ("first", "second", "dead")] == [[b"2"], [b"1"], []]


def test_letters_that_cannot_be_retried_stay_in_their_file(tmp_path: Path) -> None:
    dead = written(tmp_path / "dead.jsonl", letter(None), letter(b"a" * (VALUE_BYTES_MAX + 1)), letter(b"x"))
    moved = put_back(dead, tmp_path / "again.jsonl", everything)
    assert (moved.put_back, moved.left, [line.number for line in moved.kept]) == (1, 2, [1, 2])


def test_files_in_use_missing_or_of_another_kind_are_refused_by_name(tmp_path: Path) -> None:
    dead, again = written(tmp_path / "dead.jsonl", letter()), tmp_path / "again.jsonl"
    for held in (dead, again):
        with held.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            with pytest.raises(SourceError, match=rf"{held} is in use by another process .*: try again once that has"):
                put_back(dead, again, everything, wait_s=0.0)
    with pytest.raises(SourceError, match=r"missing cannot be opened \(No such file or directory\): bring it back"):
        put_back(tmp_path / "missing", again, everything)
    with pytest.raises(SourceError, match=r"none/again cannot be opened \(No such file.*\): create its directory"):
        put_back(dead, tmp_path / "none" / "again", everything)
    dead.chmod(0o444)
    tmp_path.chmod(0o711)
    with without_rights(), pytest.raises(SourceError, match=r"denied\): give this user the right to write"):
        put_back(dead, again, everything)
    with pytest.raises(SourceError, match="is where the letters are: name another file"):
        put_back(dead, tmp_path / "." / "dead.jsonl", everything)
    again.write_text('{"sku": 1}\n')
    with pytest.raises(
        SourceError, match=rf"{again} is not a file of dead letters \(line 1: not a dead letter\): name an"
    ):
        put_back(dead, again, everything)
    assert values_in(dead) == [b"x"]


def test_a_line_that_died_is_put_back_read_once_and_dies_again_as_the_line_that_it_was(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.write("a.txt", "good", "bad", "worse")
    dead, again = tmp_path / "dead.jsonl", tmp_path / "again.jsonl"
    never = Retry(max_retries=0)
    cluster.source(retry=never).run(NO_SPARK, failing(lambda row: row.value != "good"))
    before = [line.letter for line in read_letters(dead)]
    assert put_back(dead, again, everything) == Moved(2, 0)

    def source() -> PutBack:
        return PutBack(
            again,
            name="again",
            checkpoint=tmp_path / "again.ckpt",
            dead_letters=dead,
            retry=never,
            max_dead_share=1.0,
            environment=cluster.environment(),
        )

    seen: set[tuple[Any, ...]] = set()

    def bad(row: Any) -> bool:
        seen.add((row.value, row.path, row.line))
        return bool(row.value == "worse")

    summary = source().run(NO_SPARK, failing(bad))
    assert (summary.acked, summary.dead_lettered) == (1, 1)
    assert seen == {("bad", f"{tmp_path}/a.txt", 2), ("worse", f"{tmp_path}/a.txt", 3)}
    (second,) = [line.letter for line in read_letters(dead)]
    assert second is not None
    assert before[1] is not None
    assert (second.source, second.value, second.origin) == ("again", b"worse", before[1].origin)
    assert source().run(NO_SPARK, save_all).records == 0
    put_back(dead, again, everything)
    assert source().run(NO_SPARK, save_all).acked == 1


@pytest.mark.parametrize("paths", ["again.jsonl", "", "again.parquet"])
def test_errors_about_paths_name_put_back(cluster: Cluster, paths: str) -> None:
    (cluster.folder / "again.parquet").touch()
    source = PutBack(
        f"{cluster.folder}/{paths}",
        name="again",
        checkpoint=cluster.folder / "c",
        environment=cluster.environment(),
    )
    with pytest.raises(SourceError, match=r"^PutBack: "):
        source.run(NO_SPARK, save_all)


def rows_of(path: Path, parser: Any) -> list[tuple[dict[str, Any], str | None]]:
    driven = Driven(PutBackInput(path, parser))
    return [
        (row, rows.unreadable.get(index))
        for piece in driven.slices(driven.drain())
        for rows in piece.read()
        for index, row in enumerate(rows.columns.to_pylist())
    ]


def test_lines_of_json_have_the_columns_that_they_had_and_say_where_they_came_from_when_they_do_not_fit(
    tmp_path: Path,
) -> None:
    schema = pa.schema([("sku", pa.string()), ("qty", pa.int32()), ("at", pa.timestamp("us"))])
    good = b'{"qty": 2, "at": "2026-11-22T01:02:03.5", "more": 1, "sku": "a"}'
    path = written(
        tmp_path / "again.jsonl", letter(good), letter(b'{"qty": "many"}'), letter(b"\xff"), letter({"qty": 1})
    )
    rows = rows_of(path, LetterParser(schema))
    assert rows[0] == ({"sku": "a", "qty": 2, "at": datetime(2026, 11, 22, 1, 2, 3, 500_000)}, None)
    assert (rows[1][1] or "").startswith("a.jsonl:7 (byte 1234): malformed JSON")
    assert (rows[2][1] or "").startswith("a.jsonl:7 (byte 1234): not valid UTF-8")
    assert rows[3] == ({"sku": None, "qty": 1, "at": None}, None)


def test_a_letter_without_a_value_that_is_not_null_fails_alone(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("sku", pa.string())])
    path = written(
        tmp_path / "again.jsonl", letter(b'{"id": 1}'), letter(b"{}"), letter({"sku": "a"}), letter({"id": 2})
    )
    rows = rows_of(path, LetterParser(schema))
    assert [row["id"] for row, _ in rows] == [1, None, None, 2]
    assert [reason for _, reason in rows] == [
        None,
        "a.jsonl:7 (byte 1234): malformed JSON (id is NOT NULL, and missing or null)",
        "a.jsonl:7: a value does not fit its column (id is NOT NULL, and missing or null)",
        None,
    ]


def test_a_line_of_json_that_cannot_give_the_columns_fails_alone_and_letters_with_columns_are_read(
    tmp_path: Path,
) -> None:
    schema = pa.schema([("counts", pa.map_(pa.string(), pa.int64()))])
    path = written(tmp_path / "again.jsonl", letter(b'{"counts": {"a": 1}}'), letter({"counts": [["a", 1]]}))
    (first, why), second = rows_of(path, LetterParser(schema))
    assert first == {"counts": None}
    assert (why or "").startswith("a.jsonl:7 (byte 1234): JSON lines cannot have a column of type map<string, int64>: ")
    assert second == ({"counts": [("a", 1)]}, None)


@pytest.mark.parametrize(
    ("type_", "values", "read", "says"),
    [
        (pa.float32(), [1e300, -1e39, 16777217], [0.1, 16777216, "inf"], "is not a number that a float holds"),
        (pa.float64(), [(1 << 53) + 1], [0.1, 1 << 53, "-inf", 1e300], "is not a number that a double holds"),
        (pa.int64(), [1.5, 1 << 63], [(1 << 53) + 1], "is not an int64"),
        (pa.int8(), [128], [-128], "is not an int8, being out of its range"),
    ],
)
def test_a_value_that_its_column_would_change_fails_its_letter_alone_at_any_depth(
    tmp_path: Path, type_: Any, values: list[Any], read: list[Any], says: str
) -> None:
    schema = pa.schema([("a", type_), ("b", pa.list_(pa.struct([("c", type_)])))])
    given_ = [{"a": value} for value in (*values, *read)] + [{"b": [{"c": value}]} for value in (*values, *read)]
    rows = rows_of(written(tmp_path / "again.jsonl", *map(letter, given_)), LetterParser(schema))
    count = len(values)
    flat, deep = rows[: count + len(read)], rows[count + len(read) :]
    expected = pa.array([float(value) if isinstance(value, str) else value for value in read], type_).to_pylist()
    assert [row["a"] for row, _ in flat] == [*[None] * count, *expected]
    assert [row["b"] for row, _ in deep] == [*[None] * count, *([{"c": value}] for value in expected)]
    for part in (flat, deep):
        assert [says in (reason or "") for _, reason in part] == [True] * count + [False] * len(read)


def test_a_letter_that_cannot_become_a_row_fails_alone_with_its_reason(tmp_path: Path) -> None:
    path = written(tmp_path / "again.jsonl", letter(None), letter({"a": 1}), letter(b"x", topic="t", partition=3))
    path.write_text("rubbish\n" + path.read_text())
    rows = rows_of(path, LetterParser())
    assert [row["value"] for row, _ in rows] == [None, None, None, "x"]
    assert [reason for _, reason in rows] == [
        f"{path}:1 (byte 0): not JSON: Expecting value",
        "a.jsonl:7: the input could not give its record once more: read it where it stands",
        "a.jsonl:7: the letter holds columns: give PutBack the schema that they had",
        None,
    ]
    ((_, reason),) = rows_of(written(tmp_path / "b", letter({"a": "x"})), LetterParser(pa.schema([("a", pa.int64())])))
    assert (reason or "").startswith("a.jsonl:7: a value does not fit its column")


TYPES = pa.schema(
    [
        ("id", pa.int64()),
        ("price", pa.decimal128(10, 2)),
        ("at", pa.timestamp("us", tz="UTC")),
        ("on", pa.date32()),
        ("share", pa.float64()),
        ("raw", pa.binary()),
        ("is_new", pa.bool_()),
        ("items", pa.list_(pa.struct([("sku", pa.string()), ("price", pa.decimal128(10, 2))]))),
        ("tags", pa.map_(pa.string(), pa.int64())),
    ]
)
ROW = {
    "id": 1 << 60,
    "price": Decimal("3.25"),
    "at": datetime(2026, 3, 29, 1, 2, 3, 4, tzinfo=UTC),
    "on": date(2026, 3, 29),
    "share": float("inf"),
    "raw": b"\xff\x00",
    "is_new": True,
    "items": [{"sku": "a", "price": Decimal("0.10")}, {"sku": None, "price": None}],
    "tags": [("a", 1), ("b", None)],
}


@pytest.mark.parametrize("row", [ROW, {**ROW, "raw": b"base64"}, dict.fromkeys(ROW)])
def test_columns_of_any_type_come_back_from_json(row: dict[str, Any]) -> None:
    through = json.loads(json.dumps(jsonable(row)))
    assert {field.name: of_json(through[field.name], field.type) for field in TYPES} == row


def test_a_row_of_a_parquet_file_is_put_back_with_its_columns(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    pq.write_table(pa.Table.from_pylist([{**ROW, "id": k} for k in range(3)], TYPES), tmp_path / "a.parquet")
    dead = tmp_path / "dead.jsonl"
    source = Parquet(
        tmp_path / "a.parquet",
        name="rows",
        dead_letters=dead,
        retry=Retry(max_retries=0),
        max_dead_share=1.0,
        environment=cluster.environment(),
    )
    source.run(NO_SPARK, failing(lambda row: True))
    assert put_back(dead, tmp_path / "again.jsonl", lambda letter: letter.origin["row"] == 1) == Moved(1, 2)
    ((row, reason),) = rows_of(tmp_path / "again.jsonl", LetterParser(TYPES))
    assert (row, reason) == ({**ROW, "id": 1}, None)


def test_put_back_needs_a_checkpoint() -> None:
    with pytest.raises(
        ValueError, match=r"checkpoint: give one, like checkpoint='again.ckpt', so that each record is read once"
    ):
        PutBack("again.jsonl", name="again")


# -- the same program over a source and over its letters


def run_and_fail_all(source: Source) -> tuple[pa.Schema, list[dict[str, Any]], list[str]]:
    """Run a source whose every row fails. Return its columns, the readable rows, and the reasons of the others."""
    read: list[ReadRows] = []
    schemas: list[pa.Schema] = []

    def program(batch: Batch) -> None:
        frame = frame_of(batch)
        schemas.append(arrow_schema(frame.plan.schema))
        read.extend(rows for piece in frame.plan.slices for rows in piece.read())
        frame.fail({row.root: "mended later" for row in frame.rows()})

    source.run(NO_SPARK, program)
    rows: list[dict[str, Any]] = []
    reasons: list[str] = []
    for part in read:
        assert part.columns.validate(full=True) is None
        assert part.columns.schema.types == schemas[0].types
        rows += [row for index, row in enumerate(part.columns.to_pylist()) if index not in part.unreadable]
        reasons += part.unreadable.values()
    return schemas[0], rows, reasons


FAILING: dict[str, Any] = {"retry": Retry(max_retries=0), "max_dead_share": 1.0}


def put_back_all(cluster: Cluster, name: str = "again", **options: Any) -> PutBack:
    put_back(cluster.folder / "dead.jsonl", cluster.folder / "again.jsonl", everything)
    given = {"dead_letters": cluster.folder / "dead.jsonl", "environment": cluster.environment(), **FAILING}
    return PutBack(
        cluster.folder / "again.jsonl", name=name, checkpoint=cluster.folder / f"{name}.ckpt", **given | options
    )


def assert_same_over_letters(cluster: Cluster, source: Source, rows: int, unreadable: int = 0) -> list[dict[str, Any]]:
    """Check that a program gets the same rows from a source, from its letters, and from the letters of these."""
    schema, seen, reasons = run_and_fail_all(source)
    assert (len(seen), len(reasons)) == (rows, unreadable)
    for name in ("again", "third"):
        then = run_and_fail_all(put_back_all(cluster, name))
        assert (then[0], then[1], len(then[2])) == (schema, seen, unreadable)
        (cluster.folder / "again.jsonl").unlink()
    return seen


def options_of(cluster: Cluster) -> dict[str, Any]:
    return {"dead_letters": cluster.folder / "dead.jsonl", "environment": cluster.environment(), **FAILING}


def test_lines_put_back_are_the_rows_of_their_source(cluster: Cluster) -> None:
    (cluster.folder / "a.txt").write_bytes("\ufeffone\r\n\n tw\0o\u2028\n".encode() + b'\xff\n"three"')
    assert_same_over_letters(cluster, Files(f"{cluster.folder}/*.txt", name="lines", **options_of(cluster)), 4, 1)


def test_json_lines_put_back_are_the_rows_of_their_source(cluster: Cluster) -> None:
    (cluster.folder / "a.jsonl").write_text(
        '{"sku": "a", "at": "2026-11-22T01:02:03.5", "more": 1}\n{"sku": 5}\n{"qty": 9000000000000000000}\n{}\n?\n'
    )
    schema = "sku string, qty bigint, at timestamp, `odd name` array<struct<a: int>>"
    source = Files(f"{cluster.folder}/a.jsonl", name="lines", format="json", schema=schema, **options_of(cluster))
    assert_same_over_letters(cluster, source, 3, 2)


@pytest.mark.slow
def test_records_of_kafka_put_back_are_the_rows_of_their_source(cluster: Cluster) -> None:
    headers: list[Any] = [("a", b"1"), ("a", None), ("\u00e4", b"\xff"), ("a", b"1")]
    with MockKafka() as kafka:
        topic = kafka.new_topic()
        kafka.send(topic, 0, b"\xff\x00", key=b"\xfe", headers=headers, timestamp=1_700_000_000_123)
        kafka.send(topic, 0, None, key=b"text", timestamp=1)
        kafka.send(topic, 0, b"", key=b"", headers=[("only", b"")])
        kafka.write(topic, 0, ['{"sku": "\u00e4"}'.encode(), b'{"base64": "/w=="}', bytes(range(256))])
        source = Kafka(topic, bootstrap_servers=kafka.servers, name="orders", stop="end", **options_of(cluster))
        rows = assert_same_over_letters(cluster, source, 6)
    assert rows[0]["headers"] == [{"key": name, "value": value} for name, value in headers]
    assert [row["value"] for row in rows[:3]] == [b"\xff\x00", None, b""]
    assert [row["offset"] for row in rows] == list(range(6))


def test_records_of_kinesis_put_back_are_the_rows_of_their_source(cluster: Cluster) -> None:
    twin = TwinKinesis(cluster.time)
    cluster.time.sleep(1000.000001)
    twin.put(0, "a", "", "\u00e4")
    twin.put(1, "b")
    twin.streams["shardId-000000000000"].records[1] = replace(
        twin.streams["shardId-000000000000"].records[1], data=b"\xff\x00"
    )
    assert_same_over_letters(cluster, TwinSource(twin, **options_of(cluster)), 4)


def test_rows_of_parquet_put_back_are_the_rows_of_their_source_and_keep_the_other_columns(cluster: Cluster) -> None:
    rows = [ROW, {**ROW, "raw": b"base64", "share": float("-inf")}, dict.fromkeys(ROW)]
    table = pa.Table.from_pylist(rows, TYPES)
    table = table.append_column("small", pa.array([1, 300, None])).append_column("more", pa.array([b"\xff", b"", None]))
    pq.write_table(table, cluster.folder / "a.parquet")
    schema = (
        "id string, price decimal(20, 5), at timestamp, share double, raw binary, is_new boolean, missing int,"
        " items array<struct<sku: string, price: decimal(10, 2)>>, tags map<string, bigint>, small tinyint"
    )
    source = Parquet(cluster.folder / "a.parquet", name="rows", schema=schema, **options_of(cluster))
    seen = assert_same_over_letters(cluster, source, 2, 1)
    assert seen[0]["id"] == str(ROW["id"])
    assert [value["more"] for value in values_in(cluster.folder / "dead.jsonl")] == [{"base64": "/w=="}, "", None]


def test_rows_of_a_frame_put_back_are_the_rows_that_it_had(tmp_path: Path) -> None:
    frame = Listed((2, 3))
    driven = Driven(FrameInput(frame))
    records = driven.drain()
    originals = driven.originals(records)
    letters = [replace(letter(each.value, **each.origin), schema=each.schema) for each in originals]
    path = written(tmp_path / "again.jsonl", *letters)
    ddl = first_columns(path)
    assert ddl == "name string, raw binary"
    rows = frame.read_rows(driven.slices(records), frame.columns).to_pylist()
    assert rows_of(path, LetterParser(arrow_schema(ddl), ddl)) == [(row, None) for row in rows]


def test_a_letter_of_another_source_fails_with_both_columns_and_letters_of_an_older_acker_are_read_as_before(
    cluster: Cluster,
) -> None:
    old = letter(b"text", topic="t", partition=0, offset=3)
    columns = {"key": None, "n": 5}
    new = replace(letter(b"\xff", topic="t"), schema="key binary, value binary, n bigint", columns=columns)
    path = written(cluster.folder / "dead.jsonl", new, old)
    schema, rows, reasons = run_and_fail_all(put_back_all(cluster))
    assert (schema.names, rows[0]) == (["key", "value", "n"], {"key": None, "value": b"\xff", "n": 5})
    (reason,) = reasons
    assert reason == (
        "t:0:3: its columns are '', and those of the first letter 'key binary, value binary, n bigint': put back"
        " letters of one source at a time, or give PutBack a schema"
    )
    (cluster.folder / "again.jsonl").unlink()
    path.unlink()
    written(path, old)
    _, rows, reasons = run_and_fail_all(put_back_all(cluster, "third"))
    assert (rows, reasons) == ([{"value": "text", "path": None, "line": None}], [])


def test_a_schema_that_is_given_parses_the_values_of_letters_that_have_other_columns(tmp_path: Path) -> None:
    columns = {"key": None, "n": 5}
    kafka = replace(letter(b'{"sku": "a"}', topic="t"), schema="key binary, value binary, n bigint", columns=columns)
    none = replace(kafka, value=None)
    damaged = replace(kafka, columns={"key": None})
    path = written(tmp_path / "again.jsonl", kafka, none, damaged)
    rows = rows_of(path, LetterParser(pa.schema([("sku", pa.string())])))
    assert rows[0] == ({"sku": "a"}, None)
    assert rows[1][1] == "t: the record has no value: give PutBack the schema 'key binary, value binary, n bigint'"
    whole = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("n", pa.int64())])
    rows = rows_of(path, LetterParser(whole))
    assert [row["value"] for row, reason in rows if not reason] == [b'{"sku": "a"}', None]
    assert rows[2][1] == "t: its letter is damaged: it lacks the columns ['value', 'n'], not one"


def test_a_letter_that_holds_a_part_of_its_record_says_so_after_it_was_read_again(tmp_path: Path) -> None:
    part = letter(b"beginning")
    path = written(tmp_path / "again.jsonl", replace(part, value_bytes=100))
    driven = Driven(PutBackInput(path, LetterParser()))
    (original,) = driven.originals(driven.drain())
    assert (original.value, original.value_bytes) == (b"beginning", 100)


# -- any record, written into a letter and read from it

instants = st.integers(-(1 << 63), (1 << 63) - 1)
SCALARS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-128, 127)),
    (pa.int64(), instants),
    (pa.float32(), st.floats(width=32, allow_nan=False)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.decimal128(38, 10), st.decimals(-(10**27), 10**27, places=10)),
    (pa.string(), st.text(max_size=6)),
    (pa.binary(), st.binary(max_size=6)),
    (pa.date32(), st.integers(-(1 << 31), (1 << 31) - 1)),
    (pa.timestamp("us", tz="UTC"), instants | st.integers(-(10**16), 10**16)),
    (pa.timestamp("us"), instants | st.integers(-(10**16), 10**16)),
    (pa.duration("us"), instants),
]
NAMES = st.text(min_size=1, max_size=4)


def nested(of: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def field(name: str, kind: tuple[Any, Any]) -> Any:
        return (name, kind[0]), (name, st.none() | kind[1])

    def struct(fields: list[tuple[str, Any]]) -> tuple[Any, Any]:
        made = [field(name, kind) for name, kind in fields]
        return pa.struct([each for each, _ in made]), st.fixed_dictionaries(dict(each for _, each in made))

    return st.one_of(
        of.map(lambda kind: (pa.list_(kind[0]), st.lists(st.none() | kind[1], max_size=3))),
        st.tuples(of, of).map(
            lambda both: (
                pa.map_(both[0][0], both[1][0]),
                st.lists(st.tuples(both[0][1], st.none() | both[1][1]), max_size=3),
            )
        ),
        st.lists(st.tuples(NAMES, of), min_size=1, max_size=3, unique_by=lambda each: each[0]).map(struct),
    )


KINDS = st.recursive(st.sampled_from(SCALARS), nested, max_leaves=5)


@pytest.mark.long
@given(st.data(), st.lists(st.tuples(NAMES, KINDS), min_size=1, max_size=4, unique_by=lambda each: each[0]))
@settings(max_examples=300, deadline=None)
def test_a_row_of_any_columns_comes_back_from_its_letter(data: st.DataObject, fields: list[tuple[str, Any]]) -> None:
    schema = pa.schema([(name, kind[0]) for name, kind in fields])
    row = {name: data.draw(st.none() | kind[1]) for name, kind in fields}
    before = pa.RecordBatch.from_pylist([row], schema)
    (value,) = json_rows(before)
    ddl = ddl_of(schema)
    sent = letter_of(replace(letter(value), schema=ddl).to_json().encode(errors="surrogatepass"))
    assert isinstance(sent, DeadLetter)
    assert _columns_row(sent, sent.value, schema).equals(before)  # type: ignore[arg-type]
    if "interval" not in ddl:
        assert arrow_schema(ddl) == schema


@given(st.none() | st.binary(max_size=30), st.none() | st.binary(max_size=9), instants)
def test_a_record_with_a_value_and_other_columns_comes_back_from_its_letter(
    value: bytes | None, key: bytes | None, at: int
) -> None:
    schema = pa.schema([("key", pa.binary()), ("data", pa.binary()), ("at", pa.timestamp("us", tz="UTC"))])
    before = pa.RecordBatch.from_pylist([{"key": key, "data": value, "at": at}], schema)
    columns = {name: each for name, each in json_rows(before)[0].items() if name != "data"}
    ddl = ddl_of(schema)
    line = replace(letter(value), schema=ddl, columns=columns).to_json().encode(errors="surrogatepass")
    part = LinePart("again", "again", 0, 1, 0, len(line))
    (after, unreadable) = LetterParser(schema, ddl).parse(Lines(part, line, np.array([0]), np.array([len(line)])))
    assert not unreadable
    assert after.equals(before)


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda of: st.lists(of, max_size=3) | st.dictionaries(st.sampled_from(["base64", "a", ""]), of, max_size=3),
)


@pytest.mark.slow
@given(KINDS, ANY_JSON, st.booleans())
@settings(max_examples=300, deadline=None)
def test_a_letter_with_any_content_becomes_a_row_or_has_a_reason(kind: Any, value: Any, is_beside: bool) -> None:
    schema = pa.schema([("key", kind[0]), ("value", pa.binary())])
    given_ = {"key": value} if is_beside else {"key": value, "value": value}
    sent = letter(b"x" if is_beside else given_)
    line = replace(sent, schema=ddl_of(schema), columns=given_ if is_beside else None).to_json().encode()
    part = LinePart("again", "again", 0, 1, 0, len(line))
    rows, unreadable = LetterParser(schema, ddl_of(schema)).parse(
        Lines(part, line, np.array([0]), np.array([len(line)]))
    )
    rows.validate(full=True)
    assert rows.num_rows == 1
    assert all("a value does not fit its column" in reason for reason in unreadable.values())


def test_a_first_letter_whose_columns_cannot_be_read_is_refused(cluster: Cluster) -> None:
    written(cluster.folder / "dead.jsonl", replace(letter(b"x"), schema="key binary value"))
    with pytest.raises(SourceError, match=r"PutBack: the first letter is damaged: the schema .*; or give PutBack a sc"):
        put_back_all(cluster).input()


def test_columns_that_spark_lacks_are_in_the_letter_though_no_text_names_their_types() -> None:
    nanoseconds = pa.array([1_700_000_000_000_000_001], pa.timestamp("ns", tz="UTC"))
    text = pa.array([b"\xff"]).view(pa.string())
    rows = pa.RecordBatch.from_arrays(
        [nanoseconds, text, pa.array([1], pa.time64("ns")), pa.array([2**64 - 1], pa.uint64())], list("abcd")
    )
    assert json_rows(rows) == [
        {
            "a": "2023-11-14T22:13:20.000000001+00:00",
            "b": {"base64": "/w=="},
            "c": "00:00:00.000000001",
            "d": 2**64 - 1,
        }
    ]
    assert ddl_of(rows.schema) == ""
