"""Transport: one gRPC channel to one server.

Decides how the channel is set up, and which of gRPC's statuses are worth a retry. Import this only inside the process
that uses it, after a fork: an open channel does not survive a fork.
"""

from __future__ import annotations

import re
import threading
import time
from typing import TypeVar

import grpc

from acker_client.backoff import Clock
from acker_client.errors import AckerError, Closed, Rejected, Unavailable
from acker_client.rpc.access import ServerAccess
from acker_client.settings import DEFAULT_PORT, Settings
from acker_protocol import wire
from acker_protocol.messages import (
    Apply,
    ApplyReply,
    DrainReply,
    DrainRequest,
    Hello,
    HelloReply,
    OpenBatch,
    OpenBatchReply,
    Pins,
    PinsReply,
    Settle,
    SettleReply,
    StatsReply,
    StatsRequest,
    ViewReply,
    ViewRequest,
    Watch,
    WatchReply,
)
from acker_protocol.v1.acker_pb2_grpc import AckerStub

Reply = TypeVar("Reply")

KEEPALIVE_S = 30
# gRPC closes a connection that has had no call for this long, or up to twice as long. Many thousand processes would
# otherwise keep their connections to every server of their earlier batches.
IDLE_S = 10
# gRPC closes the connection of a channel only once (grpc/grpc#35825, seen in 1.85.1). So a channel that gRPC may have
# found idle is replaced before its next call, a little too early rather than too late.
_REPLACED_AFTER_S = 0.9 * IDLE_S

