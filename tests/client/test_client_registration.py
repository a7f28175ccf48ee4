"""A source's registration at one server: what each Watch reply tells it."""

from __future__ import annotations

import zlib
from dataclasses import replace

import numpy as np
import pytest

from acker_client.cluster.registration import Registration
from acker_protocol.messages import Outcomes, Status, WatchReply


@pytest.fixture
def registration() -> Registration:
    """A registration that has received three outcomes."""
    registration = Registration("orders", 5, 30.0, b"pins", 0.0)
    first = registration.heard(registration.request(0, 10), WatchReply(1, Status.APPLIED, "", True, 11, 0), 1.0)
    assert first is not None
    assert not first.lost_because
    registration.heard(registration.request(0, 10), answer(cursor=3, count=3), 2.0)
    return registration


def answer(*, cursor: int, count: int = 0, generation: int = 11, is_new: bool = False) -> WatchReply:
    outcomes = Outcomes(np.arange(1, count + 1, dtype=np.uint64), np.ones(count, np.uint8))
    return WatchReply(1, Status.APPLIED, "", is_new, generation, cursor, outcomes)


def is_lost(registration: Registration) -> bool:
    """Return whether the next answer, with the same registration, reports a loss."""
    assert registration.generation is not None
    found = registration.heard(registration.request(0, 10), answer(cursor=9, generation=registration.generation), 9.0)
    assert found is not None
    return bool(found.lost_because)


def test_outcomes_are_confirmed_by_the_next_request(registration: Registration) -> None:
    assert registration.request(0, 10).confirmed == 3


def test_a_new_generation_is_reported_once(registration: Registration) -> None:
    changed = registration.heard(registration.request(0, 10), answer(cursor=0, generation=12), 3.0)
    assert changed is not None
    assert changed.lost_because
    again = registration.heard(registration.request(0, 10), answer(cursor=0, generation=12), 4.0)
    assert again is not None
    assert not again.lost_because


def test_a_known_registration_answered_as_new_counts_as_changed(registration: Registration) -> None:
    changed = registration.heard(registration.request(0, 10), answer(cursor=0, generation=12, is_new=True), 3.0)
    assert changed is not None
    assert changed.lost_because


def test_of_the_first_two_answers_the_first_may_come_last() -> None:
    registration = Registration("orders", 5, 30.0, b"pins", 0.0)
    renewal, poll = registration.request(0, 1), registration.request(5, 10)
    registration.heard(poll, answer(cursor=0), 1.0)
    assert registration.renewed(renewal, answer(cursor=0, is_new=True), 1.1)
    assert not is_lost(registration)


def test_a_cursor_that_went_back_tells_of_a_new_registration_whose_answer_was_lost(registration: Registration) -> None:
    changed = registration.heard(registration.request(0, 10), answer(cursor=1), 3.0)
    assert changed is not None
    assert changed.lost_because


def test_a_cursor_that_the_server_does_not_know_is_asked_again_from_the_start(registration: Registration) -> None:
    refused = replace(answer(cursor=0), status=Status.INVALID, detail="confirmed: beyond the last outcome")
    assert registration.heard(registration.request(0, 10), refused, 3.0) is None
    assert registration.request(0, 10).confirmed == 0
    found = registration.heard(registration.request(0, 10), answer(cursor=2, count=2), 4.0)
    assert found is not None
    assert found.lost_because
    assert len(found.outcomes) == 2


def test_a_renewal_takes_no_outcomes_and_the_next_watch_reports_its_findings(registration: Registration) -> None:
    assert registration.renewed(registration.request(0, 1), answer(cursor=1, count=1, generation=12), 3.0)
    assert registration.request(0, 10).confirmed == 0
    assert is_lost(registration)
    assert not is_lost(registration)


def test_a_late_answer_to_a_renewal_is_no_loss(registration: Registration) -> None:
    renewal = registration.request(0, 1)
    registration.heard(registration.request(0, 10), answer(cursor=9, count=6), 3.0)
    assert registration.renewed(renewal, answer(cursor=4, count=1), 4.0)
    assert not is_lost(registration)
    assert registration.request(0, 10).confirmed == 9


def test_no_poll_waits_longer_than_a_third_of_the_lease(registration: Registration) -> None:
    assert registration.request(3600, 10).wait_ms == 10_000


def test_a_long_silence_is_no_loss_while_the_registration_is_the_same(registration: Registration) -> None:
    found = registration.heard(registration.request(0, 10), answer(cursor=3), 400.0)
    assert found is not None
    assert not found.lost_because


def test_pins_are_sent_until_the_server_has_them_and_again_when_a_delayed_poll_has_brought_older_ones(
    registration: Registration,
) -> None:
    def poll(kept: bytes) -> bytes:
        """Poll a server that keeps the pins ``kept``. Return the pins that the poll sent."""
        request = registration.request(0, 10)
        assert registration.heard(request, replace(answer(cursor=3), pins_crc32=zlib.crc32(kept)), 3.0)
        return request.pins

    registration.publish(b"newer")
    assert [poll(kept) for kept in (b"pins", b"newer", b"newer")] == [b"newer", b"newer", b""]
    assert [poll(kept) for kept in (b"pins", b"newer", b"newer")] == [b"", b"newer", b""]
