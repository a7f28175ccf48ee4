"""Slices of files, compared with a simple reference (``twin``) that reads them with ``readline``."""

from __future__ import annotations

import gzip
import io
import json
import re
from collections.abc import Iterable
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acker_client.source.decoding import lines
from acker_client.source.decoding.content import LinePart
from acker_client.source.decoding.json_lines import JsonParser
from acker_client.source.decoding.lines import BOM, LineSlice, TextParser, find_lines
from acker_client.source.errors import InputChanged
from acker_client.source.files.input import FileInput
from acker_client.source.files.plain_file import PACKED
from acker_client.source.records.input import Chosen
from tests.source.driven import Driven, read_elsewhere

PIECES = [b"\n", b"\r\n", b"\r", b"a", b"{}", b"\xc3\xa9", b"\xc3", b"\xa9", b"\xff", BOM, b"\0", b"long " * 9, b""]
contents = (st.lists(st.sampled_from(PIECES), max_size=30).map(b"".join) | st.binary(max_size=60)).filter(
    lambda content: not content.startswith(tuple(PACKED))
)


def twin(content: bytes) -> list[tuple[int, bytes]]:
    """Return (byte, value) of each line, as ``readline`` reads it."""
    lines, at = [], 0
    for line in io.BytesIO(content):
        value = line
        if line.endswith(b"\n"):
            value = line[:-2] if line.endswith(b"\r\n") else line[:-1]
        if at == 0 and value.startswith(BOM):
            value = value[len(BOM) :]
        lines.append((at, value))
        at += len(line)
    return lines


def rows_of(slices: Iterable[Any]) -> list[tuple[int, dict[str, Any], str | None]]:
    """Return (number, row, why it is unreadable or None) of all rows, in order."""
    rows = []
    for piece in slices:
        numbers = []
        for records in piece.read():
            assert records.columns.validate(full=True) is None
            numbers += records.numbers.tolist()
            for row, (number, columns) in enumerate(
                zip(records.numbers.tolist(), records.columns.to_pylist(), strict=True)
            ):
                rows.append((number, columns, records.unreadable.get(row)))
        assert numbers == list(range(piece.start, piece.stop))
    return rows


def rows_in(source: FileInput, tasks: int = 2) -> list[tuple[int, dict[str, Any], str | None]]:
    driven = Driven(source)
    return rows_of(driven.slices(driven.drain(), tasks))


@pytest.mark.long
@given(st.lists(contents, min_size=1, max_size=3), st.integers(1, 40), st.integers(1, 9), st.integers(1, 4))
@settings(max_examples=300, deadline=None)
def test_slices_give_the_lines_of_readline_for_any_bytes_and_boundaries(
    tmp_path_factory: pytest.TempPathFactory, files: list[bytes], block_bytes: int, records_max: int, tasks: int
) -> None:
    folder = tmp_path_factory.mktemp("files")
    expected = []
    for index, content in enumerate(files):
        path = folder / f"{index}.txt"
        path.write_bytes(content)
        expected += [(str(path), line + 1, byte, value) for line, (byte, value) in enumerate(twin(content))]
    source = FileInput(f"{folder}/*.txt", TextParser(), block_bytes=block_bytes)
    driven = Driven(source)
    records = driven.drain(records_max)
    assert len(records) == len(expected)
    rows = rows_of(driven.slices(records, tasks))
    assert [number for number, _, _ in rows] == list(range(len(expected)))
    for (_, row, reason), (shown, line, byte, value) in zip(rows, expected, strict=True):
        assert (row["path"], row["line"]) == (shown, line)
        assert row["value"] == _decoded(value)
        assert (reason is None) == (row["value"] is not None)
        assert reason is None or reason.startswith(f"{shown}:{line} (byte {byte}): not valid UTF-8 at byte ")
    origins = driven.origins(records)
    assert origins.to_pylist() == [{"path": path, "line": line} for path, line, _, _ in expected]
    assert len(origins.column("path").dictionary) == len({path for path, _, _, _ in expected})
    originals = driven.originals(records)
    assert [(*original.origin.values(), original.value) for original in originals] == expected


