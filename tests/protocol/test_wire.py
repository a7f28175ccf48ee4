"""The wire format: decoding inverts encoding, and malformed bytes raise only Malformed, which names the field."""

from __future__ import annotations

import contextlib
from typing import Any, TypeVar

import numpy as np
import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from acker_protocol import messages, reports, wire
from acker_protocol.messages import ACK, FAIL, Cause, Identity, InitScope, Limits, Outcomes, Settlement, Status, Verdict
from acker_protocol.placement import Member, epoch_of, parts_of
from acker_protocol.v1 import acker_pb2 as pb
from tests.protocol.drawn_reports import Ack, Update, acks, updates
from tests.protocol.drawn_reports import ids as column
from tests.protocol.test_reports import as_twin, folded

pytestmark = pytest.mark.matrix

uint64 = st.integers(0, 2**64 - 1)
uint32 = st.integers(0, 2**32 - 1)
sentences = st.text(max_size=20)
identities = st.builds(Identity, uint64, uint64, st.booleans())
limits = st.builds(Limits, uint32, uint32)
statuses = st.sampled_from(Status)
some_bytes = st.binary(max_size=40)
members = st.builds(
    messages.ListedMember,
    st.builds(Member, st.integers(0, 1023), uint64, st.text(min_size=1, max_size=20)),
    st.sampled_from(messages.MemberState),
    uint32,
)

_Sent = TypeVar("_Sent", bound=Message)

# Messages whose fields compare by value: (protobuf class, strategy for messages).
PLAIN: dict[type[Any], tuple[type[Message], st.SearchStrategy[Any]]] = {
    messages.Hello: (pb.HelloRequest, st.builds(messages.Hello, uint32, sentences)),
    messages.HelloReply: (
        pb.HelloReply,
        st.builds(
            messages.HelloReply, uint32, sentences, uint64, uint64, uint32, uint32, uint64, st.booleans(), uint64
        ),
    ),
    messages.OpenBatch: (
        pb.OpenBatchRequest,
        st.builds(messages.OpenBatch, uint64, uint64, uint64, uint64, st.booleans(), limits),
    ),
    messages.OpenBatchReply: (
        pb.OpenBatchReply,
        st.builds(messages.OpenBatchReply, uint64, statuses, uint32, sentences, uint64),
    ),
    messages.Settle: (
        pb.SettleRequest,
        st.builds(messages.Settle, uint64, uint64, st.sampled_from(Settlement)),
    ),
    messages.SettleReply: (
        pb.SettleReply,
        st.builds(messages.SettleReply, uint64, statuses, sentences, uint64, uint64, uint64, uint64),
    ),
    messages.Watch: (
        pb.WatchRequest,
        st.builds(messages.Watch, sentences, uint64, uint32, limits, uint64, uint32, uint32, st.booleans(), some_bytes),
    ),
    messages.StatsReply: (
        pb.StatsReply,
        st.builds(
            messages.StatsReply,
            uint64,
            sentences,
            st.dictionaries(sentences, st.floats(allow_nan=False), max_size=5),
            uint64,
        ),
    ),
    messages.ViewReply: (
        pb.ViewReply,
        st.builds(messages.ViewReply, uint64, uint64, st.lists(members, max_size=3).map(tuple)),
    ),
    messages.DrainReply: (
        pb.DrainReply,
        st.builds(messages.DrainReply, uint64, statuses, sentences, uint64),
    ),
    messages.Pins: (pb.PinsRequest, st.builds(messages.Pins, uint64, uint64)),
    messages.PinsReply: (
        pb.PinsReply,
        st.builds(messages.PinsReply, uint64, statuses, sentences, some_bytes, uint64),
    ),
}
KINDS: dict[type[Any], type[Message]] = {kind: protobuf for kind, (protobuf, _) in PLAIN.items()} | {
    messages.Apply: pb.ApplyRequest,
    messages.ApplyReply: pb.ApplyReply,
    messages.WatchReply: pb.WatchReply,
}


def travelled(encoded: _Sent) -> _Sent:
    return type(encoded).FromString(encoded.SerializeToString())


