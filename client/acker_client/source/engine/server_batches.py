"""Server batches: a batch at the servers, from reserving its room to settling it.

Decides how long the source waits for servers: up to its ``deadline_s``. Decides nothing about records.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import NoReturn

from acker_client.client import AckerClient
from acker_client.cluster.scope import BatchScope
from acker_client.errors import RETRYABLE, AckerError, Overloaded, Rejected, UnknownBatch
from acker_client.pins import Pin
from acker_client.source.engine.environment import Environment
from acker_client.source.engine.no_servers import NoServers
from acker_client.source.errors import SourceError
from acker_client.source.records.guarantee import Guarantee
from acker_protocol.messages import Settlement

log = logging.getLogger("acker_client.source")

# Longest pause between two attempts. Each pause is random.
PAUSE_S = 1.0
# Minimum time for an attempt to open a batch, even if the deadline is nearer.
TRY_S = 1.0
# After this silence of the servers, `settle_at_servers_once` makes no attempt.
SILENT_S = 10.0
# If no server accepts a batch, the error says one of these about the records.
NOTHING_LOST = "nothing is lost"
SAVED_AS_DONE = "its records are saved as done (guarantee='at_most_once') and are not read again"


class NoRoom(Exception):
    """The servers have no room for a batch now, or do not answer. Settling another batch may make room."""


class ServerBatches:
    """The batches of one session. ``guarantee`` decides what an error says about the records of a batch that no server
    accepts."""

    def __init__(
        self,
        client: AckerClient | NoServers,
        environment: Environment,
        deadline_s: float,
        guarantee: Guarantee = Guarantee.AT_LEAST_ONCE,
    ) -> None:
        self._client = client
        self._fate = SAVED_AS_DONE if guarantee is Guarantee.AT_MOST_ONCE else NOTHING_LOST
        self._environment = environment
        self._deadline_s = deadline_s

    def reserve_batch(
        self,
        scope: BatchScope,
        up_to: int,
        *,
        held: bool = True,
        message_timeout_s: float | None = None,
        waits: bool = True,
    ) -> Pin | None:
        """Open a batch of at most ``up_to`` records. Returns its pin: the servers of its roots (None: tracking is off).

        Waits up to the deadline while a server has no room (backpressure) or is away. With ``waits=False``, makes one
        attempt of at most ``TRY_S``, and raises ``NoRoom`` if that fails.
        """
        deadline_s = self._environment.clock() + (self._deadline_s if waits else 0.0)
        while True:
            budget_s = min(self._client.settings.budget_s, max(TRY_S, deadline_s - self._environment.clock()))
            try:
                return self._client.open_batch(
                    scope.number,
                    scope.first,
                    up_to,
                    held=held,
                    message_timeout_s=message_timeout_s,
                    budget_s=budget_s,
                )
            except Rejected as error:
                _raise_refused(error, up_to, self._fate)
            except RETRYABLE as error:
                if not waits:
                    raise NoRoom from error
                if self._environment.clock() >= deadline_s:
                    _raise_given_up(error, up_to, self._deadline_s, self._fate)
                log.warning("batch %d is not open yet: %s", scope.number, error)
                self._environment.sleep(self._environment.draw() * PAUSE_S)

    def settle_at_servers(self, number: int, settlement: Settlement, is_lost: Callable[[], bool]) -> bool:
        """Settle a batch, with retries up to the deadline. Returns whether it is settled.

        Calls ``is_lost`` after each failed try, and gives up when it returns True.
        """
        deadline_s = self._environment.clock() + self._deadline_s
        while True:
            try:
                self._client.settle(number, settlement)
            except RETRYABLE as problem:
                if is_lost() or self._environment.clock() >= deadline_s:
                    log.warning("batch %d could not be settled: %s", number, problem)
                    return False
                self._environment.sleep(self._environment.draw() * PAUSE_S)
            except UnknownBatch as problem:
                log.warning("%s", problem)
                return False
            else:
                return True

    def settle_at_servers_once(self, number: int, settlement: Settlement) -> bool:
        """Settle a batch with one try, or with none if the servers are silent. Returns whether it is settled."""
        try:
            if self._client.silent_for_s < SILENT_S:
                self._client.settle(number, settlement)
                return True
        except AckerError as problem:
            log.warning("batch %d was left open: %s", number, problem)
        return False

    def abandon_at_servers(self, number: int) -> bool:
        """Settle a batch as *abandon*, in one try. Returns whether it is settled."""
        return self.settle_at_servers_once(number, Settlement.ABANDON)

    def leave_out_servers(self, number: int, servers: frozenset[int]) -> None:
        """Ignore outcomes of a batch from ``servers``, because tasks of the batch did not report to them."""
        if servers:
            log.warning("batch %d: tasks went on without servers %s", number, ", ".join(map(str, sorted(servers))))
            self._client.leave_out(number, servers)

    def forget_batch(self, number: int) -> None:
        """Ignore further outcomes of a batch that has ended here."""
        with contextlib.suppress(AckerError):
            self._client.forget_batch(number)


def _raise_refused(error: AckerError, up_to: int, fate: str) -> NoReturn:
    raise SourceError(
        f"the server refuses a batch of {up_to} records ({error}): lower batch_records, or give the server a higher"
        f" --max-pending; {fate}"
    ) from error


def _raise_given_up(error: AckerError, up_to: int, deadline_s: float, fate: str) -> NoReturn:
    if isinstance(error, Overloaded):
        raise SourceError(
            f"the server had no room for a batch of {up_to} records for {deadline_s:g} s ({error}): lower"
            f" batch_records, or give the server a higher --max-pending; {fate}"
        ) from error
    raise SourceError(
        f"no batch could be opened for {deadline_s:g} s ({error}): start again when the server is there; {fate}"
    ) from error
