"""Ranges: the positions of a partition that are done: a prefix, and ranges beyond it, with holes between. Pure.

Decides the form in memory (two numbers per range, adjacent ranges merged) and in a checkpoint (a limited number of run
lengths). Knows nothing of records or files.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Positions = npt.NDArray[np.int64]

NO_POSITIONS: Positions = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Ranges:
    """Done positions from 0 up. Range k is ``starts[k] <= position < stops[k]`` (int64[n] each). Ranges are ascending,
    with a hole between each two."""

    starts: Positions = field(default_factory=lambda: NO_POSITIONS)
    stops: Positions = field(default_factory=lambda: NO_POSITIONS)

    @classmethod
    def below(cls, position: int) -> Ranges:
        """All positions below ``position``."""
        return cls.between(0, position)

    @classmethod
    def of(cls, positions: Positions) -> Ranges:
        """Exactly these ``positions: int64[k]``, ascending."""
        if not len(positions):
            return cls()
        breaks = np.flatnonzero(np.diff(positions) > 1) + 1
        return cls(positions[np.append(0, breaks)], positions[np.append(breaks, len(positions)) - 1] + 1)

    @classmethod
    def where(cls, flags: npt.NDArray[np.bool_], start: int) -> Ranges:
        """Positions ``start + k`` for which ``flags[k]`` is True."""
        if not len(flags):
            return cls()
        bounds = np.flatnonzero(flags[1:] != flags[:-1]) + (start + 1)
        if flags[0]:
            bounds = np.append(start, bounds)
        if flags[-1]:
            bounds = np.append(bounds, start + len(flags))
        return cls(bounds[0::2], bounds[1::2])

    @classmethod
    def between(cls, start: int, stop: int) -> Ranges:
        """Positions ``start <= position < stop``."""
        return cls(np.array([start], np.int64), np.array([stop], np.int64)) if start < stop else cls()

    @classmethod
    def joined(cls, parts: Sequence[Ranges]) -> Ranges:
        """The union of ``parts``."""
        starts = np.concatenate([NO_POSITIONS, *(part.starts for part in parts)])
        stops = np.concatenate([NO_POSITIONS, *(part.stops for part in parts)])
        if not len(starts):
            return cls()
        order = np.argsort(starts, kind="stable")
        starts, reach = starts[order], np.maximum.accumulate(stops[order])
        is_first = np.append(True, starts[1:] > reach[:-1])
        return cls(starts[is_first], reach[np.append(np.flatnonzero(is_first)[1:] - 1, len(reach) - 1)])

    def union(self, other: Ranges) -> Ranges:
        """The positions in either set of ranges."""
        return Ranges.joined((self, other))

    def within(self, start: int, stop: int) -> Ranges:
        """The positions in ``start <= position < stop``."""
        if start >= stop:
            return Ranges()
        first = int(np.searchsorted(self.stops, start, side="right"))
        last = int(np.searchsorted(self.starts, stop, side="left"))
        starts, stops = self.starts[first:last], self.stops[first:last]
        return Ranges(np.maximum(starts, start), np.minimum(stops, stop))

    def moved(self, by: int) -> Ranges:
        """All positions, shifted up by ``by``."""
        return Ranges(self.starts + by, self.stops + by)

    def contains(self, positions: Positions) -> npt.NDArray[np.bool_]:
        """Return bool[k]: whether each of ``positions: int64[k]`` is done."""
        at = np.searchsorted(self.starts, positions, side="right") - 1
        inside = np.zeros(len(positions), np.bool_)
        some = at >= 0
        inside[some] = positions[some] < self.stops[at[some]]
        return inside

    @property
    def prefix(self) -> int:
        """The first position that is not done."""
        return int(self.stops[0]) if len(self.starts) and self.starts[0] == 0 else 0

    @property
    def reach(self) -> int:
        """One more than the last position that is done."""
        return int(self.stops[-1]) if len(self.stops) else 0

    @property
    def holes(self) -> int:
        """Number of stretches of open positions before a done one."""
        return len(self.starts) - (self.prefix > 0)

    def first_holes(self, holes: int) -> Ranges:
        """The lowest ranges, with at most ``holes`` holes between them."""
        if self.holes <= holes:
            return self
        kept = holes + (self.prefix > 0)
        return Ranges(self.starts[:kept], self.stops[:kept])

    def to_runs(self) -> list[int]:
        """Return alternating lengths: done, open, done ... The first is the prefix and may be 0. The last is done."""
        if self.holes == 0 and len(self.stops):
            # Nearly all of a million small files.
            return [int(self.stops[0])]
        bounds = np.stack((self.starts, self.stops), axis=1).ravel()
        lengths: list[int] = np.diff(np.append(0, bounds)).tolist()
        return lengths[1:] if self.prefix else [0, *lengths]

    @classmethod
    def from_runs(cls, runs: Sequence[int]) -> Ranges:
        """Parse the result of ``to_runs``. Raises ``ValueError`` for anything else."""
        lengths = _whole_numbers(runs)
        if len(lengths) % 2 == 0 or (lengths[1:] <= 0).any() or lengths[0] < 0:
            raise ValueError("run lengths are one prefix, then an open and a done one in turn, each above 0")
        bounds = np.cumsum(lengths)
        ranges = cls(np.append(0, bounds[1::2]), bounds[0::2])
        return ranges if lengths[0] else cls(ranges.starts[1:], ranges.stops[1:])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ranges) and self.to_runs() == other.to_runs()

    def __hash__(self) -> int:
        return hash(tuple(self.to_runs()))

    def __repr__(self) -> str:
        return f"<Ranges: below {self.prefix}, {self.holes} holes up to {self.reach}>"


def _whole_numbers(runs: Iterable[object]) -> Positions:
    given = list(runs)
    if not all(isinstance(run, int) and not isinstance(run, bool) for run in given):
        raise ValueError("run lengths are whole numbers")
    return np.array(given, np.int64)
