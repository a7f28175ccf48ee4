"""Dedupe: which sections of which reports have been applied.

XOR is not idempotent, so a section counts once: per identity a map of the 1024 slots whose sections were applied, and
the report's digest. Decides what is fresh, duplicate, in conflict or stale, and what is forgotten when; never looks at
entries.

To forget too early is safe: an init counts once per root in the ledger and in its batch, and an ack that counts twice
undoes itself, so that its tree stalls and is replayed; it never makes a tree look done.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from acker_protocol.ids import SLOTS
from acker_protocol.messages import Identity, Status

Array = npt.NDArray[Any]

MAP_BYTES = SLOTS // 8


@dataclass(slots=True)
class Record:
    """What is known of one identity: the digest of its report and the slots applied, as an int of 1024 bits."""

    digest: int
    applied: int = 0
    touched: float = 0.0


@dataclass(slots=True)
class Session:
    """The window of one sequenced sender."""

    highest: int
    records: dict[int, Record] = field(default_factory=dict)
    touched: float = 0.0


class Dedupe:
    """``window``: how many sequences of a session are remembered. ``identities_max``: content identities, and
    sequences in all sessions, that are remembered at most; the oldest are forgotten first, and counted."""

    def __init__(self, window: int, identities_max: int) -> None:
        self.window, self.identities_max = window, identities_max
        self.dropped = 0
        # Both in the order in which they were last touched.
        self._contents: dict[tuple[int, int], Record] = {}
        self._sessions: dict[int, Session] = {}

    def __len__(self) -> int:
        return len(self._contents)

    @property
    def sessions(self) -> int:
        return len(self._sessions)

    def look(self, identity: Identity, digest: int) -> Status | int:
        """The slots applied so far under this identity (1024 bits), or CONFLICT or STALE. Changes nothing."""
        record = self._record(identity)
        if record is not None:
            return record.applied if record.digest == digest else Status.CONFLICT
        if identity.sequenced:
            session = self._sessions.get(identity.high)
            if session is not None and identity.low <= session.highest - self.window:
                return Status.STALE
        return 0

    def note(self, identity: Identity, digest: int, applied: int, now: float) -> None:
        """Remember that the sections of ``applied`` (1024 bits) count now."""
        record = self._touch_sequence(identity, digest, now) if identity.sequenced else self._touch(identity, digest)
        record.applied |= applied
        record.touched = now

    def forget(self, contents_before: float, sessions_before: float) -> None:
        """Forget the content identities and the idle sessions that were last touched before these times."""
        while self._contents and next(iter(self._contents.values())).touched < contents_before:
            del self._contents[next(iter(self._contents))]
        while self._sessions and next(iter(self._sessions.values())).touched < sessions_before:
            del self._sessions[next(iter(self._sessions))]

    def _record(self, identity: Identity) -> Record | None:
        if not identity.sequenced:
            return self._contents.get((identity.high, identity.low))
        session = self._sessions.get(identity.high)
        return None if session is None else session.records.get(identity.low)

    def _touch(self, identity: Identity, digest: int) -> Record:
        key = (identity.high, identity.low)
        record = self._contents.pop(key, None) or Record(digest)
        self._contents[key] = record
        if len(self._contents) > self.identities_max:
            del self._contents[next(iter(self._contents))]
            self.dropped += 1
        return record

    def _touch_sequence(self, identity: Identity, digest: int, now: float) -> Record:
        session = self._sessions.pop(identity.high, None) or Session(identity.low)
        self._sessions[identity.high] = session
        session.touched = now
        if identity.low > session.highest:
            self._advance(session, identity.low)
        if len(self._sessions) * self.window > self.identities_max and len(self._sessions) > 1:
            del self._sessions[next(iter(self._sessions))]
            self.dropped += 1
        return session.records.setdefault(identity.low, Record(digest))

    def _advance(self, session: Session, highest: int) -> None:
        if highest - session.highest >= self.window:
            session.records.clear()
        for sequence in range(
            session.highest - self.window + 1, min(highest, session.highest + self.window) - self.window + 1
        ):
            session.records.pop(sequence, None)
        session.highest = highest

    # -- state

    def dump(self, now: float) -> dict[str, Array]:
        """Columns: ``contents`` uint64[n, 3] (high, low, digest), ``sessions`` uint64[m, 2] (session, highest),
        ``sequences`` uint64[k, 3] (session, sequence, digest), each with ``*_ages`` (s) and, where records,
        ``*_maps``."""
        contents = list(self._contents.items())
        sequences = [(s, n, r) for s, session in self._sessions.items() for n, r in session.records.items()]
        return {
            "contents": _table([(*key, record.digest) for key, record in contents], 3),
            "contents_ages": np.array([now - record.touched for _, record in contents], np.float64),
            "contents_maps": _maps([record for _, record in contents]),
            "sessions": _table([(key, session.highest) for key, session in self._sessions.items()], 2),
            "sessions_ages": np.array([now - session.touched for session in self._sessions.values()], np.float64),
            "sequences": _table([(s, n, record.digest) for s, n, record in sequences], 3),
            "sequences_maps": _maps([record for _, _, record in sequences]),
        }

    def load(self, state: Mapping[str, Array], now: float) -> None:
        """Take what `dump` gave. Raises ValueError if it is not whole."""
        contents, contents_maps = state["contents"].tolist(), _ints(state["contents_maps"])
        ages = state["contents_ages"].tolist()
        for (high, low, digest), age, applied in zip(contents, ages, contents_maps, strict=True):
            self._contents[high, low] = Record(digest, applied, now - age)
        for (key, highest), age in zip(state["sessions"].tolist(), state["sessions_ages"].tolist(), strict=True):
            self._sessions[key] = Session(highest, touched=now - age)
        maps = _ints(state["sequences_maps"])
        for (key, sequence, digest), applied in zip(state["sequences"].tolist(), maps, strict=True):
            if key not in self._sessions:
                raise ValueError("it remembers a sequence of no session")
            self._sessions[key].records[sequence] = Record(digest, applied, now)


def _table(rows: list[tuple[int, ...]], columns: int) -> Array:
    return np.array(rows, np.uint64).reshape(len(rows), columns)


def _maps(records: list[Record]) -> Array:
    content = b"".join(record.applied.to_bytes(MAP_BYTES, "little") for record in records)
    return np.frombuffer(content, np.uint8).reshape(len(records), MAP_BYTES)


def _ints(maps: Array) -> list[int]:
    return [int.from_bytes(row.tobytes(), "little") for row in maps]
