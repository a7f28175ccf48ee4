"""Ledger: one ack val per pending root, in 1024 sub-tables that grow and shrink independently.

Decides where entries live, and when a sub-table grows or shrinks; ``kernels`` does the arithmetic. Knows batches only
by their index and time only in ticks. ``applying`` and ``shard`` decide whether a message may be applied and what an
outcome means. Not thread-safe: kernels release the GIL, so the caller must hold a lock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from acker_protocol.ids import SLOTS, Column
from acker_protocol.messages import Kinds, ReasonIds
from acker_service.core import kernels
from acker_service.core.kernels import ADDRESS, CAPACITY, CELL_BYTES, COUNT, DUE, NEVER, PEAK

Array = npt.NDArray[Any]

# Cells of an empty sub-table. `kernels` lets seven entries into eight cells.
CAPACITY_MIN = 8
# The load of a long and a short sub-table (see `kernels`) after a resize, and the load below which it shrinks. After
# growing, a root takes 24 bytes / 0.66 = 36 bytes.
LOAD_NEW_LONG, LOAD_NEW_SHORT, LOAD_MIN = 0.66, 0.78, 0.60
# Calls of `fit` in a window of 10 s: the server makes 20 a second. A sub-table keeps the capacity for a peak until the
# end of the next window, so a batch finds enough room if an equally large one came within 10 s before it.
WINDOW_FITS = 200
# How many cells one call moves when a resize is not urgent. That takes some 5 to 10 ms.
MOVED_MAX = 250_000
# How many entries a dump copies at once: 10 MB.
PART_ENTRIES = 1 << 18
# How many cells `end_roots` looks at in one call, in some 5 ms. The shard's lock is released between two calls.
SWEEP_CELLS = 300_000
# Smallest number of entries that the scratch columns have room for, and the most outcomes of one step of a sweep.
OUTCOMES_MIN = 1 << 16

TROUBLES = {
    kernels.UNSORTED: "root_ids: must ascend strictly by mix64(root id), compared unsigned (uint64), each root once",
    kernels.ZERO: "root_ids: 0 is not a root id",
    kernels.BEYOND: "root_ids: a root is not a number below up_to of its batch",
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


@dataclass(frozen=True, slots=True)
class LedgerOutcomes:
    """The outcomes of one call, as views that the next call overwrites. ``roots``: uint64[m]. ``info``: uint64[m] =
    batch index | verdict << 16 | reason << 32. ``is_uniform``: all values of ``info`` are equal."""

    roots: Column
    info: Column
    is_uniform: bool


@dataclass(slots=True)
class Effect:
    """The numbers of entries that one call changed. ``created``: inits that counted. ``known``: inits that changed
    nothing, as their root was initialised before. ``conflicts``: created inits whose root was pending in another batch,
    so that the root ended in both batches. ``dropped``: updates of unknown roots without room. ``applied``: all
    entries."""

    created: int = 0
    known: int = 0
    conflicts: int = 0
    dropped: int = 0
    applied: int = 0


class Ledger:
    """``orphans_max``: how many entries without an init are kept at most. Module ``orphans`` says why that is safe."""

    def __init__(self, orphans_max: int) -> None:
        self.orphans, self.orphans_max = 0, orphans_max
        self.pending = np.zeros(kernels.INDEXES, np.int64)
        self.limits = np.full((kernels.INDEXES, 2), NEVER, np.int64)
        self._directory = np.zeros((SLOTS, kernels.COLUMNS), np.int64)
        self._directory[:, DUE] = NEVER
        # One array for all sub-tables at first, since a thousand small arrays take milliseconds to make.
        empty = np.zeros((SLOTS, 3 * CAPACITY_MIN), np.uint64)
        self._tables = list(empty)
        self._directory[:, ADDRESS] = empty.ctypes.data + np.arange(SLOTS) * empty.strides[0]
        self._directory[:, CAPACITY] = CAPACITY_MIN
        self._counters = np.zeros(kernels.COUNTERS, np.int64)
        self._starts, self._slots = np.zeros(SLOTS + 1, np.int32), np.zeros(SLOTS, np.uint16)
        self._bits, self._sections = np.zeros(SLOTS // 64, np.uint64), np.zeros(1, np.int64)
        # The largest count of each sub-table in the previous window. The column PEAK has the largest count in this one.
        self._peaks_before = np.zeros(SLOTS, np.int64)
        self._next = self._fits = self._sweep_slot = self._sweep_cell = 0
        self._make_scratch(OUTCOMES_MIN)

    # -- messages

    def check(self, roots: Column, numbering: Numbering | None) -> Sections | str:
        """Return the sections of ``roots: uint64[n]``, or an error sentence. Changes no entry."""
        if len(roots) > len(self._keys):
            self._make_scratch(len(roots))
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
            self._sections,
        )
        if trouble:
            return TROUBLES[trouble]
        count = int(self._sections[0])
        return Sections(self._keys[: len(roots)], self._starts[: count + 1], self._slots[:count], self._bits)

    def apply_inits(
        self,
        sections: Sections,
        vals: Column,
        fresh: Column,
        index: int,
        held: bool,
        numbering: Numbering | None,
        tick: int,
    ) -> Effect:
        """Apply the inits in the slots of ``fresh`` (uint64[16]) for a batch index. Read `outcomes` next."""
        section, count = 0, len(sections.slots)
        first, seen = (numbering.first, numbering.seen) if numbering else (0, _NOTHING_SEEN)
        lifetime = int(self.limits[index].min())
        self._counters[:] = 0
        while True:
            section = kernels.apply_inits(
                sections.keys, vals, sections.starts, sections.slots, fresh, section, count, self._directory,
                self.pending, index, held, lifetime, seen, first, tick, self._roots, self._info, self._counters,
            )  # fmt: skip
            if section == count:
                return self._effect()
            self._widen(sections, section)

    def apply_updates(
        self,
        sections: Sections,
        vals: Column,
        kinds: Kinds,
        reasons: ReasonIds,
        fresh: Column,
        orphan_ticks: int,
        tick: int,
    ) -> tuple[Effect, Array]:
        """Apply the updates in the slots of ``fresh`` (uint64[16]). Read `outcomes` next. The reasons in them are ids
        plus one.

        Also returns int32[t], the positions of entries that became tombstones. The caller must call `set_reasons` for
        them.
        """
        section, count, room = 0, len(sections.slots), self.orphans_max - self.orphans
        self._counters[:] = 0
        while True:
            section = kernels.apply_updates(
                sections.keys, vals, kinds, reasons, sections.starts, sections.slots, fresh, section, count,
                self._directory, self.pending, orphan_ticks, room, tick, self._roots, self._info, self._tombstones,
                self._counters,
            )  # fmt: skip
            if section == count:
                return self._effect(), self._tombstones[: int(self._counters[kernels.TOMBSTONES])]
            self._widen(sections, section)

    def outcomes(self) -> LedgerOutcomes:
        """Return the outcomes of the last call."""
        count = int(self._counters[kernels.OUTCOMES])
        return LedgerOutcomes(self._roots[:count], self._info[:count], not self._counters[kernels.VARIETY])

    def set_reasons(self, keys: Column, reason_ids: Column) -> None:
        """Store the reason ids of the tombstones with these ``keys``."""
        kernels.set_reasons(keys, reason_ids, self._directory)

    def mark_reasons(self, used: Kinds) -> None:
        """Set ``used[reason id]`` for the reason of every tombstone."""
        kernels.mark_reasons(self._directory, used)

    # -- sweeps

    def expire(self, tick: int, orphan_ticks: int, cells: int) -> Iterator[LedgerOutcomes]:
        """Expire due entries among about ``cells`` cells. The next call continues where this one stopped."""
        left = SLOTS
        while left and cells > 0:
            self._counters[:] = 0
            # The outcomes of one sub-table must fit.
            most = max(OUTCOMES_MIN, int(self._directory[:, COUNT].max()))
            walked = kernels.expire(
                self._next, left, cells, self._directory, self.limits, self.pending, orphan_ticks, tick,
                self._roots[:most], self._info[:most], self._counters,
            )  # fmt: skip
            self._next, left = (self._next + walked) % SLOTS, left - walked
            cells -= int(self._counters[kernels.APPLIED])
            self.orphans += int(self._counters[kernels.ORPHANS])
            yield self.outcomes()
            if not walked:
                self._fit_scratch()

    def recheck_expiry(self) -> None:
        """Check every sub-table at the next `expire`, because limits became shorter."""
        self._directory[:, DUE] = 0

    def end_roots(self, actions: Kinds) -> tuple[LedgerOutcomes, int]:
        """End roots of each batch index according to ``actions`` (uint8[16384]), in the next SWEEP_CELLS cells.

        Returns the outcomes, and how many roots ended. The next call continues where this one stopped. Call it until
        ``pending`` is 0 for each of the batch indexes.
        """
        self._counters[:] = 0
        self._sweep_slot = kernels.end_roots(
            self._sweep_slot, self._sweep_cell, SWEEP_CELLS, self._directory, actions, self.pending,
            self._roots[:OUTCOMES_MIN], self._info[:OUTCOMES_MIN], self._counters,
        )  # fmt: skip
        self._sweep_cell = int(self._counters[kernels.RESUME])
        return self.outcomes(), int(self._counters[kernels.FINISHED])

    # -- room

    @property
    def entries(self) -> int:
        return int(self._directory[:, COUNT].sum())

    @property
    def table_bytes(self) -> int:
        return int(self._directory[:, CAPACITY].sum()) * CELL_BYTES

    def fit(self) -> None:
        """Grow the fullest sub-tables and shrink the emptiest, a bounded number of cells at a time."""
        self._fits += 1
        if self._fits % WINDOW_FITS == 0:
            self._peaks_before[:] = self._directory[:, PEAK]
            self._directory[:, PEAK] = self._directory[:, COUNT]
        # Uses peaks and not counts, so that a sub-table that fills again and again does not shrink in between.
        peaks, capacities = np.maximum(self._directory[:, PEAK], self._peaks_before), self._directory[:, CAPACITY]
        idle = (peaks < LOAD_MIN * capacities - 2) & (capacities > CAPACITY_MIN)
        if idle.any():
            self._resize(np.flatnonzero(idle), peaks)
        self._grow()

    def _grow(self) -> None:
        counts, capacities = self._directory[:, COUNT], self._directory[:, CAPACITY]
        load_max = np.where(capacities >= kernels.LONG, kernels.LOAD_MAX_LONG, kernels.LOAD_MAX_SHORT)
        full = np.flatnonzero(100 * counts > load_max * capacities)
        if len(full):
            self._resize(full[np.argsort(counts[full] / capacities[full])[::-1]], counts)

    def _resize(self, slots: Array, entries: Array) -> None:
        moved = 0
        for slot in slots.tolist():
            moved += int(self._directory[slot, CAPACITY])
            self._resize_table(slot, int(entries[slot]))
            if moved > MOVED_MAX:
                return

    def _widen(self, sections: Sections, section: int) -> None:
        """Make room for the rest of a section in its sub-table."""
        slot = int(sections.slots[section])
        coming = int(sections.starts[section + 1] - max(sections.starts[section], self._counters[kernels.RESUME]))
        self._resize_table(slot, int(self._directory[slot, COUNT]) + coming)

    def _resize_table(self, slot: int, entries: int) -> None:
        """Replace a sub-table with one of the right size for ``entries``."""
        load = LOAD_NEW_SHORT if entries < LOAD_NEW_SHORT * kernels.LONG else LOAD_NEW_LONG
        capacity = max(CAPACITY_MIN, int(entries / load) + 2)
        wider = np.zeros(3 * capacity, np.uint64)
        kernels.copy_entries(self._tables[slot], int(self._directory[slot, CAPACITY]), wider, capacity)
        self._set_table(slot, wider)

    def _set_table(self, slot: int, table: Column) -> None:
        self._tables[slot] = table
        self._directory[slot, ADDRESS] = table.__array_interface__["data"][0]
        self._directory[slot, CAPACITY] = len(table) // 3

    def _effect(self) -> Effect:
        counts = self._counters
        self.orphans += int(counts[kernels.ORPHANS])
        if counts[kernels.FULL]:
            self._grow()
        return Effect(
            int(counts[kernels.CREATED]),
            int(counts[kernels.KNOWN]),
            int(counts[kernels.CONFLICTS]),
            int(counts[kernels.DROPPED]),
            int(counts[kernels.APPLIED]),
        )

    def _fit_scratch(self) -> None:
        """Grow the scratch columns until the outcomes of the largest sub-table fit."""
        most = int(self._directory[:, COUNT].max())
        if most > len(self._roots):
            self._make_scratch(most)

    def _make_scratch(self, entries: int) -> None:
        self._keys, self._tombstones = np.empty(entries, np.uint64), np.empty(entries, np.int32)
        # Twice the entries, since a conflicting init ends its root in two batches.
        self._roots, self._info = np.empty(2 * entries, np.uint64), np.empty(2 * entries, np.uint64)

    # -- state

    def dump(self, tick: int) -> Iterator[dict[str, Array]]:
        """Yield all entries as columns, several sub-tables at a time: keys, vals, flags (uint64[n]) and
        ages (int64[n, 2], ticks since start and since progress)."""
        for slots in _parts(self._directory[:, COUNT]):
            count = int(self._directory[slots, COUNT].sum())
            keys, vals, flags = (np.empty(count, np.uint64) for _ in range(3))
            ages = np.empty(2 * count, np.int64)
            kernels.copy_out(self._directory[slots], tick, keys, vals, flags, ages)
            yield {"keys": keys, "vals": vals, "flags": flags, "ages": ages.reshape(count, 2)}

    def load(self, part: Mapping[str, Array], tick: int) -> None:
        """Load a piece of `dump` into empty sub-tables. Raises ValueError if the piece is incomplete."""
        keys, vals, flags = (np.ascontiguousarray(part[name], np.uint64) for name in ("keys", "vals", "flags"))
        ages = np.ascontiguousarray(part["ages"], np.int64)
        if not len(keys) == len(vals) == len(flags) == len(ages) or ages.shape != (len(keys), 2):
            raise ValueError("the columns of its ledger differ in length")
        counts = np.bincount((keys >> np.uint64(54)).astype(np.int64), minlength=SLOTS)
        slots = np.flatnonzero(counts)
        if self._directory[slots, COUNT].any():
            raise ValueError("its ledger holds a sub-table twice")
        for slot in slots.tolist():
            self._resize_table(slot, int(counts[slot]))
        if not np.all(keys) or not kernels.copy_in(self._directory, tick, keys, vals, flags, ages.reshape(-1)):
            raise ValueError("its ledger holds a root twice, or root id 0")
        self._directory[:, PEAK] = self._directory[:, COUNT]
        self._recount(flags)

    def _recount(self, flags: Column) -> None:
        inits = (flags & np.uint64(kernels.INIT_FLAG)) != 0
        indexes = (flags[inits] & np.uint64(kernels.INDEXES - 1)).astype(np.int64)
        self.pending += np.bincount(indexes, minlength=kernels.INDEXES)
        self.orphans += int(len(flags) - inits.sum())


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
