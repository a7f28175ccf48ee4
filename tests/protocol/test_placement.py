"""Placements: load bounds of members, movements on joins and leaves, and comparison with the steps of the .proto."""

from __future__ import annotations

import pickle
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import contract_placement
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from acker_protocol import placement as module
from acker_protocol.ids import mix64_column, slot
from acker_protocol.placement import Member, Placement, View, place, slots_at_most
from tests.vectors import make

uint64 = st.integers(0, 2**64 - 1)
# Ids, session, number, replicas, spread.
Arguments = tuple[list[int], int, int, int, int]


def view(ids: Iterable[int], *, generation: int = 1, epoch: int = 3) -> View:
    return View(epoch, tuple(Member(each, generation, f"server-{each}:7070") for each in ids))


def ids_of(placed: Placement) -> np.ndarray:
    """Return the ids of the members that hold each slot, in order: int64[1024, R]."""
    return np.array([member.id for member in placed.members])[placed.replicas]


def held_by(placed: Placement) -> set[tuple[int, int]]:
    """Return (slot, member id) for each replica."""
    return {(at, each) for at, owners in enumerate(ids_of(placed).tolist()) for each in owners}


def moved(before: Placement, after: Placement) -> int:
    """Return how many replicas of slots are on a member that did not hold them before."""
    return len(held_by(after) - held_by(before))


def loads(placed: Placement) -> list[int]:
    counts: list[int] = np.bincount(placed.replicas.ravel(), minlength=len(placed.members)).tolist()
    return counts


@st.composite
def arguments(draw: Any) -> Arguments:
    ids = draw(st.lists(st.integers(0, draw(st.sampled_from([7, 30]))), min_size=1, max_size=12, unique=True))
    replicas = draw(st.integers(1, min(3, len(ids))))
    return ids, draw(uint64), draw(st.integers(0, 2**45)), replicas, draw(st.integers(replicas, 13))


@pytest.mark.slow
@settings(max_examples=40)
@example(([2, 0], 0, 0, 2, 2))
@example(([3, 29, 0, 11], 5, 1, 1, 4))
@given(arguments())
def test_a_placement_is_what_the_steps_in_plain_integers_give(given: Arguments) -> None:
    ids, session, number, replicas, spread = given
    placed = place(view(ids), session, number, replicas, spread)
    assert ids_of(placed).tolist() == make.placement(ids, session, number, replicas, spread)


@settings(max_examples=100)
@given(arguments())
def test_each_slot_has_its_replicas_on_distinct_members_and_no_member_has_more_than_its_bound(given: Arguments) -> None:
    ids, session, number, replicas, spread = given
    placed = place(view(ids), session, number, replicas, spread)
    assert len(placed.members) == min(spread, len(ids))
    assert placed.members == tuple(sorted(placed.members))
    assert placed.replicas.shape == (1024, replicas)
    assert all(len(set(owners)) == replicas for owners in placed.replicas.tolist())
    assert max(loads(placed)) <= slots_at_most(len(placed.members), replicas)


def strangers(count: int, seed: int) -> Iterator[tuple[Arguments, bool]]:
    """Yield random arguments, and whether ours equals the placement coded from the text of acker.proto alone."""
    draw = random.Random(seed)
    for _ in range(count):
        ids = draw.sample(range(draw.choice([4, 9, 14, 40])), draw.randrange(1, 5)) if draw.random() < 0.5 else []
        ids = ids or draw.sample(range(draw.choice([14, 20])), draw.randrange(1, 15))
        replicas = draw.randrange(1, min(4, len(ids)) + 1)
        session, number = draw.getrandbits(64), draw.getrandbits(draw.choice([4, 45, 64]))
        given = ids, session, number, replicas, draw.randrange(replicas, 13)
        yield given, ids_of(place(view(ids), *given[1:])).tolist() == contract_placement.place(*given)


@pytest.mark.slow
@pytest.mark.parametrize("views", [60, pytest.param(2000, marks=pytest.mark.long)])
def test_a_placement_written_from_the_text_of_the_contract_alone_is_ours(views: int) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    assert [given for given, is_ours in strangers(views, seed) if not is_ours] == []


