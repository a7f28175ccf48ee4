"""Batches: record which numbered roots of a source are reserved, initialised, or read by a task.

Decides which numbers of a batch count as read, how timeouts become ticks, and which batch has which batch index (14
bits in each cell of the ledger). Never looks into the ledger; ``state`` combines the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from acker_protocol.ids import SLOT_SHIFT, Column, mix64_column, root_ids
from acker_protocol.messages import TIMEOUT_MAX_S, Limits, OpenBatch
from acker_service.core import kernels
from acker_service.core.ledger import Numbering

# Ticks wrap around after 72 h, so a limit of 24 h leaves a wide margin.
LIMIT_MAX_MS = TIMEOUT_MAX_S * 1000
NO_MAP: Column = np.empty(0, np.uint64)
# One bit per slot.
ALL_SLOTS: Column = np.full(16, np.iinfo(np.uint64).max, np.uint64)


@dataclass(eq=False, slots=True)
class BatchState:
    """One batch of one source. Number 0 is the open stream, which takes any root and is never settled.

    ``seen``: bit map (uint64) of the initialised numbers. ``covered``: bit map of the numbers that a read task covered.
    ``slots``: uint64[16], bit map of the slots on this server. ``roots``: how many numbers have a root in these slots.
    ``inits``: how many numbers were initialised. ``idle_at``: the last time at which the batch had no pending root.
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

    @classmethod
    def of(cls, request: OpenBatch, roots: int, index: int, now: float) -> BatchState:
        """Return the new batch that ``request`` opens. ``roots``: the result of :func:`count_roots`."""
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
    def reserved(self) -> int:
        """How many roots have reserved room and are not initialised yet."""
        return self.roots - self.inits if self.is_open else 0

    def matches(self, request: OpenBatch) -> bool:
        """Does the request have the parameters of this batch, apart from the slots?"""
        asked = (request.number, request.first, request.up_to, request.held, request.limits)
        return asked == (self.number, self.first, self.up_to, self.held, self.limits)

    def fresh_slots(self, request: OpenBatch) -> Column:
        """Return the requested slots that this server does not have yet: uint64[16], a bit map."""
        fresh: Column = _map(request.slots) & ~self.slots
        return fresh

    def extend(self, slots: Column, roots: int) -> None:
        """Add ``slots``, a bit map with this many ``roots``. Numbers of these roots are no longer covered."""
        if np.any(self.covered):
            numbers = np.flatnonzero(np.unpackbits(self.covered.view(np.uint8), bitorder="little")).astype(np.uint64)
            kernels.uncover(self.covered, numbers[_within(slots, root_ids(self.first, numbers))])
        self.slots, self.roots = _shared(self.slots | slots), self.roots + roots

    def foreign_slot(self, asked: Column) -> int | None:
        """Return one of the slots ``asked`` (uint64[16], a bit map) that is not on this server; None if all are."""
        if self.slots is ALL_SLOTS:  # the usual case; the code below costs some microseconds per message
            return None
        foreign = np.flatnonzero(np.unpackbits((asked & ~self.slots).view(np.uint8), bitorder="little"))
        return int(foreign[0]) if len(foreign) else None

    def cover(self, ranges: Column) -> None:
        """Mark numbers [start, stop) of ``ranges: uint64[k, 2]`` as read. Every root that the task emitted for them is
        initialised."""
        for start, stop in _merged(ranges):
            kernels.cover(self.covered, start, stop)

    def unread(self) -> Column:
        """Return the root ids in this server's slots whose numbers were neither covered nor initialised."""
        read = np.unpackbits((self.covered | self.seen).view(np.uint8), count=self.up_to, bitorder="little")
        unread = root_ids(self.first, np.flatnonzero(read == 0).astype(np.uint64))
        if self.roots == self.up_to:
            return unread
        in_slots: Column = unread[_within(self.slots, unread)]
        return in_slots

    def close(self) -> None:
        """Stop taking inits, and free the maps that only open batches need."""
        self.is_open = False
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
        self._free = list(range(kernels.INDEXES - 1, 0, -1))

    def __getitem__(self, index: int) -> BatchState:
        return self._batches[index]

    def __iter__(self) -> Iterator[BatchState]:
        return iter(self._batches.values())

    @property
    def is_full(self) -> bool:
        return not self._free

    def allocate(self) -> int:
        return self._free.pop()

    def claim(self, batch: BatchState) -> None:
        """Register a batch under its index, allocated or restored. Raises ValueError if another batch has the index."""
        if not 0 < batch.index < kernels.INDEXES or batch.index in self._batches:
            raise ValueError("two batches have the same index, or an index is out of range")
        self._batches[batch.index] = batch

    def rebuild_free(self) -> None:
        """Find the free indexes after restored batches were claimed."""
        self._free = [index for index in range(kernels.INDEXES - 1, 0, -1) if index not in self._batches]

    def free_index(self, batch: BatchState) -> None:
        del self._batches[batch.index]
        self._free.append(batch.index)


def count_roots(request: OpenBatch) -> int:
    """Count the roots of a batch in the requested slots; looks at each number unless all slots are requested."""
    if not request.slots:
        return request.up_to
    return roots_within(request, _map(request.slots))


def roots_within(request: OpenBatch, slots: Column) -> int:
    """Count the roots of a batch in ``slots``, a bit map; looks at each number of the batch."""
    return int(kernels.count_within(request.first, request.up_to, slots))


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


def _within(slots: Column, roots: Column) -> npt.NDArray[np.bool_]:
    """Return which of ``roots: uint64[n]`` fall into ``slots``, a bit map."""
    bits = np.unpackbits(slots.view(np.uint8), bitorder="little").astype(np.bool_)
    within: npt.NDArray[np.bool_] = bits[mix64_column(roots) >> np.uint64(SLOT_SHIFT)]
    return within


def _ticks(timeout_ms: int) -> int:
    return -(-timeout_ms * kernels.TICKS_A_SECOND // 1000) + 1 if timeout_ms else kernels.NEVER


def _merged(ranges: Column) -> list[list[int]]:
    """Merge ranges that overlap or touch, so that `cover` visits each number at most once."""
    if not len(ranges):
        return []
    ordered = ranges[np.argsort(ranges[:, 0])]
    reach: npt.NDArray[np.uint64] = np.maximum.accumulate(ordered[:, 1])
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:, 0] > reach[:-1])))
    stops = reach[np.append(starts[1:] - 1, len(ordered) - 1)]
    return np.stack([ordered[starts, 0], stops], axis=1).tolist()  # type: ignore[no-any-return]
