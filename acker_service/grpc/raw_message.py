"""Raw messages: refuses a request that would take long to parse, from its bytes alone.

Decides how many fields and bytes a request may have. Protobuf makes an object of each text and merges repeated fields,
while no other thread runs Python: 8 million empty reasons take 0.2 s. The scan skips contents, stops at the limit, and
lets other threads run. `wire` finds all other errors when it parses a message.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types

from acker_protocol.wire import Malformed

# A request with fewer bytes is parsed in some 0.1 ms, whatever it holds.
SMALL_BYTES = 4096
# The largest request that is not a report: a Watch with its pins, 64 KiB.
LARGEST_BYTES = 256 << 10
# The most reasons in a message. A message of our clients has room for 40,000.
REASONS_MAX = 1 << 16
# The most other fields, those of inner messages included. A message needs 12.
FIELDS_MAX = 64

_REASONS = 8
# By call, the numbers of the fields that hold messages, as bits: identity and inits, limits, limits.
_INNER = {"Apply": 1 << 1 | 1 << 3, "OpenBatch": 1 << 6, "Watch": 1 << 4}
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def check(name: str, content: bytes) -> None:
    """Raise Malformed if the request of the call ``name`` has too many fields or bytes."""
    if len(content) <= SMALL_BYTES:
        return
    if name != "Apply" and len(content) > LARGEST_BYTES:
        raise Malformed(f"{len(content)} bytes; at most {LARGEST_BYTES} in a request that is not a report")
    counts = np.zeros(2, np.int64)
    repeated = _REASONS if name == "Apply" else 0
    _count_fields(np.frombuffer(content, np.uint8), repeated, _INNER.get(name, 0), counts)
    if counts[1] > REASONS_MAX:
        raise Malformed(f"reasons: more than {REASONS_MAX} in a message; send several messages")
    if counts[0] > FIELDS_MAX:
        raise Malformed(f"more than {FIELDS_MAX} fields; send each field once")


@njit(nogil=True)
def _read_varint(content: Any, at: Any, stop: Any) -> Any:
    """Return the varint at a place, and the place behind it. The place is beyond ``stop`` if the varint is cut
    short."""
    value, shift = np.uint64(0), np.uint64(0)
    while at < stop:
        byte = np.uint64(content[at])
        at += 1
        if shift < np.uint64(64):
            value |= (byte & np.uint64(127)) << shift
        shift += np.uint64(7)
        if byte < np.uint64(128):
            return value, at
    return value, stop + 1


@njit(nogil=True)
def _skip_field(content: Any, at: Any, stop: Any) -> Any:
    """Return the number of the field at a place, the place of its content, and the place behind it."""
    key, start = _read_varint(content, at, stop)
    kind, after = key & np.uint64(7), start
    if kind == np.uint64(_VARINT):
        _, after = _read_varint(content, start, stop)
    elif kind == np.uint64(_FIXED64):
        after = start + 8
    elif kind == np.uint64(_FIXED32):
        after = start + 4
    elif kind == np.uint64(_BYTES):
        length, start = _read_varint(content, start, stop)
        after = start + np.int64(min(length, np.uint64(stop + 1)))
    else:
        # The beginning or the end of a group, whose fields follow.
        start = stop
    return np.int64(key >> np.uint64(3)), start, after


@njit(
    types.void(types.Array(types.uint8, 1, "C", readonly=True), types.int64, types.int64, types.int64[::1]),
    nogil=True,
    cache=True,
)
def _count_fields(content: Any, repeated: Any, inner_fields: Any, counts: Any) -> None:
    """Add the fields with the number ``repeated`` to ``counts[1]``, and all others to ``counts[0]``, those of inner
    messages included. Stops beyond a limit, and where the message is cut short."""
    at, stop = 0, len(content)
    while at < stop and counts[0] <= FIELDS_MAX and counts[1] <= REASONS_MAX:
        number, inner, at = _skip_field(content, at, stop)
        if number == repeated:
            counts[1] += 1
            continue
        counts[0] += 1
        if number < 8 and (inner_fields >> number) & 1 != 0:
            after = min(at, stop)
            while inner < after and counts[0] <= FIELDS_MAX:
                _, _, inner = _skip_field(content, inner, after)
                counts[0] += 1