@pytest.mark.parametrize(
    ("name", "misread"),
    [
        ("swapped", contract_placement.score),
        ("score", lambda i, slot: contract_placement.mix64(i * 1024 + slot)),
        ("fill", lambda lists, members, bound: None),
    ],
)
def test_a_stranger_who_has_misread_a_step_is_found_out(
    name: str, misread: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contract_placement, name, misread)
    contract_placement.table.cache_clear()
    try:
        assert not all(is_ours for _, is_ours in strangers(20, 7))
    finally:
        contract_placement.table.cache_clear()


def test_the_bound_is_a_twentieth_above_the_mean_rounded_up() -> None:
    assert slots_at_most(3, 1) == 359  # 358.4
    assert slots_at_most(200, 1) == 6  # 5.376
    assert slots_at_most(2, 2) == 1024
    assert slots_at_most(2000, 1) == 1


def test_a_slot_whose_members_with_room_all_hold_it_is_filled_by_an_exchange() -> None:
    # Constructed: members 0 and 1 fill up. Member 2 has room, but already holds every slot that lacks a replica.
    full, lacking = [0, 1], [2, module._NOBODY]
    held = np.array([full] * 600 + [lacking] * 424)
    expected: list[list[int | None]] = [[0, 1] for _ in range(600)]
    expected += [[2, None] for _ in range(424)]
    module._fill(held, np.array([0, 1, 2]))
    strangers: list[list[int | None]] = [list(row) for row in expected]
    make.fill(expected, [0, 1, 2], slots_at_most(3, 2))
    contract_placement.fill(strangers, [0, 1, 2], slots_at_most(3, 2))
    contract_placement.exchange(strangers, [0, 1, 2])
    assert held.tolist() == expected == strangers
    assert max(Counter(held.ravel().tolist()).values()) <= slots_at_most(3, 2)
    assert all(len(set(owners)) == 2 for owners in held.tolist())


# -- stability


@settings(max_examples=50)
@given(arguments(), st.randoms(use_true_random=False))
def test_members_in_another_order_are_placed_the_same(given: Arguments, draw: Any) -> None:
    ids, session, number, replicas, spread = given
    shuffled = draw.sample(ids, len(ids))
    one, other = (place(view(order), session, number, replicas, spread) for order in (ids, shuffled))
    assert one.members == other.members
    assert one.replicas.tolist() == other.replicas.tolist()


def test_a_member_keeps_its_place_when_its_generation_or_its_address_changes() -> None:
    before = place(view([0, 1, 2, 5]), 1, 2, 2)
    members = (*view([0, 1, 5]).members, Member(2, 99, "elsewhere:1"))
    assert ids_of(place(View(4, members), 1, 2, 2)).tolist() == ids_of(before).tolist()


def test_another_process_places_the_same() -> None:
    program = (
        "from acker_protocol.placement import *; import hashlib;"
        "view = View(3, tuple(Member(each, 1, f'server-{each}:7070') for each in (0, 1, 2, 4, 9, 3, 8, 7, 5)));"
        "print(hashlib.sha256(b''.join(place(view, 5, n, 2, s).replicas.tobytes() for n in (0, 1) for s in (4, 9)))"
        ".hexdigest())"
    )
    digests = {subprocess.check_output([sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}) for seed in "12"}
    assert len(digests) == 1


@pytest.mark.parametrize("replicas", [1, 2, 3])
@pytest.mark.parametrize("members", [3, 4, 33, 171, 199])
def test_where_ids_have_no_gap_a_join_and_a_leave_move_what_they_must_and_nothing_else(
    members: int, replicas: int
) -> None:
    ids = range(members)
    before = place(view(ids), 1, 1, replicas, spread=members)
    joined = place(view([*ids, members]), 1, 1, replicas, spread=members + 1)
    assert moved(before, joined) == loads(joined)[-1]
    for each in random.Random(members).sample(ids, 3):
        left = [other for other in ids if other != each]
        if len(left) >= replicas:
            after = place(view(left), 1, 1, replicas, spread=members)
            assert moved(before, after) == loads(before)[each]


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_where_ids_have_no_gap_counts_differ_by_one_at_most(replicas: int) -> None:
    for members in (3, 10, 170, 200):
        counts = loads(place(view(range(members)), 1, 1, replicas, spread=members))
        assert max(counts) - min(counts) <= 1


# -- spread


@settings(max_examples=50)
@given(arguments(), st.integers(31, 40))
def test_a_member_that_joins_takes_the_place_of_one_of_the_chosen_at_most(given: Arguments, joining: int) -> None:
    ids, session, number, replicas, spread = given
    before = place(view(ids), session, number, replicas, spread).members
    after = place(view([*ids, joining]), session, number, replicas, spread).members
    assert len(set(before) - set(after)) <= 1
    assert {member.id for member in set(after) - set(before)} <= {joining}