@pytest.mark.sampled(12)
@pytest.mark.parametrize("kind", PLAIN)
@given(st.data())
def test_a_plain_message_arrives_as_it_was_sent(kind: type[Any], data: st.DataObject) -> None:
    protobuf, strategy = PLAIN[kind]
    sent = data.draw(strategy)
    encoded = wire.encode(sent)
    assert isinstance(encoded, protobuf)
    assert wire.decode(kind, travelled(encoded)) == sent


@given(identities, updates, uint64)
def test_a_report_of_updates_arrives_as_it_was_sent(
    identity: Identity, given_updates: list[Update], digest: int
) -> None:
    entries = folded(given_updates)
    arrived = wire.decode(messages.Apply, travelled(wire.encode(messages.Apply(identity, digest, entries))))
    assert (arrived.identity, arrived.digest, arrived.inits) == (identity, digest, None)
    assert as_twin(arrived.entries) == as_twin(entries)


@given(acks, uint64, uint64, st.lists(st.tuples(uint64, uint64).map(sorted), max_size=4))
def test_a_report_of_inits_arrives_as_it_was_sent(
    given_acks: list[Ack], session: int, batch: int, covered: list[list[int]]
) -> None:
    entries = reports.fold(column([root for root, _ in given_acks]), column([val for _, val in given_acks]))
    scope = InitScope(session, batch, np.array(covered, np.uint64).reshape(-1, 2))
    arrived = wire.decode(messages.Apply, travelled(wire.encode(messages.Apply(Identity(1, 2), 3, entries, scope))))
    assert arrived.inits is not None
    assert (arrived.inits.session, arrived.inits.batch) == (session, batch)
    assert arrived.inits.covered.tolist() == [list(pair) for pair in covered]
    assert as_twin(arrived.entries) == as_twin(entries)


@given(uint64, statuses, st.lists(st.sampled_from([1, 2, 3, 4]), max_size=9), uint32, sentences, uint64, uint64)
def test_an_answer_to_a_report_arrives_as_it_was_sent(
    incarnation: int, status: Status, sections: list[int], delay_ms: int, detail: str, known: int, conflicting: int
) -> None:
    sent = messages.ApplyReply(
        incarnation, status, np.array(sections, np.uint8), delay_ms, detail, known, conflicting, 6
    )
    arrived = wire.decode(messages.ApplyReply, travelled(wire.encode(sent)))
    assert arrived.section_statuses.tolist() == sections
    assert (arrived.incarnation, arrived.status, arrived.retry_delay_ms) == (incarnation, status, delay_ms)
    assert (arrived.detail, arrived.inits_known, arrived.inits_conflicting) == (detail, known, conflicting)
    assert arrived.epoch == 6


@given(uint64, uint64)
def test_every_reply_brings_its_epoch_with_the_ensemble_it_is_of(ensemble: int, number: int) -> None:
    epoch = epoch_of(ensemble, number)
    assert parts_of(epoch) == (ensemble, number)
    for reply in (
        messages.HelloReply(2, "1", 3, 4, 5, epoch=epoch),
        messages.ApplyReply(1, Status.APPLIED, epoch=epoch),
        messages.OpenBatchReply(1, Status.APPLIED, epoch=epoch),
        messages.SettleReply(1, Status.APPLIED, epoch=epoch),
        messages.WatchReply(1, Status.APPLIED, epoch=epoch),
        messages.StatsReply(1, "1", {}, epoch=epoch),
        messages.ViewReply(1, epoch, ()),
        messages.DrainReply(1, Status.APPLIED, epoch=epoch),
        messages.PinsReply(1, Status.APPLIED, epoch=epoch),
    ):
        encoded = wire.encode(reply)
        assert (encoded.ensemble, encoded.epoch) == (ensemble, number)
        assert wire.decode(type(reply), travelled(encoded)).epoch == epoch


