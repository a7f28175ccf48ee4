"""Retries of calls to Kinesis: how long to wait for AWS, and when to poll a shard again after a failure."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from acker_client.backoff import Backoff, Clock, Deadline, Patience, Random, Sleep
from acker_client.source.errors import SourceError
from acker_client.source.kinesis.connection import Throttled, Unanswered
from acker_client.source.kinesis.shard import ShardReading

log = logging.getLogger("acker_client.source")

T = TypeVar("T")

# AWS allows five reads a second of one shard, for all its readers together.
READ_INTERVAL_S = 0.2
# How long to try at the start, and how long AWS may be silent later.
START_S = 20.0
SILENCE_S = 300.0
WAITS = Backoff(first_s=0.5, cap_s=10.0)

# The number of throttled reads in a row that are logged on debug level only.
THROTTLED_USUALLY = 8

TO_DO = "check the network, endpoint_url= and region=, and start again; nothing is lost"


class Asking:
    """Retries calls, and keeps track of whether the service answers. Times are seconds of ``clock``."""

    def __init__(self, clock: Clock, sleep: Sleep, random: Random) -> None:
        self._clock, self._sleep, self._random = clock, sleep, random
        self._silent_since_s: float | None = None

    def retry(self, call: Callable[[], T]) -> T:
        """Repeat a call until it succeeds, for at most ``START_S``. Raises ``SourceError``."""
        patience = Patience(Deadline(START_S, self._clock), self._sleep, self._random, WAITS)
        while True:
            try:
                answer = call()
            except (Throttled, Unanswered) as error:
                if not patience.wait():
                    raise SourceError(
                        f"Kinesis cannot be asked: {error}; tried {patience.tries} times in {START_S:.0f} s: {TO_DO}"
                    ) from None
            else:
                self.note_answer()
                return answer

    def note_answer(self) -> None:
        self._silent_since_s = None

    def note_failure(self, error: Exception) -> None:
        """Note a failed call. Raises ``SourceError`` if no call was answered for ``SILENCE_S``."""
        if not isinstance(error, Unanswered):
            self.note_answer()
            return
        now = self._clock()
        since_s = self._silent_since_s = now if self._silent_since_s is None else self._silent_since_s
        if now - since_s >= SILENCE_S:
            raise SourceError(f"no answer from Kinesis for {now - since_s:.0f} s ({error}): {TO_DO}")

    def postpone(self, shard: ShardReading, error: Exception) -> None:
        """Note a failed read of a shard, and delay its next read with growing waits."""
        shard.due_s = self._clock() + READ_INTERVAL_S + WAITS.wait_s(shard.failures, self._random)
        shard.failures += 1
        if shard.failures.bit_count() == 1:  # logs failures 1, 2, 4, 8 and so on
            # Old records are read as fast as AWS allows, so it sometimes throttles.
            is_usual = isinstance(error, Throttled) and shard.failures < THROTTLED_USUALLY
            level = logging.DEBUG if is_usual else logging.WARNING
            log.log(level, "shard %s: tried again later, %d failures in a row (%s)", shard.name, shard.failures, error)
        self.note_failure(error)
