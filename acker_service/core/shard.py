"""Shard: all state of one server behind seven calls. The pure core: no socket, no thread, no clock.

Decides what each call means: what is refused, and in which order its effects happen. A call that is refused leaves no
trace. What a report does is ``applying``'s, what is kept and who gets an outcome ``state``'s, how much fits ``room``'s.

Not thread-safe: the caller holds one lock. ``now`` is in seconds of a clock that does not go back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from acker_protocol.ids import mix64
from acker_protocol.messages import (
    Apply,
    ApplyReply,
    DrainReply,
    OpenBatch,
    OpenBatchReply,
    Pins,
    PinsReply,
    Settle,
    Settlement,
    SettleReply,
    Status,
    Watch,
    WatchReply,
)
from acker_service.core import kernels
from acker_service.core.applying import Applying, delay_ms
from acker_service.core.batches import BatchState, count_roots, limit_ticks, roots_within
from acker_service.core.malformed import malformed_open_batch, malformed_watch
from acker_service.core.orphans import Orphans
from acker_service.core.parts import StatePart
from acker_service.core.room import Room
from acker_service.core.sources import NUMBERS_A_ROOT, OPEN_MAX, Change, SourceChange, SourceState
from acker_service.core.state import State
from acker_service.core.stats import ShardStats, SourceStats

# Cells that one tick looks at: some 5 ms, so that 1 M pending roots are walked through in one tick, 10 M in eight.
EXPIRE_CELLS = 1_800_000

DRAINING = "this server drains and takes nothing new: place it on another"

_ACTIONS = {Settlement.DONE: kernels.FINISH, Settlement.ABANDON: kernels.ABANDON}


class Shard:
    """The state of one server.

    ``incarnation`` names this process and ``generation`` this state (it travels with it; ``registrations`` counts the
    sources it ever had, and both together make the token that every answer to a watch carries). ``max_pending`` bounds
    pending roots, roots reserved by open batches and outcomes not confirmed, together; ``max_pending_per_source`` the
    same of one source. Orphans are bounded by half of it. ``max_identity_bytes`` bounds what identities of reports and
    sequences take. Times are in seconds.
    """

    def __init__(
        self,
        *,
        incarnation: int,
        generation: int,
        version: str = "",
        max_pending: int = 20_000_000,
        max_pending_per_source: int | None = None,
        sequence_window: int = 64,
        orphan_timeout_s: float = 600.0,
        memory_s: float = 600.0,
        max_identity_bytes: int = 512 << 20,
        max_lease_s: float = 3600.0,
    ) -> None:
        self.incarnation, self.version = incarnation, version
        self.is_draining = False
        self._memory_s, self._max_lease_s = memory_s, max_lease_s
        room = Room(max_pending, max_pending if max_pending_per_source is None else max_pending_per_source)
        self._state = State(generation, room, sequence_window=sequence_window, max_identity_bytes=max_identity_bytes)
        self._orphans = Orphans(self._state.ledger, orphan_timeout_s)
        self._applying = Applying(self._state, self._orphans, incarnation)

    # -- apply

    def apply(self, message: Apply, now: float) -> ApplyReply:
        """Apply the sections of a message that were not applied before. Raises nothing: what is wrong is a status."""
        self._state.advance(now)
        return self._applying.apply(message)

    # -- batches

    def open_batch(self, request: OpenBatch, now: float) -> OpenBatchReply:
        """Open a batch and reserve its room, or add slots to one that is open. The same request again is answered
        APPLIED again."""
        state = self._state
        state.advance(now)
        source = state.sources.get(request.session)
        if source is None:
            if self.is_draining:
                return self._answer(Status.DRAINING, DRAINING)
            return self._answer(Status.UNKNOWN_SOURCE, "no source of this session watches: its Watch comes first")
        trouble = malformed_open_batch(request)
        if trouble:
            return self._answer(Status.INVALID, trouble)
        known = source.batches.get(request.number)
        if known is not None and known.is_open:
            return self._extend(source, known, request)
        if request.number <= source.last_settled:
            last = source.last_settled
            return self._answer(
                Status.UNKNOWN_BATCH, f"number: {request.number}; it must be above {last}, settled last"
            )
        if self.is_draining:
            return self._answer(Status.DRAINING, DRAINING)
        return self._reserve(source, request)

    def _extend(self, source: SourceState, batch: BatchState, request: OpenBatch) -> OpenBatchReply:
        """An open batch is opened again: slots that it does not have are added to it, if there is room."""
        if not batch.matches(request):
            return self._answer(Status.CONFLICT, f"batch {request.number} is open with other parameters")
        fresh = batch.fresh_slots(request)
        if not fresh.any():
            return self._answer(Status.APPLIED)
        trouble = self._state.lacks_room(source, 1)
        if trouble:
            return self._answer(Status.OVERLOADED, trouble)
        roots = roots_within(request, fresh)
        if batch.roots + roots > self._state.room.batch_max:
            most = self._state.room.batch_max
            return self._answer(Status.INVALID, f"up_to: {batch.roots + roots} roots never fit into {most}")
        trouble = self._state.lacks_room(source, roots)
        if trouble:
            return self._answer(Status.OVERLOADED, trouble)
        batch.extend(fresh, roots)
        self._state.room.reserve(roots)
        return self._answer(Status.APPLIED)

    def _reserve(self, source: SourceState, request: OpenBatch) -> OpenBatchReply:
        """Open a batch of a number that is free, if there is room for it."""
        state = self._state
        if request.up_to > state.room.batch_max * (NUMBERS_A_ROOT if request.slots else 1):
            detail = f"up_to: {request.up_to} roots never fit into {state.room.batch_max}; make smaller batches"
            return self._answer(Status.INVALID, detail)
        if state.indexes.is_full or len(source.batches) > OPEN_MAX:
            return self._answer(Status.OVERLOADED, "too many batches are open: settle some first")
        if request.slots:
            # To count the roots of some slots looks at each number, and need not be done where nothing fits.
            trouble = state.lacks_room(source, 1) or self._lacks_maps(request)
            if trouble:
                return self._answer(Status.OVERLOADED, trouble)
        roots = count_roots(request)
        if roots > state.room.batch_max:
            return self._answer(Status.INVALID, f"up_to: {roots} roots never fit into {state.room.batch_max}")
        trouble = state.lacks_room(source, roots)
        if trouble:
            return self._answer(Status.OVERLOADED, trouble)
        state.open(source, BatchState.of(request, roots, state.indexes.take(), state.now))
        state.room.reserve(roots)
        return self._answer(Status.APPLIED)

    def _lacks_maps(self, request: OpenBatch) -> str:
        """Why the maps of one more batch, a bit a number, would be too large; nothing ("") when they would not."""
        most = NUMBERS_A_ROOT * self._state.room.max_pending
        numbers = sum(batch.up_to for batch in self._state.indexes if batch.is_open)
        return f"open batches have {numbers} numbers; the server holds {most}" if numbers + request.up_to > most else ""

    def _answer(self, status: Status, detail: str = "") -> OpenBatchReply:
        return OpenBatchReply(self.incarnation, status, delay_ms(status), detail)

    def settle(self, requests: Sequence[Settle], now: float) -> list[SettleReply]:
        """Settle batches with one sweep of the table. For a batch that is settled already, the answer is the same as
        before."""
        state = self._state
        state.advance(now)
        batches: dict[BatchState, Settlement] = {}
        for request in requests:
            source = state.sources.get(request.session)
            batch = source.batches.get(request.number) if source is not None else None
            if batch is not None and batch.is_open and batch.number:
                batches.setdefault(batch, request.settlement)
        # Unheld batches that are done keep what is pending, under its timeouts.
        state.sweep({batch: _ACTIONS[how] for batch, how in batches.items() if batch.held or how == Settlement.ABANDON})
        for batch, settlement in batches.items():
            state.settle(batch, settlement)
        state.release()
        return [self._settled(request) for request in requests]

    def _settled(self, request: Settle) -> SettleReply:
        source = self._state.sources.get(request.session)
        if source is None:
            detail = "no source of this session watches; what it thinks pending is lost"
            return SettleReply(self.incarnation, Status.UNKNOWN_SOURCE, detail)
        settled = source.settled.get(request.number)
        if settled is None:
            return SettleReply(self.incarnation, Status.UNKNOWN_BATCH, f"number: batch {request.number} is not open")
        if settled.settlement != request.settlement:
            detail = f"batch {request.number} was settled as {settled.settlement.name} before"
            return SettleReply(self.incarnation, Status.CONFLICT, detail)
        return SettleReply(self.incarnation, Status.APPLIED, "", settled.cursor, settled.roots)

    # -- sources

    def watch(self, request: Watch, now: float) -> WatchReply:
        """Open a source or renew its lease, forget what it confirms, answer what it has not yet. Never waits."""
        state = self._state
        state.advance(now)
        source = state.sources.get(request.session)
        trouble = malformed_watch(request)
        if trouble:
            return self._watched(Status.INVALID, source, trouble)
        is_new = source is None
        if request.close:
            state.drop([source] if source is not None else [], Change.CLOSED)
            return self._watched(Status.APPLIED, source, is_new=is_new)
        if source is None:
            if self.is_draining:
                return self._watched(Status.DRAINING, source, DRAINING)
            if state.indexes.is_full:
                return self._watched(Status.OVERLOADED, source, "too many sources: try again when a lease has run out")
            source = self._register(request)
        elif request.confirmed > source.outbox.cursor:
            last = source.outbox.cursor
            detail = f"confirmed: {request.confirmed} is beyond the last outcome, {last}"
            return self._watched(Status.INVALID, source, detail)
        else:
            state.room.confirm(source.outbox.confirm(request.confirmed))
        lease_ms = self._renew(source, request)
        if request.pins:
            source.keep(request.pins)
        outcomes = source.outbox.read(request.max_outcomes or len(source.outbox))
        return WatchReply(
            self.incarnation,
            Status.APPLIED,
            "",
            is_new,
            source.generation,
            source.outbox.freed + len(outcomes),
            outcomes,
            lease_ms,
            source.pins_crc32,
        )

    def pins(self, request: Pins) -> PinsReply:
        """Where the roots live that a source emits, as its Watch said last."""
        source = self._state.sources.get(request.session)
        if source is None:
            return PinsReply(self.incarnation, Status.UNKNOWN_SOURCE, "no source of this session watches here")
        return PinsReply(self.incarnation, Status.APPLIED, "", source.pins)

    # -- drain

    def drain(self) -> DrainReply:
        """From now on take no new batches and no new sources."""
        self.is_draining = True
        return DrainReply(self.incarnation, Status.APPLIED, self.left)

    @property
    def left(self) -> str:
        """What keeps a server that drains from ending, for people; nothing ("") where nothing does."""
        stats = self.stats
        counts = {
            "open batches": stats.open_batches,
            "pending roots": stats.pending,
            "unconfirmed outcomes": stats.unconfirmed,
        }
        return ", ".join(f"{what}: {count}" for what, count in counts.items() if count)

    def take_changes(self) -> list[SourceChange]:
        """Which sources have opened, closed or expired since this was asked last, oldest first."""
        changes = list(self._state.changes)
        self._state.changes.clear()
        return changes

    def name_of(self, session: int) -> str | None:
        """The name of the source that has a session, if one has it."""
        source = self._state.sources.get(session)
        return None if source is None else source.name

    def has_outcomes(self, session: int, confirmed: int) -> bool:
        """Is there something to answer to a watch that confirmed so much: outcomes, or that its session is gone?"""
        source = self._state.sources.get(session)
        return source is None or source.outbox.cursor > confirmed

    def _register(self, request: Watch) -> SourceState:
        # "New" is said once and may be lost on its way; the token of the registration is said with every answer.
        state = self._state
        state.registrations += 1
        generation = mix64(state.generation ^ mix64(state.registrations))
        source = state.sources[request.session] = SourceState(request.source, request.session, 0.0, generation)
        index, now = state.indexes.take(), state.now
        state.open(source, BatchState(request.session, 0, index, now, limits=request.limits, idle_at=now))
        state.changes.append(SourceChange(Change.OPENED, source.name, source.session))
        return source

    def _renew(self, source: SourceState, request: Watch) -> int:
        """Start the lease anew; gives what is granted, in ms."""
        state = self._state
        source.watched_at = state.now
        lease_ms = min(request.lease_ms, int(self._max_lease_s * 1000))
        source.lease_s = lease_ms / 1000
        source.expires = state.now + source.lease_s
        if source.stream.limits != request.limits:
            source.stream.limits = request.limits
            state.ledger.limits[source.stream.index] = limit_ticks(request.limits)
            state.ledger.hasten()
        return lease_ms

    def _watched(
        self, status: Status, source: SourceState | None, detail: str = "", is_new: bool = False
    ) -> WatchReply:
        generation = self.generation if source is None else source.generation
        return WatchReply(self.incarnation, status, detail, is_new, generation)

    # -- time

    def tick(self, now: float) -> None:
        """Let time pass: leases, timeouts, orphans, memory of identities. To be called every 50 to 100 ms."""
        state = self._state
        state.advance(now)
        late = [source for source in state.sources.values() if source.expires <= state.now]
        state.counters.leases_expired += len(late)
        if late:
            state.drop(late, Change.EXPIRED)
        orphans = state.ledger.orphans
        for outcomes in state.ledger.expire(state.tick, self._orphans.ticks, EXPIRE_CELLS):
            state.deliver(outcomes, kernels.REASONS)
        state.counters.orphans_expired += orphans - state.ledger.orphans
        self._orphans.press()
        state.ledger.fit()
        self._forget()
        for batch in state.indexes:
            if not state.ledger.pending[batch.index]:
                batch.idle_at = state.now

    def _forget(self) -> None:
        state = self._state
        longest_ms = max((batch.longest_ms for batch in state.indexes), default=0)
        age_s = max(self._memory_s, longest_ms / 1000 + self._orphans.timeout_s)
        opened = min((batch.opened for batch in state.indexes if batch.number and batch.is_open), default=state.now)
        state.dedupe.forget(min(state.now - age_s, opened), state.now - age_s)
        state.counters.identities_dropped = state.dedupe.dropped

    # -- figures

    @property
    def generation(self) -> int:
        """Of the state: the first part of the token that an answer to a watch carries."""
        return self._state.generation

    @property
    def stats(self) -> ShardStats:
        """Gauges and counters. Cheap: nothing is swept."""
        state = self._state
        return ShardStats.of(
            state.counters,
            pending=state.room.pending,
            reserved=state.room.reserved,
            unconfirmed=state.room.unconfirmed,
            orphans=state.ledger.orphans,
            sources=len(state.sources),
            open_batches=sum(bool(batch.number and batch.is_open) for batch in state.indexes),
            identities=len(state.dedupe),
            identity_bytes=state.dedupe.memory_bytes,
            sequence_sessions=state.dedupe.sessions,
            ledger_bytes=state.ledger.table_bytes,
            max_pending=state.room.max_pending,
        )

    def oldest_pending_age_s(self, now: float) -> float:
        """For how long a batch or an open stream has had roots pending, the longest of them; 0 if nothing is pending.

        Looks at no root. Of a held batch it is the age of the first root that was initialised, to a tick; where roots
        come and go, as in an open stream, it is the age of the oldest or more, but no more than the message timeout.
        """
        busy = (batch for batch in self._state.indexes if self._state.ledger.pending[batch.index])
        return max((batch.busy_s(now) for batch in busy), default=0.0)

    def source_stats(self, now: float) -> list[SourceStats]:
        """Of each source, in the order in which they were opened. Cheap: nothing is swept."""
        return [
            SourceStats(source.name, self._state.pending_of(source), now - source.watched_at)
            for source in self._state.sources.values()
        ]

    # -- state

    def dump(self, now: float) -> Iterator[StatePart]:
        """The whole state, part by part, deadlines as time remaining: what `restore` takes. Nothing else may be called
        until the last part was taken."""
        self._state.advance(now)
        return self._state.dump()

    @classmethod
    def restore(cls, parts: Iterable[StatePart], *, incarnation: int, now: float, **limits: Any) -> Shard:
        """A shard that goes on where the dumped one stopped, ``limits`` as for the constructor.

        Raises ValueError, and says what is wrong, if the state is not whole.
        """
        shard = cls(incarnation=incarnation, generation=0, **limits)
        shard._state.advance(now)
        shard._state.load(parts)
        return shard
