"""State: all data of a shard, and the operations that touch several parts of it.

Decides which source gets an outcome, and what happens when a batch or a source ends. ``shard`` decides what a call
does. ``accounts`` says how a change is made, so that a lack of memory at any point leaves a right state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np

from acker_protocol.messages import PINS_MAX_BYTES, Settlement, Verdict
from acker_service.core import kernels
from acker_service.core.accounts import Accounts, Steps, Uncounted
from acker_service.core.batches import UNREAD_WORDS, BatchState, Indexes, limit_ticks
from acker_service.core.dedupe import Dedupe
from acker_service.core.ledger import Ledger
from acker_service.core.memory import PROCESS_BYTES
from acker_service.core.outbox import Outbox
from acker_service.core.outputs import Outputs
from acker_service.core.reasons import Reasons
from acker_service.core.room import Room
from acker_service.core.sources import SETTLED_MAX, Change, SettleAnswer, SourceChange, SourceState, pins_bytes
from acker_service.core.stats import Counters

# Measured memory of a source, of a batch besides its maps, and of an answer to Settle, with their objects.
SOURCE_BYTES, BATCH_BYTES, ANSWER_BYTES = 1500, 1300, 250
# How many changes of sources are kept until they are taken. Beyond that the oldest are dropped.
CHANGES_MAX = 4096
# How many sources are dropped in one step.
SOURCES_A_STEP = 512
_ACTIONS = {Settlement.DONE: kernels.FINISH, Settlement.ABANDON: kernels.ABANDON}


class State:
    """``generation`` names the state and stays with it over restarts. ``registrations`` counts all sources so far.

    ``now`` is in seconds of a monotonic clock; ``tick`` is the same time in ticks. At most half of ``room`` may be
    orphans.
    """

    def __init__(
        self,
        generation: int,
        room: Room,
        *,
        sequence_window: int,
        max_identity_bytes: int,
        max_memory: int | None = None,
        secret: int = 0,
        process_bytes: int = PROCESS_BYTES,
    ) -> None:
        self.generation, self.registrations = generation, 0
        self.now, self.tick = 0.0, 0
        self.room = room
        self.max_memory, self.process_bytes = max_memory, process_bytes
        self.ledger = Ledger(room.orphans_max, secret)
        self.accounts = Accounts(self.ledger, room, self._outbox_of)
        self.dedupe = Dedupe(sequence_window, max_identity_bytes)
        self.reasons = Reasons(room.reasons)
        self.indexes = Indexes()
        self.sources: dict[int, SourceState] = {}
        self.changes: deque[SourceChange] = deque(maxlen=CHANGES_MAX)
        # The source that is being dropped, and why.
        self._leaving: tuple[SourceState, Change] | None = None
        # Closed batches that still have pending roots. Ordered, because indexes are freed in this order, and decide the
        # order of outcomes: otherwise two runs with the same calls would differ.
        self._closing: dict[BatchState, None] = {}
        # By batch index, what a sweep does with its pending roots: an action of ``kernels``.
        self._actions = np.zeros(kernels.INDEXES, np.uint8)

    @property
    def counters(self) -> Counters:
        return self.accounts.counters

    def begin(self, now: float) -> None:
        """Set the time, which never goes back, and finish what an earlier call had no memory for. Each call comes here
        first."""
        self.now = max(self.now, now)
        self.tick = int(self.now * kernels.TICKS_A_SECOND)
        self.recover()

    def recover(self) -> None:
        """Finish what another call had no memory for. Comes first whenever other calls may have come."""
        self.accounts.finish()
        if self._leaving is not None:
            self._finish_dropping()

    def pass_on(self, outputs: Outputs) -> Steps:
        """Put outcomes into the outboxes of their sources. Other calls may come between two steps."""
        if not outputs.is_empty:
            yield from self.accounts.pass_on(outputs)
            self.release_closed()

    def finish_others(self) -> Steps:
        """Pass on the outcomes that other calls have on their way, and end the roots of sources that are gone. Helps
        calls that still work, and replaces those that found no memory and that nobody will make again."""
        yield from self.accounts.pass_on_all()
        yield from self._sweep(
            [self.indexes[index] for index in np.flatnonzero(self._actions == kernels.DROP).tolist()]
        )
        self.release_closed()

    def _outbox_of(self, index: int) -> Outbox | None:
        batch = self.indexes[index]
        # If the source of a root is gone, a sweep is about to end the rest of its roots.
        return self.sources[batch.session].outbox if self._owns(batch) else None

    # -- batches

    def add_batch(self, source: SourceState, batch: BatchState) -> None:
        """Add a batch with its index and limits to ``source``, and count its room."""
        maps, sources = self.room.maps.bytes + _maps_bytes(batch), self.room.sources.bytes + BATCH_BYTES
        reserved = self.room.reserved + batch.reserved
        emitted = source.emitted if batch.held or not batch.number else source.emitted_with(batch)
        self.ledger.limits[batch.index] = limit_ticks(batch.limits)
        if not batch.is_open:
            self._closing[batch] = None
        self.indexes.claim(batch)
        try:
            source.batches[batch.number] = batch
        except MemoryError:
            self.indexes.free_index(batch)
            raise
        # Nothing below can fail.
        self.room.maps.bytes, self.room.sources.bytes, self.room.reserved = maps, sources, reserved
        source.emitted = emitted

    def drop_batch(self, batch: BatchState) -> None:
        """Remove a batch that has no source, no maps and no roots."""
        sources = self.room.sources.bytes - BATCH_BYTES
        self.indexes.free_index(batch)
        self.room.sources.bytes = sources

    def settle_batches(self, batches: Sequence[BatchState]) -> Steps:
        """Settle batches whose `settling` is set: end their pending roots in one sweep, report their unread roots as
        LOST, and remember the answers. Other calls may come between two steps, also for the same batches."""
        swept: list[BatchState] = []
        for batch in batches:
            # A batch that is not held keeps its pending roots and their timeouts when it is settled as DONE.
            if batch.settling is not None and (batch.held or batch.settling == Settlement.ABANDON):
                self._actions[batch.index] = _ACTIONS[batch.settling]
                swept.append(batch)
        yield from self._sweep(swept)
        work = 0
        for batch in batches:
            while batch.settling is not None and batch.words_reported < len(batch.seen):
                if work >= UNREAD_WORDS:
                    work = 0
                    yield
                else:
                    outputs = self.ledger.free_outputs()
                    work += self._find_unread(batch, outputs)
                    yield from self.pass_on(outputs)
            if batch.settling is not None:
                self._end_settling(batch, batch.settling)
        self.release_closed()

    def _sweep(self, batches: Sequence[BatchState]) -> Steps:
        """End all pending roots of these batches, which take no more inits, as ``_actions`` says."""
        while self._are_pending(batches):
            # Roots are also pending while another call, which may have failed, has their outcomes.
            yield from self.accounts.pass_on_all()
            self.release_closed()
            outputs = self.ledger.free_outputs()
            self.accounts.begin(Uncounted(outputs))
            self.ledger.end_roots(self._actions, outputs)
            self.accounts.finish()
            yield from self.pass_on(outputs)
            if self._are_pending(batches):
                yield

    def _are_pending(self, batches: Sequence[BatchState]) -> bool:
        # Another call may have released a batch meanwhile, and its index may have a new owner.
        return any(self.ledger.pending[batch.index] and self.indexes.has(batch) for batch in batches)

    def _find_unread(self, batch: BatchState, outputs: Outputs) -> int:
        """Initialise some of the unread roots, and end them as LOST. Returns the work: how many words were looked at,
        and roots found."""
        count, words = batch.find_unread(outputs.roots)
        outputs.info[:count] = batch.index | Verdict.LOST << 16 | kernels.BY_UNREAD << 32
        room, work, inits = self.room, words - batch.words_reported + count, batch.inits + count
        pending, reserved = room.pending + count, room.reserved - count
        self.ledger.pending[batch.index] += count
        # Nothing below can fail.
        outputs.hold(count, True, kernels.REASONS)
        room.pending, room.reserved = pending, reserved
        batch.inits, batch.words_reported = inits, words
        return work

    def _end_settling(self, batch: BatchState, settlement: Settlement) -> None:
        source, room = self.sources[batch.session], self.room
        roots = batch.inits - int(self.ledger.pending[batch.index])
        reserved, maps = room.reserved - batch.reserved, room.maps.bytes - _maps_bytes(batch)
        answers = min(SETTLED_MAX, len(source.settled) + (batch.number not in source.settled))
        sources = room.sources.bytes + ANSWER_BYTES * (answers - len(source.settled))
        self._closing[batch] = None
        source.remember_settled(batch.number, SettleAnswer(settlement, source.outbox.cursor, roots))
        # Nothing below can fail.
        room.sources.bytes, room.reserved, room.maps.bytes = sources, reserved, maps
        batch.close()

    def release_closed(self) -> None:
        """Remove closed batches without pending roots, and free their indexes."""
        for batch in [batch for batch in self._closing if batch.is_settled and not self.ledger.pending[batch.index]]:
            source, sources = self.sources.get(batch.session), self.room.sources.bytes - BATCH_BYTES
            is_owned = self._owns(batch)
            self._actions[batch.index] = kernels.KEEP
            self.indexes.free_index(batch)
            # Nothing below can fail.
            self._closing.pop(batch, None)
            if source is not None and is_owned:
                del source.batches[batch.number]
            self.room.sources.bytes = sources

    def _owns(self, batch: BatchState) -> bool:
        """Whether the batch's source still exists. Another source may have the same session by now."""
        source = self.sources.get(batch.session)
        return source is not None and source.batches.get(batch.number) is batch

    # -- sources

    def pending_of(self, source: SourceState) -> int:
        """Count the roots of the source that have no outcome."""
        return sum(int(self.ledger.pending[batch.index]) for batch in source.batches.values())

    def shortage(self, source: SourceState, roots: int) -> str:
        """Return why there is no room for more roots of ``source``, or "" if there is. ``roots``: how many more."""
        trouble = self.memory_shortage()
        if trouble:
            return trouble
        held = self.pending_of(source) + sum(batch.reserved for batch in source.batches.values()) + len(source.outbox)
        return self.room.shortage(roots, held)

    def add_source(self, source: SourceState) -> None:
        pins = self.room.pins.bytes + pins_bytes(source.pins)
        sources = self.room.sources.bytes + SOURCE_BYTES + ANSWER_BYTES * len(source.settled)
        self.sources[source.session] = source
        # Nothing below can fail.
        self.room.pins.bytes, self.room.sources.bytes = pins, sources

    def keep_pins(self, source: SourceState, pins: bytes) -> str:
        """Keep the pins of a source. If there is no room, keep the earlier ones, and return why."""
        size = pins_bytes(pins) - pins_bytes(source.pins)
        trouble = self.pins_shortage(size)
        if not trouble:
            held = self.room.pins.bytes + size
            source.keep_pins(pins)
            self.room.pins.bytes = held
        return trouble

    def pins_shortage(self, size: int = PINS_MAX_BYTES) -> str:
        """Return why there is no room for ``size`` more bytes of pins, or "" if there is."""
        held = self.room.pins
        if size <= 0 or held.fits(size):
            return ""
        return (
            f"pins: no room for {size} more bytes, as sources have {held.bytes} here and the server keeps "
            f"{held.max_bytes}: close sources, or give the server more --max-memory"
        )

    def drop_sources(self, sources: Iterable[SourceState], change: Change) -> Steps:
        """Forget sources and all their roots, in one sweep. ``change``: why they end. Other calls may come between two
        steps; a source is taken from ``sources`` in the step that forgets it."""
        dropped: list[BatchState] = []
        for count, source in enumerate(sources, 1):
            dropped += source.batches.values()
            self._leaving = source, change
            self._finish_dropping()
            while source.outbox.free():
                yield
            if count % SOURCES_A_STEP == 0:
                yield
        yield from self._sweep(dropped)
        self.release_closed()

    def _finish_dropping(self) -> None:
        """Forget the source that is leaving. May be called again if it fails."""
        assert self._leaving is not None
        (source, change), room = self._leaving, self.room
        pending, batches = self.pending_of(source), [*source.batches.values()]
        for batch in batches:
            self._closing[batch] = None
            self._actions[batch.index] = kernels.DROP
        source.outbox.release()
        # The room of pending roots is released when the sweep ends them.
        reserved = room.reserved - sum(batch.reserved for batch in batches)
        unconfirmed, maps = room.unconfirmed - len(source.outbox), room.maps.bytes - sum(map(_maps_bytes, batches))
        pins = room.pins.bytes - pins_bytes(source.pins)
        sources = room.sources.bytes - SOURCE_BYTES - ANSWER_BYTES * len(source.settled)
        roots_dropped = self.counters.roots_dropped + pending
        leases_expired = self.counters.leases_expired + (change == Change.EXPIRED)
        counters, each = self.counters, iter(batches)
        self.changes.append(source.changed(change, pending))
        # Nothing below can fail.
        del self.sources[source.session]
        for batch in each:
            batch.close()
        room.reserved, room.unconfirmed, room.maps.bytes = reserved, unconfirmed, maps
        room.pins.bytes, room.sources.bytes = pins, sources
        counters.roots_dropped, counters.leases_expired = roots_dropped, leases_expired
        self._leaving = None

    def finish_steps(self) -> None:
        """Finish all settlements and drops that other calls have begun."""
        for _ in self.finish_others():
            pass
        for _ in self._sweep([self.indexes[index] for index in np.flatnonzero(self._actions).tolist()]):
            pass
        for _ in self.settle_batches([batch for batch in self.indexes if batch.settling is not None]):
            pass

    # -- memory

    @property
    def memory(self) -> dict[str, int]:
        """The memory of each kind of data, in bytes, as it is counted: an allocator rounds it up."""
        room = self.room
        return {
            "process": self.process_bytes,
            "ledger": self.ledger.tables.bytes,
            "outcomes": room.outcomes.bytes,
            "reasons": room.reasons.bytes,
            "pins": room.pins.bytes,
            "identities": self.dedupe.memory_bytes,
            "maps": room.maps.bytes,
            "sources": room.sources.bytes,
        }

    def memory_shortage(self) -> str:
        """Return why there is no memory for new work, or "" if there is. Never a reason to refuse acks, which free
        memory."""
        if self.max_memory is None:
            return ""
        held_bytes = sum(self.memory.values())
        if held_bytes <= self.max_memory:
            return ""
        return (
            f"no memory for new work: {held_bytes} bytes are in use, and {self.max_memory} are the most: "
            "--max-memory, or memory= of the namespace"
        )


def _maps_bytes(batch: BatchState) -> int:
    return 2 * batch.seen.nbytes
