"""Delivery of one report to a server that answers each section at random."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acker_client.rpc.delivery import Delivery, ReportResult
from acker_protocol import wire
from acker_protocol.ids import mix64_column
from acker_protocol.messages import ACK, FAIL, Apply, ApplyReply, Entries, Identity, InitScope, Status
from acker_protocol.reports import digest, fold_updates, pack, section_starts

IDENTITY = Identity(1, 2)
NOT_FINAL = [Status.OVERLOADED, Status.UNKNOWN_SOURCE]
FINAL = [Status.APPLIED, Status.DUPLICATE, Status.CONFLICT, Status.STALE]


def entries_of(count: int, seed: int = 0) -> Entries:
    """Return updates of ``count`` random roots. A third of them fail, with one of two reasons."""
    dice = np.random.default_rng(seed)
    roots = dice.integers(1, 2**64, count, np.uint64)
    kinds = np.where(roots % 3 == 0, FAIL | ACK, ACK).astype(np.uint8)
    reasons = {int(root): f"reason {root % 2}" for root in roots}
    return fold_updates(roots, dice.integers(0, 2**64, count, np.uint64), kinds, reasons)


def sections_of(message: Apply) -> int:
    return len(section_starts(message.entries.root_ids))


def rows_of(entries: Entries) -> list[tuple[int, int, int, str]]:
    reasons = iter(entries.reason_ids.tolist())
    kinds = entries.kinds if len(entries.kinds) else np.full(len(entries), ACK, np.uint8)
    rows = zip(entries.root_ids.tolist(), entries.ack_vals.tolist(), kinds.tolist(), strict=True)
    return [(root, val, kind, entries.reasons[next(reasons)] if kind & FAIL else "") for root, val, kind in rows]


def reply(status: Status, statuses: list[int] | None = None) -> ApplyReply:
    return ApplyReply(7, status, np.array(statuses or [], np.uint8))


@pytest.mark.slow
@given(st.integers(0, 400), st.randoms(use_true_random=False), st.sampled_from([400, 2000, 1 << 20]))
def test_every_section_gets_one_final_answer_and_is_never_sent_after_it(
    count: int, dice: random.Random, message_bytes: int
) -> None:
    entries = entries_of(count)
    delivery = Delivery(IDENTITY, entries)
    counted: list[tuple[int, int, int, str]] = []
    while not delivery.done:
        delivery.fit(dice.choice([message_bytes, 1 << 20]))
        key, message = dice.choice(delivery.ready())
        statuses = [dice.choice(NOT_FINAL + FINAL) for _ in range(sections_of(message))]
        assert message.digest == digest(entries)
        slots = (mix64_column(message.entries.root_ids) >> np.uint64(54)).tolist()
        final = {slot for slot, status in zip(dict.fromkeys(slots), statuses, strict=True) if status in FINAL}
        rows = rows_of(message.entries)
        counted += [row for slot, row in zip(slots, rows, strict=True) if slot in final]
        refusal = delivery.answered(key, reply(Status.APPLIED, [int(status) for status in statuses]))
        assert (refusal is None) == all(status in FINAL for status in statuses)
        assert refusal is None or refusal.status == max(statuses)
    assert sorted(counted) == sorted(rows_of(entries))
    result = delivery.result
    sections = len(section_starts(entries.root_ids))
    assert result.applied + result.duplicate + result.conflict + result.stale == sections
    assert result.unreported == 0


@pytest.mark.slow
@given(st.integers(0, 300), st.randoms(use_true_random=False))
def test_covered_numbers_are_sent_last_and_only_after_all_entries_were_counted(count: int, dice: random.Random) -> None:
    entries = entries_of(count)
    plain = Entries(entries.root_ids, entries.ack_vals)
    delivery = Delivery(IDENTITY, plain, InitScope(9, 1, np.array([[0, 500]], np.uint64)))
    delivery.fit(600)
    was_refused_for_good = False
    while not delivery.done:
        ready = delivery.ready()
        if was_refused_for_good and len(ready) == 1:
            assert all(message.inits is not None and not len(message.inits.covered) for _, message in ready)
        covering = [key for key, message in ready if message.inits is not None and len(message.inits.covered)]
        assert not covering or len(ready) == 1
        key, message = dice.choice(ready)
        sections = sections_of(message)
        statuses = [int(dice.choice([*NOT_FINAL, Status.APPLIED, Status.CONFLICT])) for _ in range(sections)]
        was_refused_for_good |= Status.CONFLICT in statuses and not covering
        delivery.answered(key, reply(Status.APPLIED, statuses))


def test_a_report_without_entries_still_sends_its_covered_numbers() -> None:
    none = Entries(np.empty(0, np.uint64), np.empty(0, np.uint64))
    delivery = Delivery(IDENTITY, none, InitScope(9, 1, np.array([[0, 500]], np.uint64)))
    ((key, message),) = delivery.ready()
    assert len(message.entries) == 0
    refusal = delivery.answered(key, reply(Status.OVERLOADED))
    assert refusal is not None
    assert not delivery.done
    assert delivery.answered(key, reply(Status.DUPLICATE)) is None
    assert delivery.done


def test_an_empty_report_is_done_from_the_start() -> None:
    delivery = Delivery(IDENTITY, Entries(np.empty(0, np.uint64), np.empty(0, np.uint64)))
    assert delivery.done
    assert delivery.result == ReportResult()


def test_a_report_given_up_says_how_much_of_it_is_unreported() -> None:
    delivery = Delivery(IDENTITY, entries_of(300))
    sections = delivery.result.unreported
    assert sections == len(section_starts(entries_of(300).root_ids))
    delivery.fit(3000)
    key, message = delivery.ready()[0]
    delivery.answered(key, reply(Status.APPLIED))
    assert delivery.result.unreported == sections - sections_of(message)


@pytest.mark.parametrize("statuses", [[1], [1] * 500, [77] * 3])
def test_an_answer_that_does_not_match_its_message_is_not_believed(statuses: list[int]) -> None:
    roots = np.array([1, 2, 3], np.uint64)
    delivery = Delivery(IDENTITY, fold_updates(roots, roots, np.ones(3, np.uint8), {}))
    key, _ = delivery.ready()[0]
    with pytest.raises(ValueError, match="section statuses"):
        delivery.answered(key, reply(Status.APPLIED, statuses))


@given(st.integers(1, 600), st.integers(0, 300), st.sampled_from([3000, 10_000]))
def test_no_message_is_larger_than_asked_and_each_has_the_reasons_of_its_own_fails(
    count: int, length: int, message_bytes: int
) -> None:
    dice = np.random.default_rng(count)
    roots = dice.integers(1, 2**64, count, np.uint64)
    reasons = {int(root): f"{root % 50} " + "é" * length for root in roots}
    entries = fold_updates(roots, roots, np.where(roots % 2, FAIL, ACK).astype(np.uint8), reasons)
    messages = pack(IDENTITY, entries, message_bytes=message_bytes)
    assert [row for message in messages for row in rows_of(message.entries)] == rows_of(entries)
    for message in messages:
        used = {reason for _, _, kind, reason in rows_of(message.entries) if kind & FAIL}
        assert len(messages) == 1 or used == set(message.entries.reasons)
        size = len(wire.encode(message).SerializeToString())
        assert size < message_bytes + 100 or sections_of(message) == 1
