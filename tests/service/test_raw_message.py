"""Raw messages: a request over a limit is refused from its bytes, and what protobuf parses is counted right."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from acker_protocol import reports, wire
from acker_protocol.messages import FAIL, PROTOCOL_VERSION, Apply, Entries, Identity, InitScope, Status
from acker_protocol.v1 import acker_pb2 as pb
from acker_protocol.wire import Malformed
from acker_service.grpc import raw_message
from acker_service.grpc.raw_message import FIELDS_MAX, LARGEST_BYTES, REASONS_MAX, SMALL_BYTES
from acker_service.server import Server
from tests.service.caller import SESSION, Caller, ack_a_tree, inits, roots_of
from tests.service.test_bad_input import FIRST, REQUESTS, random_message, refusal

# The fields of each call that hold messages, by number. Written from acker.proto.
INNER: dict[str, dict[int, Any]] = {
    "Apply": {1: pb.Identity, 3: pb.Inits},
    "OpenBatch": {6: pb.Limits},
    "Watch": {4: pb.Limits},
}
TOO_MANY_FIELDS = f"more than {FIELDS_MAX} fields; send each field once"
TOO_MANY_REASONS = f"reasons: more than {REASONS_MAX} in a message; send several messages"


# -- against a simple twin


def varint(number: int, *, spare: int = 0) -> bytes:
    """Return a varint, which is ``spare`` bytes longer than it need be."""
    parts = []
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    if spare:
        return bytes([*parts, number | 128, *[128] * (spare - 1), 0])
    return bytes([*parts, number])


def drawn_field(chance: random.Random, number: int, content: bytes | None = None) -> bytes:
    """Return a field with any content, in any way to write it. ``content``: of a field that holds bytes."""
    spare = chance.choice([0, 0, 0, 1])
    kind = 2 if content is not None else chance.choice([0, 1, 5])
    key = varint(number << 3 | kind, spare=spare if number < 1 << 20 else 0)
    if content is not None:
        return key + varint(len(content), spare=spare) + content
    if kind == 0:
        return key + varint(chance.choice([0, 1, 127, 128, (1 << 64) - 1]), spare=0)
    return key + chance.randbytes(8 if kind == 1 else 4)


def drawn_message(chance: random.Random, name: str) -> tuple[bytes, int, int]:
    """Return a request of call ``name``, and how many fields and reasons it has."""
    pieces: list[bytes] = []
    # As many as the message may have, or nearly, or some.
    fields, reasons = chance.choice([10, 30, FIELDS_MAX, FIELDS_MAX + 1]), 0
    left = fields
    while left:
        inner = INNER.get(name, {})
        number = chance.choice([1, 2, 3, 4, 6, 7, 9, 15, 16, 77, 1 << 28])
        if number in inner and left > 1:
            within = chance.randrange(min(left, 20))
            content = b"".join(
                drawn_field(chance, *chance.choice([(2, None), (9, None), (9, b"\x42\x00" * 9)])) for _ in range(within)
            )
            pieces.append(drawn_field(chance, number, content))
            left -= within
        elif number in inner or number in (9, 77, 1 << 28):
            # Bytes that look like fields are skipped.
            pieces.append(drawn_field(chance, number, b"\x42\x00" * chance.choice([0, 3, 300]) if number > 8 else b""))
        else:
            pieces.append(drawn_field(chance, number))
        left -= 1
    if name == "Apply":
        reasons = chance.choice([0, 1, 1000, REASONS_MAX, REASONS_MAX + 1])
        pieces += [b"\x42\x03why"] * chance.choice([0, min(reasons, 50)])
        many = reasons - sum(piece == b"\x42\x03why" for piece in pieces)
        pieces.append(b"\x42\x00" * many)
    chance.shuffle(pieces)
    return b"".join(pieces), fields, reasons


def parse(name: str, content: bytes) -> Any:
    kind: Any = REQUESTS[name]
    return kind.FromString(content)


def verdict(name: str, content: bytes) -> str:
    """Return how `check` refuses a request; "" if it does not. Small requests are looked at, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(raw_message, "SMALL_BYTES", 0)
        try:
            raw_message.check(name, content)
        except Malformed as error:
            return str(error)
    return ""


@given(st.integers(0, 1 << 32), st.sampled_from(sorted(REQUESTS)))
@settings(max_examples=300, deadline=None, phases=[Phase.generate])
def test_any_message_below_the_limits_passes_and_any_other_is_refused(seed: int, name: str) -> None:
    content, fields, reasons = drawn_message(random.Random(seed), name)
    parsed = parse(name, content)
    if name == "Apply":
        assert len(parsed.reasons) == reasons
    # The first limit that is passed is named.
    allowed = [TOO_MANY_FIELDS] * (fields > FIELDS_MAX) + [TOO_MANY_REASONS] * (reasons > REASONS_MAX)
    assert verdict(name, content) in (allowed or [""])


def counted(name: str, content: bytes) -> tuple[int, int]:
    counts = np.zeros(2, np.int64)
    repeated = raw_message._REASONS if name == "Apply" else 0
    inner = raw_message._INNER.get(name, 0)
    raw_message._count_fields(np.frombuffer(content, np.uint8), repeated, inner, counts)
    return int(counts[0]), int(counts[1])


