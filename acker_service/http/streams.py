"""Streams: a connection of HTTP, with TLS or without. Decides nothing about requests.

``asyncio`` has streams too, but an accepted socket cannot become one until its handshake is done, and they do not say
when all bytes were sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import Any

RECEIVED_BYTES = 1 << 16


class PlainStream:
    """A connection without TLS. All methods raise :class:`OSError` if the client has gone."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._loop = asyncio.get_running_loop()

    async def read(self, size: int) -> bytes:
        """Return up to ``size`` bytes; b"" at the end."""
        return await self._loop.sock_recv(self.connection, size)

    async def write(self, content: bytes) -> None:
        """Send all of ``content``."""
        await self._loop.sock_sendall(self.connection, content)

    async def end(self) -> None:
        """Tell the client that nothing more comes."""
        self.connection.shutdown(socket.SHUT_WR)


class TlsStream(PlainStream):
    """A connection with TLS. The first :meth:`read` makes the handshake."""

    def __init__(self, connection: socket.socket, context: ssl.SSLContext) -> None:
        super().__init__(connection)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)

    async def read(self, size: int) -> bytes:
        try:
            content: bytes = await self._exchange(lambda: self._tls.read(size))
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            return b""
        return content

    async def write(self, content: bytes) -> None:
        await self._exchange(lambda: self._tls.write(content))

    async def end(self) -> None:
        # Sends the farewell, and does not wait for the client's.
        with contextlib.suppress(ssl.SSLWantReadError):
            self._tls.unwrap()
        await self._send()
        await super().end()

    async def _exchange(self, step: Callable[[], Any]) -> Any:
        """Repeat a step of TLS until the bytes that it needs are here, and send the bytes that it makes."""
        while True:
            try:
                result = step()
            except ssl.SSLWantReadError:
                await self._send()
                received = await self._loop.sock_recv(self.connection, RECEIVED_BYTES)
                if received:
                    self._incoming.write(received)
                else:
                    self._incoming.write_eof()
            else:
                await self._send()
                return result

    async def _send(self) -> None:
        if content := self._outgoing.read():
            await self._loop.sock_sendall(self.connection, content)
