"""State: all data of a shard, and the operations that touch several parts of it.

Decides which source gets an outcome, what happens when a batch or a source ends, and in which order the parts are
dumped and loaded. Each part dumps and loads itself. Large parts do it piece by piece, so that neither a stop nor a
start needs twice the memory. Times are dumped as remaining time or age, since the next process has another clock.
``shard`` decides what a call does. ``acker_service.state`` reads and writes the file.
"""

from __future__ import annotations

import dataclasses
import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from acker_protocol.ids import Column
from acker_protocol.messages import PINS_MAX_BYTES, Kinds, Reason, Settlement, Verdict
from acker_service.core import kernels, parts
from acker_service.core.batches import NO_MAP, UNREAD_WORDS, BatchState, Indexes, limit_ticks
from acker_service.core.dedupe import Dedupe
from acker_service.core.ledger import Ledger, LedgerOutcomes
from acker_service.core.memory import PROCESS_BYTES
from acker_service.core.parts import FORMAT, FORMAT_BEFORE, StatePart
from acker_service.core.reasons import Reasons
from acker_service.core.room import Room
from acker_service.core.sources import Change, SettleAnswer, SourceChange, SourceState, pins_bytes
from acker_service.core.stats import Counters

Array = npt.NDArray[Any]

# Measured memory of a source, of a batch besides its maps, and of an answer to Settle, with their objects.
SOURCE_BYTES, BATCH_BYTES, ANSWER_BYTES = 1500, 1300, 250
# How many changes of sources are kept until they are taken. Beyond that the oldest are dropped.
CHANGES_MAX = 4096
# How many sources are dropped in one step.
SOURCES_A_STEP = 512
_INDEX = kernels.INDEXES - 1
_ACTIONS = {Settlement.DONE: kernels.FINISH, Settlement.ABANDON: kernels.ABANDON}

