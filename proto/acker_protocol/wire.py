"""Wire: messages to protobuf and back. The only door to protobuf.

Decides how columns travel (little-endian bytes) and what a malformed message is; decides nothing about what a message
means. ``decode_*`` raise :class:`Malformed` with a sentence that names the field; they never raise anything else. Those
for requests take bytes too, so that a server answers what is no message at all with a sentence of its own.
"""

from __future__ import annotations

import sys
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError, Message

from acker_protocol import messages
from acker_protocol.ids import SLOTS, Column, check_column
from acker_protocol.messages import (
    Apply,
    ApplyReply,
    DrainReply,
    Entries,
    Hello,
    HelloReply,
    Identity,
    InitScope,
    Limits,
    ListedMember,
    MemberState,
    OpenBatch,
    OpenBatchReply,
    Outcomes,
    Pins,
    PinsReply,
    Settle,
    Settlement,
    SettleReply,
    StatsReply,
    Status,
    Verdict,
    ViewReply,
    Watch,
    WatchReply,
)
from acker_protocol.placement import Member, epoch_of, parts_of
from acker_protocol.reports import malformed
from acker_protocol.v1 import acker_pb2 as pb

if sys.byteorder != "little":  # pragma: no cover
    raise ImportError("acker_protocol.wire writes columns as they lie in memory and needs a little-endian machine")


class Malformed(ValueError):
    """A message that cannot be read; the text names the field and says what it should hold."""


class _Stamped(Protocol):
    """A reply in protobuf: each has an epoch."""

    epoch: int
    ensemble: int


_Wire = TypeVar("_Wire", bound=Message)
_Reply = TypeVar("_Reply", bound=_Stamped)


def parse(kind: type[_Wire], content: _Wire | bytes) -> _Wire:
    """A message of ``kind`` from its bytes; one that is parsed already stays. Raises :class:`Malformed`."""
    if not isinstance(content, bytes):
        return content
    try:
        return kind.FromString(content)
    except DecodeError:
        raise Malformed(f"{kind.__name__}: {len(content)} bytes that are not such a message") from None


def encode_hello(hello: Hello) -> pb.HelloRequest:
    return pb.HelloRequest(protocol_version=hello.protocol_version, client_version=hello.client_version)


def decode_hello(content: pb.HelloRequest | bytes) -> Hello:
    wire = parse(pb.HelloRequest, content)
    return Hello(wire.protocol_version, wire.client_version)


def encode_hello_reply(reply: HelloReply) -> pb.HelloReply:
    return stamped(
        pb.HelloReply(
            protocol_version=reply.protocol_version,
            server_version=reply.server_version,
            incarnation=reply.incarnation,
            max_message_bytes=reply.max_message_bytes,
            sequence_window=reply.sequence_window,
            id=reply.id,
            generation=reply.generation,
            is_draining=reply.is_draining,
        ),
        reply.epoch,
    )


def decode_hello_reply(wire: pb.HelloReply) -> HelloReply:
    return HelloReply(
        wire.protocol_version,
        wire.server_version,
        wire.incarnation,
        wire.max_message_bytes,
        wire.sequence_window,
        wire.id,
        wire.generation,
        wire.is_draining,
        _epoch(wire),
    )


def encode_apply(message: Apply) -> pb.ApplyRequest:
    identity, entries, inits = message.identity, message.entries, message.inits
    return pb.ApplyRequest(
        identity=pb.Identity(high=identity.high, low=identity.low, sequenced=identity.sequenced),
        digest=message.digest,
        inits=None
        if inits is None
        else pb.Inits(session=inits.session, batch=inits.batch, covered=inits.covered.tobytes()),
        root_ids=_fixed64("root_ids", entries.root_ids),
        ack_vals=_fixed64("ack_vals", entries.ack_vals),
        kinds=entries.kinds.tobytes(),
        reason_ids=entries.reason_ids.tobytes(),
        reasons=entries.reasons,
    )


