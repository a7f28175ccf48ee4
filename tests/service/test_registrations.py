"""Registrations: how a source learns that the server no longer knows its session."""

from __future__ import annotations

from acker_protocol.messages import OpenBatch, Settle, Settlement, Status, Watch
from acker_service.core.shard import Shard


def watch(shard: Shard, now: float) -> tuple[bool, int]:
    reply = shard.watch(Watch("orders", 7, 1000), now)
    return reply.is_new, reply.generation


def test_a_session_registered_anew_says_so_with_every_answer_not_only_the_first() -> None:
    shard = Shard(incarnation=1, generation=2)
    assert watch(shard, 0.0)[0]
    known = watch(shard, 0.5)
    shard.tick(2.0)  # the lease has run out
    assert watch(shard, 2.0)[0]  # this answer gets lost
    again = watch(shard, 2.1)
    assert not again[0]
    assert again[1] != known[1]


def test_a_settlement_names_the_registration_that_has_settled_it() -> None:
    shard = Shard(incarnation=1, generation=2)
    for now in (0.0, 5.0):
        watch(shard, now)
        shard.open_batch(OpenBatch(7, 1, 1000, 0), now)
        known = watch(shard, now)
        for _ in range(2):
            [reply] = shard.settle([Settle(7, 1, Settlement.DONE)], now)
            assert (reply.status, reply.generation) == (Status.APPLIED, known[1])
        [refused] = shard.settle([Settle(7, 1, Settlement.ABANDON)], now)
        assert (refused.status, refused.generation) == (Status.CONFLICT, 0)
        shard.tick(now + 5.0)  # the lease has run out


def test_a_registration_keeps_its_generation_over_a_planned_restart() -> None:
    shard = Shard(incarnation=1, generation=2)
    watch(shard, 0.0)
    known = watch(shard, 0.1)
    assert watch(Shard.restore(shard.dump(0.2), incarnation=9, now=50.0), 50.0) == known


def test_a_registration_after_a_planned_restart_is_not_one_from_before() -> None:
    shard = Shard(incarnation=1, generation=2)
    watch(shard, 0.0)
    known = watch(shard, 0.1)
    restored = Shard.restore(shard.dump(0.2), incarnation=9, now=50.0)
    restored.tick(60.0)
    watch(restored, 60.0)
    assert watch(restored, 60.1)[1] != known[1]
