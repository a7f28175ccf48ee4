"""Content: a hash of any Python value, the same in every process and every run.

Decides that equal content has an equal hash (dicts and sets in any order), which Python's own ``hash`` does not ensure
across processes. A value of an unknown type is hashed by its pickle. If the pickle differs from run to run, so does the
hash. This costs no more than a replay.
"""

from __future__ import annotations

import datetime
import decimal
import hashlib
import pickle
import struct
import uuid
from typing import Any

import numpy as np


def hash_content(value: Any) -> int:
    """Return a 64-bit hash of ``value``."""
    return int.from_bytes(_digest(value), "little")


def _digest(value: Any) -> bytes:
    state = hashlib.blake2b(digest_size=8)
    for part in _parts(value):
        state.update(struct.pack("<q", len(part)))
        state.update(part)
    return state.digest()


def _parts(value: Any) -> list[bytes]:
    if value is None or isinstance(value, (bool, np.bool_)):
        return [b"constant", repr(None if value is None else bool(value)).encode()]
    if isinstance(value, (int, np.integer)):
        return [b"int", str(int(value)).encode()]
    if isinstance(value, (float, np.floating)):
        return [b"float", struct.pack("<d", float(value))]
    if isinstance(value, str):
        return [b"str", value.encode("utf-8", "surrogatepass")]
    if isinstance(value, (bytes, bytearray, memoryview)):
        return [b"bytes", bytes(value)]
    return _parts_of_others(value)


def _parts_of_others(value: Any) -> list[bytes]:
    if isinstance(value, (datetime.date, datetime.time, datetime.timedelta, decimal.Decimal, uuid.UUID, complex)):
        return [type(value).__name__.encode(), str(value).encode()]
    if isinstance(value, (list, tuple)):
        names = [str(name).encode() for name in getattr(value, "__fields__", ())]
        return [b"sequence", *names, *map(_digest, value)]
    if isinstance(value, dict):
        return [b"dict", *sorted(_digest(key) + _digest(item) for key, item in value.items())]
    if isinstance(value, (set, frozenset)):
        return [b"set", *sorted(map(_digest, value))]
    if isinstance(value, np.ndarray) and value.dtype.kind != "O":
        return [b"array", value.dtype.str.encode(), str(value.shape).encode(), np.ascontiguousarray(value).tobytes()]
    kind = type(value)
    return [f"{kind.__module__}.{kind.__qualname__}".encode(), pickle.dumps(value, protocol=4)]