def decode_apply(content: pb.ApplyRequest | bytes) -> Apply:
    """Checks all that needs no hashing: lengths, kinds, reasons, ranges. Order and slots are the ledger's to check."""
    wire = parse(pb.ApplyRequest, content)
    if not wire.HasField("identity"):
        raise Malformed("identity: missing")
    identity = Identity(wire.identity.high, wire.identity.low, wire.identity.sequenced)
    inits = _decode_inits(wire.inits) if wire.HasField("inits") else None
    return Apply(identity, wire.digest, _decode_entries(wire, inits is not None), inits)


def encode_apply_reply(reply: ApplyReply) -> pb.ApplyReply:
    return stamped(
        pb.ApplyReply(
            incarnation=reply.incarnation,
            status=int(reply.status),  # type: ignore[arg-type]
            section_statuses=reply.section_statuses.tobytes(),
            retry_delay_ms=reply.retry_delay_ms,
            detail=reply.detail,
            inits_known=reply.inits_known,
            inits_conflicting=reply.inits_conflicting,
        ),
        reply.epoch,
    )


def decode_apply_reply(wire: pb.ApplyReply) -> ApplyReply:
    statuses = np.frombuffer(wire.section_statuses, np.uint8)
    return ApplyReply(
        wire.incarnation,
        _status(wire.status),
        statuses,
        wire.retry_delay_ms,
        wire.detail,
        wire.inits_known,
        wire.inits_conflicting,
        _epoch(wire),
    )


def encode_open_batch(request: OpenBatch) -> pb.OpenBatchRequest:
    return pb.OpenBatchRequest(
        session=request.session,
        number=request.number,
        first=request.first,
        up_to=request.up_to,
        held=request.held,
        limits=_encode_limits(request.limits),
        slots=request.slots,
    )


