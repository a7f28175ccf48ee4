"""Applying: what one message of a report does to the state, and how it is answered.

Decides which messages are refused and in which order the others take effect. A refused message changes nothing. A long
message comes in parts (`long_messages`), of which a later one may be refused. Acks are never refused for want of room,
only fails without an edge, and results that differ from those of another attempt. Neither are inits of an open batch,
since opening the batch reserved their room. ``ledger`` does the arithmetic, ``accounts`` counts, and ``dedupe`` knows
which sections were applied before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from acker_protocol.ids import SLOTS, Column, mix64
from acker_protocol.messages import FAIL, NO_KINDS, Apply, ApplyReply, Entries, InitScope, Status
from acker_protocol.reports import bare_fails
from acker_service.core import kernels
from acker_service.core.accounts import Uncounted
from acker_service.core.batches import ALL_SLOTS, BatchState
from acker_service.core.ledger import Sections, column
from acker_service.core.malformed import checked_sections
from acker_service.core.orphans import Orphans
from acker_service.core.outputs import Outputs
from acker_service.core.state import State

Array = npt.NDArray[Any]

# How long a client waits before it retries after OVERLOADED or UNKNOWN_SOURCE.
RETRY_DELAY_MS = 200
# How many different reasons of new tombstones one call keeps, in some 10 ms for long texts.
REASONS_A_CALL = 2048

_REFUSALS = (Status.INVALID, Status.OVERLOADED, Status.UNKNOWN_SOURCE, Status.UNKNOWN_BATCH)


@dataclass(frozen=True, slots=True)
class Applied:
    """The result of applying a message. ``reply`` answers its first ``entries`` entries in ``sections`` sections. The
    caller has to apply the other entries, because they would have moved too many cells at once. A refusal answers all
    entries. ``outputs`` holds the outcomes, which the caller has to pass on."""

    reply: ApplyReply
    entries: int
    sections: int
    outputs: Outputs | None = None

    @property
    def is_last(self) -> bool:
        """Whether the rest of the message is refused, too."""
        return self.reply.status in _REFUSALS


class Applying:
    """Applies messages of reports to a state. ``incarnation`` names this process in every reply."""

    def __init__(self, state: State, orphans: Orphans, incarnation: int) -> None:
        self._state = state
        self._orphans = orphans
        self._incarnation = incarnation
        self._reasons_freed_at = -1
        self._conflicts = 0

    def apply(self, message: Apply) -> Applied:
        """Apply the sections of a message that were not applied before. Errors are statuses, never exceptions."""
        state, entries = self._state, message.entries
        batch = self.batch_of(message.inits)
        sections = checked_sections(message, batch, state.ledger.check)
        if isinstance(sections, str):
            return self.refuse(Status.INVALID, sections)
        known = state.dedupe.find_applied(message.identity, message.digest)
        if isinstance(known, Status):
            return self._refuse_sections(message, sections, known)
        asked = _int_of(sections.bits)
        fresh = asked & ~known
        refusal = None
        if message.inits is None:
            refusal = self._refuse_fails(entries, sections) if fresh else None
        elif fresh or not asked:
            refusal = self._refuse_inits(message.inits, batch, sections, fresh)
        if refusal:
            return refusal
        if not fresh:
            state.dedupe.record_applied(message.identity, message.digest, asked, state.now)
            self._cover(message, batch)
            return Applied(self._reply(asked, known, sections.slots), len(entries), len(sections.slots))
        outputs = self._apply(message, batch, sections, fresh)
        done = int(state.ledger.counters[kernels.SECTION])
        if done == len(sections.slots):
            self._cover(message, batch)
        else:
            asked = bits_of(sections.slots[:done])
        reply = self._reply(asked, known, sections.slots[:done], are_inits=message.inits is not None)
        return Applied(reply, int(sections.starts[done]), done, outputs)

    def batch_of(self, scope: InitScope | None) -> BatchState | None:
        """Return the batch of inits; None if they are updates, or there is no such batch."""
        source = self._state.sources.get(scope.session) if scope is not None else None
        return source.batches.get(scope.batch) if source is not None and scope is not None else None

    # -- refusals

    def refusal_of(self, message: Apply, sections: Sections) -> Applied | None:
        """Return the refusal of a message whose new inits have no batch or no room; None if it may be applied."""
        known = self._state.dedupe.find_applied(message.identity, message.digest)
        fresh = 0 if isinstance(known, Status) else _int_of(sections.bits) & ~known
        if message.inits is None or not fresh:
            return None
        return self._refuse_inits(message.inits, self.batch_of(message.inits), sections, fresh)

    def _refuse_inits(
        self, scope: InitScope, batch: BatchState | None, sections: Sections, fresh: int
    ) -> Applied | None:
        source = self._state.sources.get(scope.session)
        if source is None:
            return self.refuse(Status.UNKNOWN_SOURCE, "no source has this session: send its Watch first")
        if batch is None or not batch.is_open:
            return self.refuse(Status.UNKNOWN_BATCH, f"batch {scope.batch} of source {source.name!r} is not open")
        if batch.number:
            return None
        trouble = self._state.shortage(source, _entries_in(sections, fresh))
        return self.refuse(Status.OVERLOADED, trouble) if trouble else None

    def _refuse_fails(self, entries: Entries, sections: Sections) -> Applied | None:
        """Refuse a message if its fails without an edge may not find room."""
        # Most messages hold only acks.
        if not len(entries.kinds) or self._state.ledger.has_room_for(sections.keys[bare_fails(entries)]):
            return None
        return self._overloaded("fails of unknown roots")

    def _overloaded(self, what: str) -> Applied:
        waiting = self._state.ledger.orphans
        return self.refuse(Status.OVERLOADED, f"no room for {what}: {waiting} updates wait for their roots' inits")

    def refuse(self, status: Status, detail: str) -> Applied:
        return Applied(ApplyReply(self._incarnation, status, retry_delay_ms=delay_ms(status), detail=detail), 0, 0)

    def _refuse_sections(self, message: Apply, sections: Sections, status: Status) -> Applied:
        counters, outputs, done = self._state.counters, None, len(sections.slots)
        if status == Status.CONFLICT and message.inits is None and not message.identity.sequenced:
            if not self._state.ledger.has_room_for(sections.keys):
                return self._overloaded("results that differ from those of another attempt")
            outputs = self._block_acks(sections)
            done = int(self._state.ledger.counters[kernels.SECTION])
        if status == Status.STALE:
            counters.sections_stale += done
            detail = f"sequence: older than the last {self._state.dedupe.window} of its session"
        else:
            counters.sections_conflict += done
            detail = "identity: known with another digest; two different reports have the same identity"
        reply = ApplyReply(self._incarnation, status, detail=detail)
        return Applied(reply, int(sections.starts[done]), done, outputs)

    # -- effects

    def _apply(self, message: Apply, batch: BatchState | None, sections: Sections, fresh: int) -> Outputs:
        slots = np.frombuffer(fresh.to_bytes(128, "little"), np.uint64)
        vals = column(message.entries.ack_vals, np.uint64)
        note = partial(self._note_applied, message, sections)
        if message.inits is None or batch is None:
            return self._apply_updates(message.entries, sections, vals, slots, note)
        state, outputs = self._state, self._state.ledger.free_outputs()
        state.accounts.begin(Uncounted(outputs, state.reasons.texts, batch if batch.number else None, note))
        state.ledger.apply_inits(sections, vals, slots, batch.index, batch.held, batch.numbering, state.tick, outputs)
        self._finish()
        return outputs

    def _apply_updates(
        self,
        entries: Entries,
        sections: Sections,
        vals: Column,
        slots: Column,
        note: Callable[[], object],
        *,
        keeps_all: bool = False,
    ) -> Outputs:
        state, outputs = self._state, self._state.ledger.free_outputs()
        kinds, reason_ids = column(entries.kinds, np.uint8), column(entries.reason_ids, np.uint32)
        ticks, tick = self._orphans.ticks, state.tick

        def note_all() -> None:
            state.ledger.place_surplus(sections, vals, kinds, ticks, tick)
            note()

        state.accounts.begin(Uncounted(outputs, entries.reasons, None, note_all))
        state.ledger.apply_updates(sections, vals, kinds, reason_ids, slots, ticks, tick, outputs, keeps_all=keeps_all)
        self._finish()
        return outputs

    def _finish(self) -> None:
        self._state.accounts.finish()
        self._state.ledger.grow()

    def _note_applied(self, message: Apply, sections: Sections) -> None:
        """Remember which sections were applied, and the reasons of new tombstones. May be called again if it fails."""
        state = self._state
        done = int(state.ledger.counters[kernels.SECTION])
        if done:
            is_whole = done == len(sections.slots)
            applied = _int_of(sections.bits) if is_whole else bits_of(sections.slots[:done])
            state.dedupe.record_applied(message.identity, message.digest, applied, state.now)
        if state.ledger.counters[kernels.TOMBSTONES]:
            self._keep_reasons(sections, message.entries, state.ledger.tombstones)

    def _cover(self, message: Apply, batch: BatchState | None) -> None:
        """Mark the numbers as read that a message covers, once all its sections have been applied."""
        if message.inits is not None and batch is not None and batch.is_open and len(message.inits.covered):
            batch.cover(column(message.inits.covered, np.uint64))

    def _block_acks(self, sections: Sections) -> Outputs:
        """XOR a random number into the ack vals of these roots, so that none of them reaches zero. There must be room
        for the unknown ones.

        Two attempts at the same work had different results for these roots. The server cannot know which attempt was
        committed, and the second one may have failed a root that the first one finished. Later sections of the first
        one still count, since they may fail other roots.
        """
        self._conflicts += 1
        vals = np.full(len(sections.keys), mix64(self._incarnation ^ mix64(self._conflicts)), np.uint64)
        note = partial(self._state.ledger.block, sections, self._state.tick)
        return self._apply_updates(Entries(sections.keys, vals), sections, vals, ALL_SLOTS, note, keeps_all=True)

    def _keep_reasons(self, sections: Sections, entries: Entries, tombstones: Array) -> None:
        """Store the reasons of new tombstones. Frees unused reasons when the table is full, at most once a second."""
        ledger, reasons, tick = self._state.ledger, self._state.reasons, self._state.tick
        fails = np.cumsum(entries.kinds & FAIL != 0) - 1
        local, positions = np.unique(entries.reason_ids[fails[tombstones]], return_inverse=True)
        ids = np.full(len(local), kernels.BY_LOST_REASON, np.uint64)
        # To look at each of very many would take long.
        for n, number in enumerate(local[:REASONS_A_CALL].tolist()):
            ids[n] = reasons.id_of(entries.reasons[number])
        ledger.set_reasons(sections.keys[tombstones], ids[positions])
        if reasons.is_full and tick >= self._reasons_freed_at + kernels.TICKS_A_SECOND:
            reasons.free_unused(ledger.uses)
            self._reasons_freed_at = tick

    def _reply(self, asked: int, known: int, slots: Array, *, are_inits: bool = False) -> ApplyReply:
        """Return the answer for the sections of ``slots``, which are the bits of ``asked``."""
        counters, counted = self._state.counters, self._state.ledger.counters
        count, duplicate = len(slots), (asked & known).bit_count()
        counters.sections_applied += count - duplicate
        counters.sections_duplicate += duplicate
        status = Status.DUPLICATE if count and duplicate == count else Status.APPLIED
        statuses = NO_KINDS
        if 0 < duplicate < count:
            # APPLIED is 1, and DUPLICATE 2.
            statuses = _bits_at(slots, known) + np.uint8(Status.APPLIED)
        if not are_inits:
            return ApplyReply(self._incarnation, status, statuses)
        inits_known, conflicting = int(counted[kernels.KNOWN]), int(counted[kernels.CONFLICTS])
        return ApplyReply(self._incarnation, status, statuses, inits_known=inits_known, inits_conflicting=conflicting)


def delay_ms(status: Status) -> int:
    """Return the delay before a retry in ms; 0 if a retry cannot help."""
    return RETRY_DELAY_MS if status in (Status.OVERLOADED, Status.UNKNOWN_SOURCE) else 0


def bits_of(slots: Array) -> int:
    """Return slots (uint16[k]) as an int of 1024 bits."""
    bits = np.zeros(SLOTS, np.uint8)
    bits[slots.astype(np.intp)] = 1
    return _int_of(np.packbits(bits, bitorder="little"))


def _int_of(bits: Array) -> int:
    return int.from_bytes(bits.tobytes(), "little")


def _entries_in(sections: Sections, slots: int) -> int:
    """Count the entries in ``slots``, a 1024-bit map of slots that are all in the report."""
    if slots.bit_count() == len(sections.slots):
        return len(sections.keys)
    return int(np.diff(sections.starts)[_bits_at(sections.slots, slots) != 0].sum())


def _bits_at(slots: Array, bits: int) -> Array:
    """Return the bits of ``slots`` (uint16[k]) in an int of 1024 bits: uint8[k]."""
    every = np.unpackbits(np.frombuffer(bits.to_bytes(128, "little"), np.uint8), bitorder="little")
    # Numpy may crash without memory if an index has another type than this.
    return every[slots.astype(np.intp)]
