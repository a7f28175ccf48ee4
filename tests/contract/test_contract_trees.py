"""Chapter 3 of acker.proto: how a tree grows, and with which outcome it ends."""

from __future__ import annotations

import itertools
import secrets
from functools import partial

import pytest
from contract_client import ACK, FAIL, RESET, Acker, Entry, ack, edge0, fail, outcomes, reset, status, unmix64
from contract_stubs import pb

ACKED = ("VERDICT_ACKED", "")


def test_a_tree_is_acked_when_each_of_its_edges_is_done_in_any_order(acker: Acker) -> None:
    source, workers = acker.source(), [acker.sender() for _ in range(3)]
    for number, order in enumerate(itertools.permutations(range(4))):
        root = source.root(number)
        left, right = secrets.randbits(64), secrets.randbits(64)
        steps = [
            partial(source.init, ack(root, edge0(root))),
            # One entry acks the record and adds its two children.
            partial(workers[0].report, ack(root, edge0(root), left, right)),
            partial(workers[1].report, ack(root, left)),
            partial(workers[2].report, ack(root, right)),
        ]
        for step in order:
            assert status(steps[step]()) == "STATUS_APPLIED"
        assert source.hear(1) == {root: ACKED}


def test_the_source_finds_its_number_in_the_root_id(acker: Acker) -> None:
    source = acker.source()
    source.init(ack(source.root(41)))
    (root,) = source.hear(1)
    assert unmix64(root) - source.base == 41


def test_an_init_of_nothing_is_done_at_once(acker: Acker) -> None:
    source = acker.source()
    source.init(Entry(source.root(0), 0))
    assert source.hear(1) == {source.root(0): ACKED}


@pytest.mark.parametrize("init_first", [True, False])
def test_a_fail_ends_a_tree_whether_it_comes_before_or_after_the_init(acker: Acker, init_first: bool) -> None:
    source = acker.source()
    root = source.root(0)
    steps = [lambda: source.init(ack(root, 5)), lambda: source.report(fail(root, "no price"))]
    for step in steps if init_first else reversed(steps):
        step()
    assert source.hear(1) == {root: ("VERDICT_FAILED", "no price")}


def test_fail_wins_over_zero_also_within_one_entry(acker: Acker) -> None:
    source = acker.source()
    one, other = source.root(0), source.root(1)
    source.init(ack(one, 5), ack(other, 5))
    source.report(Entry(one, 5, ACK | FAIL, "both"))
    source.report(Entry(other, 5, ACK | FAIL | RESET, "all three"))
    assert source.hear(2) == {one: ("VERDICT_FAILED", "both"), other: ("VERDICT_FAILED", "all three")}


def test_fail_wins_over_zero_also_where_both_come_before_the_init(acker: Acker) -> None:
    source = acker.source()
    root = source.root(0)
    source.report(ack(root, 5))
    source.report(fail(root, "first"))
    source.report(fail(root, "second"))
    source.init(ack(root, 5))
    assert source.hear(1) == {root: ("VERDICT_FAILED", "first")}


def test_acks_fails_and_resets_of_what_has_ended_change_nothing(acker: Acker) -> None:
    source = acker.source()
    root, last = source.root(0), source.root(1)
    source.init(ack(root))
    for entry in (ack(root, 7), fail(root, "late"), reset(root)):
        assert status(source.report(entry)) == "STATUS_APPLIED"
    source.init(ack(last))
    assert source.hear(2) == {root: ACKED, last: ACKED}


def test_a_reset_of_an_unknown_root_does_nothing(acker: Acker) -> None:
    source = acker.source()
    root = source.root(0)
    assert status(source.report(reset(root))) == "STATUS_APPLIED"
    source.init(ack(root))
    assert source.hear(1) == {root: ACKED}


def test_an_ack_val_is_looked_at_only_where_the_entry_acks(acker: Acker) -> None:
    source = acker.source()
    root = source.root(0)
    source.init(ack(root, 5))
    source.report(Entry(root, 5, RESET))
    source.report(ack(root, 5))
    assert source.hear(1) == {root: ACKED}


def test_an_init_counts_once_in_its_batch(acker: Acker) -> None:
    source = acker.source()
    root = source.root(0)
    first = source.init(ack(root, 5))
    again = source.init(ack(root, 5))
    assert [(reply.inits_known, reply.inits_conflicting) for reply in (first, again)] == [(0, 0), (1, 0)]
    # If the second init were XORed in too, the tree would be done now.
    source.report(ack(root, 5))
    assert source.hear(1) == {root: ACKED}


def test_a_root_id_of_two_sources_is_lost_for_both(acker: Acker) -> None:
    one, other = acker.source(), acker.source()
    root = one.root(0)
    one.init(ack(root, 5))
    reply = other.init(ack(root, 5))
    assert (status(reply), reply.inits_known, reply.inits_conflicting) == ("STATUS_APPLIED", 0, 1)
    # The other source's record is done. Nobody knows whether the first source's record is done.
    other.report(ack(root, 5))
    assert one.hear(1) == other.hear(1) == {root: ("VERDICT_LOST", "root_conflict")}


def test_a_root_that_is_tried_again_has_a_new_root_id(acker: Acker) -> None:
    source = acker.source()
    source.init(ack(source.root(0), 5))
    source.report(fail(source.root(0), "flaky"))
    source.init(ack(source.root(1), 5))
    source.report(ack(source.root(1), 5))
    heard = source.hear(2)
    assert [heard[source.root(number)][0] for number in (0, 1)] == ["VERDICT_FAILED", "VERDICT_ACKED"]


@pytest.mark.parametrize("limit", ["message", "progress"])
def test_a_tree_that_takes_too_long_is_timed_out(acker: Acker, limit: str) -> None:
    source = acker.source(limits=pb.Limits(**{f"{limit}_timeout_ms": 1}))
    source.init(ack(source.root(0), 5))
    assert source.hear(1) == {source.root(0): ("VERDICT_TIMED_OUT", f"{limit}_timeout")}


@pytest.mark.long
def test_a_reset_starts_both_timeouts_anew(acker: Acker) -> None:
    source = acker.source(limits=pb.Limits(message_timeout_ms=2000, progress_timeout_ms=2000))
    kept, left = source.root(0), source.root(1)
    source.init(ack(kept, 5), ack(left, 5))
    heard: list[int] = []
    while not heard:
        source.report(reset(kept))
        heard = list(outcomes(source.watch(wait_ms=50)))
    assert heard == [left]
