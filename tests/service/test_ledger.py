"""The ledger's tables: compared with a dict, and their use of memory."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from acker_protocol.ids import SLOTS, Column, mix64_column, unmix64_column
from acker_protocol.messages import NO_KINDS, NO_REASON_IDS
from acker_service.core import kernels
from acker_service.core.ledger import ENTRIES_MAX, Ledger, Numbering, Sections
from acker_service.core.outputs import Outputs
from acker_service.core.tables import CAPACITY_MIN, LARGE, MOVED_MAX, WINDOW_FITS, Tables, new_table

ALL_SLOTS = np.full(SLOTS // 64, 2**64 - 1, np.uint64)
INDEX = 5


def roots_with_keys(keys: Column) -> Column:
    return unmix64_column(np.sort(keys))


def checked(ledger: Ledger, roots: Column) -> Sections:
    report = ledger.check(roots, None)
    assert isinstance(report, Sections)
    return report


def apply(ledger: Ledger, roots: Column, call: Callable[[Sections, slice, Outputs], None]) -> None:
    """Call ``call`` with all sections, some at a time, until all have been applied. Counts their outcomes."""
    slots, start = mix64_column(roots) >> np.uint64(54), 0
    while start < len(roots):
        stop = len(roots)
        if stop - start > ENTRIES_MAX:
            # The last section whose end is within ENTRIES_MAX.
            stop = int(np.searchsorted(slots, slots[start + ENTRIES_MAX]))
        sections, outputs = checked(ledger, roots[start:stop]), ledger.free_outputs()
        ledger.begin()
        call(sections, slice(start, stop), outputs)
        ended = int(ledger.counters[kernels.OUTCOMES])
        np.subtract.at(ledger.pending, outputs.info[:ended] & np.uint64(kernels.INDEXES - 1), 1)
        ledger.grow()
        make_tables(ledger)
        start += int(sections.starts[int(ledger.counters[kernels.SECTION])])


def make_tables(ledger: Ledger) -> None:
    for slot, cells in list(ledger.tables.wanted.items()):
        ledger.tables.replace_large(slot, new_table(cells))
    ledger.tables.go_on_moving(50)


def init(ledger: Ledger, roots: Column, vals: Column, tick: int = 0) -> None:
    def call(sections: Sections, some: slice, outputs: Outputs) -> None:
        ledger.apply_inits(sections, vals[some], ALL_SLOTS, INDEX, False, None, tick, outputs)

    apply(ledger, roots, call)


def ack(ledger: Ledger, roots: Column, vals: Column, tick: int = 0) -> None:
    def call(sections: Sections, some: slice, outputs: Outputs) -> None:
        ledger.apply_updates(sections, vals[some], NO_KINDS, NO_REASON_IDS, ALL_SLOTS, 1 << 40, tick, outputs)

    apply(ledger, roots, call)


def entries(ledger: Ledger) -> dict[int, int]:
    parts = list(ledger.dump(0))
    return {key: val for part in parts for key, val in zip(part["keys"].tolist(), part["vals"].tolist(), strict=True)}


def held(ledger: Ledger) -> dict[int, int]:
    """Return all entries, also those in old tables."""
    directory, count = ledger.tables.directory, ledger.tables.entries
    keys, vals, flags = (np.empty(count, np.uint64) for _ in range(3))
    kernels.copy_out(directory, 0, keys, vals, flags, np.empty(2 * count, np.int64))
    return dict(zip(keys.tolist(), vals.tolist(), strict=True))


class SlowLedger:
    """The ack vals of a ledger in a dict. ``started``: the keys that had their init."""

    def __init__(self) -> None:
        self.vals, self.started = dict[int, int](), set[int]()

    def init(self, keys: list[int], val: int) -> None:
        for key in keys:
            if key not in self.started:
                self.started.add(key)
                self.vals[key] = self.vals.get(key, 0) ^ val
                self._end(key)

    def ack(self, keys: list[int], vals: list[int]) -> None:
        for key, val in zip(keys, vals, strict=True):
            self.vals[key] = self.vals.get(key, 0) ^ val
            self._end(key)

    def _end(self, key: int) -> None:
        if key in self.started and not self.vals[key]:
            self.started.remove(key)
            del self.vals[key]


def crowded_keys(ledger: Ledger, chance: random.Random) -> list[int]:
    """Return keys of two slots with home cells in narrow ranges, so that probes are long, wrap around, and removals
    shift cells."""
    drawn = np.random.default_rng(chance.getrandbits(32)).integers(1, 1 << 54, 60_000, dtype=np.uint64)
    salt, width, pool = np.uint64(ledger.tables.directory[0, kernels.SALT]), (1 << 32) // 400, list[int]()
    starts = (0, (1 << 32) - width, chance.randrange((1 << 32) - width))
    for slot in chance.sample(range(SLOTS), 2):
        keys = drawn | np.uint64(slot << 54)
        homes = keys * salt >> np.uint64(32)
        pool += keys[np.any([(homes >= start) & (homes < start + width) for start in starts], axis=0)].tolist()
    return pool


@pytest.mark.parametrize("large", [LARGE, 2 * CAPACITY_MIN])
@example(seed=0)
@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=25, deadline=None, phases=[Phase.explicit, Phase.generate])
def test_entries_come_and_go_in_a_table_as_in_a_dict(large: int, seed: int) -> None:
    """With a small LARGE, sub-tables are replaced step by step."""
    chance, twin = random.Random(seed), SlowLedger()
    ledger = Ledger(1 << 30, secret=chance.getrandbits(64))
    pool, moves = crowded_keys(ledger, chance), 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("acker_service.core.tables.LARGE", large)
        patch.setattr("acker_service.core.tables.MOVED_MAX", 50)
        for _ in range(60):
            keys = np.array(sorted(chance.sample(pool, chance.randrange(1, 120))), np.uint64)
            roots = roots_with_keys(keys)
            if chance.random() < 0.4:
                init(ledger, roots, np.full(len(roots), 3, np.uint64))
                twin.init(keys.tolist(), 3)
            else:
                some = np.array([key in twin.vals or chance.random() < 0.3 for key in keys.tolist()])
                vals = np.array([chance.choice([1, 2, 3]) for _ in keys], np.uint64)[some]
                ack(ledger, roots[some], vals)
                twin.ack(keys[some].tolist(), vals.tolist())
            if chance.random() < 0.2:
                ledger.tables.fit()
                make_tables(ledger)
            moves += int(ledger.tables.directory[:SLOTS, kernels.MOVING].sum())
            assert held(ledger) == twin.vals
    # Few seeds fill no sub-table so far that it is replaced.
    assert (moves > 0) == (large < LARGE) or (seed and not moves)
    assert entries(ledger) == twin.vals
    assert not ledger.tables.directory[SLOTS:, kernels.COUNT].any()
    assert ledger.tables.entries == len(twin.vals)
    assert int(ledger.pending[INDEX]) == len(twin.started)


@pytest.mark.parametrize("pending", [100_000, 1_000_000])
def test_a_pending_root_weighs_at_most_40_bytes(pending: int) -> None:
    ledger, step = Ledger(1 << 30), pending // 20
    for start in range(1, pending, step):
        roots = roots_with_keys(mix64_column(np.arange(start, start + step, dtype=np.uint64)))
        init(ledger, roots, np.ones(len(roots), np.uint64))
        ledger.tables.fit()
    assert ledger.tables.entries == pending
    assert ledger.tables.bytes <= 40 * pending


@pytest.mark.parametrize(("burst", "times"), [(20_000, 3), (200_000, 20), (2_000_000, 300)])
def test_a_ledger_shrinks_in_the_second_window_after_a_burst_however_large(burst: int, times: int) -> None:
    ledger = Ledger(1 << 30)
    empty_bytes = ledger.tables.bytes
    roots = roots_with_keys(mix64_column(np.arange(1, burst + 1, dtype=np.uint64)))
    init(ledger, roots, np.ones(len(roots), np.uint64))
    full_bytes = ledger.tables.bytes
    ack(ledger, roots, np.ones(len(roots), np.uint64))
    assert ledger.tables.entries == 0
    for _ in range(2 * WINDOW_FITS - 1):
        ledger.tables.fit()
    assert ledger.tables.bytes == full_bytes > times * empty_bytes
    # Each call moves at most about MOVED_MAX cells.
    for _ in range(1 + full_bytes // kernels.CELL_BYTES // MOVED_MAX):
        ledger.tables.fit()
    assert ledger.tables.bytes <= 2 * empty_bytes


@pytest.mark.parametrize("pending", [0, 3, 500, 20_000])
def test_a_ledger_to_which_nothing_happens_comes_to_rest(pending: int) -> None:
    ledger = Ledger(1 << 30)
    roots = roots_with_keys(mix64_column(np.arange(1, pending + 1, dtype=np.uint64)))
    init(ledger, roots, np.ones(len(roots), np.uint64))
    for _ in range(20):
        ledger.tables.fit()
    tables = list(ledger.tables.cells)
    for _ in range(2 * WINDOW_FITS):
        ledger.tables.fit()
    assert all(now is before for now, before in zip(ledger.tables.cells, tables, strict=True))


def test_a_loaded_ledger_keeps_room_for_all_its_entries_while_it_is_fitted() -> None:
    ledger, again = Ledger(1 << 30), Ledger(1 << 30)
    roots = roots_with_keys(mix64_column(np.arange(1, 100_001, dtype=np.uint64)))
    init(ledger, roots, np.ones(len(roots), np.uint64))
    for part in ledger.dump(0):
        again.load(part, 0)
    # Check this before `fit`, which would loop for ever in a sub-table that is too small.
    directory = again.tables.directory
    assert np.all(directory[:, kernels.PEAK] >= directory[:, kernels.COUNT])
    for _ in range(100):
        again.tables.fit()
    assert entries(again) == entries(ledger)


def test_growth_moves_a_bounded_number_of_cells_at_a_time() -> None:
    """A pause for growth is bounded by the cells that one call moves in all tables, at a few ns each."""
    ledger, moved = Ledger(1 << 30), 0
    for start in range(1, 2_000_001, 100_000):
        before = ledger.tables.directory[:, kernels.ADDRESS].copy(), ledger.tables.directory[:, kernels.CAPACITY].copy()
        roots = roots_with_keys(mix64_column(np.arange(start, start + 100_000, dtype=np.uint64)))
        init(ledger, roots, np.ones(len(roots), np.uint64))
        moved = max(moved, int(before[1][before[0] != ledger.tables.directory[:, kernels.ADDRESS]].sum()))
    # Few tables grow at the same time. Moving 5 M cells would take 50 ms.
    assert moved < 2_500_000


def moves_of(ledger: Ledger, roots: Column, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Init and ack ``roots``, and return the slots whose sub-tables move meanwhile."""
    moved: list[int] = []
    move = Tables.resize

    def resize(tables: Tables, slot: int, entries: int) -> int:
        moved.append(slot)
        return move(tables, slot, entries)

    with monkeypatch.context() as patch:
        patch.setattr(Tables, "resize", resize)
        init(ledger, roots, np.ones(len(roots), np.uint64))
        ack(ledger, roots, np.ones(len(roots), np.uint64))
    return moved


