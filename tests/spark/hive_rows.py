"""A driver program in which a sink inserts into a partition of a Hive table.

``python hive_rows.py SERVER FOLDER`` prints JSON: for each statement, its verdicts and the words then in the table.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from acker_client.spark import operator, sink
from acker_client.spark.driver.session import local_session, prepare
from tests.spark.live_batch import LiveBatch

STATEMENTS = (
    "insert overwrite parted partition (day = 1)",
    "insert overwrite parted partition (day = 1) if not exists",
)


@operator("word string")
def split(row: Any) -> list[str]:
    return list(row.text.split())


@sink
def save(rows: DataFrame, statement: str) -> None:
    rows.createOrReplaceTempView("v")
    rows.sparkSession.sql(f"{statement} select word from v")


def words_after(spark: SparkSession, server: str, statement: str, text: str) -> dict[str, Any]:
    with LiveBatch(spark, server, [text] * 4) as batch:
        save(batch.df.transform(split), statement)
        verdicts = batch.settle().values()
    words = [row.word for row in spark.table("parted").select("word").distinct().collect()]
    return {"verdicts": sorted({verdict.name for verdict in verdicts}), "words": words}


def main(server: str, folder: Path) -> None:
    prepare()
    metastore = f"jdbc:derby:;databaseName={folder}/metastore;create=true"
    conf = {
        "spark.acker.servers": server,
        "spark.hadoop.javax.jdo.option.ConnectionURL": metastore,
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.hive.convertInsertingPartitionedTable": "false",
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
    }
    spark = local_session("hive-rows", conf=conf)
    spark.sparkContext.setLogLevel("OFF")
    spark.sql("create table parted (word string) partitioned by (day int) stored as textfile")
    texts = zip(STATEMENTS, ("first", "second"), strict=True)
    print(json.dumps([words_after(spark, server, statement, text) for statement, text in texts]))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
