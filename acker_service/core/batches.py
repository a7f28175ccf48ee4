"""Batches: record which numbered roots of a source are reserved, initialised, or read by a task.

Decides which numbers of a batch count as read, how timeouts become ticks, and which batch has which batch index (14
bits in each cell of the ledger). Never looks into the ledger; ``state`` combines the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

import numpy as np

from acker_protocol.ids import SLOTS, Column
from acker_protocol.messages import TIMEOUT_MAX_S, Limits, OpenBatch, Settlement
from acker_service.core import kernels
from acker_service.core.ledger import Numbering

# Ticks wrap around after 72 h, so a limit of 24 h leaves a wide margin.
LIMIT_MAX_MS = TIMEOUT_MAX_S * 1000
# The most numbers of a batch, so that one pass over a map (33 MB) takes less than 10 ms.
NUMBERS_MAX = 1 << 28
NO_MAP: Column = np.empty(0, np.uint64)
# One bit per slot.
ALL_SLOTS: Column = np.full(16, np.iinfo(np.uint64).max, np.uint64)
# The most words of the bit maps, 64 numbers each, that one call of `find_unread` looks at, and the most roots that it
# returns. That takes some 5 ms. The shard's lock is released between two calls.
UNREAD_WORDS = 1 << 15
UNREAD_ROOTS = 1 << 16


@dataclass(eq=False, slots=True)
class BatchState:
    """One batch of one source. Number 0 is the open stream, which takes any root and is never settled.

    ``seen``: bit map (uint64) of the initialised numbers. ``covered``: bit map of the numbers that a read task covered.
    ``slots``: uint64[16], bit map of the slots on this server. ``roots``: how many numbers have a root in these slots.
    ``inits``: how many numbers were initialised, or reported as unread. ``idle_at``: the last time at which the batch
    had no pending root. ``settling``: how the batch is being settled, from the first step to the last one; it is not
    open then. ``words_reported``: the unread numbers of so many words of the maps have been reported.
    """

    session: int
    number: int
    index: int
    opened: float
    first: int = 0
    up_to: int = 0
    held: bool = False
    limits: Limits = field(default_factory=Limits)
    is_open: bool = True
    inits: int = 0
    seen: Column = field(default_factory=lambda: NO_MAP)
    covered: Column = field(default_factory=lambda: NO_MAP)
    idle_at: float = 0.0
    slots: Column = field(default_factory=lambda: ALL_SLOTS)
    roots: int = 0
    settling: Settlement | None = None
    words_reported: int = 0

    @classmethod
    def of(cls, request: OpenBatch, roots: int, index: int, now: float) -> BatchState:
        """Return the new batch that ``request`` opens. ``roots``: how many of its roots are in the requested slots."""
        words = (request.up_to + 63) // 64
        return cls(
            request.session,
            request.number,
            index,
            now,
            request.first,
            request.up_to,
            request.held,
            request.limits,
            seen=np.zeros(words, np.uint64),
            covered=np.zeros(words, np.uint64),
            idle_at=now,
            slots=_map(request.slots),
            roots=roots,
        )

    @property
    def numbering(self) -> Numbering | None:
        """The roots that the batch may have; None for the open stream, which takes any root, and for a closed batch."""
        return Numbering(self.first, self.up_to, self.seen) if self.number and self.is_open else None

    @property
    def is_settled(self) -> bool:
        """Whether the batch was settled to the end, so that it has neither maps nor reserved room."""
        return not self.is_open and self.settling is None

    @property
    def reserved(self) -> int:
        """How many roots have reserved room and are not initialised yet."""
        return 0 if self.is_settled else self.roots - self.inits

    def matches(self, request: OpenBatch) -> bool:
        """Does the request have the parameters of this batch, apart from the slots?"""
        asked = (request.number, request.first, request.up_to, request.held, request.limits)
        return asked == (self.number, self.first, self.up_to, self.held, self.limits)

    def fresh_slots(self, request: OpenBatch) -> Column:
        """Return the requested slots that this server does not have yet: uint64[16], a bit map."""
        fresh: Column = _map(request.slots) & ~self.slots
        return fresh

    def extend(self, slots: Column, fresh: FreshRoots) -> None:
        """Add ``slots``, a bit map with the roots ``fresh``. Numbers of these roots are no longer covered."""
        both, roots = _shared(self.slots | slots), self.roots + fresh.count
        # If the rest fails, these numbers count as unread until the slots are added again.
        kernels.uncover(self.covered, fresh.others)
        self.slots, self.roots = both, roots

    def foreign_slot(self, asked: Column) -> int | None:
        """Return one of the slots ``asked`` (uint64[16], a bit map) that is not on this server; None if all are."""
        if self.slots is ALL_SLOTS:  # the usual case; the code below costs some microseconds per message
            return None
        foreign = np.flatnonzero(np.unpackbits((asked & ~self.slots).view(np.uint8), bitorder="little"))
        return int(foreign[0]) if len(foreign) else None

    def cover(self, ranges: Column) -> None:
        """Mark numbers [start, stop) of ``ranges: uint64[k, 2]`` as read. Every root that the task emitted for them is
        initialised."""
        kernels.cover(self.covered, np.ascontiguousarray(ascending(ranges)).reshape(-1))

    def find_unread(self, roots: Column) -> tuple[int, int]:
        """Write the next root ids in this server's slots whose numbers were neither covered nor initialised into
        ``roots``, UNREAD_ROOTS at most. Returns their number, which may be 0, and the next value of `words_reported`.
        """
        counters = np.zeros(kernels.COUNTERS, np.int64)
        words = kernels.find_unread(
            self.seen, self.covered, self.words_reported, UNREAD_WORDS, self.first, self.up_to, self.slots,
            roots[:UNREAD_ROOTS], counters,
        )  # fmt: skip
        return int(counters[kernels.OUTCOMES]), int(words)

    def settle(self, settlement: Settlement) -> None:
        """Stop taking inits and ranges. The batch keeps its maps until its unread roots are reported."""
        self.is_open, self.settling = False, settlement

    def close(self) -> None:
        """Stop taking inits, and free the maps."""
        self.is_open, self.settling = False, None
        self.seen = self.covered = NO_MAP

    @property
    def longest_ms(self) -> int:
        """The longer of the batch's two timeouts; 0 if both are off."""
        return max(self.limits.message_timeout_ms, self.limits.progress_timeout_ms)

    def busy_s(self, now: float) -> float:
        """Return how long the batch has had pending roots. At most the message timeout if the batch is not held."""
        timeout_ms = 0 if self.held else self.limits.message_timeout_ms
        return min(now - self.idle_at, timeout_ms / 1000) if timeout_ms else now - self.idle_at

    # -- state

    def dump(self, now: float) -> dict[str, Any]:
        """Return the batch as JSON fields, without ``seen`` and ``covered`` but with their length in words."""
        names = ("number", "index", "first", "up_to", "held", "is_open", "inits")
        return {
            **{name: getattr(self, name) for name in names},
            "age_s": now - self.opened,
            "busy_s": now - self.idle_at,
            "limits": [self.limits.message_timeout_ms, self.limits.progress_timeout_ms],
            "words": len(self.seen),
            "slots": "" if self.slots is ALL_SLOTS else self.slots.tobytes().hex(),
            "roots": self.roots,
        }

    @classmethod
    def load(cls, session: int, content: dict[str, Any], seen: Column, covered: Column, now: float) -> BatchState:
        """Restore a batch from the result of `dump` and its two maps."""
        return cls(
            session,
            content["number"],
            content["index"],
            now - content["age_s"],
            content["first"],
            content["up_to"],
            content["held"],
            Limits(*content["limits"]),
            content["is_open"],
            content["inits"],
            seen,
            covered,
            now - content.get("busy_s", content["age_s"]),
            _map(bytes.fromhex(content.get("slots", ""))),
            content.get("roots", content["up_to"]),
        )


