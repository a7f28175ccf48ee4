"""Summary: what a source has done so far, in numbers and as a small table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counts:
    """Counters of one run. Records: ``records`` (emitted for the first time), ``absent`` (do not exist, or untracked),
    ``revoked`` (went to another source while open), ``dropped`` (not acked, and the guarantee allows no retry).
    Emissions: ``replayed`` (beyond the first), ``differed`` (servers disagreed about them), ``saved`` (a second server
    saved them from a replay). Outcomes: ``acked``, ``failed``, ``timed_out``, ``lost``, ``repeated`` (the emission had
    an outcome already), ``foreign`` (the emission is not of this source). ``short_of_replicas``: batches
    whose tasks reported to fewer servers than asked."""

    records: int = 0
    acked: int = 0
    failed: int = 0
    timed_out: int = 0
    lost: int = 0
    replayed: int = 0
    dead_lettered: int = 0
    absent: int = 0
    revoked: int = 0
    dropped: int = 0
    batches: int = 0
    repeated: int = 0
    foreign: int = 0
    differed: int = 0
    saved: int = 0
    short_of_replicas: int = 0


@dataclass(frozen=True, slots=True)
class PartitionState:
    """How far a source is in one partition of a ``topic``. ``position``: what it reads next. ``committed``: where a
    restart goes on. ``end``: the position after the last record there is; None if unknown. ``holes``: stretches of open
    records before done ones."""

    topic: str
    name: str
    position: int
    committed: int
    end: int | None
    holes: int

    @property
    def lag(self) -> int | None:
        """The number of positions from the committed one to the end."""
        return None if self.end is None else max(0, self.end - self.committed)


@dataclass(frozen=True, slots=True)
class Summary:
    """The progress of a source at one moment. Every record ends as acked or dead-lettered; ``open`` records have no
    answer yet. ``absent`` records do not exist or are untracked. ``revoked`` records went to another source while open.
    ``dropped`` records were not acked and are not retried, because of the source's guarantee.

    ``differed``: emissions about which servers disagreed; ``saved``: emissions that a second server saved from a
    replay; ``short_of_replicas``: batches whose tasks reported to fewer servers than asked.

    ``checkpoint``: up to where all records are done; ``holes``: stretches of open records before done ones;
    ``holes_of_fullest``: the holes of the partition that has the most. ``held_back``: planned records that wait for an
    earlier record of their key; they are not among ``records``. ``elapsed_s``: duration of the run so far.
    """

    name: str
    records: int
    acked: int
    failed: int
    timed_out: int
    lost: int
    replayed: int
    dead_lettered: int
    open: int
    batches: int
    elapsed_s: float
    records_per_s: float
    checkpoint: str
    absent: int = 0
    revoked: int = 0
    holes: int = 0
    differed: int = 0
    saved: int = 0
    short_of_replicas: int = 0
    dropped: int = 0
    holes_of_fullest: int = 0
    held_back: int = 0

    @classmethod
    def of(
        cls,
        name: str,
        counts: Counts,
        *,
        elapsed_s: float,
        checkpoint: str,
        holes: int = 0,
        holes_of_fullest: int = 0,
        held_back: int = 0,
    ) -> Summary:
        """Sum up ``counts`` after ``elapsed_s``."""
        done = counts.acked + counts.dead_lettered
        return cls(
            name=name,
            records=counts.records,
            acked=counts.acked,
            failed=counts.failed,
            timed_out=counts.timed_out,
            lost=counts.lost,
            replayed=counts.replayed,
            dead_lettered=counts.dead_lettered,
            open=counts.records - done - counts.absent - counts.revoked - counts.dropped,
            batches=counts.batches,
            elapsed_s=elapsed_s,
            records_per_s=done / elapsed_s if elapsed_s > 0 else 0.0,
            checkpoint=checkpoint,
            absent=counts.absent,
            revoked=counts.revoked,
            holes=holes,
            differed=counts.differed,
            saved=counts.saved,
            short_of_replicas=counts.short_of_replicas,
            dropped=counts.dropped,
            holes_of_fullest=holes_of_fullest,
            held_back=held_back,
        )

    @property
    def brief(self) -> str:
        """The most important numbers on one line."""
        return (
            f"{self.records:,} records, {self.acked:,} acked, {self.dead_lettered:,} dead letters, {self.open:,} open"
        )

    def __str__(self) -> str:
        numbers = [
            ("records", self.records, "read"),
            ("acked", self.acked, "everything derived from them was processed"),
            ("dead letters", self.dead_lettered, "tried often enough, kept in the dead letters"),
            ("open", self.open, "no answer yet; read again at the next start"),
            ("failed", self.failed, "attempts: a function raised, or the batch was settled before all was done"),
            ("timed out", self.timed_out, "attempts that took too long"),
            ("lost", self.lost, "attempts that a failed job or a lost server interrupted"),
            ("replayed", self.replayed, "emissions beyond the first"),
            ("batches", self.batches, f"in {self.elapsed_s:.1f} s, {self.records_per_s:,.0f} records/s"),
        ]
        rare = [
            ("absent", self.absent, "untracked, or not there when they were read"),
            ("revoked", self.revoked, "open when their partition went to another source"),
            ("dropped", self.dropped, "not acked, and not tried again: the source guarantees less"),
            ("differed", self.differed, "of which servers said different things, as one had missed something"),
            ("saved", self.saved, "acked by a second server where the first could not"),
            ("short", self.short_of_replicas, "batches that tasks reported to fewer servers than were asked for"),
            ("holes", self.holes, "stretches of open records before done ones"),
            ("of one", self.holes_of_fullest, "of them in the partition that has the most"),
            ("held back", self.held_back, "wait for an earlier record of their key"),
        ]
        numbers[4:4] = [row for row in rare if row[1]]
        lines = [f"source {self.name}"]
        lines += [f"  {what:<12} {number:>14,}  {words}" for what, number, words in numbers]
        return "\n".join([*lines, f"  {'checkpoint':<12} {self.checkpoint}"])
