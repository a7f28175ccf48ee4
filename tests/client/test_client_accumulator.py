"""The accumulator compared with a dict that handles one call after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acker_client.error_text import REASON_LENGTH_MAX
from acker_client.reports.accumulator import Accumulator, Batch, Draft
from acker_protocol.ids import mix64_column
from acker_protocol.messages import ACK, FAIL, RESET

BATCH: Batch = (7, 1)
ROOTS = st.integers(1, 6) | st.integers(2**63, 2**63 + 2)
EDGES = st.integers(0, 2**64 - 1)
BATCHES = st.tuples(st.integers(1, 2), st.integers(1, 2))
ROWS = st.lists(st.tuples(ROOTS, EDGES), max_size=8)
CALLS = st.lists(
    st.tuples(st.just("init"), ROOTS, st.lists(EDGES, max_size=3), BATCHES)
    | st.tuples(st.just("ack"), ROOTS, EDGES, st.lists(EDGES, max_size=3))
    | st.tuples(st.just("fail"), ROOTS, st.sampled_from(["", "a", "b"]), EDGES | st.just(0))
    | st.tuples(st.just("reset_timeout"), ROOTS)
    | st.tuples(st.just("init_columns"), ROWS, BATCHES)
    | st.tuples(st.just("ack_columns"), ROWS)
    | st.tuples(st.just("fail_columns"), ROWS, st.sampled_from(["", "a", "b"])),
    max_size=20,
)


class Twin:
    """Adds up the calls one after the other."""

    def __init__(self) -> None:
        self.updates: dict[int, tuple[int, int]] = {}
        self.reasons: dict[int, str] = {}
        self.inits: dict[Batch, dict[int, int]] = {}

    def init(self, root: int, edges: list[int], batch: Batch) -> None:
        val = 0
        for edge in edges:
            val ^= edge
        self.inits.setdefault(batch, {}).setdefault(root, val)

    def update(self, root: int, val: int, kind: int) -> None:
        known_val, known_kind = self.updates.get(root, (0, 0))
        self.updates[root] = (known_val ^ val, known_kind | kind)

    def ack(self, root: int, edge: int, emitted: list[int]) -> None:
        for val in [edge, *emitted]:
            self.update(root, val, ACK)

    def fail(self, root: int, reason: str, edge: int = 0) -> None:
        self.reasons.setdefault(root, reason)
        self.update(root, edge, FAIL | ACK if edge else FAIL)

    def reset_timeout(self, root: int) -> None:
        self.update(root, 0, RESET)

    def init_columns(self, rows: list[tuple[int, int]], batch: Batch) -> None:
        folded: dict[int, list[int]] = {}
        for root, val in rows:
            folded.setdefault(root, []).append(val)
        for root, edges in folded.items():
            self.init(root, edges, batch)

    def ack_columns(self, rows: list[tuple[int, int]]) -> None:
        for root, val in rows:
            self.ack(root, val, [])

    def fail_columns(self, rows: list[tuple[int, int]], reason: str) -> None:
        for root, val in rows:
            self.fail(root, reason, val)


def columns(rows: list[tuple[int, int]]) -> tuple[Any, Any]:
    return np.array([root for root, _ in rows], np.uint64), np.array([val for _, val in rows], np.uint64)


def told(accumulator: Accumulator, name: str, *arguments: Any) -> None:
    if name == "init_columns":
        accumulator.init_columns(*columns(arguments[0]), arguments[1])
    elif name == "ack_columns":
        accumulator.ack_columns(*columns(arguments[0]))
    elif name == "fail_columns":
        roots, vals = columns(arguments[0])
        accumulator.fail_columns(roots, arguments[1], vals)
    else:
        getattr(accumulator, name)(*arguments)


def rows_of(draft: Draft) -> dict[int, tuple[int, int]]:
    entries = draft.entries
    kinds = entries.kinds if len(entries.kinds) else np.full(len(entries), ACK, np.uint8)
    triples = zip(entries.root_ids.tolist(), entries.ack_vals.tolist(), kinds.tolist(), strict=True)
    return {root: (val, kind) for root, val, kind in triples}


def reasons_of(draft: Draft) -> dict[int, str]:
    entries = draft.entries
    failed = entries.root_ids[(entries.kinds & FAIL) != 0] if len(entries.kinds) else []
    return {int(root): entries.reasons[i] for root, i in zip(failed, entries.reason_ids, strict=True)}


@given(CALLS)
def test_any_calls_add_up_like_a_dict(calls: list[tuple[Any, ...]]) -> None:
    accumulator, twin = Accumulator(), Twin()
    for name, *arguments in calls:
        told(accumulator, name, *arguments)
        getattr(twin, name)(*arguments)
    drafts = accumulator.take_drafts()
    updates = [draft for draft in drafts if draft.batch is None]
    inits = {draft.batch: {root: val for root, (val, _) in rows_of(draft).items()} for draft in drafts}
    inits.pop(None, None)
    assert (rows_of(updates[0]) if updates else {}) == twin.updates
    assert (reasons_of(updates[0]) if updates else {}) == twin.reasons
    assert inits == {batch: rows for batch, rows in twin.inits.items() if rows}


@given(CALLS)
def test_every_report_is_in_wire_order_and_complete(calls: list[tuple[Any, ...]]) -> None:
    accumulator = Accumulator()
    for name, *arguments in calls:
        told(accumulator, name, *arguments)
    for draft in accumulator.take_drafts():
        mixed = mix64_column(draft.entries.root_ids)
        assert np.all(mixed[1:] > mixed[:-1])
        assert len(draft.entries)
    assert not len(accumulator)
    assert not accumulator.take_drafts()


def test_inits_come_before_updates() -> None:
    accumulator = Accumulator()
    accumulator.ack(1, 5)
    accumulator.init(1, 5, batch=(7, 3))
    assert [draft.batch for draft in accumulator.take_drafts()] == [(7, 3), None]


def test_the_first_init_of_a_root_counts_in_rows_and_in_columns() -> None:
    accumulator = Accumulator()
    accumulator.init(1, 5, BATCH)
    accumulator.init_columns([1, 2, 2], [6, 1, 2], BATCH)
    accumulator.init(2, 9, BATCH)
    (draft,) = accumulator.take_drafts()
    assert rows_of(draft) == {1: (5, ACK), 2: (3, ACK)}


def test_signed_ids_are_read_bit_for_bit() -> None:
    accumulator = Accumulator()
    accumulator.ack(-1, -2)
    accumulator.ack_columns(np.array([-1], np.int64), np.array([1], np.int64))
    (draft,) = accumulator.take_drafts()
    assert rows_of(draft) == {2**64 - 1: (2**64 - 2 ^ 1, ACK)}


@pytest.mark.parametrize(
    "column",
    [
        [1, (1 << 64) - 3],
        [1, -3],
        (np.int64(1), np.int64(-3)),
        np.array([1, -3]),
        np.array([1, (1 << 64) - 3], np.uint64),
        np.array([1, (1 << 64) - 3], ">u8"),
        np.array([1, 0, -3, 0])[::2],
    ],
    ids=["ints", "signed ints", "numpy ints", "int64", "uint64", "big-endian", "strided"],
)
def test_a_column_of_64_bit_integers_is_the_same_ids_in_whatever_dtype(column: Any) -> None:
    accumulator = Accumulator()
    accumulator.init_columns(column, np.ones(2, np.int64), BATCH)
    (draft,) = accumulator.take_drafts()
    assert set(draft.entries.root_ids.tolist()) == {1, (1 << 64) - 3}


def test_later_changes_to_the_callers_arrays_have_no_effect() -> None:
    accumulator = Accumulator()
    roots, vals = np.array([7], np.uint64), np.array([5], np.uint64)
    accumulator.ack_columns(roots, vals)
    vals[0] = 0
    assert rows_of(accumulator.take_drafts()[0]) == {7: (5, ACK)}


def test_a_long_reason_is_cut() -> None:
    accumulator = Accumulator()
    accumulator.fail(1, "x" * 10_000)
    (draft,) = accumulator.take_drafts()
    assert reasons_of(draft) == {1: "x" * REASON_LENGTH_MAX}


@pytest.mark.parametrize(
    ("name", "arguments", "sentence"),
    [
        ("ack", (0, 5), "0 is no root id"),
        ("ack", (1 << 64, 5), "ids have 64 bits"),
        ("ack", (1, 5, [1 << 64]), "ids have 64 bits"),
        ("fail", (0, "why"), "0 is no root id"),
        ("ack_columns", ([1, 0], [1, 2]), "0 is no root id"),
        ("ack_columns", ([1, 2], [1]), "1 for 2 roots"),
        ("ack_columns", (np.array([1.0]), [1]), "64-bit integers"),
        ("ack_columns", (np.array([1], np.int32), [1]), "64-bit integers"),
        ("init_columns", ([True, 2], [1, 2], 1), "roots=True: ids are integers"),
        ("init_columns", ([1, 2], ["3", 4], 1), "vals='3': ids are integers"),
        ("fail_columns", ([1, 2], ["one"]), "one a row"),
        ("ack", (1.5, 5), "root=1.5: ids are integers"),
        ("ack", (None, 5), "root=None: ids are integers"),
        ("ack", ("a", 5), "root='a': ids are integers"),
        ("ack", (True, 5), "root=True: ids are integers"),
        ("ack", (1, "ab"), "edge='ab': ids are integers"),
        ("ack", (1, 5, 6), r"emitted=6: give edges, as in emitted=\[edge\]"),
        ("init", (1, 1.5, 1), "edge=1.5: ids are integers"),
        ("init", (1, "ab", 1), "edge='a': ids are integers"),
        ("fail", (1, ValueError("no")), r"reason=ValueError\('no'\): give a string, as str\(error\) is"),
        ("ack_columns", ([1.5], [1]), "roots=1.5: ids are integers"),
        ("ack_columns", ([None], [1]), "roots=None: ids are integers"),
        ("ack_columns", ([1], [1 << 64]), "vals=18446744073709551616: ids have 64 bits"),
        ("ack_columns", ([[1, 2]], [[1, 2]]), r"roots=\[1, 2\]: ids are integers"),
        ("ack_columns", (1, 2), "roots: give one column of 64-bit integers"),
        ("ack_columns", (np.array([[1]]), [1]), r"not int64 of shape \(1, 1\)"),
        ("ack_columns", (np.array([1, 2], object), [1, 2]), "not object"),
        ("fail_columns", ([1, 2], [1, 2]), "reason=1: give a string"),
        ("fail_columns", ([1, 2], 5), "reasons=5: give one string, or one a row"),
    ],
)
def test_a_call_that_is_refused_says_why_and_changes_nothing(
    name: str, arguments: tuple[Any, ...], sentence: str
) -> None:
    accumulator = Accumulator()
    with pytest.raises(ValueError, match=sentence):
        getattr(accumulator, name)(*arguments)
    assert not accumulator.take_drafts()


def test_integers_of_numpy_and_signed_ones_are_ids_as_they_are() -> None:
    accumulator = Accumulator()
    accumulator.ack(np.int64(-2), np.uint64(5), np.array([7, -1], np.int64))  # type: ignore[arg-type]
    accumulator.ack_columns([-1, 1 << 63, 3], np.array([1, 2, -3]))
    (draft,) = accumulator.take_drafts()
    found = dict(zip(draft.entries.root_ids.tolist(), draft.entries.ack_vals.tolist(), strict=True))
    assert found == {
        2**64 - 2: 5 ^ 7 ^ (2**64 - 1),
        2**64 - 1: 1,
        1 << 63: 2,
        3: 2**64 - 3,
    }