class Indexes:
    """Maps each batch index to its batch. Index 0 belongs to no batch: entries without an init have it."""

    def __init__(self) -> None:
        self._batches: dict[int, BatchState] = {}
        # The first ``_count`` of these are free. The last of them is the next one.
        self._free = list(range(kernels.INDEXES - 1, 0, -1))
        self._count = len(self._free)

    def __getitem__(self, index: int) -> BatchState:
        return self._batches[index]

    def __iter__(self) -> Iterator[BatchState]:
        return iter(self._batches.values())

    def has(self, batch: BatchState) -> bool:
        """Whether the batch still has its index."""
        return self._batches.get(batch.index) is batch

    @property
    def is_full(self) -> bool:
        return not self._count

    @property
    def next_free(self) -> int:
        """The index for the next batch."""
        return self._free[self._count - 1]

    def claim(self, batch: BatchState) -> None:
        """Register a batch under its index: `next_free`, or a restored one. Raises ValueError if another batch has the
        index."""
        if not 0 < batch.index < kernels.INDEXES or batch.index in self._batches:
            raise ValueError("two batches have the same index, or an index is out of range")
        count = self._count - (self._count > 0 and batch.index == self.next_free)
        self._batches[batch.index] = batch
        self._count = count

    def rebuild_free(self) -> None:
        """Find the free indexes after restored batches were claimed."""
        free = [index for index in range(kernels.INDEXES - 1, 0, -1) if index not in self._batches]
        self._count = len(free)
        self._free = free + [0] * (kernels.INDEXES - 1 - self._count)

    def free_index(self, batch: BatchState) -> None:
        count = self._count + 1
        # Nothing below can fail.
        self._free[self._count] = batch.index
        del self._batches[batch.index]
        self._count = count


