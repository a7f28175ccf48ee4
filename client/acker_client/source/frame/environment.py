"""Connects a run to the user's persisted DataFrame and, in foreachBatch, to its streaming query.

Plans a batch of the frame's rows. If Spark recomputed the frame and got other rows, turns the resulting errors into one
clear error. A stopped query ends the run at the next check. Imports Spark only when a run begins.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from acker_client.source.engine.environment import BatchFrame, Environment, FramePlan, spark_environment
from acker_client.source.errors import InputChanged, QueryStopped
from acker_client.source.frame.input import FrameSlice

# The longest sleep between two checks of the query.
LOOK_S = 0.5
# Parts of Spark's error text if a stop has interrupted the waiting thread or cancelled its job.
INTERRUPTED = ("InterruptedException", "SPARK_JOB_CANCELLED")


class PersistedFrame:
    """The persisted frame. The input reads rows of it, and the environment plans batches over it.

    ``persisted``: a ``Persisted`` of ``acker_client.spark`` on which ``begin`` was called. ``once``: the ``Once`` of an
    earlier frame; None for one of its own.
    """

    def __init__(self, persisted: Any, once: Any = None) -> None:
        self._persisted = persisted
        self._once = once
        self._lock = threading.Lock()
        pages = persisted.pages.partitions()
        self.counted: Mapping[int, tuple[int, int]] = {partition: each.total() for partition, each in pages.items()}

    @property
    def columns(self) -> Sequence[str]:
        return tuple(self._persisted.schema.names)

    @property
    def schema(self) -> Any:
        return self._persisted.schema

    def read_rows(self, slices: Sequence[FrameSlice], columns: Sequence[str]) -> pa.Table:
        from acker_client.spark.operators.read_frame import rows_of_persisted

        try:
            return rows_of_persisted(self._persisted, slices, columns)
        except Exception as error:
            if (found := changed(error)) is not None:
                raise found from error
            raise

    def plan(self, spark: Any, plan: FramePlan) -> BatchFrame:
        """Plan the frame of a batch; used as ``Environment.frame``."""
        from acker_client.spark.commit_evidence.batch import Once
        from acker_client.spark.driver.session import settings_of_batch
        from acker_client.spark.operators.read_frame import frame_of_persisted

        with self._lock:
            self._once = self._once or Once()
        frame: BatchFrame = frame_of_persisted(
            self._persisted,
            name=plan.name,
            scope=plan.scope,
            slices=plan.slices,
            settings=settings_of_batch(spark, plan.pins),
            once=self._once,
            held=plan.held,
            description=plan.description,
            track=plan.track,
        )
        return frame


def changed(error: BaseException) -> InputChanged | None:
    """Return the error to raise if ``error`` means that Spark recomputed the frame and got other rows; else None."""
    from acker_client.spark.commit_evidence.blame import other_rows

    message = other_rows(error)
    return InputChanged(message) if message else None


class StreamingQuery:
    """The streaming query whose foreachBatch runs in this thread. ``df``: the micro-batch.

    Outside of foreachBatch, ``check`` never raises.
    """

    def __init__(self, df: Any) -> None:
        from acker_client.spark.driver.query import Query

        self._query = Query(df)

    def check_error(self, error: Exception) -> None:
        """Raise ``QueryStopped`` if ``error`` is Spark's answer to a call that a stop of the query has interrupted."""
        if any(sign in str(error) for sign in INTERRUPTED):
            self.check()

    def check(self) -> None:
        """Raise ``QueryStopped`` if the query was stopped.

        If the function of foreachBatch returned instead, Spark would commit the micro-batch.
        """
        if self._query.is_stopped:
            # ``from None`` keeps the error text short. Spark searches it for interruptions with a regular expression,
            # which overflows the stack on a text as long as the error of an interrupted job.
            raise QueryStopped(
                f"{self._query} was stopped before every row of its micro-batch had its answer; nothing is lost: the"
                " next start of the query gets this micro-batch again"
            ) from None

    def end_micro_batch(self) -> None:
        self._query.restore()

    def sleep(self, seconds: float) -> None:
        """Sleep, and check the query from time to time."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, LOOK_S))
            self.check()


def frame_environment(persisted: PersistedFrame, query: StreamingQuery | None) -> Environment:
    """Return the environment of a run over a frame. ``query``: the query in whose foreachBatch it runs, if any."""
    environment = replace(spark_environment(), frame=persisted.plan)
    return environment if query is None else replace(environment, check=query.check, sleep=query.sleep)
