"""Chapter 5 of acker.proto: sources, their leases, cursors and generations."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from contract_client import WAIT_MS, Acker, Source, ack, outcomes, status, values

PATIENCE_S = 30.0


def trees(source: Source, start: int, stop: int) -> list[int]:
    """Init trees that are done at once. Returns their roots."""
    roots = [source.root(number) for number in range(start, stop)]
    source.init(*(ack(root) for root in roots))
    return roots


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it never came to hold"


def test_the_first_watch_opens_the_source_and_the_second_finds_it(acker: Acker) -> None:
    source = Source(acker)
    first, second = source.watch(wait_ms=WAIT_MS), source.watch()
    assert [reply.is_new for reply in (first, second)] == [True, False]
    assert first.generation == second.generation != 0
    assert (first.cursor, second.cursor) == (0, 0)


def test_inits_of_a_source_that_is_not_open_are_of_an_unknown_source(acker: Acker) -> None:
    source = Source(acker)
    for refused in (source.init(ack(source.root(0))), source.open_batch(1, 10), source.settle(1, "SETTLEMENT_DONE")):
        assert status(refused) == "STATUS_UNKNOWN_SOURCE"
    source.watch()
    trees(source, 0, 1)
    assert len(source.hear(1)) == 1


def test_an_outcome_comes_again_until_it_is_confirmed(acker: Acker) -> None:
    source = acker.source()
    roots = trees(source, 0, 3)
    for _ in range(2):
        reply = source.watch(confirmed=0)
        assert (sorted(outcomes(reply)), reply.cursor) == (sorted(roots), 3)
    rest = source.watch(confirmed=2)
    assert (len(values(rest.root_ids)), rest.cursor) == (1, 3)
    # A smaller cursor than before brings nothing back.
    assert source.watch(confirmed=1).root_ids == rest.root_ids
    assert not source.watch(confirmed=3).root_ids


def test_outcomes_come_in_portions_in_their_order(acker: Acker) -> None:
    source = acker.source()
    for number in range(5):
        trees(source, number, number + 1)
    heard: list[int] = []
    cursors: list[int] = []
    while len(heard) < 5:
        reply = source.watch(max_outcomes=2)
        source.cursor = reply.cursor
        heard += values(reply.root_ids)
        cursors.append(reply.cursor)
    assert heard == [source.root(number) for number in range(5)]
    assert cursors == [2, 4, 5]


def test_max_outcomes_of_zero_is_as_many_as_there_are(acker: Acker) -> None:
    source = acker.source()
    trees(source, 0, 5)
    assert len(source.watch(max_outcomes=0).root_ids) == 5 * 8


def test_a_cursor_beyond_the_last_outcome_is_invalid_and_the_reply_names_the_generation(acker: Acker) -> None:
    source = acker.source()
    generation = source.watch().generation
    reply = source.watch(confirmed=1)
    assert (status(reply), reply.generation) == ("STATUS_INVALID", generation)
    assert reply.detail.startswith("confirmed: ")


def test_a_watch_waits_for_the_first_outcome(acker: Acker) -> None:
    source, replies = acker.source(), []
    waiting = threading.Thread(target=lambda: replies.append(source.watch(wait_ms=WAIT_MS)))
    waiting.start()
    (root,) = trees(source, 0, 1)
    waiting.join()
    assert outcomes(replies[0]) == {root: ("VERDICT_ACKED", "")}


def test_a_watch_is_answered_after_its_wait_also_with_nothing(acker: Acker) -> None:
    reply = acker.source().watch(wait_ms=50)
    assert (status(reply), reply.cursor, reply.root_ids) == ("STATUS_APPLIED", 0, b"")


def test_a_lease_that_runs_out_drops_the_source_and_the_generation_says_so(acker: Acker) -> None:
    source = acker.source(lease_ms=1)
    generation = source.watch(lease_ms=60_000).generation
    source.init(ack(source.root(0), 5))
    source.watch(lease_ms=1)
    until(lambda: status(source.init(ack(source.root(1), 5))) == "STATUS_UNKNOWN_SOURCE")
    reply = source.watch(lease_ms=60_000)
    assert (reply.is_new, reply.cursor) == (True, 0)
    assert reply.generation != generation
    # The server has forgotten the pending root, so its init is new again.
    assert source.init(ack(source.root(0), 5)).inits_known == 0


@pytest.mark.long
def test_a_watch_that_waits_does_not_outlast_its_lease(acker: Acker) -> None:
    source = Source(acker, lease_ms=4000)
    first = source.watch()
    second = source.watch(wait_ms=WAIT_MS, max_outcomes=10)
    assert (second.is_new, second.generation) == (False, first.generation)


def test_the_reply_states_the_lease_that_was_granted(acker: Acker) -> None:
    source = acker.source()
    assert source.watch(lease_ms=5000).lease_ms == 5000
    assert source.watch(lease_ms=4_000_000_000).lease_ms == 3_600_000


def test_a_source_that_is_closed_is_gone_with_its_outcomes(acker: Acker) -> None:
    source = acker.source()
    generation = source.watch().generation
    trees(source, 0, 2)
    reply = source.watch(close=True)
    assert (status(reply), reply.is_new, reply.lease_ms, reply.root_ids) == ("STATUS_APPLIED", False, 0, b"")
    assert status(source.init(ack(source.root(3)))) == "STATUS_UNKNOWN_SOURCE"
    again = source.watch()
    assert (again.is_new, again.cursor) == (True, 0)
    assert again.generation != generation


# -- restarts of the server


@pytest.fixture
def restarted(server_process: Callable[..., Any], tmp_path: Path) -> Any:
    """A server that keeps its state over a planned restart."""
    return server_process(f"--state-dir={tmp_path}")


@pytest.mark.long
def test_a_restart_with_state_has_another_incarnation_and_loses_nothing(restarted: Any) -> None:
    with Acker(restarted.address) as acker:
        source = acker.source()
        before = source.watch()
        told, pending, late = (source.root(number) for number in range(3))
        source.init(ack(told))
        source.open_batch(1, 10)
        identity = source.identity()
        source.init(ack(pending, 5), batch=1, identity=identity)
        assert restarted.terminate() == 0
        restarted.start()
        after = source.watch()
        assert after.incarnation != before.incarnation
        assert (after.is_new, after.generation) == (False, before.generation)
        assert outcomes(after) == {told: ("VERDICT_ACKED", "")}
        source.cursor = after.cursor
        # Identities, batches and trees go on as well.
        assert status(source.init(ack(pending, 5), batch=1, identity=identity)) == "STATUS_DUPLICATE"
        source.init(ack(late, 5), batch=1, covered=[0, 10])
        source.report(ack(pending, 5))
        assert source.settle(1, "SETTLEMENT_DONE").roots == 2
        assert source.hear(2) == {pending: ("VERDICT_ACKED", ""), late: ("VERDICT_FAILED", "unfinished")}


@pytest.mark.long
def test_a_restart_without_state_has_another_generation_and_has_lost_all(restarted: Any) -> None:
    with Acker(restarted.address) as acker:
        source = acker.source()
        before = source.watch()
        source.init(ack(source.root(0)), ack(source.root(1), 5))
        source.cursor = source.watch().cursor
        source.open_batch(1, 10)
        restarted.restart(kill=True)
        # Until the next Watch the server knows neither the session nor its batches.
        assert status(source.init(ack(source.root(2)), batch=1)) == "STATUS_UNKNOWN_SOURCE"
        after = source.watch()
        assert (after.is_new, after.cursor) == (True, 0)
        assert after.generation != before.generation
        # That reply may be lost. The next reply has the new generation too, whatever the Watch confirms.
        again = source.watch()
        assert (status(again), again.is_new, again.generation) == ("STATUS_INVALID", False, after.generation)
        assert status(source.init(ack(source.root(2)), batch=1)) == "STATUS_UNKNOWN_BATCH"
        assert status(source.open_batch(1, 10)) == "STATUS_APPLIED"
