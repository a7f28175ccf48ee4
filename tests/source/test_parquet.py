"""Parquet files as an input, compared with a list of all rows."""

from __future__ import annotations

import json
import os
import tempfile
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acker_client.source import Batch, CheckpointError, InputChanged, Parquet, Retry, SourceError
from acker_client.source.engine.environment import arrow_schema, spark_schema
from acker_client.source.parquet.input import ParquetInput
from acker_client.source.parquet.places import find_parquet_files, schema_of
from acker_client.source.parquet.rows import RowContent, digest_of
from acker_client.source.storage.store import Opened, Store
from acker_client.source.waiting import OutOfReach
from tests.source.disks import without_rights
from tests.source.driven import Driven, read_elsewhere, rows_of
from tests.source.executors import NO_SPARK, Cluster, failing, save_all
from tests.source.logs import MemoryCheckpoint
from tests.source.stores import filesystem_over

NUMBERS = pa.schema([("value", pa.string())])


def write(path: Path, values: list[str], rows_per_group: int = 4) -> Path:
    pq.write_table(pa.table({"value": pa.array(values, pa.string())}), path, row_group_size=rows_per_group)
    return path


@pytest.mark.long
@given(st.lists(st.integers(0, 12), min_size=1, max_size=3), st.integers(1, 5), st.integers(1, 9), st.data())
@settings(max_examples=80, deadline=None)
def test_every_row_is_read_once_and_a_restart_reads_exactly_those_that_are_not_done(
    tmp_path_factory: pytest.TempPathFactory, files: list[int], group: int, records_max: int, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("parquet")
    everything = []
    for index, count in enumerate(files):
        path = write(folder / f"{index}.parquet", [f"{index}.{k}" for k in range(count)], group)
        everything += [(str(path), k, f"{index}.{k}") for k in range(count)]
    driven = Driven(ParquetInput(folder, NUMBERS))
    records = driven.drain(records_max)
    assert [row["value"] for row in rows_of(driven.slices(records, 3))] == [value for _, _, value in everything]
    assert [tuple(row.values()) for row in driven.origins(records).to_pylist()] == [row[:2] for row in everything]
    left = set(records.tolist())
    for _ in range(data.draw(st.integers(0, 3))):
        finished = data.draw(st.sets(st.sampled_from(sorted(left)))) if left else set()
        left -= finished
        driven.finish(sorted(finished))
        if left:
            chosen = sorted(data.draw(st.sets(st.sampled_from(sorted(left)))))
            assert [row["value"] for row in rows_of(driven.slices(chosen))] == [everything[k][2] for k in chosen]
            assert driven.values(chosen) == [{"value": everything[k][2]} for k in chosen]
        again = Driven(ParquetInput(folder, NUMBERS), driven.committed())
        rows = rows_of(again.slices(again.drain(records_max)))
        assert [row["value"] for row in rows] == [everything[k][2] for k in sorted(left)]
    if not left:
        assert driven.description.startswith("end of the input")


def test_the_checkpoint_of_a_file_is_a_few_numbers_whatever_its_size(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", [str(k) for k in range(50_000)], 10_000)
    driven = Driven(ParquetInput(tmp_path / "a.parquet", NUMBERS))
    driven.finish([k for k in driven.drain(50_000).tolist() if k not in (70, 41_000)])
    (committed,) = driven.committed().values()
    assert committed.done.to_runs() == [70, 1, 40_929, 1, 8_999]
    assert set(committed.mark) == {"rows", "digest"}


ORDERS = pa.schema(
    [
        ("id", pa.int64()),
        ("price", pa.decimal128(12, 3)),
        ("at", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
        ("day", pa.date32()),
        ("raw", pa.binary()),
        ("tags", pa.list_(pa.string())),
        ("to", pa.struct([("city", pa.string()), ("zips", pa.list_(pa.int32()))])),
        ("extra", pa.map_(pa.string(), pa.float64())),
    ]
)
ORDER: dict[str, Any] = {
    "id": 1,
    "price": Decimal("12.345"),
    "at": datetime(2026, 3, 29, 1, 30, 0, 123456, UTC),
    "local": datetime(2026, 3, 29, 2, 30, 0, 7),
    "day": date(1582, 10, 15),
    "raw": b"\xff\x00",
    "tags": ["a", None, "ä"],
    "to": {"city": "Köln", "zips": [1, None]},
    "extra": [("x", 0.5), ("y", None)],
}


def test_nested_types_decimals_and_timestamps_survive(tmp_path: Path) -> None:
    rows = [ORDER, dict.fromkeys(ORDERS.names)]
    pq.write_table(pa.Table.from_pylist(rows, ORDERS), tmp_path / "a.parquet")
    schema = arrow_schema(spark_schema(schema_of(tmp_path)))
    driven = Driven(ParquetInput(tmp_path, schema))
    records = driven.drain()
    read = rows_of(driven.slices(records))
    assert read == rows
    letter = json.loads(json.dumps(driven.values(records)[0]))
    assert (letter["price"], letter["at"]) == ("12.345", "2026-03-29T01:30:00.123456+00:00")
    assert (letter["raw"], letter["to"]) == ({"base64": "/wA="}, {"city": "Köln", "zips": [1, None]})


def test_an_int96_is_an_instant_also_deep_inside_and_nanoseconds_are_cut(tmp_path: Path) -> None:
    table = pa.table(
        {
            "ns": pa.array([1_001], pa.timestamp("ns")),
            "list": pa.array([[{"at": datetime(2026, 1, 1)}]], pa.list_(pa.struct([("at", pa.timestamp("us"))]))),
            "text": pa.array(["x"]).dictionary_encode(),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)
    pq.write_table(table.select(["text"]).append_column("ns", table["ns"]), tmp_path / "b.parquet", version="2.6")
    for name in ("a", "b"):
        path = tmp_path / f"{name}.parquet"
        driven = Driven(ParquetInput(path, arrow_schema(spark_schema(schema_of(path)))))
        (row,) = rows_of(driven.slices(driven.drain()))
        instant = datetime(1970, 1, 1, 0, 0, 0, 1, UTC if name == "a" else None)
        assert (row["ns"], row["text"]) == (instant, "x")
        assert name == "b" or row["list"] == [{"at": datetime(2026, 1, 1, tzinfo=UTC)}]


def test_a_missing_column_is_null_another_order_is_fine_and_another_type_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1], "b": ["x"]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"c": [0], "b": ["y"]}), tmp_path / "2.parquet")
    schema = arrow_schema("a bigint, b string")
    driven = Driven(ParquetInput(tmp_path, schema))
    assert rows_of(driven.slices(driven.drain())) == [{"a": 1, "b": "x"}, {"a": None, "b": "y"}]
    pq.write_table(pa.table({"a": [[1]]}), tmp_path / "3.parquet")
    with pytest.raises(SourceError, match=r"the column 'a' of .*3\.parquet is list<.*> and int64 is wanted|'a' of .*3"):
        Driven(ParquetInput(tmp_path, schema)).drain()


