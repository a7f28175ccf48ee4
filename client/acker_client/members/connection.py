"""Connection: which server this process talks to, and the handshake with it.

Decides the order in which addresses are tried and that both sides speak the same protocol. For now one server serves
every slot; where views come, ``greeted`` becomes a question per slot. Never retries: who calls has the budget.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from acker_client.core.backoff import Deadline
from acker_client.errors import Closed, Rejected, Unavailable
from acker_client.settings import Settings
from acker_protocol.messages import PROTOCOL_VERSION, Hello, HelloReply, Transport
from acker_protocol.reports import MESSAGE_BYTES
from acker_protocol.version import VERSION

Connect = Callable[[str], Transport]

# Of a message at the server's cap: identity, scope, tags and lengths beside the columns.
_ENVELOPE_BYTES = 4096
# The first greeting may take no longer than this, so that a server which is there and mute is soon known to be; the
# next one has all the time of a call.
_FIRST_GREETING_S = 1.0


@dataclass(frozen=True, slots=True)
class Greeted:
    """A server that has answered the handshake."""

    address: str
    transport: Transport
    hello: HelloReply

    @property
    def message_bytes(self) -> int:
        """How large the columns of one message may be."""
        return min(MESSAGE_BYTES, max(self.hello.max_message_bytes - _ENVELOPE_BYTES, _ENVELOPE_BYTES))


class Connection:
    """Channels of one process, one a server, made when first needed. Thread-safe."""

    def __init__(self, settings: Settings, connect: Connect) -> None:
        self._settings = settings
        self._connect = connect
        self._lock = threading.Lock()
        self._transports: dict[str, Transport] = {}
        self._greeted: Greeted | None = None
        self._current = 0
        self._greeting_s = _FIRST_GREETING_S
        self._is_closed = False

    @property
    def is_greeted(self) -> bool:
        """Whether there is a server that has answered the handshake, and has answered ever since."""
        return self._greeted is not None

    def greeted(self, deadline: Deadline) -> Greeted:
        """The server to talk to, greeted; at first the first that answers. Unavailable when none does."""
        with self._lock:
            if self._is_closed:
                raise Closed("this client was closed: make another AckerClient")
            if self._greeted is not None:
                return self._greeted
            failures: list[str] = []
            servers = self._settings.servers
            for index in range(self._current, self._current + len(servers)):
                address = servers[index % len(servers)]
                try:
                    self._greeted = self._greet(address, deadline)
                except Unavailable as error:
                    failures.append(str(error))
                else:
                    self._current = index % len(servers)
                    self._greeting_s = _FIRST_GREETING_S
                    return self._greeted
            self._greeting_s = self._settings.call_timeout_s
            raise Unavailable("; ".join(failures))

    def lost(self, greeted: Greeted) -> None:
        """No answer came from there: greet again before the next call. It may be another server by then."""
        with self._lock:
            if self._greeted is greeted:
                self._greeted = None

    def close(self) -> None:
        """Close every channel."""
        with self._lock:
            self._is_closed = True
            transports, self._transports, self._greeted = self._transports, {}, None
        for transport in transports.values():
            transport.close()

    def _greet(self, address: str, deadline: Deadline) -> Greeted:
        transport = self._transports.get(address)
        if transport is None:
            transport = self._transports[address] = self._connect(address)
        timeout_s = min(self._greeting_s, self._settings.call_timeout_s, deadline.left_s)
        reply = transport.hello(Hello(PROTOCOL_VERSION, VERSION), timeout_s)
        if reply.protocol_version != PROTOCOL_VERSION:
            raise Rejected(
                f"the acker at {address} (version {reply.server_version}) speaks protocol version "
                f"{reply.protocol_version}, this client (version {VERSION}) speaks {PROTOCOL_VERSION}: "
                "install the same version of acker on both sides"
            )
        return Greeted(address, transport, reply)
