"""A client that was written from the text of acker.proto alone: plain integers, one entry at a time.

It shares nothing with the server but that text. It is slow, and as short as the contract allows.
"""

from __future__ import annotations

import hashlib
import secrets
import struct
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Self

import grpc
from contract_stubs import NAMES, NUMBERS, Stub, pb

DEADLINE_S = 30.0
WAIT_MS = 10_000
LEASE_MS = 60_000

# -- formulas

TOP = 2**64


def mix64(x: int) -> int:
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % TOP
    x = (x ^ x >> 27) * 0x94D049BB133111EB % TOP
    return x ^ x >> 31


def unmix64(x: int) -> int:
    x = (x ^ x >> 31 ^ x >> 62) * 0x319642B2D24D8EC3 % TOP
    x = (x ^ x >> 27 ^ x >> 54) * 0x96DE1B173F119089 % TOP
    return x ^ x >> 30 ^ x >> 60


def root_of(first: int, number: int) -> int:
    return mix64((first + number) % TOP)


def slot(root: int) -> int:
    return mix64(root) >> 54


def edge0(root: int) -> int:
    return mix64(root ^ 0x243F6A8885A308D3)


def hash64(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def child_edge(edge: int, operator: str, k: int, d: int) -> int:
    return mix64(edge ^ mix64((hash64(operator) + k) % TOP) ^ d)


def task_identity(operator: str, consumed: Iterable[tuple[int, int]]) -> Any:
    total = 0
    for root, edge in consumed:
        high = mix64(root ^ mix64(edge ^ 0x13198A2E03707344))
        low = mix64(edge ^ mix64(root ^ 0xA4093822299F31D0))
        total += high * TOP + low
    hashed = hashlib.blake2b(
        operator.encode() + b"\0" + (total % 2**128).to_bytes(16, "little"), digest_size=16
    ).digest()
    return pb.Identity(low=int.from_bytes(hashed[:8], "little"), high=int.from_bytes(hashed[8:], "little"))


# -- reports

ACK, FAIL, RESET = 1, 2, 4


class Entry(NamedTuple):
    """The entry of one root in a report."""

    root: int
    ack_val: int = 0
    kind: int = ACK
    reason: str = ""


def ack(root: int, *edges: int) -> Entry:
    val = 0
    for edge in edges:
        val ^= edge
    return Entry(root, val)


def fail(root: int, reason: str) -> Entry:
    return Entry(root, 0, FAIL, reason)


def reset(root: int) -> Entry:
    return Entry(root, 0, RESET)


def fold(entries: Iterable[Entry]) -> list[Entry]:
    """Return one entry a root, in ascending order of mix64(root)."""
    folded: dict[int, Entry] = {}
    for entry in entries:
        known = folded.get(entry.root)
        folded[entry.root] = entry if known is None else _both(known, entry)
    return sorted(folded.values(), key=lambda entry: mix64(entry.root))


def _both(one: Entry, other: Entry) -> Entry:
    reason = one.reason if one.kind & FAIL else other.reason
    return Entry(one.root, one.ack_val ^ other.ack_val, one.kind | other.kind, reason)


def digest(entries: Sequence[Entry]) -> int:
    return sum(mix64(e.root ^ (mix64(e.ack_val ^ 0x082EFA98EC4E6C89) + e.kind) % TOP) for e in entries) % TOP


def sections(entries: Sequence[Entry]) -> list[list[Entry]]:
    """Return folded entries, cut where the slot changes."""
    cut: dict[int, list[Entry]] = {}
    for entry in entries:
        cut.setdefault(slot(entry.root), []).append(entry)
    return list(cut.values())


def column(values: Iterable[int], kind: str = "Q") -> bytes:
    """Return ``values`` as little-endian fixed64 ("Q"), uint32 ("I") or uint8 ("B")."""
    content = list(values)
    return struct.pack(f"<{len(content)}{kind}", *content)


def values(content: bytes, kind: str = "Q") -> list[int]:
    return list(struct.unpack(f"<{len(content) // struct.calcsize(kind)}{kind}", content))


def message(identity: Any, of: Sequence[Entry], entries: Sequence[Entry], inits: Any = None) -> Any:
    """Return the ApplyRequest that carries ``entries``, which are all or some entries of the folded report ``of``."""
    failed = [entry.reason for entry in entries if entry.kind & FAIL]
    reasons = list(dict.fromkeys(failed))
    return pb.ApplyRequest(
        identity=identity,
        digest=digest(of),
        inits=inits,
        root_ids=column(entry.root for entry in entries),
        ack_vals=column(entry.ack_val for entry in entries),
        kinds=b"" if all(entry.kind == ACK for entry in entries) else column((e.kind for e in entries), "B"),
        reason_ids=column((reasons.index(reason) for reason in failed), "I"),
        reasons=reasons,
    )


# -- connections, senders and sources


class Acker:
    """A connection to the server. ``call`` takes the fields of a request by name; statuses come back by name."""

    def __init__(self, address: str, *, token: str = "") -> None:
        self._channel = grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)])
        self._stub = Stub(self._channel)
        self._metadata = [("authorization", f"Bearer {token}")] if token else []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def send(self, method: str, request: Any) -> Any:
        call = getattr(self._stub, method)
        return call(request, timeout=DEADLINE_S, metadata=self._metadata, wait_for_ready=True)

    def call(self, method: str, **fields: Any) -> Any:
        return self.send(method, getattr(pb, f"{method}Request")(**fields))

    def apply(self, request: Any) -> Any:
        return self.send("Apply", request)

    def source(self, **options: Any) -> Source:
        """Open a source and return it."""
        source = Source(self, **options)
        reply = source.watch()
        assert (status(reply), reply.is_new) == ("STATUS_APPLIED", True)
        return source

    def sender(self) -> Sender:
        return Sender(self)


