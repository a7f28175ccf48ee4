"""Query: the streaming query in whose foreachBatch a thread runs.

Decides how to find out that the query was stopped. Spark does not report a stop reliably: a thread that waits in Python
does not notice it, and a thread within a job gets an exception that the program may swallow. If the function then
returns, Spark commits the micro-batch. This module also runs clean-ups on a thread that a stop does not interrupt.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from acker_client.spark.driver.session import CALL_SITE

QUERY_ID = "sql.streaming.queryId"


class Query:
    """The streaming query of this thread. Use it only from this thread."""

    def __init__(self, df: DataFrame) -> None:
        """``df``: the frame of the micro-batch. Outside a query, :attr:`is_stopped` is always False."""
        spark = df.sparkSession
        self._context = spark.sparkContext
        self._id = self._context.getLocalProperty(QUERY_ID)
        self._call_site = {key: self._context.getLocalProperty(key) for key in CALL_SITE}
        self._jvm: Any = spark._jvm
        self._query = None if self._id is None else _found(self._id, spark)

    @property
    def is_stopped(self) -> bool:
        if self._query is not None:
            return not self._query.isActive()
        return self._id is not None and bool(self._jvm.Thread.currentThread().isInterrupted())

    def restore(self) -> None:
        """Restore the call site that Spark shows for this thread's executions. Planning a batch has removed it."""
        for key, text in self._call_site.items():
            self._context.setLocalProperty(key, text)  # type: ignore[arg-type]  # None removes it

    def __str__(self) -> str:
        name = None if self._query is None else self._query.name()
        return f"query {name or self._id}"


def run_uninterrupted(step: Callable[[], object]) -> None:
    """Run ``step`` on another thread, and wait until it ends. The step calls Spark.

    A stop of a streaming query interrupts the query's thread. After an interrupted ``unpersist`` Spark has forgotten
    the frame but still keeps its rows, and never removes them.
    """
    with ThreadPoolExecutor(1, "acker-clean-up") as apart:
        apart.submit(step).result()


def _found(query_id: str, spark: SparkSession) -> Any:
    # A session lists only the queries that it began, and that session is unknown here: the micro-batch has its own
    # session, and the thread's active session is the session that made the latest frame. So this reads the state that
    # all sessions share.
    session: Any = spark._jsparkSession
    active: Any = session.sharedState().activeStreamingQueries()
    return next((query for query in active.values() if query is not None and str(query.id()) == query_id), None)