def _decoded(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


@given(contents, st.data())
@settings(max_examples=100, deadline=None)
def test_any_choice_of_records_is_read_again_alone(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("files") / "one.txt"
    path.write_bytes(content)
    source = FileInput(path, TextParser(), block_bytes=16)
    driven = Driven(source)
    records = driven.drain(5)
    lines = twin(content)
    chosen = sorted(data.draw(st.sets(st.sampled_from(range(len(lines)))))) if lines else []
    rows = rows_of(driven.slices(chosen, 2))
    assert [(row["line"], row["value"]) for _, row, _ in rows] == [(k + 1, _decoded(lines[k][1])) for k in chosen]
    assert driven.values(chosen) == [lines[k][1] for k in chosen]
    assert len(records) == len(lines)


@given(contents)
def test_find_lines_is_readline(raw: bytes) -> None:
    starts, ends = find_lines(raw, at_beginning=True)
    assert [raw[start:end] for start, end in zip(starts, ends, strict=True)] == [value for _, value in twin(raw)]


def test_a_line_longer_than_a_block_is_one_record(tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    path.write_bytes(b"a" * 100 + b"\n" + b"b" * 100)
    source = FileInput(path, TextParser(), block_bytes=16)
    rows = rows_in(source)
    assert [len(row["value"]) for _, row, _ in rows] == [100, 100]


@pytest.mark.parametrize("name", ["long.txt", "long.txt.gz"])
def test_a_line_too_long_for_memory_fails_without_being_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("acker_client.source.decoding.lines.LINE_BYTES_MAX", 50)
    path = tmp_path / name
    content = b"before\n" + b"a" * 100 + b"\ns\nt\n"
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    for parser in (TextParser(), JsonParser(pa.schema([("value", pa.string())]))):
        source = FileInput(path, parser, block_bytes=16)
        (_, before, _), (_, long, reason), *after = rows_in(source)
        assert long["value"] is None
        assert reason is not None
        assert "the line is longer than" in reason
        values = [before["value"], *(row["value"] for _, row, _ in after)]
        assert values == (["before", "s", "t"] if isinstance(parser, TextParser) else [None] * 3)


@pytest.mark.parametrize("name", ["long.txt", "long.txt.gz"])
@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n", b"\nshort\n"])
def test_the_original_of_a_line_too_long_for_memory_has_its_beginning_and_tells_its_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, end: bytes
) -> None:
    monkeypatch.setattr("acker_client.source.files.input.LINE_BYTES_MAX", 50)
    path = tmp_path / name
    content = BOM + b"a" * 100 + end
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    driven = Driven(FileInput(path, TextParser(), block_bytes=16))
    long, *others = driven.originals(driven.drain())
    assert (long.value, long.value_bytes) == (b"a" * 47, 100)
    assert [(other.value, other.value_bytes) for other in others] == ([(b"short", None)] if end[1:2] == b"s" else [])


def test_many_small_files_are_handed_on_together_and_a_task_gets_its_share(tmp_path: Path) -> None:
    for index in range(100):
        (tmp_path / f"{index:03}.txt").write_text("one\ntwo\n")
    source = FileInput(f"{tmp_path}/*", TextParser())
    driven = Driven(source)
    slices = driven.slices(driven.drain(), 4)
    assert [piece.stop - piece.start for piece in slices] == [50, 50, 50, 50]
    assert [len(list(piece.read())) for piece in slices] == [1, 1, 1, 1]


@pytest.mark.long
def test_files_of_long_lines_are_not_handed_on_together_beyond_a_number_of_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "BYTES_TOGETHER", 2500)
    for index in range(7):
        (tmp_path / f"{index}.txt").write_text("x" * 1000)
    driven = Driven(FileInput(f"{tmp_path}/*", TextParser()))
    slices = driven.slices(driven.drain(), 1)
    assert [rows.columns.num_rows for piece in slices for rows in piece.read()] == [3, 3, 1]
    assert [number for number, _, _ in rows_of(slices)] == list(range(7))


def test_slices_are_pickled_and_read_without_spark_and_without_grpc(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("x\ny\n")
    source = FileInput(path, TextParser())
    driven = Driven(source)
    assert read_elsewhere(driven.slices(driven.drain(), 1)) == "[2] False False"


@pytest.mark.parametrize("now", [b"", b"one\n", b"one two\n", b"one\ntwo\nthree\n"])
def test_a_file_that_changed_since_it_was_counted_is_an_error_never_other_records(tmp_path: Path, now: bytes) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\ntwo\n")
    chosen = Chosen(LinePart(str(path), "a.txt", 0, 2, 0, 8))
    path.write_bytes(now)
    if now.startswith(b"one\ntwo\n"):
        assert len(rows_of([LineSlice(0, 2, (chosen,), TextParser())])) == 2  # appended to: fine
        return
    with pytest.raises(InputChanged, match=r"a\.txt: bytes 0 to 8 had 2 lines"):
        rows_of([LineSlice(0, 2, (chosen,), TextParser())])


ORDER = pa.schema([("sku", pa.string()), ("qty", pa.int32()), ("tags", pa.list_(pa.string()))])
JSON_LINES = [
    b'{"sku": "a", "qty": 1, "tags": ["x"]}',
    b'  {"qty": 2, "sku": "\\u00e9", "more": {"deep": [1]}}  ',
    b"{}",
    b'{"sku": null}',
    b'{"sku": "a", "qty": "many"}',
    b'{"sku": "a"',
    b'{"sku": "a"}{"sku": "b"}',
    b'{"sku": "a"} {"sku": "b"}',
    b'{"sku": {',
    b"}}",
    b'"text"',
    b"[1]",
    b"nonsense",
    b"",
    b"   ",
    b'{"sku": "\xff"}',
    b'{"qty": 99999999999}',
]


def json_row(line: bytes) -> dict[str, Any] | None:
    """Return the row of one line, by Python's parser; None if it is unreadable."""
    try:
        found = json.loads(line.decode())
    except ValueError:
        return None
    if not isinstance(found, dict) or not isinstance(found.get("qty", 0), int) or abs(found.get("qty", 0)) > 2**31:
        return None
    return {name: found.get(name) for name in ORDER.names}


@pytest.mark.slow
@given(st.lists(st.sampled_from(JSON_LINES), max_size=12), st.booleans())
@settings(max_examples=200, deadline=None)
def test_a_malformed_json_line_fails_alone_and_its_neighbours_are_as_without_it(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], crlf: bool
) -> None:
    path = tmp_path_factory.mktemp("json") / "orders.jsonl"
    path.write_bytes((b"\r\n" if crlf else b"\n").join([*lines, b""]))
    source = FileInput(path, JsonParser(ORDER))
    rows = rows_in(source, 1)
    for line, (number, row, reason) in zip(lines, rows, strict=True):
        expected = json_row(line)
        assert (reason is None) == (expected is not None), (line, reason)
        assert row == (expected or dict.fromkeys(ORDER.names))
        assert reason is None or reason.startswith(f"{path}:{number + 1} (byte ")


ITEM = pa.struct([pa.field("sku", pa.string(), nullable=False), ("qty", pa.int32())])
REQUIRED = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("one", ITEM),
        ("all", pa.list_(pa.field("item", ITEM, nullable=False))),
    ]
)
REQUIRED_LINES = {
    '{"id": 1}': "",
    '{"id": 1, "one": null, "all": []}': "",
    '{"id": 1, "one": {"sku": "a"}, "all": [{"sku": "b", "qty": 2}]}': "",
    '{"one": {"sku": "a"}}': "id",
    '{"id": null}': "id",
    '{"id": 1, "one": {"qty": 2}}': "one.sku",
    '{"id": 1, "all": [{"sku": "a"}, null]}': "all[]",
    '{"id": 1, "all": [{"sku": "a"}, {"sku": null}]}': "all[].sku",
    "broken": "",
}


