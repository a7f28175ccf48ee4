"""Kernels: the ledger's inner loops, compiled by numba. They release the GIL and are cached on disk.

Decides the layout of a cell and how a sub-table is probed. ``applying`` decides which messages may be applied, and
``ledger`` allocates and grows tables. A section is applied as a whole: where the room is not enough for all of its
entries, a kernel stops before that section and returns it.

A *cell* is three uint64: key, ack val, meta. The key is ``mix64(root id)``, which can be inverted; key 0 marks an empty
cell. There is one *sub-table* per slot. Probing is linear. Deletion shifts later entries back, so no markers of deleted
entries remain. The home cell of a key depends on a *salt* that callers do not know. Otherwise a caller could choose
root ids with the same home, and each probe would pass all of them.

Meta, from the lowest bit: batch index (14), INIT, FAILED, HELD, BLOCKED, start tick (23), progress tick (23). An entry
without an init is BLOCKED if it must live as long as a tombstone, because it keeps its root from being ACKED.
Ticks are 1/32 s, modulo 2**23 (72 h). A limit is at most 24 h.

The *directory* is int64[2048, COLUMNS], a row per slot: address of the cells, capacity, count, tick at which the next
entry of the sub-table may expire, the largest count in the present window of time (``ledger.WINDOW_FITS``), and the
salt. Eight columns make a row one cache line. ``ledger.Ledger`` keeps the arrays behind the addresses alive.

A large sub-table is replaced step by step. Meanwhile row 1024 + slot is its *old table*, and MOVING is 1 in the slot's
row. The cells of the old table below its FRONT are empty. Before a section is applied, its entries are moved to the new
table, with some others (MOVED_AN_ENTRY), so everything else looks for them only there. Sweeps go through all rows.
"""

# numba reads these signatures; mypy cannot.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,no-any-return,call-arg"

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, njit, types  # type: ignore[attr-defined]
from numba.core import cgutils
from numba.extending import intrinsic

from acker_protocol.ids import MULTIPLIER_1, MULTIPLIER_2, SLOTS
from acker_protocol.messages import ACK, FAIL, RESET, Cause, Verdict

CELL_BYTES = 24
TICKS_A_SECOND = 32
TICK_BITS = 23
INDEX_BITS = 14
INDEXES = 1 << INDEX_BITS
NEVER = 1 << 60

# Loads in percent. Above LOAD_FULL a sub-table must grow before it takes another entry. Above LOAD_MAX_* it grows when
# there is time. A long sub-table (LONG cells or more) grows early, since its probes miss the cache. The count of a
# short one varies more, relative to its size, so it grows late to stay below 40 bytes a root.
LOAD_FULL = 92
LOAD_MAX_LONG, LOAD_MAX_SHORT, LONG = 74, 87, 512

# Columns of the directory.
ADDRESS, CAPACITY, COUNT, DUE, PEAK, SALT, MOVING = range(7)
# An old table has this in the column of PEAK.
FRONT = PEAK
COLUMNS = 8
ROWS = 2 * SLOTS

# Positions in the int64 array of counters that kernels add to. ORPHANS is the change of their number. DROPPED are
# updates without room, ROOTS_DROPPED pending roots without an outcome. SECTION is the section where a kernel stopped.
(
    OUTCOMES, VARIETY, CREATED, KNOWN, CONFLICTS, APPLIED, ORPHANS, ORPHANS_EXPIRED, DROPPED, ROOTS_DROPPED, TOMBSTONES,
    FAILS, FULL, SECTION, MISSING, SURPLUS, CELLS,
) = range(17)  # fmt: skip
COUNTERS = 17

# Positions in the int64 array of the place where a sweep goes on.
ROW, CELL, SOONEST = range(3)

# How many cells of an old table are emptied for each entry of a section. A new table has room for all entries that come
# until the old one is empty (`ledger._room_for`).
MOVED_AN_ENTRY = 4
# An entry that moves while its sub-table is checked in several calls may be missed. The next check comes after as many
# ticks at most.
RECHECK_TICKS = TICKS_A_SECOND

# Results of `check`.
FINE, UNSORTED, ZERO, BEYOND, TOO_LONG = range(5)

# What `end_roots` does with the roots of a batch index.
KEEP, FINISH, ABANDON, DROP = range(4)

# The reasons that `end_roots` and `expire` write: numbers of Cause, and 0 for none.
REASONS = tuple(Cause)
BY_MESSAGE_TIMEOUT, BY_PROGRESS_TIMEOUT, BY_UNFINISHED, BY_ABANDONED, BY_UNREAD = range(1, 6)
# `apply_inits` takes reasons from the table of tombstones' reasons (module `reasons`). Ids up to TOMBSTONE_REASONS are
# texts of clients. The next two ids are reasons of the server itself.
TOMBSTONE_REASONS = 4096
BY_LOST_REASON, BY_ROOT_CONFLICT = TOMBSTONE_REASONS + 1, TOMBSTONE_REASONS + 2

INIT_FLAG = 1 << INDEX_BITS
FAILED_FLAG = INIT_FLAG << 1
HELD_FLAG = INIT_FLAG << 2
BLOCKED_FLAG = INIT_FLAG << 3
START_SHIFT = INDEX_BITS + 4
PROGRESS_SHIFT = START_SHIFT + TICK_BITS
TICK_MASK = (1 << TICK_BITS) - 1