def fields_of(message: Any) -> int:
    """Count the known fields of a parsed message that are set, those of inner messages included."""
    inner = [value for field, value in message.ListFields() if field.message_type is not None]
    texts = [field for field, _ in message.ListFields() if field.is_repeated]
    return len(message.ListFields()) - len(texts) + sum(map(fields_of, inner))


@given(st.integers(0, 1 << 32), st.sampled_from(sorted(REQUESTS)))
@settings(max_examples=1000, deadline=None, phases=[Phase.generate])
def test_damaged_messages_are_counted_like_those_that_protobuf_parses(seed: int, name: str) -> None:
    content = random_message(random.Random(seed), name)
    fields, reasons = counted(name, content)
    assert 0 <= fields + reasons <= len(content)
    try:
        parsed = parse(name, content)
    except DecodeError:
        return
    # A field may come twice, or be one that nobody knows.
    assert fields >= fields_of(parsed)
    if name == "Apply":
        # Another kind of content under the number of the reasons is no reason.
        assert reasons >= len(parsed.reasons)


# -- at a server


@pytest.fixture
def caller(server: Server) -> Iterator[Caller]:
    """A caller with a session, whose server must still work at the end of the test."""
    with Caller(server.address) as caller:
        caller.begin()
        yield caller
        ack_a_tree(caller, 999_999)


def failing(count: int) -> Apply:
    """Return a message in which each of ``count`` roots fails for a reason of its own."""
    roots = roots_of(range(count))
    texts = {int(root): f"reason {n}" for n, root in enumerate(roots)}
    entries = reports.fold_updates(roots, np.zeros(count, np.uint64), np.full(count, FAIL, np.uint8), texts)
    return Apply(Identity(1, count), 1, entries)


def test_a_message_may_have_as_many_reasons_as_the_limit_and_not_one_more(caller: Caller) -> None:
    roots = failing(REASONS_MAX).entries.root_ids
    caller.apply(Apply(Identity(1, 1), 1, Entries(roots, roots), InitScope(SESSION, 0)))
    too_many = wire.encode(failing(REASONS_MAX + 1)).SerializeToString()
    code, said = refusal(lambda: caller.raw("Apply", too_many))
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert said == f"Apply: {TOO_MANY_REASONS}"
    assert caller.stats().values["acker_pending_roots"] == REASONS_MAX
    assert caller.apply(failing(REASONS_MAX)).status == Status.APPLIED
    assert caller.stats().values["acker_pending_roots"] == 0


# Fields that each message may have besides its own. Number 1000 is one that nobody knows, with 8 KiB.
FILLER = varint(1000 << 3 | 2) + varint(2 * SMALL_BYTES) + bytes(2 * SMALL_BYTES)
SURPLUS: dict[str, Callable[[bytes], bytes]] = {
    "unknown fields": lambda content: content + FILLER + b"\x78\x01" * FIELDS_MAX,
    "an identity again and again": lambda content: content + FILLER + b"\x0a\x02\x18\x01" * (FIELDS_MAX // 2),
    "fields in an identity": lambda content: content + FILLER + b"\x0a\x7e" + b"\x18\x01" * 63,
}


@pytest.mark.parametrize("surplus", SURPLUS)
def test_a_message_with_too_many_fields_is_refused_and_leaves_no_trace(caller: Caller, surplus: str) -> None:
    message = inits(roots_of(range(10)), 3)
    content = wire.encode(message).SerializeToString()
    code, said = refusal(lambda: caller.raw("Apply", SURPLUS[surplus](content)))
    assert (code, said) == (grpc.StatusCode.INVALID_ARGUMENT, f"Apply: {TOO_MANY_FIELDS}")
    assert caller.stats().values["acker_pending_roots"] == 0
    caller.raw("Apply", content + FILLER)
    assert caller.stats().values["acker_pending_roots"] == 10
    assert caller.apply(message).status == Status.DUPLICATE


@pytest.mark.parametrize("name", sorted(REQUESTS.keys() - {"Apply"}))
def test_a_request_that_is_no_report_may_have_as_many_bytes_as_the_limit_and_not_one_more(
    caller: Caller, name: str
) -> None:
    request = {
        "Hello": pb.HelloRequest(protocol_version=PROTOCOL_VERSION),
        "OpenBatch": pb.OpenBatchRequest(session=SESSION, number=1, first=FIRST, up_to=10),
        "Settle": pb.SettleRequest(session=SESSION, number=1, settlement=pb.SETTLEMENT_DONE),
        "Watch": pb.WatchRequest(source="other", session=5, lease_ms=60_000, pins=bytes(1 << 16)),
    }.get(name, REQUESTS[name]())
    content = request.SerializeToString()
    # A field that nobody knows, with its number in two bytes and its length in three.
    spare = LARGEST_BYTES - len(content) - 5
    content += varint(1000 << 3 | 2) + varint(spare) + bytes(spare)
    assert len(content) == LARGEST_BYTES
    code, said = refusal(lambda: caller.raw(name, content + b"\0"))
    assert (code, said) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        f"{name}: {LARGEST_BYTES + 1} bytes; at most {LARGEST_BYTES} in a request that is not a report",
    )
    values = caller.stats().values
    assert (values["acker_sources"], values["acker_open_batches"]) == (1, 0)
    caller.raw(name, content)
    values = caller.stats().values
    assert (values["acker_sources"], values["acker_open_batches"]) == (1 + (name == "Watch"), int(name == "OpenBatch"))
