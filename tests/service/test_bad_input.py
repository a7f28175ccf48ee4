"""Bad input: the sender gets a clear status, and the server continues unharmed."""

from __future__ import annotations

import random
import resource
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import grpc
import numpy as np
import pytest

from acker_protocol import ids, wire
from acker_protocol.ids import Column
from acker_protocol.messages import (
    FAIL,
    PROTOCOL_VERSION,
    Apply,
    DrainReply,
    Entries,
    HelloReply,
    Identity,
    InitScope,
    Limits,
    OpenBatch,
    Settlement,
    Status,
    ViewReply,
    Watch,
)
from acker_protocol.reports import digest
from acker_protocol.v1 import acker_pb2 as pb
from acker_service.access.access import Access
from acker_service.config import Config
from acker_service.core.quotas import DEFAULT
from acker_service.core.shard import Shard
from acker_service.grpc.admission import Admitted
from acker_service.grpc.servicer import CallRefused, Servicer, Wait
from acker_service.namespaces import Namespaces
from acker_service.process.replies import Replies
from acker_service.process.workers import Workers
from acker_service.server import Server
from tests.service.caller import Caller, ack_a_tree, acks, inits, roots_of

# All methods but Drain, because a draining server takes no new sources.
METHODS = ("Hello", "Apply", "OpenBatch", "Settle", "Watch", "Stats", "View", "Pins")
REQUESTS = {
    "Hello": pb.HelloRequest,
    "Apply": pb.ApplyRequest,
    "OpenBatch": pb.OpenBatchRequest,
    "Settle": pb.SettleRequest,
    "Watch": pb.WatchRequest,
    "View": pb.ViewRequest,
    "Pins": pb.PinsRequest,
    "Stats": pb.StatsRequest,
}
MEMORY_MAX_BYTES = 256 << 20
# ``first`` of the open batches. Some random messages report roots of these batches, and so pass the first checks.
FIRST = 100


@pytest.fixture
def caller(server: Server) -> Iterator[Caller]:
    """A caller whose server must still work at the end of the test."""
    with Caller(server.address) as caller:
        yield caller
        ack_a_tree(caller, 999_999)


