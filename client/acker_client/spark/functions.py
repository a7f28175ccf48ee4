"""``ack``, ``fail`` and ``emit`` as columns of a plain ``select``::

    from acker_client.spark import functions as AF
    batch.df.select("sku", "qty", AF.ack()).write.parquet("out/")

They are iterator UDFs, because only an iterator UDF sees the end of a task, when the report is sent. Each has to be a
column of its own. Spark refuses them inside an expression: there they would ack every row, whatever the expression's
result.

The plan check does not see these columns, so pass each row through exactly one of them. Their promise depends on
the source. Rows of a batch are held: as with a sink, the batch is done when an action that delivers the rows has
succeeded. Rows of a plain source (``AckerClient.open_source``) are not held: they are acked when the task has read its
rows to the end here, and Spark may compute other columns of the same select, and write, only after that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column
from pyspark.sql import functions as F

from acker_client.error_text import REASON_LENGTH_MAX
from acker_client.settings import Settings
from acker_client.spark.anchoring.anchors import THIN, Anchors, Positions, of_columns
from acker_client.spark.anchoring.tally import Tally, digest_parents
from acker_client.spark.anchoring.values import digest_rows
from acker_client.spark.driver.session import is_tracked_here
from acker_client.spark.driver.task_columns import send_report, settings_of_columns, task_column
from acker_client.spark.worker.failed import RecordFailed

NOT_AFTER = (
    "{name}: rows of a plain source are acked as soon as they come here, before Spark computes the other columns of"
    " this select: name the columns that have to be computed before, in after=, as ack(after=['posted']) or"
    " fail('reason', after='reason'), or do the work in an @acker_udf"
)


def ack(*anchors: str | Column, after: str | Column | Sequence[str | Column] = (), name: str = "ack") -> Column:
    """Return a column that acks each row and is always true.

    ``anchors``: the tracking columns, by default ``_root`` and ``_edge``; give ``"_anchors"`` for a frame with packed
    anchors. ``after``: columns that have to be computed before a row is acked. They are needed for rows of a plain
    source, whose acks count at once.
    """
    (settings, assumed), before = settings_of_columns("ack"), _several(after)
    refusal = _refusal(name, before)
    width = len(anchors or THIN)
    types = [pa.null()] * len(before)

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        return _acked(batches, name, width, settings, refusal)

    return _always(
        task_column(name, run, "boolean", before, anchors or THIN, types, assumed=assumed, refusal=refusal), name
    )


def fail(
    reason: str | Column, *anchors: str | Column, after: str | Column | Sequence[str | Column] = (), name: str = "fail"
) -> Column:
    """Return a boolean column that fails the rows with a ``reason`` (a column of strings) and acks the others.

    The column is true where ``reason`` is not null. The trees of such a row fail with that reason. Use it instead of
    ``ack()``, not beside it: a fail and the consumption of its edge are one entry of one report, so that Spark cannot
    prune or deliver one without the other. ``anchors`` and ``after`` as for :func:`ack`. The reason is computed before;
    if nothing else has to be, name it or its input in ``after``. If tracking is off for the source, such a row fails
    the task.
    """
    (settings, assumed), before = settings_of_columns("fail"), _several(after)
    refusal = _refusal(name, before)
    width, types = len(anchors or THIN), [*[pa.null()] * len(before), pa.string()]

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        return _failed(batches, name, width, settings, refusal)

    return _always(
        task_column(name, run, "boolean", (*before, reason), anchors or THIN, types, assumed=assumed, refusal=refusal),
        name,
    )


def emit(
    children: str | Column,
    root: str | Column = THIN[0],
    edge: str | Column = THIN[1],
    *,
    after: str | Column | Sequence[str | Column] = (),
    name: str = "emit",
) -> Column:
    """Return the edges of each row's children, ``array<bigint>``, and ack the row.

    ``children``: an array, whose elements become one child each, or the number of children. Explode the edges beside
    the children, and give each child its edge as ``_edge``, and the row's ``_root``::

        words = frame.select("_root", "words", AF.emit("words", after="words").alias("edges"))
        words.select("_root", F.explode(F.arrays_zip("words", "edges")).alias("w")).select("w.words", "_root",
            F.col("w.edges").alias("_edge"))

    ``after`` as for :func:`ack`. The children are computed before; if nothing else has to be, name them in ``after``.
    The edges depend on the values of ``children``. Give the array rather than a number, unless the children are the
    same each time that Spark computes them.
    """
    (settings, assumed), before = settings_of_columns("emit"), _several(after)
    refusal, types = _refusal(name, before), [*[pa.null()] * len(before), None]

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        return _emitted(batches, name, settings, refusal)

    return _always(
        task_column(
            name, run, "array<bigint>", (*before, children), (root, edge), types, assumed=assumed, refusal=refusal
        ),
        name,
    )


def _always(column: Column, name: str) -> Column:
    # A generator of one row: Spark evaluates it even if it is not selected later, and refuses it in expressions.
    return F.explode(F.array(column)).alias(name)


def _several(columns: str | Column | Sequence[str | Column]) -> tuple[str | Column, ...]:
    return (columns,) if isinstance(columns, (str, Column)) else tuple(columns)


def _refusal(name: str, before: tuple[str | Column, ...]) -> str:
    """Return why rows of a plain source are refused; "" if the columns ``before`` are computed first."""
    return "" if before else NOT_AFTER.format(name=name)


def _acked(batches: Iterator[Any], name: str, width: int, settings: Settings, refusal: str) -> Iterator[Any]:
    tally = Tally(name, finds_copies=True)
    for columns in batches:
        anchors, rows = _anchors(columns, width)
        tally.consume(anchors, np.zeros(len(anchors.roots), np.uint64))
        yield pa.array(np.ones(rows, np.bool_))
    send_report(tally.report(), settings, refusal)


def _failed(batches: Iterator[Any], name: str, width: int, settings: Settings, refusal: str) -> Iterator[Any]:
    tally = Tally(name, finds_copies=True)
    for columns in batches:
        anchors, _ = _anchors(columns, width)
        reason = columns[-width - 1]
        tally.consume(anchors, np.zeros(len(anchors.roots), np.uint64))
        is_failed = reason.is_valid()
        for row in np.flatnonzero(is_failed.to_numpy(zero_copy_only=False)).tolist():
            of_row, text = anchors.of(row), f"{name}: {reason[row].as_py()}"
            if not is_tracked_here(settings, is_anchored=bool(of_row)):
                raise RecordFailed(text)
            for root, _edge in of_row:
                tally.fail(root, text[:REASON_LENGTH_MAX], name)
        yield is_failed
    send_report(tally.report(), settings, refusal)


def _emitted(batches: Iterator[Any], name: str, settings: Settings, refusal: str) -> Iterator[Any]:
    tally = Tally(name, finds_copies=True)
    for *_, children, root, edge in batches:
        anchors, counts = of_columns([root, edge]), _counts(children, name)
        parents = np.repeat(np.arange(len(counts)), counts)
        digests = digest_parents(counts, parents, digest_rows([children], len(counts)))
        edges = tally.derive(anchors, parents, digests).edges.view(np.int64)
        offsets = np.zeros(len(counts) + 1, np.int32)
        np.cumsum(counts, out=offsets[1:])
        yield pa.ListArray.from_arrays(pa.array(offsets), pa.array(edges))
    send_report(tally.report(), settings, refusal)


def _counts(children: Any, name: str) -> Positions:
    """Return the number of children of each row. Null has no children."""
    is_array = pa.types.is_list(children.type) or pa.types.is_large_list(children.type)
    lengths = pc.list_value_length(children) if is_array else children
    if not pa.types.is_integer(lengths.type):
        raise ValueError(f"{name}: children is {children.type}; give an array, or a whole number")
    counts: Positions = pc.fill_null(lengths.cast(pa.int64()), 0).to_numpy()
    if np.any(counts < 0):
        raise ValueError(f"{name}: {int(counts.min())} children; give 0 or more")
    return counts


def _anchors(columns: Any, width: int) -> tuple[Anchors, int]:
    """Read the anchors from the last ``width`` columns."""
    arrays = list(columns) if isinstance(columns, (tuple, list)) else [columns]
    return of_columns(arrays[-width:]), len(arrays[0])
