"""Dedupe: which sections of which reports have been applied.

XOR is not idempotent, so each section must count once. For each identity of a report, Dedupe keeps the report's digest
and a map of the 1024 slots whose sections were applied. Decides which sections are new, whether a report is in conflict
or stale, and when identities are forgotten. Never looks at entries.

Forgetting an identity too early is safe. An init counts once per root in the ledger and in its batch. An ack that is
applied twice undoes itself, so its tree stalls and is replayed; it never makes a tree look done.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import Any

import numpy as np
import numpy.typing as npt

from acker_protocol.ids import SLOTS
from acker_protocol.messages import Identity, Status

Array = npt.NDArray[Any]

MAP_BYTES = SLOTS // 8
# Measured memory of one identity: two ids, a digest, the map, and their objects. A sequence takes less.
IDENTITY_BYTES = 525
# How many identities and sessions one `forget_unused` forgets, in some 5 ms.
FORGET_MAX = 10_000
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
    """``window``: how many sequences of a session are remembered. ``identities_max``: how many content identities and
    sequences are remembered together. Beyond that, the least recently used is evicted and counted in ``dropped``."""

    def __init__(self, window: int, identities_max: int) -> None:
        self.window, self.identities_max = window, identities_max
        self.dropped = self.sequences = 0
        # Both dictionaries are in the order of last use, oldest first.
        self._contents: dict[tuple[int, int], AppliedSections] = {}
        self._sessions: dict[int, Session] = {}

    def __len__(self) -> int:
        return len(self._contents)

    @property
    def sessions(self) -> int:
        return len(self._sessions)

    @property
    def memory_bytes(self) -> int:
        """Approximate memory of all identities and sequences."""
        return IDENTITY_BYTES * (len(self._contents) + self.sequences)

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
        """Remember that the sections of the slots ``applied`` (1024 bits) were applied."""
        known = self._touch_sequence(identity, digest, now) if identity.sequenced else self._touch(identity, digest)
        known.applied |= applied
        known.touched = now
        while (
            len(self._contents) + self.sequences > self.identities_max and len(self._contents) + len(self._sessions) > 1
        ):
            self._drop_oldest()

    def forget_unused(self, contents_before: float, sessions_before: float) -> None:
        """Forget the content identities and the sessions that were last used before these times, FORGET_MAX of each at
        most."""
        for key in _unused(self._contents, contents_before):
            del self._contents[key]
        for high in _unused(self._sessions, sessions_before):
            self.sequences -= len(self._sessions.pop(high).by_sequence)

    def _drop_oldest(self) -> None:
        content = next(iter(self._contents.values())).touched if self._contents else math.inf
        session = next(iter(self._sessions.values())).touched if self._sessions else math.inf
        if content <= session:
            del self._contents[next(iter(self._contents))]
        else:
            self._drop_session()
        self.dropped += 1

    def _drop_session(self) -> None:
        self.sequences -= len(self._sessions.pop(next(iter(self._sessions))).by_sequence)

    def _find_sections(self, identity: Identity) -> AppliedSections | None:
        if not identity.sequenced:
            return self._contents.get((identity.high, identity.low))
        session = self._sessions.get(identity.high)
        return None if session is None else session.by_sequence.get(identity.low)

    def _touch(self, identity: Identity, digest: int) -> AppliedSections:
        key = (identity.high, identity.low)
        known = self._contents.pop(key, None) or AppliedSections(digest)
        self._contents[key] = known
        return known

    def _touch_sequence(self, identity: Identity, digest: int, now: float) -> AppliedSections:
        session = self._sessions.pop(identity.high, None) or Session(identity.low)
        self._sessions[identity.high] = session
        session.touched = now
        if identity.low > session.highest:
            self._move_window(session, identity.low)
        if identity.low not in session.by_sequence:
            session.by_sequence[identity.low] = AppliedSections(digest)
            self.sequences += 1
        return session.by_sequence[identity.low]

    def _move_window(self, session: Session, highest: int) -> None:
        before = len(session.by_sequence)
        if highest - session.highest >= self.window:
            session.by_sequence.clear()
        for sequence in range(
            session.highest - self.window + 1, min(highest, session.highest + self.window) - self.window + 1
        ):
            session.by_sequence.pop(sequence, None)
        self.sequences -= before - len(session.by_sequence)
        session.highest = highest

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


def _unused(known: Mapping[Any, AppliedSections | Session], before: float) -> list[Any]:
    # Walks once: next(iter(...)) after each deletion would step over all deleted ones again.
    oldest = islice(known.items(), FORGET_MAX)
    return [key for key, _ in takewhile(lambda each: each[1].touched < before, oldest)]


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
