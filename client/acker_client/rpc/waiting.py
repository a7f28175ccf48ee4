"""Waiting: whether to retry after an answer that is not a success.

Decides whether to wait, within the budget, or to raise an error at once.
"""

from __future__ import annotations

from collections.abc import Callable

from acker_client.backoff import Patience
from acker_client.errors import AckerError, Draining, Overloaded, Rejected, UnknownBatch, UnknownSource
from acker_client.rpc.delivery import ErrorReply
from acker_protocol.messages import Status

# Called with the rest of the budget if the server does not know the source.
Renew = Callable[[Patience], None]

_WAITED_OUT = {
    Status.OVERLOADED: Overloaded,
    Status.UNKNOWN_SOURCE: UnknownSource,
}
_KINDS = {Status.UNKNOWN_BATCH: UnknownBatch, Status.DRAINING: Draining}
_HINTS = {
    Status.OVERLOADED: "Emit less at a time, let outcomes be confirmed, or start the server with more --max-memory "
    "(--max-pending, where that is given)",
    Status.UNKNOWN_SOURCE: "The source has to be open, and watched more often than its lease lasts",
    Status.UNKNOWN_BATCH: "It was settled, never opened, or lost with the server's state; replay its roots",
    Status.INVALID: "Sending it again gives the same answer",
    Status.DRAINING: "It is about to stop; new sources and batches go to another server",
    Status.CONFLICT: "The same number was used before with other content",
}


def wait_out(error: ErrorReply, what: str, patience: Patience, renew: Renew) -> None:
    """Wait until ``what`` may be tried again. Raises if no retry can help, or if the budget ends first."""
    if error.status not in _WAITED_OUT:
        raise _refused(error, what)
    if error.status == Status.UNKNOWN_SOURCE:
        renew(patience)
    if not patience.wait(error.retry_delay_ms / 1000):
        budget = f"{patience.deadline.budget_s:g} s ({patience.tries} tries)"
        sentence = f"{what}: the server answered {_said(error)} for {budget}. {_HINTS[error.status]}."
        raise _WAITED_OUT[error.status](sentence)


def _refused(error: ErrorReply, what: str) -> AckerError:
    kind = _KINDS.get(error.status, Rejected)
    hint = _HINTS.get(error.status, "Install the same version of acker on both sides")
    return kind(f"{what}: the server answered {_said(error)}. {hint}.")


def _said(error: ErrorReply) -> str:
    return f"{error.status.name} ({error.detail})" if error.detail else error.status.name
