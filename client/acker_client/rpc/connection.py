"""Connection: the channel to one server, and the handshake with it.

Checks that both sides speak the same protocol, and that only one server answers at an address. Never retries: the
caller has the budget. No lock is held over a call, so two threads may greet at once, which does no harm.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from acker_client.backoff import Deadline
from acker_client.errors import Closed, Rejected, Unavailable
from acker_client.settings import Settings
from acker_protocol.messages import PROTOCOL_VERSION, Hello, HelloReply, Transport
from acker_protocol.reports import MESSAGE_BYTES
from acker_protocol.version import VERSION

Connect = Callable[[str], Transport]

# Room in the largest message for everything but its columns: identity, scope, tags and lengths.
_ENVELOPE_BYTES = 4096
# Timeout of the first greeting, short so that a mute server is soon noticed. Later ones have the timeout of a call.
FIRST_GREETING_S = 1.0


@dataclass(frozen=True, slots=True)
class Greeted:
    """A server that has answered the handshake."""

    address: str
    transport: Transport
    hello: HelloReply

    @property
    def message_bytes(self) -> int:
        """Largest size of the columns of one message."""
        return min(MESSAGE_BYTES, max(self.hello.max_message_bytes - _ENVELOPE_BYTES, _ENVELOPE_BYTES))


class Connection:
    """The channel of one process to one server, made when first needed. Thread-safe: its lock guards the channel."""

    def __init__(self, address: str, settings: Settings, connect: Connect) -> None:
        self.address = address
        self._settings = settings
        self._connect = connect
        self._lock = threading.Lock()
        self._transport: Transport | None = None
        self._greeted: Greeted | None = None
        self._greeting_s = FIRST_GREETING_S
        # Incarnations that others have replaced at this address. If a replaced one answers again, two servers share the
        # address.
        self._replaced: set[int] = set()
        self._is_closed = False
        # The last answer to a greeting; None if there was none.
        self.hello: HelloReply | None = None

    @property
    def is_greeted(self) -> bool:
        """Whether the server has answered the handshake and every call since."""
        return self._greeted is not None

    def greeted(self, deadline: Deadline) -> Greeted:
        """Return the greeted server. Raises Unavailable if it does not answer, Rejected if it is the wrong one."""
        return self._greeted or self.greet(deadline)

    def greet(self, deadline: Deadline) -> Greeted:
        """Greet the server, even if it was greeted before. Raises as ``greeted`` does."""
        transport = self._open_transport()
        timeout_s = min(self._greeting_s, self._settings.call_timeout_s, deadline.left_s)
        try:
            greeted = self._greet(transport, timeout_s)
        except Unavailable:
            self._greeting_s = self._settings.call_timeout_s
            raise
        self._greeted, self._greeting_s = greeted, FIRST_GREETING_S
        return greeted

    def lost(self, greeted: Greeted) -> None:
        """Greet the server again before the next call, as no answer came."""
        if self._greeted is greeted:
            self._greeted = None

    def greet_anew(self) -> None:
        """Greet the server again before the next call."""
        self._greeted = None

    def close_channel(self) -> None:
        with self._lock:
            self._is_closed = True
            transport, self._transport, self._greeted = self._transport, None, None
        if transport is not None:
            transport.close()

    def _open_transport(self) -> Transport:
        with self._lock:
            if self._is_closed:
                raise Closed("this client was closed: make another AckerClient")
            if self._transport is None:
                self._transport = self._connect(self.address)
            return self._transport

    def _greet(self, transport: Transport, timeout_s: float) -> Greeted:
        reply = transport.hello(Hello(PROTOCOL_VERSION, VERSION), timeout_s)
        if reply.protocol_version != PROTOCOL_VERSION:
            raise Rejected(
                f"the acker at {self.address} (version {reply.server_version}) speaks protocol version "
                f"{reply.protocol_version}, this client (version {VERSION}) speaks {PROTOCOL_VERSION}: "
                "install the same version of acker on both sides"
            )
        self._check_replaced(reply)
        self.hello = reply
        return Greeted(self.address, transport, reply)

    def _check_replaced(self, reply: HelloReply) -> None:
        known = self.hello
        if reply.incarnation in self._replaced:
            raise Rejected(
                f"two servers answer at {self.address}, in turn: give each server an address of its own, and no load"
                " balancer before them"
            )
        if known is not None and known.incarnation != reply.incarnation:
            self._replaced.add(known.incarnation)
