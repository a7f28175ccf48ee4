"""Twin: a model of the shard in plain Python, with a dict as the ledger.

It is slow, but simple enough to check by reading. :class:`acker_service.core.shard.Shard` must behave like it. It was
written from the rules of acker.proto, before the fast shard. It forgets no identity by age, and does not bound orphans.
"""

from __future__ import annotations

import binascii
import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from acker_protocol.ids import mix64, mix64_column, unmix64, unmix64_column
from acker_protocol.messages import (
    ACK,
    FAIL,
    RESET,
    Apply,
    ApplyReply,
    Limits,
    OpenBatch,
    OpenBatchReply,
    Outcomes,
    Pins,
    PinsReply,
    Settle,
    Settlement,
    SettleReply,
    Status,
    Verdict,
    Watch,
    WatchReply,
)
from acker_service.core.stats import ShardStats

DAY_MS = 24 * 3600 * 1000
RETRY_DELAY_MS = 200


@dataclass
class _Entry:
    val: int = 0
    batch: _Batch | None = None
    failed: str | None = None
    started: float = 0.0
    progressed: float = 0.0


@dataclass(eq=False)
class _Batch:
    source: _Source
    number: int
    request: OpenBatch
    opened: float
    limits: Limits
    held: bool = False
    is_open: bool = True
    inits: set[int] = field(default_factory=set)
    # (start, stop, slots that the batch had on this server at the time)
    covered: set[tuple[int, int, bytes]] = field(default_factory=set)
    pending: int = 0

    @property
    def roots(self) -> list[int]:
        return roots_here(self.request)

    @property
    def reserved(self) -> int:
        return len(self.roots) - len(self.inits) if self.is_open and self.number else 0


@dataclass(eq=False)
class _Source:
    name: str
    session: int
    expires: float
    lease_s: float = 0.0
    batches: dict[int, _Batch] = field(default_factory=dict)
    settled: dict[int, tuple[Settlement, SettleReply]] = field(default_factory=dict)
    last_settled: int = 0
    freed: int = 0
    outbox: list[tuple[int, Verdict, str]] = field(default_factory=list)
    pins: bytes = b""
    # First and stop of each batch that was opened and is not held.
    emitted: list[tuple[int, int]] = field(default_factory=list)

    def may_have_emitted(self, root: int) -> bool:
        number = unmix64(root)
        return any(first <= number for first, _ in self.emitted) and any(number < stop for _, stop in self.emitted)


