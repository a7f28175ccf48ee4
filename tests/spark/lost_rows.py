"""A driver program that kills every executor after a frame's rows were counted, and prints JSON.

``python lost_rows.py SERVER FOLDER drawn|same``: the frame's rows are random, or the same at each evaluation.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from acker_client.source import Batch, Frame, Retry, SourceError
from acker_client.spark import sink
from acker_client.spark.driver.session import local_session, prepare
from tests.spark.cluster import start_cluster

ROWS = 20_000


def drawn(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"id": [random.randrange(1 << 60) for _ in range(batch.num_rows)]})


def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def executors(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the pid of the executor: the parent of Spark's Python daemon, whose child runs this task."""
    for _ in batches:
        status = Path(f"/proc/{os.getppid()}/status").read_text()
        (parent,) = (line.split()[1] for line in status.splitlines() if line.startswith("PPid:"))
        yield pa.RecordBatch.from_pydict({"pid": [int(parent)]})


def kill_executors(spark: SparkSession) -> int:
    pids = {row.pid for row in spark.range(0, 400, 1, 8).mapInArrow(executors, "pid long").collect()}
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    return len(pids)


def main(server: str, folder: Path, kind: str) -> None:
    prepare()
    conf = {"spark.executor.memory": "512m", "spark.master": start_cluster(folder), "spark.acker.servers": server}
    spark = local_session("lost-rows", conf=conf)
    spark.sparkContext.setLogLevel("OFF")
    df = spark.range(0, ROWS, 1, 4).mapInArrow(drawn if kind == "drawn" else same, "id long")
    killed: list[int] = []

    @sink
    def save(rows: DataFrame) -> None:
        rows.write.mode("append").parquet(str(folder / "out"))

    def process(batch: Batch) -> None:
        if not killed:
            killed.append(kill_executors(spark))
        save(batch.df)

    source, error = Frame(df, name="rows", retry=Retry(initial_s=0.01, cap_s=0.01)), ""
    try:
        source.run(spark, process)
    except SourceError as raised:
        error = f"{type(raised).__name__}: {raised}"
    print(json.dumps({"killed": killed[0], "acked": source.summary().acked, "error": error}))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
