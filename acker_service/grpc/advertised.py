"""Advertised: checks that the address given to clients leads to this server.

Decides what it means if another server or no server answers at the address. One Hello is enough, because only this
process answers with its incarnation. The caller decides whether the server starts in spite of a failed check.
"""

from __future__ import annotations

import time
from typing import Any

import grpc

from acker_protocol import wire
from acker_protocol.messages import PROTOCOL_VERSION, Hello, HelloReply
from acker_protocol.v1.acker_pb2_grpc import AckerStub

# The timeout of one Hello, and the pause before the next. Retries are needed because the DNS name of a new server may
# not be known everywhere yet.
ANSWER_S = 2.0
RETRY_S = 0.25
OPTIONS = [
    # Servers are in the job's own network, which the proxy for the web may not reach.
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
]


class Misdirected(Exception):
    """The address does not lead to this server; the text says what answers there.

    ``is_another``: another server answers, so clients would use the wrong one.
    """

    def __init__(self, sentence: str, *, is_another: bool) -> None:
        super().__init__(sentence)
        self.is_another = is_another


def check(
    address: str, incarnation: int, greeting: str, budget_s: float, credentials: grpc.ChannelCredentials | None
) -> None:
    """Check that the server of ``incarnation`` answers at ``address`` within ``budget_s`` (0: try once).

    ``greeting``: a client_version by which the server recognises its own Hello. ``credentials``: None for no TLS.
    Raises :class:`Misdirected`.
    """
    hello = wire.encode(Hello(PROTOCOL_VERSION, greeting))
    deadline = time.monotonic() + budget_s
    while True:
        # Needs a new channel each time, since a channel that failed to resolve a name is slow to look it up again.
        with _channel(address, credentials) as channel:
            trouble = _try_hello(AckerStub(channel), hello, address, incarnation)  # type: ignore[no-untyped-call]
        if trouble is None:
            return
        if time.monotonic() >= deadline:
            raise trouble
        time.sleep(RETRY_S)


def _channel(address: str, credentials: grpc.ChannelCredentials | None) -> grpc.Channel:
    if credentials is None:
        return grpc.insecure_channel(address, OPTIONS)
    return grpc.secure_channel(address, credentials, OPTIONS)


def _try_hello(stub: AckerStub, hello: Any, address: str, incarnation: int) -> Misdirected | None:
    try:
        reply = wire.decode(HelloReply, stub.Hello(hello, timeout=ANSWER_S))
    except grpc.RpcError as error:
        return Misdirected(f"this server does not answer at {address} ({_error_line(error)})", is_another=False)
    if reply.incarnation == incarnation:
        return None
    other = f"server {reply.id} (acker {reply.server_version})"
    return Misdirected(f"another server answers at {address}, {other}", is_another=True)


def _error_line(error: grpc.RpcError) -> str:
    """Return the status and text of a gRPC error in one line."""
    details = " ".join((error.details() or "").split())
    return f"{error.code().name}: {details}" if details else str(error.code().name)