class Sender:
    """Sends reports of acks and fails under sequenced identities of its own."""

    def __init__(self, acker: Acker) -> None:
        self.acker = acker
        self.high = secrets.randbits(64)
        self._low = 0

    def identity(self) -> Any:
        self._low += 1
        return pb.Identity(high=self.high, low=self._low - 1, sequenced=True)

    def report(self, *entries: Entry, identity: Any = None, inits: Any = None) -> Any:
        folded = fold(entries)
        return self.acker.apply(message(identity or self.identity(), folded, folded, inits))


class Source(Sender):
    """A source: a session, a base for its root ids, and the cursor of the outcomes that it has received."""

    def __init__(self, acker: Acker, *, lease_ms: int = LEASE_MS, limits: Any = None) -> None:
        super().__init__(acker)
        self.session = secrets.randbits(64)
        self.base = 1 + secrets.randbelow(2**62 - 1)
        self.lease_ms, self.limits = lease_ms, limits
        self.cursor = 0

    def root(self, number: int) -> int:
        return root_of(self.base, number)

    def watch(self, **fields: Any) -> Any:
        """Send a Watch. It confirms all outcomes received so far, unless ``confirmed`` is given."""
        asked = {"source": "contract", "lease_ms": self.lease_ms, "limits": self.limits, "confirmed": self.cursor}
        return self.acker.call("Watch", session=self.session, **{**asked, **fields})

    def hear(self, count: int) -> dict[int, tuple[str, str]]:
        """Return the next ``count`` outcomes: root id -> (verdict, reason)."""
        heard: dict[int, tuple[str, str]] = {}
        while len(heard) < count:
            reply = self.watch(wait_ms=WAIT_MS, max_outcomes=count - len(heard))
            assert status(reply) == "STATUS_APPLIED", reply.detail
            heard |= outcomes(reply)
            self.cursor = reply.cursor
        return heard

    def init(self, *entries: Entry, batch: int = 0, covered: Iterable[int] = (), identity: Any = None) -> Any:
        inits = pb.Inits(session=self.session, batch=batch, covered=column(covered))
        return self.report(*entries, identity=identity, inits=inits)

    def open_batch(self, number: int, up_to: int, **fields: Any) -> Any:
        fields = {"first": self.base, "held": True, **fields}
        return self.acker.call("OpenBatch", session=self.session, number=number, up_to=up_to, **fields)

    def settle(self, number: int, settlement: str) -> Any:
        return self.acker.call("Settle", session=self.session, number=number, settlement=NUMBERS[settlement])


def status(reply: Any) -> str:
    return NAMES["Status"][reply.status]


def section_statuses(reply: Any) -> list[str]:
    return [NAMES["Status"][number] for number in reply.section_statuses]


def outcomes(reply: Any) -> dict[int, tuple[str, str]]:
    """Return the outcomes of a WatchReply: root id -> (verdict, reason)."""
    roots = values(reply.root_ids)
    reason_ids = values(reply.reason_ids, "I") or [0] * len(roots)
    reasons = ["", *reply.reasons]
    verdicts = [NAMES["Verdict"][number] for number in reply.verdicts]
    return {
        root: (verdict, reasons[reason_id])
        for root, verdict, reason_id in zip(roots, verdicts, reason_ids, strict=True)
    }
