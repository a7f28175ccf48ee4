"""Kinesis's asking: how long AWS is waited for when it does not answer, and how a shard is put off."""

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

# AWS allows five reads a second of one shard, to all who read it together.
READ_INTERVAL_S = 0.2
# How long to try at the start, and how long to go without an answer later.
START_S = 20.0
SILENCE_S = 300.0
WAITS = Backoff(first_s=0.5, cap_s=10.0)

# So often in a row a shard may be throttled without a word.
THROTTLED_USUALLY = 8

TO_DO = "see to the network, endpoint_url= and region=, and start again; nothing is lost"


class Asking:
    """What is known of how the service answers. Times are seconds of ``clock``."""

    def __init__(self, clock: Clock, sleep: Sleep, random: Random) -> None:
        self._clock, self._sleep, self._random = clock, sleep, random
        self._silent_since_s: float | None = None

    def patiently(self, call: Callable[[], T]) -> T:
        """Call until there is an answer, for a while. Raises ``SourceError``."""
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
                self.answered()
                return answer

    def answered(self) -> None:
        self._silent_since_s = None

    def note(self, error: Exception) -> None:
        """A call failed. Raises ``SourceError`` when none was answered for long: somebody has to look."""
        if not isinstance(error, Unanswered):
            self.answered()
            return
        now = self._clock()
        since_s = self._silent_since_s = now if self._silent_since_s is None else self._silent_since_s
        if now - since_s >= SILENCE_S:
            raise SourceError(f"no answer from Kinesis for {now - since_s:.0f} s ({error}): {TO_DO}")

    def put_off(self, shard: ShardReading, error: Exception) -> None:
        """A read of a shard failed: it is due again later, and ever later."""
        shard.due_s = self._clock() + READ_INTERVAL_S + WAITS.wait_s(shard.failures, self._random)
        shard.failures += 1
        if shard.failures.bit_count() == 1:  # the first, and ever fewer of those that follow it
            # Reading what is old is as fast as AWS allows, so now and then it says no.
            is_usual = isinstance(error, Throttled) and shard.failures < THROTTLED_USUALLY
            level = logging.DEBUG if is_usual else logging.WARNING
            log.log(level, "shard %s: tried again later, %d failures in a row (%s)", shard.name, shard.failures, error)
        self.note(error)
