"""Task columns: columns that a function computes in tasks, batch by batch, and that report at the end of a task.

They are iterator UDFs, because only an iterator UDF sees the end of a task. Decides how such a column is recognized in
a plan, and to which servers its report goes. These servers are fixed when the column is made, because Spark pickles its
function then. Unless the session or the environment names them, they are those of the thread's last frame or batch,
or a guess. So they are checked when a frame gets the column.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import pyarrow as pa
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from acker_client.settings import Settings
from acker_client.spark import compat
from acker_client.spark.anchoring.tally import Report
from acker_client.spark.driver.lineage import ACK, name_of_column, new_tag
from acker_client.spark.driver.session import SERVERS, SessionError, names_servers, pins_here, settings_in_batch
from acker_client.spark.worker.chain import Sender

T = TypeVar("T")
Run = Callable[[Iterator[Any]], Iterator[Any]]

# The driver remembers so many columns. It forgets the oldest one.
_NOTED_MAX = 10_000


class TrackedRows(Protocol):
    """The part of a batch that says where its rows are tracked. ``is_released``: its rows are all done."""

    @property
    def settings(self) -> Settings: ...
    @property
    def is_released(self) -> bool: ...


_lock = threading.Lock()
# By the name of a column's function: the servers to which it reports, if neither session nor environment names them.
_assumed: dict[str, tuple[str, ...]] = {}
# By the name of a column's function: why it never acks rows of a plain source.
_refusals: dict[str, str] = {}
_plain_frames: weakref.WeakSet[TrackedRows] = weakref.WeakSet()

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
    *,
    assumed: Sequence[str] = (),
    refusal: str = "",
) -> Column:
    """Return a column that ``run`` computes from all batches of the columns ``given`` and ``anchors`` in a task.

    ``types``: the Arrow types of ``given`` where pandas has to hand them over, None for any type. ``assumed``: the
    servers to which the column reports, if neither the session nor the environment names them.
    ``refusal``: why the column never acks rows of a plain source; "" if it does.
    """
    if len(anchors) not in _TYPES:
        raise ValueError(f"{name}: {len(anchors)} tracking columns; give _root and _edge, _anchors, or all three")
    run.__name__ = f"{ACK}{name}_{new_tag()}"
    _note(_assumed, run.__name__, tuple(assumed))
    _note(_refusals, run.__name__, refusal)
    columns = [F.col(column) if isinstance(column, str) else column for column in (*given, *anchors)]
    known = types or [None] * len(given)
    return compat.iterator_column(run, returns, [*known, *_TYPES[len(anchors)]], columns)


def settings_of_columns(name: str) -> tuple[Settings, Sequence[str]]:
    """Return how tasks of the columns that are made now reach the acker, and for :func:`task_column` the servers if
    neither the session nor the environment names them. ``name``: the function that makes the columns."""
    # Other threads have no active session. They use the application's default session.
    spark = SparkSession.getActiveSession() or SparkSession._instantiatedSession
    if spark is None:
        raise SessionError(f"there is no SparkSession yet: build it before you use {name}()")
    settings = settings_in_batch(spark, _settings_of_frames)
    is_assumed = settings.tracking and not names_servers(spark)
    return settings, settings.servers if is_assumed else ()


def note_plain_frame(batch: TrackedRows) -> None:
    """Note where the rows of a plain source's frame are tracked, as long as ``batch`` lives. A thread to which nothing
    was handed down takes these servers for its columns."""
    with _lock:
        _plain_frames.add(batch)


def check_refusal(function: str) -> None:
    """Raise :class:`SessionError` if the column with this ``function`` never acks rows of a plain source."""
    with _lock:
        refusal = _refusals.get(function)
    if refusal:
        raise SessionError(refusal)


def _note(notes: dict[str, T], function: str, note: T) -> None:
    if note:
        with _lock:
            notes[function] = note
            if len(notes) > _NOTED_MAX:
                del notes[next(iter(notes))]


def check_servers(function: str, servers: Sequence[str]) -> None:
    """Raise :class:`SessionError` if a column with this ``function`` reports to other servers than ``servers``, which
    track the rows that it is for."""
    with _lock:
        assumed = _assumed.get(function, ())
    if assumed and set(assumed).isdisjoint(servers):
        raise SessionError(
            f"{name_of_column(function)}: where this column was made, nothing named the servers of its rows,"
            f" which are {', '.join(servers)}: make the column after frame() or the start of the batch, in the same"
            " thread or in an InheritableThread, and before that of another source;"
            f" or set {SERVERS} on the session"
        )


def _settings_of_frames() -> Settings | None:
    """Return how the frames of plain sources are tracked; None if there are none, or if their servers differ. Frames
    whose rows are all done count only if there are no others."""
    with _lock:
        frames = [(batch.is_released, batch.settings) for batch in _plain_frames]
    pending = {settings.servers: settings for is_released, settings in frames if not is_released}
    found = pending or {settings.servers: settings for _, settings in frames}
    return next(iter(found.values())) if len(found) == 1 else None


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