_INDEX_MASK = np.uint64(INDEXES - 1)
_INIT = np.uint64(INIT_FLAG)
_FAILED = np.uint64(FAILED_FLAG)
_HELD = np.uint64(HELD_FLAG)
_BLOCKED = np.uint64(BLOCKED_FLAG)
_TICK_MASK = np.uint64(TICK_MASK)
_START_SHIFT = np.uint64(START_SHIFT)
_PROGRESS_SHIFT = np.uint64(PROGRESS_SHIFT)
_NOT_START = np.uint64(~(TICK_MASK << START_SHIFT) & ((1 << 64) - 1))
_NOT_PROGRESS = np.uint64(~(TICK_MASK << PROGRESS_SHIFT) & ((1 << 64) - 1))
_ZERO, _ONE = np.uint64(0), np.uint64(1)
_U6, _U16, _U27, _U30, _U31, _U32 = (np.uint64(n) for n in (6, 16, 27, 30, 31, 32))
_U54, _U60, _U62, _U63 = (np.uint64(n) for n in (54, 60, 62, 63))
_M1, _M2 = np.uint64(MULTIPLIER_1), np.uint64(MULTIPLIER_2)
_I1, _I2 = np.uint64(pow(MULTIPLIER_1, -1, 1 << 64)), np.uint64(pow(MULTIPLIER_2, -1, 1 << 64))
_ACK, _FAIL, _RESET = np.uint8(ACK), np.uint8(FAIL), np.uint8(RESET)
_ACKED, _FAILED_VERDICT = np.uint64(Verdict.ACKED), np.uint64(Verdict.FAILED)
_TIMED_OUT, _LOST = np.uint64(Verdict.TIMED_OUT), np.uint64(Verdict.LOST)
_ROOT_CONFLICT, _LOST_REASON = np.uint64(BY_ROOT_CONFLICT), np.uint64(BY_LOST_REASON)

# How many entries ahead cells are prefetched into the cache.
_AHEAD = 12

_U64S = types.Array(types.uint64, 1, "C")
_U64S_IN = types.Array(types.uint64, 1, "C", readonly=True)
_U32S_IN = types.Array(types.uint32, 1, "C", readonly=True)
_U8S_IN = types.Array(types.uint8, 1, "C", readonly=True)
_U16S = types.Array(types.uint16, 1, "C")
_U8S = types.Array(types.uint8, 1, "C")
_I64S = types.Array(types.int64, 1, "C")
_I32S = types.Array(types.int32, 1, "C")
_DIRECTORY = types.Array(types.int64, 2, "C")
_LIMITS = types.Array(types.int64, 2, "C")


@intrinsic
def _pointer(_context: Any, address: Any) -> Any:
    """An address (int64) as a void pointer."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


@intrinsic
def _prefetch(_context: Any, address: Any) -> Any:
    """Prefetch the cache line at an address (int64). An invalid address is harmless."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        line = builder.inttoptr(arguments[0], cgutils.voidptr_t)
        kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, *[ir.IntType(32)] * 3])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [line, *(ir.IntType(32)(n) for n in (1, 3, 1))])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@njit(nogil=True, inline="always")
def _mix(value):
    value = (value ^ (value >> _U30)) * _M1
    value = (value ^ (value >> _U27)) * _M2
    return value ^ (value >> _U31)


@njit(nogil=True)
def _unmix(value):
    value = (value ^ (value >> _U31) ^ (value >> _U62)) * _I2
    value = (value ^ (value >> _U27) ^ (value >> _U54)) * _I1
    return value ^ (value >> _U30) ^ (value >> _U60)


@njit(nogil=True)
def _home(key, capacity, salt):
    """Return the home cell of a key: 32 bits that depend on the whole key and on the salt, scaled to the capacity."""
    return np.int64((((key * salt) >> _U32) * np.uint64(capacity)) >> _U32)


@njit(nogil=True)
def _find_cell(cells, capacity, salt, key):
    """Return the index of the key's cell, or of the empty cell where it belongs."""
    cell = _home(key, capacity, salt)
    while True:
        found = cells[3 * cell]
        if found == key or found == _ZERO:  # noqa: SIM109  a tuple would be slower here
            return cell
        cell += 1
        if cell == capacity:
            cell = 0


@njit(nogil=True)
def _erase(cells, capacity, salt, hole):
    """Empty a cell, and shift back the cells behind it that can move nearer to their home."""
    cell = hole
    while True:
        cell += 1
        if cell == capacity:
            cell = 0
        key = cells[3 * cell]
        if key == _ZERO:
            break
        home = _home(key, capacity, salt)
        # The cell may move into the hole unless its home lies, cyclically, behind the hole.
        if (hole < cell and (home <= hole or home > cell)) or (hole > cell and home <= hole and home > cell):
            cells[3 * hole] = key
            cells[3 * hole + 1] = cells[3 * cell + 1]
            cells[3 * hole + 2] = cells[3 * cell + 2]
            hole = cell
    cells[3 * hole] = _ZERO


@njit(nogil=True)
def _cells(directory, slot):
    return carray(_pointer(directory[slot, ADDRESS]), (3 * directory[slot, CAPACITY],), np.uint64)


@njit(nogil=True)
def _salt(directory, row):
    return np.uint64(directory[row, SALT])


@njit(nogil=True)
def _fetch(directory, row, key):
    """Start loading the cells around a key's home."""
    line = directory[row, ADDRESS] + CELL_BYTES * _home(key, directory[row, CAPACITY], _salt(directory, row))
    _prefetch(line)
    _prefetch(line + 64)


