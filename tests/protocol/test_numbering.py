"""Numbers in the .proto never change their meaning, because clients of this version call servers of the next."""

from __future__ import annotations

import re
from enum import Enum

import pytest

from acker_protocol import messages
from acker_protocol.v1 import acker_pb2 as pb

FIELDS = {
    "HelloRequest": "protocol_version client_version",
    "HelloReply": "protocol_version server_version incarnation max_message_bytes sequence_window "
    "id generation is_draining epoch",
    "Identity": "high low sequenced",
    "Inits": "session batch covered",
    "ApplyRequest": "identity digest inits root_ids ack_vals kinds reason_ids reasons",
    "ApplyReply": "incarnation status section_statuses retry_delay_ms detail inits_known inits_conflicting epoch",
    "Limits": "message_timeout_ms progress_timeout_ms",
    "OpenBatchRequest": "session number first up_to held limits slots",
    "OpenBatchReply": "incarnation status retry_delay_ms detail epoch",
    "SettleRequest": "session number settlement",
    "SettleReply": "incarnation status detail cursor roots epoch generation",
    "WatchRequest": "source session lease_ms limits confirmed wait_ms max_outcomes close pins",
    "WatchReply": "incarnation status detail is_new generation cursor root_ids verdicts reason_ids reasons lease_ms "
    "epoch pins_crc32 causes",
    "StatsRequest": "",
    "StatsReply": "incarnation server_version values epoch",
    "ViewRequest": "",
    "Member": "id generation address state away_ms",
    "ViewReply": "incarnation epoch members",
    "DrainRequest": "",
    "DrainReply": "incarnation status detail epoch",
    "PinsRequest": "session root_id",
    "PinsReply": "incarnation status detail pins epoch",
}
# The field ``ensemble`` has this number in every reply.
ENSEMBLE = 15
ENUMS = [messages.Status, messages.Verdict, messages.Cause, messages.Settlement, messages.MemberState]
METHODS = "Hello Apply OpenBatch Settle Watch Stats View Drain Pins"


@pytest.mark.parametrize("message", FIELDS)
def test_a_field_keeps_its_number(message: str) -> None:
    held = {field.number: field.name for field in pb.DESCRIPTOR.message_types_by_name[message].fields}
    promised = dict(enumerate(FIELDS[message].split(), 1))
    assert held | promised == held


def test_every_reply_has_an_epoch_and_its_ensemble() -> None:
    replies = [each for name, each in pb.DESCRIPTOR.message_types_by_name.items() if name.endswith("Reply")]
    assert {each.fields_by_name["ensemble"].number for each in replies} == {ENSEMBLE}
    assert all("epoch" in each.fields_by_name for each in replies)


def test_every_message_has_its_promise() -> None:
    assert set(pb.DESCRIPTOR.message_types_by_name) == set(FIELDS)


@pytest.mark.parametrize("enum", ENUMS)
def test_words_and_wire_agree_on_the_numbers(enum: type[Enum]) -> None:
    wired = pb.DESCRIPTOR.enum_types_by_name[enum.__name__].values_by_name
    prefix = re.sub(r"(?<=.)(?=[A-Z])", "_", enum.__name__).upper()
    promised = {f"{prefix}_{word.name}": word.value for word in enum} | {f"{prefix}_UNSPECIFIED": 0}
    assert {name: value.number for name, value in wired.items()} == promised


def test_the_service_keeps_its_name_and_methods() -> None:
    service = pb.DESCRIPTOR.services_by_name["Acker"]
    assert service.full_name == "acker.v1.Acker"
    assert [method.name for method in service.methods][: len(METHODS.split())] == METHODS.split()
