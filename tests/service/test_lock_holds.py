"""The worst requests: each hold of the shard's lock does a bounded amount of work, and other calls come in between.

The tests count what is looked at while the lock is held. They do not measure time.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from acker_protocol import ids, reports, wire
from acker_protocol.ids import Column
from acker_protocol.messages import (
    FAIL,
    Apply,
    Cause,
    Entries,
    Identity,
    InitScope,
    Limits,
    OpenBatch,
    Outcomes,
    Settle,
    Settlement,
    Status,
    Verdict,
    Watch,
)
from acker_service import shared_shard
from acker_service.core import accounts, batches, kernels, ledger, long_messages, outbox, state, tables
from acker_service.core.long_messages import RANGES_MAX
from acker_service.core.outbox import Chunk
from acker_service.core.reasons import Reasons, held_bytes
from acker_service.core.shard import Shard
from acker_service.shared_shard import SharedShard
from tests.service.caller import SESSION, acks, inits, roots_of
from tests.service.test_shard_twin import Comparison

FIRST = 1 << 40
NO_ENTRIES = Entries(np.empty(0, np.uint64), np.empty(0, np.uint64))


class Work:
    """What was looked at in each hold of the lock: numbers, cells, ranges. ``free``: what was, while it was free."""

    def __init__(self) -> None:
        self.holds: list[int] = []
        self.free = 0
        self.is_held = False

    def add(self, amount: int) -> None:
        if self.is_held:
            self.holds[-1] += amount
        else:
            self.free += amount

    def reset(self) -> None:
        self.holds, self.free = [], 0


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    """Count the work of the kernels that a request can make long."""
    work = Work()

    class CountingLock(shared_shard._MeasuredLock):
        def __enter__(self) -> None:
            super().__enter__()
            work.holds.append(0)
            work.is_held = True

        def __exit__(self, *error: object) -> None:
            work.is_held = False
            super().__exit__(*error)

    def count(name: str, amount: Callable[..., int]) -> None:
        kernel = getattr(kernels, name)

        def counted(*arguments: Any) -> Any:
            result = kernel(*arguments)
            work.add(amount(result, *arguments))
            return result

        monkeypatch.setattr(kernels, name, counted)

    count("count_within", lambda _, first, up_to, *others: up_to)
    count("find_unread", lambda stopped, seen, covered, word, *others: 64 * (stopped - word))
    count("end_roots", lambda _, place, budget, *others: budget)
    count("cover", lambda _, bits, bounds: len(bounds) // 2)
    count("check", lambda _, roots, *others: len(roots))
    count("replace_table", lambda _, directory, slot, table, address: len(table) // 3)
    count("go_on_moving", lambda moved, *others: moved)
    count("expire", lambda _, place, rows, budget, *others: int(others[-1][kernels.CELLS]))
    monkeypatch.setattr(shared_shard, "_MeasuredLock", CountingLock)
    return work


def share(**options: Any) -> SharedShard:
    now = [0.0]
    shared = SharedShard(
        Shard(incarnation=1, generation=2, **options), clock=lambda: now[0], max_watches=4, linger_s=0.0
    )
    assert shared.watch(Watch("test", SESSION, 60_000)).is_new
    return shared


def bits_of(*slots: int) -> bytes:
    bits = np.zeros(1024, np.uint8)
    bits[list(slots)] = 1
    return np.packbits(bits, bitorder="little").tobytes()


def reported(outcomes: Outcomes) -> list[tuple[int, Verdict, str]]:
    return [
        (int(root), Verdict(verdict), outcomes.reason(n))
        for n, (root, verdict) in enumerate(zip(outcomes.root_ids, outcomes.verdicts, strict=True))
    ]


# -- OpenBatch


def test_a_batch_that_cannot_fit_is_refused_without_looking_at_its_numbers(work: Work) -> None:
    shared = share(max_pending=20_000_000)
    half = OpenBatch(SESSION, 1, FIRST, 320_000_000, slots=bits_of(*range(512)))
    assert shared.open_batch(half).status == Status.INVALID
    assert shared.open_batch(OpenBatch(SESSION, 1, FIRST, 19_000_000)).status == Status.APPLIED
    eighth = OpenBatch(SESSION, 2, FIRST, 80_000_000, slots=bits_of(*range(128)))
    assert shared.open_batch(eighth).status == Status.OVERLOADED
    assert (max(work.holds), work.free) == (0, 0)


@pytest.mark.parametrize("slots", [1, 7, 300, 1023])
def test_the_bound_by_arithmetic_is_below_the_count_and_close_to_it(slots: int) -> None:
    chance = random.Random(slots)
    for _ in range(20):
        some = bits_of(*chance.sample(range(1024), slots))
        request = OpenBatch(SESSION, 1, chance.getrandbits(62), chance.randrange(200_000), slots=some)
        bits = batches.slots_of(request)
        count = batches.count_roots(request, bits, with_others=False).count
        assert count - 21 * count**0.5 - 150 <= batches.least_roots(request, bits) <= count


def test_numbers_are_counted_while_the_lock_is_free(work: Work) -> None:
    shared = share()
    request = OpenBatch(SESSION, 1, FIRST, 300_000, slots=bits_of(*range(10)))
    assert shared.open_batch(request).status == Status.APPLIED
    more = OpenBatch(SESSION, 1, FIRST, 300_000, slots=bits_of(*range(20)))
    assert shared.open_batch(more).status == Status.APPLIED
    assert shared.open_batch(more).status == Status.APPLIED
    assert (max(work.holds), work.free) == (0, 2 * 300_000)
    roots = roots_of(range(300_000), FIRST)
    assert shared.stats.reserved == np.count_nonzero(ids.mix64_column(roots) >> np.uint64(54) < 20)


def test_a_batch_that_changed_while_its_numbers_were_counted_is_looked_at_again() -> None:
    shard = Shard(incarnation=1, generation=2, max_pending=3000)
    shard.watch(Watch("test", SESSION, 60_000), 0.0)
    meanwhile: list[Callable[[], Any]] = []

    @contextmanager
    def unlocked() -> Iterator[None]:
        if meanwhile:
            meanwhile.pop()()
        yield

    shard.unlocked = unlocked
    evens, odds = bits_of(*range(0, 1024, 2)), bits_of(*range(1, 1024, 2))

    def ask(slots: bytes) -> Status:
        return shard.open_batch(OpenBatch(SESSION, 1, FIRST, 2000, slots=slots), 0.0).status

    assert ask(evens) == Status.APPLIED
    meanwhile.append(lambda: ask(odds))
    assert ask(b"\xff" * 128) == Status.APPLIED
    assert shard.stats.reserved == 2000
    # Another session, whose batch is opened or settled, or which closes while numbers are counted.
    shard.watch(Watch("test", 8, 60_000), 0.0)
    other = OpenBatch(8, 1, 5 * FIRST, 1500, slots=evens)
    meanwhile.append(lambda: shard.open_batch(OpenBatch(SESSION, 2, 3 * FIRST, 900), 0.0))
    assert shard.open_batch(other, 0.0).status == Status.OVERLOADED
    meanwhile.append(lambda: shard.watch(Watch("test", 8, 60_000, close=True), 0.0))
    assert shard.open_batch(OpenBatch(8, 1, 5 * FIRST, 10, slots=evens), 0.0).status == Status.UNKNOWN_SOURCE
    meanwhile.append(lambda: shard.settle([Settle(SESSION, 3, Settlement.DONE)], 0.0))
    assert shard.open_batch(OpenBatch(SESSION, 3, 7 * FIRST, 10, slots=evens), 0.0).status == Status.APPLIED


# -- Apply


@pytest.mark.slow
def test_a_million_ranges_are_sorted_outside_the_lock_and_covered_in_few_passes(work: Work) -> None:
    shared = share()
    shared.open_batch(OpenBatch(SESSION, 1, FIRST, 2_000_000))
    starts = np.random.default_rng(1).permutation(np.arange(0, 2_000_000, 2, dtype=np.uint64))
    scope = InitScope(SESSION, 1, np.stack([starts, starts + np.uint64(1)], axis=1))
    with pytest.MonkeyPatch.context() as patch:
        argsort = np.argsort
        patch.setattr(np, "argsort", lambda *columns: work.add(1) or argsort(*columns))
        work.reset()
        assert shared.apply(Apply(Identity(1, 1), 0, NO_ENTRIES, scope)).status == Status.APPLIED
    assert (max(work.holds), sum(work.holds), work.free) == (RANGES_MAX, 1_000_000, 1)
    assert shared.settle(Settle(SESSION, 1, Settlement.DONE)).roots == 1_000_000


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 200)).map(sorted), max_size=30))
def test_any_ranges_in_any_order_cover_their_numbers(ranges: list[list[int]]) -> None:
    request = OpenBatch(SESSION, 1, FIRST, 201)
    batch = batches.BatchState.of(request, 201, 1, 0.0)
    batch.cover(np.array(ranges, np.uint64).reshape(-1, 2))
    unread = set(range(201)) - {number for start, stop in ranges for number in range(start, stop)}
    roots = np.empty(256, np.uint64)
    count, words = batch.find_unread(roots)
    assert words == len(batch.seen)
    assert ids.unmix64_column(roots[:count]).tolist() == [FIRST + number for number in sorted(unread)]


def test_more_reasons_than_a_message_can_use_are_refused_before_they_are_read() -> None:
    roots = roots_of(range(3))
    fails = np.full(3, FAIL, np.uint8)

    def decode(reasons: int) -> Apply:
        message = wire.encode(Apply(Identity(1, 1), 0, Entries(roots, roots, fails, np.zeros(3, np.uint32), ("bad",))))
        return wire.decode(Apply, message.SerializeToString() + b"\x42\x00" * (reasons - 1))

    assert len(decode(wire.REASONS_UNUSED).entries.reasons) == wire.REASONS_UNUSED
    with pytest.raises(wire.Malformed, match="reasons: 4097 for 3 fails"):
        decode(wire.REASONS_UNUSED + 1)


# -- large reports


def keys_of_one_slot(count: int, seed: int = 1) -> Column:
    """Return keys (mix64 of roots) of slot 9, in ascending order."""
    keys = np.random.default_rng(seed).integers(1, 1 << 54, count, dtype=np.uint64)
    return np.unique(keys) | np.uint64(9 << 54)


def report_of(keys: Column, sequence: int, *, of_source: bool = False) -> Apply:
    """Return a report with the init or the ack of each root."""
    roots = ids.unmix64_column(keys)
    scope = InitScope(SESSION, 0) if of_source else None
    return Apply(Identity(5, sequence, sequenced=True), sequence, Entries(roots, roots), scope)


def test_a_report_for_which_tables_must_grow_is_applied_in_parts(work: Work) -> None:
    shared, outcomes = share(), 0
    for sequence in range(4):
        keys = np.unique(np.random.default_rng(sequence).integers(1, 1 << 63, 200_000, dtype=np.uint64) << np.uint64(1))
        work.reset()
        assert shared.apply(report_of(keys, 2 * sequence, of_source=True)).status == Status.APPLIED
        assert shared.apply(report_of(keys, 2 * sequence, of_source=True)).status == Status.DUPLICATE
        assert max(work.holds) <= ledger.ENTRIES_MAX + 2 * tables.MOVED_MAX
        assert len(work.holds) > 8
        assert shared.apply(report_of(keys[::2], 2 * sequence + 1)).status == Status.APPLIED
        outcomes += len(keys[::2])
    assert shared.stats.acked == shared.stats.unconfirmed == outcomes


def test_the_table_of_one_slot_grows_and_shrinks_in_steps(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "LARGE", 1000)
    monkeypatch.setattr(tables, "MOVED_MAX", 3000)
    monkeypatch.setattr("acker_service.core.shard.MOVED_MAX", 3000)
    shared, keys = share(), keys_of_one_slot(40_000)
    chance, parts = random.Random(1), np.array_split(np.random.default_rng(2).permutation(keys), 80)
    for sequence, part in enumerate(parts):
        assert shared.apply(report_of(np.sort(part), sequence, of_source=True)).status == Status.APPLIED
        if not chance.randrange(5):
            shared.tick()
    most_bytes = shared.stats.ledger_bytes
    # A section with the cells that it moves, and those that a tick or a wait moves.
    assert max(work.holds) <= 500 + 4 * 500 + 3000
    assert shared.stats.pending == 40_000
    for sequence, part in enumerate(parts):
        assert shared.apply(report_of(np.sort(part), 100 + sequence)).status == Status.APPLIED
    assert shared.stats.acked == 40_000
    for _ in range(2 * tables.WINDOW_FITS + 200):
        shared.tick()
    assert shared.stats.ledger_bytes < most_bytes / 10
    assert max(work.holds) <= 500 + 4 * 500 + 3000
    roots = shared.watch(Watch("test", SESSION, 60_000)).outcomes.root_ids
    assert np.array_equal(np.sort(ids.mix64_column(roots)), np.sort(keys))


def test_roots_of_one_slot_that_time_out_together_do_so_in_steps(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("acker_service.core.shard.EXPIRE_CELLS", 2000)
    clock = [0.0]
    shared = SharedShard(Shard(incarnation=1, generation=2), clock=lambda: clock[0], max_watches=4, linger_s=0.0)
    shared.watch(Watch("test", SESSION, 60_000, Limits(1000)))
    keys = keys_of_one_slot(20_000)
    shared.apply(report_of(keys, 1, of_source=True))
    work.reset()
    for _ in range(40):
        clock[0] += 0.1
        shared.tick()
    assert 0 < max(work.holds) <= 2000
    assert shared.stats.timed_out == len(keys)


def test_a_caller_cannot_choose_roots_that_collide() -> None:
    """Before, the home of a root was 32 bits of its key. A report of 30,000 roots with equal bits took 0.5 s."""
    keys = np.uint64(9 << 54) | np.uint64(77 << 22) | np.arange(1, 30_000, dtype=np.uint64)
    for secret in range(20):
        shard = Shard(incarnation=1, generation=2, secret=secret * 0x9E3779B97F4A7C15)
        shard.watch(Watch("test", SESSION, 60_000), 0.0)
        assert shard.apply(report_of(keys, 1, of_source=True), 0.0).status == Status.APPLIED
        directory = shard._state.ledger.tables.directory[9]
        salt, capacity = np.uint64(directory[kernels.SALT]), int(directory[kernels.CAPACITY])
        found = shard._state.ledger.tables.cells[9].reshape(-1, 3)[:, 0]
        cells = np.flatnonzero(found)
        homes = ((found[cells] * salt >> np.uint64(32)) * np.uint64(capacity) >> np.uint64(32)).astype(np.int64)
        probes = (cells - homes) % capacity
        assert probes.mean() < 30, secret


def test_too_many_roots_of_one_slot_in_a_report_are_refused() -> None:
    shared = share()
    for count in (ledger.SECTION_MAX + 1, ledger.ENTRIES_MAX + 1):
        reply = shared.apply(report_of(keys_of_one_slot(2 * count)[:count], count, of_source=True))
        assert (reply.status, shared.stats.pending) == (Status.INVALID, 0)
        assert "a slot has more than 32768 roots" in reply.detail
    keys = keys_of_one_slot(2 * ledger.SECTION_MAX)[: ledger.SECTION_MAX]
    assert shared.apply(report_of(keys, 1, of_source=True)).status == Status.APPLIED


def test_a_long_message_that_is_malformed_at_its_end_changes_nothing() -> None:
    shared = share()
    shared.open_batch(OpenBatch(SESSION, 1, FIRST, 200_000, slots=bits_of(*range(1023))))
    keys = np.sort(ids.mix64_column(roots_of(range(200_000), FIRST)))
    here = keys[keys >> np.uint64(54) < 1023]
    scope, identity = InitScope(SESSION, 1), Identity(5, 1)
    wrong = {
        "must ascend strictly": np.concatenate([here, here[-1:]]),
        "not a number below up_to": np.concatenate([here, here[-1:] + np.uint64(1)]),
        "slot 1023 of this batch": keys,
    }
    for detail, some in wrong.items():
        roots = ids.unmix64_column(some)
        reply = shared.apply(Apply(identity, 1, Entries(roots, roots), scope))
        assert (reply.status, shared.stats.pending) == (Status.INVALID, 0)
        assert detail in reply.detail
    roots = ids.unmix64_column(here)
    wide = InitScope(SESSION, 1, np.array([[0, 200_001]], np.uint64))
    assert shared.apply(Apply(identity, 1, Entries(roots, roots), wide)).status == Status.INVALID
    assert shared.stats.pending == 0
    assert shared.apply(Apply(identity, 1, Entries(roots, roots), scope)).status == Status.APPLIED
    assert shared.stats.pending == len(here)


@pytest.mark.long
@given(
    st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 5000)).map(sorted), min_size=1, max_size=30),
    st.integers(1, 5),
    st.sampled_from([1, 7, 100, 10_000]),
)
def test_ranges_that_are_cut_hold_the_same_numbers(ranges: list[list[int]], most: int, numbers: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_messages, "RANGES_MAX", most)
        patch.setattr(long_messages, "NUMBERS_MAX", numbers)
        parts = list(long_messages._cut_ranges(np.array(ranges, np.uint64).reshape(-1, 2)))
    held = [list(range(int(start), int(stop))) for part in parts for start, stop in part]
    assert sorted(itertools.chain(*held)) == sorted({n for start, stop in ranges for n in range(start, stop)})
    assert all(len(part) <= most for part in parts)
    assert all(int((part[:, 1] - part[:, 0]).sum()) <= numbers for part in parts)


@pytest.mark.parametrize("session", [SESSION, SESSION + 1])
def test_ranges_for_a_batch_that_is_not_open_are_not_looked_at(work: Work, session: int) -> None:
    shared, roots = share(), np.sort(roots_of(range(1)))
    wide = InitScope(session, 1, np.array([[1 << 63, 0], [0, 1 << 63]], np.uint64))
    expected = Status.UNKNOWN_BATCH if session == SESSION else Status.UNKNOWN_SOURCE
    for entries in (NO_ENTRIES, Entries(roots, roots)):
        assert shared.apply(Apply(Identity(1, 1), 0, entries, wide)).status == expected
    assert (max(work.holds), work.free) == (0, 1)


def test_outcomes_of_many_sources_are_passed_on_in_steps(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts, "GROUPS_A_STEP", 10)
    shared, sessions = share(), range(100, 300)
    roots = roots_of(range(len(sessions)))
    for session, root in zip(sessions, roots, strict=True):
        shared.watch(Watch("one of many", session, 60_000))
        shared.apply(inits(root.reshape(1), session, session=session))
    between = Between(shared.shard, iter([lambda: shared.shard.stats.pending for _ in range(3)]))
    assert shared.apply(acks(roots, 1)).status == Status.APPLIED
    assert between.pauses >= len(sessions) // 10 - 1
    for session, root in zip(sessions, roots, strict=True):
        assert reported(shared.watch(Watch("one of many", session, 60_000)).outcomes) == [(root, Verdict.ACKED, "")]


def test_a_source_may_close_while_the_outcomes_of_others_are_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts, "GROUPS_A_STEP", 1)
    shard = shard_with(OpenBatch(SESSION, 1, FIRST, 3, held=False))
    shard.watch(Watch("other", 8, 60_000), 0.0)
    numbered, own, other = roots_of(range(3), FIRST), roots_of([7]), roots_of([8])
    shard.apply(inits(numbered, 0, batch=1), 0.0)
    shard.apply(inits(own, 1), 0.0)
    shard.apply(inits(other, 2, session=8, sender=8), 0.0)
    pending: list[int] = []

    def settle_and_close() -> None:
        pending.append(shard.stats.pending)
        # What has no outcome yet is still pending, so a settlement ends it or waits for it.
        assert shard.settle([Settle(SESSION, 1, Settlement.ABANDON)], 0.0)[0].roots == 3
        shard.watch(Watch("test", SESSION, 60_000, close=True), 0.0)

    Between(shard, iter([settle_and_close]))
    shard.apply(acks(np.concatenate([numbered, own, other]), 3), 0.0)
    assert 0 < pending[0] < 5
    stats = shard.stats
    assert (stats.pending, stats.reserved, stats.unconfirmed, stats.sources) == (0, 0, 1, 1)
    assert len(shard.watch(Watch("other", 8, 60_000), 0.0).outcomes) == 1


@pytest.mark.parametrize("known", [True, False])
def test_of_very_many_reasons_a_bounded_number_is_looked_at_in_a_hold(
    known: bool, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    for owner, name in ((Chunk, "reason_id"), (Reasons, "id_of")):
        real = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda self, text, real=real: work.add(1) or real(self, text))
    shared, keys = share(), np.sort(np.random.default_rng(1).permutation(ids.mix64_column(roots_of(range(30_000)))))
    if known:
        shared.apply(report_of(keys, 1, of_source=True))
    roots = ids.unmix64_column(keys)
    texts = tuple(f"reason {n}" for n in range(len(keys)))
    fails = Entries(roots, roots, np.full(len(keys), FAIL, np.uint8), np.arange(len(keys), dtype=np.uint32), texts)
    work.reset()
    assert shared.apply(Apply(Identity(5, 2, sequenced=True), 2, fails)).status == Status.APPLIED
    assert 0 < max(work.holds) <= 2 * ledger.ENTRIES_MAX + outbox.REASONS_MAX
    if known:
        outcomes = shared.watch(Watch("test", SESSION, 60_000)).outcomes
        assert len(outcomes) == len(keys)
        assert {outcome.reason for outcome in outcomes} > {"reason 1", outbox.DROPPED_REASON}


# -- steps


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_steps(monkeypatch)


def shorten_steps(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ledger, "SWEEP_CELLS", 700)
    patch.setattr(ledger, "OUTCOMES_MAX", 20)
    patch.setattr(batches, "UNREAD_WORDS", 2)
    patch.setattr(state, "UNREAD_WORDS", 2)
    patch.setattr(state, "SOURCES_A_STEP", 1)
    patch.setattr(accounts, "GROUPS_A_STEP", 1)
    patch.setattr(long_messages, "ENTRIES_MAX", 4)
    patch.setattr(long_messages, "FAILS_MAX", 2)
    patch.setattr(long_messages, "RANGES_MAX", 2)
    patch.setattr(ledger, "MOVED_MAX", 100)
    patch.setattr(tables, "MOVED_MAX", 2000)
    patch.setattr(tables, "LARGE", 10)


@pytest.mark.slow
def test_the_unread_numbers_of_a_large_batch_are_found_piece_by_piece(work: Work) -> None:
    shared = share()
    shared.open_batch(OpenBatch(SESSION, 1, FIRST, 60_000_000, slots=bits_of(5)))
    work.reset()
    reply = shared.settle(Settle(SESSION, 1, Settlement.DONE))
    assert 58_000 < reply.roots == reply.cursor < 60_000
    assert max(work.holds) <= 64 * batches.UNREAD_WORDS
    assert sum(work.holds) < 60_000_064


def test_many_batches_that_are_settled_together_are_settled_piece_by_piece(work: Work) -> None:
    shared = share()
    for number in range(1, 9):
        shared.open_batch(OpenBatch(SESSION, number, number * FIRST, 1_000_000, slots=bits_of(5)))
    work.reset()
    with shared._lock:
        shared.shard.settle([Settle(SESSION, number, Settlement.DONE) for number in range(1, 9)], 0.0)
    assert len(work.holds) >= 3
    assert max(work.holds) <= 2 * 64 * batches.UNREAD_WORDS


@pytest.mark.sampled(4)
@pytest.mark.parametrize("ends", ["done", "abandon", "close", "lease"])
def test_a_large_batch_ends_piece_by_piece(work: Work, small_steps: None, ends: str) -> None:
    clock = [0.0]
    shared = SharedShard(
        Shard(incarnation=1, generation=2), clock=lambda: clock[0], max_watches=4, linger_s=0.0, since=0.0
    )
    shared.watch(Watch("test", SESSION, 1000))
    shared.open_batch(OpenBatch(SESSION, 1, FIRST, 5000, held=True))
    shared.apply(inits(roots_of(range(5000), FIRST), 0, batch=1))
    work.reset()
    if ends == "close":
        shared.watch(Watch("test", SESSION, 1000, close=True))
    elif ends == "lease":
        for _ in range(12):
            clock[0] += 0.1
            shared.tick()
    else:
        assert shared.settle(Settle(SESSION, 1, Settlement[ends.upper()])).roots == 5000
    assert len(work.holds) > 8
    assert 0 < max(work.holds) <= ledger.SWEEP_CELLS + 2 * 64 * batches.UNREAD_WORDS
    stats = shared.stats
    assert (stats.pending, stats.reserved, stats.open_batches) == (0, 0, 0)
    assert stats.unconfirmed == (5000 if ends in ("done", "abandon") else 0)


# -- other calls between steps


class Between:
    """Makes a call in each pause of a shard. ``calls``: what to call, in turn; a pause within a call is left out."""

    def __init__(self, shard: Shard, calls: Iterator[Callable[[], Any]]) -> None:
        self.pauses = 0
        self._calls, self._is_inside = calls, False
        shard.unlocked = self

    @contextmanager
    def __call__(self) -> Iterator[None]:
        self.pauses += 1
        if not self._is_inside:
            self._is_inside = True
            next(self._calls, lambda: None)()
            self._is_inside = False
        yield


def shard_with(*requests: OpenBatch) -> Shard:
    shard = Shard(incarnation=1, generation=2)
    shard.watch(Watch("test", SESSION, 60_000), 0.0)
    for request in requests:
        assert shard.open_batch(request, 0.0).status == Status.APPLIED
    return shard


@given(st.integers(0, 1 << 32))
@settings(max_examples=40, deadline=None, phases=[Phase.generate])
def test_any_calls_between_the_steps_of_a_settlement_leave_one_right_outcome_a_root(seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        shorten_steps(patch)
        check_settlement(random.Random(seed))


def check_settlement(chance: random.Random) -> None:
    how, numbers, up_to = chance.choice(list(Settlement)), range(300), 1000
    shard = shard_with(OpenBatch(SESSION, 1, FIRST, up_to, held=True))
    roots = roots_of(range(up_to), FIRST)
    sequences = iter(range(1, 10_000))
    shard.apply(inits(roots[numbers.start : numbers.stop], 0, batch=1), 0.0)
    done, failed, acked_late = set(chance.sample(numbers, 150)), set[int](), set[int]()
    shard.apply(acks(roots[sorted(done)], next(sequences)), 0.0)
    statuses: list[Status] = []

    def ack() -> None:
        number = chance.choice(numbers)
        if number not in done | acked_late:
            acked_late.add(number)
            assert shard.apply(acks(roots[[number]], next(sequences)), 0.0).status == Status.APPLIED

    def fail() -> None:
        number = chance.choice(numbers)
        failed.add(number)
        zero, kind = np.zeros(1, np.uint64), np.full(1, FAIL, np.uint8)
        entries = reports.fold_updates(roots[[number]], zero, kind, {int(roots[number]): "bad"})
        shard.apply(reports.pack(Identity(SESSION, next(sequences), sequenced=True), entries)[0], 0.0)

    def init() -> None:
        late = inits(roots[[chance.randrange(300, up_to)]], next(sequences), batch=1)
        statuses.append(shard.apply(late, 0.0).status)

    def cover() -> None:
        scope = InitScope(SESSION, 1, np.array([[300, up_to]], np.uint64))
        identity = Identity(SESSION, next(sequences), sequenced=True)
        statuses.append(shard.apply(Apply(identity, 0, NO_ENTRIES, scope), 0.0).status)

    def extend() -> None:
        request = OpenBatch(SESSION, 1, FIRST, up_to, True, slots=bits_of(3))
        statuses.append(shard.open_batch(request, 0.0).status)

    def restart() -> None:
        restored = Shard.restore(list(shard.dump(0.0)), incarnation=3, now=0.0)
        again.append(restored.settle([Settle(SESSION, 1, how)], 0.0)[0].status)
        told.append(reported(restored.watch(Watch("test", SESSION, 60_000), 0.0).outcomes))

    def settle() -> None:
        again.append(shard.settle([Settle(SESSION, 1, how)], 0.0)[0].status)
        other = Settlement.DONE if how == Settlement.ABANDON else Settlement.ABANDON
        statuses.append(shard.settle([Settle(SESSION, 1, other)], 0.0)[0].status)

    again: list[Status] = []
    told: list[list[tuple[int, Verdict, str]]] = []
    kinds = [ack, ack, fail, init, cover, extend, chance.choice([restart, settle, ack])]
    between = Between(shard, iter([chance.choice(kinds) for _ in range(chance.choice([5, 1000]))]))
    [reply] = shard.settle([Settle(SESSION, 1, how)], 0.0)
    assert between.pauses
    assert reply.status == Status.APPLIED
    assert set(again) <= {Status.APPLIED}
    assert set(statuses) <= {Status.UNKNOWN_BATCH, Status.CONFLICT}
    watched = shard.watch(Watch("test", SESSION, 60_000), 0.0)
    told.append(reported(watched.outcomes))
    assert reply.roots == up_to == watched.cursor <= reply.cursor
    for outcomes in told:
        assert sorted(root for root, _, _ in outcomes) == sorted(roots.tolist())
        verdicts = {root: (verdict, reason) for root, verdict, reason in outcomes}
        for number, root in enumerate(roots.tolist()):
            allowed = {(Verdict.LOST, "unread")}
            if number in numbers:
                untouched = (Verdict.ACKED, "") if number in done else (Verdict.FAILED, "unfinished")
                allowed = {(Verdict.LOST, "abandoned")} if how == Settlement.ABANDON else {untouched}
                if number in acked_late and how == Settlement.DONE:
                    allowed.add((Verdict.ACKED, ""))
                if number in failed:
                    allowed.add((Verdict.FAILED, "bad"))
            assert verdicts[root] in allowed
    stats = shard.stats
    assert (stats.pending, stats.reserved, stats.unconfirmed, stats.open_batches) == (0, 0, up_to, 0)
    shard.watch(Watch("test", SESSION, 60_000, close=True), 0.0)
    room = shard._state.room
    held = (room.outcomes, room.reasons, room.pins, room.maps, room.sources)
    # The reason of a fail that came late stays for a while, if its root is not known any more.
    late = sum(map(held_bytes, shard._state.reasons._ids))
    assert [each.bytes for each in held] == [0, late, 0, 0, 0], "what is counted is released exactly once"


def test_a_settlement_counts_what_its_batch_had_when_its_last_step_ended(small_steps: None) -> None:
    shard = shard_with(OpenBatch(SESSION, 1, FIRST, 1000, held=False))
    roots = roots_of(range(1000), FIRST)
    shard.apply(inits(roots[:300], 0, batch=1), 0.0)
    Between(shard, iter([lambda: shard.apply(acks(roots[:100], 1), 0.0)]))
    [reply] = shard.settle([Settle(SESSION, 1, Settlement.DONE)], 0.0)
    assert (reply.roots, reply.cursor) == (800, 800)
    assert shard.watch(Watch("test", SESSION, 60_000), 0.0).cursor == 800
    assert shard.stats.pending == 200


def test_a_source_that_comes_back_while_it_is_dropped_starts_anew(small_steps: None) -> None:
    request = OpenBatch(SESSION, 1, FIRST, 1000, held=False)
    shard = shard_with(request)
    old = roots_of(range(1000), FIRST)
    shard.apply(inits(old, 0, batch=1), 0.0)

    def come_back() -> None:
        assert shard.watch(Watch("test", SESSION, 60_000), 0.0).is_new
        shard.open_batch(OpenBatch(SESSION, 1, 2 * FIRST, 10, held=False), 0.0)
        shard.apply(inits(roots_of(range(10), 2 * FIRST), 1, batch=1), 0.0)

    def end_old_roots() -> None:
        shard.apply(acks(old, 2), 0.0)

    between = Between(shard, iter([come_back, end_old_roots]))
    shard.watch(Watch("test", SESSION, 60_000, close=True), 0.0)
    assert between.pauses >= 2
    stats = shard.stats
    assert (stats.pending, stats.reserved, stats.unconfirmed, stats.open_batches) == (10, 0, 0, 1)
    assert (stats.sources, stats.roots_dropped) == (1, 1000)
    shard.apply(acks(roots_of(range(10), 2 * FIRST), 3), 0.0)
    outcomes = shard.watch(Watch("test", SESSION, 60_000), 0.0).outcomes
    assert {verdict for _, verdict, _ in reported(outcomes)} == {Verdict.ACKED}
    assert shard.settle([Settle(SESSION, 1, Settlement.DONE)], 0.0)[0].status == Status.APPLIED


def test_a_source_whose_batch_is_being_settled_may_be_dropped(small_steps: None) -> None:
    shard = shard_with(OpenBatch(SESSION, 1, FIRST, 3000, held=True))
    shard.apply(inits(roots_of(range(1000), FIRST), 0, batch=1), 0.0)
    Between(shard, iter([lambda: shard.watch(Watch("test", SESSION, 60_000, close=True), 0.0)]))
    assert shard.settle([Settle(SESSION, 1, Settlement.DONE)], 0.0)[0].status == Status.UNKNOWN_SOURCE
    stats = shard.stats
    assert (stats.pending, stats.reserved, stats.unconfirmed, stats.open_batches) == (0, 0, 0, 0)


def test_a_lease_that_is_renewed_while_others_are_dropped_goes_on(small_steps: None) -> None:
    shard = Shard(incarnation=1, generation=2)
    for session in (1, 2, 3):
        shard.watch(Watch(f"source {session}", session, 1000), 0.0)
    between = Between(shard, iter([lambda: shard.watch(Watch("source 3", 3, 1000), 5.0)]))
    shard.tick(5.0)
    assert between.pauses
    assert [shard.name_of(session) for session in (1, 2, 3)] == [None, None, "source 3"]
    assert shard.stats.leases_expired == 2


def test_a_source_that_opens_while_others_are_dropped_keeps_its_roots(small_steps: None) -> None:
    """It may get the batch index of a source that has just been dropped."""
    shard = Shard(incarnation=1, generation=2)
    for session in range(1, 5):
        shard.watch(Watch(f"source {session}", session, 1000), 0.0)
    shard.watch(Watch("test", SESSION, 60_000), 0.0)

    def open_another() -> None:
        # The outcome of this tree makes the shard release closed batches.
        shard.apply(inits(roots_of([0]), 0), 5.0)
        shard.apply(acks(roots_of([0]), 1), 5.0)
        shard.watch(Watch("another", 9, 60_000), 5.0)
        shard.apply(inits(roots_of(range(1, 100)), 0, session=9), 5.0)

    Between(shard, iter([open_another]))
    shard.tick(5.0)
    shard.apply(inits(roots_of(range(200, 300)), 2), 5.0)
    # The next sweep.
    shard.watch(Watch("test", SESSION, 60_000, close=True), 5.0)
    assert shard.stats.pending == 99
    shard.apply(acks(roots_of(range(1, 100)), 1, sender=9), 5.0)
    assert len(shard.watch(Watch("another", 9, 60_000), 5.0).outcomes) == 99


def test_orphans_that_come_while_roots_time_out_are_not_counted_as_expired(small_steps: None) -> None:
    shard = Shard(incarnation=1, generation=2, orphan_timeout_s=2.0)
    shard.watch(Watch("test", SESSION, 60_000, Limits(1000)), 0.0)
    shard.apply(inits(roots_of(range(500)), 0), 0.0)
    shard.apply(acks(roots_of(range(2000, 2020)), 1), 0.0)
    between = Between(shard, iter([lambda: shard.apply(acks(roots_of(range(1000, 1100)), 2), 5.0)]))
    shard.tick(5.0)
    assert between.pauses
    assert (shard.stats.orphans, shard.stats.orphans_expired) == (100, 20)


def test_many_roots_that_time_out_at_once_are_reported_piece_by_piece(small_steps: None) -> None:
    shard = Shard(incarnation=1, generation=2)
    shard.watch(Watch("test", SESSION, 60_000, Limits(1000)), 0.0)
    shard.apply(inits(roots_of(range(3000)), 0), 0.0)
    between = Between(shard, iter([]))
    shard.tick(5.0)
    assert between.pauses > 10
    outcomes = shard.watch(Watch("test", SESSION, 60_000, Limits(1000)), 5.0).outcomes
    assert len(outcomes) == 3000
    assert set(outcomes.reasons) == {Cause.MESSAGE_TIMEOUT}


@pytest.mark.long
@given(st.integers(0, 1 << 32))
@settings(max_examples=10, deadline=None, phases=[Phase.generate])
def test_any_calls_in_small_steps_agree_with_the_simple_twin(seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        shorten_steps(patch)
        comparison = Comparison(random.Random(seed))
        for n in range(100):
            comparison.step()
            if n == 50:
                comparison.restart()
        comparison.compare_outcomes()


def test_a_root_that_moves_between_two_steps_of_a_sweep_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """All roots in one sub-table: the steps end in its middle, and other roots end and move its cells."""
    monkeypatch.setattr(ledger, "SWEEP_CELLS", 50)
    some = one_slot(FIRST, 600)
    shard = shard_with(OpenBatch(SESSION, 1, FIRST, 1 << 20, held=True))
    others = one_slot(5 * FIRST, 600)
    shard.apply(inits(others, 0), 0.0)
    shard.apply(inits(some, 1, batch=1), 0.0)
    chance = random.Random(1)
    order = chance.sample(range(600), 600)
    calls = (lambda n=n: shard.apply(acks(others[[order[n]]], 2 + n), 0.0) for n in range(600))
    between = Between(shard, calls)
    scope = InitScope(SESSION, 1, np.array([[0, 1 << 20]], np.uint64))
    shard.apply(Apply(Identity(5, 5), 0, NO_ENTRIES, scope), 0.0)
    assert shard.settle([Settle(SESSION, 1, Settlement.ABANDON)], 0.0)[0].roots == 600
    assert between.pauses > 20
    outcomes = reported(shard.watch(Watch("test", SESSION, 60_000), 0.0).outcomes)
    assert sorted(root for root, verdict, _ in outcomes if verdict == Verdict.LOST) == sorted(some.tolist())


def one_slot(first: int, count: int) -> Column:
    """Return ``count`` roots of one slot, from the numbers after ``first``: uint64."""
    roots = roots_of(range(1 << 20), first)
    some: Column = roots[ids.mix64_column(roots) >> np.uint64(54) == 9][:count]
    return some
