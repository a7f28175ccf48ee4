"""Ledger: one ack val per pending root.

Decides how a message or a sweep goes through the sub-tables; ``tables`` has their memory, and ``kernels`` does the
arithmetic. Knows batches only by their index and time only in ticks. ``applying`` and ``shard`` decide whether a
message may be applied, and ``accounts`` counts what a kernel has changed. Not thread-safe: kernels release the GIL, so
the caller must hold a lock.

A kernel does not fail, as it takes no memory. So a call that finds no memory has changed nothing, or whole sections.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from acker_protocol.ids import SLOTS, Column
from acker_protocol.messages import Kinds, ReasonIds
from acker_service.core import kernels, tables
from acker_service.core.kernels import COUNT, NEVER, PEAK
from acker_service.core.outputs import Outputs
from acker_service.core.tables import MOVED_MAX, Tables

Array = npt.NDArray[Any]

# The most entries of one call. Our clients send 61,000 in a message.
ENTRIES_MAX = 1 << 16
# The most entries of a section, which is applied in one go. A report that has so many in each slot has 33 million.
SECTION_MAX = 1 << 15
# How many entries a dump copies at once: 10 MB.
PART_ENTRIES = 1 << 18
# How many cells `end_roots` looks at in one call, in some 5 ms. The shard's lock is released between two calls.
SWEEP_CELLS = 300_000
# The most outcomes of one step of a sweep.
OUTCOMES_MAX = 1 << 16

TROUBLES = {
    kernels.UNSORTED: "root_ids: must ascend strictly by mix64(root id), compared unsigned (uint64), each root once",
    kernels.ZERO: "root_ids: 0 is not a root id",
    kernels.BEYOND: "root_ids: a root is not a number below up_to of its batch",
    kernels.TOO_LONG: f"root_ids: a slot has more than {SECTION_MAX} roots; send several reports",
}


@dataclass(frozen=True, slots=True)
class Numbering:
    """The roots of a batch: number i, below ``up_to``, is ``mix64(first + i)``. ``seen``: bit map (uint64) of the
    numbers that were initialised."""

    first: int
    up_to: int
    seen: Column


@dataclass(frozen=True, slots=True)
class Sections:
    """The k sections of one message that `check` found; valid until the next `check`.

    ``keys``: uint64[n], mix64 of the roots. ``starts``: int32[k + 1], where sections start. ``slots``: uint16[k].
    ``bits``: uint64[16], the slots as a bit map.
    """

    keys: Column
    starts: Array
    slots: Array
    bits: Column


def column(values: Array, dtype: type[Any]) -> Array:
    """Return ``values`` contiguous and aligned, as the kernels need it. Copies only if necessary."""
    contiguous = np.ascontiguousarray(values, dtype)
    return contiguous if contiguous.flags.aligned else contiguous.copy()


class Scratch:
    """The columns that `kernels.check` writes, for ``most`` roots."""

    def __init__(self, most: int) -> None:
        self._keys = np.empty(most, np.uint64)
        self._starts, self._slots = np.zeros(SLOTS + 1, np.int32), np.zeros(SLOTS, np.uint16)
        self._bits, self._sections = np.zeros(SLOTS // 64, np.uint64), np.zeros(1, np.int64)

    def check(self, roots: Column, numbering: Numbering | None) -> Sections | str:
        """Return the sections of ``roots: uint64[n]``, or an error sentence."""
        first, up_to = (numbering.first, numbering.up_to) if numbering else (0, 0)
        trouble = kernels.check(
            roots,
            self._keys,
            self._starts,
            self._slots,
            self._bits,
            first,
            up_to,
            numbering is not None,
            SECTION_MAX,
            self._sections,
        )
        if trouble:
            return TROUBLES[trouble]
        count = int(self._sections[0])
        return Sections(self._keys[: len(roots)], self._starts[: count + 1], self._slots[:count], self._bits)


class Ledger:
    """``orphans_max``: how many entries without an init are kept at most. Module ``orphans`` says why that is safe.
    ``secret``: see `Tables`.

    ``pending``: by batch index, the roots that were initialised and whose outcome is in no outbox yet. ``counters``:
    what the last kernel changed; see `kernels`.
    """

    def __init__(self, orphans_max: int, secret: int = 0) -> None:
        self.orphans, self.orphans_max = 0, orphans_max
        self.pending = np.zeros(kernels.INDEXES, np.int64)
        self.limits = np.full((kernels.INDEXES, 2), NEVER, np.int64)
        self.tables = Tables(secret)
        # How many tombstones have each reason.
        self.uses = np.zeros(kernels.BY_LOST_REASON + 1, np.int64)
        self.counters = np.zeros(kernels.COUNTERS, np.int64)
        self._scratch = Scratch(ENTRIES_MAX)
        self._tombstones, self._surplus = np.empty(ENTRIES_MAX, np.int32), np.empty(ENTRIES_MAX, np.int32)
        self._outputs = [_new_outputs()]
        # How many cells the last message has moved.
        self._work = 0
        # Where `expire` and `end_roots` go on.
        self._expired, self._ended = np.zeros(3, np.int64), np.zeros(3, np.int64)

    def free_outputs(self) -> Outputs:
        """Return columns for the outcomes of a kernel. They stay in use while they hold outcomes."""
        for outputs in self._outputs:
            if outputs.is_empty:
                return outputs
        outputs = _new_outputs()
        self._outputs.append(outputs)
        return outputs

    @property
    def outputs(self) -> list[Outputs]:
        """All outcomes that are on their way."""
        return [outputs for outputs in self._outputs if not outputs.is_empty]

    def drop_outputs(self, outputs: Outputs) -> None:
        """Give back the memory of columns, unless they are the only ones."""
        if len(self._outputs) > 1 and outputs in self._outputs:
            self._outputs.remove(outputs)

    @property
    def acks_max(self) -> int:
        """With this many orphans, further acks of unknown roots are dropped. The rest of ``orphans_max`` is for fails
        without an edge, and for `block`."""
        return self.orphans_max - self.orphans_max // 8

    def has_room_for(self, keys: Column) -> bool:
        """Whether all of ``keys: uint64[n]`` could become tombstones or blocked."""
        room = self.orphans_max - self.orphans
        return len(keys) <= room or kernels.count_unknown(keys, self.tables.directory) <= max(0, room)

    def begin(self) -> None:
        """Count from zero what kernels change."""
        self.counters[:] = 0

    # -- messages

    def check(self, roots: Column, numbering: Numbering | None) -> Sections | str:
        """Return the sections of ``roots: uint64[n]``, ENTRIES_MAX at most, or an error sentence. Changes no entry."""
        return self._scratch.check(roots, numbering)

    def apply_inits(
        self,
        sections: Sections,
        vals: Column,
        fresh: Column,
        index: int,
        held: bool,
        numbering: Numbering | None,
        tick: int,
        outputs: Outputs,
    ) -> None:
        """Apply the inits in the slots of ``fresh`` (uint64[16]) for a batch index. ``counters`` has the number of the
        first section that was not applied, because too many cells would have had to move at once."""
        first, seen = (numbering.first, numbering.seen) if numbering else (0, _NOTHING_SEEN)
        lifetime = int(self.limits[index].min())
        section, count, self._work = 0, len(sections.slots), 0
        while True:
            kernels.apply_inits(
                sections.keys, vals, sections.starts, sections.slots, fresh, section, count, self.tables.directory,
                self.pending, index, held, lifetime, seen, first, tick, self.uses, outputs.roots, outputs.info,
                self.counters,
            )  # fmt: skip
            section = int(self.counters[kernels.SECTION])
            if section == count or not self._make_room(sections, section):
                return

    def apply_updates(
        self,
        sections: Sections,
        vals: Column,
        kinds: Kinds,
        reasons: ReasonIds,
        fresh: Column,
        orphan_ticks: int,
        tick: int,
        outputs: Outputs,
        *,
        keeps_all: bool = False,
    ) -> None:
        """Apply the updates in the slots of ``fresh`` (uint64[16]). The reasons of outcomes are ids plus one. The
        caller must call `place_surplus`, and `set_reasons` for the new ``tombstones``. ``counters``: as in
        `apply_inits`. ``keeps_all``: drop no acks of unknown roots. There must be room for them."""
        section, count, self._work = 0, len(sections.slots), 0
        orphan_room = (self.orphans_max if keeps_all else self.acks_max) - self.orphans
        while True:
            kernels.apply_updates(
                sections.keys, vals, kinds, reasons, sections.starts, sections.slots, fresh, section, count,
                self.tables.directory, tables.LARGE, orphan_ticks, orphan_room, tick, self.uses, outputs.roots,
                outputs.info, self._tombstones, self._surplus, self.counters,
            )  # fmt: skip
            section = int(self.counters[kernels.SECTION])
            if self.counters[kernels.SURPLUS]:
                self.place_surplus(sections, vals, kinds, orphan_ticks, tick)
                if section == count or self._work > MOVED_MAX:
                    return
            elif section == count or not self._make_room(sections, section):
                return

    def place_surplus(self, sections: Sections, vals: Column, kinds: Kinds, orphan_ticks: int, tick: int) -> None:
        """Make room for the orphans of the last section that found none, and create them. May be called again if it
        fails."""
        surplus = int(self.counters[kernels.SURPLUS])
        if surplus:
            self._widen(int(sections.slots[int(self.counters[kernels.SECTION]) - 1]), surplus)
            kernels.place_surplus(
                sections.keys, vals, kinds, self._surplus, self.tables.directory, orphan_ticks, tick, self.uses,
                self._tombstones, self.counters,
            )  # fmt: skip

    @property
    def tombstones(self) -> Array:
        """The positions of the entries that became tombstones in the last message: intp[t]."""
        return self._tombstones[: int(self.counters[kernels.TOMBSTONES])].astype(np.intp)

    def set_reasons(self, keys: Column, reason_ids: Column) -> None:
        """Store the reason ids of the tombstones with these ``keys``."""
        kernels.set_reasons(keys, reason_ids, self.tables.directory, self.uses)

    def block(self, sections: Sections, tick: int) -> None:
        """Keep the orphans of the sections that were applied last for as long as tombstones, from now on."""
        count = int(sections.starts[int(self.counters[kernels.SECTION])])
        kernels.block(sections.keys[:count], self.tables.directory, tick)

    def _make_room(self, sections: Sections, section: int) -> bool:
        """Grow the sub-table of a section. Returns whether the section has room now: if not, too much was moved
        already, or the sub-table is large (see `Tables.wanted`)."""
        if self._work > MOVED_MAX:
            return False
        slot = int(sections.slots[section])
        is_large = self.tables.is_large(slot)
        self._widen(slot, int(self.counters[kernels.MISSING]))
        return not is_large

    def _widen(self, slot: int, entries: int) -> None:
        self._work += self.tables.resize(slot, int(self.tables.counts[slot]) + entries)

    def grow(self) -> None:
        """Grow the fullest sub-tables, if the last message has filled one and there is time and memory."""
        if self.counters[kernels.FULL]:
            with contextlib.suppress(MemoryError):
                self.tables.grow(MOVED_MAX - self._work)

    # -- sweeps

    def expire(
        self, tick: int, orphan_ticks: int, tombstone_ticks: int, rows: int, cells: int, outputs: Outputs
    ) -> None:
        """Expire due entries of the next ``rows`` sub-tables, among ``cells`` cells. The next call continues where this
        one stopped. ``counters`` has the numbers of sub-tables and of cells."""
        kernels.expire(
            self._expired, rows, cells, self.tables.directory, self.limits, orphan_ticks, tombstone_ticks, tick,
            self.uses, outputs.roots[:OUTCOMES_MAX], outputs.info[:OUTCOMES_MAX], self.counters,
        )  # fmt: skip

    def recheck_expiry(self) -> None:
        """Check every sub-table at the next `expire`, because limits became shorter."""
        self.tables.directory[:, kernels.DUE] = 0

    def end_roots(self, actions: Kinds, outputs: Outputs) -> None:
        """End roots of each batch index according to ``actions`` (uint8[16384]), in the next SWEEP_CELLS cells.

        The next call continues where this one stopped. Call it until ``pending`` is 0 for each of the batch indexes.
        """
        kernels.end_roots(
            self._ended, SWEEP_CELLS, self.tables.directory, actions, self.pending,
            outputs.roots[:OUTCOMES_MAX], outputs.info[:OUTCOMES_MAX], self.counters,
        )  # fmt: skip

    # -- state

    def dump(self, tick: int) -> Iterator[dict[str, Array]]:
        """Yield all entries as columns, several sub-tables at a time: keys, vals, flags (uint64[n]) and
        ages (int64[n, 2], ticks since start and since progress)."""
        self.tables.finish_moves()
        directory = self.tables.directory[:SLOTS]
        for slots in _parts(directory[:, COUNT]):
            count = int(directory[slots, COUNT].sum())
            keys, vals, flags = (np.empty(count, np.uint64) for _ in range(3))
            ages = np.empty(2 * count, np.int64)
            kernels.copy_out(directory[slots], tick, keys, vals, flags, ages)
            yield {"keys": keys, "vals": vals, "flags": flags, "ages": ages.reshape(count, 2)}

    def load(self, part: Mapping[str, Array], tick: int) -> None:
        """Load a piece of `dump` into empty sub-tables. Raises ValueError if the piece is incomplete."""
        keys, vals, flags = (np.ascontiguousarray(part[name], np.uint64) for name in ("keys", "vals", "flags"))
        ages = np.ascontiguousarray(part["ages"], np.int64)
        if not len(keys) == len(vals) == len(flags) == len(ages) or ages.shape != (len(keys), 2):
            raise ValueError("the columns of its ledger differ in length")
        counts = np.bincount((keys >> np.uint64(54)).astype(np.int64), minlength=SLOTS)
        directory, slots = self.tables.directory, np.flatnonzero(counts)
        if directory[slots, COUNT].any():
            raise ValueError("its ledger holds a sub-table twice")
        reasons = vals[(flags & np.uint64(kernels.FAILED_FLAG)) != 0]
        if np.any(reasons > np.uint64(kernels.BY_LOST_REASON)):
            raise ValueError("a tombstone has a reason beyond the table")
        for slot in slots.tolist():
            self.tables.resize(slot, int(counts[slot]))
        if not np.all(keys) or not kernels.copy_in(directory, tick, keys, vals, flags, ages.reshape(-1)):
            raise ValueError("its ledger holds a root twice, or root id 0")
        directory[:SLOTS, PEAK] = directory[:SLOTS, COUNT]
        self.uses += np.bincount(reasons.astype(np.int64), minlength=len(self.uses))
        self._recount(flags)

    def _recount(self, flags: Column) -> None:
        inits = (flags & np.uint64(kernels.INIT_FLAG)) != 0
        indexes = (flags[inits] & np.uint64(kernels.INDEXES - 1)).astype(np.int64)
        self.pending += np.bincount(indexes, minlength=kernels.INDEXES)
        self.orphans += int(len(flags) - inits.sum())


def _new_outputs() -> Outputs:
    # Twice the entries, since a conflicting init ends its root in two batches.
    return Outputs(2 * ENTRIES_MAX)


def _parts(counts: Array) -> Iterator[slice]:
    """Yield ranges of sub-tables that hold about PART_ENTRIES entries each; at least one range."""
    start = entries = 0
    for slot, count in enumerate(counts.tolist()):
        entries += count
        if entries >= PART_ENTRIES:
            yield slice(start, slot + 1)
            start, entries = slot + 1, 0
    if entries or not start:
        yield slice(start, len(counts))


_NOTHING_SEEN = np.empty(0, np.uint64)
