"""A driver program that runs one batch on a cluster with speculation, and prints JSON.

``python speculation.py SERVER FOLDER``.

Task 1 of the writing stage reports, then waits until its speculative copy has reported, too.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row

from acker_client.spark import operator, sink
from acker_client.spark.driver.session import local_session, prepare
from tests.spark import faults
from tests.spark.cluster import start_cluster
from tests.spark.live_batch import LiveBatch, texts, words_of

EAGER = {
    "spark.executor.memory": "512m",
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.multiplier": "1.01",
    "spark.speculation.minTaskRuntime": "50ms",
}


@operator("number long, word string")
def words(row: Row) -> Iterator[tuple[int, str]]:
    for word in row.text.split():
        yield row.number, word


def both_at_the_end(folder: Path) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return a step that passes rows on. At the end, the first attempt of task 1 waits for the second to get there."""

    def hand_on(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches
        if faults.task().partitionId() == 1 and not faults.first_time(folder, "original"):
            faults.first_time(folder, "copy")
        elif faults.task().partitionId() == 1:
            faults.await_file(folder / "copy")

    return hand_on


def main(server: str, folder: Path) -> None:
    prepare()
    master = start_cluster(folder)
    spark = local_session("speculation", conf={**EAGER, "spark.master": master, "spark.acker.servers": server})
    spark.sparkContext.setLogLevel("OFF")
    wait = both_at_the_end(folder)

    @sink
    def save(rows: DataFrame) -> None:
        rows.mapInArrow(wait, rows.schema).write.parquet(str(folder / "out"))

    # Spark compares the time of a task with the median of all tasks, so there must be many tasks besides the one that
    # waits.
    with LiveBatch(spark, server, texts(20), slices=10) as batch:
        save(batch.df.transform(words))
        verdicts = batch.settle()
    found = sorted((row.number, row.word) for row in spark.read.parquet(str(folder / "out")).collect())
    answer = {
        "verdicts": sorted({verdict.name for verdict in verdicts.values()}),
        "records": len(verdicts),
        "is_exact": found == sorted(words_of(batch.texts)),
        "copied": (folder / "copy").exists(),
    }
    print(json.dumps(answer))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
