"""Courier: carries calls and whole reports to the server until they are answered or their budget is spent.

Decides which answers are waited out, which are the caller's move, and what the error says. Knows no buffer and no
source.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from acker_client.core.backoff import Clock, Deadline, Patience, Random, Sleep
from acker_client.core.delivery import Delivery, Refusal
from acker_client.core.silence import Silence
from acker_client.errors import (
    AckerError,
    DeadlineExceeded,
    Overloaded,
    Rejected,
    Unavailable,
    UnknownBatch,
    UnknownSource,
)
from acker_client.members.connection import Connection, Greeted
from acker_client.settings import Settings
from acker_protocol.messages import Apply, ApplyReply, OpenBatchReply, SettleReply, Status, Transport

log = logging.getLogger("acker_client")

Reply = TypeVar("Reply")
Accepted = TypeVar("Accepted", OpenBatchReply, SettleReply)
Call = Callable[[Transport, float], Reply]
# Called with what is left of the budget when the server does not know the source.
Renew = Callable[[Patience], None]

_WAITED_OUT = {
    Status.NOT_OWNER: DeadlineExceeded,
    Status.OVERLOADED: Overloaded,
    Status.UNKNOWN_SOURCE: UnknownSource,
}
_HINTS = {
    Status.NOT_OWNER: "The server is handing its slots over; a longer budget_s waits that out",
    Status.OVERLOADED: "Emit less at a time, let outcomes be confirmed, or start the server with more --max-pending",
    Status.UNKNOWN_SOURCE: "The source has to be open, and watched more often than its lease lasts",
    Status.UNKNOWN_BATCH: "It was settled, never opened, or lost with the server's state; replay its roots",
    Status.INVALID: "Sending it again gives the same answer",
    Status.CONFLICT: "The same number was used before with other content",
}


class Courier:
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

    def accepted(self, call: Call[Accepted], what: str, patience: Patience, renew: Renew) -> Accepted:
        """Try until the answer is yes; an error when it is no for good, or when the budget is spent."""
        while True:
            reply = self.answer(call, patience)
            if reply.status in (Status.APPLIED, Status.DUPLICATE):
                return reply
            delay_ms = reply.retry_delay_ms if isinstance(reply, OpenBatchReply) else 0
            self._wait_out(Refusal(reply.status, reply.detail, delay_ms), what, patience, renew)

    def deliver(self, delivery: Delivery, patience: Patience, renew: Renew) -> None:
        """Send a report until every section of it has its final answer.

        When this raises, ``delivery`` still knows what was answered: delivering it again sends only the rest.
        """
        what = "report of updates" if delivery.inits is None else f"report of inits of batch {delivery.inits.batch}"
        while not delivery.done:
            delivery.fit(self.greeted(patience).message_bytes)
            for key, message in delivery.ready():
                reply = self.answer(_apply(message), patience)
                refusal = _counted(delivery, key, reply)
                if refusal is not None:
                    self._wait_out(refusal, what, patience, renew)
                    break
                patience.progressed()
        if delivery.result.conflict:
            log.warning(
                "%d sections of a report were counted before with other content: another attempt at the same work gave "
                "other records. Where they differ, the roots are replayed.",
                delivery.result.conflict,
            )
        if delivery.result.inits_conflicting:
            log.warning(
                "Root ids of a report that another batch, of this source or another, has pending: %d. They are LOST in "
                "both and replayed. Draw the base of every session at random.",
                delivery.result.inits_conflicting,
            )

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

    def _wait_out(self, refusal: Refusal, what: str, patience: Patience, renew: Renew) -> None:
        if refusal.status not in _WAITED_OUT:
            raise _refused(refusal, what)
        if refusal.status == Status.UNKNOWN_SOURCE:
            renew(patience)
        if not patience.wait(refusal.retry_delay_ms / 1000):
            budget = f"{patience.deadline.budget_s:g} s ({patience.tries} tries)"
            sentence = f"{what}: the server answered {_said(refusal)} for {budget}. {_HINTS[refusal.status]}."
            raise _WAITED_OUT[refusal.status](sentence)

    def _wait_after(self, error: Unavailable, patience: Patience) -> None:
        if patience.wait():
            return
        servers = ", ".join(self._settings.servers)
        raise Unavailable(
            f"no answer from the acker at {servers} within {patience.deadline.budget_s:g} s ({patience.tries} tries; "
            f"last: {error}). Is it running there? `acker serve` starts one; the address comes from AckerClient(...), "
            "spark.acker.servers or ACKER_SERVERS"
        ) from error


def _apply(message: Apply) -> Call[ApplyReply]:
    return lambda transport, timeout_s: transport.apply(message, timeout_s)


def _counted(delivery: Delivery, key: int, reply: ApplyReply) -> Refusal | None:
    try:
        return delivery.answered(key, reply)
    except ValueError as error:
        raise Rejected(f"the server's answer to a report cannot be right: {error}") from None


def _refused(refusal: Refusal, what: str) -> AckerError:
    kind = UnknownBatch if refusal.status == Status.UNKNOWN_BATCH else Rejected
    hint = _HINTS.get(refusal.status, "Install the same version of acker on both sides")
    return kind(f"{what}: the server answered {_said(refusal)}. {hint}.")


def _said(refusal: Refusal) -> str:
    return f"{refusal.status.name} ({refusal.detail})" if refusal.detail else refusal.status.name
