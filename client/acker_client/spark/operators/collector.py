"""Storm's collector for ``mapPartitions`` and ``foreachPartition``, over RDDs and the rows of DataFrames.

``process_client`` is the same for code that has ids instead of rows. Adds up the explicit emits and acks of one
partition. Reports them when the ``with`` block ends, and not at all if the block raises. An input that was neither
acked nor failed stays open, and nothing emitted under it is reported: a child's edge enters the tree only together with
its parent's consumption.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable, Sequence
from types import NoneType, TracebackType
from typing import Any, Self

import numpy as np
from pyspark.sql import DataFrame, Row, SparkSession

from acker_client.anchor import Anchor
from acker_client.error_text import REASON_LENGTH_MAX
from acker_client.message_ids import signed
from acker_client.settings import Settings, addresses
from acker_client.spark.anchoring.anchors import ANCHOR_BYTES, ANCHORS, EDGE, ROOT, TRACKING, Anchors
from acker_client.spark.anchoring.tally import Report, Tally
from acker_client.spark.driver.session import is_tracked_here, settings_here, settings_in_batch
from acker_client.spark.worker.chain import Sender
from acker_client.spark.worker.content import hash_content
from acker_client.spark.worker.failed import RecordFailed
from acker_protocol.ids import MASK, child_edge, hash64, mix64
from acker_protocol.messages import RESET, Entries, Identity

Pair = tuple[int, int]


class CollectorError(ValueError):
    """A collector was used in a way that would corrupt its report. The message says how to fix it."""


class Collector:
    """Collects the emits, acks and fails of one partition::

        def work(rows):
            with Collector("words") as out:
                for row in rows:
                    for word in row.text.split():
                        yield out.emit(word, anchors=[row])
                    out.ack(row)

        words = batch.df.rdd.mapPartitions(work)

    ``operator``: the collector's name, which goes into edges and reports. ``servers``: a ``Settings`` (see
    :func:`collector_settings`) or addresses. None: the servers of the session (``spark.acker.servers``), as the thread
    that took the batch, or called ``OpenSource.frame``, saw them. A record is a row with tracking columns, or an anchor
    (root id, edge). Every emit under a record must come before its ack or fail. Not thread-safe.
    """

    def __init__(
        self,
        operator: str,
        servers: Settings | str | Sequence[str] | None = None,
        *,
        send: Callable[[Report], object] | None = None,
    ) -> None:
        if not isinstance(operator, str) or not operator:
            raise TypeError(f"Collector({operator!r}): give its name first, as Collector('words')")
        self._operator = operator
        self._hash = hash64(operator)
        self._settings = _settings(servers)
        self._send: Callable[[Report], object] = send or Sender(self._settings)
        self._emitted: dict[Pair, list[int]] = {}
        self._handled: dict[Pair, int] = {}
        self._reasons: dict[int, str] = {}

    def emit(self, value: Any, anchors: Iterable[Any]) -> Row:
        """Return ``value`` as a Row anchored to the records ``anchors``. Yield this Row. With ``anchors=[]`` it belongs
        to no tree.

        The Row has the fields of ``value`` if that is a Row or dict, otherwise one field ``value``. It also has its
        anchors. The anchors are thin if there is at most one and the inputs were thin. An edge is a hash of the Row's
        content, and of the number of rows emitted before under the same anchor.
        """
        fields = _fields(value)
        content = hash_content(list(fields.values()))
        edges: dict[int, int] = {}
        is_thin = True
        for record in anchors:
            is_thin = is_thin and not _is_packed(record)
            for root, edge in _anchors_of(record):
                child = self._child(root, edge, content)
                edges[root] = edges.get(root, 0) ^ child
        if is_thin and len(edges) <= 1:
            thin = next(((signed(root), signed(edge)) for root, edge in edges.items()), (None, None))
            return Row(**fields, **dict(zip((ROOT, EDGE), thin, strict=True)))
        packed = b"".join(root.to_bytes(8, "little") + edge.to_bytes(8, "little") for root, edge in edges.items())
        return Row(**fields, **{ANCHORS: packed})

    def ack(self, record: Any) -> None:
        """Mark ``record`` as done. The rows emitted under it are its children."""
        for anchor in _anchors_of(record):
            self._handle(anchor)

    def fail(self, record: Any, reason: str = "") -> None:
        """Fail the trees of ``record`` with ``reason``. The source replays them, or gives them up.

        Raises :class:`RecordFailed` if tracking is off for the source, so that the batch fails. Also for a row without
        anchors in a job of a thread that works on no batch, because its source may have tracking off.
        """
        anchors = _anchors_of(record)
        text = f"{self._operator}: {reason}" if reason else self._operator
        if not is_tracked_here(self._settings, is_anchored=bool(anchors)):
            raise RecordFailed(text)
        for anchor in anchors:
            self._handle(anchor)
            self._reasons.setdefault(anchor[0], text[:REASON_LENGTH_MAX])

    def reset_timeout(self, record: Any) -> None:
        """Restart the message timeouts of the trees of ``record``, at once and not at the end of the block."""
        roots = np.array(sorted({root for root, _ in _anchors_of(record)}, key=mix64), np.uint64)
        if not len(roots):
            return
        # A reset may be repeated without harm, so each attempt uses an identity of its own.
        identity = Identity(secrets.randbits(64), secrets.randbits(64))
        kinds = np.full(len(roots), RESET, np.uint8)
        self._send(Report(identity, Entries(roots, np.zeros(len(roots), np.uint64), kinds)))

    def report(self) -> Report:
        """Return the report of the partition so far. It is sent when the block ends."""
        tally = Tally(self._operator)
        pairs = np.array(list(self._handled), np.uint64).reshape(-1, 2)
        produced = np.fromiter(self._handled.values(), np.uint64, len(self._handled))
        tally.consume(Anchors(np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1])), produced)
        for root, reason in self._reasons.items():
            tally.fail(root, reason, self._operator)
        return tally.report()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is not None:
            return
        report = self.report()
        if not report.is_empty:
            self._send(report)

    def _child(self, root: int, edge: int, content: int) -> int:
        anchor = root, edge
        if anchor in self._handled:
            raise CollectorError(
                f"{self._operator}: a record was emitted under a row that is acked or failed already; emit() what comes"
                " of a row before its ack() or fail()"
            )
        children = self._emitted.setdefault(anchor, [0, 0])
        child = child_edge(edge, self._hash, children[0], mix64(content ^ children[0]))
        children[0] += 1
        children[1] ^= child
        return child

    def _handle(self, anchor: Pair) -> None:
        if anchor in self._handled:
            raise CollectorError(
                f"{self._operator}: a row was acked or failed twice, or came twice, and each edge is consumed once;"
                " call ack() or fail() once a row, and make copies of rows with acker_client.spark.branch"
            )
        self._handled[anchor] = self._emitted.pop(anchor, [0, 0])[1]


def collector_settings(spark: SparkSession | DataFrame) -> Settings:
    """Return the settings for collectors in tasks of ``spark``.

    Call it in the driver; the settings are pickled with the function that uses them. Needed only if jobs run in other
    threads than the one that took the batch.
    """
    return settings_in_batch(spark.sparkSession if isinstance(spark, DataFrame) else spark)


def _settings(servers: Settings | str | Sequence[str] | None) -> Settings:
    if isinstance(servers, Settings):
        return servers
    if servers is None:
        return settings_here()
    return Settings(addresses(servers))


class ProcessClient(Collector):
    """The collector of the block that is open in this thread. See :func:`process_client`."""

    _depth = 0

    def emit(self, value: Any, anchors: Iterable[Any]) -> Row:
        self._refuse_outside()
        return super().emit(value, anchors)

    def ack(self, record: Any) -> None:
        self._refuse_outside()
        super().ack(record)

    def fail(self, record: Any, reason: str = "") -> None:
        self._refuse_outside()
        super().fail(record, reason)

    def __enter__(self) -> Self:
        _open.client = self
        self._depth += 1
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._depth -= 1
        if self._depth == 0:
            _open.client = None
            super().__exit__(kind, error, at)

    def _refuse_outside(self) -> None:
        if not self._depth:
            raise CollectorError(
                f"{self._operator}: nothing would report this: write `with process_client() as client:` around the"
                " records of the task, and call process_client() inside it"
            )


# The ProcessClient whose block is open in a thread, as ``client``.
_open = threading.local()


def process_client(
    servers: Settings | str | Sequence[str] | None = None, *, name: str = "process_client"
) -> ProcessClient:
    """Return the client of this process for acks and fails of single records, for code that gets no rows::

        def work(records):
            with process_client() as client:
                for root, edge, text in records:
                    client.ack((root, edge))

    Leaving the block reports, and counts once for all attempts at the task. Inside the block every call in the same
    thread returns the same client, so that functions far below need no argument. PySpark tells a worker nothing about
    the end of a task, so there has to be a block. ``servers`` and ``name``: as for :class:`Collector`.
    """
    return getattr(_open, "client", None) or ProcessClient(name, servers)


def _anchors_of(record: Any) -> list[Pair]:
    """Return (root id, edge) of each anchor of a record; empty if it is unanchored."""
    if type(record) in (tuple, Anchor) and len(record) == 2 and all(type(each) in (int, NoneType) for each in record):
        return _pairs(*record)
    fields = _fields(record, tracking=True)
    # After a union of thin and packed frames a row has all three columns, and its anchors in one of the two forms.
    packed = fields.get(ANCHORS)
    if packed is not None:
        words = np.frombuffer(bytes(packed), "<u8").tolist()
        if len(words) % 2:
            raise CollectorError(
                f"{ANCHORS} holds {len(packed)} bytes, which are not whole anchors of {ANCHOR_BYTES}; hand the"
                " column on as it came"
            )
        return list(zip(words[0::2], words[1::2], strict=True))
    if ROOT not in fields and ANCHORS in fields:
        return []
    if ROOT not in fields or EDGE not in fields:
        raise CollectorError(
            f"a record without anchors: {_shown(record)}; it needs the columns {ROOT} and {EDGE}, or {ANCHORS}, as rows"
            " of batch.df have them and what emit() returned; or give its anchor, (root id, edge)"
        )
    return _pairs(fields[ROOT], fields[EDGE])


def _pairs(root: int | None, edge: int | None) -> list[Pair]:
    # Root id 0 means unanchored, as in UNANCHORED.
    return [] if not root or edge is None else [(int(root) & MASK, int(edge) & MASK)]


def _is_packed(record: Any) -> bool:
    return ANCHORS in _fields(record, tracking=True)


def _fields(value: Any, *, tracking: bool = False) -> dict[str, Any]:
    names = getattr(value, "__fields__", None)
    if names is not None:
        fields = dict(zip(names, value, strict=True))
    elif isinstance(value, dict):
        fields = dict(value)
    else:
        fields = {} if tracking else {"value": value}
    return fields if tracking else {name: item for name, item in fields.items() if name not in TRACKING}


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
