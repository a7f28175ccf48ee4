"""Caller: the RPCs of a server as plain functions, for tests without the client library."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import grpc
import numpy as np

from acker_protocol import ids, reports, wire
from acker_protocol.messages import (
    PROTOCOL_VERSION,
    Apply,
    ApplyReply,
    DrainReply,
    Hello,
    HelloReply,
    Identity,
    InitScope,
    Limits,
    OpenBatch,
    OpenBatchReply,
    Pins,
    PinsReply,
    Settle,
    Settlement,
    SettleReply,
    StatsReply,
    ViewReply,
    Watch,
    WatchReply,
)
from acker_protocol.v1 import acker_pb2 as pb
from acker_protocol.v1.acker_pb2_grpc import AckerStub

TIMEOUT_S = 30.0
SESSION = 7


class Caller:
    """One connection to one server. All calls raise ``grpc.RpcError``. ``raw`` sends its bytes unchanged."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.insecure_channel(
            address,
            options=[
                ("grpc.max_receive_message_length", -1),
                ("grpc.use_local_subchannel_pool", 1),
                # Reconnect at once to a server that has restarted.
                ("grpc.initial_reconnect_backoff_ms", 100),
                ("grpc.max_reconnect_backoff_ms", 300),
            ],
        )
        self._stub: Any = AckerStub(self.channel)  # type: ignore[no-untyped-call]  # generated

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()

    def raw(self, method: str, content: bytes) -> bytes:
        call: Any = self.channel.unary_unary(f"/acker.v1.Acker/{method}", None, None)
        return bytes(call(content, timeout=TIMEOUT_S))

    def hello(self, version: int = PROTOCOL_VERSION) -> HelloReply:
        return wire.decode(HelloReply, self._stub.Hello(wire.encode(Hello(version, "test")), timeout=TIMEOUT_S))

    def hello_later(self) -> Any:
        """Start a Hello and return its future."""
        return self._stub.Hello.future(wire.encode(Hello(PROTOCOL_VERSION, "test")), timeout=TIMEOUT_S)

    def apply(self, message: Apply) -> ApplyReply:
        return wire.decode(ApplyReply, self._stub.Apply(wire.encode(message), timeout=TIMEOUT_S))

    def open_batch(self, request: OpenBatch) -> OpenBatchReply:
        return wire.decode(OpenBatchReply, self._stub.OpenBatch(wire.encode(request), timeout=TIMEOUT_S))

    def opening(self, request: OpenBatch) -> Any:
        """Start an OpenBatch and return its future."""
        return self._stub.OpenBatch.future(wire.encode(request), timeout=TIMEOUT_S)

    def settle(self, number: int, settlement: Settlement, session: int = SESSION) -> SettleReply:
        request = wire.encode(Settle(session, number, settlement))
        return wire.decode(SettleReply, self._stub.Settle(request, timeout=TIMEOUT_S))

    def watch(
        self,
        session: int = SESSION,
        *,
        confirmed: int = 0,
        wait_ms: int = 0,
        close: bool = False,
        limits: Limits = Limits(),
        lease_ms: int = 600_000,
        source: str = "test",
        pins: bytes = b"",
    ) -> WatchReply:
        request = Watch(source, session, lease_ms, limits, confirmed, wait_ms, close=close, pins=pins)
        return wire.decode(WatchReply, self._stub.Watch(wire.encode(request), timeout=TIMEOUT_S))

    def watching(self, session: int = SESSION, *, confirmed: int = 0, wait_ms: int = 20_000) -> Any:
        """Start a watch and return its future, whose ``.result()`` is the protobuf reply."""
        request = wire.encode(Watch("test", session, 600_000, Limits(), confirmed, wait_ms))
        return self._stub.Watch.future(request, timeout=TIMEOUT_S)

    def stats(self) -> StatsReply:
        return wire.decode(StatsReply, self._stub.Stats(pb.StatsRequest(), timeout=TIMEOUT_S))

    def view(self) -> ViewReply:
        return wire.decode(ViewReply, self._stub.View(pb.ViewRequest(), timeout=TIMEOUT_S))

    def drain(self) -> DrainReply:
        return wire.decode(DrainReply, self._stub.Drain(pb.DrainRequest(), timeout=TIMEOUT_S))

    def pins(self, session: int = SESSION) -> PinsReply:
        return wire.decode(PinsReply, self._stub.Pins(wire.encode(Pins(session)), timeout=TIMEOUT_S))

    def begin(self, session: int = SESSION) -> None:
        """Open a session."""
        assert self.watch(session).is_new


def roots_of(numbers: list[int] | range, base: int = 1 << 40) -> np.ndarray:
    """Return the root ids of emissions ``numbers``: uint64."""
    return ids.root_ids(base, np.array(numbers, np.uint64))


def inits(
    roots: np.ndarray, sequence: int, *, session: int = SESSION, batch: int = 0, sender: int | None = None
) -> Apply:
    """Return a message that inits ``roots`` with their initial edges. ``sender``: by default the session."""
    identity = Identity(session if sender is None else sender, sequence, sequenced=True)
    return reports.pack(identity, reports.fold(roots, ids.edge0_column(roots)), InitScope(session, batch))[0]


def acks(roots: np.ndarray, sequence: int, *, sender: int = SESSION) -> Apply:
    """Return a message that acks the initial edges of ``roots``."""
    identity = Identity(sender, sequence, sequenced=True)
    return reports.pack(identity, reports.fold(roots, ids.edge0_column(roots)))[0]


def ack_a_tree(caller: Caller, session: int) -> None:
    """Check that a server works: init and ack one tree of a new session, and get its outcome."""
    caller.begin(session)
    roots = roots_of([session], base=1 << 50)
    caller.apply(inits(roots, 0, session=session))
    caller.apply(acks(roots, 1, sender=session))
    reply = caller.watch(session, wait_ms=10_000)
    assert (reply.outcomes.root_ids.tolist(), reply.outcomes.verdicts.tolist()) == (roots.tolist(), [1])
    caller.watch(session, close=True)


def eventually(condition: Callable[[], bool], within_s: float = 20.0) -> None:
    """Wait until ``condition`` holds; fail after ``within_s``."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it never came to hold"
        time.sleep(0.002)


def is_running(pid: int) -> bool:
    """Whether a process runs; False for a dead one that its parent has not reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
