"""Dedupe: which sections of which reports have been applied.

XOR is not idempotent, so each section must count once. For each identity of a report, Dedupe keeps the report's digest
and a map of the 1024 slots whose sections were applied. Decides which sections are new, whether a report is in conflict
or stale, and when identities are forgotten. Never looks at entries.

Forgetting an identity too early is safe. An init counts once per root in the ledger and in its batch. An ack that is
applied twice undoes itself, so its tree stalls and is replayed; it never makes a tree look done.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from acker_protocol.ids import SLOTS
from acker_protocol.messages import Identity, Status

Array = npt.NDArray[Any]

MAP_BYTES = SLOTS // 8
# Measured memory, with the objects and with entries of dicts that have just grown: a content identity (two ids, a
# digest and the map), a sequence (one number less), and a session besides its sequences.
CONTENT_BYTES, SEQUENCE_BYTES, SESSION_BYTES = 575, 375, 425
# How many identities one call forgets, in some 5 ms.
FORGOTTEN_MAX = 10_000
# How many identities a dump copies at once.
PART_IDENTITIES = 1 << 14


@dataclass(slots=True)
class AppliedSections:
    """One identity: the digest of its report, and ``applied``, the applied slots as an int of 1024 bits."""

    digest: int
    applied: int = 0
    touched: float = 0.0


@dataclass(slots=True)
class Session:
    """The remembered sequence numbers of one sender that numbers its reports."""

    highest: int
    by_sequence: dict[int, AppliedSections] = field(default_factory=dict)
    touched: float = 0.0


class Dedupe:
    """``window``: how many sequences of a session are remembered. ``max_bytes``: bounds the memory of all content
    identities, sessions and sequences. Beyond that, the content or the session that was not used for longest is
    evicted, and its identities are counted in ``dropped``."""

    def __init__(self, window: int, max_bytes: int) -> None:
        self.window, self.max_bytes = window, max_bytes
        self.dropped = self.sequences = 0
        # In the order of last use, oldest first. A plain dict takes longer to find its oldest key, the more older ones
        # were deleted: some 50 us at 100,000 identities.
        self._contents: OrderedDict[tuple[int, int], AppliedSections] = OrderedDict()
        self._sessions: OrderedDict[int, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._contents)

    @property
    def sessions(self) -> int:
        return len(self._sessions)

    @property
    def memory_bytes(self) -> int:
        """Approximate memory of all content identities, sessions and sequences."""
        return (
            CONTENT_BYTES * len(self._contents) + SESSION_BYTES * len(self._sessions) + SEQUENCE_BYTES * self.sequences
        )

    def find_applied(self, identity: Identity, digest: int) -> Status | int:
        """Return the slots applied so far under this identity (1024 bits), or CONFLICT or STALE. Changes nothing."""
        known = self._find_sections(identity)
        if known is not None:
            return known.applied if known.digest == digest else Status.CONFLICT
        if identity.sequenced:
            session = self._sessions.get(identity.high)
            if session is not None and identity.low <= session.highest - self.window:
                return Status.STALE
        return 0

    def record_applied(self, identity: Identity, digest: int, applied: int, now: float) -> None:
        """Remember that the sections of the slots ``applied`` (1024 bits) were applied. May be called again if it
        fails."""
        known = self._touch_sequence(identity, digest, now) if identity.sequenced else self._touch(identity, digest)
        known.applied |= applied
        known.touched = now
        # A state of a server with more memory may hold far too many, which must not take long under the shard's lock.
        for _ in range(FORGOTTEN_MAX):
            if self.memory_bytes <= self.max_bytes or len(self._contents) + len(self._sessions) <= 1:
                break
            self._drop_oldest()

    def forget_unused(self, contents_before: float, sessions_before: float) -> None:
        """Forget content identities and sessions that were last used before these times, FORGOTTEN_MAX of each at
        most."""
        for _ in range(FORGOTTEN_MAX):
            if _oldest(self._contents) >= contents_before:
                break
            del self._contents[next(iter(self._contents))]
        for _ in range(FORGOTTEN_MAX):
            if _oldest(self._sessions) >= sessions_before:
                break
            self._drop_session()

    def _drop_oldest(self) -> None:
        if _oldest(self._contents) <= _oldest(self._sessions):
            dropped, key = self.dropped + 1, next(iter(self._contents))
            del self._contents[key]
        else:
            dropped = self.dropped + self._drop_session()
        self.dropped = dropped

    def _drop_session(self) -> int:
        """Forget the session that was not used for longest. Returns how many sequences it had."""
        key = next(iter(self._sessions))
        dropped = len(self._sessions[key].by_sequence)
        sequences = self.sequences - dropped
        # Nothing below can fail.
        del self._sessions[key]
        self.sequences = sequences
        return dropped

    def _find_sections(self, identity: Identity) -> AppliedSections | None:
        if not identity.sequenced:
            return self._contents.get((identity.high, identity.low))
        session = self._sessions.get(identity.high)
        return None if session is None else session.by_sequence.get(identity.low)

    def _touch(self, identity: Identity, digest: int) -> AppliedSections:
        key = (identity.high, identity.low)
        known = self._contents.get(key)
        if known is None:
            known = self._contents[key] = AppliedSections(digest)
        else:
            self._contents.move_to_end(key)
        return known

    def _touch_sequence(self, identity: Identity, digest: int, now: float) -> AppliedSections:
        session = self._sessions.get(identity.high)
        if session is None:
            session = self._sessions[identity.high] = Session(identity.low)
        else:
            self._sessions.move_to_end(identity.high)
        session.touched = now
        if identity.low > session.highest:
            self._move_window(session, identity.low)
        if identity.low not in session.by_sequence:
            known, sequences = AppliedSections(digest), self.sequences + 1
            session.by_sequence[identity.low] = known
            self.sequences = sequences
        return session.by_sequence[identity.low]

    def _move_window(self, session: Session, highest: int) -> None:
        first, known = session.highest - self.window + 1, session.by_sequence
        passed = range(first, min(highest, session.highest + self.window) - self.window + 1)
        dropped = [sequence for sequence in passed if sequence in known]
        sequences, each = self.sequences - len(dropped), iter(dropped)
        # Nothing below can fail.
        for sequence in each:
            del known[sequence]
        self.sequences, session.highest = sequences, highest

    # -- state

    def dump_contents(self, now: float) -> Iterator[dict[str, Array]]:
        """Yield content identities in pieces: ``keys`` uint64[n, 3] (high, low, digest), ``ages`` (s), ``maps``."""
        for some in _pieces(self._contents.items()):
            yield {
                "keys": _table([(*key, known.digest) for key, known in some], 3),
                "ages": np.array([now - known.touched for _, known in some], np.float64),
                "maps": _maps([known for _, known in some]),
            }

    def dump_sessions(self, now: float) -> Iterator[dict[str, Array]]:
        """Yield sessions in pieces: ``keys`` uint64[n, 2] (session, highest), ``ages`` (s)."""
        for some in _pieces(self._sessions.items()):
            yield {
                "keys": _table([(key, session.highest) for key, session in some], 2),
                "ages": np.array([now - session.touched for _, session in some], np.float64),
            }

    def dump_sequences(self) -> Iterator[dict[str, Array]]:
        """Yield sequences of the sessions in pieces: ``keys`` uint64[n, 3] (session, sequence, digest), ``maps``."""
        rows = ((s, n, known) for s, session in self._sessions.items() for n, known in session.by_sequence.items())
        for some in _pieces(rows):
            yield {
                "keys": _table([(s, n, known.digest) for s, n, known in some], 3),
                "maps": _maps([known for _, _, known in some]),
            }

    def load_contents(self, part: Mapping[str, Array], now: float) -> None:
        """Load a piece of `dump_contents`. Pieces come in their order. All load methods raise ValueError if the piece
        is incomplete."""
        rows = zip(part["keys"].tolist(), part["ages"].tolist(), _ints(part["maps"]), strict=True)
        for (high, low, digest), age, applied in rows:
            if (high, low) in self._contents:
                raise ValueError("it holds an identity twice")
            self._contents[high, low] = AppliedSections(digest, applied, now - age)

    def load_sessions(self, part: Mapping[str, Array], now: float) -> None:
        """Load a piece of `dump_sessions`."""
        for (key, highest), age in zip(part["keys"].tolist(), part["ages"].tolist(), strict=True):
            if key in self._sessions:
                raise ValueError("it holds a session twice")
            self._sessions[key] = Session(highest, touched=now - age)

    def load_sequences(self, part: Mapping[str, Array], now: float) -> None:
        """Load a piece of `dump_sequences`. All sessions must be loaded before."""
        for (key, sequence, digest), applied in zip(part["keys"].tolist(), _ints(part["maps"]), strict=True):
            if key not in self._sessions:
                raise ValueError("it holds a sequence without its session")
            self._sessions[key].by_sequence[sequence] = AppliedSections(digest, applied, now)
            self.sequences += 1


def _oldest(used: Mapping[Any, Any]) -> float:
    """Return when the first of ``used`` was last used; infinity if there is none."""
    return float(next(iter(used.values())).touched) if used else math.inf


def _pieces(rows: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield lists of at most PART_IDENTITIES ``rows``; at least one list, which may be empty."""
    left = iter(rows)
    some = list(islice(left, PART_IDENTITIES))
    yield some
    while some := list(islice(left, PART_IDENTITIES)):
        yield some


def _table(rows: list[tuple[int, ...]], columns: int) -> Array:
    return np.array(rows, np.uint64).reshape(len(rows), columns)


def _maps(every: list[AppliedSections]) -> Array:
    content = b"".join(known.applied.to_bytes(MAP_BYTES, "little") for known in every)
    return np.frombuffer(content, np.uint8).reshape(len(every), MAP_BYTES)


def _ints(maps: Array) -> list[int]:
    return [int.from_bytes(row.tobytes(), "little") for row in maps]