@given(st.lists(st.sampled_from(list(REQUIRED_LINES)), max_size=8))
@settings(max_examples=60, deadline=None)
def test_a_json_line_without_a_value_that_is_not_null_fails_alone_and_names_the_field(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str]
) -> None:
    path = tmp_path_factory.mktemp("json") / "orders.jsonl"
    path.write_text("".join(line + "\n" for line in lines))
    driven = Driven(FileInput(path, JsonParser(REQUIRED)))
    pieces = driven.slices(driven.drain(), 1)
    assert all(records.columns.schema == REQUIRED for piece in pieces for records in piece.read())
    for line, (_, row, reason) in zip(lines, rows_of(pieces), strict=True):
        if line == "broken":
            assert (reason or "").endswith("not a JSON object")
        elif REQUIRED_LINES[line]:
            assert (reason or "").endswith(f"malformed JSON ({REQUIRED_LINES[line]} is NOT NULL, and missing or null)")
        else:
            assert (reason, row["id"]) == (None, 1)


DAY_AND_FLOAT = pa.struct([("day", pa.date32()), ("f", pa.float32())])


@pytest.mark.parametrize(
    ("value", "read"),
    [
        ('{"day": "2026-01-31", "f": 0.1}', {"day": date(2026, 1, 31), "f": float(np.float32(0.1))}),
        ('{"day": null, "f": 16777216}', {"day": None, "f": 16777216.0}),
        ('{"f": 1e30}', {"day": None, "f": float(np.float32(1e30))}),
        ('{"day": 20484}', "changed from string to number"),
        ('{"day": "31.1.2026"}', "Failed to parse string: '31.1.2026' as a scalar of type date32"),
        ('{"f": 16777217}', "16777217.0 is not a number that a float holds, but a double does"),
        ('{"f": -1e300}', "-1e+300 is not a number that a float holds"),
    ],
)
def test_dates_and_floats_of_json_lines_come_as_they_are_at_any_depth_or_fail_their_line(
    tmp_path: Path, value: str, read: Any
) -> None:
    path = tmp_path / "orders.jsonl"
    path.write_text(f'{{"a": {value}}}\n{{}}\n{{"b": [null, {value}]}}\n')
    source = FileInput(path, JsonParser(pa.schema([("a", DAY_AND_FLOAT), ("b", pa.list_(DAY_AND_FLOAT))])))
    (_, first, why), (_, middle, none), (_, last, why_too) = rows_in(source, 1)
    assert (middle, none) == ({"a": None, "b": None}, None)
    if isinstance(read, str):
        assert read in (why or "")
        assert read in (why_too or "")
    else:
        assert (first, last) == ({"a": read, "b": None}, {"a": None, "b": [None, read]})


