"""Chapter 4 of acker.proto: reports, their sections and messages, their identities."""

from __future__ import annotations

import pytest
from contract_client import (
    Acker,
    Entry,
    Source,
    ack,
    digest,
    edge0,
    fail,
    fold,
    message,
    reset,
    section_statuses,
    sections,
    slot,
    status,
    task_identity,
)
from contract_stubs import pb

ACKED = ("VERDICT_ACKED", "")
COUNT = 40


@pytest.fixture
def source(acker: Acker) -> Source:
    """A source with one-edge trees, numbers 0 to COUNT - 1."""
    source = acker.source()
    source.init(*acks(source))
    return source


def acks(source: Source) -> list[Entry]:
    return [ack(source.root(number), edge0(source.root(number))) for number in range(COUNT)]


def all_acked(source: Source) -> bool:
    return source.hear(COUNT) == {source.root(number): ACKED for number in range(COUNT)}


def test_a_report_has_many_sections_and_each_counts(acker: Acker, source: Source) -> None:
    assert len(sections(fold(acks(source)))) > 1
    reply = acker.sender().report(*acks(source))
    assert (status(reply), section_statuses(reply)) == ("STATUS_APPLIED", [])
    assert all_acked(source)


def test_a_report_may_come_in_several_messages_in_any_order(acker: Acker, source: Source) -> None:
    sender, entries = acker.sender(), fold(acks(source))
    identity = sender.identity()
    for section in reversed(sections(entries)):
        assert status(acker.apply(message(identity, entries, section))) == "STATUS_APPLIED"
    assert all_acked(source)


def test_what_was_applied_before_is_a_duplicate_and_changes_nothing(acker: Acker, source: Source) -> None:
    entries = fold(acks(source))
    request = message(acker.sender().identity(), entries, entries)
    assert status(acker.apply(request)) == "STATUS_APPLIED"
    assert status(acker.apply(request)) == "STATUS_DUPLICATE"
    # An ack that counts twice undoes itself, so no ack val here would ever become 0.
    assert all_acked(source)


def test_each_section_is_applied_or_duplicate_by_itself_however_the_report_is_split(
    acker: Acker, source: Source
) -> None:
    entries = fold(acks(source))
    identity, cut = acker.sender().identity(), sections(entries)
    some = [entry for section in cut[::2] for entry in section]
    assert status(acker.apply(message(identity, entries, some))) == "STATUS_APPLIED"
    reply = acker.apply(message(identity, entries, entries))
    assert status(reply) == "STATUS_APPLIED"
    expected = ["STATUS_DUPLICATE" if n % 2 == 0 else "STATUS_APPLIED" for n in range(len(cut))]
    assert section_statuses(reply) == expected
    assert all_acked(source)


def test_the_same_identity_with_another_digest_is_a_conflict_and_changes_nothing(acker: Acker, source: Source) -> None:
    first, rest = acks(source)[:1], acks(source)[1:]
    identity = acker.sender().identity()
    assert status(acker.apply(message(identity, first, first))) == "STATUS_APPLIED"
    entries = fold(rest)
    reply = acker.apply(message(identity, entries, entries))
    assert (status(reply), section_statuses(reply)) == ("STATUS_CONFLICT", [])
    assert list(source.hear(1)) == [first[0].root]
    assert not source.watch().root_ids


def test_reasons_do_not_count_in_the_digest(acker: Acker, source: Source) -> None:
    root = source.root(0)
    identity = acker.sender().identity()
    for reason, expected in (("at 12:00", "STATUS_APPLIED"), ("at 12:01", "STATUS_DUPLICATE")):
        entries = [fail(root, reason)]
        assert status(acker.apply(message(identity, entries, entries))) == expected
    assert source.hear(1) == {root: ("VERDICT_FAILED", "at 12:00")}


def test_acks_fails_and_resets_share_a_report_and_inits_do_not(acker: Acker, source: Source) -> None:
    zero, one, two = (source.root(number) for number in range(3))
    reply = acker.sender().report(ack(zero, edge0(zero)), fail(one, "no price"), reset(two))
    assert status(reply) == "STATUS_APPLIED"
    assert source.hear(2) == {zero: ACKED, one: ("VERDICT_FAILED", "no price")}


def test_a_sequence_older_than_the_window_is_stale_and_changes_nothing(acker: Acker, source: Source) -> None:
    window = acker.call("Hello", protocol_version=2).sequence_window
    high = acker.sender().high
    root = source.root(0)

    def say(low: int, *entries: Entry) -> str:
        return status(source.report(*entries, identity=pb.Identity(high=high, low=low, sequenced=True)))

    assert say(window, reset(root)) == "STATUS_APPLIED"
    assert say(0, ack(root, edge0(root))) == "STATUS_STALE"
    # Sequence 1 is the oldest in the window. It still counts, although a later sequence came first.
    assert say(1, ack(root, edge0(root))) == "STATUS_APPLIED"
    assert source.hear(1) == {root: ACKED}


def test_two_attempts_at_the_same_work_count_once(acker: Acker, source: Source) -> None:
    identity = task_identity("orders.items", [(entry.root, entry.ack_val) for entry in acks(source)])
    replies = [acker.sender().report(*acks(source), identity=identity) for _ in range(2)]
    assert [status(reply) for reply in replies] == ["STATUS_APPLIED", "STATUS_DUPLICATE"]
    assert all_acked(source)


def test_a_sequenced_and_an_unsequenced_identity_with_the_same_numbers_are_different(source: Source) -> None:
    for sequenced, number in ((True, 0), (False, 1)):
        root = source.root(number)
        identity = pb.Identity(high=source.high, low=1000, sequenced=sequenced)
        assert status(source.report(ack(root, edge0(root)), identity=identity)) == "STATUS_APPLIED"


def test_the_server_does_not_check_the_digest_against_the_entries(acker: Acker, source: Source) -> None:
    entries = fold(acks(source))
    request = message(acker.sender().identity(), entries, entries)
    request.digest = 5
    assert digest(entries) != 5
    assert status(acker.apply(request)) == "STATUS_APPLIED"
    assert all_acked(source)


def test_a_report_is_refused_where_its_entries_do_not_ascend(acker: Acker, source: Source) -> None:
    ascending = fold(acks(source))
    for disorder in (ascending[::-1], [*ascending[:1], *ascending], [*ascending[1:], ascending[0]], [Entry(0, 1)]):
        reply = acker.apply(message(acker.sender().identity(), disorder, disorder))
        assert status(reply) == "STATUS_INVALID"
        assert reply.detail.startswith("root_ids: ")


def test_folded_entries_are_in_slot_order(source: Source) -> None:
    entries = fold(acks(source))
    assert [slot(entry.root) for entry in entries] == sorted(slot(entry.root) for entry in entries)
