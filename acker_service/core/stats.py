"""Stats: the counters and gauges of a shard and its sources, as plain numbers. Decides their names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, astuple, dataclass, fields

import numpy as np

from acker_protocol.messages import Kinds, Verdict


@dataclass(slots=True)
class Counters:
    """Counters since the state was created empty; they survive a planned restart."""

    acked: int = 0
    failed: int = 0
    timed_out: int = 0
    lost: int = 0
    inits: int = 0  # inits that counted: created or completed an entry, or ended in conflict
    inits_known: int = 0  # inits that changed nothing, as their root was initialised before
    inits_conflicting: int = 0  # inits whose root was pending in another batch: LOST in both
    updates: int = 0  # entries applied, inits included
    sections_applied: int = 0
    sections_duplicate: int = 0
    sections_conflict: int = 0
    sections_stale: int = 0
    orphans_expired: int = 0
    orphans_dropped: int = 0  # acks and fails of unknown roots, dropped as there was no room
    identities_dropped: int = 0  # evicted early, for want of room
    leases_expired: int = 0
    roots_dropped: int = 0  # pending roots of sources that closed or expired

    @classmethod
    def load(cls, counted: Mapping[str, int]) -> Counters:
        """Restore dumped counters. A counter that the dump lacks is newer than the dump, and starts at 0."""
        return cls(**{field.name: int(counted.get(field.name, 0)) for field in fields(cls)})

    def add(self, other: Counters) -> None:
        for field in fields(Counters):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


@dataclass(slots=True)
class ShardStats(Counters):
    """A snapshot of the counters, and gauges of the same moment."""

    pending: int = 0  # roots that were initialised and have no outcome
    reserved: int = 0  # roots of open batches that were not initialised yet
    unconfirmed: int = 0  # outcomes that their source has not confirmed
    orphans: int = 0  # entries without an init: early acks, late acks, tombstones
    sources: int = 0
    open_batches: int = 0
    identities: int = 0
    sequence_sessions: int = 0
    process_bytes: int = 0  # an allowance: see `memory`
    ledger_bytes: int = 0
    outcomes_bytes: int = 0
    reasons_bytes: int = 0
    pins_bytes: int = 0
    identities_bytes: int = 0  # of identities, sequences and their sessions
    maps_bytes: int = 0
    sources_bytes: int = 0
    max_pending: int = 0
    max_memory: int = 0

    @property
    def memory(self) -> dict[str, int]:
        """The memory of each kind of data, in bytes."""
        suffix = "_bytes"
        names = (field.name for field in fields(self) if field.name.endswith(suffix))
        return {name.removesuffix(suffix): getattr(self, name) for name in names}

    @property
    def left(self) -> str:
        """Describe what a draining server still has to finish; "" when the server may end."""
        counts = {
            "open batches": self.open_batches,
            "pending roots": self.pending,
            "unconfirmed outcomes": self.unconfirmed,
        }
        return ", ".join(f"{name}: {count}" for name, count in counts.items() if count)

    @classmethod
    def of(cls, counters: Counters, **gauges: int) -> ShardStats:
        return cls(**gauges, **asdict(counters))

    @classmethod
    def total(cls, every: Iterable[ShardStats]) -> ShardStats:
        """Return the sums over shards."""
        rows = [astuple(stats) for stats in every]
        return cls(*map(sum, zip(*rows, strict=True)))


def tally(verdicts: Kinds | int, roots: int) -> list[int]:
    """Return how many of ``roots`` outcomes were acked, failed, timed out, and lost. ``verdicts``: uint8[roots] or
    more, or one verdict for all."""
    if isinstance(verdicts, np.ndarray):
        counts: list[int] = np.bincount(verdicts[:roots], minlength=len(Verdict) + 1).tolist()
        return counts[1:]
    return [roots * (verdict == verdicts) for verdict in Verdict]


@dataclass(frozen=True, slots=True)
class SourceStats:
    """One source at one moment. ``pending``: roots without an outcome. ``watch_age_s``: time since its last Watch.
    ``namespace``: "" for the default one."""

    name: str
    pending: int
    watch_age_s: float
    namespace: str = ""
