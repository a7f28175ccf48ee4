"""Batches: the numbered sets of roots of a source, what is reserved, read and settled of them.

Decides which numbers of a batch count as read, how limits become ticks, and which batch index (the 14 bits that a cell
has for it) belongs to whom. Never looks into the ledger; ``shard`` does both.
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

# Ticks are modulo 72 h; a day leaves them a wide margin.
LIMIT_MAX_MS = TIMEOUT_MAX_S * 1000
NO_MAP: Column = np.empty(0, np.uint64)
# A bit a slot.
ALL_SLOTS: Column = np.full(16, np.iinfo(np.uint64).max, np.uint64)


@dataclass(eq=False, slots=True)
class BatchState:
    """One batch of one source; number 0 is the open stream. ``seen`` and ``covered``: uint64 maps of its numbers, those
    initialised and those that a read task has covered; one bit each a root. ``slots``: uint64[16], a map of those that
    live here, and ``roots``: how many of its numbers have their roots in them. ``idle_at``: when nothing of it was seen
    pending last."""

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
        """``roots``: :func:`count_roots` of the request."""
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
        """The roots that it may have; None for the open stream, which may have any."""
        return Numbering(self.first, self.up_to, self.seen) if self.number and self.is_open else None

    @property
    def reserved(self) -> int:
        """Roots for which room is kept."""
        return self.roots - self.inits if self.is_open else 0

    def matches(self, request: OpenBatch) -> bool:
        """Is this the batch that was asked for, whatever the slots?"""
        asked = (request.number, request.first, request.up_to, request.held, request.limits)
        return asked == (self.number, self.first, self.up_to, self.held, self.limits)

    def fresh_slots(self, request: OpenBatch) -> Column:
        """The slots asked for that do not live here yet: uint64[16], a map."""
        fresh: Column = _map(request.slots) & ~self.slots
        return fresh

    def extend(self, slots: Column, roots: int) -> None:
        """``slots``, a map, live here too from now on, and ``roots`` more of its numbers with them. What was covered
        before says nothing of these."""
        if np.any(self.covered):
            numbers = np.flatnonzero(np.unpackbits(self.covered.view(np.uint8), bitorder="little")).astype(np.uint64)
            kernels.uncover(self.covered, numbers[_within(slots, root_ids(self.first, numbers))])
        self.slots, self.roots = _shared(self.slots | slots), self.roots + roots

    def foreign_slot(self, asked: Column) -> int | None:
        """One of the slots ``asked`` (uint64[16], a map) that does not live here; None when all of them do."""
        if self.slots is ALL_SLOTS:  # as nearly always; what is below costs some microseconds a message
            return None
        foreign = np.flatnonzero(np.unpackbits((asked & ~self.slots).view(np.uint8), bitorder="little"))
        return int(foreign[0]) if len(foreign) else None

    def cover(self, ranges: Column) -> None:
        """Numbers [start, stop) of ``ranges: uint64[k, 2]`` have been read: all that was emitted of them is
        initialised."""
        for start, stop in _merged(ranges):
            kernels.cover(self.covered, start, stop)

    def unread(self) -> Column:
        """Root ids, of the slots that live here, of the numbers that nobody covered and that were never initialised."""
        read = np.unpackbits((self.covered | self.seen).view(np.uint8), count=self.up_to, bitorder="little")
        unread = root_ids(self.first, np.flatnonzero(read == 0).astype(np.uint64))
        if self.roots == self.up_to:
            return unread
        here: Column = unread[_within(self.slots, unread)]
        return here

    def close(self) -> None:
        """No more inits: what was kept to judge them may go."""
        self.is_open = False
        self.seen = self.covered = NO_MAP

    @property
    def longest_ms(self) -> int:
        """The longer of its limits; 0: it has none."""
        return max(self.limits.message_timeout_ms, self.limits.progress_timeout_ms)

    def busy_s(self, now: float) -> float:
        """For how long it has had roots pending; one that is not held is never older than its message timeout."""
        timeout_ms = 0 if self.held else self.limits.message_timeout_ms
        return min(now - self.idle_at, timeout_ms / 1000) if timeout_ms else now - self.idle_at

    # -- state

    def dump(self, now: float) -> dict[str, Any]:
        """What is small of it: all but its maps, of which it gives the length."""
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
        """What `dump` gave, with its maps."""
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
    """Who has which batch index. Index 0 is nobody's: entries without an init have it."""

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

    def take(self) -> int:
        return self._free.pop()

    def claim(self, batch: BatchState) -> None:
        """A batch comes with an index that it took, or had before a restart. Raises ValueError if another has it."""
        if not 0 < batch.index < kernels.INDEXES or batch.index in self._batches:
            raise ValueError("two batches in it have one index")
        self._batches[batch.index] = batch

    def settle_free(self) -> None:
        """After claims: what nobody has is free."""
        self._free = [index for index in range(kernels.INDEXES - 1, 0, -1) if index not in self._batches]

    def release(self, batch: BatchState) -> None:
        del self._batches[batch.index]
        self._free.append(batch.index)


def count_roots(request: OpenBatch) -> int:
    """Count the roots of a batch in the slots that this server is to hold. Takes time for each of its numbers."""
    if not request.slots:
        return request.up_to
    return roots_within(request, _map(request.slots))


def roots_within(request: OpenBatch, slots: Column) -> int:
    """How many roots of a batch fall into ``slots``, a map; looks at each of its numbers."""
    return int(kernels.count_within(request.first, request.up_to, slots))


def limit_ticks(limits: Limits) -> tuple[int, int]:
    """(Message, progress) timeout in ticks: rounded up, and one more, since a stamp may be almost a tick old."""
    return _ticks(limits.message_timeout_ms), _ticks(limits.progress_timeout_ms)


def are_too_long(limits: Limits) -> bool:
    return max(limits.message_timeout_ms, limits.progress_timeout_ms) > LIMIT_MAX_MS


def _map(slots: bytes) -> Column:
    return np.frombuffer(slots, np.uint64) if slots else ALL_SLOTS


def _shared(slots: Column) -> Column:
    """A map, ``ALL_SLOTS`` itself where it is that."""
    return ALL_SLOTS if np.array_equal(slots, ALL_SLOTS) else slots


def _within(slots: Column, roots: Column) -> npt.NDArray[np.bool_]:
    """Which of ``roots: uint64[n]`` fall into ``slots``, a map."""
    bits = np.unpackbits(slots.view(np.uint8), bitorder="little").astype(np.bool_)
    within: npt.NDArray[np.bool_] = bits[mix64_column(roots) >> np.uint64(SLOT_SHIFT)]
    return within


def _ticks(timeout_ms: int) -> int:
    return -(-timeout_ms * kernels.TICKS_A_SECOND // 1000) + 1 if timeout_ms else kernels.NEVER


def _merged(ranges: Column) -> list[list[int]]:
    """Ranges that overlap or touch made one, so that covering costs no more than the batch is long."""
    if not len(ranges):
        return []
    ordered = ranges[np.argsort(ranges[:, 0])]
    reach: npt.NDArray[np.uint64] = np.maximum.accumulate(ordered[:, 1])
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:, 0] > reach[:-1])))
    stops = reach[np.append(starts[1:] - 1, len(ordered) - 1)]
    return np.stack([ordered[starts, 0], stops], axis=1).tolist()  # type: ignore[no-any-return]
