"""Dead letters in a table of Spark's catalog: queried there, and processed again from its rows."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from acker_client.source import DeadLetter, DeadLetterStore, Files, PutBack, Retry, SourceError, Table, tracked
from acker_client.source.dead_letters import letters_table
from acker_client.spark import operator, sink
from acker_testing import Pipeline


@operator("word string")
def words(row: Row) -> Iterator[tuple[str]]:
    if "!" in row.value:
        raise ValueError(f"{row.value} is too loud")
    for word in row.value.split():
        yield (word,)


@sink
def save(rows: DataFrame) -> None:
    rows.write.format("noop").mode("append").save()


@pytest.fixture
def name(spark: SparkSession) -> Iterator[str]:
    """A database of the test's own, and the name of a table in it that does not exist."""
    database = f"db{uuid.uuid4().hex}"
    spark.sql(f"CREATE DATABASE {database}")
    yield f"{database}.dead"
    spark.sql(f"DROP DATABASE {database} CASCADE")


def letter(value: Any = b"bad", **fields: Any) -> DeadLetter:
    origin = {"topic": "orders", "partition": 0, "offset": 17, "key": {"base64": "/w=="}}
    given = {"failed": 4, "interrupted": 1, "first_s": 1_700_000_000.5, "last_s": 1_700_000_060.0, **fields}
    return DeadLetter(source="orders", reason="ValueError: no", origin=origin, value=value, **given)


def written(spark: SparkSession, name: str, *letters: DeadLetter) -> list[Row]:
    table = Table(name)
    table.set_session(spark)
    table.open()
    table.write(letters)
    table.close()
    return spark.table(name).collect()


@pytest.mark.long
def test_a_letter_is_a_row_that_can_be_queried_and_holds_all_of_the_letter(spark: SparkSession, name: str) -> None:
    assert isinstance(Table(name), DeadLetterStore)
    (row,) = written(spark, name, letter())
    assert (row.source, row.reason, row.failed, row.interrupted, row.value) == ("orders", "ValueError: no", 4, 1, "bad")
    assert row.first_try.astimezone(UTC) == datetime(2023, 11, 14, 22, 13, 20, 500_000, UTC)
    assert row.origin == {"topic": "orders", "partition": "0", "offset": "17", "key": '{"base64": "/w=="}'}
    assert DeadLetter.of_json(row.letter) == letter()
    assert spark.table(name).where("origin['topic'] = 'orders' AND failed > 3").count() == 1


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("value", "shown"),
    [(b"\xff", None), (None, None), ({"sku": "ä", "qty": 1}, '{"sku": "ä", "qty": 1}'), ("ä\n".encode(), "ä\n")],
)
def test_any_value_comes_back_from_its_row(spark: SparkSession, name: str, value: Any, shown: str | None) -> None:
    (row,) = written(spark, name, letter(value))
    assert row.value == shown
    assert DeadLetter.of_json(row.letter).value == value


@pytest.mark.long
def test_a_reason_and_a_name_with_parts_of_characters_are_written(spark: SparkSession, name: str) -> None:
    odd = replace(letter(), reason="no \udc80", origin={"path": "a\udcff.txt"})
    (row,) = written(spark, name, odd)
    assert (row.reason, row.origin) == ("no ?", {"path": "a?.txt"})
    assert DeadLetter.of_json(row.letter) == odd


@pytest.mark.long
def test_letters_are_appended_to_a_table_that_has_its_columns_in_another_order_and_more(
    spark: SparkSession, name: str
) -> None:
    columns = [f"{column} {kind}" for column, kind in reversed(letters_table.COLUMNS.items())]
    spark.sql(f"CREATE TABLE {name} (day date, {', '.join(columns).upper()}) USING parquet")
    written(spark, name, letter())
    rows = written(spark, name, letter(failed=5))
    assert sorted(row.FAILED for row in rows) == [4, 5]
    assert {row.day for row in rows} == {None}


@pytest.mark.long
def test_many_letters_are_written_in_pieces(spark: SparkSession, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letters_table, "PIECE_CHARS", 1000)
    assert len(written(spark, name, *(letter(f"{k}".encode()) for k in range(10)))) == 10


