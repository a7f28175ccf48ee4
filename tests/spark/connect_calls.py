"""Calls every public function on Spark Connect, and prints the errors as JSON: {call: error}.

Runs in its own process, because PySpark cannot leave the Connect mode. No server runs, so a call that asks a server
first fails with the wrong error.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.errors import utils as errors
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from acker_client import Settings
from acker_client.source import Files
from acker_client.spark import (
    Collector,
    arrow_operator,
    branch,
    check,
    collector_settings,
    explode,
    functions,
    group,
    join,
    operator,
    pandas_operator,
    sink,
    where,
)
from acker_client.spark.driver.session import local_session, settings_of
from acker_testing import Pipeline

HERE = Settings(servers=("127.0.0.1:1",), budget_s=0.1)


def calls(spark: Any, folder: Path) -> dict[str, Callable[[], object]]:
    df = spark.range(3)
    (folder / "in.txt").write_text("one\n")
    files = Files(folder / "in.txt", name="lines")
    return {
        "operator": lambda: df.transform(operator("a string")(dict)),
        "operator of a schema that only Spark reads": lambda: df.transform(operator("a interval day")(dict)),
        "pandas_operator": lambda: df.transform(pandas_operator("a string")(dict)),
        "arrow_operator": lambda: df.transform(arrow_operator("a string")(dict)),
        "where": lambda: df.transform(where("id > 0")),
        "where of a column": lambda: df.transform(where(F.col("id") > 0)),
        "explode": lambda: df.transform(explode("id")),
        "branch": lambda: branch(df, 2),
        "join": lambda: df.transform(join(df, "id")),
        "group": lambda: df.transform(group("id", "a string")(dict)),
        "sink": lambda: sink(print)(df),
        "sink that caches": lambda: sink(print, cache=True)(df),
        "functions.ack": lambda: df.select(functions.ack()),
        "functions.fail": lambda: df.select(functions.fail("reason")),
        "Collector": lambda: Collector("words"),
        "collector_settings of a session": lambda: collector_settings(spark),
        "collector_settings of a frame": lambda: collector_settings(df),
        "settings_of": lambda: settings_of(spark),
        "check": lambda: check(spark),
        "check with settings": lambda: check(spark, HERE),
        "Files.run": lambda: files.run(spark, print),
        "Files.batches": lambda: next(files.batches(spark)),
        "Pipeline of a session": lambda: Pipeline(spark).__enter__(),
        "Pipeline": lambda: Pipeline().__enter__(),
        "local_session": lambda: local_session(),
    }


def said(call: Callable[[], object]) -> str:
    try:
        return f"returned {call()!r}"
    except Exception as error:  # noqa: BLE001  # what it raises is what is printed
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    session: Any = SparkSession.builder.remote("sc://127.0.0.1:1").getOrCreate()
    session.client.set_retry_policies([])
    # Otherwise PySpark asks the server, before the first column, whether to record where columns are created.
    errors._enable_debugging_cache = False  # type: ignore[assignment]
    with tempfile.TemporaryDirectory() as made:
        json.dump({name: said(call) for name, call in calls(session, Path(made)).items()}, sys.stdout)
    sys.stdout.flush()
