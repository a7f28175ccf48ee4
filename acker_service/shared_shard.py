"""Shared shard: one shard for many threads.

A lock lets only one thread at a time use the shard. Decides which settlements share a sweep, how long a watch waits,
and what is logged. Knows neither gRPC nor protobuf; the shard decides what a message means.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass

from acker_protocol.ids import session_digest
from acker_protocol.messages import (
    NAME_CHARACTERS,
    Apply,
    ApplyReply,
    DrainReply,
    OpenBatch,
    OpenBatchReply,
    Pins,
    PinsReply,
    Settle,
    SettleReply,
    Status,
    Watch,
    WatchReply,
)
from acker_service.core.parts import StatePart
from acker_service.core.quotas import Allotment
from acker_service.core.running_time import RunningTime
from acker_service.core.shard import Shard
from acker_service.core.sources import Change, SourceChange
from acker_service.core.stats import Counters, ShardStats, SourceStats
from acker_service.process.logs import Log, RateLimit

# Longest wait of a watch. Proxies cut calls that are silent for longer.
WAIT_MAX_S = 30.0
# The most outcomes in a reply, 13 bytes each; ``outbox`` also bounds its bytes.
OUTCOMES_MAX = 250_000
# A reply with this many outcomes does not wait for more.
OUTCOMES_ENOUGH = 32_768
# How long a call with many steps sleeps between two steps, so that a thread that waits for the lock gets it.
MOMENT_S = 0.0002

log = Log("acker.shard")

# Returns False if the call has ended already.
OnEnd = Callable[[Callable[[], None]], bool]
# Lets other calls work inside ``with paused():``.
Paused = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a shard at one moment. ``sources`` are in the order in which they were opened."""

    stats: ShardStats
    oldest_pending_age_s: float
    sources: list[SourceStats]


class NotTheOwner(Exception):
    """A call for a session that another caller has opened. ``session``, ``owner``: for the log."""

    def __init__(self, session: int, owner: str) -> None:
        super().__init__(
            "another caller has opened the source of this session, and only that caller may watch and settle it: use "
            "its token"
        )
        self.session, self.owner = session, owner