OPTIONS: list[tuple[str, int]] = [
    # The client does its own retries, because it knows the identities of reports and has one time budget for all tries.
    ("grpc.enable_retries", 0),
    ("grpc.keepalive_time_ms", KEEPALIVE_S * 1000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.client_idle_timeout_ms", IDLE_S * 1000),
    ("grpc.http2.max_pings_without_data", 0),
    # The server announces its limit in HelloReply. Replies may have any size.
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # Finds a restarted server within seconds. By default gRPC waits up to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # The acker is in the job's own network, so an HTTP proxy for the web must not be used.
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
]

# Statuses for which no retry helps, with advice: the caller has to change something.
_REJECTIONS = {
    grpc.StatusCode.INVALID_ARGUMENT: "This is a bug in the client, or another program's message",
    grpc.StatusCode.FAILED_PRECONDITION: "Install the same version of acker on both sides",
    grpc.StatusCode.UNIMPLEMENTED: "Give the address of an acker's gRPC port, of this version",
    grpc.StatusCode.OUT_OF_RANGE: "Install the same version of acker on both sides",
    grpc.StatusCode.UNAUTHENTICATED: "Give the server's token: Settings(token=...), ACKER_TOKEN or spark.acker.token",
    grpc.StatusCode.PERMISSION_DENIED: "Give a token that is allowed this: Settings(token=...), ACKER_TOKEN or "
    "spark.acker.token",
}

# gRPC's error texts if the port belongs to another protocol. The frame type in them is the fourth byte of the answer.
_NO_HTTP2 = re.compile(r"Failed parsing HTTP/2|Expected SETTINGS frame|http1\.x server")
_FOURTH_BYTE = re.compile(r"got frame type (\d+)")
# The fourth bytes of "HTTP/1.1 400" and "<!DOCTYPE HTML>".
_OF_HTTP = frozenset("POpo")
# gRPC's text if the connection is accepted and closed before anything was sent.
_CLOSED_AT_ONCE = re.compile(r"failed to connect to all addresses.*(Socket closed|Connection reset by peer)")
_CLOSED_HINT = (
    "The connection is accepted and closed at once: a port with TLS does that (then give tls=, ACKER_TLS or "
    "spark.acker.tls), a server that asks for a certificate (Tls(cert=..., key=...)), or a proxy with no server behind "
    "it"
)
# Texts of OpenSSL in the errors of gRPC, with advice.
_TLS_HINTS = {
    "CERTIFICATE_VERIFY_FAILED": "The server's certificate is not from the CAs in Tls(ca=...), or has expired",
    "Hostname Verification Check failed": "The server's certificate is for another name than this address",
    "WRONG_VERSION_NUMBER": "What answers there has no TLS: leave out tls, or start the server with --tls-cert",
}
# The texts of several gRPC versions for a host name that DNS does not know.
_NO_ADDRESS = re.compile(r"DNS resolution failed|errors resolving|lookup failed|Domain name not found")


class _Channel:
    """A channel, the number of calls that use it, and when the last one ended."""

    def __init__(self, channel: grpc.Channel, used_at: float) -> None:
        self.channel = channel
        self.stub = AckerStub(channel)  # type: ignore[no-untyped-call]
        self.calls = 0
        self.used_at = used_at


class GrpcTransport:
    """:class:`acker_protocol.messages.Transport` over one channel. Thread-safe. ``address`` is host:port.

    ``settings``: for TLS and the token. When the files of TLS change, or after IDLE_S without a call, later calls use a
    new channel, and calls under way finish on the old one.
    """

    def __init__(self, address: str, settings: Settings | None = None, clock: Clock = time.monotonic) -> None:
        self.address = address
        self._clock = clock
        self._access = ServerAccess(address, settings)
        self._lock = threading.Lock()
        # The newest is last. The others have calls under way.
        self._channels: list[_Channel] = []
        self._is_closed = False

    def hello(self, hello: Hello, timeout_s: float) -> HelloReply:
        return self._call("Hello", hello, HelloReply, timeout_s)

    def apply(self, message: Apply, timeout_s: float) -> ApplyReply:
        return self._call("Apply", message, ApplyReply, timeout_s)

    def open_batch(self, request: OpenBatch, timeout_s: float) -> OpenBatchReply:
        return self._call("OpenBatch", request, OpenBatchReply, timeout_s)

    def settle(self, request: Settle, timeout_s: float) -> SettleReply:
        return self._call("Settle", request, SettleReply, timeout_s)

    def watch(self, request: Watch, timeout_s: float) -> WatchReply:
        return self._call("Watch", request, WatchReply, timeout_s)

    def stats(self, timeout_s: float) -> StatsReply:
        return self._call("Stats", StatsRequest(), StatsReply, timeout_s)

    def view(self, timeout_s: float) -> ViewReply:
        return self._call("View", ViewRequest(), ViewReply, timeout_s)

    def drain(self, timeout_s: float) -> DrainReply:
        return self._call("Drain", DrainRequest(), DrainReply, timeout_s)

    def pins(self, request: Pins, timeout_s: float) -> PinsReply:
        return self._call("Pins", request, PinsReply, timeout_s)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            for each in self._channels:
                each.channel.close()

    def _call(self, call: str, request: object, kind: type[Reply], timeout_s: float) -> Reply:
        content = wire.encode(request)
        channel = self._take_channel()
        try:
            metadata = self._access.metadata()
            answer = getattr(channel.stub, call)(content, timeout=timeout_s, metadata=metadata)
            if answer is None:  # from an older gRPC (1.66), if the server dies during a call
                raise Unavailable(f"{self.address}: the call ended without an answer")
            return wire.decode(kind, answer)
        except grpc.RpcError as error:
            raise translated(self.address, error) from None
        except wire.Malformed as error:
            raise Rejected(f"the answer of {self.address} cannot be read: {error}") from None
        except ValueError as error:
            # gRPC raises ValueError for a call on a closed channel.
            raise Closed(f"the client was closed during a call to {self.address}: {error}") from None
        finally:
            self._leave_channel(channel)

    def _take_channel(self) -> _Channel:
        with self._lock:
            new = None if self._is_closed else self._access.new_channel(OPTIONS, anew=self._is_idle)
            if new is not None:
                self._channels.append(_Channel(new, self._clock()))
                self._close_unused()
            if not self._channels:
                raise Closed(f"the client was closed before its first call to {self.address}")
            channel = self._channels[-1]
            channel.calls += 1
            return channel

    @property
    def _is_idle(self) -> bool:
        """Whether gRPC may have closed the connection of the newest channel. The caller holds the lock."""
        newest = self._channels[-1] if self._channels else None
        return newest is not None and not newest.calls and self._clock() - newest.used_at >= _REPLACED_AFTER_S

    def _leave_channel(self, channel: _Channel) -> None:
        with self._lock:
            channel.calls -= 1
            channel.used_at = self._clock()
            self._close_unused()

    def _close_unused(self) -> None:
        """Close channels that newer ones have replaced, once no call uses them. The caller holds the lock."""
        for each in self._channels[:-1]:
            if not each.calls:
                each.channel.close()
                self._channels.remove(each)


def translated(address: str, error: grpc.RpcError) -> AckerError:
    """Return the client's error for a gRPC error: Rejected if a retry cannot help, else Unavailable."""
    code, details = error.code(), error.details() or ""
    if code == grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in details:
        return Rejected(
            f"the acker at {address} does not take a message of this size: {details}. Start it with a larger "
            "--max-message-bytes, or send smaller reports"
        )
    if code in _REJECTIONS:
        return Rejected(f"the acker at {address} answered {code.name}: {details}. {_REJECTIONS[code]}.")
    if code == grpc.StatusCode.UNAVAILABLE and _NO_HTTP2.search(details):
        return Rejected(f"{address}: {_no_grpc(details)} ({details})")
    if code == grpc.StatusCode.UNAVAILABLE and _CLOSED_AT_ONCE.search(details):
        details += f". {_CLOSED_HINT}"
    details += "".join(f". {hint}" for text, hint in _TLS_HINTS.items() if text in details)
    if code == grpc.StatusCode.UNAVAILABLE and _NO_ADDRESS.search(details):
        # Not Rejected, as the server may start later and get its name then.
        return Unavailable(f"{address}: the name resolves to nothing: correct it, or check its DNS ({details})")
    # The call may have been applied, also after UNKNOWN and INTERNAL. A retry does not apply it twice.
    return Unavailable(f"{address}: {code.name}: {details}")


def _no_grpc(details: str) -> str:
    byte = _FOURTH_BYTE.search(details)
    # An older gRPC (1.66) does not name the byte, and has its own text for HTTP/1.
    is_http = "http1.x" in details if byte is None else chr(int(byte[1])) in _OF_HTTP
    port = f"the acker's gRPC port is {DEFAULT_PORT} by default"
    if is_http:
        return f"this looks like an HTTP port, like the acker's own for /metrics; {port}"
    return f"what answers there does not speak gRPC; {port}"
