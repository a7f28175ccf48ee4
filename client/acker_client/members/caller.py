"""Caller: a call is tried until the server answers, whatever it says, or the budget is spent.

Decides how long one try may take, that a server which gave no answer is greeted anew, and what is said of a silence.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from acker_client.core.backoff import Clock, Deadline, Patience, Random, Sleep
from acker_client.core.silence import Silence
from acker_client.errors import Rejected, Unavailable
from acker_client.members.connection import Connection, Greeted
from acker_client.settings import Settings
from acker_protocol.messages import Transport

log = logging.getLogger("acker_client")

Reply = TypeVar("Reply")
Call = Callable[[Transport, float], Reply]


class Caller:
    """Thread-safe; belongs to one process."""

    def __init__(self, settings: Settings, connection: Connection, clock: Clock, sleep: Sleep, random: Random) -> None:
        self.connection = connection
        self._settings = settings
        self._clock = clock
        self._sleep = sleep
        self._random = random
        self._silence = Silence(", ".join(settings.servers))

    @property
    def silent_since(self) -> float | None:
        """When the first try began that has had no answer, nor any after it; None: the last one was answered."""
        return self._silence.since

    def patience(self, budget_s: float | None = None) -> Patience:
        """A new budget: that of the settings, unless one is given."""
        deadline = Deadline(self._settings.budget_s if budget_s is None else budget_s, self._clock)
        return Patience(deadline, self._sleep, self._random)

    def greeted(self, patience: Patience) -> Greeted:
        """A server that answered the handshake."""
        while True:
            asked_at = self._clock()
            try:
                greeted = self.connection.greeted(patience.deadline)
            except Unavailable as error:
                self._unanswered(asked_at, error)
                self._wait_after(error, patience)
            else:
                self._answered()
                return greeted

    def once(self, call: Call[Reply], deadline: Deadline, timeout_s: float) -> Reply:
        """One try; Unavailable when no answer came."""
        asked_at = self._clock()
        try:
            greeted = self.connection.greeted(deadline)
            reply = self._called(call, greeted, min(timeout_s, deadline.left_s))
        except Unavailable as error:
            self._unanswered(asked_at, error)
            raise
        except Rejected:
            self._answered()
            raise
        self._answered()
        return reply

    def answer(self, call: Call[Reply], patience: Patience) -> Reply:
        """Try until there is an answer, whatever it says."""
        while True:
            try:
                return self.once(call, patience.deadline, self._settings.call_timeout_s)
            except Unavailable as error:
                self._wait_after(error, patience)

    def _called(self, call: Call[Reply], greeted: Greeted, timeout_s: float) -> Reply:
        try:
            return call(greeted.transport, timeout_s)
        except Unavailable:
            self.connection.lost(greeted)
            raise

    def _unanswered(self, asked_at: float, error: Unavailable) -> None:
        line = self._silence.unanswered(asked_at, self._clock(), error)
        if line:
            log.warning(line)

    def _answered(self) -> None:
        if self._silence.since is None:
            return
        line = self._silence.answered(self._clock())
        if line:
            log.warning(line)

    def _wait_after(self, error: Unavailable, patience: Patience) -> None:
        if patience.wait():
            return
        servers = ", ".join(self._settings.servers)
        raise Unavailable(
            f"no answer from the acker at {servers} within {patience.deadline.budget_s:g} s ({patience.tries} tries; "
            f"last: {error}). Is it running there? `acker serve` starts one; the address comes from AckerClient(...), "
            "spark.acker.servers or ACKER_SERVERS"
        ) from error
