"""Dead letters that are put back: moved without loss, and read once more as the same records."""

from __future__ import annotations

import fcntl
import json
import os
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acker_client.source import DeadLetter, Parquet, PutBack, Retry, SourceError
from acker_client.source.dead_letters.letters_file import DeadLetterFile
from acker_client.source.decoding.values import jsonable, of_json
from acker_client.source.disk import sync_directory
from acker_client.source.put_back import store
from acker_client.source.put_back.input import LetterParser, PutBackInput
from acker_client.source.put_back.store import Moved, put_back, read_letters
from tests.source.disks import without_rights
from tests.source.driven import Driven
from tests.source.executors import NO_SPARK, Cluster, failing, save_all


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
    assert dead.stat().st_mode & 0o777 == 0o640


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
    dead = written(tmp_path / "dead.jsonl", letter(None), letter(b"a" * (2 << 20)), letter(b"x"))
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
