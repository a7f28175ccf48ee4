"""No servers: answers a run whose source has tracking off.

Decides the outcomes of a batch by its settlement alone: *done* acks every record of the batch, and *abandon* loses
every one. So the rest of the run (evidence, retries in smaller pieces, checkpoint, dead letters) is the same with
tracking off.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Iterable

import numpy as np

from acker_client.cluster.watched import WatchResult
from acker_client.settings import Settings
from acker_protocol.ids import root_ids
from acker_protocol.messages import Cause, Outcomes, Reason, Settlement, Verdict


class NoServers:
    """Stands in for the servers, and for the watcher of their outcomes."""

    settings = Settings((), tracking=False)
    silent_for_s = 0.0

    def __init__(self) -> None:
        self._open: dict[int, tuple[int, int]] = {}
        self._results: deque[WatchResult] = deque()

    def open_source(self, name: str, *, lease_s: float) -> int:
        return 1 + secrets.randbits(62)

    def close_source(self) -> None:
        """Do nothing: no server knows the source."""

    def close(self) -> None:
        """Do nothing: there is no connection."""

    def open_batch(
        self,
        number: int,
        first: int,
        up_to: int,
        *,
        held: bool,
        message_timeout_s: float | None,
        budget_s: float | None,
    ) -> None:
        self._open[number] = first, up_to

    def settle(self, number: int, settlement: Settlement) -> None:
        first, up_to = self._open.pop(number)
        is_done = settlement == Settlement.DONE
        roots = root_ids(first, np.arange(up_to, dtype=np.uint64))
        verdicts = np.full(up_to, Verdict.ACKED if is_done else Verdict.LOST, np.uint8)
        reasons: tuple[Reason, ...] = () if is_done else (Cause.ABANDONED,)
        reason_ids = np.full(up_to, len(reasons), np.uint32)
        self._results.append(WatchResult(Outcomes(roots, verdicts, reason_ids, reasons), settled=(number,)))

    def leave_out(self, number: int, servers: Iterable[int]) -> None:
        """Do nothing: no task reports to a server."""

    def forget_batch(self, number: int) -> None:
        self._open.pop(number, None)

    def next_result(self, timeout_s: float) -> WatchResult | None:
        """Return the outcomes of the next settled batch; never waits."""
        return self._results.popleft() if self._results else None

    def stop(self) -> None:
        """Do nothing: no thread runs."""
