"""Members: the view computed from ZooKeeper nodes. These tests need no ZooKeeper."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from acker_protocol.messages import PROTOCOL_VERSION, ListedMember, MemberState
from acker_service.core import members
from acker_service.core.members import Away, Registered, Seen

ONE = Registered(1, "one.example", 7070, "0.1.0", (1 << 63) + 1, 11)
TWO = Registered(2, "two.example", 7070, "0.1.0", 22, 12)
NOW_MS = 1_000_000
# A config from before ensembles were introduced.
OF_AN_OLDER_VERSION = json.dumps({"acker": "a cluster", "protocol_version": PROTOCOL_VERSION, "slots": 1024}).encode()


def states(seen: Seen, now_ms: int = NOW_MS) -> dict[int, tuple[MemberState, int]]:
    return {each.member.id: (each.state, each.away_ms) for each in seen.listed(now_ms)}


def test_a_server_and_a_member_that_is_away_are_read_as_they_were_written() -> None:
    assert Registered.load("1", ONE.dump()) == ONE
    away = Away(ONE.member, NOW_MS)
    assert Away.load("1", away.dump()) == away
    # 64-bit numbers are text, because a reader that parses JSON numbers as floats would round them.
    assert json.loads(ONE.dump())["generation"] == "0x8000000000000001"


@pytest.mark.parametrize("kind", [Registered, Away])
@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"null", b"{}", b"\xff", b'{"generation": 7}', b'{"generation": "0x1", "incarnation": null}'],
)
def test_a_node_that_holds_something_else_is_passed_over_by_name(kind: type, content: bytes) -> None:
    found, troubles = members.loaded(kind, {"1": content, "no number": ONE.dump()})
    assert not found
    assert [trouble.partition(":")[0] for trouble in troubles] == ["1", "no number"]


def test_the_view_lists_active_draining_and_away_servers() -> None:
    away = Away(replace(ONE, id=3, host="three.example").member, NOW_MS + 500)
    seen = Seen(9, (TWO, ONE), (TWO,), (away,))
    assert states(seen) == {
        1: (MemberState.ACTIVE, 0),
        2: (MemberState.DRAINING, 0),  # its registration will be removed soon
        3: (MemberState.AWAY, 500),
    }
    assert [each.member.id for each in seen.listed(NOW_MS)] == [1, 2, 3]
    assert seen.next_change_ms(NOW_MS) == 500
    assert 3 not in states(seen, NOW_MS + 500)
    assert seen.next_change_ms(NOW_MS + 500) is None


def test_an_active_server_is_not_listed_as_away_or_draining_too() -> None:
    anew = replace(ONE, generation=5, incarnation=99)
    seen = Seen(9, (anew,), (ONE,), (Away(ONE.member, NOW_MS + 500),))
    assert seen.listed(NOW_MS) == (ListedMember(anew.member),)
    # Other servers must not remove its node in away yet: it may belong to its next stop.
    assert seen.expired_away_ids(NOW_MS) == []
    assert seen.expired_away_ids(NOW_MS + 500) == [1]


def test_an_expected_server_is_away_until_a_look_after_its_time() -> None:
    seen = Seen(9, (TWO,)).expecting([ONE], NOW_MS + 500)
    assert seen.listed(NOW_MS) == (ListedMember(ONE.member, MemberState.AWAY, 500), ListedMember(TWO.member))
    assert seen.next_change_ms(NOW_MS) == 500
    # While ZooKeeper is away no server can register, so the clock alone must not remove a server.
    assert seen.listed(NOW_MS + 600) == (ListedMember(ONE.member, MemberState.AWAY, 0), ListedMember(TWO.member))
    assert seen.still_expecting(["1"], NOW_MS + 499) == seen.expected
    assert seen.still_expecting(["1"], NOW_MS + 500) == seen.still_expecting(["2"], NOW_MS) == ()
    # This server must neither write nor remove the node in away of another server.
    assert (seen.away, seen.expired_away_ids(NOW_MS + 500)) == ((), [])


def test_an_expected_server_is_not_listed_beside_one_of_its_id_or_address() -> None:
    anew, other = replace(ONE, generation=5), replace(ONE, id=3)
    for seen in (
        Seen(9, (anew,)),
        Seen(9, (), (anew,)),
        Seen(9, (other,)),
        Seen(9, (), (), (Away(anew.member, NOW_MS + 9),)),
    ):
        assert seen.expecting([ONE], NOW_MS + 500).listed(NOW_MS) == seen.listed(NOW_MS)


def test_all_expected_servers_get_the_later_time() -> None:
    seen = Seen(9).expecting([ONE, TWO], NOW_MS + 1).expecting([ONE], NOW_MS + 2)
    assert seen.expected == (Away(ONE.member, NOW_MS + 2), Away(TWO.member, NOW_MS + 2))


def test_each_change_of_the_members_has_a_log_line() -> None:
    one, two = ListedMember(ONE.member), ListedMember(TWO.member)
    drains, away = replace(one, state=MemberState.DRAINING), replace(one, state=MemberState.AWAY)
    anew = ListedMember(replace(ONE, generation=5).member)
    assert members.changes((), (one, two)) == [("member_joined", one), ("member_joined", two)]
    assert members.changes((one, two), (one, two)) == []
    assert members.changes((one, two), (two,)) == [("member_left", one)]
    assert members.changes((one,), (drains,)) == [("member_draining", drains)]
    assert members.changes((one,), (away,)) == [("member_away", away)]
    assert members.changes((away,), (one,)) == [("member_joined", one)]
    assert members.changes((one,), (anew,)) == [("member_left", one), ("member_joined", anew)]


def test_an_id_or_an_address_belongs_to_one_server() -> None:
    assert members.rival(ONE, [ONE, TWO]) is None
    same_id = replace(TWO, id=1)
    same_address = replace(ONE, id=2, incarnation=12)
    left_over = replace(ONE, incarnation=12)
    for other, sentence, may_be_dead in (
        (same_id, "id 1 is taken by the server at two.example:7070 (acker 0.1.0): give this one another --id", False),
        (same_address, "server 2 already uses the address one.example:7070", False),
        (left_over, "id 1 and address one.example:7070 are taken by a server that runs: stop it first", True),
    ):
        assert members.rival(ONE, [other]) == other
        assert members.refusal(ONE, other).startswith(sentence)
        assert members.may_be_dead(ONE, other) == may_be_dead


def test_a_config_of_this_version_is_agreed_with() -> None:
    config = members.new_config("a cluster", 7)
    assert members.disagreement(config) == ""
    assert members.renewed(config) == config


def test_a_config_is_followed_into_a_later_ensemble_and_never_back() -> None:
    known = members.new_config("a cluster", 7)
    assert members.follows(known, b"")
    assert members.follows(known, known)
    assert members.follows(members.new_config("another", 8), known)
    for older in (members.new_config("a cluster", 6), members.new_config("another", 7), OF_AN_OLDER_VERSION):
        assert not members.follows(older, known)
        renewed = members.renewed(older, members.next_ensemble(members.ensemble_of(known), NOW_MS))
        assert renewed is not None
        assert members.follows(renewed, known)
        assert members.cluster_of(renewed) == members.cluster_of(older)


def test_the_next_ensemble_is_above_the_one_that_was_known_and_not_before_its_time() -> None:
    assert members.next_ensemble(0, NOW_MS) == NOW_MS
    assert members.next_ensemble(NOW_MS + 5, NOW_MS) == NOW_MS + 6


@pytest.mark.parametrize("said", [b"", b"[]", b'{"ensemble": -1}', b'{"ensemble": "7"}', b'{"ensemble": 1e30}'])
def test_a_config_without_an_ensemble_is_of_the_first(said: bytes) -> None:
    assert members.ensemble_of(said) == 0


def test_a_config_of_an_older_acker_in_this_protocol_is_agreed_with() -> None:
    assert members.disagreement(OF_AN_OLDER_VERSION) == ""
    assert members.renewed(OF_AN_OLDER_VERSION) == members.new_config("a cluster", 0)


def test_a_config_of_another_version_says_which_and_can_be_renewed() -> None:
    older = json.dumps({"acker": "a cluster", "protocol_version": 1, "slots": 1024}).encode()
    assert f"protocol_version 1 and this one has {PROTOCOL_VERSION}" in members.disagreement(older)
    assert members.renewed(older) == members.new_config("a cluster", 0)


@pytest.mark.parametrize("config", [b"", b"null", b"{}", b"some text"])
def test_a_config_that_is_no_ackers_is_another_clusters(config: bytes) -> None:
    assert "another cluster" in members.disagreement(config)
    assert members.renewed(config) is None


def test_a_chroot_in_which_something_else_lives_is_not_taken() -> None:
    assert members.foreign(["servers", "zookeeper"]) == ""
    assert "it holds admin, brokers, cluster ..." in members.foreign(["cluster", "brokers", "feature", "admin"])
