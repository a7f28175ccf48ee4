"""Caller: tries a call to one server until the server answers, with a reply or a refusal, or the time is spent.

Decides how long one try may take, when the server is greeted again, and what is logged about a silence.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

from acker_client.backoff import Clock, Deadline, Patience
from acker_client.errors import Rejected, Unavailable
from acker_client.rpc.connection import Connection, Greeted
from acker_client.rpc.silence import Silence
from acker_client.settings import Settings
from acker_protocol.messages import Transport

log = logging.getLogger("acker_client")

Reply = TypeVar("Reply")
Call = Callable[[Transport, float], Reply]


class Caller:
    """Thread-safe; belongs to one process. ``heard`` is called with each reply."""

    def __init__(
        self, settings: Settings, connection: Connection, clock: Clock, heard: Callable[[Any], None] = lambda _: None
    ) -> None:
        self.connection = connection
        self._settings = settings
        self._clock = clock
        self._heard = heard
        self._silence = Silence(connection.address)

    @property
    def silent_since(self) -> float | None:
        """When the current silence began: the start of its first try. None if the last try was answered."""
        return self._silence.since

    @property
    def silent_s(self) -> float:
        """How long the server has not answered, in seconds; 0 if the last try was answered."""
        return self._silence.lasts_s(self._clock())

    @property
    def heard_at(self) -> float:
        """When the server last answered; minus infinity if never."""
        return self._silence.heard_at

    def shown_silent_s(self, begun_at: float) -> float:
        """Return the seconds of silence that tries have proven: from ``begun_at`` at the earliest, to the last try."""
        return self._silence.shown_s(self._clock(), begun_at)

    def greeted_once(self, deadline: Deadline) -> Greeted:
        """Try the handshake once, if it was not made before. Raises Unavailable if no answer comes."""
        return self._greeted_by(self.connection.greeted, deadline)

    def greet(self, deadline: Deadline) -> Greeted:
        """Try the handshake once, even if it was made before, as the server may have changed."""
        return self._greeted_by(self.connection.greet, deadline)

    def _greeted_by(self, greet: Callable[[Deadline], Greeted], deadline: Deadline) -> Greeted:
        asked_at = self._clock()
        try:
            greeted = greet(deadline)
        except Unavailable as error:
            self._unanswered(asked_at, min(self._settings.call_timeout_s, deadline.budget_s), error)
            raise
        self._answered(greeted.hello)
        return greeted

    def once(self, call: Call[Reply], deadline: Deadline, timeout_s: float | None = None) -> Reply:
        """Try once, with ``timeout_s`` (None: the timeout of the settings). Raises Unavailable if no answer comes."""
        asked_at, longest_s = self._clock(), min(self._settings.call_timeout_s, deadline.budget_s)
        try:
            greeted = self.connection.greeted(deadline)
            limit_s = self._settings.call_timeout_s if timeout_s is None else timeout_s
            asked_at, longest_s = self._clock(), min(limit_s, deadline.left_s)
            reply = self._called(call, greeted, longest_s)
        except Unavailable as error:
            self._unanswered(asked_at, longest_s, error)
            raise
        except Rejected:
            self._answered(None)
            raise
        self._answered(reply)
        return reply

    def _called(self, call: Call[Reply], greeted: Greeted, timeout_s: float) -> Reply:
        try:
            return call(greeted.transport, timeout_s)
        except Unavailable:
            self.connection.lost(greeted)
            raise

    def _unanswered(self, asked_at: float, longest_s: float, error: Unavailable) -> None:
        """Note a try that could take ``longest_s``. If it took longer, this process was paused meanwhile. The pause
        shows no silence of the server."""
        now = self._clock()
        line = self._silence.unanswered(max(asked_at, now - longest_s), now, error)
        if line:
            log.warning(line)

    def _answered(self, reply: object) -> None:
        if reply is not None:
            self._heard(reply)
        line = self._silence.answered(self._clock())
        if line:
            log.warning(line)


class Retrying:
    """Calls that are retried. Each try first calls ``find`` to get the caller, as the server may have moved."""

    def __init__(self, find: Callable[[], Caller]) -> None:
        self.find = find

    def greeted(self, patience: Patience) -> Greeted:
        """Try the handshake until the server answers, and return the server."""
        return self._until_answered(lambda caller: caller.greeted_once(patience.deadline), patience)

    def answer(self, call: Call[Reply], patience: Patience) -> Reply:
        """Try until there is an answer, and return it, whatever it says."""
        return self._until_answered(lambda caller: caller.once(call, patience.deadline), patience)

    def _until_answered(self, once: Callable[[Caller], Reply], patience: Patience) -> Reply:
        while True:
            caller = self.find()
            try:
                return once(caller)
            except Unavailable as error:
                if not patience.wait():
                    raise unanswered(caller.connection.address, patience, error) from error


def unanswered(servers: str, patience: Patience, error: Unavailable) -> Unavailable:
    """Return the error for a spent budget."""
    return Unavailable(
        f"no answer from the acker at {servers} within {patience.deadline.budget_s:g} s ({patience.tries} tries; "
        f"last: {error}). Is it running there? `acker serve` starts one; the address comes from AckerClient(...), "
        "spark.acker.servers or ACKER_SERVERS"
    )