class SharedShard:
    """The calls of :class:`~acker_service.core.shard.Shard` for any number of threads; watches wait here.

    ``caller``: the name of the caller, "" if callers have no names. A session belongs to the caller that opened it.
    Calls of another caller for this session raise :class:`NotTheOwner`.
    """

    def __init__(
        self,
        shard: Shard,
        *,
        clock: Callable[[], float],
        max_watches: int,
        linger_s: float,
        since: float | None = None,
        namespace: str = "",
    ) -> None:
        """``clock``: in seconds. The shard's time leaves out pauses of this process; see ``running_time``.

        ``linger_s``: how long a watch with outcomes waits for more. ``since``: the time of the clock when the shard was
        opened. If loading the state took long, that time counts as a pause. ``namespace``: for the log.
        """
        self.shard = shard
        self._clock, self._running = clock, RunningTime(clock() if since is None else since)
        self._max_watches = max_watches
        self._linger_s = linger_s
        self._lock = _MeasuredLock(clock)
        shard.unlocked = _Released(self._lock).get
        self._waiting: list[_Waiting] = []
        self._settling: deque[tuple[Settle, str, Future[SettleReply]]] = deque()
        self._is_closing = threading.Event()
        self._refusals = RateLimit(clock)
        self._place = {"namespace": namespace} if namespace else {}

    def set_bounds(self, allotment: Allotment, max_watches: int) -> None:
        """Change the bounds of the shard. Existing data stays, even if it exceeds the new bounds."""
        with self._lock:
            self.shard.set_bounds(allotment.bounds, allotment.quotas.memory_bytes, allotment.quotas.sources)
            self._max_watches = max_watches

    def apply(self, message: Apply) -> ApplyReply:
        message = self.shard.prepared(message)
        with self._lock:
            reply = self.shard.apply(message, self._now())
            self._wake()
        return reply

    def open_batch(self, request: OpenBatch, caller: str = "") -> OpenBatchReply:
        with self._lock:
            self._check_owner(request.session, caller)
            reply = self.shard.open_batch(request, self._now())
        if reply.status != Status.APPLIED:
            self._log_refusal("batch_refused", request.session, reply, batch=request.number)
        return reply

    def settle(self, request: Settle, paused: Paused = nullcontext, caller: str = "") -> SettleReply:
        """Settle a batch. The call that gets the lock settles all waiting batches in the same sweep."""
        own: Future[SettleReply] = Future()
        waiting = request, caller, own
        self._settling.append(waiting)
        try:
            with paused():
                # Lets the calls that wait for their turn join the sweep.
                pass
            with self._lock:
                if not own.done():
                    self._settle_waiting()
        except BaseException:
            # The lock, because another call may be taking the first one.
            with self._lock, suppress(ValueError, IndexError):
                self._settling.remove(waiting)
            raise
        reply = own.result()
        if reply.status != Status.APPLIED:
            self._log_refusal("settlement_refused", request.session, reply, batch=request.number)
        return reply

    def watch(
        self,
        request: Watch,
        on_end: OnEnd = lambda _: True,
        paused: Paused = nullcontext,
        caller: str = "",
    ) -> WatchReply:
        """Answer a watch: at once if there are enough outcomes, else ``linger_s`` after the first one, or when the wait
        is over.

        ``on_end`` is called with a function that makes the watch stop waiting. That function must be called when the
        caller has gone.
        """
        max_outcomes = min(request.max_outcomes or OUTCOMES_MAX, OUTCOMES_MAX)
        request = dataclasses.replace(request, max_outcomes=max_outcomes)
        with self._lock:
            self._check_owner(request.session, caller)
            if request.close:
                self._dismiss(request.session)
            reply = self._watch(request, caller)
            changes = self.shard.take_changes()
            waiting = self._begin_waiting(request, reply)
        try:
            self._log_changes(changes)
            if reply.status != Status.APPLIED:
                asked = request.source[:NAME_CHARACTERS]
                self._log_refusal("watch_refused", request.session, reply, asked=asked)
            if waiting is None:
                return reply
            if not on_end(waiting.dismiss):
                waiting.dismiss()
            with paused():
                # The call and its reply both renew the lease, so the call must end well before the lease does.
                waiting.woken.wait(min(request.wait_ms / 1000, WAIT_MAX_S, reply.lease_ms / 2000))
                if waiting.woken.is_set() and not waiting.is_dismissed:
                    self._is_closing.wait(self._linger_s)
            with self._lock:
                # Still among the waiting ones, so that a close in between dismisses it.
                if waiting.is_dismissed:
                    return reply
                # The lease may have ended meanwhile, and another caller may have opened the session.
                self._check_owner(request.session, caller)
                return self._watch(request, caller)
        finally:
            if waiting is not None:
                # A `with` would allocate memory.
                self._lock.__enter__()
                self._waiting.remove(waiting)
                self._lock.__exit__(None, None, None)

    def pins(self, request: Pins) -> PinsReply:
        with self._lock:
            return self.shard.pins(request)

    def add_counters(self, counters: Counters) -> None:
        """Add the counters of a shard that has ended."""
        with self._lock:
            self.shard.add_counters(counters)

    def drain(self) -> DrainReply:
        with self._lock:
            return self.shard.drain()

    def tick(self) -> None:
        with self._lock:
            self.shard.tick(self._now())
            self._wake()
            changes = self.shard.take_changes()
        self._log_changes(changes)

    def has_source(self, session: int) -> bool:
        """Whether a source has this session."""
        return self.shard.name_of(session) is not None

    @property
    def pauses(self) -> int:
        """How often this process was paused."""
        return self._running.pauses

    @property
    def paused_s(self) -> float:
        """How long this process was paused in all."""
        return self._running.paused

    def answers(self, within_s: float) -> bool:
        """Return whether the shard's lock gets free within this time."""
        return self._lock.is_free_within(within_s)

    @property
    def stats(self) -> ShardStats:
        with self._lock:
            return self.shard.stats

    @property
    def figures(self) -> Figures:
        """The figures of this moment. Cheap: does not sweep the ledger."""
        with self._lock:
            shard, now = self.shard, self._now()
            return Figures(shard.stats, shard.oldest_pending_age_s(now), shard.source_stats(now))

    @property
    def lock_waits(self) -> tuple[int, float]:
        """How often the shard's lock was acquired, and the total wait for it in seconds."""
        return self._lock.taken, self._lock.waited_s

    @property
    def watches(self) -> int:
        """How many watches wait now."""
        return len(self._waiting)

    @property
    def settlements(self) -> int:
        """How many settlements wait for a sweep now."""
        return len(self._settling)

    def dump(self) -> Generator[StatePart, None, None]:
        """Yield the whole state as :meth:`Shard.dump` does. Holds the lock until the last part or ``close``."""
        with self._lock:
            yield from self.shard.dump(self._now())

    def stop_waiting(self) -> None:
        """Answer every waiting watch now, and every later one at once."""
        with self._lock:
            self._is_closing.set()
            for waiting in self._waiting:
                waiting.woken.set()

    def _now(self) -> float:
        """Return the running time. Caller holds the lock, so that running time never goes back."""
        return self._running.at(self._clock())

    def _watch(self, request: Watch, caller: str) -> WatchReply:
        """Caller of this method holds the lock."""
        reply = self.shard.watch(request, self._now())
        if caller:
            # Not only for new sources: those of an older state, or of a server without tokens, have no owner yet.
            self.shard.set_owner(request.session, caller)
        return reply

    def _check_owner(self, session: int, caller: str) -> None:
        """Raise :class:`NotTheOwner` if the session belongs to another caller. Caller of this method holds the lock."""
        owner = self.shard.owner_of(session) if caller else ""
        if owner and owner != caller:
            raise NotTheOwner(session, owner)

    def _take_settlement(
        self,
        request: Settle,
        caller: str,
        future: Future[SettleReply],
        waiting: list[tuple[Settle, Future[SettleReply]]],
    ) -> None:
        """Add a settlement to ``waiting``, unless its caller may not settle this batch."""
        try:
            self._check_owner(request.session, caller)
        except NotTheOwner as error:
            future.set_exception(error)
        else:
            waiting.append((request, future))

    def _settle_waiting(self) -> None:
        """Settle all waiting batches in one sweep. Caller holds the lock."""
        waiting: list[tuple[Settle, Future[SettleReply]]] = []
        try:
            while self._settling:
                self._take_settlement(*self._settling[0], waiting)
                self._settling.popleft()
            replies = self.shard.settle([request for request, _ in waiting], self._now())
        except Exception as error:
            for _, future in waiting:
                future.set_exception(error)
            raise
        for (_, future), reply in zip(waiting, replies, strict=True):
            future.set_result(reply)
        self._wake()

    def _log_refusal(
        self, event: str, session: int, reply: OpenBatchReply | SettleReply | WatchReply, **what: object
    ) -> None:
        left_out = self._refusals.admit((event, session, reply.status))
        if left_out is None:
            return
        with self._lock:
            source = self.shard.name_of(session)
        why = {"status": reply.status.name, "detail": reply.detail, "left_out": left_out}
        log.warning(event, **self._place, source=source, session_digest=session_digest(session), **what, **why)

    def _log_changes(self, changes: Sequence[SourceChange]) -> None:
        for each in changes:
            event = f"source_{each.change}"
            names = {**self._place, "source": each.name, "session_digest": session_digest(each.session)}
            counts = {"pending": each.pending, "unconfirmed": each.unconfirmed, "open_batches": each.open_batches}
            if each.change == Change.OPENED:
                log.info(event, **names)
            elif each.change == Change.CLOSED:
                log.info(event, **names, **counts)
            else:
                log.warning(event, **names, **counts)

    def _begin_waiting(self, request: Watch, reply: WatchReply) -> _Waiting | None:
        if not self._should_wait(request, reply):
            return None
        waiting = _Waiting(request.session, request.confirmed)
        if len(reply.outcomes):
            waiting.woken.set()
        self._waiting.append(waiting)
        return waiting

    def _should_wait(self, request: Watch, reply: WatchReply) -> bool:
        if request.close or not request.wait_ms or reply.is_new or reply.status != Status.APPLIED:
            return False
        if len(reply.outcomes) >= min(OUTCOMES_ENOUGH, request.max_outcomes):
            return False
        return not self._is_closing.is_set() and len(self._waiting) < self._max_watches

    def _wake(self) -> None:
        for waiting in self._waiting:
            if not waiting.woken.is_set() and self.shard.has_outcomes(waiting.session, waiting.confirmed):
                waiting.woken.set()

    def _dismiss(self, session: int) -> None:
        """Dismiss the waiting watches of a session that is about to close. Watches would open the session again."""
        for waiting in self._waiting:
            if waiting.session == session:
                waiting.dismiss()