@given(
    st.lists(st.tuples(uint64, st.sampled_from(Verdict), st.sampled_from(["", "unread", "unfinished"])), max_size=20)
)
def test_outcomes_arrive_as_they_were_reported(reported: list[tuple[int, Verdict, str]]) -> None:
    reasons = (Cause.UNREAD, "unfinished")
    reason_ids = [[*map(str, reasons)].index(reason) + 1 if reason else 0 for _, _, reason in reported]
    outcomes = Outcomes(
        column([root for root, _, _ in reported]),
        np.array([verdict for _, verdict, _ in reported], np.uint8),
        np.array(reason_ids if any(reason_ids) else [], np.uint32),
        reasons,
    )
    sent = messages.WatchReply(9, Status.APPLIED, "", True, 5, 77, outcomes, 4000, 7, 6)
    arrived = wire.decode(messages.WatchReply, travelled(wire.encode(sent)))
    assert (arrived.incarnation, arrived.is_new, arrived.generation, arrived.cursor) == (9, True, 5, 77)
    assert (arrived.lease_ms, arrived.pins_crc32, arrived.epoch) == (4000, 7, 6)
    heard = [
        (root, Verdict(verdict), arrived.outcomes.reason(index))
        for index, (root, verdict) in enumerate(
            zip(arrived.outcomes.root_ids.tolist(), arrived.outcomes.verdicts.tolist(), strict=True)
        )
    ]
    assert heard == reported
    assert arrived.outcomes.reasons == reasons


def test_the_texts_of_causes_from_a_server_that_names_no_causes_are_the_causes() -> None:
    old = pb.WatchReply(status=pb.STATUS_APPLIED, reasons=["bad", *map(str, Cause)])
    assert wire.decode(messages.WatchReply, old).outcomes.reasons == ("bad", *Cause)


def test_a_cause_that_only_a_newer_server_knows_is_a_text() -> None:
    newer = pb.WatchReply(status=pb.STATUS_APPLIED, reasons=["unfinished", "struck by lightning"], causes=b"\0\xff")
    assert wire.decode(messages.WatchReply, newer).outcomes.reasons == ("unfinished", "struck by lightning")


def test_reasons_of_which_only_some_have_a_cause_are_refused() -> None:
    with pytest.raises(wire.Malformed, match="causes: 1 for 2 reasons"):
        wire.decode(
            messages.WatchReply, pb.WatchReply(status=pb.STATUS_APPLIED, reasons=["bad", "unfinished"], causes=b"\0")
        )


def report(**fields: Any) -> pb.ApplyRequest:
    two = column([1, 2]).tobytes()
    defaults: dict[str, Any] = {"identity": pb.Identity(high=1), "root_ids": two, "ack_vals": two}
    return pb.ApplyRequest(**defaults | fields)


INITS = pb.Inits(session=1, batch=1)
ONE = (1).to_bytes(4, "little")
MALFORMED_REPORTS = {
    "identity: missing": pb.ApplyRequest(),
    "root_ids: 15 bytes": report(root_ids=b"x" * 15),
    "ack_vals: 1 for 2 root ids": report(ack_vals=b"x" * 8),
    "ack_vals: 9 bytes": report(ack_vals=b"x" * 9),
    "kinds: 1 for 2 root ids": report(kinds=b"\1"),
    "kinds: an entry has no known bit": report(kinds=b"\1\0"),
    "or an unknown one": report(kinds=b"\1\10"),
    "reason_ids: 0 for 1 fails": report(kinds=bytes([ACK, FAIL])),
    "reason_ids: 3 bytes": report(reason_ids=b"xxx"),
    "reason_ids: an index is beyond the 1 reasons": report(kinds=bytes([ACK, FAIL]), reason_ids=ONE, reasons=["a"]),
    "reason_ids: 1 for 0 fails": report(reason_ids=ONE, reasons=["a", "b"]),
    "a report of inits has neither kinds": report(inits=INITS, kinds=bytes([ACK, ACK])),
    "covered: 3 bounds": report(inits=pb.Inits(covered=b"x" * 24)),
    "covered: 9 bytes": report(inits=pb.Inits(covered=b"x" * 9)),
    "covered: a range stops before it starts": report(inits=pb.Inits(covered=column([2, 1]).tobytes())),
}


@pytest.mark.parametrize("sentence", MALFORMED_REPORTS)
def test_a_malformed_report_is_refused_by_name(sentence: str) -> None:
    with pytest.raises(wire.Malformed, match=sentence):
        wire.decode(messages.Apply, MALFORMED_REPORTS[sentence])


def outcomes(**fields: Any) -> pb.WatchReply:
    defaults: dict[str, Any] = {"status": 1, "root_ids": b"x" * 16, "verdicts": b"\1\2"}
    return pb.WatchReply(**defaults | fields)