def test_a_sub_table_moves_once_for_all_that_a_message_brings(monkeypatch: pytest.MonkeyPatch) -> None:
    roots = roots_with_keys(mix64_column(np.arange(1, 60_001, dtype=np.uint64)))
    moved = moves_of(Ledger(1 << 30), roots, monkeypatch)
    assert len(moved) == len(set(moved)) > SLOTS // 2


def test_a_batch_within_a_window_of_another_as_large_finds_the_room_that_one_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ledger = Ledger(1 << 30)
    first, second = (
        roots_with_keys(mix64_column(np.arange(start, start + 500_000, dtype=np.uint64))) for start in (1, 500_001)
    )
    assert len(moves_of(ledger, first, monkeypatch)) >= SLOTS
    tables = list(ledger.tables.cells)
    for _ in range(WINDOW_FITS):
        ledger.tables.fit()
    # The number of roots per slot varies a little, so a few sub-tables move.
    assert len(moves_of(ledger, second, monkeypatch)) < SLOTS // 10
    assert sum(now is not before for now, before in zip(ledger.tables.cells, tables, strict=True)) < SLOTS // 10


def test_memory_that_has_become_too_small_for_a_large_sub_table_is_asked_for_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("acker_service.core.tables.LARGE", 2 * CAPACITY_MIN)
    ledger = Ledger(1 << 30)
    tables, ones = ledger.tables, np.ones(200, np.uint64)
    roots = roots_with_keys(np.arange(1, 201, dtype=np.uint64))
    init(ledger, roots, ones)
    ack(ledger, roots, ones)
    tables.finish_moves()
    tables.resize(0, 0)
    assert set(tables.wanted) == {0}
    small = new_table(tables.wanted[0])
    # The entries still have room in the sub-table, but not in the smaller one.
    ledger.begin()
    ledger.apply_inits(checked(ledger, roots), ones, ALL_SLOTS, INDEX, False, None, 0, ledger.free_outputs())
    tables.replace_large(0, small)
    assert not tables.wanted
    assert held(ledger) == dict.fromkeys(range(1, 201), 1)