def test_a_number_that_a_float_column_would_change_fails_its_row_alone_at_any_depth(tmp_path: Path) -> None:
    numbers = [0.1, 1e300, 16777217.0, None, 2.0**60, float("inf"), -1e39]
    held = pa.array([0.1, None, None, None, 2.0**60, float("inf"), None], pa.float32()).to_pylist()

    def columns(type_: Any) -> list[tuple[str, Any]]:
        deep = pa.struct([("l", pa.list_(type_)), ("m", pa.map_(pa.string(), type_))])
        return [("f", type_), ("s", deep), ("d", pa.float64())]

    rows: list[dict[str, Any]] = [{"f": number, "s": None, "d": number} for number in numbers]
    rows += [{"f": None, "s": {"l": [0.5, number], "m": []}, "d": None} for number in numbers]
    rows += [{"f": None, "s": {"l": None, "m": [("k", number)]}, "d": None} for number in numbers]
    pq.write_table(pa.Table.from_pylist(rows, pa.schema(columns(pa.float64()))), tmp_path / "a.parquet")
    driven = Driven(ParquetInput(tmp_path / "a.parquet", pa.schema(columns(pa.float32()))))
    records = driven.drain()
    (read,) = [found for piece in driven.slices(records, 1) for found in piece.read()]
    refused = [k for k, number in enumerate(numbers) if number in (1e300, 16777217.0, -1e39)]
    assert sorted(read.unreadable) == [k + shift for shift in (0, 7, 14) for k in refused]
    assert all("is not a number that a float holds" in reason for reason in read.unreadable.values())
    made = read.columns.to_pylist()
    assert [row["f"] for row in made[:7]] == held
    assert [row["s"] and row["s"]["l"][1] for row in made[7:14]] == held
    assert [row["s"] and row["s"]["m"][0][1] for row in made[14:]] == held


