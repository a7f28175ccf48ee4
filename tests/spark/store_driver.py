"""A driver over objects in S3, as a process of its own: ``python -m tests.spark.store_driver SERVER BUCKET QUERY OUT``.

It follows the lines of all objects under ``in/``, writes them to ``OUT`` with Spark, and keeps its checkpoint and dead
letters in the bucket. It prints a line before and after each batch, and ends at SIGTERM.
"""

from __future__ import annotations

import signal
import sys
from typing import Any

from pyspark.sql import DataFrame, Row

from acker_client.source import Batch, Files, Retry
from acker_client.spark import operator, sink
from acker_client.spark.driver.session import local_session

POISON = "poison"


@operator("value string")
def checked(row: Row) -> Any:
    if row.value.startswith(POISON):
        raise ValueError(row.value)
    yield (row.value,)


def main(server: str, bucket: str, query: str, out: str) -> None:
    spark = local_session("objects", conf={"spark.acker.servers": server, "spark.sql.shuffle.partitions": "2"})
    spark.sparkContext.setLogLevel("OFF")

    @sink
    def save(rows: DataFrame) -> None:
        rows.write.mode("append").text(out)

    def process(batch: Batch) -> None:
        print("begun", batch.number, flush=True)
        save(batch.df.transform(checked))
        print("written", batch.number, flush=True)

    source = Files(
        f"s3://{bucket}/in/**/*{query}",
        name="objects",
        checkpoint=f"s3://{bucket}/state/objects.ckpt{query}",
        dead_letters=f"s3://{bucket}/dead{query}",
        retry=Retry(max_retries=1, initial_s=0.0),
        batch_records=40_000,
        max_dead_share=1.0,
        lease_s=5.0,
        follow_s=0.5,
    )
    signal.signal(signal.SIGTERM, lambda *_: source.stop())
    print(source.run(spark, process), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
