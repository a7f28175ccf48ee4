"""A driver program: a ``tracked`` query over Spark's own Kafka connector, which meets several faults; prints JSON.

``python stream.py SERVER BROKER TOPIC ROWS FOLDER JARS``. The topic has the numbers below ROWS as text, number k in
partition k % 4. Each of the four micro-batches reads one quarter of the numbers, in order. Some numbers are poison. The
first write fails. In the second micro-batch a Python worker is killed. In the third the query is stopped, and then
started again.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.query import StreamingQuery

from acker_client.source import Batch, Retry, tracked
from acker_client.spark import operator, sink
from acker_client.spark.driver.session import local_session

QUICK = Retry(max_retries=1, initial_s=0.01, cap_s=0.01)
MICRO_BATCHES = 4
# One number in so many is poison.
POISON = 2_500
SEEN = ["count(id)", "count(distinct id)", f"count_if(id % {POISON} = 13)", "min(id)", "max(id)", "sum(twice)"]


def main(server: str, broker: str, topic: str, rows: int, folder: Path, jars: str) -> None:
    spark = local_session("kafka", conf={"spark.jars": jars, "spark.acker.servers": server})
    spark.sparkContext.setLogLevel("OFF")
    a_batch = rows // MICRO_BATCHES
    killed, stopping, fails = folder / "killed", folder / "stopping", ["disk full"]

    @operator("id long, twice long")
    def doubled(row: Row) -> Any:
        number = int(row.value)
        if number == a_batch + 7 and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if number == 2 * a_batch + 7 and not stopping.exists():
            stopping.touch()
            # Block until Spark ends this worker with the query.
            threading.Event().wait()
        if number % POISON == 13:
            raise ValueError("poison")
        yield number, 2 * number

    @sink
    def save(frame: DataFrame) -> None:
        if fails:
            raise OSError(fails.pop())
        frame.write.mode("append").parquet(str(folder / "out"))

    batches, commits = Counter[str](), list[Any]()

    def process(batch: Batch) -> None:
        batches[f"{batch.records}, {batch.replays} of them again"] += 1
        save(batch.df.transform(doubled))

    job = tracked(process, name="numbers", key=["partition", "offset"], dead_letters=folder / "dead", retry=QUICK)

    def function(df: DataFrame, batch_id: int) -> None:
        job(df, batch_id)
        (written,) = spark.read.parquet(str(folder / "out")).selectExpr(*SEEN).collect()
        keys = [json.loads(line)["key"] for line in (folder / "dead").open()]
        commits.append(
            {"written": tuple(written), "dead": sorted(4 * each["offset"] + each["partition"] for each in keys)}
        )

    def start() -> StreamingQuery:
        options = {"kafka.bootstrap.servers": broker, "subscribe": topic, "maxOffsetsPerTrigger": str(a_batch)}
        read = spark.readStream.format("kafka").options(**options, startingOffsets="earliest").load()
        writer = read.writeStream.foreachBatch(function).trigger(availableNow=True)
        return writer.option("checkpointLocation", str(folder / "ckpt")).start()

    query = start()
    while query.isActive and not stopping.exists():
        threading.Event().wait(0.05)
    query.stop()
    committed = len([path for path in (folder / "ckpt" / "commits").glob("*") if path.name.isdigit()])
    again = start()
    again.awaitTermination()
    answer = {
        "committed_when_stopped": committed,
        "stopped": str(query.exception()),
        "killed": killed.exists(),
        "batches": batches,
        "commits": commits,
        "rows_after_restart": sum(progress.numInputRows for progress in again.recentProgress),
    }
    print(json.dumps(answer))
    spark.stop()


if __name__ == "__main__":
    server, broker, topic, rows, folder, jars = sys.argv[1:]
    main(server, broker, topic, int(rows), Path(folder), jars)
