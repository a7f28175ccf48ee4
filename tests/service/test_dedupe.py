"""Dedupe: each section counts once, and the memory for identities is bounded."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acker_protocol.messages import Identity, Status
from acker_service.core.dedupe import IDENTITY_BYTES, Dedupe

CONTENT = Identity(1, 2)


def test_applied_identities_are_known_for_each_slot() -> None:
    dedupe = Dedupe(window=4, identities_max=100)
    assert dedupe.find_applied(CONTENT, 9) == 0
    dedupe.record_applied(CONTENT, 9, 0b0110, now=0.0)
    dedupe.record_applied(CONTENT, 9, 0b1000, now=1.0)
    assert dedupe.find_applied(CONTENT, 9) == 0b1110


def test_the_same_identity_with_another_digest_is_a_conflict() -> None:
    dedupe = Dedupe(window=4, identities_max=100)
    dedupe.record_applied(CONTENT, 9, 1, now=0.0)
    assert dedupe.find_applied(CONTENT, 8) == Status.CONFLICT


def test_a_hash_and_a_sequence_with_the_same_bits_are_two_identities() -> None:
    dedupe = Dedupe(window=4, identities_max=100)
    dedupe.record_applied(CONTENT, 9, 1, now=0.0)
    assert dedupe.find_applied(Identity(1, 2, sequenced=True), 8) == 0


def test_looking_leaves_no_trace() -> None:
    dedupe = Dedupe(window=4, identities_max=100)
    dedupe.find_applied(CONTENT, 9)
    dedupe.find_applied(Identity(1, 2, sequenced=True), 8)
    assert (len(dedupe), dedupe.sessions) == (0, 0)


@pytest.mark.parametrize("seed", range(20))
def test_within_the_window_sequences_are_known_and_below_it_stale_in_any_order(seed: int) -> None:
    chance, dedupe, window = random.Random(seed), Dedupe(window=8, identities_max=1000), 8
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
    dedupe = Dedupe(window=4, identities_max=100)
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
    dedupe = Dedupe(window=4, identities_max=100)
    for low in range(1000):
        dedupe.record_applied(Identity(0, low), 9, 1, now=0.0)
        dedupe.record_applied(Identity(low, 0, sequenced=True), 9, 1, now=0.0)
    assert len(dedupe) + dedupe.sequences == 100
    assert dedupe.dropped == 1900
    assert dedupe.memory_bytes == 100 * IDENTITY_BYTES


@given(st.integers(0, 1 << 32))
def test_sequences_are_counted_as_they_come_and_go(seed: int) -> None:
    chance, dedupe = random.Random(seed), Dedupe(window=4, identities_max=30)
    for now in range(200):
        identity = Identity(chance.randrange(12), chance.randrange(1, now // 4 + 2), chance.random() < 0.7)
        if not isinstance(dedupe.find_applied(identity, 9), Status):
            dedupe.record_applied(identity, 9, 1, float(now))
        if chance.random() < 0.02:
            dedupe.forget_unused(now - 20.0, now - 20.0)
        assert dedupe.sequences == sum(len(session.by_sequence) for session in dedupe._sessions.values())
        assert len(dedupe) + dedupe.sequences <= 30


def test_a_dumped_state_continues_after_loading() -> None:
    dedupe = Dedupe(window=4, identities_max=100)
    dedupe.record_applied(CONTENT, 9, 1 << 1023 | 5, now=3.0)
    dedupe.record_applied(Identity(8, 40, sequenced=True), 7, 6, now=4.0)
    again = Dedupe(window=4, identities_max=100)
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
