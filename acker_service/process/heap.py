"""Heap: memory that was freed goes back to the system. The only door to the C library's allocator.

Decides when: a ledger that has shrunk leaves its tables' places all over the heap, where the allocator keeps them for
later; some 200 MB after a peak of 5 M roots. Knows nothing of what they held.
"""

from __future__ import annotations

import ctypes

# To look for free pages takes some 10 ms for 200 MB; less than this is not worth it.
FREED_MIN_BYTES = 32 << 20


class Heap:
    """Is notified now and then of how much is held; trims once enough of it was freed."""

    def __init__(self) -> None:
        self._peak = 0
        self.trims = 0

    def note(self, held_bytes: int) -> None:
        """``held_bytes``: of the large tables, about."""
        self._peak = max(self._peak, held_bytes)
        if self._peak - held_bytes >= max(FREED_MIN_BYTES, self._peak // 4):
            self._peak = held_bytes
            self.trims += 1
            trim()


def trim() -> bool:
    """Give free pages back to the system; False where the C library cannot (musl has no such call, and needs none)."""
    try:
        malloc_trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return False
    malloc_trim.argtypes, malloc_trim.restype = [ctypes.c_size_t], ctypes.c_int
    return bool(malloc_trim(0))