# What Spark's own reader of JSON gives for the same texts; in place of a null or an infinity the line fails.
@pytest.mark.parametrize(
    ("type_", "text", "read"),
    [
        (pa.int64(), "9007199254740993", 9007199254740993),
        (pa.int64(), "9223372036854775808", "couldn't parse:9223372036854775808"),
        (pa.int64(), "1.0", "couldn't parse:1.0"),
        (pa.decimal128(20, 2), "9007199254740993", Decimal("9007199254740993.00")),
        (pa.float64(), "9007199254740993", 9007199254740992.0),
        (pa.float64(), "12345678901234567890123", 1.2345678901234568e22),
        (pa.float64(), "1e400", "Number too big to be stored in double"),
        (pa.float32(), "9007199254740993", 9007199254740992.0),
        (pa.float32(), "12345678901234567890123", float(np.float32(1.2345678901234568e22))),
    ],
)
def test_large_numbers_of_json_lines_are_kept_by_integers_and_decimals_and_rounded_by_floats_as_spark_does(
    tmp_path: Path, type_: Any, text: str, read: Any
) -> None:
    path = tmp_path / "orders.jsonl"
    path.write_text(f'{{"a": {text}}}\n')
    ((_, row, why),) = rows_in(FileInput(path, JsonParser(pa.schema([("a", type_)]))), 1)
    if isinstance(read, str):
        assert (row["a"], read in (why or "")) == (None, True)
    else:
        assert (row["a"], why) == (read, None)


@pytest.mark.parametrize("type_", [pa.map_(pa.string(), pa.int32()), pa.duration("us")])
def test_a_column_type_that_no_json_line_has_is_refused_before_a_line_is_read(type_: Any) -> None:
    for schema in (type_, pa.list_(type_), pa.struct([("deep", type_)])):
        with pytest.raises(ValueError, match=rf"cannot have a column of type {re.escape(str(type_))}: give it another"):
            JsonParser(pa.schema([("a", schema)]))