def decode_open_batch(content: pb.OpenBatchRequest | bytes) -> OpenBatch:
    wire = parse(pb.OpenBatchRequest, content)
    if len(wire.slots) not in (0, SLOTS // 8):
        raise Malformed(f"slots: {len(wire.slots)} bytes; give {SLOTS // 8}, a bit a slot, or none for all slots")
    limits = _decode_limits(wire.limits)
    return OpenBatch(wire.session, wire.number, wire.first, wire.up_to, wire.held, limits, wire.slots)


def encode_open_batch_reply(reply: OpenBatchReply) -> pb.OpenBatchReply:
    return stamped(
        pb.OpenBatchReply(
            incarnation=reply.incarnation,
            status=int(reply.status),  # type: ignore[arg-type]
            retry_delay_ms=reply.retry_delay_ms,
            detail=reply.detail,
        ),
        reply.epoch,
    )


def decode_open_batch_reply(wire: pb.OpenBatchReply) -> OpenBatchReply:
    return OpenBatchReply(wire.incarnation, _status(wire.status), wire.retry_delay_ms, wire.detail, _epoch(wire))


def encode_settle(request: Settle) -> pb.SettleRequest:
    return pb.SettleRequest(
        session=request.session,
        number=request.number,
        settlement=int(request.settlement),  # type: ignore[arg-type]
    )


def decode_settle(content: pb.SettleRequest | bytes) -> Settle:
    wire = parse(pb.SettleRequest, content)
    try:
        settlement = Settlement(wire.settlement)
    except ValueError:
        raise Malformed(
            f"settlement: {wire.settlement} is neither SETTLEMENT_DONE (1) nor SETTLEMENT_ABANDON (2)"
        ) from None
    return Settle(wire.session, wire.number, settlement)


def encode_settle_reply(reply: SettleReply) -> pb.SettleReply:
    return stamped(
        pb.SettleReply(
            incarnation=reply.incarnation,
            status=int(reply.status),  # type: ignore[arg-type]
            detail=reply.detail,
            cursor=reply.cursor,
            roots=reply.roots,
        ),
        reply.epoch,
    )


def decode_settle_reply(wire: pb.SettleReply) -> SettleReply:
    return SettleReply(wire.incarnation, _status(wire.status), wire.detail, wire.cursor, wire.roots, _epoch(wire))


def encode_watch(request: Watch) -> pb.WatchRequest:
    return pb.WatchRequest(
        source=request.source,
        session=request.session,
        lease_ms=request.lease_ms,
        limits=_encode_limits(request.limits),
        confirmed=request.confirmed,
        wait_ms=request.wait_ms,
        max_outcomes=request.max_outcomes,
        close=request.close,
        pins=request.pins,
    )


def decode_watch(content: pb.WatchRequest | bytes) -> Watch:
    wire = parse(pb.WatchRequest, content)
    return Watch(
        wire.source,
        wire.session,
        wire.lease_ms,
        _decode_limits(wire.limits),
        wire.confirmed,
        wire.wait_ms,
        wire.max_outcomes,
        wire.close,
        wire.pins,
    )


def encode_watch_reply(reply: WatchReply) -> pb.WatchReply:
    outcomes = reply.outcomes
    return stamped(
        pb.WatchReply(
            incarnation=reply.incarnation,
            status=int(reply.status),  # type: ignore[arg-type]
            detail=reply.detail,
            is_new=reply.is_new,
            generation=reply.generation,
            cursor=reply.cursor,
            root_ids=outcomes.root_ids.tobytes(),
            verdicts=outcomes.verdicts.tobytes(),
            reason_ids=outcomes.reason_ids.tobytes(),
            reasons=outcomes.reasons,
            lease_ms=reply.lease_ms,
            pins_crc32=reply.pins_crc32,
        ),
        reply.epoch,
    )


def decode_watch_reply(wire: pb.WatchReply) -> WatchReply:
    outcomes = Outcomes(
        _ids("root_ids", wire.root_ids),
        np.frombuffer(wire.verdicts, np.uint8),
        _reason_ids(wire.reason_ids),
        tuple(wire.reasons),
    )
    if len(outcomes.verdicts) != len(outcomes):
        raise Malformed(f"verdicts: {len(outcomes.verdicts)} for {len(outcomes)} root ids")
    if len(outcomes) and not Verdict.ACKED <= outcomes.verdicts.min() <= outcomes.verdicts.max() <= Verdict.LOST:
        raise Malformed("verdicts: one is not a verdict of this protocol version")
    if len(outcomes.reason_ids) not in (0, len(outcomes)):
        raise Malformed(f"reason_ids: {len(outcomes.reason_ids)} for {len(outcomes)} root ids")
    if len(outcomes.reason_ids) and int(outcomes.reason_ids.max()) > len(outcomes.reasons):
        raise Malformed(f"reason_ids: an index is beyond the {len(outcomes.reasons)} reasons")
    return WatchReply(
        wire.incarnation,
        _status(wire.status),
        wire.detail,
        wire.is_new,
        wire.generation,
        wire.cursor,
        outcomes,
        wire.lease_ms,
        wire.pins_crc32,
        _epoch(wire),
    )


def encode_stats_request() -> pb.StatsRequest:
    return pb.StatsRequest()


def decode_stats_request(content: pb.StatsRequest | bytes) -> None:
    parse(pb.StatsRequest, content)


def encode_stats_reply(reply: StatsReply) -> pb.StatsReply:
    return stamped(
        pb.StatsReply(incarnation=reply.incarnation, server_version=reply.server_version, values=reply.values),
        reply.epoch,
    )


def decode_stats_reply(wire: pb.StatsReply) -> StatsReply:
    return StatsReply(wire.incarnation, wire.server_version, dict(wire.values), _epoch(wire))


def encode_view_request() -> pb.ViewRequest:
    return pb.ViewRequest()


def decode_view_request(content: pb.ViewRequest | bytes) -> None:
    parse(pb.ViewRequest, content)


def encode_view_reply(reply: ViewReply) -> pb.ViewReply:
    members = [_encode_listed(listed) for listed in reply.members]
    return stamped(pb.ViewReply(incarnation=reply.incarnation, members=members), reply.epoch)


def decode_view_reply(wire: pb.ViewReply) -> ViewReply:
    return ViewReply(wire.incarnation, _epoch(wire), tuple(_decode_listed(listed) for listed in wire.members))


def encode_drain_request() -> pb.DrainRequest:
    return pb.DrainRequest()


def decode_drain_request(content: pb.DrainRequest | bytes) -> None:
    parse(pb.DrainRequest, content)


def encode_drain_reply(reply: DrainReply) -> pb.DrainReply:
    return stamped(
        pb.DrainReply(
            incarnation=reply.incarnation,
            status=int(reply.status),  # type: ignore[arg-type]
            detail=reply.detail,
        ),
        reply.epoch,
    )


def decode_drain_reply(wire: pb.DrainReply) -> DrainReply:
    return DrainReply(wire.incarnation, _status(wire.status), wire.detail, _epoch(wire))


def encode_pins(request: Pins) -> pb.PinsRequest:
    return pb.PinsRequest(session=request.session)


def decode_pins(content: pb.PinsRequest | bytes) -> Pins:
    return Pins(parse(pb.PinsRequest, content).session)


def encode_pins_reply(reply: PinsReply) -> pb.PinsReply:
    return stamped(
        pb.PinsReply(
            incarnation=reply.incarnation,
            status=int(reply.status),  # type: ignore[arg-type]
            detail=reply.detail,
            pins=reply.pins,
        ),
        reply.epoch,
    )


def decode_pins_reply(wire: pb.PinsReply) -> PinsReply:
    return PinsReply(wire.incarnation, _status(wire.status), wire.detail, wire.pins, _epoch(wire))


def _encode_listed(listed: ListedMember) -> pb.Member:
    return pb.Member(
        id=listed.member.id,
        generation=listed.member.generation,
        address=listed.member.address,
        state=int(listed.state),  # type: ignore[arg-type]
        away_ms=listed.away_ms,
    )


def _decode_listed(wire: pb.Member) -> ListedMember:
    try:
        return ListedMember(Member(wire.id, wire.generation, wire.address), MemberState(wire.state), wire.away_ms)
    except ValueError as error:
        raise Malformed(f"members: {error}") from None


def _encode_limits(limits: Limits) -> pb.Limits:
    return pb.Limits(message_timeout_ms=limits.message_timeout_ms, progress_timeout_ms=limits.progress_timeout_ms)


def _decode_limits(wire: pb.Limits) -> Limits:
    return Limits(wire.message_timeout_ms, wire.progress_timeout_ms)


def _decode_inits(wire: pb.Inits) -> InitScope:
    bounds = _ids("covered", wire.covered)
    if len(bounds) % 2:
        raise Malformed(f"covered: {len(bounds)} bounds do not make [start, stop) pairs")
    covered = bounds.reshape(-1, 2)
    if np.any(covered[:, 0] > covered[:, 1]):
        raise Malformed("covered: a range stops before it starts")
    return InitScope(wire.session, wire.batch, covered)


def _decode_entries(wire: pb.ApplyRequest, are_inits: bool) -> Entries:
    root_ids, ack_vals = _ids("root_ids", wire.root_ids), _ids("ack_vals", wire.ack_vals)
    kinds, reason_ids = np.frombuffer(wire.kinds, np.uint8), _reason_ids(wire.reason_ids)
    entries = Entries(root_ids, ack_vals, kinds, reason_ids, tuple(wire.reasons))
    trouble = malformed(entries, are_inits=are_inits)
    if trouble:
        raise Malformed(trouble)
    return entries


def _fixed64(name: str, column: Column) -> bytes:
    check_column(name, column)
    return column.tobytes()


def _ids(name: str, content: bytes) -> Column:
    if len(content) % 8:
        raise Malformed(
            f"{name}: {len(content)} bytes are not a column of fixed64; write 8 bytes each, little-endian: "
            "int64 as its 64 bits stand, not as varints"
        )
    return np.frombuffer(content, np.uint64)


def _reason_ids(content: bytes) -> npt.NDArray[np.uint32]:
    if len(content) % 4:
        raise Malformed(
            f"reason_ids: {len(content)} bytes are not a column of uint32; write 4 bytes each, little-endian"
        )
    return np.frombuffer(content, np.uint32)


def stamped(reply: _Reply, epoch: int) -> _Reply:
    """``reply``, with an epoch in it."""
    reply.ensemble, reply.epoch = parts_of(epoch)
    return reply


def _epoch(wire: _Stamped) -> int:
    return epoch_of(wire.ensemble, wire.epoch)


def _status(value: int) -> messages.Status:
    try:
        return Status(value)
    except ValueError:
        raise Malformed(f"status: {value} is not of this protocol version") from None