@njit(nogil=True)
def _write_outcome(out_roots, out_info, counters, key, index, verdict, reason):
    """Append one outcome: the root, and (batch index, verdict at bit 16, reason at bit 32)."""
    at = counters[OUTCOMES]
    info = index | (verdict << _U16) | (reason << _U32)
    out_roots[at] = _unmix(key)
    out_info[at] = info
    counters[VARIETY] |= np.int64(info ^ out_info[0])
    counters[OUTCOMES] = at + 1


@njit(
    types.int64(
        _U64S_IN, _U64S, _I32S, _U16S, _U64S, types.uint64, types.uint64, types.boolean, types.int64, _I64S,
    ),
    nogil=True,
    cache=True,
)  # fmt: skip
def check(roots, keys, starts, slots, bits, first, up_to, numbered, longest, sections):
    """Check a whole report before any entry is applied, and find its sections.

    Writes ``keys[:n]`` (mix64 of the roots), ``starts[:k + 1]`` (where sections start, and n), ``slots[:k]``,
    ``bits`` (uint64[16]: the slots as a map) and ``sections[0] = k``. If ``numbered``, each root must have a
    number (its distance from ``first``) of 0 to ``up_to - 1``. A section has at most ``longest`` roots. Returns FINE,
    UNSORTED, ZERO, BEYOND or TOO_LONG.
    """
    bits[:] = _ZERO
    sections[0] = 0
    n, k, last, begin = len(roots), 0, _ZERO, 0
    slot = np.int64(-1)
    for i in range(n):
        root = roots[i]
        key = _mix(root)
        if key <= last:
            return ZERO if key == _ZERO else UNSORTED
        last = key
        keys[i] = key
        if numbered and _unmix(root) - first >= up_to:
            return BEYOND
        if np.int64(key >> _U54) != slot:
            if i - begin > longest:
                return TOO_LONG
            begin = i
            slot = np.int64(key >> _U54)
            slots[k] = slot
            starts[k] = i
            bits[slot >> 6] |= _ONE << np.uint64(slot & 63)
            k += 1
    starts[k] = n
    sections[0] = k
    return TOO_LONG if n - begin > longest else FINE


@njit(nogil=True)
def _is_fresh(fresh, slot):
    return (fresh[slot >> 6] >> np.uint64(slot & 63)) & _ONE != _ZERO


@njit(nogil=True)
def _note_due(directory, row, tick):
    """Note that an entry of the sub-table may expire at ``tick``."""
    if tick < directory[row, DUE]:
        directory[row, DUE] = tick


@njit(nogil=True)
def _move_cell(old, cell, cells, capacity, salt):
    """Copy an entry of an old table into the new one, which does not have it."""
    to = _find_cell(cells, capacity, salt, old[3 * cell])
    for part in range(3):
        cells[3 * to + part] = old[3 * cell + part]


@njit(nogil=True)
def _move_front(directory, slot, budget):
    """Empty about ``budget`` cells of the slot's old table, from its FRONT on. Stops only at an empty cell, so that no
    probe of the rest ends too early."""
    row = slot + SLOTS
    old, most, front = _cells(directory, row), directory[row, CAPACITY], directory[row, FRONT]
    cells, capacity, salt = _cells(directory, slot), directory[slot, CAPACITY], _salt(directory, slot)
    moved, stop = 0, front + budget
    while front < most and (front < stop or old[3 * front] != _ZERO):
        if old[3 * front] != _ZERO:
            _move_cell(old, front, cells, capacity, salt)
            old[3 * front] = _ZERO
            moved += 1
        front += 1
    directory[row, FRONT] = front
    directory[row, COUNT] -= moved
    directory[slot, COUNT] += moved
    _note_due(directory, slot, directory[row, DUE])


@njit(nogil=True)
def _move_section(directory, slot, keys, begin, end):
    """Move the entries of a section from the slot's old table to the new one, and some others."""
    row = slot + SLOTS
    old, most, old_salt = _cells(directory, row), directory[row, CAPACITY], _salt(directory, row)
    cells, capacity, salt = _cells(directory, slot), directory[slot, CAPACITY], _salt(directory, slot)
    moved = 0
    for i in range(begin, end):
        if i + _AHEAD < end:
            _fetch(directory, row, keys[i + _AHEAD])
        cell = _find_cell(old, most, old_salt, keys[i])
        if old[3 * cell] != _ZERO:
            _move_cell(old, cell, cells, capacity, salt)
            _erase(old, most, old_salt, cell)
            moved += 1
    directory[row, COUNT] -= moved
    directory[slot, COUNT] += moved
    _move_front(directory, slot, MOVED_AN_ENTRY * (end - begin))


@njit(nogil=True)
def _taken(directory, slot):
    """Return how many cells of a sub-table are taken, or will be when its old table is empty."""
    taken = directory[slot, COUNT]
    return taken + directory[slot + SLOTS, COUNT] if directory[slot, MOVING] != 0 else taken


@njit(nogil=True)
def _is_roomy(directory, slot, entries):
    """Whether the sub-table surely has room for a section. Some cells stay empty, so that every probe ends soon."""
    return 100 * (_taken(directory, slot) + entries) <= LOAD_FULL * directory[slot, CAPACITY]


