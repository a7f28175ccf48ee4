"""Ended: the roots of which all has been said: a replica may speak of them late, and is not listened to. Pure.

Decides nothing: it remembers stretches of numbers. Those of one source follow each other, so that there are few.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import numpy as np

from acker_client.core.pins import Mask, Pin
from acker_protocol.ids import MASK, Column, unmix64_column


class Ended:
    """Not thread-safe: the caller holds a lock around every method."""

    __slots__ = ("_starts", "_stops")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []

    def __len__(self) -> int:
        """How many stretches are remembered."""
        return len(self._starts)

    def add(self, pin: Pin) -> None:
        """All roots of ``pin`` have ended."""
        start, stop = pin.first, min(pin.first + pin.up_to, MASK)
        # What touches it becomes one with it.
        low, high = bisect_left(self._stops, start), bisect_right(self._starts, stop)
        if low < high:
            start, stop = min(start, self._starts[low]), max(stop, self._stops[high - 1])
        self._starts[low:high], self._stops[low:high] = [start], [stop]

    def has(self, root_ids: Column) -> Mask:
        """Which of ``root_ids: uint64[n]`` have ended."""
        if not self._starts:
            return np.zeros(len(root_ids), np.bool_)
        numbers = unmix64_column(root_ids)
        at = np.searchsorted(np.array(self._starts, np.uint64), numbers, side="right") - 1
        found: Mask = (at >= 0) & (numbers < np.array(self._stops, np.uint64)[at])
        return found