def is_here(root: int, slots: bytes) -> bool:
    slot = mix64(root) >> 54
    return not slots or bool(slots[slot // 8] & 1 << slot % 8)


def roots_here(request: OpenBatch) -> list[int]:
    roots = [mix64(request.first + number) for number in range(request.up_to)]
    return [root for root in roots if is_here(root, request.slots)]


def union(some: bytes, others: bytes) -> bytes:
    if not some or not others:
        return b""
    both = bytes(one | other for one, other in zip(some, others, strict=True))
    return b"" if both == bytes([255]) * 128 else both


class Twin:
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
        max_lease_s: float = 3600.0,
    ) -> None:
        self.incarnation, self.generation, self.version = incarnation, generation, version
        self.sequence_window, self.max_pending = sequence_window, max_pending
        self._per_source = max_pending_per_source or max_pending
        self._orphan_s, self._memory_s, self._max_lease_s = orphan_timeout_s, memory_s, max_lease_s
        self._entries: dict[int, _Entry] = {}
        self._sources: dict[int, _Source] = {}
        self._known: dict[tuple[int, int], tuple[int, set[int]]] = {}
        self._sequences: dict[int, dict[int, tuple[int, set[int]]]] = {}
        self._highest: dict[int, int] = {}
        self._count: Counter[str] = Counter()
        self._spoilt = 0
        self.is_draining = False

    # -- apply

    def apply(self, message: Apply, now: float) -> ApplyReply:
        entries = message.entries
        mixed = mix64_column(entries.root_ids)
        if len(mixed) and (not mixed[0] or np.any(mixed[1:] <= mixed[:-1])):
            return self._refuse(Status.INVALID, "root_ids: not strictly ascending by mix64, or a root id of 0")
        slots = (mixed >> np.uint64(54)).astype(int)
        trouble = self._beyond(message)
        if trouble:
            return self._refuse(Status.INVALID, trouble)
        record = self._record(message)
        if isinstance(record, Status):
            self._count[f"sections_{record.name.lower()}"] += len(set(slots.tolist()))
            if record == Status.CONFLICT and message.inits is None and not message.identity.sequenced:
                self._spoil(message, now)
            return ApplyReply(self.incarnation, record, detail=f"the identity is {record.name}")
        digest, known = record
        batch, fresh = None, ~np.isin(slots, list(known))
        conflicts_before = self._count["inits_conflicting"]
        if message.inits is not None and (fresh.any() or not len(slots)):
            found = self._scope(message, int(fresh.sum()))
            if isinstance(found, ApplyReply):
                return found
            batch = found
        elif message.inits is not None and message.inits.session in self._sources:
            batch = self._sources[message.inits.session].batches.get(message.inits.batch)
        if message.identity.sequenced:
            highest = max(self._highest.get(message.identity.high, 0), message.identity.low)
            self._highest[message.identity.high] = highest
            window = self._sequences.setdefault(message.identity.high, {})
            window[message.identity.low] = (digest, known)
            for old in [number for number in window if number <= highest - self.sequence_window]:
                del window[old]
        else:
            self._known[message.identity.high, message.identity.low] = (digest, known)
        order = list(dict.fromkeys(slots.tolist()))
        statuses = np.array([Status.DUPLICATE if slot in known else Status.APPLIED for slot in order], np.uint8)
        inits_known = self._events(message, batch, fresh, now)
        if batch is not None and batch.is_open and message.inits is not None:
            here = batch.request.slots
            batch.covered.update((int(start), int(stop), here) for start, stop in message.inits.covered)
        known.update(order)
        applied = int((statuses == Status.APPLIED).sum())
        self._count["sections_applied"] += applied
        self._count["sections_duplicate"] += len(order) - applied
        status = Status.APPLIED if applied or not order else Status.DUPLICATE
        uniform = applied in (0, len(order))
        return ApplyReply(
            self.incarnation,
            status,
            np.empty(0, np.uint8) if uniform else statuses,
            inits_known=inits_known,
            inits_conflicting=self._count["inits_conflicting"] - conflicts_before,
        )

    def _refuse(self, status: Status, detail: str) -> ApplyReply:
        delay = RETRY_DELAY_MS if status in (Status.OVERLOADED, Status.UNKNOWN_SOURCE) else 0
        return ApplyReply(self.incarnation, status, retry_delay_ms=delay, detail=detail)

    def _record(self, message: Apply) -> tuple[int, set[int]] | Status:
        identity = message.identity
        if identity.sequenced:
            if identity.low <= self._highest.get(identity.high, 0) - self.sequence_window:
                return Status.STALE
            record = self._sequences.get(identity.high, {}).get(identity.low)
        else:
            record = self._known.get((identity.high, identity.low))
        if record is None:
            return message.digest, set()
        return record if record[0] == message.digest else Status.CONFLICT

    def _scope(self, message: Apply, roots: int) -> _Batch | ApplyReply:
        assert message.inits is not None
        source = self._sources.get(message.inits.session)
        if source is None:
            return self._refuse(Status.UNKNOWN_SOURCE, "no such session: the source watches first")
        batch = source.batches.get(message.inits.batch)
        if batch is None or not batch.is_open:
            return self._refuse(Status.UNKNOWN_BATCH, f"batch {message.inits.batch} is not open")
        if not batch.number and not self._has_room(source, roots):
            return self._refuse(Status.OVERLOADED, "no room for more roots")
        return batch

    def _beyond(self, message: Apply) -> str:
        scope = message.inits
        source = self._sources.get(scope.session) if scope else None
        batch = source.batches.get(scope.batch) if source and scope else None
        if scope is None or batch is None or not batch.is_open:
            return ""
        if not batch.number:
            return "batch 0 has nothing to cover" if len(scope.covered) else ""
        numbers = unmix64_column(message.entries.root_ids) - np.uint64(batch.request.first)
        if np.any(numbers >= batch.request.up_to) or (len(scope.covered) and scope.covered.max() > batch.request.up_to):
            return f"a number is not below up_to {batch.request.up_to} of its batch"
        if not all(is_here(root, batch.request.slots) for root in message.entries.root_ids.tolist()):
            return "a root is of a slot that lives elsewhere"
        return ""

    def _used(self, sources: Sequence[_Source]) -> int:
        batches = [batch for source in sources for batch in source.batches.values()]
        return sum(b.pending + b.reserved for b in batches) + sum(len(s.outbox) for s in sources)

    def _has_room(self, source: _Source, roots: int) -> bool:
        if self._used(list(self._sources.values())) + roots > self.max_pending:
            return False
        return self._used([source]) + roots <= self._per_source

    def _events(self, message: Apply, batch: _Batch | None, fresh: np.ndarray, now: float) -> int:
        entries, inits_known, fails = message.entries, 0, 0
        for i, (root, val) in enumerate(zip(entries.root_ids.tolist(), entries.ack_vals.tolist(), strict=True)):
            kind = int(entries.kinds[i]) if len(entries.kinds) else ACK
            reason = ""
            if kind & FAIL:
                reason = entries.reasons[int(entries.reason_ids[fails])] if message.inits is None else ""
                fails += 1
            if not fresh[i]:
                continue
            self._count["updates"] += 1
            if message.inits is not None:
                assert batch is not None
                inits_known += not self._init(root, val, batch, now)
            else:
                self._update(root, val, kind, reason, now)
            self._finish(root)
        return inits_known

    def _spoil(self, message: Apply, now: float) -> None:
        """Change the val of every root in a conflicting report, so that it never becomes zero."""
        self._spoilt += 1
        for root in message.entries.root_ids.tolist():
            self._count["updates"] += 1
            self._update(root, mix64(self._spoilt), ACK, "", now)
            if self._entries[root].batch is None:
                self._entries[root].progressed = now
            self._finish(root)

    def _init(self, root: int, val: int, batch: _Batch, now: float) -> bool:
        entry = self._entries.get(root)
        if root in batch.inits or (entry is not None and entry.batch is batch):
            self._count["inits_known"] += 1
            return False
        is_conflict = entry is not None and entry.batch is not None
        if is_conflict:
            # Two trees share a root id. An ack could belong to either of them, so neither is ever ACKED.
            self._tell(root, Verdict.LOST, "root_conflict")
        entry = self._entries.setdefault(root, _Entry())
        entry.val ^= val
        entry.batch, entry.started, entry.progressed = batch, now, now
        batch.pending += 1
        if batch.number:
            batch.inits.add(root)
        self._count["inits"] += 1
        if is_conflict:
            self._count["inits_conflicting"] += 1
            self._tell(root, Verdict.LOST, "root_conflict")
        return True

    def _update(self, root: int, val: int, kind: int, reason: str, now: float) -> None:
        entry = self._entries.get(root)
        if entry is None:
            if not kind & (ACK | FAIL):
                return
            entry = self._entries[root] = _Entry(started=now, progressed=now)
        if kind & ACK and entry.failed is None:
            entry.val ^= val
            entry.progressed = now
        if kind & FAIL:
            entry.failed = reason if entry.failed is None else entry.failed
            entry.progressed = now
        if kind & RESET:
            entry.started = entry.progressed = now

    def _finish(self, root: int) -> None:
        entry = self._entries.get(root)
        if entry is None or entry.batch is None:
            return
        if entry.failed is not None:
            self._tell(root, Verdict.FAILED, entry.failed)
        elif not entry.val and not entry.batch.held:
            self._tell(root, Verdict.ACKED, "")

    def _tell(self, root: int, verdict: Verdict, reason: str) -> None:
        batch = self._entries.pop(root).batch
        assert batch is not None
        batch.pending -= 1
        batch.source.outbox.append((root, verdict, reason))
        self._count[verdict.name.lower()] += 1
        self._drop_if_done(batch)

    def _drop_if_done(self, batch: _Batch) -> None:
        if not batch.is_open and not batch.pending:
            batch.source.batches.pop(batch.number, None)

    # -- batches

    def open_batch(self, request: OpenBatch, now: float) -> OpenBatchReply:
        def reply(status: Status, detail: str = "") -> OpenBatchReply:
            return OpenBatchReply(
                self.incarnation,
                status,
                RETRY_DELAY_MS if status in (Status.OVERLOADED, Status.UNKNOWN_SOURCE) else 0,
                detail,
            )

        source = self._sources.get(request.session)
        if source is None and self.is_draining:
            return reply(Status.DRAINING)
        if source is None:
            return reply(Status.UNKNOWN_SOURCE, "no such session: the source watches first")
        if not request.number or not request.first or request.first + request.up_to > 1 << 64:
            return reply(Status.INVALID, "number and first start at 1, and first + up_to must not pass 2**64")
        if max(request.limits.message_timeout_ms, request.limits.progress_timeout_ms) > DAY_MS:
            return reply(Status.INVALID, "limits: at most 24 h")
        known = source.batches.get(request.number)
        if known is not None and known.is_open:
            both = union(known.request.slots, request.slots)
            if dataclasses.replace(known.request, slots=both) != dataclasses.replace(request, slots=both):
                return reply(Status.CONFLICT, "open otherwise")
            if both == known.request.slots:
                return reply(Status.APPLIED)
            extended = dataclasses.replace(request, slots=both)
            more = len(roots_here(extended)) - len(known.roots)
            if not self._has_room(source, 1):
                return reply(Status.OVERLOADED, "no room for more roots")
            if len(roots_here(extended)) > min(self.max_pending, self._per_source):
                return reply(Status.INVALID, "more roots than the server ever holds: use smaller batches")
            if not self._has_room(source, more):
                return reply(Status.OVERLOADED, "no room for more roots")
            known.request = extended
            return reply(Status.APPLIED)
        if request.number <= source.last_settled:
            return reply(Status.UNKNOWN_BATCH, f"batch {request.number} is not above {source.last_settled}, settled")
        if self.is_draining:
            return reply(Status.DRAINING)
        roots = len(roots_here(request))
        if max(roots, request.up_to / (16 if request.slots else 1)) > min(self.max_pending, self._per_source):
            return reply(Status.INVALID, "more roots than the server ever holds: use smaller batches")
        if not self._has_room(source, max(roots, 1) if request.slots else roots):
            return reply(Status.OVERLOADED, "no room for more roots")
        source.batches[request.number] = _Batch(source, request.number, request, now, request.limits, request.held)
        if not request.held:
            source.emitted.append((request.first, request.first + request.up_to))
        return reply(Status.APPLIED)

    def settle(self, requests: Sequence[Settle], now: float) -> list[SettleReply]:
        return [self._settle(request) for request in requests]

    def _settle(self, request: Settle) -> SettleReply:
        source = self._sources.get(request.session)
        if source is None:
            return SettleReply(self.incarnation, Status.UNKNOWN_SOURCE, "no such session")
        if request.number in source.settled:
            settlement, reply = source.settled[request.number]
            if settlement != request.settlement:
                return SettleReply(self.incarnation, Status.CONFLICT, f"was settled as {settlement.name}")
            return dataclasses.replace(reply, incarnation=self.incarnation)
        batch = source.batches.get(request.number)
        if batch is None or not request.number:
            return SettleReply(self.incarnation, Status.UNKNOWN_BATCH, f"batch {request.number} is not open")
        done = request.settlement == Settlement.DONE
        if batch.held or not done:
            for root in [root for root, entry in self._entries.items() if entry.batch is batch]:
                if not done:
                    self._tell(root, Verdict.LOST, "abandoned")
                elif self._entries[root].val:
                    self._tell(root, Verdict.FAILED, "unfinished")
                else:
                    self._tell(root, Verdict.ACKED, "")
        unread = self._unread(batch)
        source.outbox += [(root, Verdict.LOST, "unread") for root in unread]
        self._count["lost"] += len(unread)
        batch.is_open = False
        roots = len(batch.inits) - batch.pending + len(unread)
        self._drop_if_done(batch)
        source.last_settled = max(source.last_settled, request.number)
        cursor = source.freed + len(source.outbox)
        reply = SettleReply(self.incarnation, Status.APPLIED, "", cursor, roots)
        source.settled[request.number] = (request.settlement, reply)
        return reply

    def _unread(self, batch: _Batch) -> list[int]:
        read = {
            root
            for start, stop, slots in batch.covered
            for root in (mix64(batch.request.first + number) for number in range(start, stop))
            if is_here(root, slots)
        }
        return [root for root in batch.roots if root not in batch.inits and root not in read]

    # -- sources

    def watch(self, request: Watch, now: float) -> WatchReply:
        if not request.source or not request.lease_ms:
            return self._watch_reply(Status.INVALID, "source and lease_ms must be given")
        if max(request.limits.message_timeout_ms, request.limits.progress_timeout_ms) > DAY_MS:
            return self._watch_reply(Status.INVALID, "limits: at most 24 h")
        source = self._sources.get(request.session)
        is_new = source is None
        if request.close:
            if source is not None:
                self._drop(source)
            return self._watch_reply(Status.APPLIED, is_new=is_new)
        if source is None and self.is_draining:
            return self._watch_reply(Status.DRAINING)
        if source is None:
            source = self._sources[request.session] = _Source(request.source, request.session, 0.0)
            stream = OpenBatch(request.session, 0, 0, 0, False)
            source.batches[0] = _Batch(source, 0, stream, now, request.limits)
        source.pins = request.pins or source.pins
        source.batches[0].limits = request.limits
        source.lease_s = min(request.lease_ms / 1000, self._max_lease_s)
        source.expires = now + source.lease_s
        confirmed = 0 if is_new else request.confirmed
        if confirmed > source.freed + len(source.outbox):
            return self._watch_reply(Status.INVALID, "confirmed: beyond the last outcome")
        if confirmed > source.freed:
            del source.outbox[: confirmed - source.freed]
            source.freed = confirmed
        reported = source.outbox[: request.max_outcomes or None]
        reasons = list(dict.fromkeys(reason for _, _, reason in reported if reason))
        outcomes = Outcomes(
            np.array([root for root, _, _ in reported], np.uint64),
            np.array([verdict for _, verdict, _ in reported], np.uint8),
            np.array([reasons.index(reason) + 1 if reason else 0 for _, _, reason in reported], np.uint32),
            tuple(reasons),
        )
        reply = self._watch_reply(Status.APPLIED, "", is_new, source.freed + len(reported), outcomes)
        return replace(reply, pins_crc32=binascii.crc32(source.pins))

    def _watch_reply(
        self, status: Status, detail: str = "", is_new: bool = False, cursor: int = 0, outcomes: Outcomes | None = None
    ) -> WatchReply:
        return WatchReply(self.incarnation, status, detail, is_new, self.generation, cursor, outcomes or Outcomes())

    def pins(self, request: Pins) -> PinsReply:
        source = self._sources.get(request.session)
        if not request.session:
            emitters = (each for each in self._sources.values() if each.may_have_emitted(request.root_id))
            source = next(emitters, None)
        if source is None:
            return PinsReply(self.incarnation, Status.UNKNOWN_SOURCE)
        return PinsReply(self.incarnation, Status.APPLIED, "", source.pins)

    def has_outcomes(self, session: int, confirmed: int) -> bool:
        source = self._sources.get(session)
        return source is None or source.freed + len(source.outbox) > confirmed

    def _has_passed(self, timeout_s: float, since: float, now: float) -> bool:
        """Whether a timeout has passed, in ticks of 1/32 s as in the ledger. A stamp may be one tick old already."""
        return int(now * 32) - int(since * 32) >= -(-timeout_s * 32 // 1) + 1

    def _drop(self, source: _Source) -> None:
        del self._sources[source.session]
        for root in [r for r, entry in self._entries.items() if entry.batch and entry.batch.source is source]:
            del self._entries[root]
            self._count["roots_dropped"] += 1

    def restart(self, now: float) -> None:
        """Restart all leases."""
        for source in self._sources.values():
            source.expires = now + source.lease_s

    def tick(self, now: float) -> None:
        for source in [source for source in self._sources.values() if source.expires <= now]:
            self._drop(source)
            self._count["leases_expired"] += 1
        for root, entry in list(self._entries.items()):
            if entry.batch is None:
                if self._has_passed(self._orphan_s, entry.progressed, now):
                    del self._entries[root]
                    self._count["orphans_expired"] += 1
            elif entry.val or not entry.batch.held:
                limits = entry.batch.limits
                message_s, progress_s = limits.message_timeout_ms / 1000, limits.progress_timeout_ms / 1000
                if message_s and self._has_passed(message_s, entry.started, now):
                    self._tell(root, Verdict.TIMED_OUT, "message_timeout")
                elif progress_s and self._has_passed(progress_s, entry.progressed, now):
                    self._tell(root, Verdict.TIMED_OUT, "progress_timeout")

    @property
    def stats(self) -> ShardStats:
        batches = [batch for source in self._sources.values() for batch in source.batches.values()]
        return ShardStats(
            pending=sum(batch.pending for batch in batches),
            reserved=sum(batch.reserved for batch in batches),
            unconfirmed=sum(len(source.outbox) for source in self._sources.values()),
            orphans=sum(entry.batch is None for entry in self._entries.values()),
            sources=len(self._sources),
            open_batches=sum(batch.is_open and batch.number > 0 for batch in batches),
            identities=len(self._known),
            sequence_sessions=len(self._sequences),
            ledger_bytes=0,
            max_pending=self.max_pending,
            **self._count,
        )
