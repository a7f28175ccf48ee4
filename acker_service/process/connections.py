"""Connections: counts the connections of one group of callers, and says which of them are too many.

gRPC does not say when a connection begins and ends. So a connection counts from its first call until it has had no call
for IDLE_S. Decides which connections are too many: those that came when there were as many as allowed, until others
have gone. Refuses nothing itself.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

# A driver always has a call under way. The client closes other connections after this time, and the next one counts as
# another connection.
IDLE_S = 10.0


class Connections:
    """At most ``most`` connections are admitted at once. Thread-safe. ``clock`` is in seconds."""

    def __init__(self, most: int, clock: Callable[[], float]) -> None:
        self.most, self._clock = most, clock
        self._lock = threading.Lock()
        # Calls under way, by connection: of connections that are admitted, and of those that are too many.
        self._used: Counter[Hashable] = Counter()
        self._others: Counter[Hashable] = Counter()
        # Admitted connections without a call, and since when. The oldest is first.
        self._idle: dict[Hashable, float] = {}

    @property
    def count(self) -> int:
        """How many connections there are, with those that are too many."""
        with self._lock:
            self._forget_idle()
            # A connection that was refused may be admitted while its first call is still running.
            return len(self._used.keys() | self._idle.keys() | self._others.keys())

    @contextmanager
    def use(self, connection: Hashable) -> Iterator[bool]:
        """Count a connection during a call. Yields whether it is admitted."""
        with self._lock:
            is_admitted = self._admit(connection)
            calls = self._used if is_admitted else self._others
            calls[connection] += 1
        try:
            yield is_admitted
        finally:
            with self._lock:
                calls[connection] -= 1
                if not calls[connection]:
                    del calls[connection]
                    if is_admitted:
                        self._idle[connection] = self._clock()

    def _admit(self, connection: Hashable) -> bool:
        if connection in self._used or self._idle.pop(connection, None) is not None:
            return True
        self._forget_idle()
        return len(self._used) + len(self._idle) < self.most

    def _forget_idle(self) -> None:
        now = self._clock()
        while self._idle and now - next(iter(self._idle.values())) > IDLE_S:
            del self._idle[next(iter(self._idle))]
