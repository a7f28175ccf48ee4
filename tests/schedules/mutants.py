"""Mutants: named patches, each of which makes a client break one promise. A mutant runs in the client's process.

Only this module uses internals of the client. Schedules and their oracle use its public API.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from acker_client.client import AckerClient
from acker_client.cluster import votes
from acker_client.errors import RETRYABLE
from acker_client.reports.sending import Sending
from acker_protocol.placement import Member


def leave_out_alone() -> None:
    """Stop waiting for a silent server once other replicas have answered a report, although the source has not left the
    server out."""
    excuse = Sending._excuse

    def excused(sending: Sending, member: Member) -> str | None:
        why = excuse(sending, member)
        return why if why or why is None or not sending.can_do_without(member) else "a mutant left it out"

    Sending._excuse = excused  # type: ignore[method-assign,assignment]


def drop_unanswered() -> None:
    """Drop the report and return when the time budget of a flush is spent."""
    send = AckerClient._send_oldest

    def drop(client: AckerClient, state: Any, budget_s: float) -> None:
        try:
            send(client, state, budget_s)
        except RETRYABLE:
            state.drop_oldest()

    AckerClient._send_oldest = drop  # type: ignore[method-assign,assignment]


def believe_the_first() -> None:
    """End a root when the first replica reports it. A replica that is left out ends the root, too."""
    count = votes.Votes.count_reports

    def first(self: votes.Votes, rows: votes.Rows, *given: Any) -> votes.Merged:
        self._spoken[rows] |= np.uint8(self._everybody)
        return count(self, rows, *given)

    votes.Votes.count_reports = first  # type: ignore[method-assign,assignment]


MUTANTS: dict[str, Callable[[], None]] = {
    each.__name__: each for each in (leave_out_alone, drop_unanswered, believe_the_first)
}
