"""Half-sent: calls whose request never arrives completely or whose reply is never read, as raw HTTP/2 frames."""

from __future__ import annotations

import socket
from typing import Self

DATA, HEADERS, RST_STREAM, SETTINGS, GOAWAY = 0, 1, 3, 4, 7
ACK = END_STREAM = 1
END_HEADERS = 4


class HalfSender:
    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.address = address
        self._socket = socket.create_connection((host, int(port)), timeout=30)
        self._socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0))
        self._stream = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def begin(self, method: str, service: str = "acker.v1.Acker", request: bytes | None = None) -> int:
        """Begin a call and return its stream id. Without a ``request``, send ten bytes of a request of a thousand."""
        self._stream += 2
        names = {
            ":method": "POST",
            ":scheme": "http",
            ":path": f"/{service}/{method}",
            ":authority": self.address,
            "content-type": "application/grpc",
            "te": "trailers",
        }
        block = b"".join(b"\0" + text(name) + text(value) for name, value in names.items())
        content = b"\0" + (1000).to_bytes(4, "big") + bytes(10)
        if request is not None:
            content = b"\0" + len(request).to_bytes(4, "big") + request
        data = frame(DATA, 0 if request is None else END_STREAM, self._stream, content)
        self._socket.sendall(frame(HEADERS, END_HEADERS, self._stream, block) + data)
        return self._stream

    def until_ended(self, streams: set[int]) -> None:
        """Wait until the server has ended these streams, or the connection."""
        left = set(streams)
        while left and (ended := self.next_ended()):
            left.discard(ended)

    def next_ended(self) -> int:
        """Wait until the server ends a stream, and return the id of this stream; 0 if it ends the connection."""
        while head := self._read(9):
            length, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
            self._read(length)
            if kind == SETTINGS and not flags & ACK:
                self._socket.sendall(frame(SETTINGS, ACK, 0))
            if kind == RST_STREAM or (kind == HEADERS and flags & END_STREAM):
                return int.from_bytes(head[5:], "big")
        return 0

    def _read(self, length: int) -> bytes:
        content = b""
        while len(content) < length:
            some = self._socket.recv(length - len(content))
            if not some:
                return b""
            content += some
        return content


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def text(content: str) -> bytes:
    """Encode a string for HPACK without compression. It must be shorter than 127 bytes."""
    return bytes([len(content)]) + content.encode()
