"""The oracle of the schedules finds each broken promise, and accepts losses that faults explain."""

from __future__ import annotations

import pytest

from tests.schedules.oracle import GRACE_S, Oracle

ROOT, EDGE, CHILD = 7, 70, 71
SOURCE = 0
NOW_S, TIMEOUT_S = 1.0, 10.0


@pytest.fixture
def oracle() -> Oracle:
    """Return an oracle for two replicas, with one root that has one record."""
    oracle = Oracle(replicas=2)
    oracle.emit(ROOT, EDGE, SOURCE, 0.0, TIMEOUT_S)
    return oracle


def kinds(oracle: Oracle) -> list[str]:
    return [finding.partition(":")[0] for finding in oracle.findings]


def ack(oracle: Oracle, edge: int = EDGE) -> None:
    oracle.begin_ack(ROOT, edge, 0)
    oracle.end_ack(ROOT, edge, NOW_S)


def test_an_ack_after_all_records_were_acked_is_true(oracle: Oracle) -> None:
    ack(oracle)
    oracle.hear(ROOT, "ACKED", "", SOURCE)
    oracle.finish()
    assert kinds(oracle) == []


def test_an_ack_before_a_child_was_acked_is_false(oracle: Oracle) -> None:
    oracle.begin_ack(ROOT, EDGE, 1)
    oracle.derive(ROOT, [CHILD])
    oracle.end_ack(ROOT, EDGE, NOW_S)
    oracle.hear(ROOT, "ACKED", "", SOURCE)
    assert kinds(oracle) == ["false ACK"]


def test_an_ack_before_a_child_is_known_is_false(oracle: Oracle) -> None:
    oracle.begin_ack(ROOT, EDGE, 1)
    oracle.hear(ROOT, "ACKED", "", SOURCE)
    assert kinds(oracle) == ["false ACK"]


def test_an_ack_of_what_was_failed_before_the_last_ack_began_is_false(oracle: Oracle) -> None:
    oracle.begin_fail(ROOT)
    oracle.end_fail(ROOT)
    ack(oracle)
    oracle.hear(ROOT, "ACKED", "", SOURCE)
    assert kinds(oracle) == ["false ACK"]


def test_an_ack_of_what_was_failed_meanwhile_may_be_true(oracle: Oracle) -> None:
    oracle.begin_fail(ROOT)
    ack(oracle)
    oracle.end_fail(ROOT)
    oracle.hear(ROOT, "ACKED", "", SOURCE)
    assert kinds(oracle) == []


def test_no_outcome_is_missing_and_two_are_twice(oracle: Oracle) -> None:
    oracle.emit(8, 80, SOURCE, 0.0, TIMEOUT_S)
    oracle.hear(8, "TIMED_OUT", "", SOURCE)
    oracle.hear(8, "TIMED_OUT", "", SOURCE)
    oracle.finish()
    assert kinds(oracle) == ["twice", "missing"]


def test_an_outcome_of_nobody_and_one_of_another_source_are_strangers(oracle: Oracle) -> None:
    ack(oracle)
    oracle.hear(9, "LOST", "", SOURCE)
    oracle.hear(ROOT, "ACKED", "", SOURCE + 1)
    assert kinds(oracle) == ["stranger", "stranger"]


@pytest.mark.parametrize("verdict", ["LOST", "TIMED_OUT", "FAILED"])
def test_a_replay_of_what_was_acked_in_time_is_needless(oracle: Oracle, verdict: str) -> None:
    ack(oracle)
    oracle.hear(ROOT, verdict, "", SOURCE)
    assert kinds(oracle) == ["needless"]


def test_a_loss_is_excused_once_as_many_servers_were_hit_as_a_root_has_replicas(oracle: Oracle) -> None:
    ack(oracle)
    oracle.hit(0)
    oracle.hit(0)
    oracle.emit(8, 80, SOURCE, 0.0, TIMEOUT_S)
    oracle.hear(8, "LOST", "", SOURCE)
    oracle.hit(1)
    oracle.hear(ROOT, "LOST", "", SOURCE)
    assert kinds(oracle) == ["needless"]
    assert oracle.excused == 1


def test_a_loss_long_after_the_servers_were_well_again_is_needless(oracle: Oracle) -> None:
    for server in (0, 1):
        oracle.hit(server)
        oracle.heal(server, NOW_S)
    oracle.emit(8, 80, SOURCE, NOW_S + GRACE_S + 1.0, TIMEOUT_S)
    oracle.hear(ROOT, "LOST", "", SOURCE)
    oracle.hear(8, "LOST", "", SOURCE)
    assert kinds(oracle) == ["needless"]


def test_what_nobody_acks_times_out(oracle: Oracle) -> None:
    oracle.hear(ROOT, "TIMED_OUT", "", SOURCE)
    assert kinds(oracle) == []


def test_a_flush_that_never_returns_or_is_refused_is_found(oracle: Oracle) -> None:
    oracle.end_call(1, "unknown", 90.0, ["flush: Unavailable()"])
    oracle.end_call(1, "refused", 1.0, ["flush: UnknownBatch()"])
    assert kinds(oracle) == ["stuck", "refused"]
