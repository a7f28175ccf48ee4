"""Tables: the memory of the ledger's 1024 sub-tables, which grow and shrink independently.

Decides when a sub-table grows or shrinks, and how much of that is done at once. ``kernels`` says what a cell is, and
moves cells. A small sub-table is replaced in one go. A large one is replaced step by step. Its new memory comes from
the caller (`wanted`), who can get it while other calls work: the system needs long to hand out much memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from acker_protocol.ids import SLOTS, Column, mix64
from acker_service.core import kernels
from acker_service.core.kernels import ADDRESS, CAPACITY, CELL_BYTES, COUNT, DUE, MOVING, NEVER, PEAK, SALT

Array = npt.NDArray[Any]

# Cells of an empty sub-table. `kernels` lets seven entries into eight cells.
CAPACITY_MIN = 8
# The load of a long and a short sub-table (see `kernels`) after a resize, and the load below which it shrinks. After
# growing, a root takes 24 bytes / 0.66 = 36 bytes.
LOAD_NEW_LONG, LOAD_NEW_SHORT, LOAD_MIN = 0.66, 0.78, 0.60
# Calls of `fit` in a window of 10 s: the server makes 20 a second. A sub-table keeps the capacity for a peak until the
# end of the next window, so a batch finds enough room if an equally large one came within 10 s before it.
WINDOW_FITS = 200
# How many cells one call moves, in some 5 to 10 ms, if it need not move more. To replace a small sub-table takes as
# long as to move RESIZE_CELLS.
MOVED_MAX, RESIZE_CELLS = 250_000, 256
# A sub-table with more cells is replaced step by step.
LARGE = 1 << 17


class Tables:
    """``directory``: see `kernels`. ``secret``: clients must not know it, since the places of entries depend on it."""

    def __init__(self, secret: int) -> None:
        self.directory = np.zeros((kernels.ROWS, kernels.COLUMNS), np.int64)
        self.directory[:, DUE] = NEVER
        # An odd factor, even if the secret is 0.
        self.directory[:, SALT] = np.array(mix64(secret ^ 1) | 1, np.uint64).astype(np.int64)
        # One array for all sub-tables at first, since a thousand small arrays take milliseconds to make.
        empty = np.zeros((SLOTS, 3 * CAPACITY_MIN), np.uint64)
        self.cells: list[Column] = list(empty)
        self._slots = self.directory[:SLOTS]
        self._slots[:, ADDRESS] = empty.ctypes.data + np.arange(SLOTS) * empty.strides[0]
        self._slots[:, CAPACITY] = CAPACITY_MIN
        # Large sub-tables that should be replaced, by slot, and the cells of their new tables.
        self.wanted: dict[int, int] = {}
        # The cells of old tables, by slot.
        self._old: dict[int, Column] = {}
        # The largest count of each sub-table in the previous window. The column PEAK has the largest count in this one.
        self._peaks_before = np.zeros(SLOTS, np.int64)
        self._fits = 0

    @property
    def entries(self) -> int:
        return int(self.directory[:, COUNT].sum())

    @property
    def counts(self) -> Array:
        """The entries of each slot: int64[1024]."""
        counts: Array = self.directory[:SLOTS, COUNT] + self.directory[SLOTS:, COUNT]
        return counts

    @property
    def bytes(self) -> int:
        return int(self.directory[:, CAPACITY].sum()) * CELL_BYTES

    def is_large(self, slot: int) -> bool:
        return bool(self._slots[slot, CAPACITY] > LARGE)

    def fit(self) -> None:
        """Grow the fullest sub-tables and shrink the emptiest, a bounded number of cells at a time."""
        self._fits += 1
        counts, capacities = self.counts, self._slots[:, CAPACITY]
        if self._fits % WINDOW_FITS == 0:
            self._peaks_before[:] = self._slots[:, PEAK]
            self._slots[:, PEAK] = counts
        moved = self.go_on_moving(MOVED_MAX // 2)
        # Uses peaks and not counts, so that a sub-table that fills again and again does not shrink in between.
        peaks = np.maximum(np.maximum(self._slots[:, PEAK], self._peaks_before), counts)
        idle = (peaks < LOAD_MIN * capacities - 2) & (capacities > CAPACITY_MIN) & (self._slots[:, MOVING] == 0)
        if idle.any():
            moved += self._resize(np.flatnonzero(idle), peaks, MOVED_MAX - moved)
        self.grow(MOVED_MAX - moved)

    def grow(self, budget: int = MOVED_MAX) -> None:
        """Grow the fullest sub-tables, as there is time. Moves about ``budget`` cells."""
        if budget <= 0:
            return
        counts, capacities = self.counts, self._slots[:, CAPACITY]
        load_max = np.where(capacities >= kernels.LONG, kernels.LOAD_MAX_LONG, kernels.LOAD_MAX_SHORT)
        full = np.flatnonzero((100 * counts > load_max * capacities) & (self._slots[:, MOVING] == 0))
        if len(full):
            self._resize(full[np.argsort(counts[full] / capacities[full])[::-1]], counts, budget)

    def resize(self, slot: int, entries: int) -> int:
        """Replace a sub-table with one of the right size for ``entries``, and return the work in cells. A large one is
        only noted as `wanted`, without any work."""
        capacity = int(self._slots[slot, CAPACITY])
        entries = max(entries, int(self._slots[slot, COUNT]))
        if capacity > LARGE:
            if not self._slots[slot, MOVING]:
                self.wanted[slot] = _room_for(entries, capacity)
            return 0
        table = new_table(_room_for(entries, 0))
        kernels.replace_table(self.directory, slot, table, table.ctypes.data)
        # Cannot fail, so the cells at this address stay.
        self.cells[slot] = table
        return max(RESIZE_CELLS, capacity)

    def replace_large(self, slot: int, table: Column) -> None:
        """Begin to replace a large sub-table by ``table``, which is empty, if it is wanted and still has enough
        room."""
        cells, wanted = len(table) // 3, self.wanted.get(slot)
        if wanted is None or cells < _room_for(int(self._slots[slot, COUNT]), int(self._slots[slot, CAPACITY])):
            if wanted == cells:
                # More entries have come. If the sub-table must still be replaced, its size is computed anew.
                del self.wanted[slot]
            return
        address = table.ctypes.data
        self._old[slot] = self.cells[slot]
        kernels.begin_move(self.directory, slot, table, address)
        # Nothing below can fail.
        self.cells[slot] = table
        del self.wanted[slot]

    def go_on_moving(self, budget: int) -> int:
        """Move cells of old tables to the new ones. Returns how many."""
        moved = 0
        for slot in list(self._old):
            if self._slots[slot, MOVING] and moved < budget:
                moved += kernels.go_on_moving(self.directory, slot, budget - moved)
            if not self._slots[slot, MOVING]:
                del self._old[slot]
        return moved

    def finish_moves(self) -> None:
        """Empty all old tables."""
        self.go_on_moving(int(self.directory[:, CAPACITY].sum()))

    def _resize(self, slots: Array, entries: Array, budget: int) -> int:
        moved = 0
        for slot in slots.tolist():
            moved += self.resize(slot, int(entries[slot]))
            if moved > budget:
                break
        return moved


def new_table(cells: int) -> Column:
    """Return the cells of an empty table. The system has given all the memory for a large one when this returns."""
    table = np.zeros(3 * cells, np.uint64)
    if cells > LARGE:
        table.fill(0)
    return table


def _room_for(entries: int, old_capacity: int) -> int:
    """Return the capacity of a new table for ``entries``. ``old_capacity``: of the table that it replaces step by step;
    0 if that is done in one go. Then it also has room for the entries that come before the old table is empty."""
    load = LOAD_NEW_SHORT if entries < LOAD_NEW_SHORT * kernels.LONG else LOAD_NEW_LONG
    coming = old_capacity // kernels.MOVED_AN_ENTRY
    return max(
        CAPACITY_MIN, int(entries / load) + 2, 100 * (entries + coming) // kernels.LOAD_FULL + 2 if coming else 0
    )
