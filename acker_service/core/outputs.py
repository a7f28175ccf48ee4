"""Outputs: outcomes on their way from a kernel to the outboxes of their sources.

Decides which outcomes are put into an outbox together. A call may end at any point for lack of memory. Its outcomes
then stay here, and the next call passes them on.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from acker_protocol.ids import Column
from acker_protocol.messages import Reason
from acker_service.core import kernels

_INDEX = np.uint64(kernels.INDEXES - 1)


class Outputs:
    """``roots``, ``info``: the columns that kernels write, uint64: info is batch index | verdict << 16 | reason << 32.

    The outcomes from number ``at`` to ``count`` are on their way. ``is_uniform``: all have the same info. ``reasons``:
    a reason in info is an index into them, plus one; 0 is none.
    """

    __slots__ = ("_groups", "at", "count", "info", "is_uniform", "reasons", "roots")

    def __init__(self, most: int) -> None:
        self.roots: Column = np.empty(most, np.uint64)
        self.info: Column = np.empty(most, np.uint64)
        self.count = self.at = 0
        self.is_uniform = True
        self.reasons: Sequence[Reason] = ()
        # The outcomes, ordered by their batch indexes, and the number of the last outcome of each index, plus one.
        self._groups: tuple[Column, Column, list[int]] | None = None

    def hold(self, count: int, is_uniform: bool, reasons: Sequence[Reason]) -> None:
        """Hold the first ``count`` outcomes of the columns. Cannot fail."""
        self._groups, self.at = None, 0
        self.reasons, self.is_uniform, self.count = reasons, is_uniform, count

    @property
    def is_empty(self) -> bool:
        return self.at == self.count

    def groups(self, most: int) -> tuple[Column, Column, list[int]]:
        """Return roots, info, and where each of the next groups stops, ``most`` at most. The outcomes of a group have
        the same batch index. The first group begins at ``at``."""
        if self.is_uniform:
            return self.roots, self.info, [self.count]
        if self._groups is None:
            self._groups = self._in_groups()
        roots, info, stops = self._groups
        first = bisect_right(stops, self.at)
        return roots, info, stops[first : first + most]

    def _in_groups(self) -> tuple[Column, Column, list[int]]:
        roots, info = self.roots[: self.count], self.info[: self.count]
        indexes = info & _INDEX
        if np.all(indexes == indexes[0]):
            return roots, info, [self.count]
        order = np.argsort(indexes, kind="stable")
        indexes = indexes[order]
        stops = np.flatnonzero(indexes[1:] != indexes[:-1]) + 1
        return roots[order], info[order], [*stops.tolist(), self.count]