NUMBER_AND_TEXT = pa.struct([("a", pa.float64()), ("b", pa.string())])
IN_A_MAP = "map<string, struct<a: float>>"
IN_OTHER_ORDER = "struct<b: string, a: float>"
# Older ones refuse such a file.
casts_in_any_order = pytest.mark.skipif(
    int(pa.__version__.partition(".")[0]) < 20, reason="this pyarrow casts no struct to fields of another order"
)


@pytest.mark.parametrize(
    ("given", "value", "wanted", "read"),
    [
        (NUMBER_AND_TEXT, {"a": 0.1, "b": "x"}, "struct<b: string>", {"b": "x"}),
        (pa.struct([("a", pa.float64())]), {"a": 0.5}, "struct<a: float, c: float>", {"a": 0.5, "c": None}),
        pytest.param(
            *(NUMBER_AND_TEXT, {"a": 0.5, "b": "x"}, IN_OTHER_ORDER, {"b": "x", "a": 0.5}), marks=casts_in_any_order
        ),
        (pa.map_(pa.string(), NUMBER_AND_TEXT), [("k", {"a": 0.5, "b": "x"})], IN_A_MAP, [("k", {"a": 0.5})]),
        (pa.null(), None, "struct<a: float>", None),
        (pa.null(), None, "array<float>", None),
        (pa.null(), None, "map<string, float>", None),
        (pa.null(), None, "float", None),
    ],
    ids=["fewer_fields", "more_fields", "other_order", "in_a_map", "struct", "list", "map", "float"],
)
def test_fields_of_a_struct_are_found_by_name_and_a_column_of_nulls_fits_each_type(
    tmp_path: Path, given: Any, value: Any, wanted: str, read: Any
) -> None:
    pq.write_table(pa.table({"s": pa.array([value], given)}), tmp_path / "a.parquet")
    driven = Driven(ParquetInput(tmp_path, arrow_schema(f"s {wanted}")))
    ((rows,),) = [list(piece.read()) for piece in driven.slices(driven.drain())]
    assert (rows.columns.to_pylist(), rows.unreadable) == ([{"s": read}], {})


@casts_in_any_order
def test_a_number_that_a_float_would_change_is_refused_also_where_the_fields_have_another_order(tmp_path: Path) -> None:
    rows = [{"a": number, "b": "x"} for number in (0.5, 16777217.0)]
    pq.write_table(pa.table({"s": pa.array(rows, NUMBER_AND_TEXT)}), tmp_path / "a.parquet")
    driven = Driven(ParquetInput(tmp_path, arrow_schema(f"s {IN_OTHER_ORDER}")))
    ((read,),) = [list(piece.read()) for piece in driven.slices(driven.drain())]
    assert read.columns.to_pylist() == [{"s": {"b": "x", "a": 0.5}}, {"s": None}]
    assert list(read.unreadable) == [1]


def test_a_value_that_does_not_fit_its_column_fails_alone(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1, 1 << 40, 3]}), tmp_path / "a.parquet")
    driven = Driven(ParquetInput(tmp_path, arrow_schema("a int")))
    ((read,),) = [list(piece.read()) for piece in driven.slices(driven.drain())]
    assert read.columns.to_pylist() == [{"a": 1}, {"a": None}, {"a": 3}]
    assert list(read.unreadable) == [1]
    assert "a.parquet: a value does not fit its column" in read.unreadable[1]


def test_a_row_without_a_value_that_is_not_null_fails_alone_and_its_letter_has_its_columns(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1, None], "b": ["x", "y"]}), tmp_path / "a.parquet")
    driven = Driven(ParquetInput(tmp_path, arrow_schema("a bigint NOT NULL, b string")))
    records = driven.drain()
    ((read,),) = [list(piece.read()) for piece in driven.slices(records)]
    assert read.columns.slice(0, 1).to_pylist() == [{"a": 1, "b": "x"}]
    reason = f"{tmp_path}/a.parquet: a value does not fit its column (a is NOT NULL, and missing or null)"
    assert read.unreadable == {1: reason}
    assert driven.values(records) == [{"a": 1, "b": "x"}, {"a": None, "b": "y"}]


