"""Workers: the threads that answer calls, and the handling of calls whose request does not arrive.

gRPC reads the request of a call in the thread that answers it, so a sender that stops in the middle of a message blocks
a thread. While other calls wait, an extra thread stands in for such a thread, up to a bound. A request must arrive
within ``receive_s``. Once the bound is reached, the oldest incomplete request is cancelled even earlier, though not
before ARRIVE_MIN_S. So senders of half messages do not block senders of whole messages. Does not import gRPC: the
function that cancels a call is a parameter.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

# A request that takes longer to arrive counts as stalled. Nearly all arrive within a millisecond.
PATIENCE_S = 0.05
# No request is cancelled earlier, since its sender may only be on a slow line.
ARRIVE_MIN_S = 0.5
# How many threads may wait for stalled requests, in addition to those that work.
STALLED_MAX = 64


class _Call:
    """A call whose request is arriving. ``cancel``: None until its handler has begun."""

    __slots__ = ("cancel", "is_cancelled", "since")

    def __init__(self, since: float) -> None:
        self.since = since
        self.cancel: Callable[[], object] | None = None
        self.is_cancelled = False


class Workers(ThreadPoolExecutor):
    """A pool of ``size`` threads, and up to STALLED_MAX more while requests are stalled and other calls wait.

    gRPC accepts no other type than ThreadPoolExecutor. The threads are called ``acker-NAME_0`` and so on. Call
    :meth:`relieve` every few dozen milliseconds. At the start of each call, ``observe`` gets the seconds that the call
    has waited for a thread.
    """

    def __init__(self, name: str, size: int, *, receive_s: float, clock: Callable[[], float]) -> None:
        super().__init__(1, thread_name_prefix=name)
        self.name, self._size = name, size
        self.observe: Callable[[float], None] = lambda waited_s: None
        self._receive_s, self._clock = receive_s, clock
        self._changed = threading.Condition(threading.Lock())
        self._tasks: deque[tuple[float, Future[Any], Callable[[], Any]]] = deque()
        # By thread id, in the order in which they began.
        self._receiving: dict[int, _Call] = {}
        # Numbers of threads: alive, waiting for a task, started but not running yet, and ever started.
        self._count = self._idle = self._starting = self._started = 0
        self._is_closed = False
        self.cancelled = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run ``fn`` in one of the threads, as soon as one is free."""
        future: Future[Any] = Future()
        with self._changed:
            self._tasks.append((self._clock(), future, lambda: fn(*args, **kwargs)))
            if self._free >= len(self._tasks):
                self._changed.notify()
            elif self._count < self._size:
                self._start_thread()
        return future

    def receive(self, cancel: Callable[[], object], receive: Callable[[], bytes]) -> bytes:
        """Return the request of the call that this thread answers. ``cancel()`` makes ``receive`` raise."""
        thread_id = threading.get_ident()
        with self._changed:
            call = self._receiving.get(thread_id)
            if call is not None:
                call.cancel = cancel
        try:
            return receive()
        finally:
            with self._changed:
                self._receiving.pop(thread_id, None)

    def relieve(self) -> None:
        """Start extra threads if calls wait and requests are stalled, and cancel overdue requests."""
        with self._changed:
            now = self._clock()
            stalled = [call for call in self._receiving.values() if now - call.since > PATIENCE_S]
            if not stalled:
                return
            # No thread can be added, and fewer than `size` threads work.
            is_full = self._count >= self._size + STALLED_MAX and len(stalled) > STALLED_MAX
            for _ in range(min(len(self._tasks) - self._free, self._limit(stalled) - self._count)):
                self._start_thread()
            late = sum(now - since > PATIENCE_S for since, _, _ in self._tasks)
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
        """How long the oldest waiting call has waited for a thread; 0 if none waits."""
        with self._changed:
            return self._clock() - self._tasks[0][0] if self._tasks else 0.0

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

    def _limit(self, stalled: list[_Call]) -> int:
        return self._size + min(STALLED_MAX, len(stalled))

    def _cancel(self, call: _Call) -> None:
        # Caller holds the lock, so this call has not been answered yet.
        if call.cancel is not None and not call.is_cancelled:
            call.is_cancelled = True
            self.cancelled += 1
            call.cancel()

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._work, name=f"acker-{self.name}_{self._started}", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            # The system has no more threads; the call waits for an existing one.
            return
        self._count += 1
        self._starting += 1
        self._started += 1

    def _work(self) -> None:
        is_new = True
        while (task := self._next_task(is_new)) is not None:
            is_new = False
            future, run = task
            try:
                future.set_result(run())
            except BaseException as error:  # noqa: BLE001  # goes to the caller that reads the result
                future.set_exception(error)
            # A thread that waits for its next task must not keep the objects of the last task alive.
            del future, run, task

    def _next_task(self, is_new: bool) -> tuple[Future[Any], Callable[[], Any]] | None:
        """Wait for the next task; None tells the thread to end. ``is_new``: the thread has had no task yet."""
        thread_id = threading.get_ident()
        with self._changed:
            self._starting -= is_new
            self._receiving.pop(thread_id, None)
            while not self._tasks:
                if self._is_closed or self._count > self._size:
                    self._count -= 1
                    return None
                self._idle += 1
                self._changed.wait()
                self._idle -= 1
            submitted, future, run = self._tasks.popleft()
            now = self._clock()
            self._receiving[thread_id] = _Call(now)
        self.observe(now - submitted)
        return future, run
