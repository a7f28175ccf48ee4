"""First: runs the first program of the README beside the programs that a user would write without the acker.

All read JSON lines of about 150 bytes from 8 files, drop empty lines, make three rows of each other line, and write
Parquet. They take turns in one session. Tracked: ``where`` and a row operator, with batches of 500,000 and of 125,000
records, and with two batches of 125,000 at once that write into folders of their own. The acker server is a process of
its own on the same cores. Untracked: ``mapInPandas``, ``rdd.flatMap``, and Spark's own functions. All outputs are
compared row by row before anything is measured. Reading alone is measured, too: tracked, and by Spark's text reader.

    python -m benchmarks.first [--quick] [--lines N] [--rounds N] [--cores N ...]

With one core, Spark, its workers and the server share it. Prints one JSON object: the median seconds of each program,
and the speed of the tracked ones relative to the untracked ones (medians over the rounds).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Row, SparkSession

from acker_client.source import Batch, Files
from acker_client.spark import operator, sink, where, write_parquet
from acker_client.spark.driver.session import local_session
from benchmarks import machine
from benchmarks.spark import Job, serving
from benchmarks.turns import medians, speed_over, times_of

FILES = 8
ITEMS = 3
SCHEMA = "id long, sku string, qty int"
# The names of tracked programs, each with the records in a batch and the batches at once.
BATCHES = {"tracked_500k": (500_000, 1), "tracked_125k": (125_000, 1), "tracked_125k_at_once": (125_000, 2)}
UNTRACKED = ("pandas", "rdd", "spark_sql")
READERS = ("tracked_read", "text_read")


@operator(SCHEMA)
def items(row: Row) -> Iterator[tuple[int, str, int]]:
    order = json.loads(row.value)
    for item in order["items"]:
        yield order["id"], item["sku"], item["qty"]


@sink
def save(rows: DataFrame, path: str) -> None:
    rows.write.mode("append").parquet(path)


@sink
def save_apart(rows: DataFrame, path: str, batch: Batch) -> None:
    write_parquet(rows, path, batch)


@sink
def drop(rows: DataFrame) -> None:
    rows.write.format("noop").mode("append").save()


def pandas_items(frames: Iterator[Any]) -> Iterator[Any]:
    import pandas

    for frame in frames:
        orders = map(json.loads, frame["value"])
        rows = [(order["id"], item["sku"], item["qty"]) for order in orders for item in order["items"]]
        yield pandas.DataFrame(rows, columns=["id", "sku", "qty"])


def row_items(row: Row) -> list[tuple[int, str, int]]:
    order = json.loads(row.value)
    return [(order["id"], item["sku"], item["qty"]) for item in order["items"]]


class Programs:
    """The programs, in one session with one input. Each run writes to a new folder."""

    def __init__(self, spark: SparkSession, folder: Path, lines: int) -> None:
        self.spark = spark
        self.lines = lines
        self._folder = folder
        self._runs = 0
        self._input = folder / "in"
        self._input.mkdir()
        bounds = np.linspace(0, lines, FILES + 1).astype(int).tolist()
        for number, (start, stop) in enumerate(pairwise(bounds)):
            (self._input / f"orders-{number}.jsonl").write_text("".join(map(_line, range(start, stop))))

    @property
    def out(self) -> str:
        return str(self._folder / f"out{self._runs}")

    def tracked(self, batch_records: int, concurrency: int) -> None:
        """Run the first program. Raises RuntimeError unless every record is ACKED."""

        def process(batch: Batch) -> None:
            rows = batch.df.transform(where("value <> ''")).transform(items)
            if concurrency == 1:
                save(rows, self.out)
            else:
                save_apart(rows, self.out, batch)

        self._run(batch_records, concurrency, process)

    def tracked_read(self) -> None:
        self._run(500_000, 1, lambda batch: drop(batch.df))

    def text_read(self) -> None:
        self.spark.read.text(str(self._input)).write.format("noop").mode("append").save()

    def _run(self, batch_records: int, concurrency: int, process: Callable[[Batch], None]) -> None:
        self._runs += 1
        checkpoint = str(self._folder / f"{self._runs}.ckpt")
        pattern = str(self._input / "*.jsonl")
        source = Files(
            pattern,
            name=f"orders{self._runs}",
            checkpoint=checkpoint,
            batch_records=batch_records,
            concurrency=concurrency,
        )
        summary = source.run(self.spark, process)
        if summary.acked != self.lines:
            raise RuntimeError(f"{summary.acked} of {self.lines} records were acked")

    def pandas(self) -> None:
        self._write(self._text().mapInPandas(pandas_items, SCHEMA))

    def rdd(self) -> None:
        self._write(self.spark.createDataFrame(self._text().rdd.flatMap(row_items), SCHEMA))

    def spark_sql(self) -> None:
        lines = self.spark.read.schema("id long, items array<struct<sku: string, qty: int>>").json(str(self._input))
        self._write(lines.selectExpr("id", "inline(items)"))

    def jobs(self) -> dict[str, Job]:
        tracked: dict[str, Job] = {name: partial(self.tracked, *sizes) for name, sizes in BATCHES.items()}
        return tracked | {name: getattr(self, name) for name in UNTRACKED}

    def readers(self) -> dict[str, Job]:
        return {name: getattr(self, name) for name in READERS}

    def check(self) -> None:
        """Run each program once. Raises RuntimeError unless all write the same rows."""
        outputs = {}
        for name, job in self.jobs().items():
            job()
            written = pq.read_table(self.out).select(["id", "sku", "qty"])
            outputs[name] = written.sort_by([("id", "ascending"), ("sku", "ascending")])
        expected = outputs["spark_sql"]
        wrong = [name for name, rows in outputs.items() if not rows.equals(expected)]
        if wrong or expected.num_rows != ITEMS * self.lines:
            raise RuntimeError(f"{', '.join(wrong) or 'every program'} wrote other rows than expected")

    def _text(self) -> DataFrame:
        return self.spark.read.text(str(self._input)).where("value <> ''")

    def _write(self, df: DataFrame) -> None:
        self._runs += 1
        df.write.mode("append").parquet(self.out)


def _line(number: int) -> str:
    items = [{"sku": f"sku-{item}-{number * 7919 % 99_991:08d}", "qty": (number + item) % 9} for item in range(ITEMS)]
    return json.dumps({"id": number, "items": items}) + "\n"


def figures(times: dict[str, list[float]], lines: int) -> dict[str, float]:
    seconds = medians(times)
    ratios = {f"{job}_over_{other}": speed_over(times, job, other) for job in BATCHES for other in UNTRACKED}
    for job in ("tracked_125k", "tracked_125k_at_once"):
        ratios[f"{job}_over_500k"] = speed_over(times, job, "tracked_500k")
    return ratios | {f"{name}_s": taken for name, taken in seconds.items()} | {"lines": lines}


def run(cores: int, lines: int, rounds: int) -> dict[str, float]:
    """Run the programs in this process, which has this many cores from now on."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as address:
        conf = {"spark.driver.memory": "2g", "spark.acker.servers": address}
        spark = local_session("benchmark", cores=cores, conf=conf)
        spark.sparkContext.setLogLevel("ERROR")
        programs = Programs(spark, Path(folder), lines)
        programs.check()
        found = figures(times_of(programs.jobs() | programs.readers(), rounds), lines)
        spark.stop()
    return found


def run_alone(cores: int, lines: int, rounds: int) -> Any:
    """Run the programs in a process of their own, because a JVM keeps its cores."""
    command = [sys.executable, "-m", "benchmarks.first", "--alone", f"--cores={cores}", f"--lines={lines}"]
    done = subprocess.run([*command, f"--rounds={rounds}"], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small part of the work: to try it, not for figures")
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    lines, rounds = (20_000, 1) if options.quick else (options.lines, options.rounds)
    if options.alone:
        print(json.dumps(run(options.cores[0], lines, rounds)))
        return
    found = {f"cores_{cores}": run_alone(cores, lines, rounds) for cores in options.cores}
    print(json.dumps({"machine": machine.describe(), "first": found}, indent=1))


if __name__ == "__main__":
    main()