def test_a_type_that_spark_has_not_is_refused_with_the_column_to_give(tmp_path: Path) -> None:
    pq.write_table(pa.table({"u": pa.array([1], pa.uint64())}), tmp_path / "a.parquet")
    with pytest.raises(SourceError, match="the column 'u' is uint64, which Spark does not have: give a schema"):
        Parquet(tmp_path, name="u").input()
    driven = Driven(ParquetInput(tmp_path, arrow_schema("u bigint")))
    assert rows_of(driven.slices(driven.drain())) == [{"u": 1}]


def test_a_file_that_was_moved_away_before_it_was_opened_is_read_once_it_is_back(tmp_path: Path) -> None:
    path, now_s = write(tmp_path / "a.parquet", ["one"]), [0.0]
    input_ = ParquetInput(f"{tmp_path}/*.parquet", NUMBERS, follow_s=2.0, clock=lambda: now_s[0])
    driven = Driven(input_)
    away = path.rename(tmp_path / "away")
    assert not len(driven.take(input_.plan(10, 1)))
    now_s[0] = 2.0
    assert not len(driven.take(input_.plan(10, 1)))
    away.rename(path)
    now_s[0] = 4.0
    assert len(driven.take(input_.plan(10, 1))) == 1


@pytest.mark.parametrize("change", ["other values", "more rows", "away", "away when done"])
def test_a_file_that_changed_since_the_checkpoint_is_refused(tmp_path: Path, change: str) -> None:
    path = write(tmp_path / "a.parquet", ["one", "two", "three"])
    write(tmp_path / "b.parquet", ["b"])
    driven = Driven(ParquetInput(tmp_path, NUMBERS))
    records = driven.drain()
    driven.finish(records[:3] if change == "away when done" else records[[0, 2]])
    committed = driven.committed()
    path.unlink()
    if change == "away when done":
        assert len(Driven(ParquetInput(tmp_path, NUMBERS), committed).drain()) == 1
        return
    says = "is not among the files any more"
    if change != "away":
        write(path, ["one", "TWO", "three"] if change == "other values" else ["one", "two", "three", "four"])
        says = "is not what it was when its rows were read"
    with pytest.raises(CheckpointError, match=rf"a\.parquet .*{says}"):
        Driven(ParquetInput(tmp_path, NUMBERS), committed)


def test_a_codec_that_is_not_read_is_refused_with_the_file_and_the_codecs_that_are(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", ["one", "two"])
    # In the footer a column's codec (field 4, an enum) follows its path. Snappy is 1, and LZO is 3.
    snappy, lzo = b"\x18\x05value\x15\x02", b"\x18\x05value\x15\x06"
    content = path.read_bytes()
    assert content.count(snappy) == 1
    path.write_bytes(content.replace(snappy, lzo))
    driven = Driven(ParquetInput(path, NUMBERS))
    slices = driven.slices(driven.drain())
    says = r"a\.parquet cannot be unpacked \(.*LZO.*\), and snappy, gzip, zstd, lz4 and brotli are read: write it anew"
    with pytest.raises(InputChanged, match=says):
        rows_of(slices)


def test_a_file_whose_name_is_not_utf8_is_read_like_the_others(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", ["one", "two"]).rename(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.parquet"))
    assert schema_of(tmp_path) == NUMBERS
    driven = Driven(ParquetInput(tmp_path, NUMBERS))
    records = driven.drain()
    assert [row["value"] for row in rows_of(driven.slices(records))] == ["one", "two"]
    assert driven.origins(records)["path"].to_pylist() == [f"{tmp_path}/\\xff.parquet"] * 2


def test_the_originals_of_a_store_that_is_away_are_an_error_and_never_without_their_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("acker_client.source.parquet.rows.READ_S", 0.0)
    write(tmp_path / "a.parquet", ["one", "two"])
    driven = Driven(ParquetInput("*.parquet", NUMBERS, filesystem=filesystem_over(tmp_path)))
    records = driven.drain()

    def refuse(store: Store, path: str) -> Any:
        raise OutOfReach("SlowDown")

    with monkeypatch.context() as away:
        away.setattr(Store, "open", refuse)
        with pytest.raises(OutOfReach):
            driven.originals(records)
    assert driven.values(records) == [{"value": "one"}, {"value": "two"}]