MALFORMED_OUTCOMES = {
    "status: 0": outcomes(status=0),
    "status: 99": outcomes(status=99),
    "root_ids: 7 bytes": outcomes(root_ids=b"x" * 7),
    "verdicts: 1 for 2 root ids": outcomes(verdicts=b"\1"),
    "verdicts: one is not a verdict": outcomes(verdicts=b"\1\5"),
    "reason_ids: 1 for 2 root ids": outcomes(reason_ids=ONE, reasons=["a"]),
    "reason_ids: an index is beyond the 0 reasons": outcomes(reason_ids=ONE + ONE),
}


@pytest.mark.parametrize("sentence", MALFORMED_OUTCOMES)
def test_malformed_outcomes_are_refused_by_name(sentence: str) -> None:
    with pytest.raises(wire.Malformed, match=sentence):
        wire.decode(messages.WatchReply, MALFORMED_OUTCOMES[sentence])


def test_a_settlement_that_is_none_is_refused_by_name() -> None:
    with pytest.raises(wire.Malformed, match="settlement: 0 is neither SETTLEMENT_DONE"):
        wire.decode(messages.Settle, pb.SettleRequest())


@pytest.mark.parametrize(
    ("sentence", "member"),
    {
        "members: member 1024: an id is": pb.Member(id=1024, address="a:1", state="MEMBER_STATE_ACTIVE"),
        "members: member 1: address '' is empty": pb.Member(id=1, state="MEMBER_STATE_ACTIVE"),
        "members: 0 is not a valid MemberState": pb.Member(id=1, address="a:1"),
    }.items(),
)
def test_a_member_that_is_none_is_refused_by_name(sentence: str, member: pb.Member) -> None:
    with pytest.raises(wire.Malformed, match=sentence):
        wire.decode(messages.ViewReply, pb.ViewReply(members=[member]))


@pytest.mark.parametrize("kind", KINDS)
@given(some_bytes)
def test_bytes_of_any_kind_are_read_or_malformed(kind: type[Any], content: bytes) -> None:
    with contextlib.suppress(wire.Malformed):
        wire.decode(kind, content)


@given(
    identity=st.none() | st.builds(pb.Identity),
    inits=st.none() | st.builds(lambda covered: pb.Inits(covered=covered), some_bytes),
    columns=st.lists(some_bytes | st.sampled_from([b"", b"x" * 8, b"x" * 16, bytes([ACK, FAIL]), ONE]), min_size=4),
    reasons=st.lists(sentences, max_size=2),
)
def test_columns_of_any_length_are_read_or_malformed(
    identity: pb.Identity | None, inits: pb.Inits | None, columns: list[bytes], reasons: list[str]
) -> None:
    root_ids, ack_vals, kinds, reason_ids = columns[:4]
    wired = pb.ApplyRequest(
        identity=identity,
        inits=inits,
        root_ids=root_ids,
        ack_vals=ack_vals,
        kinds=kinds,
        reason_ids=reason_ids,
        reasons=reasons,
    )
    try:
        entries = wire.decode(messages.Apply, wired).entries
    except wire.Malformed:
        return
    assert len(entries.root_ids) == len(entries.ack_vals)
    assert len(as_twin(entries)) <= len(entries)


@pytest.mark.parametrize("name", ["root_ids", "ack_vals"])
def test_a_report_of_another_dtype_is_not_sent(name: str) -> None:
    columns: dict[str, Any] = {"root_ids": np.ones(2, np.uint64), "ack_vals": np.ones(2, np.uint64)} | {
        name: np.ones(2, np.int32)
    }
    with pytest.raises(TypeError, match=f"{name} is int32: give an array of np.uint64"):
        wire.encode(messages.Apply(Identity(1, 2), 0, messages.Entries(**columns)))


def test_outcomes_can_be_iterated_over() -> None:
    outcomes = messages.Outcomes(
        np.array([7, 8], np.uint64), np.array([1, 2], np.uint8), np.array([0, 1], np.uint32), ("disk full",)
    )
    assert list(outcomes) == [(7, messages.Verdict.ACKED, ""), (8, messages.Verdict.FAILED, "disk full")]
    assert not list(messages.Outcomes())
