"""Stats: what a shard counted, how full it is and who fills it, as plain numbers. Decides names; counts nothing."""

from __future__ import annotations

from dataclasses import asdict, dataclass


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
    roots_dropped: int = 0  # of sources that closed or whose lease ran out: nobody is left to be told


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
