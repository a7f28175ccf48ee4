"""Workers: the threads that answer calls, and the handling of calls whose request does not arrive.

gRPC reads the request of a call in the thread that answers it, so a sender that stops in the middle of a message blocks
a thread. While other calls wait, an extra thread stands in for such a thread, up to a bound. A request must arrive
within ``receive_s``. Once the bound is reached, the oldest incomplete request is cancelled even earlier, though not
before ARRIVE_MIN_S. So senders of half messages do not block senders of whole messages.

Connections take turns. A connection is suspect while it has stalled requests, and for ``receive_s`` after one was
cancelled. Its calls then wait for one extra thread that all suspect connections share, and it has STALLED_SHARE threads
at most. So few connections cannot reach the bound. Does not import gRPC: the functions that cancel a call and find its
connection are parameters.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from acker_service.process.fair_queue import FairQueue

# A request that takes longer to arrive counts as stalled. Nearly all arrive within a millisecond.
PATIENCE_S = 0.05
# No request is cancelled earlier, since its sender may only be on a slow line.
ARRIVE_MIN_S = 0.5
# How many threads may wait for stalled requests, in addition to those that work.
STALLED_MAX = 64
# How many of them may wait for stalled requests of one connection.
STALLED_SHARE = 4
# How many threads :meth:`Workers.start` starts at most. The others start when calls need them.
READY_MAX = 4

Received = TypeVar("Received")


class _Call:
    """A call whose request is arriving. ``cancel``: None until its handler has begun."""

    __slots__ = ("cancel", "connection", "is_cancelled", "is_stalled", "since")

    def __init__(self, since: float, connection: Hashable) -> None:
        self.since = since
        self.connection = connection
        self.cancel: Callable[[], object] | None = None
        self.is_cancelled = self.is_stalled = False


class Workers(ThreadPoolExecutor):
    """A pool of ``size`` threads, and up to STALLED_MAX more while requests are stalled and other calls wait.

    gRPC accepts no other type than ThreadPoolExecutor. The threads are called ``acker-NAME_0`` and so on. Call
    :meth:`start` once, and :meth:`relieve` every few dozen milliseconds. At the start of each call, ``observe`` gets
    the seconds that the call has waited for a thread. ``connection_of`` returns the connection of a call from the
    arguments of :meth:`submit`; None: unknown, so the limits of one connection do not hold. ``is_shared``: a connection
    may have as many calls at work as there are threads for others, so a greedy one leaves threads free. Calls that are
    :meth:`parked` do not count.
    """

    def __init__(
        self,
        name: str,
        size: int,
        *,
        receive_s: float,
        clock: Callable[[], float],
        connection_of: Callable[..., Hashable] = lambda *args: None,
        is_shared: bool = False,
    ) -> None:
        super().__init__(1, thread_name_prefix=name)
        self.name, self._size = name, size
        self.observe: Callable[[float], None] = lambda waited_s: None
        self._receive_s, self._clock = receive_s, clock
        self._connection_of, self._is_shared = connection_of, is_shared
        self._changed = threading.Condition(threading.Lock())
        self._tasks: FairQueue[tuple[float, Future[Any], Callable[[], Any]]] = FairQueue()
        # The calls that have a thread, and by connection those that are not parked.
        self._busy = 0
        self._at_work: Counter[Hashable] = Counter()
        # By thread id, in the order in which they began.
        self._receiving: dict[int, _Call] = {}
        # How many requests `relieve` has found stalled: of each known connection that has some, and of all.
        self._stalled: Counter[Hashable] = Counter()
        self._stalled_count = 0
        # Connections of which a request was cancelled, and when. They are forgotten after `receive_s`.
        self._suspects: dict[Hashable, float] = {}
        # The thread that answers a call of a suspect connection, until that call is stalled, too.
        self._probing: int | None = None
        # Numbers of threads: alive, waiting for a task, started but not running yet, and ever started.
        self._count = self._idle = self._starting = self._started = 0
        self._is_closed = False
        self.cancelled = 0

    def start(self) -> None:
        """Start the first threads, so that calls are answered even if the system has no more threads later. Raises
        RuntimeError if it has none now."""
        with self._changed:
            for _ in range(min(self._size, READY_MAX)):
                if not self._start_thread():
                    raise RuntimeError(f"can't start a thread of the pool {self.name}")

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run ``fn`` in one of the threads, as soon as one is free."""
        future: Future[Any] = Future()
        connection = self._connection_of(*args)
        with self._changed:
            self._tasks.append(connection, (self._clock(), future, lambda: fn(*args, **kwargs)))
            if self._room(connection):
                self._wake_thread()
        return future

    @contextlib.contextmanager
    def parked(self, connection: Hashable) -> Iterator[None]:
        """Wait inside this context for something that may take long, while this thread has a call of ``connection``."""
        with self._changed:
            self._count_work(connection, -1)
            if connection in self._tasks:
                self._wake_thread()
        try:
            yield
        finally:
            with self._changed:
                self._count_work(connection, +1)

    def receive(
        self, cancel: Callable[[], object], receive: Callable[[], Received], connection: Hashable = None
    ) -> Received:
        """Return what ``receive()`` waits for: the request of the call that this thread answers, or, if that has
        arrived, that its caller reads a message. ``cancel()`` makes ``receive`` raise or return."""
        thread_id = threading.get_ident()
        with self._changed:
            call = self._receiving.setdefault(thread_id, _Call(self._clock(), connection))
            call.cancel = cancel
        try:
            return receive()
        finally:
            with self._changed:
                self._end_receiving(thread_id)

    def relieve(self) -> None:
        """Start extra threads if calls wait and requests are stalled, and cancel overdue requests."""
        with self._changed:
            now = self._clock()
            stalled = [call for call in self._receiving.values() if now - call.since > PATIENCE_S]
            if not stalled and not self._suspects and not self._tasks:
                return
            while self._suspects and now - next(iter(self._suspects.values())) > self._receive_s:
                del self._suspects[next(iter(self._suspects))]
            self._note_stalled(stalled)
            # No thread can be added, and fewer than `size` threads work.
            is_full = self._count >= self._size + STALLED_MAX and len(stalled) > STALLED_MAX
            for _ in range(min(self._ready - self._free, self._limit - self._count)):
                if not self._start_thread():
                    break
            # Idle threads look whether they may begin another call now, or are no longer needed.
            self._changed.notify_all()
            late = sum(now - since > PATIENCE_S for since in self._waiting())
            threads_needed = late - self._free if is_full else 0
            for number, call in enumerate(stalled):
                age_s = now - call.since
                if (number < threads_needed and age_s > ARRIVE_MIN_S) or age_s > self._receive_s:
                    self._cancel(call)

    @property
    def queued(self) -> int:
        """How many calls wait for a thread now."""
        return len(self._tasks)

    @property
    def waited_s(self) -> float:
        """How long the oldest call has waited for a thread; 0 if none waits. Calls that wait because of other calls of
        their connection do not count."""
        with self._changed:
            return self._clock() - min(self._waiting(), default=self._clock())

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let each thread end as soon as it is free."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        super().shutdown(wait=False)

    @property
    def _free(self) -> int:
        """How many threads can take a task as soon as they run."""
        return self._idle + self._starting

    @property
    def _limit(self) -> int:
        """How many threads there may be."""
        return self._size + min(STALLED_MAX, self._stalled_count) + bool(self._stalled or self._suspects)

    @property
    def _ready(self) -> int:
        """How many calls may begin now."""
        if not self._is_shared and not self._stalled and not self._suspects:
            return len(self._tasks)
        suspects = [connection for connection, _ in self._tasks if self._is_suspect(connection)]
        others = sum(
            min(len(tasks), self._room(connection))
            for connection, tasks in self._tasks
            if not self._is_suspect(connection)
        )
        return others + any(map(self._room, suspects))

    def _waiting(self) -> Iterator[float]:
        """Yield since when calls wait that only lack a thread."""
        for connection, tasks in self._tasks:
            if not self._is_suspect(connection) and self._room(connection):
                yield from (since for since, _, _ in tasks)

    def _is_suspect(self, connection: Hashable) -> bool:
        return connection in self._stalled or connection in self._suspects

    def _room(self, connection: Hashable) -> int:
        """How many more calls of a connection may begin now, if there are threads for them."""
        if self._is_suspect(connection):
            return int(self._probing is None and self._stalled[connection] < STALLED_SHARE)
        if not self._is_shared or connection is None:
            return sys.maxsize
        free = self._size - (self._busy - self._stalled_count)
        return max(0, free - self._at_work[connection])

    def _has_room(self, connection: Hashable) -> bool:
        return self._room(connection) > 0

    def _count_work(self, connection: Hashable, change: int) -> None:
        self._at_work[connection] += change
        if not self._at_work[connection]:
            del self._at_work[connection]

    def _wake_thread(self) -> None:
        """Let a thread look for a call that may begin."""
        self._changed.notify()
        if self._ready > self._free and self._count < self._limit:
            self._start_thread()

    def _note_stalled(self, stalled: list[_Call]) -> None:
        for call in stalled:
            if not call.is_stalled:
                call.is_stalled = True
                self._stalled_count += 1
                if call.connection is not None:
                    self._stalled[call.connection] += 1
        if self._probing is not None and self._receiving.get(self._probing) in stalled:
            self._probing = None

    def _end_receiving(self, thread_id: int) -> None:
        call = self._receiving.pop(thread_id, None)
        if call is None or not call.is_stalled:
            return
        self._stalled_count -= 1
        if call.connection is not None:
            self._stalled[call.connection] -= 1
            if not self._stalled[call.connection]:
                del self._stalled[call.connection]
        # Lets threads end that are too many now.
        self._changed.notify_all()

    def _cancel(self, call: _Call) -> None:
        # Caller holds the lock, so this call has not been answered yet.
        if call.cancel is not None and not call.is_cancelled:
            call.is_cancelled = True
            self.cancelled += 1
            if call.connection is not None:
                self._suspects.pop(call.connection, None)
                self._suspects[call.connection] = self._clock()
            call.cancel()

    def _start_thread(self) -> bool:
        thread = threading.Thread(target=self._work, name=f"acker-{self.name}_{self._started}", daemon=True)
        try:
            thread.start()
        except (RuntimeError, MemoryError):
            # The system has no more threads; the call waits for an existing one, or until `relieve` can start one.
            return False
        self._count += 1
        self._starting += 1
        self._started += 1
        return True

    def _work(self) -> None:
        is_new = True
        connection: Hashable = None
        while (task := self._next_task(is_new, connection)) is not None:
            is_new = False
            connection, future, run = task
            # HTTP cancels pages that nobody waits for any more.
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(run())
                except BaseException as error:  # noqa: BLE001  # goes to the caller that reads the result
                    future.set_exception(error)
            # A thread that waits for its next task must not keep the objects of the last task alive.
            del future, run, task

    def _next_task(self, is_new: bool, connection: Hashable) -> tuple[Hashable, Future[Any], Callable[[], Any]] | None:
        """Wait for the next task; None tells the thread to end. ``is_new``: the thread has had no task yet.
        ``connection``: that of its last task."""
        thread_id = threading.get_ident()
        with self._changed:
            if is_new:
                self._starting -= 1
            else:
                self._busy -= 1
                self._count_work(connection, -1)
            self._end_receiving(thread_id)
            if self._probing == thread_id:
                self._probing = None
            while (found := self._tasks.pop(self._has_room)) is None:
                if self._is_closed or self._count > self._limit:
                    self._count -= 1
                    return None
                self._idle += 1
                self._changed.wait()
                self._idle -= 1
            connection, (submitted, future, run) = found
            if self._is_suspect(connection):
                self._probing = thread_id
            self._busy += 1
            self._count_work(connection, +1)
            if self._is_shared and self._tasks:
                # The end of the last call may have made room for more than one.
                self._wake_thread()
            now = self._clock()
            self._receiving[thread_id] = _Call(now, connection)
        self.observe(now - submitted)
        return connection, future, run
