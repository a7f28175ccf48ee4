"""Opening a batch at its members: which answers make a member lost or left out."""

from __future__ import annotations

import pytest

from acker_client.cluster.opening import Opening
from acker_client.cluster.pinned_batch import PinnedBatch
from acker_client.pins import Pin
from acker_protocol.messages import OpenBatch
from acker_protocol.placement import Member, View, place

ONE, TWO = Member(1, 10, "one:7070"), Member(2, 20, "two:7070")


@pytest.fixture
def batch() -> PinnedBatch:
    pin = Pin(5, 1, 1, 100, place(View(1, (ONE, TWO)), 5, 1, 1))
    return PinnedBatch(pin, OpenBatch(5, 1, 1, 100, True))


def test_a_member_that_registers_the_source_while_a_batch_is_opened_there_has_not_lost_it(batch: PinnedBatch) -> None:
    assert not batch.was_lost_by(ONE, 8)
    batch.opened_on(ONE, 8)
    assert not batch.was_lost_by(ONE, 8)


def test_a_member_that_has_another_registration_after_a_batch_was_opened_there_has_lost_it(batch: PinnedBatch) -> None:
    batch.opened_on(ONE, 8)
    assert batch.was_lost_by(ONE, 9)
    assert not batch.was_lost_by(TWO, 9)


def test_a_batch_waits_for_a_server_that_is_the_only_one() -> None:
    opening = Opening((ONE,), lambda member: False)
    assert not opening.can_do_without(ONE)


def test_a_batch_does_not_wait_for_a_server_once_there_is_another() -> None:
    assert Opening((ONE,), lambda member: member == ONE).can_do_without(ONE)


def test_a_server_that_is_silent_while_another_opens_a_batch_is_left_out() -> None:
    opening = Opening((ONE, TWO), lambda member: False)
    assert not opening.can_do_without(TWO)
    opening.opened_on(ONE)
    assert opening.can_do_without(TWO)
    assert not opening.can_do_without(ONE)