@njit(nogil=True)
def _lacks_room(directory, slot, keys, begin, end, counters):
    """Whether the sub-table must grow before it takes a section. If so, ``counters[MISSING]`` is how many entries are
    to come at most."""
    taken = _taken(directory, slot)
    cells, capacity, salt = _cells(directory, slot), directory[slot, CAPACITY], _salt(directory, slot)
    missing = 0
    for i in range(begin, end):
        if i + _AHEAD < end:
            _fetch(directory, slot, keys[i + _AHEAD])
        missing += cells[3 * _find_cell(cells, capacity, salt, keys[i])] == _ZERO
    counters[MISSING] = missing
    return 100 * (taken + missing) > LOAD_FULL * capacity


@njit(types.int64(_U64S_IN, _DIRECTORY), nogil=True, cache=True)
def count_unknown(keys, directory):
    """Return how many of ``keys`` have no entry, as far as this is known without moving cells of an old table."""
    unknown = 0
    for i in range(len(keys)):
        slot = np.int64(keys[i] >> _U54)
        cells, capacity, salt = _cells(directory, slot), directory[slot, CAPACITY], _salt(directory, slot)
        unknown += directory[slot, MOVING] != 0 or cells[3 * _find_cell(cells, capacity, salt, keys[i])] == _ZERO
    return unknown


@njit(nogil=True)
def _store_count(directory, slot, count, counters):
    """Store the count of a sub-table after a section; counts FULL if it should grow."""
    directory[slot, COUNT] = count
    if count > directory[slot, PEAK]:
        directory[slot, PEAK] = count
        long = directory[slot, CAPACITY] >= LONG
        load_max = LOAD_MAX_LONG if long else LOAD_MAX_SHORT
        counters[FULL] += load_max * directory[slot, CAPACITY] < 100 * count


@njit(nogil=True)
def _stamps(tick):
    now = np.uint64(tick) & _TICK_MASK
    return (now << _START_SHIFT) | (now << _PROGRESS_SHIFT)


@njit(
    types.void(
        _U64S_IN, _U64S_IN, _I32S, _U16S, _U64S_IN, types.int64, types.int64, _DIRECTORY, _I64S, types.uint64,
        types.boolean, types.int64, _U64S, types.uint64, types.int64, _I64S, _U64S, _U64S, _I64S,
    ),
    nogil=True,
    cache=True,
)  # fmt: skip
def apply_inits(
    keys, vals, starts, slots, fresh, section, sections, directory, pending, index,
    held, lifetime, seen, first, tick, uses, out_roots, out_info, counters,
):  # fmt: skip
    """Apply the inits of sections ``section`` to ``sections - 1`` whose slots are in ``fresh``, for batch index
    ``index``.

    ``seen``: bit map (uint64) of the batch's numbers that were initialised before; empty for the open stream. ``uses``:
    how many tombstones have each reason (int64). If a root is pending in another batch, the init ends the root in both
    batches, so an entry may have two outcomes. ``counters[SECTION]`` is ``sections`` at the end, or the section whose
    sub-table must grow first, by ``counters[MISSING]`` entries. The next call then starts with that section.

    ``pending`` counts a root from its init until its outcome is in an outbox, so kernels with outcomes do not lower it.
    """
    stamps = _stamps(tick)
    meta = index | _INIT | (_HELD if held else _ZERO) | stamps
    for at in range(section, sections):
        slot = np.int64(slots[at])
        if not _is_fresh(fresh, slot):
            continue
        begin, end = np.int64(starts[at]), np.int64(starts[at + 1])
        if directory[slot, MOVING] != 0:
            _move_section(directory, slot, keys, begin, end)
        if not _is_roomy(directory, slot, end - begin) and _lacks_room(directory, slot, keys, begin, end, counters):
            counters[SECTION] = at
            return
        cells, capacity, salt = _cells(directory, slot), directory[slot, CAPACITY], _salt(directory, slot)
        count = directory[slot, COUNT]
        for i in range(begin, end):
            if i + _AHEAD < len(keys):
                _fetch(directory, np.int64(keys[i + _AHEAD] >> _U54), keys[i + _AHEAD])
            key = keys[i]
            if len(seen):
                number = _unmix(_unmix(key)) - first
                if (seen[number >> _U6] >> (number & _U63)) & _ONE != _ZERO:
                    counters[KNOWN] += 1
                    continue
            cell = _find_cell(cells, capacity, salt, key)
            val, old = vals[i], _ZERO
            if cells[3 * cell] != _ZERO:
                old = cells[3 * cell + 2]
                if old & _INIT != _ZERO:
                    owner = old & _INDEX_MASK
                    if owner == index:
                        counters[KNOWN] += 1
                        continue
                    if len(seen):
                        seen[number >> _U6] |= _ONE << (number & _U63)
                    counters[CREATED] += 1
                    counters[CONFLICTS] += 1
                    pending[index] += 1
                    _write_outcome(out_roots, out_info, counters, key, owner, _LOST, _ROOT_CONFLICT)
                    _write_outcome(out_roots, out_info, counters, key, index, _LOST, _ROOT_CONFLICT)
                    _erase(cells, capacity, salt, cell)
                    count -= 1
                    continue
                counters[ORPHANS] -= 1
            if len(seen):
                seen[number >> _U6] |= _ONE << (number & _U63)
            counters[CREATED] += 1
            pending[index] += 1
            if old & _FAILED != _ZERO:
                uses[cells[3 * cell + 1]] -= 1
                _write_outcome(out_roots, out_info, counters, key, index, _FAILED_VERDICT, cells[3 * cell + 1])
                _erase(cells, capacity, salt, cell)
                count -= 1
                continue
            if cells[3 * cell] != _ZERO:
                val ^= cells[3 * cell + 1]
            if val == _ZERO and not held:
                _write_outcome(out_roots, out_info, counters, key, index, _ACKED, _ZERO)
                if cells[3 * cell] != _ZERO:
                    _erase(cells, capacity, salt, cell)
                    count -= 1
                continue
            if cells[3 * cell] == _ZERO:
                cells[3 * cell] = key
                count += 1
            cells[3 * cell + 1] = val
            cells[3 * cell + 2] = meta
        _store_count(directory, slot, count, counters)
        _note_due(directory, slot, tick + lifetime)
        counters[APPLIED] += end - begin
    counters[SECTION] = sections


