"""Dedupe: each section counts once, and the memory for identities is bounded."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acker_protocol.messages import Identity, Status
from acker_service.core import dedupe as dedupe_module
from acker_service.core.dedupe import CONTENT_BYTES, SEQUENCE_BYTES, SESSION_BYTES, Dedupe

CONTENT = Identity(1, 2)


def test_applied_identities_are_known_for_each_slot() -> None:
    dedupe = Dedupe(window=4, max_bytes=100 * CONTENT_BYTES)
    assert dedupe.find_applied(CONTENT, 9) == 0
    dedupe.record_applied(CONTENT, 9, 0b0110, now=0.0)
    dedupe.record_applied(CONTENT, 9, 0b1000, now=1.0)
    assert dedupe.find_applied(CONTENT, 9) == 0b1110


def test_the_same_identity_with_another_digest_is_a_conflict() -> None:
    dedupe = Dedupe(window=4, max_bytes=100 * CONTENT_BYTES)
    dedupe.record_applied(CONTENT, 9, 1, now=0.0)
    assert dedupe.find_applied(CONTENT, 8) == Status.CONFLICT


def test_a_hash_and_a_sequence_with_the_same_bits_are_two_identities() -> None:
    dedupe = Dedupe(window=4, max_bytes=100 * CONTENT_BYTES)
    dedupe.record_applied(CONTENT, 9, 1, now=0.0)
    assert dedupe.find_applied(Identity(1, 2, sequenced=True), 8) == 0


def test_looking_leaves_no_trace() -> None:
    dedupe = Dedupe(window=4, max_bytes=100 * CONTENT_BYTES)
    dedupe.find_applied(CONTENT, 9)
    dedupe.find_applied(Identity(1, 2, sequenced=True), 8)
    assert (len(dedupe), dedupe.sessions) == (0, 0)


@pytest.mark.parametrize("seed", range(20))
def test_within_the_window_sequences_are_known_and_below_it_stale_in_any_order(seed: int) -> None:
    chance, dedupe, window = random.Random(seed), Dedupe(window=8, max_bytes=1000 * CONTENT_BYTES), 8
    noted: set[int] = set()
    highest = -1
    for _ in range(300):
        sequence = max(0, highest + chance.randrange(-12, 5 if chance.random() < 0.95 else 40))
        found = dedupe.find_applied(Identity(7, sequence, sequenced=True), 1)
        if sequence <= highest - window:
            assert found == Status.STALE
            continue
        assert found == (1 if sequence in noted else 0)
        dedupe.record_applied(Identity(7, sequence, sequenced=True), 1, 1, now=0.0)
        noted.add(sequence)
        highest = max(highest, sequence)
        assert len(dedupe._sessions[7].by_sequence) <= window


def test_identities_are_forgotten_by_when_they_were_last_used() -> None:
    dedupe = Dedupe(window=4, max_bytes=100 * CONTENT_BYTES)
    for low in range(3):
        dedupe.record_applied(Identity(0, low), 9, 1, now=float(low))
        dedupe.record_applied(Identity(low, 0, sequenced=True), 9, 1, now=float(low))
    dedupe.record_applied(Identity(0, 0), 9, 2, now=5.0)
    dedupe.forget_unused(contents_before=2.0, sessions_before=2.0)
    assert dedupe.find_applied(Identity(0, 0), 9) == 3
    assert dedupe.find_applied(Identity(0, 1), 9) == 0
    assert dedupe.find_applied(Identity(0, 2), 9) == 1
    assert dedupe.sessions == 1


def test_memory_is_bounded_and_what_it_costs_is_counted() -> None:
    dedupe = Dedupe(window=4, max_bytes=100 * CONTENT_BYTES)
    for low in range(1000):
        dedupe.record_applied(Identity(0, low), 9, 1, now=0.0)
        dedupe.record_applied(Identity(low, 0, sequenced=True), 9, 1, now=0.0)
    sizes = len(dedupe) * CONTENT_BYTES, dedupe.sequences * SEQUENCE_BYTES, dedupe.sessions * SESSION_BYTES
    assert dedupe.memory_bytes == sum(sizes) <= 100 * CONTENT_BYTES < sum(sizes) + CONTENT_BYTES + SESSION_BYTES
    assert dedupe.dropped == 2000 - len(dedupe) - dedupe.sequences


def contents(count: int) -> Iterator[Identity]:
    return (Identity(large(n), large(n + count)) for n in range(count))


def sequences(window: int, count: int) -> Iterator[Identity]:
    return (Identity(large(n // window), (1 << 40) + n % window, sequenced=True) for n in range(count))


def large(number: int) -> int:
    """Return an id of 64 bits, as nearly all ids are."""
    return number + (1 << 63)


@pytest.mark.sampled(15)
@pytest.mark.slow
@pytest.mark.parametrize("count", [20_000, 30_000, 43_700])
@pytest.mark.parametrize("per_session", [0, 1, 2, 11, 64])
def test_as_much_memory_is_counted_as_identities_take(per_session: int, count: int) -> None:
    """Every id and digest has 64 bits, every map 1024, and every time is another object: the most that there can be."""
    chance, dedupe = random.Random(count), Dedupe(window=64, max_bytes=1 << 40)
    tracemalloc.start()
    for n, identity in enumerate(sequences(per_session, count) if per_session else contents(count)):
        dedupe.record_applied(identity, large(n), 1 << 1023 | chance.getrandbits(1023), n + 0.5)
    taken_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0.98 <= dedupe.memory_bytes / taken_bytes <= 1.3, (dedupe.memory_bytes, taken_bytes)


@given(st.integers(0, 1 << 32))
def test_sequences_are_counted_as_they_come_and_go(seed: int) -> None:
    chance, dedupe = random.Random(seed), Dedupe(window=4, max_bytes=30 * CONTENT_BYTES)
    for now in range(200):
        identity = Identity(chance.randrange(12), chance.randrange(1, now // 4 + 2), chance.random() < 0.7)
        if not isinstance(dedupe.find_applied(identity, 9), Status):
            dedupe.record_applied(identity, 9, 1, float(now))
        if chance.random() < 0.02:
            dedupe.forget_unused(now - 20.0, now - 20.0)
        assert dedupe.sequences == sum(len(session.by_sequence) for session in dedupe._sessions.values())
        assert dedupe.memory_bytes <= dedupe.max_bytes


def test_one_call_forgets_a_bounded_number_and_the_next_ones_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dedupe_module, "FORGOTTEN_MAX", 3)
    dedupe = Dedupe(window=4, max_bytes=100 * CONTENT_BYTES)
    for n in range(7):
        dedupe.record_applied(Identity(0, n), 9, 1, now=0.0)
        dedupe.record_applied(Identity(n, 0, sequenced=True), 9, 1, now=0.0)
    left = []
    for _ in range(3):
        dedupe.forget_unused(contents_before=1.0, sessions_before=1.0)
        left.append((len(dedupe), dedupe.sessions))
    assert left == [(4, 4), (1, 1), (0, 0)]


def test_a_state_with_too_many_identities_is_cut_down_a_bounded_number_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dedupe_module, "FORGOTTEN_MAX", 3)
    full, dedupe = Dedupe(window=4, max_bytes=1 << 20), Dedupe(window=4, max_bytes=4 * CONTENT_BYTES)
    for n in range(8):
        full.record_applied(Identity(0, n), 9, 1, now=0.0)
    for part in full.dump_contents(now=0.0):
        dedupe.load_contents(part, now=0.0)
    left = []
    for n in range(8, 12):
        dedupe.record_applied(Identity(0, n), 9, 1, now=0.0)
        left.append(len(dedupe))
    assert left == [6, 4, 4, 4]


def test_a_dumped_state_continues_after_loading() -> None:
    dedupe = Dedupe(window=4, max_bytes=100 * CONTENT_BYTES)
    dedupe.record_applied(CONTENT, 9, 1 << 1023 | 5, now=3.0)
    dedupe.record_applied(Identity(8, 40, sequenced=True), 7, 6, now=4.0)
    again = Dedupe(window=4, max_bytes=100 * CONTENT_BYTES)
    for part in dedupe.dump_contents(now=5.0):
        again.load_contents(part, now=105.0)
    for part in dedupe.dump_sessions(now=5.0):
        again.load_sessions(part, now=105.0)
    for part in dedupe.dump_sequences():
        again.load_sequences(part, now=105.0)
    assert again.find_applied(CONTENT, 9) == 1 << 1023 | 5
    assert again.find_applied(Identity(8, 40, sequenced=True), 7) == 6
    assert again.find_applied(Identity(8, 36, sequenced=True), 7) == Status.STALE
    again.forget_unused(contents_before=103.5, sessions_before=103.5)
    assert (len(again), again.sessions) == (0, 1)