class _MeasuredLock:
    """A lock that counts how often it was acquired (``taken``) and the total wait for it (``waited_s``). Acquiring and
    counting never fail for lack of memory."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self.taken, self.waited_s = 0, 0.0

    def __enter__(self) -> None:
        if self._lock.acquire(False):
            self._count(None)
            return
        started: float | None = None
        with suppress(MemoryError):
            started = self._clock()
        self._lock.acquire()
        self._count(started)

    # Not *error, since a tuple takes memory.
    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self._lock.release()

    def _count(self, started: float | None) -> None:
        """Count one acquisition. ``started``: when the wait began; None if there was none, or it is unknown."""
        try:
            # Reads the clock only if the lock was taken.
            waited_s = self.waited_s if started is None else self.waited_s + self._clock() - started
            taken = self.taken + 1
        except MemoryError:
            return
        self.taken, self.waited_s = taken, waited_s

    def is_free_within(self, within_s: float) -> bool:
        if not self._lock.acquire(timeout=within_s):
            return False
        self._lock.release()
        return True


class _Released:
    """Releases a lock, which the caller holds, until the end of the context. Allocates no memory, so the caller always
    gets the lock back."""

    def __init__(self, lock: _MeasuredLock) -> None:
        self._lock = lock

    def get(self) -> _Released:
        return self

    def __enter__(self) -> None:
        self._lock.__exit__(None, None, None)
        try:
            # The lock is not fair: without a moment in which this thread does nothing, it would get the lock again.
            time.sleep(MOMENT_S)
        except BaseException:
            self._lock.__enter__()
            raise

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self._lock.__enter__()


class _Waiting:
    __slots__ = ("confirmed", "is_dismissed", "session", "woken")

    def __init__(self, session: int, confirmed: int) -> None:
        self.session = session
        self.confirmed = confirmed
        self.woken = threading.Event()
        self.is_dismissed = False

    def dismiss(self) -> None:
        """Stop waiting. The watch then answers with its first reply, and does not ask the shard again."""
        self.is_dismissed = True
        self.woken.set()
