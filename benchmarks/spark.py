"""Compares tracked and untracked Spark jobs.

Both do the same work and take turns in one session. The server runs on the same machine.

The words job: lines of text files are read in Python, split into words, written as Parquet; once with Arrow operators
and once row by row. The variants are: tracked as one fused chain; tracked with hops between the steps; untracked, as a
user writes it without the acker (one call reads, one splits); untracked, with both calls fused by hand. The trivial
job: one bigint, source -> operator -> sink, nothing written. A tracked run includes opening and settling its batch, and
every record has to be ACKED.

    python -m benchmarks.spark [--quick] [--rounds N]

Prints one JSON object: medians, in seconds and records per second, and the speed of the tracked variants relative to
the untracked ones.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Row, SparkSession

from acker_client import AckerClient, Settings, Settlement, Verdict
from acker_client.cluster.scope import BatchScope
from acker_client.spark import arrow_operator, operator, sink
from acker_client.spark.driver.session import local_session
from acker_client.spark.operators.read import Records, Slice, frame_of
from benchmarks import machine
from benchmarks.turns import medians_of

PARTS = 4
BATCH_ROWS = 10_000
START_S = 60.0

Job = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Size:
    """The amount of work: lines of ten words in the words job, numbers in the trivial job, and measured runs of each
    job after its warm-up."""

    lines: int = 200_000
    numbers: int = 4_000_000
    rounds: int = 5
    # The JVM compiles what it runs often: the fifth run of a job is a quarter quicker than its first.
    warm_up: int = 4


@dataclass(frozen=True, slots=True)
class FileLines:
    """The lines of one file as a slice of a batch."""

    path: str
    start: int
    stop: int

    def read(self) -> Iterator[Records]:
        number = self.start
        for batch in lines_of(self.path):
            numbers = np.arange(number, number + batch.num_rows, dtype=np.uint64)
            number += batch.num_rows
            yield Records(numbers, batch)


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers of a range as a slice of a batch."""

    start: int
    stop: int

    def read(self) -> Iterator[Records]:
        for batch in numbers_of(self.start, self.stop):
            yield Records(batch.column(0).to_numpy().view(np.uint64), batch)


def lines_of(path: str) -> Iterator[pa.RecordBatch]:
    lines = pa.array(Path(path).read_text().splitlines())
    for at in range(0, len(lines), BATCH_ROWS):
        yield pa.RecordBatch.from_arrays([lines[at : at + BATCH_ROWS]], names=["text"])


def numbers_of(start: int, stop: int) -> Iterator[pa.RecordBatch]:
    for at in range(start, stop, BATCH_ROWS):
        yield pa.RecordBatch.from_arrays([pa.array(np.arange(at, min(at + BATCH_ROWS, stop)))], names=["number"])


def split_batch(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Any]:
    words = pc.split_pattern(batch.column("text"), " ")
    return pa.RecordBatch.from_arrays([words.flatten()], names=["word"]), pc.list_parent_indices(words)


def double(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pc.multiply(batch.column("number"), 2)], names=["twice"])


@arrow_operator("word string")
def arrow_words(batch: pa.RecordBatch) -> Any:
    return split_batch(batch)


@operator("word string")
def row_words(row: Row) -> Any:
    return row.text.split(" ")


@arrow_operator("twice long")
def doubled(batch: pa.RecordBatch) -> Any:
    return double(batch)


@sink
def save(rows: DataFrame, path: str) -> None:
    rows.write.mode("overwrite").parquet(path)


