"""HTTP/2, as much of it as it takes to tell a gRPC client that it has called the HTTP port.

Decides nothing else: every call is answered UNIMPLEMENTED with a sentence, by frames written out by hand.
"""

from __future__ import annotations

import asyncio
from urllib.parse import quote

# What every HTTP/2 client sends first, in two parts.
PREFACE_HEAD = b"PRI * HTTP/2.0\r\n\r\n"
PREFACE_REST = b"SM\r\n\r\n"

FRAME_HEAD_BYTES = 9
FRAME_BYTES_MAX = 1 << 14
HEADERS, SETTINGS = 1, 4
ACK = END_STREAM = 1
END_HEADERS = 4

UNIMPLEMENTED = 12
# HPACK: ":status: 200" and the name content-type by their places in the static table.
STATUS_200 = b"\x88"
CONTENT_TYPE = b"\x0f\x10"


async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sentence: str) -> None:
    """Answer each call of this connection, until the client closes it or breaks off."""
    await reader.readexactly(len(PREFACE_REST))
    writer.write(_frame(SETTINGS, 0, 0))
    while True:
        head = await reader.readexactly(FRAME_HEAD_BYTES)
        length, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
        if length > FRAME_BYTES_MAX:
            return
        await reader.readexactly(length)
        if kind == SETTINGS and not flags & ACK:
            writer.write(_frame(SETTINGS, ACK, 0))
        elif kind == HEADERS:
            stream = int.from_bytes(head[5:9], "big") & 0x7FFFFFFF
            writer.write(_frame(HEADERS, END_STREAM | END_HEADERS, stream, _trailers(sentence)))
        await writer.drain()


def _trailers(sentence: str) -> bytes:
    message = quote(sentence, safe=" /:,;'()").encode()[:1000]
    return (
        STATUS_200
        + CONTENT_TYPE
        + _string(b"application/grpc")
        + b"\0"
        + _string(b"grpc-status")
        + _string(str(UNIMPLEMENTED).encode())
        + b"\0"
        + _string(b"grpc-message")
        + _string(message)
    )


def _string(content: bytes) -> bytes:
    """Length as an integer with a prefix of 7 bits, then the bytes as they are."""
    length, head = len(content), b""
    if length < 127:
        return bytes([length]) + content
    length -= 127
    while length >= 128:
        head += bytes([length % 128 + 128])
        length //= 128
    return b"\x7f" + head + bytes([length]) + content


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload
