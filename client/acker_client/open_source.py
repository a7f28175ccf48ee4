"""Open source: what ``AckerClient.open_source`` returns. Storm's spout: emissions with message ids, and their outcomes.

Decides who does what, as the client starts no threads of its own. The thread that iterates over ``outcomes()`` sends
what was emitted, renews the source's lease, receives the outcomes and calls ``on_ack`` and ``on_fail``. Any thread may
emit. Every emission with a message id gets exactly one outcome, also if its server is lost or the source is closed.
"""

from __future__ import annotations

import importlib
import logging
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt

from acker_client.anchor import UNANCHORED, Anchor
from acker_client.cluster.watched import WatchResult
from acker_client.errors import RETRYABLE, AckerError, Closed, Unavailable, UnknownSource
from acker_client.message_ids import MessageBlock, MessageIds, signed
from acker_client.settings import Settings
from acker_protocol.ids import Column
from acker_protocol.messages import Verdict

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger("acker_client")

# How long one step of outcomes() waits. Until it ends, emissions of other threads are not sent and no close is seen.
WAIT_S = 0.5
# The source ends if no server has answered for this time, or for its lease if that is longer.
SILENT_S = 60.0

OnAck = Callable[[Any], object]
OnFail = Callable[[Any, str], object]
Ids = npt.NDArray[np.int64]


class MessageOutcome(NamedTuple):
    """How an emission ended. ``reason``: "" if there is none."""

    message_id: Any
    verdict: Verdict
    reason: str


class Emitting(Protocol):
    """The part of the client that an open source uses."""

    @property
    def settings(self) -> Settings: ...
    @property
    def silent_for_s(self) -> float: ...
    @property
    def lease_s(self) -> float: ...
    def flush(self) -> None: ...
    def watch(self, wait_s: float = 0.0) -> WatchResult: ...
    def close_source(self) -> None: ...

    @property
    def _source(self) -> object:
        """The source that is open in this process; None if there is none."""
        ...

    def _emit(self, note: Callable[[int], object]) -> Anchor:
        """Emit, and call ``note(root)`` before the emission can have an outcome."""
        ...

    def _emit_columns(
        self, count: int, note: Callable[[int, int], object], forget: Callable[[int], object]
    ) -> tuple[Column, Column]:
        """Emit ``count`` records. Call ``note(first, length)`` for each run of their numbers, before one of them can
        have an outcome. If not all numbers can be drawn, call ``forget(first)`` for each run, and raise."""
        ...