@njit(
    types.void(
        _U64S_IN, _U64S_IN, _U8S_IN, _U32S_IN, _I32S, _U16S, _U64S_IN, types.int64, types.int64, _DIRECTORY,
        types.int64, types.int64, types.int64, types.int64, _I64S, _U64S, _U64S, _I32S, _I32S, _I64S,
    ),
    nogil=True,
    cache=True,
)  # fmt: skip
def apply_updates(
    keys, vals, kinds, reasons, starts, slots, fresh, section, sections, directory, large, lifetime,
    orphan_room, tick, uses, out_roots, out_info, tombstones, surplus, counters,
):  # fmt: skip
    """Apply the acks, fails and resets of sections ``section`` to ``sections - 1`` whose slots are in ``fresh``.

    ``kinds`` empty: all ACK. The reason of an outcome is the entry's value in ``reasons``, plus one. Orphans live for
    ``lifetime`` ticks. After ``orphan_room`` of them only fails without an edge create more. ``tombstones`` gets the
    position in the report of each new tombstone. The tombstone's ack val is BY_LOST_REASON, until `set_reasons`
    replaces it with the id of its reason. ``uses``: as in `apply_inits`.

    If orphans of a section find no room, ``surplus`` gets their positions in the report, ``counters[SURPLUS]`` in all.
    The sub-table must then grow, and `place_surplus` must follow. ``counters[SECTION]`` is the next section. A
    sub-table with more than ``large`` cells must grow before, as for `apply_inits`.
    """
    stamps = _stamps(tick)
    progress = (np.uint64(tick) & _TICK_MASK) << _PROGRESS_SHIFT
    for at in range(section, sections):
        slot = np.int64(slots[at])
        begin, end = np.int64(starts[at]), np.int64(starts[at + 1])
        if not _is_fresh(fresh, slot):
            for i in range(begin, end if len(kinds) else begin):
                counters[FAILS] += kinds[i] & _FAIL != 0
            continue
        if directory[slot, MOVING] != 0:
            _move_section(directory, slot, keys, begin, end)
        if (
            directory[slot, CAPACITY] > large
            and not _is_roomy(directory, slot, end - begin)
            and _lacks_room(directory, slot, keys, begin, end, counters)
        ):
            counters[SECTION] = at
            return
        cells, capacity, salt = _cells(directory, slot), directory[slot, CAPACITY], _salt(directory, slot)
        count = directory[slot, COUNT]
        # One cell stays empty, so that every probe ends.
        most = capacity - 1 - (_taken(directory, slot) - count)
        kind, reason = _ACK, _ZERO
        for i in range(begin, end):
            if i + _AHEAD < len(keys):
                _fetch(directory, np.int64(keys[i + _AHEAD] >> _U54), keys[i + _AHEAD])
            key = keys[i]
            if len(kinds):
                kind = kinds[i]
                if kind & _FAIL != 0:
                    reason = np.uint64(reasons[counters[FAILS]])
                    counters[FAILS] += 1
            cell = _find_cell(cells, capacity, salt, key)
            if cells[3 * cell] == _ZERO:
                if kind & (_ACK | _FAIL) == 0:
                    continue
                # A fail without an edge is always kept, because nothing else keeps its root from being ACKED.
                is_bare_fail = kind & _FAIL != 0 and (kind & _ACK == 0 or vals[i] == _ZERO)
                if counters[ORPHANS] >= orphan_room and not is_bare_fail:
                    counters[DROPPED] += 1
                    continue
                if count >= most:
                    surplus[counters[SURPLUS]] = i
                    counters[SURPLUS] += 1
                    counters[ORPHANS] += 1
                    continue
                _note_due(directory, slot, tick + lifetime)
                cells[3 * cell] = key
                cells[3 * cell + 1] = _ZERO
                cells[3 * cell + 2] = stamps
                counters[ORPHANS] += 1
                count += 1
            meta = cells[3 * cell + 2]
            if kind & _ACK != 0 and meta & _FAILED == _ZERO:
                val = cells[3 * cell + 1]
                if val == _ZERO and meta & _HELD != _ZERO:
                    # A held root with ack val 0 has no timeout; now it has one again.
                    _note_due(directory, slot, tick)
                val ^= vals[i]
                if val == _ZERO and meta & (_INIT | _HELD) == _INIT and kind & _FAIL == 0:
                    _write_outcome(out_roots, out_info, counters, key, meta & _INDEX_MASK, _ACKED, _ZERO)
                    _erase(cells, capacity, salt, cell)
                    count -= 1
                    continue
                cells[3 * cell + 1] = val
                meta = (meta & _NOT_PROGRESS) | progress
            if kind & _FAIL != 0:
                if meta & _INIT != _ZERO:
                    index = meta & _INDEX_MASK
                    _write_outcome(out_roots, out_info, counters, key, index, _FAILED_VERDICT, reason + _ONE)
                    _erase(cells, capacity, salt, cell)
                    count -= 1
                    continue
                if meta & _FAILED == _ZERO:
                    cells[3 * cell + 1] = _LOST_REASON
                    uses[BY_LOST_REASON] += 1
                    tombstones[counters[TOMBSTONES]] = i
                    counters[TOMBSTONES] += 1
                meta = (meta & _NOT_PROGRESS) | progress | _FAILED
            if kind & _RESET != 0:
                meta = (meta & _NOT_PROGRESS & _NOT_START) | stamps
            cells[3 * cell + 2] = meta
        _store_count(directory, slot, count, counters)
        counters[APPLIED] += end - begin
        if counters[SURPLUS] != 0:
            counters[SECTION] = at + 1
            return
    counters[SECTION] = sections


