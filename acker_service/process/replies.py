"""Replies: which calls may make a reply now, and the replies that their readers have not taken yet.

A few calls work at once, so that many calls do not compete with reports for the interpreter and the shard's lock. The
others wait; connections take turns. gRPC keeps a reply in memory until its reader has taken it. The memory of these
replies has a bound: beyond it, calls with large replies wait. Half of it is for connections that have taken all their
replies in the last ``send_s``, so slow readers do not delay the others. Beyond that half, the oldest reply is cut,
though not before SEND_MIN_S. A reply that is not taken within ``send_s`` is cut in any case. A client whose reply was
cut sends its call again. Does not import gRPC: the functions that cut a reply and tell of its end are parameters.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import Any

from acker_service.process.fair_queue import FairQueue

# How many calls work at once, apart from reports.
WORKING_MAX = 4
# Bytes that count for a call with a large reply while it works: the largest reply has 4 MiB, and gRPC copies it.
LARGE_BYTES = 8 << 20
# No reply is cut earlier, since its reader may only be on a slow line.
SEND_MIN_S = 0.5
# gRPC copies a reply (600 replies of 3.25 MB took 6.2 MB each). CALL_BYTES is an estimate of a call's own state.
COPIES = 2
CALL_BYTES = 16 << 10

# The connection of a call, and whether its reply is large.
_Turn = tuple[Hashable, bool]


class _Reply:
    """A reply that its reader has not taken yet."""

    __slots__ = ("bytes", "connection", "cut", "is_cut", "since")

    def __init__(self, since: float, connection: Hashable, bytes: int, cut: Callable[[], object]) -> None:
        self.since, self.connection, self.bytes, self.cut = since, connection, bytes, cut
        self.is_cut = False


class Replies:
    """The replies of one server. Thread-safe. Call :meth:`relieve` every few dozen milliseconds.

    ``max_bytes``: bound on the memory of replies that are not taken, two large replies at least.
    """

    def __init__(self, *, send_s: float, max_bytes: int, clock: Callable[[], float]) -> None:
        self._send_s, self._clock = send_s, clock
        self._max_bytes = max(max_bytes, 2 * LARGE_BYTES)
        self._lock = threading.Lock()
        # How many calls work, and how many of them have large replies.
        self._working = self._large = 0
        # Calls that wait for their turn, by connection and whether their replies are large.
        # A lock is held until the turn of its call.
        self._waiting: FairQueue[threading.Lock] = FairQueue()
        # In the order in which they were made.
        self._unread: dict[object, _Reply] = {}
        self._unread_by: Counter[Hashable] = Counter()
        # Connections of which a reply was cut, and when. They are forgotten after `send_s`.
        self._slow: dict[Hashable, float] = {}
        self.unread_bytes = 0
        self.cut = 0

    @contextlib.contextmanager
    def turn(
        self, connection: Hashable, *, is_large: bool
    ) -> Iterator[Callable[[], contextlib.AbstractContextManager[None]]]:
        """Wait for a turn to work, and end it with the context. ``is_large``: the reply may have megabytes.

        Yields ``paused``: inside ``with paused():`` other calls have the turn.
        """

        call, has_turn = (connection, is_large), False

        @contextlib.contextmanager
        def paused() -> Iterator[None]:
            nonlocal has_turn
            has_turn = False
            self._end_turn(call)
            try:
                yield
            finally:
                self._await_turn(call)
                has_turn = True

        self._await_turn(call)
        has_turn = True
        try:
            yield paused
        finally:
            # There may have been no memory to wait for the turn again.
            if has_turn:
                self._end_turn(call)

    def add(
        self,
        connection: Hashable,
        length: int,
        cut: Callable[[], object],
        on_end: Callable[[Callable[[], None]], bool],
    ) -> None:
        """Count a reply of ``length`` bytes until it is taken or cut: then ``on_end`` calls the function that it was
        given. ``on_end`` returns False if the call has ended already."""
        key = object()
        reply = _Reply(self._clock(), connection, COPIES * length + CALL_BYTES, cut)
        with self._lock:
            self._unread[key] = reply
            self._unread_by[connection] += 1
            self.unread_bytes += reply.bytes
        if not on_end(partial(self._remove, key)):
            self._remove(key)

    def relieve(self) -> None:
        """Cut the replies that were not taken in time."""
        overdue = []
        with self._lock:
            now = self._clock()
            too_many = self.unread_bytes - self._max_bytes // 2
            while self._slow and now - next(iter(self._slow.values())) > self._send_s:
                del self._slow[next(iter(self._slow))]
            for reply in self._unread.values():
                age_s = now - reply.since
                if age_s <= self._send_s and (age_s <= SEND_MIN_S or too_many <= 0):
                    break
                too_many -= reply.bytes
                if not reply.is_cut:
                    reply.is_cut = True
                    overdue.append(reply)
                    self._slow.pop(reply.connection, None)
                    self._slow[reply.connection] = now
            self.cut += len(overdue)
            # Connections that are forgotten now may begin calls.
            self._give_turns()
        for reply in overdue:
            reply.cut()

    def _remove(self, key: object) -> None:
        with self._lock:
            reply = self._unread.pop(key)
            self.unread_bytes -= reply.bytes
            self._unread_by[reply.connection] -= 1
            if not self._unread_by[reply.connection]:
                del self._unread_by[reply.connection]
            self._give_turns()

    def _await_turn(self, call: _Turn) -> None:
        # Must come first: once the call is in the queue, waiting for its turn must not need memory.
        begins = threading.Lock()
        begins.acquire()
        with self._lock:
            if self._working < WORKING_MAX and self._may_begin(call):
                self._begin(call)
                return
            self._waiting.append(call, begins)
        begins.acquire()

    def _end_turn(self, call: _Turn) -> None:
        with self._lock:
            self._working -= 1
            self._large -= call[1]
            self._give_turns()

    def _give_turns(self) -> None:
        """Let waiting calls begin. Caller holds the lock."""
        while self._working < WORKING_MAX and (found := self._waiting.pop(self._may_begin)) is not None:
            call, begins = found
            self._begin(call)
            begins.release()

    def _begin(self, call: Any) -> None:
        self._working += 1
        self._large += call[1]

    def _may_begin(self, call: Any) -> bool:
        connection, is_large = call
        if not is_large:
            return True
        is_slow = connection in self._unread_by or connection in self._slow
        bound = self._max_bytes // 2 if is_slow else self._max_bytes
        return self.unread_bytes + (self._large + 1) * LARGE_BYTES <= bound