@dataclass(frozen=True, slots=True)
class FreshRoots:
    """The roots of a batch in slots that are new here: their ``count``; ``others``: bit map (uint64) of all other
    numbers, empty unless asked for."""

    count: int
    others: Column


def count_roots(request: OpenBatch, slots: Column, *, with_others: bool) -> FreshRoots:
    """Count the roots of a batch in ``slots``, a bit map. Looks at each number of the batch: 2 to 3 ns each.

    A function of the request alone, so that it can run without the shard's lock.
    """
    bits = np.zeros((request.up_to + 63) // 64 if with_others else 0, np.uint64)
    count = int(kernels.count_within(request.first, request.up_to, slots, bits))
    return FreshRoots(count, np.invert(bits, out=bits))


def least_roots(request: OpenBatch, slots: Column) -> int:
    """Return a number of roots that a batch has in ``slots``, a bit map, at least. Looks at no number.

    mix64 spreads the numbers over the slots as chance would. The result is ten standard deviations below the mean, and
    fewer roots than that come once in 10**23 batches. Exact if all slots are asked for.
    """
    asked = int(np.bitwise_count(slots).sum())
    if asked == SLOTS:
        return request.up_to
    mean = request.up_to * asked / SLOTS
    return max(0, int(mean - 10 * sqrt(mean)))


def slots_of(request: OpenBatch) -> Column:
    """Return the requested slots as a bit map: uint64[16]."""
    return _map(request.slots)


def ascending(ranges: Column) -> Column:
    """Return ``ranges: uint64[k, 2]``, pairs [start, stop), in ascending order of their starts."""
    starts = ranges[:, 0]
    return ranges if np.all(starts[1:] >= starts[:-1]) else ranges[np.argsort(starts)]


def limit_ticks(limits: Limits) -> tuple[int, int]:
    """Return the (message, progress) timeouts in ticks, rounded up. Adds one tick, as stamps are rounded down."""
    return _ticks(limits.message_timeout_ms), _ticks(limits.progress_timeout_ms)


def are_too_long(limits: Limits) -> bool:
    return max(limits.message_timeout_ms, limits.progress_timeout_ms) > LIMIT_MAX_MS


def _map(slots: bytes) -> Column:
    return np.frombuffer(slots, np.uint64) if slots else ALL_SLOTS


def _shared(slots: Column) -> Column:
    """Return the bit map, or the object ``ALL_SLOTS`` if all bits are set."""
    return ALL_SLOTS if np.array_equal(slots, ALL_SLOTS) else slots


def _ticks(timeout_ms: int) -> int:
    return -(-timeout_ms * kernels.TICKS_A_SECOND // 1000) + 1 if timeout_ms else kernels.NEVER
