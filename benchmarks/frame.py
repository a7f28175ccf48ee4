"""Frame: runs a Structured Streaming query tracked and untracked, by turns in one session, with the same work.

The query reads JSON files, a file a micro-batch, splits each line into words in Python (row by row, and with Arrow),
and appends Parquet. The untracked query has a foreachBatch as a user writes it without the acker. In the tracked query,
``tracked`` wraps the same foreachBatch: rows are numbered, persisted, digested, and acked at a server in a process of
its own. A round runs a whole query over all files, from its start to its end. ``parts`` measures the steps that
tracking adds, over one such file.

    python -m benchmarks.frame [--quick] [--rows N] [--rounds N]

Prints one JSON object: medians in seconds, rows per second, and the ratio that the target is about (the median over the
rounds).
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Row, SparkSession

from acker_client.source import Batch, tracked
from acker_client.spark import arrow_operator, operator, sink
from acker_client.spark.driver.persisted import Persisted
from acker_client.spark.driver.session import local_session
from benchmarks import machine
from benchmarks.spark import serving
from benchmarks.turns import medians, medians_of, speed_over, times_of

SCHEMA = "id long, price double, text string"
FILES = 4
PARTS = 4
KINDS = ("arrow", "rows")

Job = Callable[[], None]


def split_batch(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Any]:
    words = pc.split_pattern(batch.column("text"), " ")
    return pa.RecordBatch.from_arrays([words.flatten()], names=["word"]), pc.list_parent_indices(words)


@arrow_operator("word string")
def arrow_words(batch: pa.RecordBatch) -> Any:
    return split_batch(batch)


@operator("word string")
def row_words(row: Row) -> Any:
    return row.text.split(" ")


@sink
def save(rows: DataFrame, path: str) -> None:
    rows.write.mode("append").parquet(path)


def untracked_arrow(df: DataFrame) -> DataFrame:
    def split(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield split_batch(batch)[0]

    return df.mapInArrow(split, "word string")


def untracked_rows(df: DataFrame) -> DataFrame:
    def split(frames: Iterator[Any]) -> Iterator[Any]:
        import pandas

        for frame in frames:
            yield pandas.DataFrame({"word": [word for text in frame["text"] for word in text.split(" ")]})

    return df.mapInPandas(split, "word string")


class Queries:
    """A streaming query over ``stream``, run repeatedly from its beginning to its end. ``key``: the columns that
    identify a row. Rows also have a column ``text``."""

    def __init__(self, folder: Path, stream: Callable[[], DataFrame], key: str | list[str]) -> None:
        self.key = key
        self._folder = folder
        self._stream = stream
        self._runs = 0

    def run(self, function: Callable[[DataFrame, int], None]) -> None:
        self._runs += 1
        writer = self._stream().writeStream.foreachBatch(function).trigger(availableNow=True)
        writer.option("checkpointLocation", str(self._folder / f"ckpt{self._runs}")).start().awaitTermination()

    @property
    def out(self) -> str:
        return str(self._folder / f"out{self._runs}")


class JsonFiles:
    """``rows`` lines of JSON in several files. A micro-batch takes some of the files."""

    def __init__(self, spark: SparkSession, folder: Path, rows: int) -> None:
        self._spark = spark
        self._folder = str(folder)
        for number in range(FILES):
            self._write(number, rows // FILES)

    def stream(self) -> DataFrame:
        return self._spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", PARTS).json(self._folder)

    def read(self) -> DataFrame:
        return self._spark.read.schema(SCHEMA).json(self._folder)

    def _write(self, number: int, rows: int) -> None:
        text = "concat_ws(' ', transform(sequence(1, 10), k -> concat('word', (id * 31 + k * k) % 5000)))"
        df = self._spark.range(number * rows, (number + 1) * rows, 1, PARTS)
        df.selectExpr("id", "id / 7 as price", f"{text} as text").write.mode("append").json(self._folder)


def jobs(queries: Queries, kind: str) -> dict[str, Job]:
    split = arrow_words if kind == "arrow" else row_words
    by_hand = untracked_arrow if kind == "arrow" else untracked_rows

    def process(batch: Batch) -> None:
        save(batch.df.transform(split), queries.out)

    def plain(df: DataFrame, _: int) -> None:
        by_hand(df).write.mode("append").parquet(queries.out)

    return {
        "tracked": lambda: queries.run(tracked(process, name="bench", key=queries.key)),
        "untracked": lambda: queries.run(plain),
    }


def parts(files: JsonFiles) -> dict[str, Job]:
    """Return the steps that tracking adds (keep, count and digest the rows) as jobs, and reading for comparison."""

    def count() -> None:
        persisted = Persisted(files.read())
        persisted.persist()
        persisted.unpersist()

    def keep() -> None:
        df = files.read().persist()
        df.write.format("noop").mode("append").save()
        df.unpersist()

    return {
        "read": lambda: files.read().write.format("noop").mode("append").save(),
        "read_and_keep": keep,
        "count": count,
    }


def measure(queries: Queries, kind: str, rows: int, rounds: int) -> dict[str, float]:
    times = times_of(jobs(queries, kind), rounds)
    seconds = medians(times)
    return {
        "tracked_over_untracked": speed_over(times, "tracked", "untracked"),
        "rows_per_s": rows / seconds["tracked"],
        **{f"{name}_s": taken for name, taken in seconds.items()},
    }


def run(rows: int, rounds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        spark = local_session("benchmark", conf={"spark.driver.memory": "3g"})
        spark.sparkContext.setLogLevel("ERROR")
        with serving(Path(folder)) as address:
            spark.conf.set("spark.acker.servers", address)
            files = JsonFiles(spark, Path(folder) / "in", rows)
            queries = Queries(Path(folder), files.stream, "id")
            found: dict[str, Any] = {kind: measure(queries, kind, rows, rounds) for kind in KINDS}
            found["parts"] = medians_of(parts(files), rounds)
        spark.stop()
    return found | {"records": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small part of the work: to try it, not for figures")
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    rows, rounds = (40_000, 1) if options.quick else (options.rows, options.rounds)
    print(json.dumps({"machine": machine.describe(), "frame": run(rows, rounds)}, indent=1))


if __name__ == "__main__":
    main()
