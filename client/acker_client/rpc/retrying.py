"""Retrying: sends a request, or a whole report, until the server has accepted it.

Decides what to send next, and when a report is complete. It knows nothing about buffers and sources.
"""

from __future__ import annotations

import logging
from typing import TypeVar

from acker_client.backoff import Patience
from acker_client.errors import Rejected
from acker_client.rpc.caller import Call, Retrying
from acker_client.rpc.delivery import Delivery, ErrorReply
from acker_client.rpc.waiting import Renew, wait_out
from acker_protocol.messages import Apply, ApplyReply, OpenBatchReply, SettleReply, Status

log = logging.getLogger("acker_client")

Accepted = TypeVar("Accepted", OpenBatchReply, SettleReply)


def until_accepted(caller: Retrying, call: Call[Accepted], what: str, patience: Patience, renew: Renew) -> Accepted:
    """Return the reply that accepts the call. Raises if the server refuses for good, or the budget is spent."""
    while True:
        reply = caller.answer(call, patience)
        if reply.status in (Status.APPLIED, Status.DUPLICATE):
            return reply
        delay_ms = reply.retry_delay_ms if isinstance(reply, OpenBatchReply) else 0
        wait_out(ErrorReply(reply.status, reply.detail, delay_ms), what, patience, renew)


def deliver(caller: Retrying, delivery: Delivery, patience: Patience, renew: Renew) -> None:
    """Send a report until every section of it has its final answer.

    When this raises, ``delivery`` keeps the answers so far. Delivering it again sends only the other sections.
    """
    what = "report of updates" if delivery.inits is None else f"report of inits of batch {delivery.inits.batch}"
    while not delivery.done:
        delivery.fit(caller.greeted(patience).message_bytes)
        for key, message in delivery.ready():
            reply = caller.answer(_apply(message), patience)
            error = _record_answer(delivery, key, reply)
            if error is not None:
                wait_out(error, what, patience, renew)
                break
            patience.progressed()
    _warn_of_conflicts(delivery)


def _apply(message: Apply) -> Call[ApplyReply]:
    return lambda transport, timeout_s: transport.apply(message, timeout_s)


def _record_answer(delivery: Delivery, key: int, reply: ApplyReply) -> ErrorReply | None:
    try:
        return delivery.answered(key, reply)
    except ValueError as error:
        raise Rejected(f"the server's answer to a report cannot be right: {error}") from None


def _warn_of_conflicts(delivery: Delivery) -> None:
    if delivery.result.conflict:
        log.warning(
            "%d sections of a report were counted before with other content: another attempt at the same work gave "
            "other records. Where they differ, the roots are replayed.",
            delivery.result.conflict,
        )
    if delivery.result.inits_conflicting:
        log.warning(
            "Root ids of a report that are also pending in another batch, of this source or another: %d. They are LOST "
            "in both and replayed. Draw the base of every session at random.",
            delivery.result.inits_conflicting,
        )
