"""A driver that names no server, in a process of its own: ``python -m tests.spark.embedded_driver FOLDER KIND [HOW]``.

Prints lines of JSON about its server and its records, and ends when its standard input does.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from acker_client.source import Batch, Files
from acker_client.spark import Collector, sink
from acker_client.spark.driver import embedded
from acker_client.spark.driver.session import local_session, prepare, settings_of
from acker_testing.child import Child
from tests.service.caller import eventually, is_running
from tests.spark.cluster import start_cluster

TOKEN = "a-token-that-no-file-may-show"


def tell(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


def about_server() -> dict[str, Any]:
    assert embedded._server is not None
    return {"server": embedded._server.pid, "directory": str(embedded._server._directory)}


def collect(rows: Iterable[Any]) -> None:
    """Ack rows in a task, which asks for its settings itself."""
    with Collector("post") as out:
        for row in rows:
            out.ack(row)


def ack_in_tasks(batch: Batch) -> None:
    batch.df.foreachPartition(collect)


def read(folder: Path, spark: SparkSession, process: Callable[[Batch], object] = ack_in_tasks) -> Any:
    source = Files(folder / "in.txt", name="lines", batch_records=20, checkpoint=folder / "checkpoint")
    return source.run(spark, process)


def hang(folder: Path) -> None:
    spark = local_session("embedded")
    source = Files(folder / "in.txt", name="lines", batch_records=20, checkpoint=folder / "checkpoint")

    @sink
    def save(rows: DataFrame, batch: Batch) -> None:
        write_rows(folder, rows)
        if batch.number == 3:
            tell(**about_server(), acked=source.summary().acked)
            sys.stdin.read()

    source.run(spark, lambda batch: save(batch.df, batch))


def go_on(folder: Path) -> None:
    spark = local_session("embedded")

    @sink
    def save(rows: DataFrame) -> None:
        write_rows(folder, rows)

    summary = read(folder, spark, lambda batch: save(batch.df))
    tell(**about_server(), records=summary.records, acked=summary.acked, open=summary.open)


def write_rows(folder: Path, rows: DataFrame) -> None:
    (folder / "out").mkdir(exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=folder / "out", delete=False) as file:
        json.dump([row.value for row in rows.collect()], file)


def await_end(pid: int) -> None:
    eventually(lambda: not is_running(pid), within_s=60.0)


def sessions(folder: Path) -> None:
    for _ in range(2):
        spark = local_session("embedded")
        settings_of(spark)
        found = about_server()
        spark.stop()
        await_end(found["server"])
        tell(**found, has_ended=True)


def event_log(folder: Path, how: str) -> None:
    (folder / "events").mkdir()
    spark = local_session(
        "embedded",
        conf={
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": (folder / "events").as_uri(),
            "spark.eventLog.compress": "false",
        },
    )
    if how != "own":
        (folder / "server").mkdir()
        address = Child(folder / "server").await_ready()
        if how == "variable":
            os.environ |= {"ACKER_SERVERS": address, "ACKER_TOKEN": TOKEN}
        else:
            spark.conf.set("spark.acker.servers", address)
            spark.conf.set("spark.acker.token", TOKEN)
    settings = settings_of(spark)
    # A session that is made later has its own copy of the context's settings.
    if how != "session":
        spark = spark.newSession()
    summary = read(folder, spark)
    spark.stop()
    tell(token=settings.token, acked=summary.acked)


def cluster(folder: Path) -> None:
    prepare()
    spark = local_session("embedded", conf={"spark.executor.memory": "512m", "spark.master": start_cluster(folder)})
    spark.sparkContext.setLogLevel("OFF")
    tls = settings_of(spark).tls
    tell(acked=read(folder, spark).acked, tls=tls is not None)


if __name__ == "__main__":
    place, kind, *words = sys.argv[1:]
    kinds: dict[str, Callable[..., None]] = {
        "hang": hang,
        "go on": go_on,
        "sessions": sessions,
        "event log": event_log,
        "cluster": cluster,
    }
    kinds[kind](Path(place), *words)
