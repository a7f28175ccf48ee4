"""State: all that a server keeps, and what happens to several of its parts at once.

Decides who gets an outcome, what becomes of a batch and of a source that end, and in which order the parts are dumped
and loaded; each of them dumps and loads itself. What is large comes in many parts, so that neither a stop nor a start
needs room for it twice. Times are dumped as time remaining or as age, so that a state may travel to a process with
another clock. Which calls do what is ``shard``'s to decide; reading and writing files is not done here.
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
from acker_protocol.messages import Kinds, Settlement, Verdict
from acker_service.core import kernels, parts
from acker_service.core.batches import BatchState, Indexes, limit_ticks
from acker_service.core.dedupe import IDENTITY_BYTES, Dedupe
from acker_service.core.ledger import Ledger, LedgerOutcomes
from acker_service.core.parts import FORMAT, StatePart
from acker_service.core.reasons import Reasons
from acker_service.core.room import Room
from acker_service.core.sources import Change, SettleAnswer, SourceChange, SourceState
from acker_service.core.stats import Counters

Array = npt.NDArray[Any]

# Changes of sources that wait to be taken; where nobody takes them the oldest go.
CHANGES_MAX = 4096
_INDEX = kernels.INDEXES - 1


class State:
    """``generation`` names it and travels with it; ``registrations`` counts the sources that it ever had. ``now`` is in
    seconds of a clock that does not go back, ``tick`` the same in ticks. Orphans are bounded by half of the room."""

    def __init__(self, generation: int, room: Room, *, sequence_window: int, max_identity_bytes: int) -> None:
        self.generation, self.registrations = generation, 0
        self.now, self.tick = 0.0, 0
        self.room = room
        self.ledger = Ledger(max(1024, room.max_pending // 2))
        self.dedupe = Dedupe(sequence_window, max(1, max_identity_bytes // IDENTITY_BYTES))
        self.reasons = Reasons()
        self.indexes = Indexes()
        self.sources: dict[int, SourceState] = {}
        self.changes: deque[SourceChange] = deque(maxlen=CHANGES_MAX)
        self.counters = Counters()
        # Batches that take no more inits, of which roots are pending.
        self._closing: set[BatchState] = set()

    def advance(self, now: float) -> None:
        """Time passes; it never goes back."""
        self.now = max(self.now, now)
        self.tick = int(self.now * kernels.TICKS_A_SECOND)

    # -- batches

    def open(self, source: SourceState, batch: BatchState) -> None:
        """``batch`` is one of ``source`` from now on."""
        self.indexes.claim(batch)
        source.batches[batch.number] = batch
        self.ledger.limits[batch.index] = limit_ticks(batch.limits)

    def sweep(self, actions: Mapping[BatchState, int]) -> None:
        """Do with all pending roots of these batches what is said (an action of ``kernels``), in one sweep."""
        table = np.zeros(kernels.INDEXES, np.uint8)
        for batch, action in actions.items():
            table[batch.index] = action
        if not np.any(self.ledger.pending[table != kernels.KEEP]):
            return
        for outcomes in self.ledger.settle(table):
            self.deliver(outcomes, kernels.REASONS)

    def settle(self, batch: BatchState, settlement: Settlement) -> None:
        """``batch``, swept before, takes no more inits; what was not read of it is LOST."""
        source = self.sources[batch.session]
        unread = batch.unread()
        source.outbox.append(unread, int(Verdict.LOST), kernels.BY_UNREAD, kernels.REASONS)
        self.counters.lost += len(unread)
        self.room.close(batch.reserved, len(unread))
        roots = batch.inits - int(self.ledger.pending[batch.index]) + len(unread)
        batch.close()
        self._closing.add(batch)
        source.remember(batch.number, SettleAnswer(settlement, source.outbox.cursor, roots))

    def release(self) -> None:
        """Give back the indexes of closed batches of which nothing is pending any more."""
        for batch in [batch for batch in self._closing if not self.ledger.pending[batch.index]]:
            self._closing.discard(batch)
            self.indexes.release(batch)
            source = self.sources.get(batch.session)
            if source is not None:
                source.batches.pop(batch.number, None)

    # -- sources

    def pending_of(self, source: SourceState) -> int:
        """Its roots that have no outcome."""
        return sum(int(self.ledger.pending[batch.index]) for batch in source.batches.values())

    def lacks_room(self, source: SourceState, roots: int) -> str:
        """Why there is no room for ``roots`` more of ``source``; nothing ("") when there is."""
        held = self.pending_of(source) + sum(batch.reserved for batch in source.batches.values()) + len(source.outbox)
        return self.room.lacks(roots, held)

    def drop(self, sources: Sequence[SourceState], change: Change) -> None:
        """Forget sources and all their roots, with one sweep."""
        self.changes.extend(source.changed(change, self.pending_of(source)) for source in sources)
        batches = [batch for source in sources for batch in source.batches.values()]
        pending = sum(self.pending_of(source) for source in sources)
        self.sweep(dict.fromkeys(batches, kernels.DROP))
        self.counters.roots_dropped += pending
        reserved, unconfirmed = sum(batch.reserved for batch in batches), sum(len(source.outbox) for source in sources)
        self.room.drop(pending, reserved, unconfirmed)
        for batch in batches:
            batch.close()
            self._closing.add(batch)
        for source in sources:
            del self.sources[source.session]
        self.release()

    # -- outcomes

    def deliver(self, outcomes: LedgerOutcomes, texts: Sequence[str]) -> None:
        """Put outcomes into the outboxes of their sources."""
        if not len(outcomes.roots):
            return
        if outcomes.is_uniform:
            info = int(outcomes.info[0])
            self._put(info & _INDEX, outcomes.roots, info >> 16 & 0xFF, info >> 32, texts)
        else:
            self._deliver_groups(outcomes, texts)
        self.room.finish(len(outcomes.roots))
        self.release()

    def _deliver_groups(self, outcomes: LedgerOutcomes, texts: Sequence[str]) -> None:
        indexes = outcomes.info & np.uint64(_INDEX)
        verdicts, codes = (outcomes.info >> np.uint64(16)).astype(np.uint8), outcomes.info >> np.uint64(32)
        if np.all(indexes == indexes[0]):
            self._put(int(indexes[0]), outcomes.roots, verdicts, codes, texts)
            return
        order = np.argsort(indexes, kind="stable")
        starts = np.flatnonzero(np.diff(indexes[order], prepend=np.uint64(0)))
        for group in np.split(order, starts[1:]):
            self._put(int(indexes[group[0]]), outcomes.roots[group], verdicts[group], codes[group], texts)

    def _put(self, index: int, roots: Column, verdicts: Kinds | int, codes: Array | int, texts: Sequence[str]) -> None:
        source = self.sources[self.indexes[index].session]
        source.outbox.append(roots, verdicts, codes, texts)
        self.counters.count(verdicts, len(roots))

    # -- dumped and loaded

    def dump(self) -> Iterator[StatePart]:
        """All of it at its present time, part by part; it must not change until the last one was taken."""
        sources = list(self.sources.values())
        header = {
            "format": FORMAT,
            "generation": self.generation,
            "registrations": self.registrations,
            "counters": dataclasses.asdict(self.counters),
            "reasons": self.reasons.dump(),
            "sources": [source.dump(self.now) for source in sources],
            "totals": self._totals(),
        }
        batches = [batch for source in sources for batch in source.batches.values()]
        yield "header", {"json": np.frombuffer(json.dumps(header).encode(), np.uint8)}
        yield (
            "batches",
            {
                "seen": parts.joined([batch.seen for batch in batches], np.uint64),
                "covered": parts.joined([batch.covered for batch in batches], np.uint64),
            },
        )
        yield from (("outbox", columns) for source in sources for columns in source.outbox.dump())
        yield from (("ledger", columns) for columns in self.ledger.dump(self.tick))
        yield from (("contents", columns) for columns in self.dedupe.dump_contents(self.now))
        yield from (("sessions", columns) for columns in self.dedupe.dump_sessions(self.now))
        yield from (("sequences", columns) for columns in self.dedupe.dump_sequences())

    def load(self, dumped: Iterable[StatePart]) -> None:
        """Fill this one, which is empty, at its present time. Raises ValueError if what was dumped is not whole."""
        try:
            self._load(iter(dumped))
        except (KeyError, TypeError, IndexError, OverflowError, AttributeError, json.JSONDecodeError) as error:
            raise ValueError(f"the state is not whole: {type(error).__name__}: {error}") from error
        except ValueError as error:
            raise ValueError(f"the state is not whole: {error}") from error

    def _load(self, dumped: Iterator[StatePart]) -> None:
        header = json.loads(parts.take("header", dumped)["json"].tobytes())
        if header["format"] != FORMAT:
            raise ValueError(f"it has format {header['format']}, this server reads format {FORMAT}")
        self.generation, self.registrations = header["generation"], header["registrations"]
        self.counters = Counters.load(header["counters"])
        self.dedupe.dropped = self.counters.identities_dropped
        self.reasons.load(header["reasons"])
        self._load_sources(header["sources"], parts.take("batches", dumped))
        for content in header["sources"]:
            outbox = self.sources[content["session"]].outbox
            for count, reasons in content["outbox"]:
                outbox.load(count, reasons, parts.take("outbox", dumped))
            self.room.unconfirmed += len(outbox)
        for name, columns in dumped:
            parts.check(name, columns)
            self._load_part(name, columns)
        if self._totals() != header["totals"]:
            raise ValueError(f"there should be {header['totals']} in it, and there are {self._totals()}")
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
            raise ValueError(f"a second {name} in it")

    def _load_sources(self, sources: list[dict[str, Any]], batches: Mapping[str, Array]) -> None:
        seen, covered = parts.taker(batches["seen"]), parts.taker(batches["covered"])
        for content in sources:
            source = self.sources[content["session"]] = SourceState.load(content, self.now)
            for each in content["batches"]:
                batch = BatchState.load(source.session, each, seen(each["words"]), covered(each["words"]), self.now)
                self.open(source, batch)
                self.room.reserve(batch.reserved)
                if not batch.is_open:
                    self._closing.add(batch)
        self.indexes.settle_free()

    def _totals(self) -> dict[str, int]:
        return {
            "ledger": self.ledger.entries,
            "contents": len(self.dedupe),
            "sessions": self.dedupe.sessions,
            "sequences": self.dedupe.sequences,
        }

    def _check_owners(self) -> None:
        """Every pending root belongs to a batch, and every source has its open stream."""
        owned = [batch.index for batch in self.indexes]
        self.room.pending = int(self.ledger.pending.sum())
        if int(self.ledger.pending[owned].sum()) != self.room.pending:
            raise ValueError("roots in it belong to no batch")
        if any(0 not in source.batches for source in self.sources.values()):
            raise ValueError("a source in it has no open stream")