@pytest.mark.long
def test_a_table_that_lacks_a_column_is_refused_before_anything_is_read(
    pipeline: Pipeline, spark: SparkSession, name: str
) -> None:
    spark.sql(f"CREATE TABLE {name} (source string, reason string) USING parquet")
    with pytest.raises(
        SourceError, match=rf"cannot be written to table {name}: it lacks failed, interrupted, first_try"
    ):
        pipeline.run(["a"], lambda batch: save(batch.df), dead_letters=Table(name))


@pytest.mark.long
def test_a_database_that_does_not_exist_is_named(pipeline: Pipeline) -> None:
    with pytest.raises(SourceError, match=r"to table nowhere\.dead \(.*nowhere.*\): create its database"):
        pipeline.run(["a"], lambda batch: save(batch.df), dead_letters=Table("nowhere.dead"))


@pytest.mark.parametrize("given", ["", 3])
def test_a_table_without_a_name_is_refused(given: Any) -> None:
    with pytest.raises(ValueError, match="name a table of Spark's catalog"):
        Table(given)


@pytest.mark.long
def test_a_run_that_cannot_write_its_letters_loses_nothing_and_the_next_one_does(
    pipeline: Pipeline, spark: SparkSession, name: str, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("good\nbad!\n")
    options: dict[str, Any] = {"name": "lines", "checkpoint": tmp_path / "ckpt", "retry": Retry(max_retries=0)}

    def process(batch: Any) -> None:
        save(batch.df.transform(words))
        if not (tmp_path / "again").exists():
            spark.sql(f"DROP TABLE {name}")

    with pytest.raises(SourceError, match=rf"cannot be written to table {name} .*Nothing is lost"):
        Files(tmp_path / "a.txt", dead_letters=Table(name), **options).run(spark, process)
    (tmp_path / "again").touch()
    summary = Files(tmp_path / "a.txt", dead_letters=Table(name), **options).run(spark, process)
    assert (summary.records, summary.dead_lettered) == (1, 1)
    assert [row.value for row in spark.table(name).collect()] == ["bad!"]


@pytest.mark.long
def test_letters_of_a_table_are_put_back_through_files_of_its_lines(
    pipeline: Pipeline, spark: SparkSession, name: str, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("good\nbad!\nworse!\n")
    options: dict[str, Any] = {"max_dead_share": 1.0, "retry": Retry(max_retries=0)}
    first = Files(tmp_path / "a.txt", name="lines", dead_letters=Table(name), **options)
    first.run(spark, lambda batch: save(batch.df.transform(words)))
    with pytest.raises(TypeError, match=rf"spark\.table\('{name}'\)\.select\('letter'\)\.write\.text\('again'\)"):
        PutBack(Table(name), name="again", checkpoint=tmp_path / "again.ckpt")  # type: ignore[arg-type]
    again = tmp_path / "again"
    spark.table(name).where("value = 'worse!'").select("letter").write.text(str(again))
    rows: list[Row] = []
    source = PutBack(f"{again}/*.txt", name="again", checkpoint=tmp_path / "again.ckpt", **options)
    sinking = sink(lambda frame: rows.extend(frame.collect()), name="keep")
    assert source.run(spark, lambda batch: sinking(batch.df)).acked == 1
    assert [(row.value, row.path, row.line) for row in rows] == [("worse!", str(tmp_path / "a.txt"), 3)]


@pytest.mark.long
def test_the_rows_of_a_streaming_query_have_their_letters_in_a_table(
    pipeline: Pipeline, spark: SparkSession, name: str, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("good\nbad!\n")
    process = tracked(
        lambda batch: save(batch.df.transform(words)),
        name="lines",
        dead_letters=Table(name),
        retry=Retry(max_retries=0),
    )
    writer = spark.readStream.text(str(tmp_path / "in")).writeStream.foreachBatch(process)
    writer.option("checkpointLocation", str(tmp_path / "ckpt")).trigger(availableNow=True).start().awaitTermination()
    assert [row.value for row in spark.table(name).collect()] == ['{"value": "bad!"}']
