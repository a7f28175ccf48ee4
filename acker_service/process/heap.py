"""Heap: returns freed memory to the system. The only module that calls the C library's allocator.

Decides when to do so. After a ledger has shrunk, the allocator keeps the freed tables for later use: some 200 MB after
a peak of 5 M roots.
"""

from __future__ import annotations

import ctypes

# Trimming takes some 10 ms for 200 MB, which is not worth it for less than this.
FREED_MIN_BYTES = 32 << 20


class Heap:
    """Trims the heap once enough memory was freed. The caller reports regularly how much is in use."""

    def __init__(self) -> None:
        self._peak = 0

    def note(self, held_bytes: int) -> None:
        """Trim if enough was freed since the peak. ``held_bytes``: approximate size of the large tables."""
        self._peak = max(self._peak, held_bytes)
        if self._peak - held_bytes >= max(FREED_MIN_BYTES, self._peak // 4):
            self._peak = held_bytes
            trim()


def trim() -> bool:
    """Return free pages to the system. False if the C library cannot (musl has no such call, and needs none)."""
    try:
        malloc_trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return False
    malloc_trim.argtypes, malloc_trim.restype = [ctypes.c_size_t], ctypes.c_int
    return bool(malloc_trim(0))
