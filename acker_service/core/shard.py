"""Shard: all state of one server behind the calls of the API. The pure core: no socket, no thread, no clock.

Decides what each call does: what is refused, and in which order its effects happen. A refused call changes nothing.
``applying`` applies reports, ``state`` keeps the data and routes outcomes, and ``room`` decides what fits.

Not thread-safe: the caller holds one lock. ``now`` is in seconds of a monotonic clock. A call that takes long works in
steps of some 10 ms; between these, ``unlocked`` lets other calls come (docs/decisions/034). A call that raises
MemoryError has done nothing, or a part of its work, and may be made again (docs/decisions/041).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from acker_protocol.ids import Column, mix64, unmix64
from acker_protocol.messages import (
    Apply,
    ApplyReply,
    DrainReply,
    OpenBatch,
    OpenBatchReply,
    Pins,
    PinsReply,
    Settle,
    SettleReply,
    Status,
    Watch,
    WatchReply,
)
from acker_service.core import dumping, kernels, long_messages
from acker_service.core.accounts import Steps, Uncounted
from acker_service.core.applying import Applied, Applying, delay_ms
from acker_service.core.batches import BatchState, FreshRoots, count_roots, least_roots, limit_ticks, slots_of
from acker_service.core.malformed import malformed_open_batch, malformed_watch
from acker_service.core.memory import PROCESS_BYTES, Bounds
from acker_service.core.orphans import Orphans
from acker_service.core.outbox import Outbox
from acker_service.core.parts import StatePart
from acker_service.core.room import BYTES_MAX, HeldBytes, Room
from acker_service.core.sources import NUMBERS_A_ROOT, OPEN_MAX, Change, SourceChange, SourceState, pins_bytes
from acker_service.core.state import State
from acker_service.core.stats import Counters, ShardStats, SourceStats
from acker_service.core.tables import MOVED_MAX, new_table

# How many cells one tick checks for expiry, in some 5 ms: one tick checks 1 M pending roots, eight ticks 10 M.
EXPIRE_CELLS = 1_800_000

# After the figures of how many sources other calls may come.
FIGURES_A_STEP = 4096

DRAINING = "this server drains and takes no new batches and sources: use another server"


@dataclass(frozen=True, slots=True)
class _Uncounted:
    """The roots of a batch in ``slots``, a bit map, must be counted before `OpenBatch` can be answered."""

    slots: Column
    with_others: bool


@dataclass(frozen=True, slots=True)
class _Counted:
    slots: Column
    roots: FreshRoots


class Shard:
    """The state of one server.

    ``max_memory`` in bytes: if the data and the process take more, no new work is taken; None is off.
    ``incarnation`` names this process; ``generation`` names the state and stays with it over restarts. ``max_pending``
    bounds the sum of pending roots, reserved roots of open batches, and unconfirmed outcomes;
    ``max_pending_per_source`` bounds the same for one source. Orphans are bounded by half of ``max_pending``.
    ``max_identity_bytes`` bounds the memory of report identities and sequences, ``max_reasons_bytes`` that of the texts
    of fails, and ``max_pins_bytes`` that of the pins of all sources. ``process_bytes``: what is used before any data
    comes. Times are in seconds. ``secret``: a random number that no client knows.
    """

    def __init__(
        self,
        *,
        incarnation: int,
        generation: int,
        version: str = "",
        max_memory: int | None = None,
        max_pending: int = 20_000_000,
        max_pending_per_source: int | None = None,
        sequence_window: int = 64,
        orphan_timeout_s: float = 600.0,
        memory_s: float = 600.0,
        max_identity_bytes: int = 512 << 20,
        max_reasons_bytes: int = BYTES_MAX,
        max_pins_bytes: int = BYTES_MAX,
        max_sources: int | None = None,
        max_lease_s: float = 3600.0,
        secret: int = 0,
        process_bytes: int = PROCESS_BYTES,
    ) -> None:
        self.incarnation, self.version = incarnation, version
        self.is_draining = False
        self._memory_s, self._max_lease_s = memory_s, max_lease_s
        self._max_pending_per_source, self._max_sources = max_pending_per_source, max_sources
        room = Room(
            max_pending,
            max_pending if max_pending_per_source is None else max_pending_per_source,
            reasons=HeldBytes(max_reasons_bytes),
            pins=HeldBytes(max_pins_bytes),
        )
        self._state = State(
            generation,
            room,
            sequence_window=sequence_window,
            max_identity_bytes=max_identity_bytes,
            max_memory=max_memory,
            secret=secret,
            process_bytes=process_bytes,
        )
        self._orphans = Orphans(self._state.ledger, orphan_timeout_s)
        self._applying = Applying(self._state, self._orphans, incarnation)
        # A context in which other calls may use the shard. A call enters it between two steps, and to count.
        self.unlocked: Callable[[], AbstractContextManager[None]] = nullcontext

    def set_bounds(self, bounds: Bounds, max_memory: int, max_sources: int | None) -> None:
        """Change the bounds. What is there already stays, also if it is more."""
        state, room = self._state, self._state.room
        room.max_pending = bounds.max_pending
        per_source = self._max_pending_per_source
        room.max_per_source = bounds.max_pending if per_source is None else per_source
        room.reasons.max_bytes, room.pins.max_bytes = bounds.max_reasons_bytes, bounds.max_pins_bytes
        state.ledger.orphans_max = room.orphans_max
        state.dedupe.max_bytes = bounds.max_identity_bytes
        state.max_memory, self._max_sources = max_memory, max_sources

    # -- apply

    @staticmethod
    def prepared(message: Apply) -> Apply:
        """Return the message as `apply` needs it. Needs no lock."""
        return long_messages.prepared(message)

    def apply(self, message: Apply, now: float) -> ApplyReply:
        """Apply the sections of a message that were not applied before. Errors are statuses. ``message``: as
        `prepared` returns it."""
        self._state.begin(now)
        if long_messages.is_long(message):
            cut = self._cut(message)
            if isinstance(cut, str):
                return self._applying.refuse(Status.INVALID, cut).reply
            refusal = self._applying.refusal_of(message, cut.sections)
            return refusal.reply if refusal else self._apply_parts(cut.parts)
        applied = self._apply_part(message)
        if applied.is_last or applied.entries == len(message.entries):
            return applied.reply
        return self._apply_parts([long_messages.rest_of(message, applied.entries)], applied)

    def _cut(self, message: Apply) -> long_messages.Cut | str:
        """Cut a long message while other calls work. Cuts anew if they have opened another batch for its inits, since
        only the ranges of a batch that is known are checked and kept."""
        while True:
            batch = self._applying.batch_of(message.inits)
            with self.unlocked():
                cut = long_messages.cut(message, batch)
            self._state.recover()
            if self._applying.batch_of(message.inits) is batch:
                return cut

    def _apply_parts(self, parts: list[Apply], *before: Applied) -> ApplyReply:
        """Apply the parts of a message, and return the answer to it. ``before``: what became of earlier parts.

        Other calls may come between two parts. If a part is refused then, so is the message.
        """
        answered = [(applied.reply, applied.sections) for applied in before]
        while parts:
            self._pause()
            self._make_tables()
            self._state.ledger.tables.go_on_moving(MOVED_MAX // 2)
            part = parts.pop(0)
            applied = self._apply_part(part)
            answered.append((applied.reply, applied.sections))
            if applied.is_last:
                break
            if applied.entries < len(part.entries):
                parts.insert(0, long_messages.rest_of(part, applied.entries))
        return long_messages.merged(answered)

    def _apply_part(self, message: Apply) -> Applied:
        applied = self._applying.apply(message)
        if applied.outputs is not None:
            self._run_steps(self._state.pass_on(applied.outputs))
        return applied

    # -- batches

    def open_batch(self, request: OpenBatch, now: float) -> OpenBatchReply:
        """Open a batch and reserve its room, or add slots to an open batch. The answer to a repeated request is APPLIED
        again."""
        self._state.begin(now)
        reply = self._open_batch(request, None)
        while isinstance(reply, _Uncounted):
            with self.unlocked():
                roots = count_roots(request, reply.slots, with_others=reply.with_others)
            self._state.recover()
            # Decides anew, since other calls may have come meanwhile.
            reply = self._open_batch(request, _Counted(reply.slots, roots))
        return reply

    def _open_batch(self, request: OpenBatch, counted: _Counted | None) -> OpenBatchReply | _Uncounted:
        state = self._state
        source = state.sources.get(request.session)
        if source is None:
            if self.is_draining:
                return self._answer(Status.DRAINING, DRAINING)
            return self._answer(Status.UNKNOWN_SOURCE, "no source has this session: send its Watch first")
        trouble = malformed_open_batch(request)
        if trouble:
            return self._answer(Status.INVALID, trouble)
        known = source.batches.get(request.number)
        if known is not None and known.is_open:
            return self._extend(source, known, request, counted)
        if request.number <= source.last_settled:
            last = source.last_settled
            return self._answer(
                Status.UNKNOWN_BATCH, f"number: {request.number}; must be above {last}, the last settled batch"
            )
        if self.is_draining:
            return self._answer(Status.DRAINING, DRAINING)
        return self._reserve(source, request, counted)

    def _extend(
        self, source: SourceState, batch: BatchState, request: OpenBatch, counted: _Counted | None
    ) -> OpenBatchReply | _Uncounted:
        """Add the requested slots that an open batch does not have yet, if there is room."""
        if not batch.matches(request):
            return self._answer(Status.CONFLICT, f"batch {request.number} is open with other parameters")
        fresh = batch.fresh_slots(request)
        if not fresh.any():
            return self._answer(Status.APPLIED)
        if counted is None or not np.array_equal(counted.slots, fresh):
            refusal = self._refuse_roots(source, batch.roots, max(1, least_roots(request, fresh)))
            return refusal or _Uncounted(fresh, with_others=True)
        refusal = self._refuse_roots(source, batch.roots, counted.roots.count)
        if refusal:
            return refusal
        reserved = self._state.room.reserved + counted.roots.count
        batch.extend(fresh, counted.roots)
        self._state.room.reserved = reserved
        return self._answer(Status.APPLIED)

    def _reserve(
        self, source: SourceState, request: OpenBatch, counted: _Counted | None
    ) -> OpenBatchReply | _Uncounted:
        """Open a new batch, if there is room for it."""
        state = self._state
        if request.up_to > state.room.batch_max * (NUMBERS_A_ROOT if request.slots else 1):
            detail = f"up_to: {request.up_to} roots never fit into {state.room.batch_max}; make smaller batches"
            return self._answer(Status.INVALID, detail)
        if state.indexes.is_full or len(source.batches) > OPEN_MAX:
            return self._answer(Status.OVERLOADED, "too many batches are open: settle some first")
        # The source sends the pins of a batch that is not held right after it, and no other process can report about it
        # before.
        trouble = "" if request.held else state.pins_shortage()
        if not trouble and request.slots:
            trouble = self._map_shortage(request)
        if trouble:
            return self._answer(Status.OVERLOADED, trouble)
        slots = slots_of(request)
        roots = least_roots(request, slots)
        if request.slots:
            if counted is None or not np.array_equal(counted.slots, slots):
                return self._refuse_roots(source, 0, max(1, roots)) or _Uncounted(slots, with_others=False)
            roots = counted.roots.count
        refusal = self._refuse_roots(source, 0, roots)
        if refusal:
            return refusal
        state.add_batch(source, BatchState.of(request, roots, state.indexes.next_free, state.now))
        return self._answer(Status.APPLIED)

    def _refuse_roots(self, source: SourceState, known: int, fresh: int) -> OpenBatchReply | None:
        """Return the refusal of a batch that has ``known`` roots here and would get ``fresh`` more; None if these
        fit."""
        most = self._state.room.batch_max
        if known + fresh > most:
            return self._answer(Status.INVALID, f"up_to: {known + fresh} roots never fit into {most}")
        trouble = self._state.shortage(source, fresh)
        return self._answer(Status.OVERLOADED, trouble) if trouble else None

    def _map_shortage(self, request: OpenBatch) -> str:
        """Return why there is no room for the bit maps of one more batch, or "" if there is."""
        most = NUMBERS_A_ROOT * self._state.room.max_pending
        numbers = sum(batch.up_to for batch in self._state.indexes if not batch.is_settled)
        return f"open batches have {numbers} numbers; the server holds {most}" if numbers + request.up_to > most else ""

    def _answer(self, status: Status, detail: str = "") -> OpenBatchReply:
        return OpenBatchReply(self.incarnation, status, delay_ms(status), detail)

    def settle(self, requests: Sequence[Settle], now: float) -> list[SettleReply]:
        """Settle batches with one sweep of the ledger. A batch that is settled already gets the same answer again.

        A batch takes no inits and ranges from the first step on. A call for a batch that another call is settling
        helps to finish that settlement first.
        """
        state = self._state
        state.begin(now)
        batches: list[BatchState] = []
        for request in requests:
            source = state.sources.get(request.session)
            batch = source.batches.get(request.number) if source is not None else None
            if source is None or batch is None or not batch.number or batch.is_settled:
                continue
            if batch.is_open:
                source.last_settled = max(source.last_settled, batch.number)
                batch.settle(request.settlement)
            batches.append(batch)
        self._run_steps(state.settle_batches(batches))
        return [self._settle_reply(request) for request in requests]

    def _settle_reply(self, request: Settle) -> SettleReply:
        source = self._state.sources.get(request.session)
        if source is None:
            detail = "no source has this session; its pending roots are lost"
            return SettleReply(self.incarnation, Status.UNKNOWN_SOURCE, detail)
        settled = source.settled.get(request.number)
        if settled is None:
            return SettleReply(self.incarnation, Status.UNKNOWN_BATCH, f"number: batch {request.number} is not open")
        if settled.settlement != request.settlement:
            detail = f"batch {request.number} was settled as {settled.settlement.name} before"
            return SettleReply(self.incarnation, Status.CONFLICT, detail)
        return SettleReply(self.incarnation, Status.APPLIED, "", settled.cursor, settled.roots, source.generation)

    # -- sources

    def watch(self, request: Watch, now: float) -> WatchReply:
        """Open a source or renew its lease, forget confirmed outcomes, and return the next ones. Never waits."""
        state = self._state
        state.begin(now)
        source = state.sources.get(request.session)
        trouble = malformed_watch(request)
        if trouble:
            return self._watch_reply(Status.INVALID, source, trouble)
        is_new = source is None
        if request.close:
            self._run_steps(state.drop_sources([source] if source is not None else [], Change.CLOSED))
            return self._watch_reply(Status.APPLIED, source, is_new=is_new)
        if source is None:
            if self.is_draining:
                return self._watch_reply(Status.DRAINING, source, DRAINING)
            if state.indexes.is_full:
                detail = "too many sources: try again when a lease has expired"
                return self._watch_reply(Status.OVERLOADED, source, detail)
            trouble = (
                self._sources_shortage() or state.memory_shortage() or state.pins_shortage(pins_bytes(request.pins))
            )
            if trouble:
                return self._watch_reply(Status.OVERLOADED, source, trouble)
            source = self._register(request)
        elif request.confirmed > source.outbox.cursor:
            last = source.outbox.cursor
            detail = f"confirmed: {request.confirmed} is beyond the last outcome, {last}"
            return self._watch_reply(Status.INVALID, source, detail)
        else:
            source.outbox.confirm(request.confirmed)
        lease_ms = self._renew(source, request)
        # A source that is open gets its outcomes even if its pins find no room: they end batches, whose pins then make
        # room. It learns from pins_crc32 that it has to send its pins again, and `_reserve` opens no more batches.
        trouble = state.keep_pins(source, request.pins) if request.pins else ""
        outcomes = source.outbox.read(request.max_outcomes or len(source.outbox))
        return WatchReply(
            self.incarnation,
            Status.APPLIED,
            trouble,
            is_new,
            source.generation,
            source.outbox.freed + len(outcomes),
            outcomes,
            lease_ms,
            source.pins_crc32,
        )

    def _sources_shortage(self) -> str:
        """Return why there is no room for one more source, or "" if there is."""
        count, most = len(self._state.sources), self._max_sources
        if most is None or count < most:
            return ""
        return f"sources: {count} are open here, and sources={most} of the namespace are the most: close some"

    def owner_of(self, session: int) -> str:
        """Return the only caller that may use a session; "" if everybody may, or no source has it."""
        source = self._state.sources.get(session)
        return "" if source is None else source.owner

    def set_owner(self, session: int, owner: str) -> None:
        """Bind a session to ``owner``, unless it is bound already or no source has it."""
        source = self._state.sources.get(session)
        if source is not None and not source.owner:
            source.owner = owner

    def pins(self, request: Pins) -> PinsReply:
        """Return the pins of a source: the bytes from its last Watch that had pins. The request names the source by its
        session, or by one of its roots."""
        if request.session:
            source, what = self._state.sources.get(request.session), "no source has this session on this server"
        else:
            number = unmix64(request.root_id)
            source = next((each for each in self._state.sources.values() if each.has_emitted(number)), None)
            what = "no source has emitted this root on this server"
        if source is None:
            return PinsReply(self.incarnation, Status.UNKNOWN_SOURCE, what)
        return PinsReply(self.incarnation, Status.APPLIED, "", source.pins)

    # -- drain

    def drain(self) -> DrainReply:
        """Take no new batches and no new sources from now on."""
        self.is_draining = True
        return DrainReply(self.incarnation, Status.APPLIED, self.left)

    @property
    def left(self) -> str:
        """Describe what a draining server still has to finish; "" when the server may end."""
        return self.stats.left

    def take_changes(self) -> list[SourceChange]:
        """Return the sources that opened, closed or expired since the last call, oldest first."""
        changes = list(self._state.changes)
        self._state.changes.clear()
        return changes

    def name_of(self, session: int) -> str | None:
        """Return the name of the source with this session; None if there is none."""
        source = self._state.sources.get(session)
        return None if source is None else source.name

    def has_outcomes(self, session: int, confirmed: int) -> bool:
        """Whether a watch that confirmed this cursor has news: later outcomes, or the end of its session."""
        source = self._state.sources.get(session)
        return source is None or source.outbox.cursor > confirmed

    def _register(self, request: Watch) -> SourceState:
        # The reply with is_new may be lost, so every reply carries a generation that names the registration.
        state = self._state
        # If the rest fails, this number is left out.
        state.registrations += 1
        generation = mix64(state.generation ^ mix64(state.registrations))
        # Its lease has ended until `_renew`. So a source that is opened in half ends at the next tick.
        source = SourceState(request.source, request.session, 0.0, generation, Outbox(state.room))
        index, now = state.indexes.next_free, state.now
        stream = BatchState(request.session, 0, index, now, limits=request.limits, idle_at=now)
        opened = SourceChange(Change.OPENED, source.name, source.session)
        state.add_batch(source, stream)
        try:
            state.add_source(source)
        except MemoryError:
            state.drop_batch(stream)
            raise
        state.changes.append(opened)
        return source

    def _renew(self, source: SourceState, request: Watch) -> int:
        """Renew the lease and update the limits of the open stream. Returns the granted lease in ms."""
        state = self._state
        source.watched_at = state.now
        lease_ms = min(request.lease_ms, int(self._max_lease_s * 1000))
        source.lease_s = lease_ms / 1000
        source.expires = state.now + source.lease_s
        if source.stream.limits != request.limits:
            state.ledger.limits[source.stream.index] = limit_ticks(request.limits)
            state.ledger.recheck_expiry()
            source.stream.limits = request.limits
        return lease_ms

    def _watch_reply(
        self, status: Status, source: SourceState | None, detail: str = "", is_new: bool = False
    ) -> WatchReply:
        generation = self.generation if source is None else source.generation
        return WatchReply(self.incarnation, status, detail, is_new, generation)

    # -- time

    def tick(self, now: float) -> None:
        """Expire leases, pending roots, orphans and identities. Call it every 50 to 100 ms."""
        state = self._state
        state.begin(now)
        self._run_steps(state.finish_others())
        expired = [source for source in state.sources.values() if source.expires <= state.now]
        if expired:
            self._run_steps(state.drop_sources(self._still_expired(expired), Change.EXPIRED))
        self._expire()
        self._orphans.update_pressure()
        self._forget_identities()
        for batch in state.indexes:
            if not state.ledger.pending[batch.index]:
                batch.idle_at = state.now
        self._pause()
        # It is time for this later, if there is no memory now.
        with suppress(MemoryError):
            state.ledger.tables.fit()
            self._make_tables()

    def _still_expired(self, sources: Sequence[SourceState]) -> Iterator[SourceState]:
        """Yield the sources whose lease has not been renewed when their turn comes."""
        for source in sources:
            if self._state.sources.get(source.session) is source and source.expires <= self._state.now:
                yield source

    def _expire(self) -> None:
        """Expire pending roots and orphans: all sub-tables once, if EXPIRE_CELLS are enough."""
        state = self._state
        rows, cells = kernels.ROWS, EXPIRE_CELLS
        while rows and cells > 0:
            outputs = state.ledger.free_outputs()
            state.accounts.begin(Uncounted(outputs))
            state.ledger.expire(state.tick, self._orphans.ticks, self._orphans.tombstone_ticks, rows, cells, outputs)
            state.accounts.finish()
            counted = state.ledger.counters
            rows, cells = rows - int(counted[kernels.SECTION]), cells - int(counted[kernels.CELLS])
            if not outputs.is_empty:
                self._run_steps(state.pass_on(outputs))
                self._pause()

    def _run_steps(self, steps: Steps) -> None:
        for _ in steps:
            self._pause()

    def _make_tables(self) -> None:
        """Get the memory that large sub-tables want, while other calls work."""
        tables = self._state.ledger.tables
        for slot, cells in list(tables.wanted.items()):
            with self.unlocked():
                table = new_table(cells)
            self._state.recover()
            tables.replace_large(slot, table)

    def _pause(self) -> None:
        """Let other calls use the shard."""
        with self.unlocked():
            pass
        # One of them may have had no memory.
        self._state.recover()

    def _forget_identities(self) -> None:
        state = self._state
        longest_ms = max((batch.longest_ms for batch in state.indexes), default=0)
        age_s = max(self._memory_s, longest_ms / 1000 + self._orphans.timeout_s)
        opened = min((batch.opened for batch in state.indexes if batch.number and batch.is_open), default=state.now)
        state.dedupe.forget_unused(min(state.now - age_s, opened), state.now - age_s)
        state.counters.identities_dropped = state.dedupe.dropped

    # -- figures

    @property
    def generation(self) -> int:
        """The number that names the state; it stays the same over planned restarts."""
        return self._state.generation

    def add_counters(self, counters: Counters) -> None:
        """Add the counters of a shard that has ended."""
        state = self._state
        state.dedupe.dropped += counters.identities_dropped
        state.counters.add(counters)

    @property
    def stats(self) -> ShardStats:
        """Gauges and counters. Cheap: does not sweep the ledger."""
        state = self._state
        return ShardStats.of(
            state.counters,
            pending=state.room.pending,
            reserved=state.room.reserved,
            unconfirmed=state.room.unconfirmed,
            orphans=state.ledger.orphans,
            sources=len(state.sources),
            open_batches=sum(bool(batch.number and not batch.is_settled) for batch in state.indexes),
            identities=len(state.dedupe),
            sequence_sessions=state.dedupe.sessions,
            max_pending=state.room.max_pending,
            max_memory=state.max_memory or 0,
            **{f"{kind}_bytes": size for kind, size in state.memory.items()},
        )

    def oldest_pending_age_s(self, now: float) -> float:
        """Return the longest time that any batch or open stream has had pending roots; 0 if nothing is pending.

        Looks at no root. For a held batch, this is the age of its first initialised root, accurate to a tick. In an
        open stream, where roots come and go, it may exceed the age of the oldest root, but not the message timeout.
        """
        busy = (batch for batch in self._state.indexes if self._state.ledger.pending[batch.index])
        return max((batch.busy_s(now) for batch in busy), default=0.0)

    def source_stats(self, now: float) -> list[SourceStats]:
        """Return figures of each source, in the order in which they were opened. Cheap: does not sweep the ledger."""
        figures: list[SourceStats] = []
        for count, source in enumerate(list(self._state.sources.values()), 1):
            if self._state.sources.get(source.session) is source:
                figures.append(SourceStats(source.name, self._state.pending_of(source), now - source.watched_at))
            if count % FIGURES_A_STEP == 0:
                self._pause()
        return figures

    # -- state

    def dump(self, now: float) -> Iterator[StatePart]:
        """Yield the whole state part by part, for `restore`. Until the last part, call no other method."""
        self._state.begin(now)
        return dumping.dump(self._state)

    @classmethod
    def restore(cls, parts: Iterable[StatePart], *, incarnation: int, now: float, **limits: Any) -> Shard:
        """Return a shard that continues from a dumped state. ``limits``: keyword arguments of the constructor.

        Raises ValueError, with the reason, if the state is incomplete.
        """
        shard = cls(incarnation=incarnation, generation=0, **limits)
        shard._state.begin(now)
        dumping.load(shard._state, parts)
        return shard