class OpenSource(int):
    """An open source. It is the source's session as a number, and is pickled as that number.

    Read either its ``outcomes()`` or the client's ``watch()``, as each outcome is handed out once.
    """

    _client: Emitting
    # The client's source at this handle's opening. A later one may have the same session.
    _opened: object

    def __new__(
        cls,
        session: int,
        client: Emitting,
        name: str,
        on_ack: OnAck | None = None,
        on_fail: OnFail | None = None,
    ) -> Self:
        source = super().__new__(cls, session)
        source._client, source._opened = client, client._source
        source.name = name
        source._on_ack, source._on_fail = on_ack, on_fail
        source._ids = MessageIds()
        source._queue = deque()
        source._error = None
        source._is_over = False
        # Guards the message ids, the outcomes that no iteration has returned, and the end. Never held over a call.
        source._lock = threading.Lock()
        # Held by the thread that watches, as only one may.
        source._reading = threading.Lock()
        return source

    name: str
    _on_ack: OnAck | None
    _on_fail: OnFail | None
    _ids: MessageIds
    # Outcomes that no iteration has returned yet.
    _queue: deque[MessageOutcome]
    # Why the source ended by itself. Raised once, after the last outcome.
    _error: AckerError | None
    _is_over: bool
    _lock: threading.Lock
    _reading: threading.Lock

    # -- emissions

    def emit(self, message_id: Hashable | None = None) -> Anchor:
        """Start the tree of a new record, and return its anchor. Its ids are signed, as Spark's ``long``; acks take
        them signed or not.

        ``message_id``: what ``outcomes()`` names the record by. It may be emitted again, as a replay. None: the record
        is not tracked and has no outcome, as in Storm, and acks of its anchor do nothing. Waits for room as
        ``AckerClient.emit``. The emission is sent by ``flush()``, or by the thread that reads ``outcomes()``.
        """
        if message_id is None:
            return UNANCHORED
        self._refuse_closed()
        root, edge = self._client._emit(partial(self._note, message_id))
        return Anchor(signed(root), signed(edge))

    def emit_columns(self, count: int, message_ids: Sequence[Hashable] | None = None) -> tuple[Ids, Ids]:
        """Start ``count`` trees and send them. Return their root ids and edges: int64[n], as Spark's ``long``.

        ``message_ids``: one for each; by default the root id. If this raises, it may have started trees. Their
        outcomes come, and are not ACKED.
        """
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise ValueError(f"count={count!r}: give the number of records, 0 or more")
        if message_ids is not None and len(message_ids) != count:
            raise ValueError(f"message_ids: {len(message_ids)} for {count} records; give one for each")
        roots, edges = self._emit_block(count, _kept(message_ids))
        return roots.view(np.int64), edges.view(np.int64)

    def _emit_block(
        self, count: int, message_ids: Sequence[Hashable] | None, on_end: Callable[[], object] | None = None
    ) -> tuple[Column, Column]:
        """Do the same as ``emit_columns``; the ids are unsigned. ``on_end``: called, by the thread that reads
        ``outcomes()``, when each of these records has its outcome."""
        self._refuse_closed()
        if not count:
            return np.empty(0, np.uint64), np.empty(0, np.uint64)
        columns = self._client._emit_columns(count, self._noting_runs(count, message_ids, on_end), self._forget_run)
        self._client.flush()
        return columns

    def frame(self, df: DataFrame, message_id: str | Sequence[str] | None = None) -> DataFrame:
        """Emit a record for each row of ``df``. Return the rows with their anchors, in the columns ``_root`` and
        ``_edge``.

        ``message_id``: the column whose value names a row in ``outcomes()``, or several columns, which give a tuple. By
        default it is the row's ``_root``. The rows are persisted until each of them has its outcome. The message
        timeout runs from this call on: rows that no action reads to the end of their partition end TIMED_OUT.
        """
        self._refuse_closed()
        # Spark is above this module in the layers, and is loaded only here.
        frames = importlib.import_module("acker_client.spark.operators.emitted")
        emitted: DataFrame = frames.frame_of_source(self, df, message_id)
        return emitted

    def flush(self) -> None:
        """Send what was emitted, and wait until the servers have it. Raises what ``AckerClient.flush`` raises."""
        self._refuse_closed()
        self._client.flush()

    @property
    def settings(self) -> Settings:
        """How to reach the servers of this source."""
        return self._client.settings

    # -- outcomes

    @property
    def pending(self) -> int:
        """How many emissions have no outcome that ``outcomes()`` has returned."""
        with self._lock:
            return len(self._ids) + len(self._queue)

    def outcomes(self) -> OutcomeStream:
        """Return an iterator over the outcomes, for ``for`` and for ``async for``. It waits for the next one, and ends
        after the source is closed: then every pending emission is LOST.

        While it is read, it sends what was emitted and renews the lease. So read it while jobs run: a source that
        nothing reads for ``lease_s`` loses its records. If several threads read it, each outcome goes to one of them.
        ``on_ack`` and ``on_fail`` are called in that thread, before the outcome is returned.

        If no server answers for a minute and for the lease, every pending emission is LOST, the source is closed, and
        ``Unavailable`` is raised.
        """
        return OutcomeStream(self)

    def close(self) -> None:
        """Close the source. Everything pending is LOST, and ``outcomes()`` ends."""
        if self._is_open:
            self._client.close_source()
        self._end("the source was closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        """Show the name. The session is a secret: whoever knows it can close the source."""
        return f"<source {self.name!r}, {'closed' if self._is_over else f'{self.pending} pending'}>"

    def __str__(self) -> str:
        """Return the session as text, as of any number."""
        return int.__repr__(self)

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        return int, (int(self),)

    # -- inside

    @property
    def _is_open(self) -> bool:
        return not self._is_over and self._client._source is self._opened

    def _refuse_closed(self) -> None:
        if not self._is_open:
            raise Closed.of_source(self.name)

    def _note(self, message_id: Hashable, root: int) -> None:
        with self._lock:
            self._ids.add(root, message_id)

    def _noting_runs(
        self, count: int, message_ids: Sequence[Hashable] | None, on_end: Callable[[], object] | None
    ) -> Callable[[int, int], None]:
        """Return a function that notes ``count`` emissions, run by run: each call names the first number of a run and
        its length."""
        ended = None if on_end is None else _after(count, on_end)
        noted = 0

        def note(first: int, length: int) -> None:
            nonlocal noted
            run_ended = None if ended is None else partial(ended, length)
            with self._lock:
                # An emission that is noted after the source has ended would be pending for ever.
                self._refuse_closed()
                self._ids.add_block(MessageBlock(first, length, message_ids, noted, run_ended))
            noted += length

        return note

    def _forget_run(self, first: int) -> None:
        with self._lock:
            self._ids.remove_block(first)

    def _take(self) -> MessageOutcome | None:
        """Return the next outcome that has arrived, or None. Calls the callbacks."""
        with self._lock:
            if not self._queue:
                error, self._error = self._error, None
                if error is not None:
                    raise error
                return None
            outcome = self._queue.popleft()
        if outcome.verdict == Verdict.ACKED:
            if self._on_ack is not None:
                self._on_ack(outcome.message_id)
        elif self._on_fail is not None:
            self._on_fail(outcome.message_id, outcome.reason or outcome.verdict.name)
        return outcome

    @property
    def _is_read(self) -> bool:
        """Whether the source is closed and every outcome was returned."""
        with self._lock:
            return self._is_over and not self._queue and self._error is None

    def _fetch(self) -> None:
        """Send what was emitted, and wait a moment for outcomes."""
        with self._reading:
            try:
                if self._is_open:
                    self._watch()
            except (Closed, UnknownSource):
                if self._is_open:
                    raise
            if not self._is_open:
                self._end("the source was closed")

    def _watch(self) -> None:
        try:
            self._client.flush()
        except RETRYABLE as error:
            log.warning("source %r: not everything could be sent yet: %s", self.name, error)
        self._queue_outcomes(self._client.watch(WAIT_S))
        silent_s = self._client.silent_for_s
        if silent_s > max(SILENT_S, self._client.lease_s):
            self._give_up(silent_s)

    def _queue_outcomes(self, watched: WatchResult) -> None:
        ended = list[Callable[[], object]]()
        for root, verdict, reason in watched.outcomes:
            with self._lock:
                is_ours, message_id, on_end = self._ids.take(root)
                if is_ours:
                    self._queue.append(MessageOutcome(message_id, verdict, reason))
            if on_end is not None:
                ended.append(on_end)
        for call in ended:
            call()

    def _give_up(self, silent_s: float) -> None:
        why = f"no server has answered for {silent_s:.0f} s"
        self._client.close_source()
        self._end(why, Unavailable(f"source {self.name!r} was closed: {why}; open it again when the servers are there"))

    def _end(self, why: str, error: AckerError | None = None) -> None:
        with self._lock:
            ids, ended = self._ids.take_all()
            self._queue.extend(MessageOutcome(message_id, Verdict.LOST, why) for message_id in ids)
            # Set together with the outcomes, as another thread that reads would raise it before them.
            self._error = error or self._error
            self._is_over = True
        for call in ended:
            call()


class OutcomeStream(Iterator[MessageOutcome], AsyncIterator[MessageOutcome]):
    """The outcomes of a source as they come. See ``OpenSource.outcomes``."""

    def __init__(self, source: OpenSource) -> None:
        self._source = source

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> MessageOutcome:
        while (outcome := self._source._take()) is None:
            if self._source._is_read:
                raise StopIteration
            self._source._fetch()
        return outcome

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> MessageOutcome:
        import asyncio

        while (outcome := self._source._take()) is None:
            if self._source._is_read:
                raise StopAsyncIteration
            # Waits in a thread of asyncio's. The callbacks are called in this one.
            await asyncio.to_thread(self._source._fetch)
        return outcome


def _kept(message_ids: Any) -> Any:
    """Return ``message_ids`` as they are now, as the caller may change them before the outcomes come. An array or a
    range stays one, because a tuple would keep an object for each row."""
    if isinstance(message_ids, np.ndarray):
        return message_ids.copy()
    return message_ids if isinstance(message_ids, range | tuple | None) else tuple(message_ids)


def _after(count: int, then: Callable[[], object]) -> Callable[[int], None]:
    """Return a function that counts ended emissions, and calls ``then`` when all ``count`` have ended. Called by one
    thread at a time."""
    left = count

    def ended(some: int) -> None:
        nonlocal left
        left -= some
        if not left:
            then()

    return ended
