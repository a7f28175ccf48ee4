"""Task columns: columns that a function computes in tasks, batch by batch, and that report at the end of a task.

They are iterator UDFs, because only an iterator UDF sees the end of a task. Decides how such a column is recognized in
a plan, and to which servers its report goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from acker_client.settings import Settings
from acker_client.spark import compat
from acker_client.spark.anchoring.tally import Report
from acker_client.spark.driver.lineage import ACK, new_tag
from acker_client.spark.driver.session import SessionError, pins_here, settings_in_batch
from acker_client.spark.worker.chain import Sender

Run = Callable[[Iterator[Any]], Iterator[Any]]

# Column types by the number of tracking columns: packed anchors have one, thin anchors two, mixed frames all three.
_TYPES: dict[int, tuple[pa.DataType, ...]] = {
    1: (pa.binary(),),
    2: (pa.int64(), pa.int64()),
    3: (pa.int64(), pa.int64(), pa.binary()),
}


def task_column(
    name: str,
    run: Run,
    returns: str | DataType,
    given: Sequence[str | Column],
    anchors: Sequence[str | Column],
    types: Sequence[pa.DataType | None] = (),
) -> Column:
    """Return a column that ``run`` computes from all batches of the columns ``given`` and ``anchors`` in a task.

    ``types``: the Arrow types of ``given`` where pandas has to hand them over, None for any type.
    """
    if len(anchors) not in _TYPES:
        raise ValueError(f"{name}: {len(anchors)} tracking columns; give _root and _edge, _anchors, or all three")
    run.__name__ = f"{ACK}{name}_{new_tag()}"
    columns = [F.col(column) if isinstance(column, str) else column for column in (*given, *anchors)]
    known = types or [None] * len(given)
    return compat.iterator_column(run, returns, [*known, *_TYPES[len(anchors)]], columns)


def settings_of_columns(name: str) -> Settings:
    """Return how tasks of the columns that are made now reach the acker. ``name``: the function that makes them."""
    # Other threads have no active session. They use the application's default session.
    spark = SparkSession.getActiveSession() or SparkSession._instantiatedSession
    if spark is None:
        raise SessionError(f"there is no SparkSession yet: build it before you use {name}()")
    return settings_in_batch(spark)


def send_report(report: Report, settings: Settings, refusal: str = "") -> None:
    """Send the report of a task. ``refusal``: why it must not be sent for roots of a plain source, which are acked at
    once; "" if it may be."""
    if report.is_empty:
        return
    # The thread that runs the job may have taken another batch than the one for which the column was made.
    pins = {(pin.session, pin.batch): pin for pin in (*settings.pins, *pins_here())}
    sender = Sender(replace(settings, pins=tuple(pins.values())))
    # The roots of a batch that is held are in its pins, unless a thread of the user's runs the job.
    if refusal and not pins and sender.is_of_plain_source(report):
        raise SessionError(refusal)
    sender(report)
