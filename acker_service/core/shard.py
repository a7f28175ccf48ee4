"""Shard: all state of one server behind five calls. The pure core: no socket, no thread, no clock.

Decides what each call means: what is refused, in which order its effects happen, who is told what. A message that is
refused leaves no trace. Acks are never refused for want of room; inits of an open batch neither, since their room was
reserved. The arithmetic is ``ledger``'s, what counted before is ``dedupe``'s, reservations are ``batches``'.

Orphans (entries without an init: early or late acks, tombstones) are bounded: they age out sooner the more there are,
and beyond the bound acks of unknown roots are dropped and counted. That is safe: a lost ack can stall a tree, whose
record is then replayed; it can never make it look done, since every update is "my edge and my children's edges" and
the edges it would have cancelled stay in the ack val.

Not thread-safe: the caller holds one lock. ``now`` is in seconds of a clock that does not go back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from acker_protocol.ids import Column, mix64
from acker_protocol.messages import (
    FAIL,
    NO_KINDS,
    Apply,
    ApplyReply,
    Entries,
    InitScope,
    Kinds,
    OpenBatch,
    OpenBatchReply,
    Settle,
    Settlement,
    SettleReply,
    Status,
    Verdict,
    Watch,
    WatchReply,
)
from acker_service.core import kernels, state
from acker_service.core.batches import Batch, Indexes, are_too_long, limit_ticks
from acker_service.core.dedupe import IDENTITY_BYTES, Dedupe
from acker_service.core.ledger import Effect, Ledger, Report, Told
from acker_service.core.outbox import cut
from acker_service.core.reasons import Reasons
from acker_service.core.sources import NAME_CHARACTERS, OPEN_MAX, Change, Settled, Source, SourceChange
from acker_service.core.stats import Counters, ShardStats, SourceStats

Array = npt.NDArray[Any]

# A bit a slot.
ALL_SLOTS = np.full(16, np.iinfo(np.uint64).max, np.uint64)
# After an answer that there is no room, or that a source is not known yet.
RETRY_DELAY_MS = 200
# Cells that one tick looks at: some 5 ms, so that 1 M pending roots are walked through in one tick, 10 M in eight.
EXPIRE_CELLS = 1_800_000
# A share of the bound on orphans, and by how much they live shorter above it.
ORPHAN_PRESSURE = ((0.9, 64), (0.75, 16), (0.5, 4))
# Changes of sources that wait to be taken; where nobody takes them the oldest go.
CHANGES_MAX = 4096

_ACTIONS = {Settlement.DONE: kernels.FINISH, Settlement.ABANDON: kernels.ABANDON}


class Shard:
    """The state of one server.

    ``incarnation`` names this process and ``generation`` this state (it travels with it; ``registrations`` counts the
    sources it ever had, and both together make the token that a watch is told). ``max_pending`` bounds
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
        self.incarnation, self.generation, self.version = incarnation, generation, version
        self.max_pending, self.sequence_window = max_pending, sequence_window
        self._max_per_source = max_pending if max_pending_per_source is None else max_pending_per_source
        self._orphan_timeout_s, self._memory_s, self._max_lease_s = orphan_timeout_s, memory_s, max_lease_s
        self._ledger = Ledger(max(1024, max_pending // 2))
        self._dedupe = Dedupe(sequence_window, max(1, max_identity_bytes // IDENTITY_BYTES))
        self._reasons = Reasons()
        self._indexes = Indexes()
        self._sources: dict[int, Source] = {}
        self._changes: deque[SourceChange] = deque(maxlen=CHANGES_MAX)
        self._closing: set[Batch] = set()
        self._counters = Counters()
        self._pending = self._reserved = self._unconfirmed = 0
        self.registrations = 0
        self._now, self._tick = 0.0, 0
        self._pressure = 1
        self._marked_at = -1
        self._spoilt = 0

    # -- apply

    def apply(self, message: Apply, now: float) -> ApplyReply:
        """Apply the sections of a message that were not applied before. Raises nothing: what is wrong is a status."""
        self._advance(now)
        entries = message.entries
        batch = self._batch_of(message.inits)
        trouble = _malformed(message, batch)
        if trouble:
            return self._refuse(Status.INVALID, trouble)
        report = self._ledger.check(_column(entries.root_ids, np.uint64), batch.numbering if batch else None)
        if isinstance(report, str):
            return self._refuse(Status.INVALID, report)
        known = self._dedupe.look(message.identity, message.digest)
        if isinstance(known, Status):
            if known == Status.CONFLICT and message.inits is None and not message.identity.sequenced:
                self._spoil(report)
            return self._refuse_sections(known, len(report.slots))
        asked = int.from_bytes(report.bits.tobytes(), "little")
        if message.inits is not None and (asked & ~known or not asked):
            refusal = self._refuse_inits(message.inits, batch, report, asked & ~known)
            if refusal:
                return refusal
        self._dedupe.note(message.identity, message.digest, asked, self._now)
        effect = self._apply(message, batch, report, asked & ~known) if asked & ~known else Effect()
        if message.inits is not None and batch is not None and batch.is_open and len(message.inits.covered):
            batch.cover(_column(message.inits.covered, np.uint64))
        return self._reply(report, asked, known, effect)

    def _batch_of(self, scope: InitScope | None) -> Batch | None:
        source = self._sources.get(scope.session) if scope is not None else None
        return source.batches.get(scope.batch) if source is not None and scope is not None else None

    def _refuse_inits(self, scope: InitScope, batch: Batch | None, report: Report, fresh: int) -> ApplyReply | None:
        source = self._sources.get(scope.session)
        if source is None:
            return self._refuse(Status.UNKNOWN_SOURCE, "no source of this session watches: its Watch comes first")
        if batch is None or not batch.is_open:
            return self._refuse(Status.UNKNOWN_BATCH, f"batch {scope.batch} of source {source.name!r} is not open")
        if batch.number:
            return None
        return self._refuse_room(source, _entries_in(report, fresh))

    def _refuse_room(self, source: Source, roots: int) -> ApplyReply | None:
        trouble = self._no_room(source, roots)
        return self._refuse(Status.OVERLOADED, trouble) if trouble else None

    def _no_room(self, source: Source, roots: int) -> str:
        if self._pending + self._reserved + self._unconfirmed + roots > self.max_pending:
            return f"no room for {roots} more roots: max_pending is {self.max_pending}"
        used = sum(int(self._ledger.pending[batch.index]) + batch.reserved for batch in source.batches.values())
        if used + len(source.outbox) + roots > self._max_per_source:
            return f"no room for {roots} more roots of one source: max_pending_per_source is {self._max_per_source}"
        return ""

    def _apply(self, message: Apply, batch: Batch | None, report: Report, fresh: int) -> Effect:
        slots = np.frombuffer(fresh.to_bytes(128, "little"), np.uint64)
        vals = _column(message.entries.ack_vals, np.uint64)
        if message.inits is None or batch is None:
            return self._apply_updates(message.entries, report, vals, slots)
        effect = self._ledger.apply_inits(report, vals, slots, batch.index, batch.held, batch.numbering, self._tick)
        self._pending += effect.created
        if batch.number:
            batch.inits += effect.created
            self._reserved -= effect.created
        self._counters.inits += effect.created
        self._counters.inits_known += effect.known
        self._counters.inits_conflicting += effect.conflicts
        self._counters.updates += effect.applied
        self._deliver(self._ledger.told(), self._reasons.texts)
        return effect

    def _apply_updates(self, entries: Entries, report: Report, vals: Column, slots: Column) -> Effect:
        kinds, reason_ids = _column(entries.kinds, np.uint8), _column(entries.reason_ids, np.uint32)
        effect, tombstones = self._ledger.apply_updates(
            report, vals, kinds, reason_ids, slots, self._orphan_ticks, self._tick
        )
        self._counters.updates += effect.applied
        self._counters.orphans_dropped += effect.dropped
        self._deliver(self._ledger.told(), entries.reasons)
        if len(tombstones):
            self._label(report, entries, tombstones)
        return effect

    def _spoil(self, report: Report) -> None:
        """Two attempts at the same work made different things of these roots. Which of them was committed nobody here
        can tell, and the second one may have failed a root that the first one finished: none of them gets to zero."""
        self._spoilt += 1
        vals = np.full(len(report.keys), mix64(self.incarnation ^ mix64(self._spoilt)), np.uint64)
        self._apply_updates(Entries(report.keys, vals), report, vals, ALL_SLOTS)

    def _label(self, report: Report, entries: Entries, tombstones: Array) -> None:
        """Keep the reasons of new tombstones."""
        fails = np.cumsum(entries.kinds & FAIL != 0) - 1
        local, positions = np.unique(entries.reason_ids[fails[tombstones]], return_inverse=True)
        texts = [cut(entries.reasons[number]) for number in local.tolist()]
        ids = [self._reasons.id_of(text) for text in texts]
        self._ledger.label(report.keys[tombstones], np.array(ids, np.uint64)[positions])
        if self._reasons.is_full and self._tick >= self._marked_at + kernels.TICKS_A_SECOND:
            self._marked_at = self._tick
            used = self._reasons.empty_marks()
            self._ledger.mark_reasons(used)
            self._reasons.keep(used)

    def _reply(self, report: Report, asked: int, known: int, effect: Effect) -> ApplyReply:
        sections, duplicate = len(report.slots), (asked & known).bit_count()
        self._counters.sections_applied += sections - duplicate
        self._counters.sections_duplicate += duplicate
        status = Status.DUPLICATE if sections and duplicate == sections else Status.APPLIED
        statuses = NO_KINDS
        if 0 < duplicate < sections:
            bits = np.unpackbits(np.frombuffer(known.to_bytes(128, "little"), np.uint8), bitorder="little")
            statuses = np.where(bits[report.slots], Status.DUPLICATE, Status.APPLIED).astype(np.uint8)
        return ApplyReply(
            self.incarnation, status, statuses, inits_known=effect.known, inits_conflicting=effect.conflicts
        )

    def _refuse(self, status: Status, detail: str) -> ApplyReply:
        return ApplyReply(self.incarnation, status, retry_delay_ms=_delay_ms(status), detail=detail)

    def _refuse_sections(self, status: Status, sections: int) -> ApplyReply:
        if status == Status.STALE:
            self._counters.sections_stale += sections
            detail = f"sequence: older than the last {self.sequence_window} of its session"
        else:
            self._counters.sections_conflict += sections
            detail = "identity: known with another digest; two reports of different content say they are the same work"
        return ApplyReply(self.incarnation, status, detail=detail)

    # -- outcomes

    def _deliver(self, told: Told, texts: Sequence[str]) -> None:
        """Put outcomes into the outboxes of their sources."""
        if not len(told.roots):
            return
        if told.is_uniform:
            info = int(told.info[0])
            self._put(info & _INDEX, told.roots, info >> 16 & 0xFF, info >> 32, texts)
        else:
            self._deliver_groups(told, texts)
        self._pending -= len(told.roots)
        self._release()

    def _deliver_groups(self, told: Told, texts: Sequence[str]) -> None:
        indexes = told.info & np.uint64(_INDEX)
        verdicts, codes = (told.info >> np.uint64(16)).astype(np.uint8), told.info >> np.uint64(32)
        if np.all(indexes == indexes[0]):
            self._put(int(indexes[0]), told.roots, verdicts, codes, texts)
            return
        order = np.argsort(indexes, kind="stable")
        starts = np.flatnonzero(np.diff(indexes[order], prepend=np.uint64(0)))
        for group in np.split(order, starts[1:]):
            self._put(int(indexes[group[0]]), told.roots[group], verdicts[group], codes[group], texts)

    def _put(self, index: int, roots: Column, verdicts: Kinds | int, codes: Array | int, texts: Sequence[str]) -> None:
        source = self._sources[self._indexes[index].session]
        source.outbox.append(roots, verdicts, codes, texts)
        self._unconfirmed += len(roots)
        self._count(verdicts, len(roots))

    def _count(self, verdicts: Kinds | int, roots: int) -> None:
        """Count outcomes by verdict."""
        if not isinstance(verdicts, np.ndarray):
            self._add(Verdict(verdicts), roots)
            return
        counts = np.bincount(verdicts, minlength=len(Verdict) + 1).tolist()
        for verdict in Verdict:
            self._add(verdict, counts[verdict])

    def _add(self, verdict: Verdict, roots: int) -> None:
        name = verdict.name.lower()
        setattr(self._counters, name, getattr(self._counters, name) + roots)

    def _release(self) -> None:
        """Give back the indexes of closed batches of which nothing is pending any more."""
        for batch in [batch for batch in self._closing if not self._ledger.pending[batch.index]]:
            self._closing.discard(batch)
            self._indexes.release(batch)
            source = self._sources.get(batch.session)
            if source is not None:
                source.batches.pop(batch.number, None)

    # -- batches

    def open_batch(self, request: OpenBatch, now: float) -> OpenBatchReply:
        """Open a batch and reserve its room. The same request again is answered APPLIED again."""
        self._advance(now)
        source = self._sources.get(request.session)
        if source is None:
            return self._answer(Status.UNKNOWN_SOURCE, "no source of this session watches: its Watch comes first")
        trouble = _misfit_batch(request)
        if trouble:
            return self._answer(Status.INVALID, trouble)
        known = source.batches.get(request.number)
        if known is not None and known.is_open:
            if known.matches(request):
                return self._answer(Status.APPLIED)
            return self._answer(Status.CONFLICT, f"batch {request.number} is open with other parameters")
        if request.number <= source.last_settled:
            last = source.last_settled
            return self._answer(
                Status.UNKNOWN_BATCH, f"number: {request.number}; it must be above {last}, settled last"
            )
        most = min(self.max_pending, self._max_per_source)
        if request.up_to > most:
            detail = f"up_to: {request.up_to} roots never fit into {most}; make smaller batches"
            return self._answer(Status.INVALID, detail)
        if self._indexes.is_full or len(source.batches) > OPEN_MAX:
            return self._answer(Status.OVERLOADED, "too many batches are open: settle some first")
        trouble = self._no_room(source, request.up_to)
        if trouble:
            return self._answer(Status.OVERLOADED, trouble)
        self._open(source, Batch.of(request, self._indexes.take(), self._now))
        self._reserved += request.up_to
        return self._answer(Status.APPLIED)

    def _open(self, source: Source, batch: Batch) -> None:
        self._indexes.claim(batch)
        source.batches[batch.number] = batch
        self._ledger.limits[batch.index] = limit_ticks(batch.limits)

    def _answer(self, status: Status, detail: str = "") -> OpenBatchReply:
        return OpenBatchReply(self.incarnation, status, _delay_ms(status), detail)

    def settle(self, requests: Sequence[Settle], now: float) -> list[SettleReply]:
        """Settle batches with one sweep of the table. A settled batch is answered again what it was answered before."""
        self._advance(now)
        batches: dict[Batch, Settlement] = {}
        for request in requests:
            source = self._sources.get(request.session)
            batch = source.batches.get(request.number) if source is not None else None
            if batch is not None and batch.is_open and batch.number:
                batches.setdefault(batch, request.settlement)
        # Unheld batches that are done keep what is pending, under its timeouts.
        self._sweep({batch: _ACTIONS[how] for batch, how in batches.items() if batch.held or how == Settlement.ABANDON})
        for batch, settlement in batches.items():
            self._close(batch, settlement)
        self._release()
        return [self._settled(request) for request in requests]

    def _sweep(self, actions: Mapping[Batch, int]) -> None:
        table = np.zeros(kernels.INDEXES, np.uint8)
        for batch, action in actions.items():
            table[batch.index] = action
        if not np.any(self._ledger.pending[table != kernels.KEEP]):
            return
        for told in self._ledger.settle(table):
            self._deliver(told, kernels.REASONS)

    def _close(self, batch: Batch, settlement: Settlement) -> None:
        source = self._sources[batch.session]
        unread = batch.unread()
        source.outbox.append(unread, int(Verdict.LOST), kernels.BY_UNREAD, kernels.REASONS)
        self._unconfirmed += len(unread)
        self._counters.lost += len(unread)
        self._reserved -= batch.reserved
        roots = batch.inits - int(self._ledger.pending[batch.index]) + len(unread)
        batch.close()
        self._closing.add(batch)
        source.remember(batch.number, Settled(settlement, source.outbox.cursor, roots))

    def _settled(self, request: Settle) -> SettleReply:
        source = self._sources.get(request.session)
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
        self._advance(now)
        source = self._sources.get(request.session)
        trouble = _misfit_watch(request)
        if trouble:
            return self._watched(Status.INVALID, source, trouble)
        is_new = source is None
        if request.close:
            self._drop([source] if source is not None else [], Change.CLOSED)
            return self._watched(Status.APPLIED, source, is_new=is_new)
        if source is None:
            if self._indexes.is_full:
                return self._watched(Status.OVERLOADED, source, "too many sources: try again when a lease has run out")
            source = self._register(request)
        elif request.confirmed > source.outbox.cursor:
            last = source.outbox.cursor
            detail = f"confirmed: {request.confirmed} is beyond the last outcome, {last}"
            return self._watched(Status.INVALID, source, detail)
        else:
            self._unconfirmed -= source.outbox.confirm(request.confirmed)
        lease_ms = self._renew(source, request)
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
        )

    def take_changes(self) -> list[SourceChange]:
        """Which sources have opened, closed or expired since this was asked last, oldest first."""
        changes = list(self._changes)
        self._changes.clear()
        return changes

    def _change_of(self, source: Source, change: Change) -> SourceChange:
        open_batches = sum(bool(batch.number and batch.is_open) for batch in source.batches.values())
        pending = self._pending_of(source)
        return SourceChange(change, source.name, source.session, pending, len(source.outbox), open_batches)

    def name_of(self, session: int) -> str | None:
        """The name of the source that has a session, if one has it."""
        source = self._sources.get(session)
        return None if source is None else source.name

    def has_outcomes(self, session: int, confirmed: int) -> bool:
        """Has a watch that confirmed so much something to be told: outcomes, or that its session is gone?"""
        source = self._sources.get(session)
        return source is None or source.outbox.cursor > confirmed

    def _register(self, request: Watch) -> Source:
        # "New" is said once and may be lost on its way; the token of the registration is said with every answer.
        self.registrations += 1
        generation = mix64(self.generation ^ mix64(self.registrations))
        source = self._sources[request.session] = Source(request.source, request.session, 0.0, generation)
        index, now = self._indexes.take(), self._now
        self._open(source, Batch(request.session, 0, index, now, limits=request.limits, idle=now))
        self._changes.append(SourceChange(Change.OPENED, source.name, source.session))
        return source

    def _renew(self, source: Source, request: Watch) -> int:
        """Start the lease anew; gives what is granted, in ms."""
        source.watched = self._now
        lease_ms = min(request.lease_ms, int(self._max_lease_s * 1000))
        source.lease_s = lease_ms / 1000
        source.expires = self._now + source.lease_s
        if source.stream.limits != request.limits:
            source.stream.limits = request.limits
            self._ledger.limits[source.stream.index] = limit_ticks(request.limits)
            self._ledger.hasten()
        return lease_ms

    def _watched(self, status: Status, source: Source | None, detail: str = "", is_new: bool = False) -> WatchReply:
        generation = self.generation if source is None else source.generation
        return WatchReply(self.incarnation, status, detail, is_new, generation)

    def _drop(self, sources: Sequence[Source], change: Change) -> None:
        """Forget sources and all their roots, with one sweep."""
        self._changes.extend(self._change_of(source, change) for source in sources)
        batches = [batch for source in sources for batch in source.batches.values()]
        dropped = sum(self._pending_of(source) for source in sources)
        self._sweep(dict.fromkeys(batches, kernels.DROP))
        self._pending -= dropped
        self._counters.roots_dropped += dropped
        for batch in batches:
            self._reserved -= batch.reserved
            batch.close()
            self._closing.add(batch)
        for source in sources:
            self._unconfirmed -= len(source.outbox)
            del self._sources[source.session]
        self._release()

    # -- time

    def tick(self, now: float) -> None:
        """Let time pass: leases, timeouts, orphans, memory of identities. To be called every 50 to 100 ms."""
        self._advance(now)
        late = [source for source in self._sources.values() if source.expires <= self._now]
        self._counters.leases_expired += len(late)
        if late:
            self._drop(late, Change.EXPIRED)
        orphans = self._ledger.orphans
        for told in self._ledger.expire(self._tick, self._orphan_ticks, EXPIRE_CELLS):
            self._deliver(told, kernels.REASONS)
        self._counters.orphans_expired += orphans - self._ledger.orphans
        self._press()
        self._ledger.fit()
        self._forget()
        for batch in self._indexes:
            if not self._ledger.pending[batch.index]:
                batch.idle = self._now

    def _advance(self, now: float) -> None:
        self._now = max(self._now, now)
        self._tick = int(self._now * kernels.TICKS_A_SECOND)

    @property
    def _orphan_ticks(self) -> int:
        return int(self._orphan_timeout_s * kernels.TICKS_A_SECOND / self._pressure) + 1

    def _press(self) -> None:
        """Orphans live shorter while there are many."""
        share = self._ledger.orphans / self._ledger.orphans_max
        pressure = next((factor for bound, factor in ORPHAN_PRESSURE if share > bound), 1)
        if pressure > self._pressure:
            self._ledger.hasten()
        self._pressure = pressure

    def _forget(self) -> None:
        deadline_ms = max((_longest_ms(batch) for batch in self._indexes), default=0)
        age_s = max(self._memory_s, deadline_ms / 1000 + self._orphan_timeout_s)
        opened = min((batch.opened for batch in self._indexes if batch.number and batch.is_open), default=self._now)
        self._dedupe.forget(min(self._now - age_s, opened), self._now - age_s)
        self._counters.identities_dropped = self._dedupe.dropped

    @property
    def stats(self) -> ShardStats:
        """Gauges and counters. Cheap: nothing is swept."""
        return ShardStats.of(
            self._counters,
            pending=self._pending,
            reserved=self._reserved,
            unconfirmed=self._unconfirmed,
            orphans=self._ledger.orphans,
            sources=len(self._sources),
            open_batches=sum(bool(batch.number and batch.is_open) for batch in self._indexes),
            identities=len(self._dedupe),
            identity_bytes=self._dedupe.memory_bytes,
            sequence_sessions=self._dedupe.sessions,
            ledger_bytes=self._ledger.table_bytes,
            max_pending=self.max_pending,
        )

    def oldest_pending_age_s(self, now: float) -> float:
        """For how long a batch or an open stream has had roots pending, the longest of them; 0 if nothing is pending.

        Looks at no root. Of a held batch it is the age of the first root that was initialised, to a tick; where roots
        come and go, as in an open stream, it is the age of the oldest or more, but no more than the message timeout.
        """
        busy = (batch for batch in self._indexes if self._ledger.pending[batch.index])
        return max((_busy_s(batch, now) for batch in busy), default=0.0)

    def source_stats(self, now: float) -> list[SourceStats]:
        """Of each source, in the order in which they were opened. Cheap: nothing is swept."""
        return [
            SourceStats(source.name, self._pending_of(source), now - source.watched)
            for source in self._sources.values()
        ]

    def _pending_of(self, source: Source) -> int:
        return sum(int(self._ledger.pending[batch.index]) for batch in source.batches.values())

    # -- state

    def dump(self, now: float) -> Iterator[state.Part]:
        """The whole state, part by part, deadlines as time remaining: what `restore` takes. Nothing else may be called
        until the last part was taken."""
        self._advance(now)
        return state.dump(self)

    @classmethod
    def restore(cls, parts: Iterable[state.Part], *, incarnation: int, now: float, **limits: Any) -> Shard:
        """A shard that goes on where the dumped one stopped, ``limits`` as for the constructor.

        Raises ValueError, and says what is wrong, if the state is not whole.
        """
        shard = cls(incarnation=incarnation, generation=0, **limits)
        shard._advance(now)
        state.load(shard, parts)
        return shard


_INDEX = kernels.INDEXES - 1


def _column(values: Array, dtype: type[Any]) -> Array:
    """As the kernels want it: contiguous and aligned; the same array where it is."""
    column = np.ascontiguousarray(values, dtype)
    return column if column.flags.aligned else column.copy()


def _entries_in(report: Report, slots: int) -> int:
    """How many entries lie in slots of a 1024-bit map, all of which are in the report."""
    if slots.bit_count() == len(report.slots):
        return len(report.keys)
    bits = np.unpackbits(np.frombuffer(slots.to_bytes(128, "little"), np.uint8), bitorder="little")
    return int(np.diff(report.starts)[bits[report.slots] != 0].sum())


def _malformed(message: Apply, batch: Batch | None) -> str:
    """What is wrong with the columns of a message, or nothing. Order and numbers are the ledger's to check."""
    entries, scope = message.entries, message.inits
    if len(entries.ack_vals) != len(entries):
        return f"ack_vals: {len(entries.ack_vals)} for {len(entries)} root ids"
    if scope is None:
        return _malformed_kinds(entries) if len(entries.kinds) or len(entries.reason_ids) else ""
    if len(entries.kinds):
        return "kinds: a report of inits has none"
    if len(scope.covered) and batch is not None and batch.is_open:
        if not batch.number:
            return "covered: the open stream, batch 0, has no numbers to cover"
        if np.any(scope.covered[:, 0] > scope.covered[:, 1]) or int(scope.covered.max()) > batch.up_to:
            return f"covered: a range does not lie within the {batch.up_to} numbers of its batch"
    return ""


def _malformed_kinds(entries: Entries) -> str:
    if len(entries.kinds) != len(entries):
        return f"kinds: {len(entries.kinds)} for {len(entries)} root ids"
    if len(entries.kinds) and not 0 < entries.kinds.min() <= entries.kinds.max() < 8:
        return "kinds: an entry has no known bit, or an unknown one"
    fails = int(np.count_nonzero(entries.kinds & FAIL))
    if len(entries.reason_ids) != fails:
        return f"reason_ids: {len(entries.reason_ids)} for {fails} fails"
    if fails and int(entries.reason_ids.max()) >= len(entries.reasons):
        return f"reason_ids: an index is beyond the {len(entries.reasons)} reasons"
    return ""


def _misfit_batch(request: OpenBatch) -> str:
    if not request.number:
        return "number: 0 is the open stream, which is always open; batches are numbered from 1"
    if not request.first or request.first + request.up_to > 1 << 64:
        return "first: must be above 0, and first + up_to must not pass 2**64"
    return "limits: a timeout is at most 24 h (86400000 ms)" if are_too_long(request.limits) else ""


def _misfit_watch(request: Watch) -> str:
    if not request.source or len(request.source) > NAME_CHARACTERS:
        return f"source: a name of 1 to {NAME_CHARACTERS} characters is needed"
    if not request.lease_ms and not request.close:
        return "lease_ms: 0 would end at once; ask for as long as the source may be silent"
    return "limits: a timeout is at most 24 h (86400000 ms)" if are_too_long(request.limits) else ""


def _busy_s(batch: Batch, now: float) -> float:
    """Since when a batch has had roots pending; a root that is not held is never older than its message timeout."""
    timeout_ms = 0 if batch.held else batch.limits.message_timeout_ms
    return min(now - batch.idle, timeout_ms / 1000) if timeout_ms else now - batch.idle


def _longest_ms(batch: Batch) -> int:
    return max(batch.limits.message_timeout_ms, batch.limits.progress_timeout_ms)


def _delay_ms(status: Status) -> int:
    return RETRY_DELAY_MS if status in (Status.OVERLOADED, Status.UNKNOWN_SOURCE) else 0
