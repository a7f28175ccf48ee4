"""Reach: how an input outlasts an outage of its store. It plans nothing meanwhile, and its replays wait."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

from acker_client.source.errors import SourceError
from acker_client.source.storage.connecting import START_S
from acker_client.source.storage.listing import fixed_part
from acker_client.source.storage.store import Store
from acker_client.source.waiting import WAITS, Outage, OutOfReach, outlast

# For how long an answer means that the store can be reached.
ANSWER_S = 1.0


class Reach:
    """Whether the store of an input answers, and when to ask it again. ``store``: None for local files, which always
    answer. ``patterns``: the paths in it."""

    def __init__(
        self,
        store: Store | None,
        patterns: Sequence[str] = (),
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._store = store
        self._asked = [fixed_part(pattern) for pattern in patterns[:1]]
        self._clock, self._draw = clock, draw
        self._outage = Outage(str(store), clock)
        self._failures = 0
        self._due_s = self._answered_s = float("-inf")

    def begin(self, start: Callable[[], None]) -> None:
        """Call ``start``; repeat it for a while if the store is away."""
        outlast(start, str(self._store), START_S)
        self.note_answer()

    def may_ask(self) -> bool:
        """Whether it is time for the next call. After a call without an answer it is not, for some seconds."""
        return not self._failures or self._clock() >= self._due_s

    def note_away(self, error: OutOfReach) -> None:
        """Note a call without an answer. Logs the first one, and then a line a minute."""
        self._outage.note(str(error))
        self._due_s = self._clock() + WAITS.wait_s(self._failures, self._draw)
        self._failures += 1

    def note_answer(self) -> None:
        if self._store is not None:
            self._outage.note("")
            self._failures, self._answered_s = 0, self._clock()

    def is_reachable(self) -> bool:
        """Return whether the store answers; asks it if that is not known."""
        has_answered = not self._failures and self._clock() - self._answered_s <= ANSWER_S
        if self._store is None or has_answered:
            return True
        if not self.may_ask():
            return False
        try:
            self._store.entries(self._asked)
        except OutOfReach as error:
            self.note_away(error)
            return False
        except SourceError:
            pass  # This is an answer. The plan meets the error again, and reports it.
        self.note_answer()
        return True
