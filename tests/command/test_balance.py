"""Balance: how many slots each member holds."""

from __future__ import annotations

import numpy as np
import pytest

from acker_command.balance import BATCHES, balance, owners
from acker_protocol.placement import View, place, slots_at_most
from tests.command.seen import member


def view(count: int) -> View:
    return View(3, tuple(member(id) for id in range(count)))


@pytest.mark.parametrize("replicas", [1, 2])
def test_slots_are_those_of_every_batch_where_each_lives_on_all_members(replicas: int) -> None:
    found = balance(view(3), replicas)
    assert found is not None
    placement = place(view(3), session=99, number=7, replicas=replicas)
    assert found.slots == {id: np.count_nonzero(placement.replicas == id) for id in range(3)}
    assert (found.batches, sum(found.slots.values())) == (1, 1024 * replicas)
    assert max(found.slots.values()) <= slots_at_most(3, replicas)
    assert 1 <= found.fullest < 1.05


def test_there_is_no_balance_of_more_replicas_than_members() -> None:
    assert balance(view(1), 2) is None
    assert balance(view(0), 1) is None


def test_beyond_the_spread_the_mean_of_many_batches_is_shown() -> None:
    found = balance(view(20), 1)
    assert found is not None
    assert (found.batches, len(found.slots)) == (BATCHES, 20)
    assert sum(found.slots.values()) == pytest.approx(1024)
    assert found.fullest < 1.25


def test_owners_are_the_servers_of_slots_where_all_batches_have_the_same() -> None:
    found = owners(view(3))
    assert found is not None
    assert np.array_equal(found, place(view(3), 5, 5, 1).replicas[:, 0])
    assert owners(view(9)) is None
    assert owners(view(0)) is None