@njit(
    types.void(_U64S_IN, _U64S_IN, _U8S_IN, _I32S, _DIRECTORY, types.int64, types.int64, _I64S, _I32S, _I64S),
    nogil=True,
    cache=True,
)
def place_surplus(keys, vals, kinds, surplus, directory, lifetime, tick, uses, tombstones, counters):
    """Create the orphans of the ``surplus`` of `apply_updates`, for which the sub-table has room now."""
    for n in range(counters[SURPLUS]):
        i = surplus[n]
        slot = np.int64(keys[i] >> _U54)
        cells, capacity, salt = _cells(directory, slot), directory[slot, CAPACITY], _salt(directory, slot)
        cell = _find_cell(cells, capacity, salt, keys[i])
        kind = kinds[i] if len(kinds) else _ACK
        is_failed = kind & _FAIL != 0
        cells[3 * cell] = keys[i]
        cells[3 * cell + 1] = _LOST_REASON if is_failed else vals[i]
        cells[3 * cell + 2] = _stamps(tick) | (_FAILED if is_failed else _ZERO)
        if is_failed:
            uses[BY_LOST_REASON] += 1
            tombstones[counters[TOMBSTONES]] = i
            counters[TOMBSTONES] += 1
        _note_due(directory, slot, tick + lifetime)
        _store_count(directory, slot, directory[slot, COUNT] + 1, counters)
    counters[SURPLUS] = 0


@njit(types.void(_DIRECTORY, types.int64, _U64S, types.int64), nogil=True, cache=True)
def replace_table(directory, slot, table, address):
    """Copy all entries of a sub-table into ``table``, which has empty cells, more than there are entries, and lies at
    ``address``. Then put it in place of the sub-table."""
    cells, salt = _cells(directory, slot), _salt(directory, slot)
    room = len(table) // 3
    for cell in range(directory[slot, CAPACITY]):
        if cells[3 * cell] != _ZERO:
            _move_cell(cells, cell, table, room, salt)
    directory[slot, ADDRESS], directory[slot, CAPACITY] = address, room


@njit(types.void(_DIRECTORY, types.int64, _U64S, types.int64), nogil=True, cache=True)
def begin_move(directory, slot, table, address):
    """Make the sub-table of a slot the old table, and ``table``, which is empty and lies at ``address``, the new
    one."""
    row = slot + SLOTS
    directory[row] = directory[slot]
    directory[row, FRONT] = 0
    directory[slot, ADDRESS], directory[slot, CAPACITY] = address, len(table) // 3
    directory[slot, COUNT], directory[slot, MOVING] = 0, 1


@njit(types.int64(_DIRECTORY, types.int64, types.int64), nogil=True, cache=True)
def go_on_moving(directory, slot, budget):
    """Empty about ``budget`` cells of the old table of a slot. Ends the move if it was the last. Returns how many cells
    it has passed."""
    row = slot + SLOTS
    before = directory[row, FRONT]
    _move_front(directory, slot, budget)
    passed = directory[row, FRONT] - before
    if directory[row, FRONT] >= directory[row, CAPACITY]:
        directory[slot, MOVING] = directory[row, CAPACITY] = 0
        directory[row, DUE] = NEVER
    return passed


@njit(nogil=True)
def _age(tick, stamp):
    """Ticks since the low 23 bits of ``stamp``."""
    return np.int64((np.uint64(tick) - stamp) & _TICK_MASK)


@njit(nogil=True)
def _overdue(val, meta, tick, limits, orphan_ticks, tombstone_ticks):
    """Return the ticks until an entry expires (0 or less: it is due), and the reason: the limit that it hits first."""
    progress_age = _age(tick, meta >> _PROGRESS_SHIFT)
    if meta & _INIT == _ZERO:
        return (orphan_ticks if meta & (_FAILED | _BLOCKED) == _ZERO else tombstone_ticks) - progress_age, 0
    if meta & _HELD != _ZERO and val == _ZERO:
        return np.int64(NEVER), 0
    index = meta & _INDEX_MASK
    left = limits[index, 0] - _age(tick, meta >> _START_SHIFT)
    progress_left = limits[index, 1] - progress_age
    if left <= 0 or left <= progress_left:
        return left, BY_MESSAGE_TIMEOUT
    return progress_left, BY_PROGRESS_TIMEOUT


