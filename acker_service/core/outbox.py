"""Outbox: the outcomes for one source, kept until the source confirms them.

Decides how outcomes are stored, split into replies and forgotten. A *cursor* counts outcomes since the session began;
the first outcome has cursor 1. Never decides a verdict.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from acker_protocol.ids import Column
from acker_protocol.messages import Cause, Kinds, Outcomes, Reason, causes_of, reasons_of
from acker_service.core.parts import joined_texts, split_texts
from acker_service.core.reasons import ENTRY_BYTES, held_bytes
from acker_service.core.room import Room

Array = npt.NDArray[Any]

CHUNK_MIN, CHUNK_MAX = 256, 1 << 16
# How many chunks one call frees, in some 5 ms.
CHUNKS_A_CALL = 128
# Reasons are text from clients. So their number and size on the wire are bounded in a chunk, and their memory in the
# server. The head of a reason is its protobuf tag and length.
REASONS_MAX = 4096
REASONS_BYTES = 1 << 19
REASON_HEAD_BYTES = 4
# Maximum size of the outcomes in a reply. A gRPC client accepts 4 MiB by default, and the reply has other fields too.
ANSWER_BYTES = (4 << 20) - (64 << 10)
# Root id, verdict, reason id.
OUTCOME_BYTES = 13
# A chunk besides its columns and reasons: its objects, and those of numpy.
CHUNK_BYTES = 1000
DROPPED_REASON = "(there were too many reasons to keep this one)"


class Chunk:
    """Up to CHUNK_MAX consecutive outcomes: growing columns, and a table of their reasons.

    ``count``: how many outcomes there are; raise it after `write`. ``reasons_bytes``: size of the reasons on the wire.
    The chunk counts its memory in ``held``.
    """

    __slots__ = (
        "_columns_bytes",
        "_held",
        "_ids",
        "_kept_bytes",
        "_reason_ids",
        "_roots",
        "_verdicts",
        "count",
        "reasons",
        "reasons_bytes",
    )

    def __init__(self, outcomes: int, held: Room) -> None:
        """``outcomes``: how many are to come first."""
        self.count, self.reasons_bytes = 0, 0
        self.reasons: list[Reason] = []
        self._ids: dict[Reason, int] = {}
        self._held = held
        # The memory of the columns and of the reasons, as it was counted.
        self._columns_bytes = self._kept_bytes = 0
        room = max(CHUNK_MIN, min(CHUNK_MAX, outcomes))
        self._roots, self._verdicts = np.empty(room, np.uint64), np.empty(room, np.uint8)
        self._reason_ids: Array = np.empty(0, np.uint32)

    def release(self) -> None:
        """Count the chunk no longer. Its owner drops it."""
        columns_bytes = self._held.outcomes.bytes - self._columns_bytes
        kept_bytes = self._held.reasons.bytes - self._kept_bytes
        # Nothing below can fail.
        self._held.outcomes.bytes, self._held.reasons.bytes = columns_bytes, kept_bytes
        self._columns_bytes = self._kept_bytes = 0

    @property
    def room(self) -> int:
        return CHUNK_MAX - self.count

    @property
    def roots(self) -> Column:
        return self._roots[: self.count]

    @property
    def verdicts(self) -> Kinds:
        return self._verdicts[: self.count]

    @property
    def reason_ids(self) -> Array:
        """uint32[count], 0 for no reason. Empty when no outcome has a reason."""
        return self._reason_ids[: self.count]

    def write(self, roots: Column, verdicts: Kinds | int, reasons: Array | int) -> None:
        """Write outcomes behind the last one; there must be room. ``reasons``: ids from `reason_id`, uint32[n] or one
        id for all."""
        start, stop = self.count, self.count + len(roots)
        has_reasons = len(self._reason_ids) > 0 or (bool(reasons) if isinstance(reasons, int) else bool(reasons.any()))
        if stop > len(self._roots) or len(self._reason_ids) < has_reasons:
            self._make_room(stop, has_reasons)
        elif not self._columns_bytes:
            self._take(self._roots, self._verdicts, self._reason_ids)
        self._roots[start:stop] = roots
        self._verdicts[start:stop] = verdicts
        if has_reasons:
            self._reason_ids[start:stop] = reasons

    def reason_id(self, reason: Reason) -> int:
        """Return the index of a reason in ``reasons``, plus one; 0 for the empty reason. Adds a reason that is new.

        If there is no room for a new text, in the chunk or in the server, DROPPED_REASON takes its place. A cause
        always has room.
        """
        if not reason:
            return 0
        if reason in self._ids:
            return self._ids[reason]
        if isinstance(reason, Cause) or reason == DROPPED_REASON:
            # All chunks share these objects.
            return self._keep(reason, len(str(reason)), ENTRY_BYTES)
        # A text has no more characters than bytes. Most texts that do not fit are not encoded for that.
        if self._has_room(len(reason), len(reason)):
            size = len(reason) if reason.isascii() else len(reason.encode())
            memory = held_bytes(reason, size)
            if self._has_room(size, memory):
                return self._keep(reason, size, memory)
        return self.dropped_id()

    def dropped_id(self) -> int:
        """Return the index of DROPPED_REASON, plus one."""
        return self._ids.get(DROPPED_REASON) or self._keep(DROPPED_REASON, len(DROPPED_REASON), ENTRY_BYTES)

    def _has_room(self, size: int, memory: int) -> bool:
        is_full = len(self.reasons) >= REASONS_MAX or self.reasons_bytes + size + REASON_HEAD_BYTES > REASONS_BYTES
        return not is_full and self._held.reasons.fits(memory)

    def _keep(self, reason: Reason, size: int, memory: int) -> int:
        """Add a reason. ``size``: on the wire; ``memory``: in the server."""
        reason_id, size = len(self.reasons) + 1, self.reasons_bytes + size + REASON_HEAD_BYTES
        held, kept = self._held.reasons.bytes + memory, self._kept_bytes + memory
        self.reasons.append(reason)
        try:
            self._ids[reason] = reason_id
        except MemoryError:
            self.reasons.pop()
            raise
        # Nothing below can fail.
        self.reasons_bytes, self._held.reasons.bytes, self._kept_bytes = size, held, kept
        return reason_id

    def _make_room(self, count: int, has_reasons: bool) -> None:
        """Grow the columns to hold ``count`` outcomes, and some more."""
        room = len(self._roots)
        if count > room:
            room = min(CHUNK_MAX, max(count, 4 * room))
        roots, verdicts = _widened(self._roots, room), _widened(self._verdicts, room)
        self._take(roots, verdicts, _widened(self._reason_ids, room) if has_reasons else self._reason_ids)

    def _take(self, roots: Column, verdicts: Kinds, reason_ids: Array) -> None:
        """Use these columns from now on, and count their memory."""
        columns_bytes = CHUNK_BYTES + roots.nbytes + verdicts.nbytes + reason_ids.nbytes
        held = self._held.outcomes.bytes + columns_bytes - self._columns_bytes
        # Nothing below can fail.
        self._roots, self._verdicts, self._reason_ids = roots, verdicts, reason_ids
        self._held.outcomes.bytes, self._columns_bytes = held, columns_bytes


class Outbox:
    """The outcomes from cursor ``freed`` + 1 to ``cursor``. The source has confirmed the outcomes up to ``freed``.

    ``held``: counts the unconfirmed outcomes and the memory of all outboxes, and bounds that of their reasons.
    """

    __slots__ = ("_begin", "_chunks", "_held", "cursor", "freed")

    def __init__(self, held: Room, freed: int = 0) -> None:
        self._held = held
        self.freed = self.cursor = freed
        self._chunks: deque[Chunk] = deque()
        self._begin = freed  # the cursor before the first chunk

    def __len__(self) -> int:
        return self.cursor - self.freed

    def write(
        self, roots: Column, verdicts: Kinds | int, codes: Array | int, reasons: Sequence[Reason]
    ) -> tuple[Chunk, int]:
        """Write outcomes of ``roots: uint64[n]`` behind the last one, as many as fit into a chunk. Returns the chunk
        and their number. The outcomes exist once that number was added to the chunk's ``count`` and to ``cursor``.

        ``verdicts``: uint8[n], or one for all. ``codes``: uint[n], or one for all. A code is an index into ``reasons``
        plus one, or 0 for no reason.
        """
        if not self._chunks or not self._chunks[-1].room:
            self._chunks.append(Chunk(len(roots), self._held))
        chunk = self._chunks[-1]
        some = slice(0, min(len(roots), chunk.room))
        chunk.write(roots[some], _some(verdicts, some), _reason_ids(chunk, _some(codes, some), reasons))
        return chunk, some.stop

    def append(self, roots: Column, verdicts: Kinds | int, codes: Array | int, reasons: Sequence[Reason]) -> None:
        """Append outcomes. The parameters are those of `write`."""
        start = 0
        while start < len(roots):
            left = slice(start, len(roots))
            chunk, wrote = self.write(roots[left], _some(verdicts, left), _some(codes, left), reasons)
            start, chunk.count, self.cursor = start + wrote, chunk.count + wrote, self.cursor + wrote
        self._held.unconfirmed += len(roots)

    def confirm(self, cursor: int) -> None:
        """Forget outcomes up to ``cursor``, which must not be beyond the last."""
        unconfirmed, freed = self._held.unconfirmed - max(0, cursor - self.freed), max(cursor, self.freed)
        # Nothing below can fail.
        self._held.unconfirmed, self.freed = unconfirmed, freed
        # The rest is done with the next call, if this one fails or there is too much.
        for _ in range(CHUNKS_A_CALL):
            if not self._chunks or self._begin + self._chunks[0].count > self.freed:
                break
            begin = self._begin + self._chunks[0].count
            self._chunks[0].release()
            self._chunks.popleft()
            self._begin = begin

    def read(self, outcomes_max: int) -> Outcomes:
        """Return up to ``outcomes_max`` of the oldest outcomes, fewer if they do not fit into one reply."""
        parts: list[tuple[Chunk, slice]] = []
        left, room = outcomes_max, ANSWER_BYTES
        for chunk, skipped in self._unconfirmed():
            some = slice(
                skipped, min(chunk.count, skipped + left, skipped + (room - chunk.reasons_bytes) // OUTCOME_BYTES)
            )
            # Any chunk with its reasons fits into an empty reply, so the first chunk always adds outcomes.
            if some.stop <= some.start:
                break
            parts.append((chunk, some))
            left -= some.stop - some.start
            room -= chunk.reasons_bytes + OUTCOME_BYTES * (some.stop - some.start)
            if some.stop < chunk.count:
                break
        return _joined(parts)

    def _unconfirmed(self) -> Iterator[tuple[Chunk, int]]:
        """Yield the chunks with outcomes that were not confirmed, and how many at the front of each were."""
        skipped = self.freed - self._begin
        for chunk in self._chunks:
            if skipped < chunk.count:
                yield chunk, skipped
            skipped = max(0, skipped - chunk.count)

    # -- state

    @property
    def pieces(self) -> int:
        """How many pieces `dump` yields."""
        return sum(1 for _ in self._unconfirmed())

    def dump(self) -> Iterator[dict[str, Array]]:
        """Yield all outcomes in pieces, as columns: roots, verdicts and reason_ids; ``texts`` and ``text_sizes`` of the
        reasons, see `parts.joined_texts`, and ``causes`` (uint8, see `causes_of`)."""
        for chunk, skipped in self._unconfirmed():
            columns = _columns([(chunk, slice(skipped, chunk.count))])
            yield {
                "roots": columns.root_ids,
                "verdicts": columns.verdicts,
                "reason_ids": columns.reason_ids,
                **joined_texts(map(str, chunk.reasons)),
                "causes": np.frombuffer(causes_of(chunk.reasons), np.uint8),
            }

    def load(self, columns: Mapping[str, Array]) -> None:
        """Append a piece of `dump`. Raises ValueError if the piece is incomplete or a reason is missing."""
        codes, texts, causes = columns["reason_ids"], split_texts(columns), columns["causes"].tolist()
        if not len(columns["roots"]) == len(columns["verdicts"]) == len(codes):
            raise ValueError("the columns of a piece of the outcomes differ in length")
        if codes.max(initial=0) > len(texts) or len(texts) != len(causes):
            raise ValueError("outcomes lack their reasons")
        self.append(columns["roots"], columns["verdicts"], codes, reasons_of(texts, causes))

    def release(self) -> None:
        """Count the memory no longer, as the source has ended. May be called again if it fails."""
        for chunk in self._chunks:
            chunk.release()

    def free(self) -> bool:
        """Free some of the memory that was released. Returns whether there is more."""
        for _ in range(min(CHUNKS_A_CALL, len(self._chunks))):
            self._chunks.popleft()
        return bool(self._chunks)


def _some(values: Array | int, some: slice) -> Array | int:
    """Return a part of a column; one value for all stands for each part, too."""
    return values[some] if isinstance(values, np.ndarray) else values


def _widened(column: Array, room: int) -> Array:
    wider = np.zeros(room, column.dtype)
    wider[: len(column)] = column
    return wider


def _reason_ids(chunk: Chunk, codes: Array | int, reasons: Sequence[Reason]) -> Array | int:
    """Convert codes (see `Outbox.append`) into reason ids of the chunk."""
    if not isinstance(codes, np.ndarray):
        return chunk.reason_id(reasons[codes - 1]) if codes else 0
    if not codes.any():
        return 0
    distinct, positions = np.unique(codes, return_inverse=True)
    ids = np.full(len(distinct), chunk.dropped_id() if len(distinct) > REASONS_MAX else 0, np.uint32)
    # A chunk has no room for more reasons, and to look at each would take long.
    for n, code in enumerate(distinct[:REASONS_MAX].tolist()):
        ids[n] = chunk.reason_id(reasons[code - 1]) if code else 0
    reason_ids: Array = ids[positions]
    return reason_ids


def _columns(parts: list[tuple[Chunk, slice]]) -> Outcomes:
    """Concatenate the columns of several pieces. Reason ids still refer to the reasons of each piece's own chunk."""
    if not parts:
        return Outcomes()
    ids = [
        chunk.reason_ids[some] if len(chunk.reason_ids) else np.zeros(some.stop - some.start, np.uint32)
        for chunk, some in parts
    ]
    return Outcomes(
        np.concatenate([chunk.roots[some] for chunk, some in parts]),
        np.concatenate([chunk.verdicts[some] for chunk, some in parts]),
        np.concatenate(ids),
    )


def _joined(parts: list[tuple[Chunk, slice]]) -> Outcomes:
    """Concatenate several pieces, with one table of the reasons that they use."""
    columns = _columns(parts)
    if not columns.reason_ids.any():
        return Outcomes(columns.root_ids, columns.verdicts)
    table: dict[Reason, int] = {}
    start = 0
    for chunk, some in parts:
        ids = columns.reason_ids[start : start + some.stop - some.start]
        used = np.unique(ids[ids > 0])
        new = np.zeros(len(chunk.reasons) + 1, np.uint32)
        for old in used.tolist():
            new[old] = table.setdefault(chunk.reasons[old - 1], len(table) + 1)
        # Numpy may crash without memory if an index has another type than this.
        ids[:] = new[ids.astype(np.intp)]
        start += len(ids)
    return Outcomes(columns.root_ids, columns.verdicts, columns.reason_ids, tuple(table))
