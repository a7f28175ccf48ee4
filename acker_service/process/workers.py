"""Workers: the threads that answer calls, and what becomes of calls whose request does not arrive.

gRPC reads the request of a call in the thread that answers it, so a sender that stops in the middle of a message holds
a thread. Decides that such a thread is replaced while others wait, up to a bound; that a request has ``receive_s`` to
arrive; and that at the bound the one that has been arriving for longest is cancelled first, though not before it had
ARRIVE_MIN_S. So nobody who sends half a message is in the way of one who sends a whole one. Knows no gRPC: what
cancels a call comes in as a function.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

# A request that has not arrived by then stalls; nearly all are there within a millisecond.
PATIENCE_S = 0.05
# What a request has in any case: a sender on a slow line is none that stopped.
ARRIVE_MIN_S = 0.5
# Threads that may wait for stalling requests beside those that work.
STALLED_MAX = 64


class _Call:
    """A call of which the request is arriving. ``cancel``: None until its handler has begun."""

    __slots__ = ("cancel", "is_cancelled", "since")

    def __init__(self, since: float) -> None:
        self.since = since
        self.cancel: Callable[[], object] | None = None
        self.is_cancelled = False


class Workers(ThreadPoolExecutor):
    """``size`` threads, and up to STALLED_MAX more for as long as requests stall and other calls wait.

    It is a ThreadPoolExecutor since gRPC takes nothing else; its threads are called ``acker-NAME_0`` and so on.
    ``relieve`` is to be called every few dozen milliseconds. ``observe`` takes, at the start of each call, the seconds
    that it has waited for a thread.
    """

    def __init__(self, name: str, size: int, *, receive_s: float, clock: Callable[[], float]) -> None:
        super().__init__(1, thread_name_prefix=name)
        self.name, self._size = name, size
        self.observe: Callable[[float], None] = lambda waited_s: None
        self._receive_s, self._clock = receive_s, clock
        self._changed = threading.Condition(threading.Lock())
        self._tasks: deque[tuple[float, Future[Any], Callable[[], Any]]] = deque()
        # By thread, in the order in which they began.
        self._receiving: dict[int, _Call] = {}
        # Threads: all of them, those that wait for a task, those that were made and have not begun, all that ever were.
        self._count = self._idle = self._starting = self._made = 0
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
                self._hire()
        return future

    def receive(self, cancel: Callable[[], object], receive: Callable[[], bytes]) -> bytes:
        """The request of the call that the current thread answers; ``cancel`` makes ``receive`` raise."""
        me = threading.get_ident()
        with self._changed:
            call = self._receiving.get(me)
            if call is not None:
                call.cancel = cancel
        try:
            return receive()
        finally:
            with self._changed:
                self._receiving.pop(me, None)

    def relieve(self) -> None:
        """Replace threads whose requests stall, if calls wait; cancel the calls whose requests are overdue."""
        with self._changed:
            now = self._clock()
            stalled = [call for call in self._receiving.values() if now - call.since > PATIENCE_S]
            if not stalled:
                return
            # No thread can be added, and fewer work than are to work.
            is_full = self._count >= self._size + STALLED_MAX and len(stalled) > STALLED_MAX
            for _ in range(min(len(self._tasks) - self._free, self._limit(stalled) - self._count)):
                self._hire()
            late = sum(now - since > PATIENCE_S for since, _, _ in self._tasks)
            in_the_way = late - self._free if is_full else 0
            for number, call in enumerate(stalled):
                age_s = now - call.since
                if (number < in_the_way and age_s > ARRIVE_MIN_S) or age_s > self._receive_s:
                    self._cancel(call)

    @property
    def queued(self) -> int:
        """How many calls wait for a thread now."""
        return len(self._tasks)

    @property
    def waited_s(self) -> float:
        """For how long the call that waits longest has waited for a thread."""
        with self._changed:
            return self._clock() - self._tasks[0][0] if self._tasks else 0.0

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let the threads go as they become free."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        super().shutdown(wait=False)

    @property
    def _free(self) -> int:
        """Threads that take a task each as soon as they run."""
        return self._idle + self._starting

    def _limit(self, stalled: list[_Call]) -> int:
        return self._size + min(STALLED_MAX, len(stalled))

    def _cancel(self, call: _Call) -> None:
        # Under the lock: a call that is cancelled here has not been answered yet.
        if call.cancel is not None and not call.is_cancelled:
            call.is_cancelled = True
            self.cancelled += 1
            call.cancel()

    def _hire(self) -> None:
        thread = threading.Thread(target=self._work, name=f"acker-{self.name}_{self._made}", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            # The system has no thread for us; the call waits for one of those that there are.
            return
        self._count += 1
        self._starting += 1
        self._made += 1

    def _work(self) -> None:
        is_new = True
        while (task := self._next(is_new)) is not None:
            is_new = False
            future, run = task
            try:
                future.set_result(run())
            except BaseException as error:  # noqa: BLE001  # goes to whoever asks for the result
                future.set_exception(error)
            # What was done must not be kept alive by a thread that waits for the next one.
            del future, run, task

    def _next(self, is_new: bool) -> tuple[Future[Any], Callable[[], Any]] | None:
        """The next task, or None for a thread that is not needed any more. ``is_new``: its first one."""
        me = threading.get_ident()
        with self._changed:
            self._starting -= is_new
            self._receiving.pop(me, None)
            while not self._tasks:
                if self._is_closed or self._count > self._size:
                    self._count -= 1
                    return None
                self._idle += 1
                self._changed.wait()
                self._idle -= 1
            submitted, future, run = self._tasks.popleft()
            now = self._clock()
            self._receiving[me] = _Call(now)
        self.observe(now - submitted)
        return future, run