@njit(
    types.void(
        _I64S, types.int64, types.int64, _DIRECTORY, _LIMITS, types.int64, types.int64, types.int64, _I64S, _U64S,
        _U64S, _I64S,
    ),
    nogil=True,
    cache=True,
)  # fmt: skip
def expire(
    place, rows, budget, directory, limits, orphan_ticks, tombstone_ticks, tick, uses, out_roots, out_info, counters
):
    """Expire the due entries of the next ``rows`` sub-tables, cyclically from ``place`` on. Looks at ``budget`` cells.

    ``limits``: int64[16384, 2], message and progress timeout in ticks per batch index, NEVER if off. Skips sub-tables
    in which nothing can be due. May stop in the middle of a sub-table. ``counters[SECTION]`` is the number of
    sub-tables done.
    """
    for walked in range(rows):
        at, cell = place[ROW], place[CELL]
        is_resumed = cell > 0
        if is_resumed or directory[at, DUE] <= tick:
            soonest = place[SOONEST] if is_resumed else np.int64(NEVER)
            cells, capacity, salt = _cells(directory, at), directory[at, CAPACITY], _salt(directory, at)
            while cell < capacity:
                if budget <= 0 or counters[OUTCOMES] == len(out_roots):
                    place[CELL], place[SOONEST], counters[SECTION] = cell, soonest, walked
                    return
                budget -= 1
                counters[CELLS] += 1
                key = cells[3 * cell]
                if key == _ZERO:
                    cell += 1
                    continue
                meta = cells[3 * cell + 2]
                left, reason = _overdue(cells[3 * cell + 1], meta, tick, limits, orphan_ticks, tombstone_ticks)
                if left > 0:
                    soonest = min(soonest, left)
                    cell += 1
                    continue
                if meta & _INIT == _ZERO:
                    counters[ORPHANS] -= 1
                    counters[ORPHANS_EXPIRED] += 1
                    if meta & _FAILED != _ZERO:
                        uses[cells[3 * cell + 1]] -= 1
                else:
                    index = meta & _INDEX_MASK
                    _write_outcome(out_roots, out_info, counters, key, index, _TIMED_OUT, np.uint64(reason))
                _erase(cells, capacity, salt, cell)
                directory[at, COUNT] -= 1
            directory[at, DUE] = tick + (min(soonest, RECHECK_TICKS) if is_resumed else soonest)
        place[ROW], place[CELL] = (at + 1) % len(directory), 0
    counters[SECTION] = rows


@njit(
    types.void(_I64S, types.int64, _DIRECTORY, _U8S_IN, _I64S, _U64S, _U64S, _I64S),
    nogil=True,
    cache=True,
)
def end_roots(place, budget, directory, actions, pending, out_roots, out_info, counters):
    """End roots of each batch index according to ``actions`` (uint8[16384]: KEEP, FINISH, ABANDON, DROP). Looks at
    ``budget`` cells.

    Walks cyclically from ``place`` on, over each sub-table at most once. May stop in the middle of a sub-table, whose
    cells may then move before the next call. So a whole round may miss a root: the caller goes on until ``pending``
    says that none is left.
    """
    for _ in range(len(directory)):
        slot, cell = place[ROW], place[CELL]
        cells, capacity, salt = _cells(directory, slot), directory[slot, CAPACITY], _salt(directory, slot)
        while cell < capacity:
            if budget <= 0 or counters[OUTCOMES] == len(out_roots):
                place[CELL] = cell
                return
            budget -= 1
            meta = cells[3 * cell + 2]
            index = meta & _INDEX_MASK
            if cells[3 * cell] == _ZERO or meta & _INIT == _ZERO or actions[index] == KEEP:
                cell += 1
                continue
            key = cells[3 * cell]
            if actions[index] == ABANDON:
                _write_outcome(out_roots, out_info, counters, key, index, _LOST, np.uint64(BY_ABANDONED))
            elif actions[index] == DROP:
                pending[index] -= 1
                counters[ROOTS_DROPPED] += 1
            elif cells[3 * cell + 1] == _ZERO:
                _write_outcome(out_roots, out_info, counters, key, index, _ACKED, _ZERO)
            else:
                _write_outcome(out_roots, out_info, counters, key, index, _FAILED_VERDICT, np.uint64(BY_UNFINISHED))
            _erase(cells, capacity, salt, cell)
            directory[slot, COUNT] -= 1
        place[ROW], place[CELL] = (slot + 1) % len(directory), 0


@njit(types.void(_U64S_IN, _U64S_IN, _DIRECTORY, _I64S), nogil=True, cache=True)
def set_reasons(keys, reasons, directory, uses):
    """Give tombstones the ids of their reasons, instead of BY_LOST_REASON. ``uses``: how many have each reason. Skips
    keys without a tombstone."""
    for i in range(len(keys)):
        slot = np.int64(keys[i] >> _U54)
        cells, capacity, salt = _cells(directory, slot), directory[slot, CAPACITY], _salt(directory, slot)
        cell = _find_cell(cells, capacity, salt, keys[i])
        if cells[3 * cell] == keys[i] and cells[3 * cell + 2] & _FAILED != _ZERO:
            uses[cells[3 * cell + 1]] -= 1
            uses[reasons[i]] += 1
            cells[3 * cell + 1] = reasons[i]


