"""Chapter 1 of acker.proto: the first call, the gRPC status of a refusal, and how the token travels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import grpc
import pytest
from contract_client import ACK, Acker, Entry, ack, column, edge0, message, status
from contract_stubs import pb

ROOT = 77


def refusal(call: Callable[[], Any]) -> tuple[str, str]:
    """Return the gRPC status of a refused call, by name, and its text."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value.code().name, caught.value.details() or ""


def test_hello_says_what_the_server_takes(acker: Acker) -> None:
    reply = acker.call("Hello", protocol_version=2, client_version="anything")
    assert reply.protocol_version == 2
    assert reply.server_version
    assert reply.incarnation
    assert (reply.max_message_bytes, reply.sequence_window) == (16 << 20, 64)


def test_hello_is_not_required(lasting_server: Any) -> None:
    with Acker(lasting_server.address) as acker:
        source = acker.source()
        source.init(ack(source.root(0), 5))
        source.report(ack(source.root(0), 5))
        assert source.hear(1) == {source.root(0): ("VERDICT_ACKED", "")}


@pytest.mark.parametrize("version", [0, 1, 3])
def test_another_protocol_version_is_a_failed_precondition(acker: Acker, version: int) -> None:
    code, text = refusal(lambda: acker.call("Hello", protocol_version=version))
    assert code == "FAILED_PRECONDITION"
    assert "upgrade" in text


def test_a_token_travels_as_metadata_and_one_that_is_not_asked_for_is_passed_over(lasting_server: Any) -> None:
    with Acker(lasting_server.address, token="secret") as acker:
        assert acker.call("Stats").incarnation


def test_a_message_above_the_servers_most_is_resource_exhausted(acker: Acker) -> None:
    most = acker.call("Hello", protocol_version=2).max_message_bytes
    request = pb.ApplyRequest(identity=pb.Identity(high=1), root_ids=bytes(most))
    code, text = refusal(lambda: acker.apply(request))
    assert code == "RESOURCE_EXHAUSTED"
    assert str(most) in text


def test_another_service_is_unimplemented(lasting_server: Any) -> None:
    with grpc.insecure_channel(lasting_server.address) as channel:
        stub: Any = channel.unary_unary("/acker.v2.Acker/Hello", None, None)
        code, _ = refusal(partial(stub, b"", timeout=30))
    assert code == "UNIMPLEMENTED"


UNREADABLE = {
    "identity": pb.ApplyRequest(root_ids=bytes(8), ack_vals=bytes(8)),
    "root_ids": pb.ApplyRequest(identity=pb.Identity(), root_ids=bytes(7)),
    "ack_vals": pb.ApplyRequest(identity=pb.Identity(), root_ids=bytes(16), ack_vals=bytes(8)),
    "kinds": pb.ApplyRequest(identity=pb.Identity(), root_ids=bytes(8), ack_vals=bytes(8), kinds=b"\0"),
    "reason_ids": pb.ApplyRequest(identity=pb.Identity(), root_ids=bytes(8), ack_vals=bytes(8), kinds=b"\2"),
    "covered": pb.ApplyRequest(identity=pb.Identity(), inits=pb.Inits(covered=column([2, 1]))),
}


@pytest.mark.parametrize("field", UNREADABLE)
def test_what_cannot_be_read_is_an_invalid_argument_that_names_the_field(acker: Acker, field: str) -> None:
    code, text = refusal(lambda: acker.apply(UNREADABLE[field]))
    assert code == "INVALID_ARGUMENT"
    assert text.startswith(f"Apply: {field}: ")


def test_an_enum_of_zero_is_an_invalid_argument(acker: Acker) -> None:
    code, text = refusal(lambda: acker.call("Settle", session=1, number=1))
    assert code == "INVALID_ARGUMENT"
    assert "SETTLEMENT_DONE (1)" in text


def test_what_can_be_read_and_cannot_be_is_a_status_and_leaves_no_trace(acker: Acker) -> None:
    sender = acker.sender()
    out_of_order = [Entry(root, 1, ACK) for root in (ROOT, ROOT)]
    reply = acker.apply(message(pb.Identity(high=sender.high), out_of_order, out_of_order))
    assert status(reply) == "STATUS_INVALID"
    assert reply.detail.startswith("root_ids: ")
    # The refused report has not used up its identity.
    entries = [Entry(ROOT, edge0(ROOT))]
    reply = acker.apply(message(pb.Identity(high=sender.high), entries, entries))
    assert status(reply) == "STATUS_APPLIED"


def test_every_reply_names_the_process_of_the_server(acker: Acker) -> None:
    source = acker.source()
    incarnation = acker.call("Hello", protocol_version=2).incarnation
    replies = [
        source.watch(),
        source.open_batch(1, 1),
        source.init(ack(source.root(0)), batch=1),
        source.settle(1, "SETTLEMENT_DONE"),
        acker.call("Stats"),
    ]
    assert {reply.incarnation for reply in replies} == {incarnation}


def test_stats_are_named_as_the_metrics_are(acker: Acker) -> None:
    assert acker.call("Stats").values["acker_pending_roots"] >= 0