def test_batches_of_a_spread_are_even_over_the_members() -> None:
    counts, batches = Counter[int](), 3000
    for number in range(batches):
        placed = place(view(range(40)), 77, number, 2, spread=8)
        counts.update(dict(zip((member.id for member in placed.members), loads(placed), strict=True)))
    assert sum(counts.values()) == batches * 2048
    mean = batches * 2048 / 40
    # 600 of 3000 batches each: four standard deviations are 15 %.
    assert all(abs(counts[each] / mean - 1) < 0.15 for each in range(40))


def test_other_batches_and_other_sessions_live_on_other_members() -> None:
    def chosen(session: int, number: int) -> tuple[int, ...]:
        return tuple(member.id for member in place(view(range(100)), session, number, 2).members)

    assert len({chosen(session, number) for session in (1, 2**63) for number in range(10)}) == 20
    assert all(len(chosen(1, number)) == 8 for number in range(10))


# -- a placement as a value


def test_a_placement_pickles_small_and_comes_back_the_same() -> None:
    placed = place(view(range(200)), 1, 2, 2)
    pickled = pickle.dumps(placed)
    assert len(pickled) < 5000
    again = pickle.loads(pickled)
    assert (again.epoch, again.members) == (placed.epoch, placed.members)
    assert again.replicas.tolist() == placed.replicas.tolist()
    assert placed.replicas.dtype == np.uint16


def test_the_slots_of_a_member_are_1024_bits() -> None:
    placed = place(view(range(5)), 1, 2, 2)
    for index in range(5):
        bits = placed.slots_of(index)
        assert len(bits) == 128
        slots = {at for at in range(1024) if bits[at // 8] >> at % 8 & 1}
        assert slots == {at for at in range(1024) if index in placed.replicas[at]}


def test_sections_go_to_the_replicas_of_their_slot() -> None:
    placed = place(view(range(5)), 1, 2, 2)
    roots = mix64_column(np.arange(1, 100, dtype=np.uint64))
    assert placed.replicas_of(roots).tolist() == [placed.replicas[slot(root)].tolist() for root in roots.tolist()]
    with pytest.raises(TypeError, match="root_ids is int64"):
        placed.replicas_of(roots.view(np.int64))


def test_a_placement_is_not_written_into() -> None:
    with pytest.raises(ValueError, match="read-only"):
        place(view([0]), 1, 2, 1).replicas[0] = 1


# -- refused arguments


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ((-1, 1, "a:1"), "member -1: an id is a number from 0 to 1023; number the servers 0, 1, 2 ..."),
        ((1024, 1, "a:1"), "member 1024: an id is a number from 0 to 1023; number the servers 0, 1, 2 ..."),
        (("one", 1, "a:1"), "member 'one': an id is a number from 0 to 1023; number the servers 0, 1, 2 ..."),
        ((True, 1, "a:1"), "member True: an id is a number from 0 to 1023; number the servers 0, 1, 2 ..."),
        ((1, 2**64, "a:1"), "member 1: generation 18446744073709551616 is not an unsigned 64-bit number"),
        ((1, 1, ""), "member 1: address '' is empty or not text; give host:port"),
    ],
)
def test_a_member_that_cannot_be_is_refused_in_a_sentence(values: tuple[Any, ...], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        Member(*values)


def test_two_members_of_one_id_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^view: a:1 and b:1 have the same id 4; give one another$"):
        View(1, (Member(4, 1, "a:1"), Member(4, 2, "b:1")))


def test_a_negative_epoch_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^view: epoch -1 is negative$"):
        View(-1, ())


def test_more_replicas_than_members_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"^replicas: 3 asked for and 2 members in the view; ask for fewer, or start more"
    ):
        place(view([0, 1]), 1, 1, 3)


def test_an_empty_view_is_a_view_and_places_nothing() -> None:
    with pytest.raises(ValueError, match=r"^replicas: 1 asked for and 0 members in the view"):
        place(View(1, ()), 1, 1, 1)


def test_a_spread_below_the_replicas_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^spread: 2 members cannot hold 3 replicas; set spread to 3 or more$"):
        place(view(range(5)), 1, 1, 3, spread=2)


def test_no_replicas_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^replicas: 0 is less than 1$"):
        place(view([0]), 1, 1, 0)
