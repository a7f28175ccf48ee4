"""In flight: records between their emission and the moment when they are done. Pure.

Decides, for each outcome, whether its record is done, is tried again, or has spent its retries. FAILED and TIMED_OUT
count as failures of the record, LOST as an interruption. The caller passes the time as ``now``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from acker_client.source.records.ranges import Ranges
from acker_client.source.records.retry import Counts as Attempts
from acker_client.source.records.retry import Decide, Delays, Draw, ReplayGroup, Retry, Schedule
from acker_client.source.records.summary import Counts
from acker_client.source.records.tracker import ABSENT, NO_RECORDS, Counted, EmissionRange, RecordNumbers, Tracker
from acker_protocol.ids import Column
from acker_protocol.messages import NO_IDS, NO_KINDS, NO_REASON_IDS, Cause, Kinds, Outcomes, Reason, ReasonIds, Verdict


@dataclass(frozen=True, slots=True)
class Failures:
    """Records whose emission was not acked: ``records: int64[n]`` (ascending), ``roots: uint64[n]``, ``verdicts:
    uint8[n]``, ``reason_ids: uint32[n]`` (0: no reason, otherwise its index in ``reasons`` plus one)."""

    records: RecordNumbers
    roots: Column
    verdicts: Kinds
    reason_ids: ReasonIds
    reasons: Sequence[Reason]

    @classmethod
    def merged(cls, parts: Sequence[Failures], reason: str) -> Failures:
        """Merge ``parts``, and give all records the same ``reason``."""
        if not parts:
            return cls(NO_RECORDS, NO_IDS, NO_KINDS, NO_REASON_IDS, ())
        records = np.concatenate([part.records for part in parts])
        order = np.argsort(records, kind="stable")
        roots = np.concatenate([part.roots for part in parts])[order]
        verdicts = np.concatenate([part.verdicts for part in parts])[order]
        return cls(records[order], roots, verdicts, np.ones(len(order), np.uint32), (reason,))

    @classmethod
    def joined(cls, parts: Sequence[Failures]) -> Failures:
        """Merge ``parts``, and keep the reason of each record."""
        shifts = np.cumsum([0, *(len(part.reasons) for part in parts)])
        ids = [
            np.where(part.reason_ids, part.reason_ids + shift, 0) for part, shift in zip(parts, shifts, strict=False)
        ]
        merged = cls.merged(parts, "")
        order = np.argsort(np.concatenate([NO_RECORDS, *(part.records for part in parts)]), kind="stable")
        reason_ids = np.concatenate([NO_REASON_IDS, *ids])[order].astype(np.uint32)
        return replace(merged, reason_ids=reason_ids, reasons=[reason for part in parts for reason in part.reasons])

    def ended_as(self, verdict: Verdict) -> Failures:
        """Return the same records, with ``verdict`` instead of LOST."""
        verdicts = np.where(self.verdicts == Verdict.LOST, np.uint8(verdict), self.verdicts)
        return replace(self, verdicts=verdicts)

    def __len__(self) -> int:
        return len(self.records)

    def reason(self, index: int) -> str:
        """Return why the ``index``-th record was not acked; the name of its verdict if it has no reason."""
        reason_id = int(self.reason_ids[index])
        return str(self.reasons[reason_id - 1]) if reason_id else Verdict(int(self.verdicts[index])).name

    def because(self, cause: Cause) -> Failures:
        """Return the failures that have this ``cause``."""
        ids = [index for index, reason in enumerate(self.reasons, 1) if reason is cause]
        return self.only(np.isin(self.reason_ids, ids))

    def only(self, chosen: npt.NDArray[np.bool_]) -> Failures:
        """Return the failures where ``chosen: bool[n]`` is True."""
        return Failures(
            self.records[chosen], self.roots[chosen], self.verdicts[chosen], self.reason_ids[chosen], self.reasons
        )

    def of(self, records: RecordNumbers) -> Failures:
        """Return the failures of ``records``."""
        return self.only(np.isin(self.records, records))

    def without(self, records: RecordNumbers) -> Failures:
        """Return the failures of all records but ``records``."""
        return self.only(~np.isin(self.records, records))


@dataclass(frozen=True, slots=True)
class Effects:
    """Effects of the ``applied`` outcomes. ``acked`` records (with ``acked_roots``) are done. Among the ``failures``,
    ``spent`` have no retry left. ``broken`` belong to a batch that failed as a whole, and wait for its end."""

    applied: Counted
    is_acked: npt.NDArray[np.bool_]
    failures: Failures
    spent: Failures
    broken: Failures

    @property
    def acked(self) -> RecordNumbers:
        return self.applied.records[self.is_acked]

    @property
    def acked_roots(self) -> Column:
        return self.applied.roots[self.is_acked]

    @property
    def retried(self) -> Failures:
        """Failures that are scheduled for another try."""
        return self.failures.without(np.concatenate((self.spent.records, self.broken.records)))


def excusing(outcomes: Outcomes, because: str) -> Outcomes:
    """Return ``outcomes`` with LOST instead of FAILED for unfinished records. Adds ``because`` to the reason."""
    ids = [index for index, reason in enumerate(outcomes.reasons, 1) if reason is Cause.UNFINISHED]
    if not ids:
        return outcomes
    is_unfinished = np.isin(outcomes.reason_ids, ids)
    verdicts = np.where(is_unfinished & (outcomes.verdicts == Verdict.FAILED), Verdict.LOST, outcomes.verdicts)
    reasons = tuple(f"{reason}: {because}" if reason is Cause.UNFINISHED else reason for reason in outcomes.reasons)
    return Outcomes(outcomes.root_ids, verdicts.astype(np.uint8), outcomes.reason_ids, reasons)


# Returns the delay of each failure's record after so many bad attempts; NaN gives the record up.
DecideFailures = Callable[[Failures, Attempts], Delays]


class InFlight:
    """All records in flight of one run. ``decide`` decides about retries in place of ``retry``."""

    __slots__ = ("_decide", "counts", "schedule", "tracker")

    def __init__(self, base: int, retry: Retry, draw: Draw, decide: DecideFailures | None = None) -> None:
        self.tracker = Tracker(base)
        self.schedule = Schedule(retry, draw)
        self.counts = Counts()
        self._decide = decide

    @property
    def is_over(self) -> bool:
        """Whether every emitted record has its answer."""
        return not self.tracker.pending and not self.schedule.waiting

    def emit(self, records: RecordNumbers, *, replays: int) -> EmissionRange:
        """Emit ``records`` (ascending). ``replays``: how many of them have been emitted before."""
        self.counts.batches += 1
        self.counts.replayed += replays
        self.counts.records += len(records) - replays
        return self.tracker.emit(records)

    def apply_outcomes(self, outcomes: Outcomes, now: float, broken_as: Verdict | None = None) -> Effects:
        """Apply outcomes. ``broken_as``: their batch failed as a whole, so LOST does not count as an interruption, and
        becomes this verdict: LOST or TIMED_OUT."""
        applied = self.tracker.apply_outcomes(outcomes.root_ids, outcomes.verdicts)
        self.counts.repeated += applied.repeated
        self.counts.foreign += applied.foreign
        ids = outcomes.reason_ids[applied.indices] if len(outcomes.reason_ids) else _no_reasons(len(applied.indices))
        return self._take_effects(applied, ids, outcomes.reasons, now, broken_as)

    def lose(self, start: int, stop: int, reason: str, now: float, broken_as: Verdict | None = None) -> Effects:
        """Give LOST to all emissions ``start <= number < stop`` that have no outcome. ``broken_as``: as in
        :meth:`apply_outcomes`."""
        applied = self.tracker.end_emissions(start, stop, Verdict.LOST)
        return self._take_effects(applied, np.ones(len(applied.records), np.uint32), (reason,), now, broken_as)

    def end_absent(self, roots: Column) -> Counted:
        """Count records as done because they do not exist. ``roots: uint64[n]``: their emissions. Skips emissions
        that have an outcome."""
        absent = self.tracker.apply_outcomes(roots, np.full(len(roots), ABSENT, np.uint8))
        self.counts.absent += len(absent.records)
        self.tracker.finish(absent.records)
        return absent

    def revoke(self, records: RecordNumbers) -> RecordNumbers:
        """Drop ``records`` (ascending) that belong to another source now. They are neither retried nor counted as done.
        Returns the records that were open."""
        dropped = self.tracker.open_among(records)
        self.schedule.cancel_replays(dropped)
        self.tracker.drop_records(dropped)
        self.counts.revoked += len(dropped)
        return dropped

    def isolate(
        self, broken: Failures, depth: int, now: float, *, is_alone: bool, suspects: RecordNumbers = NO_RECORDS
    ) -> Failures:
        """Schedule retries in smaller pieces for the records of a batch that failed as a whole. ``is_alone``: the batch
        had only one record, so this counts as its failure. Returns the records that have no retry left. ``depth``,
        ``suspects``: as in :meth:`Schedule.isolate`."""
        if len(broken) and is_alone:
            decide = self._decision(broken.ended_as(Verdict.FAILED))
            return broken.of(self.schedule.count_failures(broken.records, now, depth + 1, decide))
        if len(broken):
            self.schedule.isolate(broken.records, depth, now, suspects)
        return broken.only(np.zeros(len(broken), bool))

    def take_replays(self, now: float, records_max: int) -> ReplayGroup | None:
        """Return the next replays that are due; None if there are none."""
        return self.schedule.take_due(now, records_max)

    def finish_dead(self, records: RecordNumbers) -> None:
        """Count ``records``, ascending, as done because they are in the dead letters."""
        self.counts.dead_lettered += len(records)
        self.tracker.finish(records)

    def let_go(self, records: RecordNumbers) -> None:
        """Count ``records`` (ascending) as done without an ack, as a source without retries does."""
        self.counts.dropped += len(records)
        self.tracker.finish(records)

    def attempts(self, records: RecordNumbers) -> npt.NDArray[np.int64]:
        """Return how many bad attempts of each of ``records`` count."""
        return self.schedule.failed(records).astype(np.int64) + self.schedule.interrupted(records)

    def reopen(self, records: RecordNumbers) -> None:
        """Count ``records`` as open again, before ``take_finished`` has returned them: nobody heard of their end."""
        self.tracker.reopen(records)

    def take_finished(self) -> Ranges:
        """Return the records done since the last call. Call it before ``compact``, which drops them."""
        return self.tracker.take_finished()

    def compact(self) -> int:
        """Drop finished records from memory. Returns the number below which all emitted records are done."""
        self.tracker.compact()
        self.schedule.forget_attempts(self.tracker.done_below)
        return self.tracker.done_below

    def _take_effects(
        self,
        applied: Counted,
        reason_ids: ReasonIds,
        reasons: Sequence[Reason],
        now: float,
        broken_as: Verdict | None,
    ) -> Effects:
        is_acked = applied.verdicts == Verdict.ACKED
        failed = np.flatnonzero(~is_acked)
        failed = failed[np.argsort(applied.records[failed], kind="stable")]
        failures = Failures(
            applied.records[failed], applied.roots[failed], applied.verdicts[failed], reason_ids[failed], reasons
        )
        is_broken = broken_as is not None
        try:
            spent = self._count_attempts(failures, now, is_broken)
        except BaseException:
            # The policy raised, so the run ends before anybody hears of the acks.
            self.reopen(applied.records[is_acked])
            raise
        is_lost = failures.verdicts == Verdict.LOST
        if broken_as is not None:
            failures = failures.ended_as(broken_as)
        broken = failures.only(is_lost & is_broken)
        if broken_as == Verdict.TIMED_OUT:
            failures = replace(failures, reasons=[_timed_out(reason) for reason in failures.reasons])
        self._count_verdicts(is_acked, failures.verdicts)
        return Effects(applied, is_acked, failures, failures.of(spent), broken)

    def _count_attempts(self, failures: Failures, now: float, is_broken: bool) -> RecordNumbers:
        """Count the attempts that ended with ``failures``, and schedule retries. Returns the records without retries
        left, ascending."""
        is_lost = failures.verdicts == Verdict.LOST
        failed, lost = failures.only(~is_lost), failures.only(is_lost)
        spent = self.schedule.count_failures(failed.records, now, decide=self._decision(failed))
        if is_broken:
            return spent
        interrupted = self.schedule.interrupt(lost.records, now, self._decision(lost))
        return np.sort(np.concatenate((spent, interrupted)))

    def _decision(self, failures: Failures) -> Decide | None:
        return None if self._decide is None else partial(self._decide, failures)

    def _count_verdicts(self, is_acked: npt.NDArray[np.bool_], verdicts: Kinds) -> None:
        self.counts.acked += int(np.count_nonzero(is_acked))
        self.counts.failed += int(np.count_nonzero(verdicts == Verdict.FAILED))
        self.counts.timed_out += int(np.count_nonzero(verdicts == Verdict.TIMED_OUT))
        self.counts.lost += int(np.count_nonzero(verdicts == Verdict.LOST))


def _timed_out(reason: Reason) -> Reason:
    """Return the reason of a record whose batch has timed out and was abandoned for ``reason``."""
    return Cause.MESSAGE_TIMEOUT if reason in (Cause.ABANDONED, Cause.UNREAD) else reason


def _no_reasons(count: int) -> ReasonIds:
    return np.zeros(count, np.uint32)
