"""Chapter 6 of acker.proto: the open stream, batches that are held or not, and how they are settled."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from contract_client import Acker, Source, ack, fail, mix64, outcomes, root_of, status
from contract_stubs import NUMBERS, pb

DONE, ABANDON = "SETTLEMENT_DONE", "SETTLEMENT_ABANDON"
ACKED, UNFINISHED = ("VERDICT_ACKED", ""), ("VERDICT_FAILED", "unfinished")
ABANDONED, UNREAD = ("VERDICT_LOST", "abandoned"), ("VERDICT_LOST", "unread")

# Numbers of every batch below: 0 and 1 are done, 2 failed, 3 is open, 4 was covered without an init, 5 was not read.
SIZE = 6


def walk(source: Source, *, held: bool) -> list[int]:
    """Open batch 1, read numbers 0 to 4 of it, and work on them."""
    assert status(source.open_batch(1, SIZE, held=held)) == "STATUS_APPLIED"
    roots = [source.root(number) for number in range(SIZE)]
    source.init(*(ack(root, 5) for root in roots[:4]), batch=1, covered=[0, 5])
    source.report(ack(roots[0], 5), ack(roots[1], 5), fail(roots[2], "no price"), ack(roots[3], 5, 6))
    return roots


def test_a_held_batch_that_is_done_reports_every_root(acker: Acker) -> None:
    source = acker.source()
    roots = walk(source, held=True)
    # Before the batch is settled, only the fail is reported.
    assert source.hear(1) == {roots[2]: ("VERDICT_FAILED", "no price")}
    assert not source.watch().root_ids
    reply = source.settle(1, DONE)
    assert (status(reply), reply.cursor, reply.roots) == ("STATUS_APPLIED", 5, 5)
    assert reply.generation == source.watch().generation
    assert source.hear(4) == {roots[0]: ACKED, roots[1]: ACKED, roots[3]: UNFINISHED, roots[5]: UNREAD}


def test_only_what_the_server_itself_ended_has_a_cause(acker: Acker) -> None:
    source = acker.source()
    source.open_batch(1, 2)
    source.init(ack(source.root(0), 5), ack(source.root(1), 5), batch=1, covered=[0, 2])
    source.report(fail(source.root(0), "unfinished"))
    source.settle(1, DONE)
    reply = source.watch()
    assert outcomes(reply) == {source.root(0): UNFINISHED, source.root(1): UNFINISHED}
    assert list(reply.reasons) == ["unfinished"] * 2
    assert list(reply.causes) == [NUMBERS["CAUSE_UNSPECIFIED"], NUMBERS["CAUSE_UNFINISHED"]]


def test_a_held_batch_that_is_abandoned_acks_nothing(acker: Acker) -> None:
    source = acker.source()
    roots = walk(source, held=True)
    source.hear(1)
    assert source.settle(1, ABANDON).cursor == 5
    assert source.hear(4) == {**dict.fromkeys([*roots[:2], roots[3]], ABANDONED), roots[5]: UNREAD}


def test_a_batch_that_is_not_held_acks_at_zero_and_keeps_what_is_pending_when_it_is_done(acker: Acker) -> None:
    source = acker.source()
    roots = walk(source, held=False)
    assert source.hear(3) == {roots[0]: ACKED, roots[1]: ACKED, roots[2]: ("VERDICT_FAILED", "no price")}
    reply = source.settle(1, DONE)
    assert (reply.cursor, reply.roots) == (4, 4)
    assert source.hear(1) == {roots[5]: UNREAD}
    source.report(ack(roots[3], 6))
    assert source.hear(1) == {roots[3]: ACKED}


def test_what_a_batch_that_is_not_held_left_pending_has_its_limits(acker: Acker) -> None:
    source = acker.source()
    source.open_batch(1, 1, held=False, limits=pb.Limits(message_timeout_ms=1000))
    source.init(ack(source.root(0), 5), batch=1, covered=[0, 1])
    assert source.settle(1, DONE).roots == 0
    assert source.hear(1) == {source.root(0): ("VERDICT_TIMED_OUT", "message_timeout")}


def test_a_batch_that_is_not_held_and_abandoned_reports_every_root(acker: Acker) -> None:
    source = acker.source()
    roots = walk(source, held=False)
    assert source.settle(1, ABANDON).roots == 5
    heard = source.hear(5)
    assert (heard[roots[3]], heard[roots[5]]) == (ABANDONED, UNREAD)


def test_a_held_root_whose_tree_is_done_does_not_time_out(acker: Acker) -> None:
    source = acker.source()
    source.open_batch(1, 2, limits=pb.Limits(message_timeout_ms=1000))
    done, stuck = source.root(0), source.root(1)
    source.init(ack(done), ack(stuck, 5), batch=1, covered=[0, 2])
    assert source.hear(1) == {stuck: ("VERDICT_TIMED_OUT", "message_timeout")}
    source.settle(1, DONE)
    assert source.hear(1) == {done: ACKED}


def test_settling_again_gives_the_same_answer_and_otherwise_a_conflict(acker: Acker) -> None:
    source = acker.source()
    walk(source, held=True)
    first = source.settle(1, DONE)
    source.init(ack(source.root(100)))
    assert source.settle(1, DONE) == first
    assert status(source.settle(1, ABANDON)) == "STATUS_CONFLICT"


def test_settling_a_batch_that_is_not_open_is_an_unknown_batch(acker: Acker) -> None:
    source = acker.source()
    for number in (0, 1):
        assert status(source.settle(number, DONE)) == "STATUS_UNKNOWN_BATCH"


def test_opening_again_is_applied_again_and_otherwise_a_conflict(acker: Acker) -> None:
    source = acker.source()
    assert [status(source.open_batch(1, SIZE)) for _ in range(2)] == ["STATUS_APPLIED"] * 2
    assert status(source.open_batch(1, SIZE + 1)) == "STATUS_CONFLICT"


def test_numbers_are_above_every_one_that_was_settled_and_may_leave_some_out(acker: Acker) -> None:
    source = acker.source()
    source.open_batch(3, SIZE)
    source.open_batch(9, SIZE, first=source.base + 100)
    source.settle(3, DONE)
    assert status(source.open_batch(5, SIZE, first=source.base + 200)) == "STATUS_APPLIED"
    for settled in (1, 3):
        assert status(source.open_batch(settled, SIZE, first=source.base + 300)) == "STATUS_UNKNOWN_BATCH"


def test_inits_of_a_batch_that_is_not_open_are_of_an_unknown_batch(acker: Acker) -> None:
    source = acker.source()
    assert status(source.init(ack(source.root(0)), batch=1)) == "STATUS_UNKNOWN_BATCH"
    source.open_batch(1, SIZE)
    source.settle(1, DONE)
    assert status(source.init(ack(source.root(0)), batch=1)) == "STATUS_UNKNOWN_BATCH"


def test_a_batch_takes_its_own_roots_only_and_covers_its_own_numbers_only(acker: Acker) -> None:
    source = acker.source()
    source.open_batch(1, SIZE)
    assert status(source.init(ack(source.root(SIZE)), batch=1)) == "STATUS_INVALID"
    assert status(source.init(batch=1, covered=[0, SIZE + 1])) == "STATUS_INVALID"
    assert status(source.init(batch=0, covered=[0, 1])) == "STATUS_INVALID"
    assert status(source.init(batch=1, covered=[0, 2, 4, SIZE])) == "STATUS_APPLIED"
    source.settle(1, DONE)
    assert source.hear(2) == dict.fromkeys([source.root(2), source.root(3)], UNREAD)


def test_the_open_stream_takes_any_root_id_and_the_limits_of_the_last_watch(acker: Acker) -> None:
    source = acker.source()
    root = root_of(source.base, 2**63)
    source.init(ack(root, 5))
    source.limits = pb.Limits(message_timeout_ms=1)
    assert source.hear(1) == {root: ("VERDICT_TIMED_OUT", "message_timeout")}


def test_an_init_counts_once_in_its_batch_also_after_its_root_has_ended(acker: Acker) -> None:
    source = acker.source()
    roots = walk(source, held=False)
    source.hear(3)
    reply = source.init(ack(roots[0], 5), ack(roots[2], 5), batch=1)
    assert reply.inits_known == 2
    assert not source.watch().root_ids


def test_one_root_id_in_two_batches_is_lost_in_both(acker: Acker) -> None:
    source = acker.source()
    for number in (1, 2):
        source.open_batch(number, 1)
        reply = source.init(ack(source.root(0), 5), batch=number, covered=[0, 1])
        assert reply.inits_conflicting == number - 1
    reply = source.watch()
    assert [bytes(reply.verdicts), list(reply.reasons)] == [b"\4\4", ["root_conflict"]]
    assert [source.settle(number, DONE).roots for number in (1, 2)] == [1, 1]


def slots_of(roots: list[int]) -> bytes:
    """Return the bitmap of the slots of ``roots``, 128 bytes."""
    bits = bytearray(128)
    for root in roots:
        slot = mix64(root) >> 54
        bits[slot // 8] |= 1 << slot % 8
    return bytes(bits)


def roots_apart(source: Source) -> list[int]:
    """Choose the source's base so that each number of a batch has another slot. Returns the root ids."""
    while len({mix64(source.root(number)) >> 54 for number in range(SIZE)}) < SIZE:
        source.base += 1
    return [source.root(number) for number in range(SIZE)]


