"""Handed on: the anchors of a record that leaves its job through Kafka, as headers of its message. Pure.

Decides what such a header holds: the replicas of its roots by id and generation, and the anchors. The header holds no
addresses: the reader gets them from its own servers, and never connects to an address from a message.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from acker_client.pins import NowhereToSend, Pin
from acker_protocol.ids import Column, uint64

HEADER = "acker-anchors"
VERSION = b"1"
ANCHOR_BYTES = 16

Header = tuple[str, bytes]
# A server, by its id and generation.
Replica = tuple[int, int]


@dataclass(frozen=True, slots=True)
class HandedOn:
    """Anchors of one record whose roots live on the same ``replicas``: pairs of a root id and an edge."""

    replicas: tuple[Replica, ...]
    anchors: tuple[tuple[int, int], ...]


def headers_of(pins: Sequence[Pin], roots: Column, edges: Column, owners: Column, rows: int) -> list[list[Header]]:
    """Return the headers of each of ``rows`` messages. Anchor i (``roots[i]``, ``edges[i]``) is of row ``owners[i]``.

    Anchors of a row share a header if their roots have the same replicas. Raises ``NowhereToSend`` for a root that no
    pin places.
    """
    grouped: list[dict[tuple[Replica, ...], bytearray]] = [{} for _ in range(rows)]
    is_placed = np.zeros(len(roots), np.bool_)
    for pin in pins:
        own = np.flatnonzero(pin.has(roots) & ~is_placed)
        is_placed[own] = True
        members = [(member.id, member.generation) for member in pin.placement.members]
        replicas = pin.placement.replicas_of(roots[own]).tolist()
        pairs = np.stack([roots[own], edges[own]], axis=1).astype("<u8")
        for owner, those, pair in zip(owners[own].tolist(), replicas, pairs, strict=True):
            key = tuple(members[index] for index in those)
            grouped[owner].setdefault(key, bytearray()).extend(pair.tobytes())
    if not is_placed.all():
        raise NowhereToSend("the frame has rows of a batch that it is not made of, and their servers are not known")
    heads: dict[tuple[Replica, ...], bytes] = {}
    return [[(HEADER, _head(key, heads) + bytes(pairs)) for key, pairs in each.items()] for each in grouped]


def taken_up(headers: Iterable[tuple[str, bytes | None]] | None) -> list[HandedOn]:
    """Return the anchors in the headers of a message. Raises ValueError for a header that cannot be read."""
    return [_handed_on(value or b"") for name, value in headers or () if name == HEADER]


def _head(replicas: tuple[Replica, ...], heads: dict[tuple[Replica, ...], bytes]) -> bytes:
    if replicas not in heads:
        heads[replicas] = VERSION + json.dumps(replicas, separators=(",", ":")).encode() + b"\n"
    return heads[replicas]


def _handed_on(value: bytes) -> HandedOn:
    head, newline, pairs = value.partition(b"\n")
    if head[:1] != VERSION or not newline or len(pairs) % ANCHOR_BYTES:
        raise ValueError(f"header {HEADER!r}: not of version {VERSION.decode()}, or cut")
    try:
        replicas = tuple((uint64(id_), uint64(generation)) for id_, generation in json.loads(head[1:]))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"header {HEADER!r}: its replicas cannot be read ({error})") from None
    words = np.frombuffer(pairs, "<u8").tolist()
    if not all(words[0::2]):
        # Servers refuse a whole report with such a root, and so the anchors of other messages too.
        raise ValueError(f"header {HEADER!r}: 0 is not a root id")
    return HandedOn(replicas, tuple(zip(words[0::2], words[1::2], strict=True)))
