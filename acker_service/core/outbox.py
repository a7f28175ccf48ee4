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
from acker_service.core.reasons import ENTRY_BYTES, held_bytes, truncated
from acker_service.core.room import Room

Array = npt.NDArray[Any]

CHUNK_MIN, CHUNK_MAX = 256, 1 << 16
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

    ``reasons_bytes``: size of the reasons on the wire. The chunk counts its memory in ``held``.
    """

    __slots__ = (
        "_held",
        "_held_bytes",
        "_ids",
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
        # The memory of the columns and of the reasons.
        self._held_bytes = [0, 0]
        room = max(CHUNK_MIN, min(CHUNK_MAX, outcomes))
        self._roots, self._verdicts = np.empty(room, np.uint64), np.empty(room, np.uint8)
        self._reason_ids: Array = np.empty(0, np.uint32)
        self._count_columns()

    def release(self) -> None:
        """Count the chunk no longer. Its owner drops it."""
        columns, reasons = self._held_bytes
        self._held.outcomes.bytes -= columns
        self._held.reasons.bytes -= reasons

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

    def append(self, roots: Column, verdicts: Kinds | int, reasons: Array | int) -> None:
        """Append outcomes; there must be room. ``reasons``: ids from `reason_id`, uint32[n] or one id for all."""
        start, stop = self.count, self.count + len(roots)
        if stop > len(self._roots):
            self._grow(stop)
        if not len(self._reason_ids) and np.any(reasons):
            self._reason_ids = np.zeros(len(self._roots), np.uint32)
            self._count_columns()
        self._roots[start:stop] = roots
        self._verdicts[start:stop] = verdicts
        if len(self._reason_ids):
            self._reason_ids[start:stop] = reasons
        self.count = stop

    def reason_id(self, reason: Reason) -> int:
        """Return the index of a reason in ``reasons``, plus one; 0 for the empty reason. Adds a reason that is new.

        If there is no room for a new text, in the chunk or in the server, DROPPED_REASON takes its place. A cause
        always has room.
        """
        if not reason:
            return 0
        if isinstance(reason, str):
            reason = truncated(reason)
        if reason in self._ids:
            return self._ids[reason]
        size = len(str(reason).encode()) + REASON_HEAD_BYTES
        memory = held_bytes(reason) if isinstance(reason, str) else 0
        is_full = len(self.reasons) >= REASONS_MAX or self.reasons_bytes + size > REASONS_BYTES
        if isinstance(reason, str) and (is_full or not self._held.reasons.fits(memory)):
            reason, size = DROPPED_REASON, len(DROPPED_REASON) + REASON_HEAD_BYTES
        if isinstance(reason, Cause) or reason == DROPPED_REASON:
            # All chunks share these objects.
            memory = ENTRY_BYTES
        if reason not in self._ids:
            self.reasons.append(reason)
            self.reasons_bytes += size
            self._ids[reason] = len(self.reasons)
            self._held.reasons.bytes += memory
            self._held_bytes[1] += memory
        return self._ids[reason]

    def _grow(self, count: int) -> None:
        """Grow the columns to hold ``count`` outcomes, and some more."""
        room = min(CHUNK_MAX, max(count, 4 * len(self._roots)))
        self._roots, self._verdicts = _widened(self._roots, room), _widened(self._verdicts, room)
        if len(self._reason_ids):
            self._reason_ids = _widened(self._reason_ids, room)
        self._count_columns()

    def _count_columns(self) -> None:
        memory = CHUNK_BYTES + self._roots.nbytes + self._verdicts.nbytes + self._reason_ids.nbytes
        self._held.outcomes.bytes += memory - self._held_bytes[0]
        self._held_bytes[0] = memory


class Outbox:
    """The outcomes from cursor ``freed`` + 1 to ``cursor``. The source has confirmed the outcomes up to ``freed``.

    ``held``: counts the memory of all outboxes, and bounds that of their reasons.
    """

    __slots__ = ("_chunks", "_held", "_skipped", "cursor", "freed")

    def __init__(self, held: Room, freed: int = 0) -> None:
        self._held = held
        self.freed = self.cursor = freed
        self._chunks: deque[Chunk] = deque()
        self._skipped = 0  # outcomes at the front of the first chunk that were confirmed

    def __len__(self) -> int:
        return self.cursor - self.freed

    def append(self, roots: Column, verdicts: Kinds | int, codes: Array | int, reasons: Sequence[Reason]) -> None:
        """Append outcomes of ``roots: uint64[n]``.

        ``verdicts``: uint8[n], or one for all. ``codes``: uint[n], or one for all. A code is an index into ``reasons``
        plus one, or 0 for no reason.
        """
        start = 0
        while start < len(roots):
            chunk = self._last(len(roots) - start)
            stop = min(len(roots), start + chunk.room)
            some = slice(start, stop)
            part = codes[some] if isinstance(codes, np.ndarray) else codes
            chunk.append(
                roots[some],
                verdicts[some] if isinstance(verdicts, np.ndarray) else verdicts,
                _reason_ids(chunk, part, reasons),
            )
            start = stop
        self.cursor += len(roots)

    def confirm(self, cursor: int) -> int:
        """Forget outcomes up to ``cursor``, which must not be beyond the last. Returns how many were forgotten."""
        freed = max(0, cursor - self.freed)
        self.freed += freed
        self._skipped += freed
        while self._chunks and self._skipped >= self._chunks[0].count:
            chunk = self._chunks.popleft()
            chunk.release()
            self._skipped -= chunk.count
        return freed

    def read(self, outcomes_max: int) -> Outcomes:
        """Return up to ``outcomes_max`` of the oldest outcomes, fewer if they do not fit into one reply."""
        parts: list[tuple[Chunk, slice]] = []
        skipped, left, room = self._skipped, outcomes_max, ANSWER_BYTES
        for chunk in self._chunks:
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
            skipped = 0
        return _joined(parts)

    def _last(self, outcomes: int) -> Chunk:
        if not self._chunks or not self._chunks[-1].room:
            self._chunks.append(Chunk(outcomes, self._held))
        return self._chunks[-1]

    # -- state

    @property
    def pieces(self) -> int:
        """How many pieces `dump` yields."""
        return len(self._chunks)

    def dump(self) -> Iterator[dict[str, Array]]:
        """Yield all outcomes in pieces, as columns: roots, verdicts and reason_ids; ``texts`` and ``text_sizes`` of the
        reasons, see `parts.joined_texts`, and ``causes`` (uint8, see `causes_of`)."""
        for n, chunk in enumerate(self._chunks):
            columns = _columns([(chunk, slice(0 if n else self._skipped, chunk.count))])
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
        """Count the outcomes no longer, as their source has ended."""
        for chunk in self._chunks:
            chunk.release()


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
    ids = [chunk.reason_id(reasons[code - 1]) if code else 0 for code in distinct.tolist()]
    reason_ids: Array = np.array(ids, np.uint32)[positions]
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
        ids[:] = new[ids]
        start += len(ids)
    return Outcomes(columns.root_ids, columns.verdicts, columns.reason_ids, tuple(table))