def test_a_file_that_changes_while_it_is_read_is_an_error_never_other_records(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", ["one", "two"])
    driven = Driven(ParquetInput(path, NUMBERS))
    slices = driven.slices(driven.drain())
    write(path, ["one", "TWO"])
    with pytest.raises(InputChanged, match="has changed since its records were counted"):
        rows_of(slices)
    assert driven.values([0]) == [None]


@pytest.mark.parametrize(
    ("read", "later"),
    [(["ONE"], ["one", "two", "three"]), (["ONE", "TWO", "THREE"], ["ONE", "TWO", "THREE"])],
    ids=["fewer rows, for a moment", "other rows, for good"],
)
def test_a_file_that_is_replaced_between_its_check_and_its_reading_is_an_error_never_fewer_or_other_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: list[str], later: list[str]
) -> None:
    path = write(tmp_path / "a.parquet", ["one", "two", "three"])
    driven = Driven(ParquetInput(path, NUMBERS))
    slices = driven.slices(driven.drain())
    versions = iter([["one", "two", "three"], later])

    def digest_then_replace(content: RowContent, shown: str) -> str:
        write(path, next(versions))
        digest = digest_of(content, shown)
        write(path, read)
        return digest

    monkeypatch.setattr("acker_client.source.parquet.rows.digest_of", digest_then_replace)
    with pytest.raises(InputChanged, match="has changed since its records were counted"):
        rows_of(slices)


@pytest.mark.parametrize("is_removed", [False, True])
def test_a_file_that_is_replaced_or_removed_during_a_run_ends_it_and_no_record_is_charged(
    tmp_path: Path, is_removed: bool
) -> None:
    cluster, path = Cluster(tmp_path), write(tmp_path / "a.parquet", ["one", "two", "three", "four"])
    letters = tmp_path / "dead.jsonl"
    options: dict[str, Any] = {"dead_letters": letters, "retry": Retry(max_retries=1, initial_s=0.0)}
    source = Parquet(path, name="rows", batch_records=2, environment=cluster.environment(), **options)

    def process(batch: Batch) -> None:
        save_all(batch)
        path.unlink()
        if not is_removed:
            write(path, ["one", "two", "THREE", "four"])

    says = r"a\.parquet (cannot be read \(No such file|has changed since its records were counted)"
    with pytest.raises(InputChanged, match=says):
        source.run(NO_SPARK, process)
    assert (source.summary().acked, source.summary().failed) == (2, 0)
    assert not letters.read_text()


def test_a_directory_stands_for_the_parquet_files_in_it_as_in_spark(tmp_path: Path) -> None:
    for name in ("b.parquet", "a.parquet", "deep/c.parquet", "_temporary/d.parquet", ".e.parquet", "_SUCCESS"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write(tmp_path / name, ["x"])
    found = find_parquet_files([tmp_path / "b.parquet", tmp_path])
    assert [Path(file.path).name for file in found] == ["b.parquet", "a.parquet", "c.parquet"]


@pytest.mark.parametrize(
    ("paths", "says"),
    [
        ("{folder}/nothing/*.parquet", "nothing matches"),
        ("{folder}/empty", r"no file in '.*empty' ends in \.parquet"),
        ("{folder}/by", "holds a column in its name"),
        ("{folder}/text.parquet", "is no Parquet file, or a damaged one"),
        ("ftp://host/key", "is a URL"),
        ("dbfs:/mnt/a/*.parquet", "write '/dbfs/mnt/a/"),
    ],
)
def test_paths_that_make_no_sense_are_refused(tmp_path: Path, paths: str, says: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "by" / "day=1").mkdir(parents=True)
    write(tmp_path / "by" / "day=1" / "a.parquet", ["x"])
    (tmp_path / "text.parquet").write_text("no parquet, but long enough to be read as one\n")
    with pytest.raises(SourceError, match=says):
        schema_of(paths.format(folder=tmp_path))


def test_a_folder_that_cannot_be_looked_into_is_named_and_not_left_out() -> None:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / "a.parquet", ["x"])
        closed = Path(folder) / "closed"
        closed.mkdir()
        Path(folder).chmod(0o755)
        closed.chmod(0)
        with without_rights(), pytest.raises(InputChanged, match=r"closed cannot be read \(Permission denied\): give"):
            find_parquet_files(folder)
        closed.chmod(0o700)


