"""Mutations: valid content with a few changes, as a faulty disk, a faulty program or an attacker would make them."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

Mutate = Callable[[random.Random, bytes, Sequence[bytes]], bytes]

# Bytes at which encodings change their meaning: zero, signs, lengths of varints, quotes and brackets.
_BYTES = b'\x00\x01\x7f\x80\xff\n "\\{}[],:-0'
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?|true|false|null')
_TOKENS = (
    b"null",
    b"true",
    b"-1",
    b"0",
    b"1.5",
    b"1e999",
    b"NaN",
    b"18446744073709551616",
    b"9223372036854775808",
    b"1" + b"0" * 40,
    b'""',
    b'"7"',
    b'"\\ud800"',
    b"[]",
    b"{}",
    b"[" * 40 + b"]" * 40,
    b"[" * 20_000,
)


def mutated(draw: random.Random, content: bytes, others: Sequence[bytes], mutations: Sequence[Mutate]) -> bytes:
    """Return ``content`` with one to four changes. ``others``: further valid contents, to take pieces from."""
    for _ in range(draw.choice((1, 1, 1, 2, 3, 4))):
        content = draw.choice(mutations)(draw, content, others)
    return content


def set_byte(draw: random.Random, content: bytes, others: Sequence[bytes]) -> bytes:
    at = draw.randrange(len(content) + 1)
    return content[:at] + bytes([draw.choice(_BYTES)]) + content[at + 1 :]


def flip_bit(draw: random.Random, content: bytes, others: Sequence[bytes]) -> bytes:
    if not content:
        return content
    at = draw.randrange(len(content))
    return content[:at] + bytes([content[at] ^ 1 << draw.randrange(8)]) + content[at + 1 :]


def cut(draw: random.Random, content: bytes, others: Sequence[bytes]) -> bytes:
    return content[: draw.randrange(len(content) + 1)]


def remove(draw: random.Random, content: bytes, others: Sequence[bytes]) -> bytes:
    start, stop = _stretch(draw, content)
    return content[:start] + content[stop:]


def repeat(draw: random.Random, content: bytes, others: Sequence[bytes]) -> bytes:
    start, stop = _stretch(draw, content)
    return content[:stop] + content[start:]


def insert(draw: random.Random, content: bytes, others: Sequence[bytes]) -> bytes:
    at = draw.randrange(len(content) + 1)
    return content[:at] + draw.randbytes(draw.choice((1, 2, 4, 8, 16))) + content[at:]


def splice(draw: random.Random, content: bytes, others: Sequence[bytes]) -> bytes:
    other = draw.choice(others)
    return content[: draw.randrange(len(content) + 1)] + other[draw.randrange(len(other) + 1) :]


def replace_token(draw: random.Random, content: bytes, others: Sequence[bytes]) -> bytes:
    """Replace a value or a name of JSON by another value."""
    tokens = [match.span() for match in _TOKEN.finditer(content[:4096])]
    if not tokens:
        return content
    start, stop = draw.choice(tokens)
    return content[:start] + draw.choice(_TOKENS) + content[stop:]


def change_field(draw: random.Random, content: bytes, others: Sequence[bytes]) -> bytes:
    """Drop, repeat, move or renumber a field of a protobuf message, or take one of another message."""
    fields = list(_fields(content))
    if not fields:
        return content
    at = draw.randrange(len(fields))
    match draw.randrange(5):
        case 0:
            del fields[at]
        case 1:
            fields.insert(draw.randrange(len(fields) + 1), fields[at])
        case 2:
            fields.append(fields.pop(at))
        case 3:
            tag, rest = fields[at][:1], fields[at][1:]
            fields[at] = bytes([tag[0] ^ draw.choice((1, 2, 8, 16, 24))]) + rest
        case _:
            fields.extend(list(_fields(draw.choice(others)))[:1])
    return b"".join(fields)


def _stretch(draw: random.Random, content: bytes) -> tuple[int, int]:
    start = draw.randrange(len(content) + 1)
    return start, min(len(content), start + draw.choice((1, 1, 2, 4, 8, 16, 64)))


def _fields(content: bytes) -> list[bytes]:
    """Return the fields of a message, each with its tag; those before the first one that is damaged."""
    found, at = list[bytes](), 0
    while at < len(content):
        start = at
        tag, at = _varint(content, at)
        kind = tag & 7
        if kind == 0:
            _, at = _varint(content, at)
        elif kind == 2:
            length, at = _varint(content, at)
            at += length
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        else:
            break
        if at > len(content):
            break
        found.append(content[start:at])
    return found


def _varint(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(content) and shift < 70:
        byte = content[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            break
        shift += 7
    return value, at


BYTES: tuple[Mutate, ...] = (set_byte, flip_bit, cut, remove, repeat, insert, splice)
JSON: tuple[Mutate, ...] = (*BYTES, replace_token, replace_token, replace_token)
PROTOBUF: tuple[Mutate, ...] = (*BYTES, change_field, change_field, change_field)
