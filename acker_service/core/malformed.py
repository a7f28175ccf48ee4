"""Malformed: checks of a request. Each returns an error sentence, or "" for a valid request."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from acker_protocol.ids import Column
from acker_protocol.messages import NAME_CHARACTERS, PINS_MAX_BYTES, Apply, OpenBatch, Watch
from acker_protocol.reports import malformed
from acker_service.core.batches import NUMBERS_MAX, BatchState, are_too_long
from acker_service.core.ledger import Numbering, Sections, column


def _malformed_apply(message: Apply, batch: BatchState | None) -> str:
    """Check the columns. The ledger checks order and numbers. ``batch``: the batch of the inits, if known."""
    scope = message.inits
    trouble = malformed(message.entries, are_inits=scope is not None)
    if trouble or scope is None:
        return trouble
    if len(scope.covered) and batch is not None and batch.is_open:
        if not batch.number:
            return "covered: the open stream, batch 0, has no numbers to cover"
        if np.any(scope.covered[:, 0] > scope.covered[:, 1]) or int(scope.covered.max()) > batch.up_to:
            return f"covered: a range is not within the {batch.up_to} numbers of its batch"
    return ""


def checked_sections(
    message: Apply, batch: BatchState | None, check: Callable[[Column, Numbering | None], Sections | str]
) -> Sections | str:
    """Return the sections of a message, or the error sentence of one that must be refused. ``check``: that of a ledger,
    or of a ``Scratch`` with room for the message."""
    trouble = _malformed_apply(message, batch)
    if trouble:
        return trouble
    sections = check(column(message.entries.root_ids, np.uint64), batch.numbering if batch is not None else None)
    if isinstance(sections, str) or batch is None or not batch.is_open:
        return sections
    foreign = batch.foreign_slot(sections.bits)
    if foreign is None:
        return sections
    return f"root_ids: slot {foreign} of this batch is not on this server: send it to a server that holds it"


def malformed_open_batch(request: OpenBatch) -> str:
    if not request.number:
        return "number: 0 is the open stream, which is always open; batches are numbered from 1"
    if not request.first or request.first + request.up_to > 1 << 64:
        return "first: must be above 0, and first + up_to must not pass 2**64"
    if request.up_to > NUMBERS_MAX:
        return f"up_to: {request.up_to} numbers; a batch has at most {NUMBERS_MAX}: make smaller batches"
    if request.slots and not any(request.slots):
        return "slots: none is set; send OpenBatch only to servers that hold a slot of the batch"
    return "limits: a timeout is at most 24 h (86400000 ms)" if are_too_long(request.limits) else ""


def malformed_watch(request: Watch) -> str:
    if not request.source or len(request.source) > NAME_CHARACTERS:
        return f"source: must be a name of 1 to {NAME_CHARACTERS} characters"
    if not request.lease_ms and not request.close:
        return "lease_ms: a lease of 0 expires at once; ask for as long as the source may be silent"
    if len(request.pins) > PINS_MAX_BYTES:
        return f"pins: {len(request.pins)} bytes; at most {PINS_MAX_BYTES} are kept"
    return "limits: a timeout is at most 24 h (86400000 ms)" if are_too_long(request.limits) else ""
