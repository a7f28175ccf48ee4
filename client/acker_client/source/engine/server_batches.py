"""Server batches: a batch's room at the server, from opening it to settling it.

Decides how long servers are waited for: the source's own deadline. Decides nothing about records.
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
from acker_client.source.errors import SourceError
from acker_protocol.messages import Settlement

log = logging.getLogger("acker_client.source")

PAUSE_S = 1.0
# How long the last attempt to open a batch may take at least.
TRY_S = 1.0
# Servers that have been silent for so long are not asked to settle a batch whose loop was left.
SILENT_S = 10.0

Idle = Callable[[], bool]


class ServerBatches:
    """The batches of one session, one at a time."""

    def __init__(self, client: AckerClient, environment: Environment, deadline_s: float) -> None:
        self._client = client
        self._environment = environment
        self._deadline_s = deadline_s

    def reserve(
        self, scope: BatchScope, up_to: int, *, held: bool = True, message_timeout_s: float | None = None
    ) -> Pin:
        """Open a batch; waits as long as a server has no room (backpressure) or is away, up to the deadline. Returns
        where its roots live."""
        deadline_s = self._environment.clock() + self._deadline_s
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
                _refused(error, up_to)
            except RETRYABLE as error:
                if self._environment.clock() >= deadline_s:
                    _given_up(error, up_to, self._deadline_s)
                log.warning("batch %d is not open yet: %s", scope.number, error)
                self._environment.sleep(self._environment.draw() * PAUSE_S)

    def settle(self, number: int, settlement: Settlement, is_lost: Idle) -> bool:
        """Settle a batch, as long as it takes up to the deadline; whether it was.

        ``is_lost`` is asked between the tries: it hears what the watcher has to say, and whether the batch is lost by
        it.
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

    def settle_once(self, number: int, settlement: Settlement) -> bool:
        """Settle a batch in one budget, and not at all when the servers are silent anyway; whether it was."""
        try:
            if self._client.silent_for_s < SILENT_S:
                self._client.settle(number, settlement)
                return True
        except AckerError as problem:
            log.warning("batch %d was left open: %s", number, problem)
        return False

    def leave_out(self, number: int, servers: frozenset[int]) -> None:
        """Servers that tasks have reported without have no say in a batch."""
        if servers:
            log.warning("batch %d: tasks went on without servers %s", number, ", ".join(map(str, sorted(servers))))
            self._client.leave_out(number, servers)

    def forget(self, number: int) -> None:
        """It has ended here, whatever becomes of it at the servers."""
        with contextlib.suppress(AckerError):
            self._client.forget_batch(number)


def _refused(error: AckerError, up_to: int) -> NoReturn:
    raise SourceError(
        f"the server refuses a batch of {up_to} records ({error}): lower batch_records, or give the server a higher"
        " --max-pending; nothing is lost"
    ) from error


def _given_up(error: AckerError, up_to: int, deadline_s: float) -> NoReturn:
    if isinstance(error, Overloaded):
        raise SourceError(
            f"the server had no room for a batch of {up_to} records for {deadline_s:g} s ({error}): lower"
            " batch_records, or give the server a higher --max-pending; nothing is lost"
        ) from error
    raise SourceError(
        f"no batch could be opened for {deadline_s:g} s ({error}); nothing is lost: start again when the server is"
        " there"
    ) from error
