"""Tally: summing up early does not change the report, parts add up to the whole, and failure reasons stay bounded."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acker_client.spark.anchoring import tally as room
from acker_client.spark.anchoring.anchors import Anchors
from acker_client.spark.anchoring.tally import MultipliedEdges, Tally
from acker_protocol import ids, reports
from acker_protocol.messages import ACK, FAIL

ID = st.integers(1, ids.MASK)
CHUNKS = st.lists(st.lists(st.tuples(st.integers(1, 6), ID), max_size=20), max_size=8)


def anchors(pairs: list[tuple[int, int]]) -> Anchors:
    return Anchors(np.array([root for root, _ in pairs], np.uint64), np.array([edge for _, edge in pairs], np.uint64))


def consume(tally: Tally, pairs: list[tuple[int, int]]) -> None:
    tally.consume(anchors(pairs), np.zeros(len(pairs), np.uint64))


@given(CHUNKS, st.integers(0, 30))
def test_however_often_it_folds_the_report_is_that_of_one_fold(
    chunks: list[list[tuple[int, int]]], compact: int
) -> None:
    tally = Tally("words")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "COMPACT_ENTRIES", compact)
        for chunk in chunks:
            consume(tally, chunk)
    every = [pair for chunk in chunks for pair in chunk]
    report, whole = tally.report(), anchors(every)
    twin = reports.fold(whole.roots, whole.edges)
    assert report.entries.root_ids.tolist() == twin.root_ids.tolist()
    assert report.entries.ack_vals.tolist() == twin.ack_vals.tolist()
    total = sum(ids.identity_term(root, edge) for root, edge in every)
    assert (report.identity.high, report.identity.low) == ids.identity_of("words", total)


@given(CHUNKS)
def test_accounts_of_parts_add_up_to_that_of_the_whole(chunks: list[list[tuple[int, int]]]) -> None:
    whole, sum_of_parts = Tally("words"), Tally("words")
    for chunk in chunks:
        consume(whole, chunk)
        part = Tally("words")
        consume(part, chunk)
        sum_of_parts.absorb(part.account())
    one, other = whole.report(), sum_of_parts.report()
    assert one.identity == other.identity
    assert one.entries.ack_vals.tolist() == other.entries.ack_vals.tolist()


def test_failed_roots_carry_the_bit_and_the_first_reason() -> None:
    tally = Tally("words")
    consume(tally, [(root, root + 100) for root in range(1, 9)])
    for root, reason in ((7, "late"), (2, "early"), (7, "again"), (3, "late")):
        tally.fail(root, reason, "words")
    entries = tally.report().entries
    said = dict(zip(entries.root_ids.tolist(), entries.kinds.tolist(), strict=True))
    assert said == {root: ACK | FAIL if root in (2, 3, 7) else ACK for root in range(1, 9)}
    failed = entries.root_ids[entries.kinds != ACK].tolist()
    reasons = [entries.reasons[index] for index in entries.reason_ids.tolist()]
    assert dict(zip(failed, reasons, strict=True)) == {7: "late", 2: "early", 3: "late"}
    assert len(entries.reasons) == 2


def test_a_reason_that_utf_8_cannot_hold_is_reported_in_escapes() -> None:
    tally = Tally("words")
    consume(tally, [(1, 7)])
    tally.fail(1, "words: no sku \ud83d", "words")
    assert tally.report().entries.reasons == ("words: no sku \\ud83d",)


def test_reasons_of_a_task_stay_bounded() -> None:
    tally = Tally("words")
    consume(tally, [(root, root) for root in range(1, 1001)])
    for root in range(1, 1001):
        tally.fail(root, f"words: ValueError: {root}" + "x" * 400, "words: ValueError")
    reasons = tally.report().entries.reasons
    assert sum(map(len, reasons)) < room.REASONS_LENGTH_MAX + 1000
    assert reasons.count("words: ValueError") == 1


def test_a_tally_of_nothing_has_nothing_to_say() -> None:
    assert Tally("words").report().is_empty


def test_copies_are_found_over_batches_and_accounts() -> None:
    tally, part = Tally("words", finds_copies=True), Tally("words", finds_copies=True)
    consume(tally, [(1, 5), (2, 6)])
    consume(part, [(1, 7), (1, 5)])
    tally.absorb(part.account())
    with pytest.raises(MultipliedEdges):
        tally.report()
