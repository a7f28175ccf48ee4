"""Functions: ``ack`` and ``fail`` as columns of a plain ``select``::

    from acker_client.spark import functions as AF
    batch.df.select("sku", "qty", AF.ack()).write.parquet("out/")

Decides that they are iterator UDFs, which have an end, and so can report; and that each is a column of its own in a
select: Spark refuses it as part of an expression, where it would ack every row whatever the expression says. For held
batches only: in an open one a row would be acked before Spark has written it. The guard does not see them: take each
row through one ``ack``, or one ``fail``, once. The batch is done when an action that hands the rows on has succeeded,
as for a sink (``record``).
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

# By how many tracking columns there are: packed, thin, or both.
_TYPES = {1: (pa.binary(),), 2: (pa.int64(), pa.int64()), 3: (pa.int64(), pa.int64(), pa.binary())}


def ack(*anchors: str | Column, name: str = "ack") -> Column:
    """A column of true that acks each row. ``anchors``: the tracking columns, ``_root`` and ``_edge`` unless given;
    of a frame with packed anchors ``"_anchors"``."""
    settings = _settings()
    return _column(name, lambda batches: _acked(batches, name, settings), (), anchors or THIN)


def fail(reason: str | Column, *anchors: str | Column, name: str = "fail") -> Column:
    """A column of bool that is done with each row: where ``reason`` (a column of strings) is not null it is true, and
    the row's trees fail with that reason; the others are acked.

    In place of ``ack()``, not beside it: a fail and the consumption of its edge are one entry of one report, so that
    neither can arrive, or be pruned by Spark, without the other.
    """
    settings = _settings()
    return _column(name, lambda batches: _failed(batches, name, settings), (reason,), anchors or THIN)


def _column(name: str, run: Run, reasons: tuple[str | Column, ...], anchors: tuple[str | Column, ...]) -> Column:
    if len(anchors) not in _TYPES:
        raise ValueError(f"{name}: {len(anchors)} tracking columns; give _root and _edge, _anchors, or all three")
    run.__name__ = f"{ACK}{name}_{new_tag()}"
    columns = [F.col(column) if isinstance(column, str) else column for column in (*reasons, *anchors)]
    flag = compat.flag_column(run, [*(pa.string() for _ in reasons), *_TYPES[len(anchors)]], columns)
    # A generator of one row: Spark evaluates it whether or not it is selected later, and refuses it within expressions.
    return F.explode(F.array(flag)).alias(name)


def _settings() -> Settings:
    # Another thread has no active session of its own; the default one is that of the application.
    spark = SparkSession.getActiveSession() or SparkSession._instantiatedSession
    if spark is None:
        raise SessionError("there is no SparkSession yet: build it before you use ack() or fail()")
    return settings_of(spark)


def _acked(batches: Iterator[Any], name: str, settings: Settings) -> Iterator[Any]:
    tally = Tally(name, finds_copies=True)
    for columns in batches:
        anchors, rows = _anchors(columns)
        tally.take(anchors, np.zeros(len(anchors.roots), np.uint64))
        yield pa.array(np.ones(rows, np.bool_))
    _send(tally.report(), settings)


def _failed(batches: Iterator[Any], name: str, settings: Settings) -> Iterator[Any]:
    tally = Tally(name, finds_copies=True)
    for reason, *columns in batches:
        anchors, _ = _anchors(columns)
        tally.take(anchors, np.zeros(len(anchors.roots), np.uint64))
        is_failed = reason.is_valid()
        for row in np.flatnonzero(is_failed.to_numpy(zero_copy_only=False)).tolist():
            for root, _edge in anchors.of(row):
                tally.fail(root, f"{name}: {reason[row].as_py()}"[:REASON_LENGTH_MAX], name)
        yield is_failed
    _send(tally.report(), settings)


def _send(report: Report, settings: Settings) -> None:
    if not report.is_empty:
        # The column may have been made for another batch than the thread has taken that runs the job.
        pins = {(pin.session, pin.batch): pin for pin in (*settings.pins, *pins_here())}
        Sender(replace(settings, pins=tuple(pins.values())))(report)


def _anchors(columns: Any) -> tuple[Anchors, int]:
    arrays = list(columns) if isinstance(columns, (tuple, list)) else [columns]
    return of_columns(arrays), len(arrays[0])