@pytest.mark.slow
def test_slices_of_rows_are_pickled_and_read_without_spark_and_without_grpc(tmp_path: Path) -> None:
    driven = Driven(ParquetInput(write(tmp_path / "a.parquet", ["x", "y"]), NUMBERS))
    assert read_elsewhere(driven.slices(driven.drain(), 1)) == "[2] False False"


def test_a_poison_row_ends_in_the_dead_letters_with_its_columns_and_a_restart_finds_nothing_to_do(
    tmp_path: Path,
) -> None:
    cluster, checkpoint = Cluster(tmp_path), MemoryCheckpoint()
    write(tmp_path / "a.parquet", [str(k) for k in range(30)])
    options: dict[str, Any] = {"name": "rows", "checkpoint": checkpoint, "dead_letters": tmp_path / "dead.jsonl"}
    options |= {"environment": cluster.environment(), "retry": Retry(max_retries=1, initial_s=0.0)}
    summary = Parquet(tmp_path, batch_records=7, **options).run(NO_SPARK, failing(lambda row: row.value == "13"))
    assert (summary.acked, summary.dead_lettered) == (29, 1)
    assert summary.checkpoint == "end of the input (1 file)"
    (letter,) = [json.loads(line) for line in (tmp_path / "dead.jsonl").open()]
    assert (letter["path"], letter["row"], letter["value"]) == (f"{tmp_path}/a.parquet", 13, {"value": "13"})
    assert Parquet(tmp_path, **options).run(NO_SPARK, save_all).records == 0


def test_a_followed_directory_yields_new_files_once_they_are_complete(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now_s = [0.0]
    source = ParquetInput(tmp_path, NUMBERS, follow_s=2.0, clock=lambda: now_s[0])
    driven = Driven(source)

    def look() -> list[str]:
        plan = source.plan(100, 2)
        assert not plan.is_end
        return [row["value"] for row in rows_of(driven.slices(driven.parts.add_parts(plan.parts)))]

    def new() -> list[str]:
        now_s[0] += 2.0
        return look()

    assert new() == []
    write(tmp_path / "a.parquet", ["a"])
    assert [look(), new(), new()] == [[], ["a"], []]
    raw = write(tmp_path / "b.parquet", ["b", "c"]).read_bytes()
    for part in (raw[:-1], raw[: len(raw) // 2], b""):
        (tmp_path / "b.parquet").write_bytes(part)
        assert [new(), new()] == [[], []]
    assert [record.getMessage().count("looked at again once it changes") for record in caplog.records] == [0, 1]
    (tmp_path / "b.parquet").write_bytes(raw)
    assert [new(), new()] == [["b", "c"], []]
    driven.finish([0, 1])
    committed = driven.committed()
    assert driven.description == f"1 of 2 files, {tmp_path}/b.parquet to row 1"
    write(tmp_path / "c.parquet", ["d"])
    again = Driven(ParquetInput(tmp_path, NUMBERS), committed)
    assert [row["value"] for row in rows_of(again.slices(again.drain()))] == ["c", "d"]
    (tmp_path / "a.parquet").unlink()
    assert new() == ["d"]
    write(tmp_path / "c.parquet", ["other"])
    with pytest.raises(
        InputChanged, match=r"c\.parquet is not what it was when its rows were read: give new data a new"
    ):
        new()


def test_a_followed_object_that_was_completed_is_read_after_an_outage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.parquet").write_bytes(b"")
    now_s = [0.0]
    filesystem = filesystem_over(tmp_path)
    source = ParquetInput("*.parquet", NUMBERS, filesystem=filesystem, follow_s=2.0, clock=lambda: now_s[0])
    driven = Driven(source)

    def new() -> list[str]:
        now_s[0] += 100.0
        return [row["value"] for row in rows_of(driven.slices(driven.parts.add_parts(source.plan(100, 2).parts)))]

    def refuse(store: Store, path: str) -> Opened:
        raise OutOfReach("SlowDown")

    assert new() == []
    write(tmp_path / "a.parquet", ["a", "b"])
    with monkeypatch.context() as outage:
        outage.setattr(Store, "open", refuse)
        assert new() == []
    assert [new(), new()] == [["a", "b"], []]


def test_an_invalid_interval_between_listings_is_refused() -> None:
    with pytest.raises(ValueError, match="follow_s=0: give seconds, above 0"):
        Parquet("a", name="a", follow_s=0)