@pytest.mark.parametrize(
    ("roots", "said"),
    [
        ([0], "0 is not a root id"),
        ([0, 5], "0 is not a root id"),
        ([5, 5], "must ascend strictly"),
        (roots_with_keys(np.array([4, 9], np.uint64))[::-1].tolist(), "must ascend strictly"),
    ],
)
def test_roots_out_of_order_are_refused_with_a_sentence(roots: list[int], said: str) -> None:
    problem = Ledger(1000).check(np.array(roots, np.uint64), None)
    assert isinstance(problem, str)
    assert said in problem


def test_a_root_beyond_the_numbers_of_its_batch_is_refused() -> None:
    numbering = Numbering(1000, 10, np.zeros(1, np.uint64))
    ledger = Ledger(1000)
    within = roots_with_keys(mix64_column(mix64_column(np.arange(1000, 1010, dtype=np.uint64))))
    assert isinstance(ledger.check(within, numbering), Sections)
    for number in (999, 1010, 0):
        problem = ledger.check(mix64_column(np.array([number], np.uint64)), numbering)
        assert isinstance(problem, str)
        assert number == 0 or "below up_to" in problem


def test_a_state_with_a_root_twice_is_refused() -> None:
    ledger = Ledger(1000)
    init(ledger, roots_with_keys(np.array([7, 8], np.uint64)), np.ones(2, np.uint64))
    (state,) = ledger.dump(0)
    state["keys"][1] = state["keys"][0]
    with pytest.raises(ValueError, match="a root twice"):
        Ledger(1000).load(state, 0)


def test_a_dump_in_many_parts_is_loaded_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("acker_service.core.ledger.PART_ENTRIES", 1000)
    ledger, again = Ledger(1 << 30), Ledger(1 << 30)
    roots = roots_with_keys(mix64_column(np.arange(1, 20_001, dtype=np.uint64)))
    init(ledger, roots, roots)
    parts = list(ledger.dump(0))
    assert len(parts) > 10
    assert max(len(part["keys"]) for part in parts) < 1100
    for part in parts:
        again.load(part, 0)
    assert entries(again) == entries(ledger)
    assert again.pending.tolist() == ledger.pending.tolist()
    with pytest.raises(ValueError, match="a sub-table twice"):
        again.load(parts[0], 0)
