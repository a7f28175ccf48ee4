"""``ack`` and ``fail`` as columns of a plain ``select``::

    from acker_client.spark import functions as AF
    batch.df.select("sku", "qty", AF.ack()).write.parquet("out/")

Both are iterator UDFs, because only an iterator UDF sees the end of a task, when the report is sent. Each has to be a
column of its own. Spark refuses them inside an expression: there they would ack every row, whatever the expression's
result.

Only for held batches. In other batches a row would be acked before Spark has written it. The plan check does not see
these columns, so pass each row through exactly one ``ack`` or ``fail``. As with a sink, the batch is done when an
action that delivers the rows has succeeded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from acker_client.error_text import REASON_LENGTH_MAX
from acker_client.settings import Settings
from acker_client.spark import compat
from acker_client.spark.anchoring.anchors import EDGE, ROOT, Anchors, of_columns
from acker_client.spark.anchoring.tally import Report, Tally
from acker_client.spark.driver.lineage import ACK, new_tag
from acker_client.spark.driver.session import SessionError, pins_here, settings_of
from acker_client.spark.worker.chain import Sender

THIN = (ROOT, EDGE)

Run = Callable[[Iterator[Any]], Iterator[Any]]

# Column types by the number of tracking columns: packed anchors have one, thin anchors two, mixed frames all three.
_TYPES = {1: (pa.binary(),), 2: (pa.int64(), pa.int64()), 3: (pa.int64(), pa.int64(), pa.binary())}


def ack(*anchors: str | Column, name: str = "ack") -> Column:
    """Return a column that acks each row and is always true.

    ``anchors``: the tracking columns, by default ``_root`` and ``_edge``; give ``"_anchors"`` for a frame with packed
    anchors.
    """
    settings = _settings()
    return _column(name, lambda batches: _acked(batches, name, settings), (), anchors or THIN)


def fail(reason: str | Column, *anchors: str | Column, name: str = "fail") -> Column:
    """Return a boolean column that fails the rows with a ``reason`` (a column of strings) and acks the others.

    The column is true where ``reason`` is not null. The trees of such a row fail with that reason. Use it instead of
    ``ack()``, not beside it: a fail and the consumption of its edge are one entry of one report, so that Spark cannot
    prune or deliver one without the other. ``anchors`` as for :func:`ack`.
    """
    settings = _settings()
    return _column(name, lambda batches: _failed(batches, name, settings), (reason,), anchors or THIN)


def _column(name: str, run: Run, reasons: tuple[str | Column, ...], anchors: tuple[str | Column, ...]) -> Column:
    if len(anchors) not in _TYPES:
        raise ValueError(f"{name}: {len(anchors)} tracking columns; give _root and _edge, _anchors, or all three")
    run.__name__ = f"{ACK}{name}_{new_tag()}"
    columns = [F.col(column) if isinstance(column, str) else column for column in (*reasons, *anchors)]
    flag = compat.flag_column(run, [*(pa.string() for _ in reasons), *_TYPES[len(anchors)]], columns)
    # A generator of one row: Spark evaluates it even if it is not selected later, and refuses it in expressions.
    return F.explode(F.array(flag)).alias(name)


def _settings() -> Settings:
    # Other threads have no active session. They use the application's default session.
    spark = SparkSession.getActiveSession() or SparkSession._instantiatedSession
    if spark is None:
        raise SessionError("there is no SparkSession yet: build it before you use ack() or fail()")
    return settings_of(spark)


def _acked(batches: Iterator[Any], name: str, settings: Settings) -> Iterator[Any]:
    tally = Tally(name, finds_copies=True)
    for columns in batches:
        anchors, rows = _anchors(columns)
        tally.consume(anchors, np.zeros(len(anchors.roots), np.uint64))
        yield pa.array(np.ones(rows, np.bool_))
    _send(tally.report(), settings)


def _failed(batches: Iterator[Any], name: str, settings: Settings) -> Iterator[Any]:
    tally = Tally(name, finds_copies=True)
    for reason, *columns in batches:
        anchors, _ = _anchors(columns)
        tally.consume(anchors, np.zeros(len(anchors.roots), np.uint64))
        is_failed = reason.is_valid()
        for row in np.flatnonzero(is_failed.to_numpy(zero_copy_only=False)).tolist():
            for root, _edge in anchors.of(row):
                tally.fail(root, f"{name}: {reason[row].as_py()}"[:REASON_LENGTH_MAX], name)
        yield is_failed
    _send(tally.report(), settings)


def _send(report: Report, settings: Settings) -> None:
    if not report.is_empty:
        # The thread that runs the job may have taken another batch than the one for which the column was made.
        pins = {(pin.session, pin.batch): pin for pin in (*settings.pins, *pins_here())}
        Sender(replace(settings, pins=tuple(pins.values())))(report)


def _anchors(columns: Any) -> tuple[Anchors, int]:
    arrays = list(columns) if isinstance(columns, (tuple, list)) else [columns]
    return of_columns(arrays), len(arrays[0])
