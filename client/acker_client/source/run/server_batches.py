"""Server batches: a batch's room at the server, from opening it to settling it.

Decides how long the server is waited for (the source's own deadline), and that a batch which the server forgot while
Spark was at work is opened again, so that its tasks can end. Decides nothing about records.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import NoReturn

from acker_client.core.scope import BatchScope
from acker_client.errors import RETRYABLE, AckerError, Closed, Overloaded, Rejected, UnknownBatch
from acker_client.plain.client import AckerClient
from acker_client.source.errors import SourceError
from acker_client.source.run.environment import Environment
from acker_protocol.messages import Settlement, SettleReply

log = logging.getLogger("acker_client.source")

PAUSE_S = 1.0
# How long the last attempt to open a batch may take at least, and how long one to open it again may at most.
TRY_S = 1.0
REOPEN_S = 3.0
# A server that has been silent for so long is not asked to settle a batch whose loop was left.
SILENT_S = 10.0

Idle = Callable[[], bool]


class ServerBatches:
    """The batches of one session, one at a time. ``reopen`` is called by the watcher's thread, the rest by the
    run's."""

    def __init__(self, client: AckerClient, environment: Environment, deadline_s: float) -> None:
        self._client = client
        self._environment = environment
        self._deadline_s = deadline_s
        self._lock = threading.Lock()
        self._open: tuple[BatchScope, int] | None = None

    def reserve(self, scope: BatchScope, up_to: int) -> int | None:
        """Open a batch; waits as long as the server has no room (backpressure) or is away, up to the deadline.

        Returns the generation in which it is open: one that was opened in two of them is opened again.
        """
        # Before it is asked for: the server may lose it between its answer and our next line.
        with self._lock:
            self._open = scope, up_to
        try:
            return self._opened(scope, up_to)
        except BaseException:
            # Nobody will work on it: it is not to be opened again.
            with self._lock:
                self._open = None
            raise

    def _opened(self, scope: BatchScope, up_to: int) -> int | None:
        deadline_s = self._environment.clock() + self._deadline_s
        while True:
            generation = self._client.generation
            budget_s = min(self._client.settings.budget_s, max(TRY_S, deadline_s - self._environment.clock()))
            try:
                self._client.open_batch(scope.number, scope.first, up_to, budget_s=budget_s)
            except Rejected as error:
                _refused(error, up_to)
            except RETRYABLE as error:
                if self._environment.clock() >= deadline_s:
                    _given_up(error, up_to, self._deadline_s)
                log.warning("batch %d is not open yet: %s", scope.number, error)
                self._environment.sleep(self._environment.draw() * PAUSE_S)
            else:
                if self._client.generation == generation:
                    return generation

    def reopen(self) -> None:
        """The server came back without its state, while Spark may be at work: open the batch again. Its roots are
        LOST at the source all the same, whatever becomes of them there."""
        with self._lock:
            if self._open is None:
                return
            scope, up_to = self._open
            # The watcher, whose thread this is, has the lease to renew meanwhile.
            budget_s = min(REOPEN_S, self._client.lease_s / 3)
            try:
                self._client.open_batch(scope.number, scope.first, up_to, budget_s=budget_s)
            except Closed:
                return
            except AckerError as error:
                log.warning("batch %d could not be opened again: %s", scope.number, error)

    def settle(self, number: int, settlement: Settlement, is_lost: Idle) -> SettleReply | None:
        """Settle a batch, as long as it takes up to the deadline. None: the server does not know it, or is gone.

        ``is_lost`` is asked between the tries: it hears what the watcher has to say, and whether the batch is lost by
        it.
        """
        deadline_s = self._environment.clock() + self._deadline_s
        while True:
            try:
                return self._settle(number, settlement)
            except RETRYABLE as problem:
                if is_lost() or self._environment.clock() >= deadline_s:
                    log.warning("batch %d could not be settled: %s", number, problem)
                    return None
                self._environment.sleep(self._environment.draw() * PAUSE_S)

    def settle_once(self, number: int, settlement: Settlement) -> SettleReply | None:
        """Settle a batch in one budget, and not at all when the server is silent anyway. None: it was not settled."""
        try:
            if self._client.silent_for_s < SILENT_S:
                return self._settle(number, settlement)
        except AckerError as problem:
            log.warning("batch %d was left open: %s", number, problem)
        return None

    def _settle(self, number: int, settlement: Settlement) -> SettleReply | None:
        with self._lock:
            self._open = None
        try:
            return self._client.settle(number, settlement)
        except UnknownBatch as problem:
            log.warning("batch %d is not known to the server any more: %s", number, problem)
            return None


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
