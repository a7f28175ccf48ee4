"""Frame: a user's own DataFrame as a run reads it: kept by Spark, and, in foreachBatch, only while its query is active.

Decides how a batch of its rows is planned, that a frame which was computed anew as another one is one clear error, and
that a stopped query ends the run at the next look. Reaches for Spark only when a run begins.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from acker_client.source.engine.environment import BatchFrame, Environment, FramePlan, spark_environment
from acker_client.source.errors import InputChanged, QueryStopped
from acker_client.source.frame.input import FrameSlice

# How long one sleep may be before the query is asked for again.
LOOK_S = 0.5
# What an error of Spark's says when a stop has interrupted the thread that waited, or has cancelled its job.
INTERRUPTED = ("InterruptedException", "SPARK_JOB_CANCELLED")


class PersistedFrame:
    """``persisted``: ``acker_client.spark``'s own, which has begun. As the input sees it, and the environment."""

    def __init__(self, persisted: Any) -> None:
        self._persisted = persisted
        self._once: Any = None
        pages = persisted.pages.partitions()
        self.counted: Mapping[int, tuple[int, int]] = {partition: each.total() for partition, each in pages.items()}

    @property
    def columns(self) -> Sequence[str]:
        return tuple(self._persisted.schema.names)

    @property
    def schema(self) -> Any:
        return self._persisted.schema

    def read_rows(self, slices: Sequence[FrameSlice], columns: Sequence[str]) -> pa.Table:
        """See ``PersistedRows``."""
        from acker_client.spark.operators.read_frame import rows_of_persisted

        try:
            return rows_of_persisted(self._persisted, slices, columns)
        except Exception as error:
            raise changed(error) or error from error

    def plan(self, spark: Any, plan: FramePlan) -> BatchFrame:
        """The frame of a batch, as ``Environment.frame`` makes it."""
        from acker_client.spark.commit_evidence.batch import Once
        from acker_client.spark.driver.session import settings_of
        from acker_client.spark.operators.read_frame import frame_of_persisted

        self._once = self._once or Once()
        settings = replace(settings_of(spark), pins=(plan.pin,))
        frame: BatchFrame = frame_of_persisted(
            self._persisted,
            name=plan.name,
            scope=plan.scope,
            slices=plan.slices,
            settings=settings,
            once=self._once,
            held=plan.held,
        )
        return frame


def changed(error: BaseException) -> InputChanged | None:
    """What ``error`` of Spark's says when a frame was computed anew as another one."""
    from acker_client.spark.commit_evidence.blame import other_rows

    said = other_rows(error)
    return InputChanged(said) if said else None


class StreamingQuery:
    """The query in whose foreachBatch this thread is; outside of one it is never stopped. ``df``: the micro-batch."""

    def __init__(self, df: Any) -> None:
        from acker_client.spark.driver.query import Query

        self._query = Query(df)

    def check_error(self, error: Exception) -> None:
        """Raise ``QueryStopped`` for an ``error`` that a stop of the query has made of a call of Spark's."""
        if any(sign in str(error) for sign in INTERRUPTED):
            self.check()

    def check(self) -> None:
        """Raise ``QueryStopped`` when it was stopped: Spark would take a return for the end of the micro-batch."""
        if self._query.is_stopped:
            # From None: Spark looks with a regular expression for interruptions in the text of whatever ends a query
            # that was stopped, and a long one, as of a job that was interrupted, overflows its stack.
            raise QueryStopped(
                f"{self._query} was stopped before every row of its micro-batch had its answer; nothing is lost: the"
                " next start of the query gets this micro-batch again"
            ) from None

    def end(self) -> None:
        """The micro-batch is done with."""
        self._query.restore()

    def sleep(self, seconds: float) -> None:
        """Sleep, looking up now and then."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, LOOK_S))
            self.check()


def frame_environment(persisted: PersistedFrame, query: StreamingQuery | None) -> Environment:
    """The environment of a run over a frame; ``query``: in whose foreachBatch it is."""
    environment = replace(spark_environment(), frame=persisted.plan)
    return environment if query is None else replace(environment, check=query.check, sleep=query.sleep)