def refusal(call: Callable[[], object]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value.code(), caught.value.details() or ""


# -- malformed on the wire

IDENTITY = pb.Identity(high=1, low=1)
MALFORMED = {
    "identity: missing": pb.ApplyRequest(root_ids=bytes(8), ack_vals=bytes(8)),
    "root_ids: 7 bytes are not a column of fixed64; write 8 bytes for each value, little-endian": pb.ApplyRequest(
        identity=IDENTITY, root_ids=bytes(7)
    ),
    "ack_vals: 9 bytes are not a column of fixed64": pb.ApplyRequest(identity=IDENTITY, ack_vals=bytes(9)),
    "ack_vals: 1 for 2 root ids": pb.ApplyRequest(identity=IDENTITY, root_ids=bytes(16), ack_vals=bytes(8)),
    "kinds: 1 for 2 root ids": pb.ApplyRequest(identity=IDENTITY, root_ids=bytes(16), ack_vals=bytes(16), kinds=b"\1"),
    "kinds: an entry has no known bit": pb.ApplyRequest(
        identity=IDENTITY, root_ids=bytes(8), ack_vals=bytes(8), kinds=b"\x08"
    ),
    "kinds: a report of inits has neither": pb.ApplyRequest(
        identity=IDENTITY, inits=pb.Inits(session=1), root_ids=bytes(8), ack_vals=bytes(8), kinds=b"\1"
    ),
    "reason_ids: 3 bytes are not a column of uint32": pb.ApplyRequest(identity=IDENTITY, reason_ids=bytes(3)),
    "reason_ids: 0 for 1 fails": pb.ApplyRequest(identity=IDENTITY, root_ids=bytes(8), ack_vals=bytes(8), kinds=b"\2"),
    "reason_ids: an index is beyond the 0 reasons": pb.ApplyRequest(
        identity=IDENTITY, root_ids=bytes(8), ack_vals=bytes(8), kinds=b"\2", reason_ids=bytes(4)
    ),
    "covered: 1 bounds do not make": pb.ApplyRequest(identity=IDENTITY, inits=pb.Inits(session=1, covered=bytes(8))),
    "covered: a range stops before it starts": pb.ApplyRequest(
        identity=IDENTITY, inits=pb.Inits(session=1, covered=b"\1" + bytes(15))
    ),
    "settlement: 9 is neither SETTLEMENT_DONE (1) nor SETTLEMENT_ABANDON (2)": pb.SettleRequest(
        session=1,
        number=1,
        settlement=9,  # type: ignore[arg-type]
    ),
}


@pytest.mark.parametrize("sentence", MALFORMED)
def test_an_error_about_malformed_columns_names_field_and_reason(caller: Caller, sentence: str) -> None:
    request = MALFORMED[sentence]
    method = "Settle" if isinstance(request, pb.SettleRequest) else "Apply"
    code, said = refusal(lambda: caller.raw(method, request.SerializeToString()))
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert said.startswith(f"{method}: {sentence}")


def test_bytes_that_are_not_a_message_are_refused(caller: Caller) -> None:
    for method in METHODS:
        code, said = refusal(partial(caller.raw, method, b"\xff\xff\xff"))
        assert code == grpc.StatusCode.INVALID_ARGUMENT
        assert said == f"{method}: {method}Request: 3 bytes that are not such a message"


def test_an_unknown_method_is_refused(caller: Caller) -> None:
    assert refusal(lambda: caller.raw("Transfer", b""))[0] == grpc.StatusCode.UNIMPLEMENTED


def test_a_message_over_the_cap_is_refused_and_one_below_is_not(start_server: Callable[..., Any]) -> None:
    server = start_server(max_message_bytes=1 << 20)
    with Caller(server.address) as caller:
        code, said = refusal(lambda: caller.raw("Stats", bytes((1 << 20) + 1)))
        assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert str(1 << 20) in said
        caller.begin()
        roots = roots_of(range(60_000))
        assert caller.apply(inits(roots, 0)).status == Status.APPLIED
        ack_a_tree(caller, 1)


# -- malformed in content: an answer, not an error


def entries(roots: np.ndarray) -> Entries:
    return Entries(roots, np.zeros(len(roots), np.uint64))


def message(roots: np.ndarray, inits: InitScope | None = None) -> Apply:
    return Apply(Identity(5, 6), digest(entries(roots)), entries(roots), inits)


def in_wire_order(roots: np.ndarray) -> np.ndarray:
    return roots[np.argsort(ids.mix64_column(roots))]


@pytest.mark.parametrize(
    "disorder",
    [
        lambda roots: roots[::-1],
        lambda roots: np.repeat(roots, 2),
        lambda roots: np.concatenate((np.zeros(1, np.uint64), roots)),
        lambda roots: np.concatenate((roots[1:], roots[:1])),
    ],
    ids=["descending", "twice", "root 0", "a slot that comes back"],
)
def test_entries_out_of_order_are_invalid_and_leave_no_trace(
    caller: Caller, disorder: Callable[[Column], Column]
) -> None:
    caller.begin()
    good = in_wire_order(roots_of(range(50)))
    bad = np.ascontiguousarray(disorder(good))
    for scope in (None, InitScope(7, 0)):
        reply = caller.apply(message(bad, scope))
        assert (reply.status, bool(reply.detail)) == (Status.INVALID, True)
        assert "root_ids" in reply.detail
        assert caller.stats().values["acker_pending_roots"] == 0
        assert caller.stats().values["acker_orphan_entries"] == 0


def test_roots_outside_their_batch_are_invalid(caller: Caller) -> None:
    caller.begin()
    caller.open_batch(OpenBatch(7, 1, first=100, up_to=5))
    reply = caller.apply(message(in_wire_order(roots_of([105], base=100)), InitScope(7, 1)))
    assert (reply.status, "up_to" in reply.detail) == (Status.INVALID, True)
    beyond = InitScope(7, 1, np.array([[0, 6]], np.uint64))
    assert caller.apply(message(in_wire_order(roots_of([1], base=100)), beyond)).status == Status.INVALID


def test_an_unknown_source_or_batch_is_refused(caller: Caller) -> None:
    roots = roots_of([1])
    reply = caller.apply(inits(roots, 0))
    assert (reply.status, reply.retry_delay_ms > 0) == (Status.UNKNOWN_SOURCE, True)
    assert caller.open_batch(OpenBatch(7, 1, 100, 5)).status == Status.UNKNOWN_SOURCE
    assert caller.settle(1, Settlement.DONE).status == Status.UNKNOWN_SOURCE
    caller.begin()
    assert caller.apply(inits(roots, 0, batch=3)).status == Status.UNKNOWN_BATCH
    assert caller.settle(3, Settlement.DONE).status == Status.UNKNOWN_BATCH


def test_the_same_identity_with_other_content_is_a_conflict(caller: Caller) -> None:
    assert caller.apply(acks(roots_of([1, 2]), 0)).status == Status.APPLIED
    assert caller.apply(acks(roots_of([1, 3]), 0)).status == Status.CONFLICT


def test_a_source_without_name_or_lease_or_with_absurd_limits_is_invalid(caller: Caller) -> None:
    assert caller.watch(lease_ms=0).status == Status.INVALID
    assert caller.watch(limits=Limits(4_000_000_000)).status == Status.INVALID
    assert caller.watch(confirmed=5).is_new
    assert caller.watch(confirmed=5).status == Status.INVALID


def test_a_batch_larger_than_the_server_is_refused(caller: Caller) -> None:
    caller.begin()
    for up_to in (1 << 40, (1 << 64) - 200):
        assert caller.open_batch(OpenBatch(7, 1, 100, up_to)).status in (Status.INVALID, Status.OVERLOADED)
    assert caller.open_batch(OpenBatch(7, 0, 100, 5)).status == Status.INVALID


# -- at random


def random_message(draw: random.Random, method: str) -> bytes:
    """Random bytes, or a message with random fields, or such a message with changed bytes."""
    shape = draw.randrange(4)
    if shape == 0:
        return draw.randbytes(draw.randrange(64))
    request = REQUESTS[method]()
    if method == "Apply" and shape > 1:
        request = wire.encode(_plausible(draw))
    else:
        _fill(draw, request)
    content = bytearray(request.SerializeToString())
    if shape == 3 and content:
        for _ in range(draw.randrange(1, 4)):
            content[draw.randrange(len(content))] = draw.randrange(256)
    return bytes(content)


def _plausible(draw: random.Random) -> Apply:
    """A well-formed report with random content."""
    roots = in_wire_order(roots_of(draw.sample(range(50), draw.randrange(6)), base=FIRST))
    vals = np.array([draw.choice([0, 1]) for _ in roots], np.uint64)
    identity = Identity(draw.randrange(3), draw.randrange(100), draw.random() < 0.5)
    if draw.random() < 0.3:
        covered = np.array([[0, draw.randrange(60)]], np.uint64)
        return Apply(identity, draw.randrange(2), Entries(roots, vals), InitScope(draw.randrange(3), 1, covered))
    kinds = np.array([draw.randrange(1, 8) for _ in roots], np.uint8)
    fails = np.zeros(np.count_nonzero(kinds & FAIL), np.uint32)
    return Apply(identity, draw.randrange(2), Entries(roots, vals, kinds, fails, ("why",)))


def _fill(draw: random.Random, request: Any) -> None:
    for field in request.DESCRIPTOR.fields:
        if draw.random() < 0.3:
            continue
        if field.message_type is not None:
            getattr(request, field.name).SetInParent()
            _fill(draw, getattr(request, field.name))
        elif field.is_repeated:
            getattr(request, field.name).extend(["why"] * draw.randrange(3))
        else:
            setattr(request, field.name, _value(draw, field))


def _value(draw: random.Random, field: Any) -> Any:
    if field.type == field.TYPE_BYTES:
        return draw.randbytes(draw.choice([0, 0, 1, 4, 8, 8, 16, 16, 24, 32]))
    if field.type == field.TYPE_STRING:
        return "name"
    if field.type == field.TYPE_BOOL:
        return draw.random() < 0.5
    if field.name == "wait_ms":
        # A waiting watch takes real time, so only some wait.
        return int(draw.random() < 0.02)
    bits = 32 if field.type in (field.TYPE_UINT32, field.TYPE_ENUM) else 64
    if field.type == field.TYPE_ENUM:
        return draw.randrange(4)
    return draw.choice([0, 1, 2, draw.randrange(100), draw.getrandbits(bits)])


@pytest.mark.slow
@pytest.mark.parametrize("messages", [20_000, pytest.param(100_000, marks=pytest.mark.long)])
@pytest.mark.parametrize("method", METHODS)
def test_random_messages_at_a_handler_are_refused_or_answered(method: str, messages: int) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    options = Config(max_pending=100_000, max_watches=1)
    namespaces = Namespaces({DEFAULT: Shard(incarnation=1, generation=2)}, options, time.monotonic)
    shared, anybody = namespaces.default.shared, Admitted(namespaces.default)
    workers = Workers("test", 1, receive_s=10.0, clock=time.monotonic)
    servicer = Servicer(
        namespaces,
        hello=HelloReply(PROTOCOL_VERSION, "", 1, 1 << 20, 64),
        view=lambda: ViewReply(1, 0, ()),
        epoch=lambda: 0,
        drain=lambda: DrainReply(1, Status.APPLIED),
        values=dict,
        observe=lambda *_: None,
        reporters=workers,
        others=workers,
        replies=Replies(send_s=10.0, max_bytes=64 << 20, clock=time.monotonic),
        access=Access(None, time.monotonic),
    )
    for session in (1, 2):
        shared.watch(Watch("test", session, 600_000))
        shared.open_batch(OpenBatch(session, 1, FIRST, 50, held=session == 1))
    handle = servicer.calls[method]
    for _ in range(messages):
        content = random_message(draw, method)
        try:
            handle(content, anybody, Wait())
        except (wire.Malformed, CallRefused):
            pass
        except Exception as error:
            raise AssertionError(f"{method} broke on {content.hex()} (seed {seed})") from error
    # Close the sessions, because random batches may have reserved all the room.
    for session in (1, 2):
        shared.watch(Watch("test", session, 600_000, close=True))
    watching = Watch("test", 1 << 60, 600_000)
    assert shared.watch(watching).is_new
    roots = roots_of([1], base=1 << 50)
    shared.apply(inits(roots, 0, session=1 << 60))
    shared.apply(acks(roots, 1, sender=1 << 60))
    assert shared.watch(watching).outcomes.root_ids.tolist() == roots.tolist()


@pytest.mark.long
def test_two_thousand_random_messages_on_the_wire_do_no_harm(server_process: Callable[..., Any]) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    process = server_process()
    clear = (grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION)
    with Caller(process.address) as caller:
        ack_a_tree(caller, 1 << 60)
        before = resident_bytes(process.pid)
        for number in range(2_000):
            method = METHODS[number % len(METHODS)]
            content = random_message(draw, method)
            code, said = answer(caller, method, content)
            assert code in clear, (method, content.hex(), said)
            assert code == grpc.StatusCode.OK or said.startswith((method, "the client speaks")), said
        ack_a_tree(caller, (1 << 60) + 1)
        assert resident_bytes(process.pid) - before < MEMORY_MAX_BYTES
    assert process.terminate() == 0
    assert "call_failed" not in process.log


def answer(caller: Caller, method: str, content: bytes) -> tuple[grpc.StatusCode, str]:
    try:
        caller.raw(method, content)
    except grpc.RpcError as error:
        return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""


def resident_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()
