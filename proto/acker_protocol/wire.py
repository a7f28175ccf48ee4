"""Wire: messages to protobuf and back. The only module that imports protobuf.

Decides how columns travel (little-endian bytes) and what a malformed message is. Decides nothing about the meaning of a
message. ``_CODECS`` maps each message class to its protobuf class. ``_FIELDS`` lists the fields whose name or value is
different in protobuf.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError, Message

from acker_protocol import messages
from acker_protocol.ids import SLOTS, Column, check_column
from acker_protocol.messages import (
    Entries,
    Identity,
    InitScope,
    Limits,
    ListedMember,
    Outcomes,
    Verdict,
    causes_of,
    reasons_of,
)
from acker_protocol.placement import Member, epoch_of, parts_of
from acker_protocol.reports import malformed
from acker_protocol.v1 import acker_pb2 as pb

if sys.byteorder != "little":  # pragma: no cover
    raise ImportError("acker_protocol.wire writes columns as they lie in memory and needs a little-endian machine")


# How many reasons a report may have if it has fewer fails. A client may send a table of all its reasons.
REASONS_UNUSED = 4096


class Malformed(ValueError):
    """A message that cannot be read. The text names the field and says what it should hold."""


class _Stamped(Protocol):
    """The fields of a protobuf reply that hold the epoch."""

    epoch: int
    ensemble: int


_Plain = TypeVar("_Plain")
_Reply = TypeVar("_Reply", bound=_Stamped)


def encode(message: object) -> Any:
    """Return the protobuf message of ``message``, an instance of a class in ``messages``."""
    codec = _CODECS[type(message)]
    wire = codec.make(message)
    for name, write in codec.writes:
        write(wire, getattr(message, name))
    return wire


def decode(kind: type[_Plain], content: Message | bytes) -> _Plain:
    """Return the message of class ``kind`` in a protobuf message or its bytes. Raises only :class:`Malformed`."""
    codec = _CODECS[kind]
    wire = codec.parse(content) if isinstance(content, bytes) else content
    message: _Plain = codec.read(wire)
    return message


def stamped(reply: _Reply, epoch: int) -> _Reply:
    """Write ``epoch`` into ``reply`` and return it."""
    reply.ensemble, reply.epoch = parts_of(epoch)
    return reply


def _fixed64(name: str, column: Column) -> bytes:
    check_column(name, column)
    return column.tobytes()


def _ids(name: str, content: bytes) -> Column:
    if len(content) % 8:
        raise Malformed(
            f"{name}: {len(content)} bytes are not a column of fixed64; write 8 bytes for each value, "
            "little-endian, and an int64 as its 64 bits, not as a varint"
        )
    return np.frombuffer(content, np.uint64)


def _reason_ids(content: bytes) -> npt.NDArray[np.uint32]:
    if len(content) % 4:
        raise Malformed(
            f"reason_ids: {len(content)} bytes are not a column of uint32; write 4 bytes each, little-endian"
        )
    return np.frombuffer(content, np.uint32)


def _write_inits(wire: pb.ApplyRequest, inits: InitScope | None) -> None:
    if inits is not None:
        wire.inits.session, wire.inits.batch = inits.session, inits.batch
        wire.inits.covered = inits.covered.tobytes()


def _read_inits(wire: pb.ApplyRequest) -> InitScope | None:
    if not wire.HasField("inits"):
        return None
    bounds = _ids("covered", wire.inits.covered)
    if len(bounds) % 2:
        raise Malformed(f"covered: {len(bounds)} bounds do not make [start, stop) pairs")
    covered = bounds.reshape(-1, 2)
    if np.any(covered[:, 0] > covered[:, 1]):
        raise Malformed("covered: a range stops before it starts")
    return InitScope(wire.inits.session, wire.inits.batch, covered)


def _write_identity(wire: pb.ApplyRequest, identity: Identity) -> None:
    to = wire.identity
    to.high, to.low, to.sequenced = identity.high, identity.low, identity.sequenced


def _read_identity(wire: pb.ApplyRequest) -> Identity:
    if not wire.HasField("identity"):
        raise Malformed("identity: missing")
    return Identity(wire.identity.high, wire.identity.low, wire.identity.sequenced)


def _write_entries(wire: pb.ApplyRequest, entries: Entries) -> None:
    wire.root_ids = _fixed64("root_ids", entries.root_ids)
    wire.ack_vals = _fixed64("ack_vals", entries.ack_vals)
    wire.kinds = entries.kinds.tobytes()
    wire.reason_ids = entries.reason_ids.tobytes()
    wire.reasons.extend(entries.reasons)


def _read_entries(wire: pb.ApplyRequest) -> Entries:
    """Return the entries. Checks lengths, kinds, reasons and ranges. The server's ledger checks the order and slots of
    the root ids later, when it hashes them."""
    root_ids, ack_vals = _ids("root_ids", wire.root_ids), _ids("ack_vals", wire.ack_vals)
    kinds, reason_ids = np.frombuffer(wire.kinds, np.uint8), _reason_ids(wire.reason_ids)
    # Checked first, since each reason becomes an object.
    if len(wire.reasons) > max(REASONS_UNUSED, len(reason_ids)):
        raise Malformed(f"reasons: {len(wire.reasons)} for {len(reason_ids)} fails; send each reason once")
    entries = Entries(root_ids, ack_vals, kinds, reason_ids, tuple(wire.reasons))
    trouble = malformed(entries, are_inits=wire.HasField("inits"))
    if trouble:
        raise Malformed(trouble)
    return entries


def _write_section_statuses(wire: pb.ApplyReply, statuses: messages.Kinds) -> None:
    wire.section_statuses = statuses.tobytes()


def _write_outcomes(wire: pb.WatchReply, outcomes: Outcomes) -> None:
    wire.root_ids = outcomes.root_ids.tobytes()
    wire.verdicts = outcomes.verdicts.tobytes()
    wire.reason_ids = outcomes.reason_ids.tobytes()
    wire.reasons.extend(map(str, outcomes.reasons))
    wire.causes = causes_of(outcomes.reasons)


def _read_outcomes(wire: pb.WatchReply) -> Outcomes:
    if len(wire.causes) not in (0, len(wire.reasons)):
        raise Malformed(f"causes: {len(wire.causes)} for {len(wire.reasons)} reasons")
    outcomes = Outcomes(
        _ids("root_ids", wire.root_ids),
        np.frombuffer(wire.verdicts, np.uint8),
        _reason_ids(wire.reason_ids),
        reasons_of(wire.reasons, wire.causes),
    )
    if len(outcomes.verdicts) != len(outcomes):
        raise Malformed(f"verdicts: {len(outcomes.verdicts)} for {len(outcomes)} root ids")
    if len(outcomes) and not Verdict.ACKED <= outcomes.verdicts.min() <= outcomes.verdicts.max() <= Verdict.LOST:
        raise Malformed("verdicts: one is not a verdict of this protocol version")
    if len(outcomes.reason_ids) not in (0, len(outcomes)):
        raise Malformed(f"reason_ids: {len(outcomes.reason_ids)} for {len(outcomes)} root ids")
    if len(outcomes.reason_ids) and int(outcomes.reason_ids.max()) > len(outcomes.reasons):
        raise Malformed(f"reason_ids: an index is beyond the {len(outcomes.reasons)} reasons")
    return outcomes


def _write_limits(wire: pb.OpenBatchRequest | pb.WatchRequest, limits: Limits) -> None:
    wire.limits.message_timeout_ms = limits.message_timeout_ms
    wire.limits.progress_timeout_ms = limits.progress_timeout_ms


def _read_limits(wire: pb.OpenBatchRequest | pb.WatchRequest) -> Limits:
    return Limits(wire.limits.message_timeout_ms, wire.limits.progress_timeout_ms)


def _write_members(wire: pb.ViewReply, members: tuple[ListedMember, ...]) -> None:
    for listed in members:
        member = listed.member
        wire.members.add(
            id=member.id,
            generation=member.generation,
            address=member.address,
            state=listed.state,
            away_ms=listed.away_ms,
        )


def _read_member(wire: pb.Member) -> ListedMember:
    try:
        member = Member(wire.id, wire.generation, wire.address)
        return ListedMember(member, messages.MemberState(wire.state), wire.away_ms)
    except ValueError as error:
        raise Malformed(f"members: {error}") from None


def _read_slots(wire: pb.OpenBatchRequest) -> bytes:
    if len(wire.slots) not in (0, SLOTS // 8):
        raise Malformed(f"slots: {len(wire.slots)} bytes; give {SLOTS // 8} (one bit for each slot), or none")
    return wire.slots


def _read_settlement(wire: pb.SettleRequest) -> messages.Settlement:
    try:
        return messages.Settlement(wire.settlement)
    except ValueError:
        raise Malformed(
            f"settlement: {wire.settlement} is neither SETTLEMENT_DONE (1) nor SETTLEMENT_ABANDON (2)"
        ) from None


def _read_status(wire: Any) -> messages.Status:
    try:
        return messages.Status(wire.status)
    except ValueError:
        raise Malformed(f"status: {wire.status} is not of this protocol version") from None


# How to write a field into its protobuf message, and how to read it. None: copy the value under the same name.
_FIELDS: dict[str, tuple[Callable[[Any, Any], object] | None, Callable[[Any], object] | None]] = {
    "epoch": (stamped, lambda wire: epoch_of(wire.ensemble, wire.epoch)),
    "status": (None, _read_status),
    "settlement": (None, _read_settlement),
    "limits": (_write_limits, _read_limits),
    "slots": (None, _read_slots),
    "identity": (_write_identity, _read_identity),
    "inits": (_write_inits, _read_inits),
    "entries": (_write_entries, _read_entries),
    "section_statuses": (_write_section_statuses, lambda wire: np.frombuffer(wire.section_statuses, np.uint8)),
    "outcomes": (_write_outcomes, _read_outcomes),
    "values": (None, lambda wire: dict(wire.values)),
    "members": (_write_members, lambda wire: tuple(_read_member(each) for each in wire.members)),
}


class _Codec:
    """Translates the messages of one class to protobuf and back.

    ``make`` and ``read`` are compiled from the names of the fields, as in ``dataclasses``, because they run in every
    call and loops over the names take twice the time.
    """

    def __init__(self, kind: type[Any], wire: type[Any]) -> None:
        self.wire = wire
        fields = [(each.name, *_FIELDS.get(each.name, (None, None))) for each in dataclasses.fields(kind)]
        self.writes = [(name, write) for name, write, _ in fields if write is not None]
        plain = [f"{name}=message.{name}" for name, write, _ in fields if write is None]
        self.make = eval(f"lambda message: wire({', '.join(plain)})", {"wire": wire})
        values = [f"wire.{name}" if read is None else f"read_{name}(wire)" for name, _, read in fields]
        readers = {f"read_{name}": read for name, _, read in fields}
        self.read = eval(f"lambda wire: kind({', '.join(values)})", {"kind": kind, **readers})

    def parse(self, content: bytes) -> Any:
        try:
            return self.wire.FromString(content)
        except DecodeError:
            raise Malformed(f"{self.wire.__name__}: {len(content)} bytes that are not such a message") from None


_CODECS: dict[type[Any], _Codec] = {
    kind: _Codec(kind, wire)
    for kind, wire in (
        (messages.Hello, pb.HelloRequest),
        (messages.HelloReply, pb.HelloReply),
        (messages.Apply, pb.ApplyRequest),
        (messages.ApplyReply, pb.ApplyReply),
        (messages.OpenBatch, pb.OpenBatchRequest),
        (messages.OpenBatchReply, pb.OpenBatchReply),
        (messages.Settle, pb.SettleRequest),
        (messages.SettleReply, pb.SettleReply),
        (messages.Watch, pb.WatchRequest),
        (messages.WatchReply, pb.WatchReply),
        (messages.StatsRequest, pb.StatsRequest),
        (messages.StatsReply, pb.StatsReply),
        (messages.ViewRequest, pb.ViewRequest),
        (messages.ViewReply, pb.ViewReply),
        (messages.DrainRequest, pb.DrainRequest),
        (messages.DrainReply, pb.DrainReply),
        (messages.Pins, pb.PinsRequest),
        (messages.PinsReply, pb.PinsReply),
    )
}
