"""Overview: the members and the condition of each, from the answers of servers."""

from __future__ import annotations

import pytest

from acker_command import overview
from acker_command.overview import Answer, Overview
from acker_protocol.messages import MemberState, ViewReply
from tests.command.seen import address, answer, hello, listed, silence, view

ACTIVE, DRAINING, AWAY = MemberState.ACTIVE, MemberState.DRAINING, MemberState.AWAY


def conditions(seen: Overview) -> list[tuple[int | None, str]]:
    return [(each.id, each.condition) for each in seen.members]


def ids(seen: Overview) -> list[int]:
    return [member.id for member in seen.view.members]


# -- a list


def test_of_a_list_those_who_answer_are_in_and_new_batches_go_to_those_that_do_not_drain() -> None:
    seen = overview.of_list([answer(1), silence(address(5)), answer(0, is_draining=True)])
    assert conditions(seen) == [(0, "draining"), (1, "active"), (None, "no answer")]
    assert (seen.epoch, ids(seen)) == (0, [1])
    assert seen.notes == ("10.0.0.6:7070 does not answer: connection refused",)
    assert seen.summary() == "no ZooKeeper: 3 servers, 1 active, 1 draining, 1 without an answer"


def test_two_servers_of_one_id_in_a_list_are_an_error_that_names_both_and_what_to_do() -> None:
    other = Answer("elsewhere:7070", hello(0, generation=77))
    with pytest.raises(ValueError, match=r"^the servers at 10\.0\.0\.1:7070 and elsewhere:7070 both have the id 0: st"):
        overview.of_list([answer(0), other])


def test_one_server_that_is_named_twice_is_one() -> None:
    seen = overview.of_list([answer(0), answer(0, at="acker-0:7070")])
    assert conditions(seen) == [(0, "active")]
    assert seen.notes == ("acker-0:7070 is the same server as 10.0.0.1:7070: name it once",)


# -- ZooKeeper


def test_where_servers_know_of_others_the_newest_view_says_who_there_is() -> None:
    old, new = view(7, listed(0)), view(9, listed(0), listed(1, AWAY, 42_000))
    answers = [answer(0, old), answer(2, new)]
    assert overview.newest(answers) is new
    assert overview.newest([answer(0), silence("a:1")]) is None
    seen = overview.registered(new, answers[:1])
    assert conditions(seen) == [(0, "active"), (1, "away, 42 s")]
    assert (seen.summary(), ids(seen)) == ("epoch 9: 2 servers, 1 active, 1 away", [0])


def test_a_member_that_does_not_answer_is_shown_as_the_view_has_it_and_why() -> None:
    found = view(9, listed(0), listed(1), listed(2, DRAINING))
    seen = overview.registered(found, [answer(0, found), silence(address(1)), silence(address(2), "silent for 3 s")])
    assert conditions(seen) == [(0, "active"), (1, "active, no answer"), (2, "draining, no answer")]
    # Clients wait for server 1, too: only ZooKeeper can remove it.
    assert ids(seen) == [0, 1]
    assert seen.notes == (
        "10.0.0.2:7070 does not answer: connection refused",
        "10.0.0.3:7070 does not answer: silent for 3 s",
    )


def test_a_member_that_has_just_begun_to_drain_drains_whatever_an_older_view_says() -> None:
    found = view(9, listed(0), listed(1, DRAINING))
    seen = overview.registered(found, [answer(0, found, is_draining=True), answer(1, found)])
    assert conditions(seen) == [(0, "draining"), (1, "draining")]
    assert ids(seen) == []


@pytest.mark.parametrize(
    ("odd", "note"),
    [
        (silence("gone:7070"), "gone:7070 does not answer, and is no member: it has left"),
        (answer(5, at="alone:7070"), "alone:7070 knows of no other servers and is none of these: start it with --zo"),
        (answer(5, view(3, listed(5))), "10.0.0.6:7070 (id 5) is none of epoch 9: it has just come, or is of another"),
        (
            Answer(address(1), hello(1, generation=5), ViewReply(5, 9, ())),
            "at 10.0.0.2:7070 server 1 of generation 0000000000000005 answers, and the view lists 1 of generation 5f1d",
        ),
    ],
)
def test_what_is_odd_of_a_server_that_was_named_is_said(odd: Answer, note: str) -> None:
    found = view(9, listed(0), listed(1))
    answers = [answer(0, found), odd] + ([] if odd.address == address(1) else [answer(1, found)])
    [said] = overview.registered(found, answers).notes
    assert said.startswith(note)


def test_a_member_that_was_named_by_another_address_is_not_odd() -> None:
    found = view(9, listed(0))
    seen = overview.registered(found, [answer(0, found, at="acker-0:7070"), answer(0, found)])
    assert (conditions(seen), seen.notes) == ([(0, "active")], ())