@sink
def drop(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()


class Bench:
    """One session, one server, one source. Every tracked job is a batch of the source."""

    def __init__(self, spark: SparkSession, address: str, folder: Path, size: Size) -> None:
        self.spark = spark
        self.folder = folder
        self.size = size
        self.settings = Settings(servers=(address,))
        self.client = AckerClient(self.settings)
        self.session = self.client.open_source("benchmark", lease_s=600.0)
        self._batch = 0
        self._first = 1 << 40
        self.lines = list(_write_lines(folder, size.lines))
        bounds = np.linspace(0, size.numbers, PARTS + 1).astype(int).tolist()
        self.numbers = [Numbers(start, stop) for start, stop in pairwise(bounds)]

    def tracked(self, slices: list[Any], schema: str, run: Callable[[DataFrame], None]) -> None:
        """Open a batch, run the job on it and settle it. Raises RuntimeError unless every record is ACKED."""
        records = slices[-1].stop
        self._batch += 1
        scope = BatchScope(self.session, self._batch, self._first)
        self._first += records
        pin = self.client.open_batch(scope.number, scope.first, records)
        settings = replace(self.settings, pins=(pin,))
        parts: list[Slice] = slices
        run(frame_of(self.spark, name="bench", scope=scope, schema=schema, slices=parts, settings=settings).df)
        self.client.settle(scope.number, Settlement.DONE)
        self._confirm(scope.number, records)

    def _confirm(self, number: int, records: int) -> None:
        acked, is_over = 0, False
        while not is_over:
            watched = self.client.watch(1.0)
            acked += int(np.count_nonzero(watched.outcomes.verdicts == Verdict.ACKED))
            is_over = number in watched.settled
        if acked != records:
            raise RuntimeError(f"{acked} of {records} records were acked")

    def read_lines(self) -> DataFrame:
        paths = [part.path for part in self.lines]

        def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for index in batch.column(0).to_pylist():
                    yield from lines_of(paths[index])

        return self._parts().mapInArrow(read, "text string")

    def read_numbers(self) -> DataFrame:
        parts = self.numbers

        def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for index in batch.column(0).to_pylist():
                    yield from numbers_of(parts[index].start, parts[index].stop)

        return self._parts().mapInArrow(read, "number long")

    def read_words(self, split: Callable[[pa.RecordBatch], pa.RecordBatch]) -> DataFrame:
        paths = [part.path for part in self.lines]

        def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for index in batch.column(0).to_pylist():
                    yield from map(split, lines_of(paths[index]))

        return self._parts().mapInArrow(read, "word string")

    def out(self) -> str:
        return str(self.folder / "out")

    def _parts(self) -> DataFrame:
        return self.spark.range(0, PARTS, 1, PARTS)


def words_jobs(bench: Bench, kind: str) -> dict[str, Job]:
    """Return the variants of the words job by name. ``kind``: "arrow" or "rows"."""
    split = arrow_words if kind == "arrow" else row_words
    tracked = partial(bench.tracked, bench.lines, "text string")
    jobs: dict[str, Job] = {
        "fused": lambda: tracked(lambda df: save(df.transform(split), bench.out())),
        "hops": lambda: tracked(lambda df: save(df.alias("rows").transform(split).alias("rows"), bench.out())),
    }
    untracked = _untracked_arrow(bench) if kind == "arrow" else _untracked_rows(bench)
    return jobs | {name: partial(_save, frame, bench.out()) for name, frame in untracked.items()}


def _untracked_arrow(bench: Bench) -> dict[str, Callable[[], DataFrame]]:
    def split(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield split_batch(batch)[0]

    return {
        "untracked": lambda: bench.read_lines().mapInArrow(split, "word string"),
        "hand_fused": lambda: bench.read_words(lambda batch: split_batch(batch)[0]),
    }


def _untracked_rows(bench: Bench) -> dict[str, Callable[[], DataFrame]]:
    def split_pandas(frames: Iterator[Any]) -> Iterator[Any]:
        import pandas

        for frame in frames:
            yield pandas.DataFrame({"word": [word for text in frame["text"] for word in text.split(" ")]})

    def split_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
        words = [word for text in batch.column("text").to_pylist() for word in text.split(" ")]
        return pa.RecordBatch.from_arrays([pa.array(words, pa.string())], names=["word"])

    def rdd() -> DataFrame:
        words = bench.read_lines().rdd.flatMap(lambda row: [(word,) for word in row.text.split(" ")])
        return bench.spark.createDataFrame(words, "word string")

    return {
        "untracked_pandas": lambda: bench.read_lines().mapInPandas(split_pandas, "word string"),
        "untracked_rdd": rdd,
        "hand_fused": lambda: bench.read_words(split_rows),
    }


def trivial_jobs(bench: Bench) -> dict[str, Job]:
    def twice(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from map(double, batches)

    tracked = partial(bench.tracked, bench.numbers, "number long")
    return {
        "fused": lambda: tracked(lambda df: drop(df.transform(doubled))),
        "hops": lambda: tracked(lambda df: drop(df.alias("rows").transform(doubled).alias("rows"))),
        "untracked": lambda: _drop(bench.read_numbers().mapInArrow(twice, "twice long")),
    }


def measure(jobs: dict[str, Job], size: Size) -> dict[str, float]:
    """Median seconds of each job."""
    return medians_of(jobs, size.rounds, size.warm_up)


def words_figures(seconds: dict[str, float], lines: int) -> dict[str, float]:
    untracked = min(taken for name, taken in seconds.items() if name.startswith("untracked"))
    return {
        "fused_over_untracked": untracked / seconds["fused"],
        "hops_over_untracked": untracked / seconds["hops"],
        "fused_over_hand_fused": seconds["hand_fused"] / seconds["fused"],
        "lines_per_s": lines / seconds["fused"],
        **{f"{name}_s": taken for name, taken in seconds.items()},
    }


def trivial_figures(seconds: dict[str, float], numbers: int) -> dict[str, float]:
    return {
        "trees_per_s": numbers / seconds["fused"],
        "hops_trees_per_s": numbers / seconds["hops"],
        "untracked_rows_per_s": numbers / seconds["untracked"],
        "fused_over_untracked": seconds["untracked"] / seconds["fused"],
        **{f"{name}_s": taken for name, taken in seconds.items()},
    }


def run(size: Size) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        spark = local_session("benchmark", conf={"spark.driver.memory": "2g"})
        spark.sparkContext.setLogLevel("ERROR")
        with serving(Path(folder)) as address:
            bench = Bench(spark, address, Path(folder), size)
            words = {
                kind: words_figures(measure(words_jobs(bench, kind), size), size.lines) for kind in ("arrow", "rows")
            }
            trivial = trivial_figures(measure(trivial_jobs(bench), size), size.numbers)
            bench.client.close()
        spark.stop()
    return {"words": words, "trivial": trivial, "size": {"lines": size.lines, "numbers": size.numbers}}


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Run a server in a process of its own, on the same cores, and yield its address."""
    ready = folder / "ready.json"
    command = [sys.executable, "-m", "acker_service", "serve", "--port=0", "--http-port=0", "--ready-file", str(ready)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + START_S
        while not ready.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the server did not start")
            time.sleep(0.02)
        yield str(json.loads(ready.read_text())["address"])
    finally:
        process.terminate()
        process.wait(START_S)


def _write_lines(folder: Path, lines: int) -> Iterator[FileLines]:
    random = np.random.default_rng(1)
    vocabulary = np.array(
        [f"{'abcdefghijklmnopqrstuvwxyz'[number % 26] * (number % 7 + 1)}{number}" for number in range(5000)]
    )
    bounds = np.linspace(0, lines, PARTS + 1).astype(int).tolist()
    for start, stop in pairwise(bounds):
        path = folder / f"lines-{start}.txt"
        words = vocabulary[random.integers(0, len(vocabulary), (stop - start, 10))]
        path.write_text("".join(" ".join(line) + "\n" for line in words))
        yield FileLines(str(path), start, stop)


def _save(frame: Callable[[], DataFrame], path: str) -> None:
    frame().write.mode("overwrite").parquet(path)


def _drop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="do a small part of the work, as a trial; the figures mean nothing"
    )
    parser.add_argument("--lines", type=int, default=Size().lines, help="number of lines in the words job")
    parser.add_argument("--numbers", type=int, default=Size().numbers, help="number of rows in the trivial job")
    parser.add_argument("--rounds", type=int, default=Size().rounds, help="measured runs of each job")
    options = parser.parse_args()
    size = Size(40_000, 400_000, 1, 1) if options.quick else Size(options.lines, options.numbers, options.rounds)
    print(json.dumps({"machine": machine.describe(), "spark": run(size)}, indent=1))


if __name__ == "__main__":
    main()
