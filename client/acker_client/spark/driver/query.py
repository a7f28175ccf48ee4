"""Query: the streaming query in whose foreachBatch a thread is.

Decides how one knows that it was stopped, and where a clean-up runs that a stop must not interrupt. Spark itself does
not say: a thread that waits in Python sees nothing of a stop, one within a job gets an exception that a program may
swallow, and whatever returns then commits the micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from acker_client.spark.driver.session import CALL_SITE

QUERY_ID = "sql.streaming.queryId"


class Query:
    """The query of this thread; to be asked from it alone."""

    def __init__(self, df: DataFrame) -> None:
        """``df``: of the micro-batch. Outside of a query it never is stopped."""
        spark = df.sparkSession
        self._context = spark.sparkContext
        self._id = self._context.getLocalProperty(QUERY_ID)
        self._call_site = {key: self._context.getLocalProperty(key) for key in CALL_SITE}
        self._jvm: Any = spark._jvm
        self._query = None if self._id is None else _found(self._id, spark)

    @property
    def is_stopped(self) -> bool:
        """Whether somebody has stopped it."""
        if self._query is not None:
            return not self._query.isActive()
        return self._id is not None and bool(self._jvm.Thread.currentThread().isInterrupted())

    def restore(self) -> None:
        """Give the thread back what Spark calls its executions; planning a batch has taken it away."""
        for key, text in self._call_site.items():
            self._context.setLocalProperty(key, text)  # type: ignore[arg-type]  # None removes it

    def __str__(self) -> str:
        name = None if self._query is None else self._query.name()
        return f"query {name or self._id}"


def run_uninterrupted(step: Callable[[], object]) -> None:
    """Run ``step``, which calls Spark, on a thread of its own, and wait for its end.

    A stop of a streaming query interrupts the query's thread. Spark does not take up again what an interrupted
    ``unpersist`` has left: it has forgotten the frame, and keeps its rows.
    """
    with ThreadPoolExecutor(1, "acker-clean-up") as apart:
        apart.submit(step).result()


def _found(query_id: str, spark: SparkSession) -> Any:
    # A session lists the queries that it began, and which one that was nobody can say: the micro-batch has one of its
    # own, and the thread's active one is whichever made a frame last.
    session: Any = spark._jsparkSession
    active: Any = session.sharedState().activeStreamingQueries()
    return next((query for query in active.values() if query is not None and str(query.id()) == query_id), None)
