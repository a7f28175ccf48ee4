"""Stats: what a shard counted, how full it is and who fills it, as plain numbers. Decides names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

import numpy as np

from acker_protocol.messages import Kinds, Verdict


@dataclass(slots=True)
class Counters:
    """Counted since the state was opened empty."""

    acked: int = 0
    failed: int = 0
    timed_out: int = 0
    lost: int = 0
    inits: int = 0  # that counted: created or completed an entry, or ended in conflict
    inits_known: int = 0  # that changed nothing, as their root was initialised before
    inits_conflicting: int = 0  # that found their root pending in another batch: LOST in both
    updates: int = 0  # entries applied, inits included
    sections_applied: int = 0
    sections_duplicate: int = 0
    sections_conflict: int = 0
    sections_stale: int = 0
    orphans_expired: int = 0
    orphans_dropped: int = 0  # acks or fails of unknown roots for which there was no room
    identities_dropped: int = 0  # forgotten early, for want of room
    leases_expired: int = 0
    roots_dropped: int = 0  # of sources that closed or whose lease ran out: nobody is left to report to

    def count(self, verdicts: Kinds | int, roots: int) -> None:
        """Count ``roots`` outcomes by verdict: uint8[roots], or one for all."""
        if isinstance(verdicts, np.ndarray):
            counts = np.bincount(verdicts, minlength=len(Verdict) + 1).tolist()
            self._add(*counts[1:])
        else:
            self._add(*(roots * (verdict == verdicts) for verdict in Verdict))

    def _add(self, acked: int, failed: int, timed_out: int, lost: int) -> None:
        """As ``Verdict`` counts them, from 1 on."""
        self.acked += acked
        self.failed += failed
        self.timed_out += timed_out
        self.lost += lost

    @classmethod
    def load(cls, counted: Mapping[str, int]) -> Counters:
        """What was dumped, as a dictionary; what is missing was not counted yet."""
        return cls(**{field.name: int(counted.get(field.name, 0)) for field in fields(cls)})


@dataclass(slots=True)
class ShardStats(Counters):
    """The counters as they stood at one moment, and gauges of that moment. A copy: nobody counts on in it."""

    pending: int = 0  # roots that were initialised and have no outcome
    reserved: int = 0  # roots of open batches that were not initialised yet
    unconfirmed: int = 0  # outcomes that their source has not confirmed
    orphans: int = 0  # entries without an init: early acks, late acks, tombstones
    sources: int = 0
    open_batches: int = 0
    identities: int = 0
    identity_bytes: int = 0  # of identities and sequences
    sequence_sessions: int = 0
    ledger_bytes: int = 0
    max_pending: int = 0

    @classmethod
    def of(cls, counters: Counters, **gauges: int) -> ShardStats:
        return cls(**gauges, **asdict(counters))


@dataclass(frozen=True, slots=True)
class SourceStats:
    """One source at one moment. ``pending``: its roots that have no outcome. ``watch_age_s``: since its last Watch."""

    name: str
    pending: int
    watch_age_s: float
