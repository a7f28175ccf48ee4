"""Applying: what one message of a report does to the state, and how it is answered.

Decides which messages are refused and in which order the others take effect. A refused message changes nothing. Acks
are never refused for want of room. Neither are inits of an open batch, since opening the batch reserved their room.
``ledger`` does the arithmetic, and ``dedupe`` knows which sections were applied before.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from acker_protocol.ids import Column, mix64
from acker_protocol.messages import FAIL, NO_KINDS, Apply, ApplyReply, Entries, InitScope, Status
from acker_service.core import kernels
from acker_service.core.batches import ALL_SLOTS, BatchState
from acker_service.core.ledger import Effect, Sections
from acker_service.core.malformed import malformed_apply
from acker_service.core.orphans import Orphans
from acker_service.core.state import State

Array = npt.NDArray[Any]

# How long a client waits before it retries after OVERLOADED or UNKNOWN_SOURCE.
RETRY_DELAY_MS = 200


class Applying:
    """Applies messages of reports to a state. ``incarnation`` names this process in every reply."""

    def __init__(self, state: State, orphans: Orphans, incarnation: int) -> None:
        self._state = state
        self._orphans = orphans
        self._incarnation = incarnation
        self._reasons_freed_at = -1
        self._conflicts = 0

    def apply(self, message: Apply) -> ApplyReply:
        """Apply the sections of a message that were not applied before. Errors are statuses, never exceptions."""
        state, entries = self._state, message.entries
        batch = self._batch_of(message.inits)
        trouble = malformed_apply(message, batch)
        if trouble:
            return self._refuse(Status.INVALID, trouble)
        sections = state.ledger.check(_column(entries.root_ids, np.uint64), batch.numbering if batch else None)
        if isinstance(sections, str):
            return self._refuse(Status.INVALID, sections)
        foreign = batch.foreign_slot(sections.bits) if batch is not None and batch.is_open else None
        if foreign is not None:
            detail = f"root_ids: slot {foreign} of this batch is not on this server: send it to a server that holds it"
            return self._refuse(Status.INVALID, detail)
        known = state.dedupe.find_applied(message.identity, message.digest)
        if isinstance(known, Status):
            if known == Status.CONFLICT and message.inits is None and not message.identity.sequenced:
                self._block_acks(sections)
            return self._refuse_sections(known, len(sections.slots))
        asked = int.from_bytes(sections.bits.tobytes(), "little")
        if message.inits is not None and (asked & ~known or not asked):
            refusal = self._refuse_inits(message.inits, batch, sections, asked & ~known)
            if refusal:
                return refusal
        state.dedupe.record_applied(message.identity, message.digest, asked, state.now)
        effect = self._apply(message, batch, sections, asked & ~known) if asked & ~known else Effect()
        if message.inits is not None and batch is not None and batch.is_open and len(message.inits.covered):
            batch.cover(_column(message.inits.covered, np.uint64))
        return self._reply(sections, asked, known, effect)

    def _batch_of(self, scope: InitScope | None) -> BatchState | None:
        source = self._state.sources.get(scope.session) if scope is not None else None
        return source.batches.get(scope.batch) if source is not None and scope is not None else None

    # -- refusals

    def _refuse_inits(
        self, scope: InitScope, batch: BatchState | None, sections: Sections, fresh: int
    ) -> ApplyReply | None:
        source = self._state.sources.get(scope.session)
        if source is None:
            return self._refuse(Status.UNKNOWN_SOURCE, "no source has this session: send its Watch first")
        if batch is None or not batch.is_open:
            return self._refuse(Status.UNKNOWN_BATCH, f"batch {scope.batch} of source {source.name!r} is not open")
        if batch.number:
            return None
        trouble = self._state.shortage(source, _entries_in(sections, fresh))
        return self._refuse(Status.OVERLOADED, trouble) if trouble else None

    def _refuse(self, status: Status, detail: str) -> ApplyReply:
        return ApplyReply(self._incarnation, status, retry_delay_ms=delay_ms(status), detail=detail)

    def _refuse_sections(self, status: Status, sections: int) -> ApplyReply:
        counters = self._state.counters
        if status == Status.STALE:
            counters.sections_stale += sections
            detail = f"sequence: older than the last {self._state.dedupe.window} of its session"
        else:
            counters.sections_conflict += sections
            detail = "identity: known with another digest; two different reports have the same identity"
        return ApplyReply(self._incarnation, status, detail=detail)

    # -- effects

    def _apply(self, message: Apply, batch: BatchState | None, sections: Sections, fresh: int) -> Effect:
        slots = np.frombuffer(fresh.to_bytes(128, "little"), np.uint64)
        vals = _column(message.entries.ack_vals, np.uint64)
        if message.inits is None or batch is None:
            return self._apply_updates(message.entries, sections, vals, slots)
        return self._apply_inits(batch, sections, vals, slots)

    def _apply_inits(self, batch: BatchState, sections: Sections, vals: Column, slots: Column) -> Effect:
        state, counters = self._state, self._state.counters
        effect = state.ledger.apply_inits(sections, vals, slots, batch.index, batch.held, batch.numbering, state.tick)
        state.room.initialise(effect.created, were_reserved=bool(batch.number))
        if batch.number:
            batch.inits += effect.created
        counters.inits += effect.created
        counters.inits_known += effect.known
        counters.inits_conflicting += effect.conflicts
        counters.updates += effect.applied
        state.deliver(state.ledger.outcomes(), state.reasons.texts)
        return effect

    def _apply_updates(self, entries: Entries, sections: Sections, vals: Column, slots: Column) -> Effect:
        state = self._state
        kinds, reason_ids = _column(entries.kinds, np.uint8), _column(entries.reason_ids, np.uint32)
        effect, tombstones = state.ledger.apply_updates(
            sections, vals, kinds, reason_ids, slots, self._orphans.ticks, state.tick
        )
        state.counters.updates += effect.applied
        state.counters.orphans_dropped += effect.dropped
        state.deliver(state.ledger.outcomes(), entries.reasons)
        if len(tombstones):
            self._keep_reasons(sections, entries, tombstones)
        return effect

    def _block_acks(self, sections: Sections) -> None:
        """XOR a random number into the ack vals of these roots, so that none of them reaches zero.

        Two attempts at the same work had different results for these roots. The server cannot know which attempt was
        committed, and the second one may have failed a root that the first one finished.
        """
        self._conflicts += 1
        vals = np.full(len(sections.keys), mix64(self._incarnation ^ mix64(self._conflicts)), np.uint64)
        self._apply_updates(Entries(sections.keys, vals), sections, vals, ALL_SLOTS)

    def _keep_reasons(self, sections: Sections, entries: Entries, tombstones: Array) -> None:
        """Store the reasons of new tombstones. Frees unused reasons when the table is full, at most once a second."""
        ledger, reasons, tick = self._state.ledger, self._state.reasons, self._state.tick
        fails = np.cumsum(entries.kinds & FAIL != 0) - 1
        local, positions = np.unique(entries.reason_ids[fails[tombstones]], return_inverse=True)
        ids = [reasons.id_of(entries.reasons[number]) for number in local.tolist()]
        ledger.set_reasons(sections.keys[tombstones], np.array(ids, np.uint64)[positions])
        if reasons.is_full and tick >= self._reasons_freed_at + kernels.TICKS_A_SECOND:
            self._reasons_freed_at = tick
            used = reasons.empty_marks()
            ledger.mark_reasons(used)
            reasons.free_unused(used)

    def _reply(self, sections: Sections, asked: int, known: int, effect: Effect) -> ApplyReply:
        counters = self._state.counters
        count, duplicate = len(sections.slots), (asked & known).bit_count()
        counters.sections_applied += count - duplicate
        counters.sections_duplicate += duplicate
        status = Status.DUPLICATE if count and duplicate == count else Status.APPLIED
        statuses = NO_KINDS
        if 0 < duplicate < count:
            bits = np.unpackbits(np.frombuffer(known.to_bytes(128, "little"), np.uint8), bitorder="little")
            statuses = np.where(bits[sections.slots], Status.DUPLICATE, Status.APPLIED).astype(np.uint8)
        return ApplyReply(
            self._incarnation, status, statuses, inits_known=effect.known, inits_conflicting=effect.conflicts
        )


def delay_ms(status: Status) -> int:
    """Return the delay before a retry in ms; 0 if a retry cannot help."""
    return RETRY_DELAY_MS if status in (Status.OVERLOADED, Status.UNKNOWN_SOURCE) else 0


def _column(values: Array, dtype: type[Any]) -> Array:
    """Return ``values`` contiguous and aligned, as the kernels need it. Copies only if necessary."""
    column = np.ascontiguousarray(values, dtype)
    return column if column.flags.aligned else column.copy()


def _entries_in(sections: Sections, slots: int) -> int:
    """Count the entries in ``slots``, a 1024-bit map of slots that are all in the report."""
    if slots.bit_count() == len(sections.slots):
        return len(sections.keys)
    bits = np.unpackbits(np.frombuffer(slots.to_bytes(128, "little"), np.uint8), bitorder="little")
    return int(np.diff(sections.starts)[bits[sections.slots] != 0].sum())
