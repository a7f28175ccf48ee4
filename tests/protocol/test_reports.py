"""Reports against simple models: folding and packing lose nothing, whatever the updates and the message size."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from acker_protocol import ids, reports
from acker_protocol.ids import Column
from acker_protocol.messages import ACK, FAIL, Apply, Entries, Identity, InitScope
from tests.protocol.drawn_reports import Ack, Update, acks, kinds, updates
from tests.protocol.drawn_reports import ids as column

# Root -> [val, kind, reason of the first fail].
Twin = dict[int, list[Any]]

WHO = Identity(1, 2)

# From less than one entry per message to all entries in one message.
message_bytes = st.sampled_from([1, 17, 40, 100, 400, reports.MESSAGE_BYTES])


def fold_twin(given_updates: list[Update]) -> Twin:
    """Fold the updates in a simple way. The result is in wire order."""
    folded: Twin = {}
    for root, val, kind, reason in given_updates:
        entry = folded.setdefault(root, [0, 0, None])
        entry[0] ^= val
        entry[1] |= kind
        if kind & FAIL and entry[2] is None:
            entry[2] = reason
    return {root: folded[root] for root in sorted(folded, key=ids.mix64)}


def as_twin(entries: Entries) -> Twin:
    """Convert entries to the form of the model."""
    kinds_of = entries.kinds.tolist() or [ACK] * len(entries)
    reason_ids = iter(entries.reason_ids.tolist())
    return {
        root: [val, kind, entries.reasons[next(reason_ids)] if kind & FAIL else None]
        for root, val, kind in zip(entries.root_ids.tolist(), entries.ack_vals.tolist(), kinds_of, strict=True)
    }


def folded(given_updates: list[Update]) -> Entries:
    reasons: dict[int, str] = {}
    for root, _, kind, reason in given_updates:
        if kind & FAIL:
            reasons.setdefault(root, reason)
    roots = [root for root, *_ in given_updates]
    vals = [val for _, val, *_ in given_updates]
    bits = [kind for _, _, kind, _ in given_updates]
    return reports.fold_updates(column(roots), column(vals), kinds(bits), reasons)


def is_in_wire_order(roots: Column) -> bool:
    mixed = ids.mix64_column(roots)
    return bool(np.all(mixed[1:] > mixed[:-1]))


@given(acks)
def test_acks_of_one_root_become_one_entry(given_acks: list[Ack]) -> None:
    entries = reports.fold(column([root for root, _ in given_acks]), column([val for _, val in given_acks]))
    assert as_twin(entries) == fold_twin([(root, val, ACK, "") for root, val in given_acks])
    assert is_in_wire_order(entries.root_ids)


@given(updates)
def test_updates_of_one_root_become_one_entry_that_keeps_every_kind_and_the_first_reason(
    given_updates: list[Update],
) -> None:
    entries = folded(given_updates)
    assert as_twin(entries) == fold_twin(given_updates)
    assert is_in_wire_order(entries.root_ids)


def test_a_reason_that_utf_8_cannot_hold_is_sent_in_escapes() -> None:
    entries = folded([(1, 5, FAIL, "no sku \ud83d"), (2, 6, FAIL, "späte Zeile")])
    (message,) = reports.pack(WHO, entries)
    assert sorted(message.entries.reasons) == ["no sku \\ud83d", "späte Zeile"]


@given(acks)
def test_acks_alone_carry_no_kinds(given_acks: list[Ack]) -> None:
    entries = folded([(root, val, ACK, "") for root, val in given_acks])
    assert len(entries.kinds) == len(entries.reason_ids) == len(entries.reasons) == 0


@given(updates, st.randoms(use_true_random=False))
def test_the_order_of_updates_does_not_show_in_the_digest(given_updates: list[Update], random: Random) -> None:
    shuffled = random.sample(given_updates, len(given_updates))
    assert reports.digest(folded(shuffled)) == reports.digest(folded(given_updates))


@given(updates.filter(len), st.integers(0, 63))
def test_the_digest_sees_every_bit_of_a_val(given_updates: list[Update], bit: int) -> None:
    entries = folded(given_updates)
    changed = entries.ack_vals.copy()
    changed[0] ^= np.uint64(1 << bit)
    other = Entries(entries.root_ids, changed, entries.kinds, entries.reason_ids, entries.reasons)
    assert reports.digest(other) != reports.digest(entries)


@given(acks.filter(len))
def test_an_ack_and_a_fail_have_different_digests(given_acks: list[Ack]) -> None:
    entries = folded([(root, val, ACK, "") for root, val in given_acks])
    failed = folded([(root, val, ACK | FAIL, "") for root, val in given_acks])
    assert reports.digest(entries) != reports.digest(failed)


def slots_of(message: Apply) -> list[int]:
    return [ids.slot(root) for root in message.entries.root_ids.tolist()]


@given(updates, message_bytes)
def test_any_packing_unpacks_to_the_same(given_updates: list[Update], size: int) -> None:
    entries = folded(given_updates)
    packed = reports.pack(WHO, entries, message_bytes=size)
    unpacked = {root: said for message in packed for root, said in as_twin(message.entries).items()}
    assert list(unpacked.items()) == list(fold_twin(given_updates).items())
    assert {message.digest for message in packed} <= {reports.digest(entries)}
    assert all(message.identity == WHO and message.inits is None for message in packed)


@given(updates, message_bytes)
def test_a_section_is_never_cut(given_updates: list[Update], size: int) -> None:
    packed = reports.pack(WHO, folded(given_updates), message_bytes=size)
    seen = [slot for message in packed for slot in sorted(set(slots_of(message)))]
    assert len(seen) == len(set(seen))
    assert seen == sorted(seen)


@given(updates, message_bytes)
def test_a_message_is_over_its_size_only_for_one_section(given_updates: list[Update], size: int) -> None:
    for message in reports.pack(WHO, folded(given_updates), message_bytes=size):
        assert len(message.entries) > 0
        assert len(message.entries) <= size // reports.BYTES_AN_ENTRY or len(set(slots_of(message))) == 1


@given(acks, message_bytes, st.booleans())
def test_what_is_covered_rides_on_the_last_message_alone(given_acks: list[Ack], size: int, covers: bool) -> None:
    covered = np.array([[0, 9]] if covers else [], np.uint64).reshape(-1, 2)
    entries = reports.fold(column([root for root, _ in given_acks]), column([val for _, val in given_acks]))
    packed = reports.pack(WHO, entries, InitScope(5, 7, covered), message_bytes=size)
    assert len(packed) > 0 or not (len(entries) or covers)
    scopes = [message.inits for message in packed]
    assert [len(scope.covered) for scope in scopes if scope] == [0] * (len(packed) - 1) + [covers] * bool(packed)
    assert all((scope.session, scope.batch) == (5, 7) for scope in scopes if scope)


@given(acks)
def test_sections_start_where_the_slot_changes(given_acks: list[Ack]) -> None:
    roots = reports.fold(column([root for root, _ in given_acks]), column([val for _, val in given_acks])).root_ids
    slots = [ids.slot(root) for root in roots.tolist()]
    expected = [index for index, slot in enumerate(slots) if index == 0 or slots[index - 1] != slot]
    assert reports.section_starts(roots).tolist() == expected
