"""Chapter 8 of acker.proto: a server's identity, the view, draining, and pins of an open stream."""

from __future__ import annotations

import binascii
from collections.abc import Callable
from typing import Any

import pytest
from contract_client import Acker, ack, status
from contract_stubs import NAMES


@pytest.fixture
def draining(server_process: Callable[..., Any]) -> Any:
    """A connection to a server that this test may drain. It has id 7."""
    server = server_process("--id=7", "--advertise=acker-7.example:7070")
    with Acker(server.address) as acker:
        yield acker


def test_a_server_without_zookeeper_lists_itself_alone_under_epoch_0(draining: Acker) -> None:
    hello, view = draining.call("Hello", protocol_version=2), draining.call("View")
    assert (hello.id, hello.is_draining, hello.epoch, view.epoch) == (7, False, 0, 0)
    [member] = view.members
    assert (member.id, member.generation, member.address) == (7, hello.generation, "acker-7.example:7070")
    assert (NAMES["MemberState"][member.state], member.away_ms) == ("MEMBER_STATE_ACTIVE", 0)
    assert view.incarnation == hello.incarnation
    assert draining.source().watch().epoch == 0


def test_a_server_that_drains_takes_nothing_new_and_ends_what_it_has(draining: Acker) -> None:
    source = draining.source()
    root = source.root(0)
    assert status(source.open_batch(1, 1)) == "STATUS_APPLIED"
    reply = draining.call("Drain")
    assert (status(reply), reply.detail) == ("STATUS_APPLIED", "open batches: 1")
    assert status(draining.call("Drain")) == "STATUS_APPLIED"
    assert draining.call("Hello", protocol_version=2).is_draining
    [member] = draining.call("View").members
    assert NAMES["MemberState"][member.state] == "MEMBER_STATE_DRAINING"
    assert status(source.open_batch(2, 1)) == "STATUS_DRAINING"
    assert status(draining.call("Watch", source="new", session=source.session ^ 1, lease_ms=1000)) == "STATUS_DRAINING"
    assert status(source.open_batch(1, 1)) == "STATUS_APPLIED"
    assert status(source.init(ack(root), batch=1, covered=[0, 1])) == "STATUS_APPLIED"
    assert status(source.settle(1, "SETTLEMENT_DONE")) == "STATUS_APPLIED"
    assert source.hear(1) == {root: ("VERDICT_ACKED", "")}


def test_pins_are_kept_until_a_watch_brings_others(acker: Acker) -> None:
    source = acker.source()
    asked = acker.call("Pins", session=source.session)
    assert (status(asked), asked.pins) == ("STATUS_APPLIED", b"")
    assert source.watch().pins_crc32 == 0
    assert source.watch(pins=b"\0 here").pins_crc32 == binascii.crc32(b"\0 here")
    assert source.watch().pins_crc32 == binascii.crc32(b"\0 here")
    assert acker.call("Pins", session=source.session).pins == b"\0 here"
    source.watch(pins=b"there")
    assert acker.call("Pins", session=source.session).pins == b"there"
    source.watch(close=True)
    assert status(acker.call("Pins", session=source.session)) == "STATUS_UNKNOWN_SOURCE"


def test_a_root_of_a_batch_that_is_not_held_names_its_source_also_when_the_batch_is_over(acker: Acker) -> None:
    source = acker.source()
    source.watch(pins=b"here")
    source.open_batch(1, 10, held=False)
    root = source.root(9)
    assert acker.call("Pins", root_id=root).pins == b"here"
    source.settle(1, "SETTLEMENT_ABANDON")
    assert acker.call("Pins", root_id=root).pins == b"here"
    assert status(acker.call("Pins", root_id=source.root(10))) == "STATUS_UNKNOWN_SOURCE"


def test_pins_have_a_most(acker: Acker) -> None:
    source = acker.source()
    assert status(source.watch(pins=bytes(65_536))) == "STATUS_APPLIED"
    reply = source.watch(pins=bytes(65_537))
    assert status(reply) == "STATUS_INVALID"
    assert reply.detail.startswith("pins: ")
