"""One program over a source, and over the source's dead letters after they were put back, on a real Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from acker_client.source import Frame, Kafka, Parquet, PutBack, Retry
from acker_client.source.engine.source import Source
from acker_client.source.kafka.slices import COLUMNS
from acker_client.source.put_back.letter_lines import Moved
from acker_client.source.put_back.store import put_back
from acker_client.spark import operator, sink
from tests.source.kafka_broker import MockKafka

TYPED = (
    "id bigint, raw binary, price decimal(20, 4), at timestamp, local timestamp_ntz, on date, share double,"
    " `odd name` string, tags map<string, array<int>>, items array<struct<sku: string, raw: binary>>,"
    " took interval day to second"
)
VALUES = """
    (1, X'FF00', 3.2500, timestamp'2026-03-29 01:02:03.000004', timestamp_ntz'2026-03-29 02:30:00', date'2026-03-29',
     double('-Infinity'), 'ä', map('a', array(1, null)), array(struct('s', X'FE'), null), interval '1 02:03:04' day to second),
    (2, X'', null, timestamp'0001-01-03 00:00:00', null, date'9999-12-31', -0.0D, '', map(), array(), interval '-1' day),
    (3, null, null, null, null, null, null, null, null, null, null)
"""  # noqa: E501


Make = Callable[[str, dict[str, Any]], Source]


def frame(spark: SparkSession) -> DataFrame:
    fields = spark.createDataFrame([], TYPED).schema
    names = ", ".join(f"`{field.name}`" for field in fields)
    cast = [f"cast(`{field.name}` as {field.dataType.simpleString()}) as `{field.name}`" for field in fields]
    return spark.sql(f"select {', '.join(cast)} from values {VALUES} as t({names})").coalesce(1)


def kafka_source(spark: SparkSession, kafka: MockKafka, folder: Path) -> Make:
    topic = kafka.new_topic(prefix="put-back")
    headers: list[Any] = [("a", b"\xff"), ("a", None), ("b", b"")]
    kafka.send(topic, 0, b"\xff\x00", key=b"\xfe", headers=headers, timestamp=1_700_000_000_123)
    kafka.write(topic, 0, [None, b"", b"text"])
    return lambda name, options: Kafka(topic, bootstrap_servers=kafka.servers, name=name, stop="end", **options)


def parquet_source(spark: SparkSession, kafka: MockKafka, folder: Path) -> Make:
    frame(spark).drop("took").write.parquet(f"{folder}/in")
    return lambda name, options: Parquet(folder / "in", name=name, **options)


def frame_source(spark: SparkSession, kafka: MockKafka, folder: Path) -> Make:
    return lambda name, options: Frame(frame(spark), name=name, **options)


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "columns", "count"),
    [(kafka_source, COLUMNS, 4), (parquet_source, TYPED.rpartition(",")[0], 3), (frame_source, TYPED, 3)],
    ids=["kafka", "parquet", "frame"],
)
def test_a_program_writes_the_same_rows_from_a_source_and_from_its_letters_put_back(
    connected: SparkSession, kafka: MockKafka, tmp_path: Path, kind: Callable[..., Make], columns: str, count: int
) -> None:
    mended, dead = tmp_path / "mended", tmp_path / "dead" / "letters.jsonl"
    options: dict[str, Any] = {"dead_letters": dead, "retry": Retry(0), "max_dead_share": 1.0}
    source = kind(connected, kafka, tmp_path)

    @operator(columns)
    def checked(row: Row) -> Any:
        if not mended.exists():
            raise ValueError("not yet")
        yield tuple(row)

    def rows_written(source: Source, acked: int) -> list[str]:
        out = f"{tmp_path}/out-{source.options.name}"

        @sink
        def save(rows: DataFrame) -> None:
            rows.write.mode("append").parquet(out)

        assert source.run(connected, lambda batch: save(batch.df.transform(checked))).acked == acked
        return sorted(map(repr, connected.read.schema(columns).parquet(out).collect()))

    rows_written(source("orders", options), 0)
    assert put_back(dead, tmp_path / "again.jsonl", lambda letter: True) == Moved(count, 0)
    mended.touch()
    letters = PutBack(tmp_path / "again.jsonl", name="again", checkpoint=tmp_path / "again.ckpt", **options)
    assert rows_written(letters, count) == rows_written(source("whole", options), count)
