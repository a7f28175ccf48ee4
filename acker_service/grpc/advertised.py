"""Advertised: does the address at which clients are to reach this server lead to it?

Decides what it means when another server answers there, or nobody. One Hello proves it: only this process answers it
with this incarnation. Never decides whether the server starts all the same.
"""

from __future__ import annotations

import time
from typing import Any

import grpc

from acker_protocol import wire
from acker_protocol.messages import PROTOCOL_VERSION, Hello, HelloReply
from acker_protocol.v1.acker_pb2_grpc import AckerStub

# One answer. Names of a server that has just come may not be known everywhere yet, so it is tried again.
ANSWER_S = 2.0
RETRY_S = 0.25
OPTIONS = [
    # The acker is in the job's own network: a proxy for the web is not the way to it.
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
]


class Misdirected(Exception):
    """The address does not lead to this server; the text says what is there.

    ``is_another``: another server is, which clients would be sent to in its stead.
    """

    def __init__(self, sentence: str, *, is_another: bool) -> None:
        super().__init__(sentence)
        self.is_another = is_another


def check(address: str, incarnation: int, greeting: str, budget_s: float) -> None:
    """See that the server of ``incarnation`` answers at ``address``, within ``budget_s``; 0: try once.

    ``greeting``: by what the server knows this Hello for its own. Raises :class:`Misdirected`.
    """
    hello = wire.encode(Hello(PROTOCOL_VERSION, greeting))
    deadline = time.monotonic() + budget_s
    while True:
        # A channel of its own each time: one that has not found a name asks for it seldom.
        with grpc.insecure_channel(address, OPTIONS) as channel:
            trouble = _trouble(AckerStub(channel), hello, address, incarnation)  # type: ignore[no-untyped-call]
        if trouble is None:
            return
        if time.monotonic() >= deadline:
            raise trouble
        time.sleep(RETRY_S)


def _trouble(stub: AckerStub, hello: Any, address: str, incarnation: int) -> Misdirected | None:
    try:
        reply = wire.decode(HelloReply, stub.Hello(hello, timeout=ANSWER_S))
    except grpc.RpcError as error:
        return Misdirected(f"this server does not answer at {address} ({_said(error)})", is_another=False)
    if reply.incarnation == incarnation:
        return None
    who = f"server {reply.id} (acker {reply.server_version})"
    return Misdirected(f"at {address} another server answers, {who}", is_another=True)


def _said(error: grpc.RpcError) -> str:
    """What gRPC says, in one line."""
    details = " ".join((error.details() or "").split())
    return f"{error.code().name}: {details}" if details else str(error.code().name)