def test_a_batch_with_some_of_the_slots_has_room_inits_and_unread_roots_of_these_only(acker: Acker) -> None:
    source = acker.source()
    roots = roots_apart(source)
    here = slots_of(roots[:3])
    assert status(source.open_batch(1, SIZE, slots=here)) == "STATUS_APPLIED"
    assert status(source.open_batch(1, SIZE, slots=here)) == "STATUS_APPLIED"
    assert status(source.open_batch(1, SIZE, slots=slots_of(roots[:2]))) == "STATUS_APPLIED"
    assert status(source.open_batch(1, SIZE + 1, slots=here)) == "STATUS_CONFLICT"
    elsewhere = source.init(ack(roots[4], 5), batch=1)
    assert status(elsewhere) == "STATUS_INVALID"
    assert "slot" in elsewhere.detail
    # A task tells every server all numbers that it covered, including those of other slots.
    assert status(source.init(ack(roots[0], 5), batch=1, covered=[0, 2])) == "STATUS_APPLIED"
    source.report(ack(roots[0], 5))
    assert source.settle(1, DONE).roots == 2
    assert source.hear(2) == {roots[0]: ACKED, roots[2]: UNREAD}


def test_the_slots_of_an_open_batch_only_become_more(acker: Acker) -> None:
    source = acker.source()
    roots = roots_apart(source)
    older, newer = slots_of(roots[:2]), slots_of(roots[1:4])
    for slots in (older, newer, older):
        assert status(source.open_batch(1, SIZE, slots=slots)) == "STATUS_APPLIED"
    assert status(source.init(*(ack(root, 5) for root in roots[:4]), batch=1, covered=[0, 4])) == "STATUS_APPLIED"
    assert source.settle(1, DONE).roots == 4
    assert source.hear(4) == dict.fromkeys(roots[:4], UNFINISHED)


def test_slots_that_come_after_numbers_were_covered_leave_these_unread(acker: Acker) -> None:
    source = acker.source()
    roots = roots_apart(source)
    assert status(source.open_batch(1, SIZE, slots=slots_of(roots[:1]))) == "STATUS_APPLIED"
    assert status(source.init(batch=1, covered=[0, SIZE])) == "STATUS_APPLIED"
    assert status(source.open_batch(1, SIZE, slots=slots_of(roots[1:2]))) == "STATUS_APPLIED"
    assert source.settle(1, DONE).roots == 1
    assert source.hear(1) == {roots[1]: UNREAD}


def test_a_batch_with_none_of_the_slots_is_invalid(acker: Acker) -> None:
    reply = acker.source().open_batch(1, SIZE, slots=bytes(128))
    assert status(reply) == "STATUS_INVALID"
    assert reply.detail.startswith("slots: ")


def test_a_map_of_slots_that_is_no_bit_a_slot_cannot_be_read(acker: Acker) -> None:
    assert "slots" in refused(acker.source(), slots=b"\xff" * 127)


def refused(source: Source, **fields: Any) -> str:
    with pytest.raises(grpc.RpcError) as caught:
        source.open_batch(1, SIZE, **fields)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    return str(caught.value.details())