@njit(types.void(_U64S_IN, _DIRECTORY, types.int64), nogil=True, cache=True)
def block(keys, directory, tick):
    """Mark the orphans among ``keys`` as BLOCKED. Their lifetime starts anew."""
    progress = (np.uint64(tick) & _TICK_MASK) << _PROGRESS_SHIFT
    for i in range(len(keys)):
        slot = np.int64(keys[i] >> _U54)
        cells, capacity, salt = _cells(directory, slot), directory[slot, CAPACITY], _salt(directory, slot)
        cell = _find_cell(cells, capacity, salt, keys[i])
        meta = cells[3 * cell + 2]
        if cells[3 * cell] == keys[i] and meta & _INIT == _ZERO:
            cells[3 * cell + 2] = (meta & _NOT_PROGRESS) | progress | _BLOCKED


@njit(types.int64(_DIRECTORY, types.int64, _U64S, _U64S, _U64S, _I64S), nogil=True, cache=True)
def copy_out(directory, tick, keys, vals, flags, ages):
    """Copy all n entries: key, val, flags (low 18 bits of meta) and both ages in ticks (int64[2n]). Returns n."""
    at = 0
    for slot in range(len(directory)):
        cells = _cells(directory, slot)
        for cell in range(directory[slot, CAPACITY]):
            if cells[3 * cell] == _ZERO:
                continue
            meta = cells[3 * cell + 2]
            keys[at] = cells[3 * cell]
            vals[at] = cells[3 * cell + 1]
            flags[at] = meta & ((_ONE << _START_SHIFT) - _ONE)
            ages[2 * at] = _age(tick, meta >> _START_SHIFT)
            ages[2 * at + 1] = _age(tick, meta >> _PROGRESS_SHIFT)
            at += 1
    return at


@njit(types.boolean(_DIRECTORY, types.int64, _U64S_IN, _U64S_IN, _U64S_IN, _I64S), nogil=True, cache=True)
def copy_in(directory, tick, keys, vals, flags, ages):
    """Insert entries of :func:`copy_out` into empty sub-tables that have room. Returns False if a key comes twice."""
    for i in range(len(keys)):
        slot = np.int64(keys[i] >> _U54)
        cells = _cells(directory, slot)
        cell = _find_cell(cells, directory[slot, CAPACITY], _salt(directory, slot), keys[i])
        if cells[3 * cell] != _ZERO:
            return False
        start = np.uint64(tick - ages[2 * i]) & _TICK_MASK
        progress = np.uint64(tick - ages[2 * i + 1]) & _TICK_MASK
        cells[3 * cell] = keys[i]
        cells[3 * cell + 1] = vals[i]
        cells[3 * cell + 2] = flags[i] | (start << _START_SHIFT) | (progress << _PROGRESS_SHIFT)
        directory[slot, COUNT] += 1
        directory[slot, DUE] = 0
    return True


@njit(nogil=True)
def _is_within(slots, root):
    slot = _mix(root) >> _U54
    return slots[slot >> _U6] >> (slot & _U63) & _ONE != _ZERO


@njit(types.int64(types.uint64, types.uint64, _U64S_IN, _U64S), nogil=True, cache=True)
def count_within(first, up_to, slots, bits):
    """Count how many of the ``up_to`` roots from number ``first`` on fall into ``slots`` (a bit map).

    Sets the bits of their numbers in ``bits`` (uint64), unless that is empty.
    """
    count = 0
    for n in range(up_to):
        number = np.uint64(n)
        if _is_within(slots, _mix(first + number)):
            count += 1
            if len(bits):
                bits[number >> _U6] |= _ONE << (number & _U63)
    return count


@njit(types.void(_U64S, _U64S_IN), nogil=True, cache=True)
def cover(bits, bounds):
    """Set the numbers of ranges in a bit map (uint64). ``bounds``: starts and stops in turn, ascending by start."""
    at = _ZERO
    for n in range(0, len(bounds), 2):
        at, stop = max(at, bounds[n]), bounds[n + 1]
        while at < stop:
            if at & _U63 == _ZERO and at + np.uint64(64) <= stop:
                bits[at >> _U6] = ~_ZERO
                at += np.uint64(64)
            else:
                bits[at >> _U6] |= _ONE << (at & _U63)
                at += _ONE


@njit(types.void(_U64S, _U64S_IN), nogil=True, cache=True)
def uncover(bits, others):
    """Clear the numbers in a bit map (uint64) that are not in ``others``, another one. Leaves memory alone in which no
    number is set."""
    for n in range(len(bits)):
        if bits[n] != _ZERO:
            bits[n] &= others[n]


@njit(
    types.int64(_U64S_IN, _U64S_IN, types.int64, types.int64, types.uint64, types.uint64, _U64S_IN, _U64S, _I64S),
    nogil=True,
    cache=True,
)
def find_unread(seen, covered, word, budget, first, up_to, slots, out_roots, counters):
    """Write the roots in ``slots`` whose numbers are in neither bit map (uint64), from ``word`` on.

    Looks at ``budget`` words at most, and stops before a word whose roots might not fit. Returns the next word.
    ``counters[OUTCOMES]`` is the number of roots.
    """
    at, count = word, 0
    while at < min(len(seen), word + budget) and count + 64 <= len(out_roots):
        unread = ~(seen[at] | covered[at])
        for bit in range(64 if unread != _ZERO else 0):
            number = np.uint64(64 * at + bit)
            if unread >> np.uint64(bit) & _ONE != _ZERO and number < up_to:
                root = _mix(first + number)
                if _is_within(slots, root):
                    out_roots[count] = root
                    count += 1
        at += 1
    counters[OUTCOMES] = count
    return at
