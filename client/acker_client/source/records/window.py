"""Window: an array over the numbers ``start`` to ``stop`` that grows at its end and shrinks at its beginning.

Decides the capacity, so that appending and forgetting a number have constant cost: it grows by half of the need, and
values move once half of the capacity is forgotten. Passes over many numbers go block by block, because temporary arrays
of a block stay in the CPU's cache. Larger arrays need memory from the system, which costs more than the pass itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

Scalar = TypeVar("Scalar", bound=np.generic)
Array = np.ndarray[tuple[int], np.dtype[Scalar]]

ROOM_MIN = 1024
BLOCK = 1 << 16


class Window(Generic[Scalar]):
    """Values of ``dtype`` for the numbers ``start <= number < stop``."""

    __slots__ = ("_first", "_room", "start", "stop")

    def __init__(self, dtype: type[Scalar]) -> None:
        self._room: Array[Scalar] = np.zeros(ROOM_MIN, dtype)
        self._first = 0  # index in `_room` of the value of `start`
        self.start = self.stop = 0

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def values(self) -> Array[Scalar]:
        """The values of ``start`` to ``stop`` as a writable view, valid until the next `extend` or `forget_below`."""
        return self._room[self._first : self._first + len(self)]

    @property
    def nbytes(self) -> int:
        return self._room.nbytes

    def extend(self, stop: int) -> Array[Scalar]:
        """Grow to ``stop`` and return a view of the new values, which are 0."""
        new = max(0, stop - self.stop)
        if self._first + len(self) + new > len(self._room):
            self._reallocate(len(self) + new)
        self.stop += new
        fresh = self._room[self._first + len(self) - new : self._first + len(self)]
        fresh[:] = 0
        return fresh

    def forget_below(self, below: int) -> None:
        """Drop the numbers below ``below``. If it is beyond ``stop``, the window becomes empty and begins there."""
        if below >= self.stop:
            self.start = self.stop = max(below, self.stop)
            self._first = 0
            return
        gone = max(0, below - self.start)
        self.start += gone
        self._first += gone
        if self._first > max(ROOM_MIN, len(self._room) // 2):
            self._reallocate(len(self))

    def index(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the indices into ``values`` of ``numbers``, which must all lie in the window."""
        return numbers - self.start

    def set_value(self, numbers: npt.NDArray[np.int64], value: int) -> None:
        """Set ``value`` for all ``numbers: int64[k]``, which must lie in the window."""
        values = self.values
        for at in blocks(len(numbers)):
            values[numbers[at] - self.start] = value

    def count(self, value: int, start: int, stop: int) -> int:
        """Count the numbers ``start <= number < stop`` that have ``value``."""
        values = self.values[max(0, start - self.start) : max(0, stop - self.start)]
        return sum(int(np.count_nonzero(values[at] == value)) for at in blocks(len(values)))

    def first(self, value: int) -> int:
        """Return the first number that has ``value``, or ``stop``."""
        values = self.values
        for at in blocks(len(values)):
            found = values[at] == value
            if found.any():
                return int(self.start + at.start + np.argmax(found))
        return self.stop

    def _reallocate(self, needed: int) -> None:
        kept = self.values
        room: Array[Scalar] = np.empty(max(ROOM_MIN, needed + needed // 2), self._room.dtype)
        room[: len(kept)] = kept
        self._room, self._first = room, 0


def blocks(count: int) -> Iterator[slice]:
    """Yield slices of ``count`` elements, block by block."""
    for start in range(0, count, BLOCK):
        yield slice(start, min(count, start + BLOCK))