# A long operation. Each step takes some 10 ms at most and leaves a state that any call may use.
Steps = Iterator[None]


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
        process_bytes: int = PROCESS_BYTES,
    ) -> None:
        self.generation, self.registrations = generation, 0
        self.now, self.tick = 0.0, 0
        self.room = room
        self.max_memory, self.process_bytes = max_memory, process_bytes
        self.ledger = Ledger(room.orphans_max)
        self.dedupe = Dedupe(sequence_window, max_identity_bytes)
        self.reasons = Reasons(room.reasons)
        self.indexes = Indexes()
        self.sources: dict[int, SourceState] = {}
        self.changes: deque[SourceChange] = deque(maxlen=CHANGES_MAX)
        self.counters = Counters()
        # Closed batches that still have pending roots.
        self._closing: set[BatchState] = set()
        # What a sweep does with the pending roots of each batch index: an action of ``kernels``.
        self._actions = np.zeros(kernels.INDEXES, np.uint8)

    def advance_time(self, now: float) -> None:
        """Set the time; it never goes back."""
        self.now = max(self.now, now)
        self.tick = int(self.now * kernels.TICKS_A_SECOND)

    # -- batches

    def add_batch(self, source: SourceState, batch: BatchState) -> None:
        """Add a batch with its index and limits to ``source``."""
        self.indexes.claim(batch)
        self.room.maps.bytes += 2 * batch.seen.nbytes
        self.room.sources.bytes += BATCH_BYTES
        source.batches[batch.number] = batch
        self.ledger.limits[batch.index] = limit_ticks(batch.limits)

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
                    work += self._report_unread(batch)
            if batch.settling is not None:
                self._end_settling(batch, batch.settling)
        self.release_closed()

    def _sweep(self, batches: Sequence[BatchState]) -> Steps:
        """End all pending roots of these batches, which take no more inits, as ``_actions`` says."""
        while self._are_pending(batches):
            outcomes, ended = self.ledger.end_roots(self._actions)
            # The others are roots of sources that are no more.
            self.room.release_all(ended - len(outcomes.roots), 0, 0)
            self.deliver(outcomes, kernels.REASONS)
            if self._are_pending(batches):
                yield

    def _are_pending(self, batches: Sequence[BatchState]) -> bool:
        # Another call may have released a batch meanwhile, and its index may have a new owner.
        return any(self.ledger.pending[batch.index] and self.indexes.has(batch) for batch in batches)

    def _report_unread(self, batch: BatchState) -> int:
        """Report some of the unread roots as LOST. Returns the work: how many words were looked at, and roots found."""
        before = batch.words_reported
        unread = batch.take_unread()
        outbox = self.sources[batch.session].outbox
        outbox.append(unread, int(Verdict.LOST), kernels.BY_UNREAD, kernels.REASONS)
        self.counters.lost += len(unread)
        self.room.close_batch(len(unread), len(unread))
        return batch.words_reported - before + len(unread)

    def _end_settling(self, batch: BatchState, settlement: Settlement) -> None:
        source = self.sources[batch.session]
        self.room.close_batch(batch.reserved, 0)
        roots = batch.inits - int(self.ledger.pending[batch.index])
        self._close(batch)
        answers = len(source.settled)
        source.remember_settled(batch.number, SettleAnswer(settlement, source.outbox.cursor, roots))
        self.room.sources.bytes += ANSWER_BYTES * (len(source.settled) - answers)

    def _close(self, batch: BatchState) -> None:
        self.room.maps.bytes -= 2 * batch.seen.nbytes
        batch.close()
        self._closing.add(batch)

    def release_closed(self) -> None:
        """Remove closed batches without pending roots, and free their indexes."""
        for batch in [batch for batch in self._closing if not self.ledger.pending[batch.index]]:
            self._closing.discard(batch)
            self._actions[batch.index] = kernels.KEEP
            self.indexes.free_index(batch)
            self.room.sources.bytes -= BATCH_BYTES
            if self._owns(batch):
                del self.sources[batch.session].batches[batch.number]

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
        self.sources[source.session] = source
        self.room.pins.bytes += pins_bytes(source.pins)
        self.room.sources.bytes += SOURCE_BYTES + ANSWER_BYTES * len(source.settled)

    def keep_pins(self, source: SourceState, pins: bytes) -> str:
        """Keep the pins of a source. If there is no room, keep the earlier ones, and return why."""
        trouble = self.pins_shortage(pins_bytes(pins) - pins_bytes(source.pins))
        if not trouble:
            self.room.pins.bytes += pins_bytes(pins) - pins_bytes(source.pins)
            source.keep_pins(pins)
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
            self._drop_source(source, change)
            dropped += source.batches.values()
            if count % SOURCES_A_STEP == 0:
                yield
        yield from self._sweep(dropped)
        self.release_closed()

    def _drop_source(self, source: SourceState, change: Change) -> None:
        pending = self.pending_of(source)
        self.changes.append(source.changed(change, pending))
        self.counters.roots_dropped += pending
        # The room of pending roots is released when the sweep ends them.
        self.room.release_all(0, sum(batch.reserved for batch in source.batches.values()), len(source.outbox))
        for batch in source.batches.values():
            self._close(batch)
            self._actions[batch.index] = kernels.DROP
        source.outbox.release()
        self.room.sources.bytes -= SOURCE_BYTES + ANSWER_BYTES * len(source.settled)
        self.room.pins.bytes -= pins_bytes(source.pins)
        del self.sources[source.session]

    def finish_steps(self) -> None:
        """Finish all settlements and drops that other calls have begun."""
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
            "ledger": self.ledger.table_bytes,
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

    # -- outcomes

    def deliver(self, outcomes: LedgerOutcomes, reasons: Sequence[Reason]) -> None:
        """Put outcomes into the outboxes of their sources. A reason code is an index into ``reasons``, plus one."""
        if not len(outcomes.roots):
            return
        self.room.finish(len(outcomes.roots))
        if outcomes.is_uniform:
            info = int(outcomes.info[0])
            self._append_outcomes(info & _INDEX, outcomes.roots, info >> 16 & 0xFF, info >> 32, reasons)
        else:
            self._deliver_groups(outcomes, reasons)
        self.release_closed()

    def _deliver_groups(self, outcomes: LedgerOutcomes, reasons: Sequence[Reason]) -> None:
        indexes = outcomes.info & np.uint64(_INDEX)
        verdicts, codes = (outcomes.info >> np.uint64(16)).astype(np.uint8), outcomes.info >> np.uint64(32)
        if np.all(indexes == indexes[0]):
            self._append_outcomes(int(indexes[0]), outcomes.roots, verdicts, codes, reasons)
            return
        order = np.argsort(indexes, kind="stable")
        starts = np.flatnonzero(np.diff(indexes[order], prepend=np.uint64(0)))
        for group in np.split(order, starts[1:]):
            self._append_outcomes(int(indexes[group[0]]), outcomes.roots[group], verdicts[group], codes[group], reasons)

    def _append_outcomes(
        self, index: int, roots: Column, verdicts: Kinds | int, codes: Array | int, reasons: Sequence[Reason]
    ) -> None:
        batch = self.indexes[index]
        if not self._owns(batch):
            # Its source is gone, and a sweep is about to end the rest of its roots.
            self.room.confirm(len(roots))
            return
        self.sources[batch.session].outbox.append(roots, verdicts, codes, reasons)
        self.counters.count(verdicts, len(roots))

    # -- dump and load

    def dump(self) -> Iterator[StatePart]:
        """Yield the whole state part by part, at its present time. The state must not change before the last part.

        Finishes what other calls have begun, so that a state never holds half a settlement.
        """
        self.finish_steps()
        header = {
            "format": FORMAT,
            "generation": self.generation,
            "registrations": self.registrations,
            "counters": dataclasses.asdict(self.counters),
            "totals": self._totals(),
        }
        yield "header", {"json": parts.json_column(header)}
        yield "reasons", self.reasons.dump()
        for source in self.sources.values():
            yield from self._dump_source(source)
        yield from (("ledger", columns) for columns in self.ledger.dump(self.tick))
        yield from (("contents", columns) for columns in self.dedupe.dump_contents(self.now))
        yield from (("sessions", columns) for columns in self.dedupe.dump_sessions(self.now))
        yield from (("sequences", columns) for columns in self.dedupe.dump_sequences())

    def _dump_source(self, source: SourceState) -> Iterator[StatePart]:
        content = parts.json_column(source.dump(self.now))
        yield "source", {"json": content, "pins": np.frombuffer(source.pins, np.uint8)}
        for batch in source.batches.values():
            if len(batch.seen):
                yield "batch", {"seen": batch.seen.copy(), "covered": batch.covered.copy()}
        yield from (("outbox", columns) for columns in source.outbox.dump())

    def load(self, dumped: Iterable[StatePart]) -> None:
        """Fill this state, which must be empty. Dumped times are relative to the ``now`` of this state.

        Raises ValueError if the dump is incomplete.
        """
        try:
            self._load(iter(dumped))
        except (KeyError, TypeError, IndexError, OverflowError, AttributeError, json.JSONDecodeError) as error:
            raise ValueError(f"the state is not whole: {type(error).__name__}: {error}") from error
        except ValueError as error:
            raise ValueError(f"the state is not whole: {error}") from error

    def _load(self, dumped: Iterator[StatePart]) -> None:
        header = parts.read_json(parts.next_part("header", dumped)["json"])
        if header["format"] not in (FORMAT, FORMAT_BEFORE):
            raise ValueError(f"it has format {header['format']}, this server reads {FORMAT_BEFORE} and {FORMAT}")
        totals = header["totals"]
        if header["format"] == FORMAT_BEFORE:
            totals["sources"] = len(header["sources"])
            dumped = parts.from_format_before(header, dumped)
        self.generation, self.registrations = header["generation"], header["registrations"]
        self.counters = Counters.load(header["counters"])
        self.dedupe.dropped = self.counters.identities_dropped
        self.reasons.load(parts.next_part("reasons", dumped))
        for name, columns in dumped:
            parts.check_columns(name, columns)
            if name == "source":
                self._load_source(columns, dumped)
            else:
                self._load_part(name, columns)
        self.indexes.rebuild_free()
        if self._totals() != totals:
            raise ValueError(f"its header counts {totals}, and it holds {self._totals()}")
        self._check_owners()

    def _load_part(self, name: str, columns: dict[str, Array]) -> None:
        if name == "ledger":
            self.ledger.load(columns, self.tick)
        elif name == "contents":
            self.dedupe.load_contents(columns, self.now)
        elif name == "sessions":
            self.dedupe.load_sessions(columns, self.now)
        elif name == "sequences":
            self.dedupe.load_sequences(columns, self.now)
        else:
            raise ValueError(f"it holds a second {name}")

    def _load_source(self, columns: Mapping[str, Array], dumped: Iterator[StatePart]) -> None:
        """Load a source, and the parts after it with its batches' maps and its outcomes."""
        content, pins = parts.read_json(columns["json"]), columns["pins"].tobytes()
        if len(pins) != content["pins_bytes"] or content["session"] in self.sources:
            raise ValueError("it holds a source twice, or its pins are cut short")
        source = SourceState.load(content, pins, self.room, self.now)
        self.add_source(source)
        for each in content["batches"]:
            maps = parts.next_part("batch", dumped) if each["words"] else {"seen": NO_MAP, "covered": NO_MAP}
            if not each["words"] == len(maps["seen"]) == len(maps["covered"]):
                raise ValueError("the maps of a batch are not as long as its source says")
            batch = BatchState.load(source.session, each, maps["seen"], maps["covered"], self.now)
            self.add_batch(source, batch)
            self.room.reserve(batch.reserved)
            if not batch.is_open:
                self._closing.add(batch)
        for _ in range(content["pieces"]):
            source.outbox.load(parts.next_part("outbox", dumped))
        self.room.unconfirmed += len(source.outbox)

    def _totals(self) -> dict[str, int]:
        return {
            "sources": len(self.sources),
            "ledger": self.ledger.entries,
            "contents": len(self.dedupe),
            "sessions": self.dedupe.sessions,
            "sequences": self.dedupe.sequences,
        }

    def _check_owners(self) -> None:
        """Raise ValueError if a pending root has no batch, or a source has no open stream. Sets ``room.pending``."""
        owned = [batch.index for batch in self.indexes]
        self.room.pending = int(self.ledger.pending.sum())
        if int(self.ledger.pending[owned].sum()) != self.room.pending:
            raise ValueError("it holds roots without a batch")
        if any(0 not in source.batches for source in self.sources.values()):
            raise ValueError("it holds a source without its open stream")
