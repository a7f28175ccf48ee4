"""Outcomes: take outcomes from the watcher, and act on them for records, listeners and other jobs.

Decides the order of the actions: first a record gets its outcome, then the anchors that another job handed on with
the record are acked. A record counts as done only after its dead letter is on disk. ``records.in_flight`` decides what
an outcome means for a record, and ``listeners`` who hears of its end.
"""

from __future__ import annotations

import logging

import numpy as np

from acker_client.cluster.watched import WatchResult, only
from acker_client.error_text import shorten
from acker_client.source.engine.batch import Batch
from acker_client.source.engine.batches import Batches
from acker_client.source.engine.dead_lettering import DeadLettering
from acker_client.source.engine.environment import Environment
from acker_client.source.engine.listeners import Listeners
from acker_client.source.engine.options import Options
from acker_client.source.engine.partitions import Partitions
from acker_client.source.engine.upstream import UpstreamTrees
from acker_client.source.engine.watcher import Watching
from acker_client.source.records.in_flight import Effects, Failures, InFlight, excusing
from acker_client.source.records.parts import Lookup
from acker_client.source.records.progress import counted
from acker_client.source.records.tracker import RecordNumbers
from acker_protocol.ids import Column
from acker_protocol.messages import Cause, Outcomes

log = logging.getLogger("acker_client.source")

# Longest wait for one outcome. Between two waits the run checks its group and its replays.
LOOK_S = 1.0


class RunOutcomes:
    """The outcomes of one run. ``upstream``: the trees of other jobs, if the input's records belong to any."""

    def __init__(
        self,
        options: Options,
        environment: Environment,
        lookup: Lookup,
        in_flight: InFlight,
        partitions: Partitions,
        dead_lettering: DeadLettering,
        listeners: Listeners,
        batches: Batches,
        watching: Watching,
        upstream: UpstreamTrees | None,
    ) -> None:
        self._options = options
        self._environment = environment
        self._lookup = lookup
        self._in_flight = in_flight
        self._partitions = partitions
        self._dead_lettering = dead_lettering
        self._listeners = listeners
        self._batches = batches
        self._watching = watching
        self._upstream = upstream
        # Numbers of batches whose outcomes have all arrived.
        self._settled: set[int] = set()

    # -- from the watcher

    def take_outcomes(self, wait_s: float) -> None:
        """Take all outcomes that have arrived, and wait up to ``wait_s`` for the first."""
        self._environment.check()
        if self._upstream is not None:
            self._upstream.send()
        watched = self._watching.next_result(wait_s)
        while watched is not None:
            self._apply_watched(watched)
            watched = self._watching.next_result(0.0)

    def await_batch(self, batch: Batch) -> None:
        """Take outcomes until the batch has all of its outcomes, but no longer than the source's ``deadline_s``."""
        deadline_s = self._environment.clock() + self._options.deadline_s
        while batch.number not in self._settled and self._environment.clock() < deadline_s:
            self.take_outcomes(LOOK_S)

    def forget_batch(self, number: int) -> None:
        """Forget that the outcomes of a batch have all arrived."""
        self._settled.discard(number)

    def _apply_watched(self, watched: WatchResult) -> None:
        self._settled.update(watched.settled)
        for batch in self._batches.open_batches:
            batch.is_lost |= batch.number in watched.interrupted
        self._in_flight.counts.differed += watched.differed
        self._in_flight.counts.saved += watched.saved
        if len(watched.absent):
            self._end_absent(watched.absent)
        left = watched.outcomes
        for batch in self._batches.open_batches:
            # A batch influences its outcomes only if it failed as a whole, or has a reason for unfinished records.
            if len(left) and (batch.is_broken or batch.unfinished_because):
                own = self._in_flight.tracker.are_of(left.root_ids, batch.emitted)
                self._apply_outcomes(only(left, own), batch)
                left = only(left, ~own)
        self._apply_outcomes(left, None)

    def _apply_outcomes(self, outcomes: Outcomes, batch: Batch | None) -> None:
        """Apply outcomes. ``batch``: the batch that they belong to, if it influences them."""
        if not len(outcomes):
            return
        if batch is not None and batch.unfinished_because:
            outcomes = excusing(outcomes, batch.unfinished_because)
        broken_as = None if batch is None else batch.broken_as
        self._follow(self._in_flight.apply_outcomes(outcomes, self._environment.clock(), broken_as), batch)

    # -- without the watcher

    def lose_batch(self, batch: Batch, why: str, now: float) -> None:
        """Give LOST to the emissions of a batch that have no outcome."""
        start, stop = batch.emitted.start, batch.emitted.stop
        self._follow(self._in_flight.lose(start, stop, why, now, batch.broken_as), batch)

    def lose_silent(self, start: int, stop: int, now: float) -> None:
        """Give LOST to the emissions ``start <= number < stop`` that have no outcome after the end of their batch. If
        the input knows that a record does not exist, the record counts as done instead."""
        # Read tasks may find fewer records than planned. Servers report the missing records only for held batches.
        records, roots = self._in_flight.tracker.pending_among(start, stop)
        is_missing = ~np.array(self._lookup.are_there(records), np.bool_)
        if is_missing.any():
            self._end_absent(roots[is_missing])
        self._follow(self._in_flight.lose(start, stop, "no server has reported an outcome", now), None)

    def isolate_records(self, batch: Batch, why: str, now: float, *, is_last: bool) -> None:
        """Schedule retries in smaller pieces for the records of a batch that failed as a whole. Give up records that
        have spent their retries. ``is_last``: the run ends, so no retry is announced."""
        broken = Failures.merged(batch.broken, why)
        spent = self._isolate(batch, broken, now) if self._options.guarantee.retries else broken
        retried = broken.without(spent.records)
        if len(retried) and not is_last:
            self._listeners.report_retried(retried, is_counted=batch.records == 1)
        self._give_up(spent)

    def _isolate(self, batch: Batch, broken: Failures, now: float) -> Failures:
        is_alone = batch.records == 1
        if not batch.has_timed_out:
            return self._in_flight.isolate(broken, batch.depth, now, is_alone=is_alone)
        # The cause is probably a record that no task has reported as read, because tasks report at their end. A second
        # try of the whole batch would take as long as the first.
        unread = Failures.merged([part.because(Cause.UNREAD) for part in batch.broken], "").records
        return self._in_flight.isolate(broken, max(1, batch.depth), now, is_alone=is_alone, suspects=unread)

    def write_letters(self) -> None:
        """Write the letters of records that have spent their retries, unless what this needs is away."""
        spent = self._dead_lettering.write_queued() if self._dead_lettering.has_queued else None
        if not spent:
            return
        self._fail_upstream(spent)
        self._listeners.report_dead(spent)
        self._lookup.parts.count_dead(spent.records)
        self._in_flight.finish_dead(spent.records)

    # -- effects of outcomes

    def _follow(self, effects: Effects, batch: Batch | None) -> None:
        acked = effects.acked
        with self._listeners.reported(acked):
            self._ack_upstream(acked)
            if self._listeners.hears_acks and len(acked):
                self._listeners.report_acked(acked, effects.acked_roots)
        if not len(effects.failures):
            return
        self._dead_lettering.log_tracebacks(effects.failures.reasons)
        self._listeners.report_failed(effects.failures)
        if batch is not None and len(effects.broken):
            batch.broken.append(effects.broken)
        if len(retried := effects.retried):
            self._listeners.report_retried(retried)
        self._give_up(effects.spent)

    def _end_absent(self, roots: Column) -> None:
        """Count as done the records that do not exist or are untracked. ``roots``: their emissions, for which no read
        task has sent an init."""
        absent = self._in_flight.end_absent(roots)
        log.debug("%d records do not exist or are untracked", len(absent.records))
        with self._listeners.reported(absent.records):
            self._ack_upstream(absent.records)
            self._listeners.report_absent(absent.records, absent.roots)

    def _give_up(self, spent: Failures) -> None:
        """Queue records without retries left for the dead letters; count them as done in a source without retries."""
        if len(spent) and not self._options.guarantee.retries:
            self._fail_upstream(spent)
            self._listeners.report_dropped(spent)
            self._in_flight.let_go(spent.records)
            records = counted(len(spent), "record")
            log.warning("%s not acked, and not tried again: %s", records, shorten(spent.reason(0)))
        elif len(spent):
            self._dead_lettering.queue(spent)

    def _ack_upstream(self, records: RecordNumbers) -> None:
        """Ack the anchors that came with the done ``records``, at the servers of the job that handed the anchors on."""
        if self._upstream is not None and len(records):
            taken_up = self._lookup.taken_up(np.sort(records))
            self._upstream.ack_anchors(each for handed in taken_up for each in handed)

    def _fail_upstream(self, spent: Failures) -> None:
        """Fail the anchors that came with records that were given up. The job that handed them on may retry."""
        if self._upstream is None or not len(spent):
            return
        taken_up = self._lookup.taken_up(spent.records)
        reasons = (f"{self._options.name}: {spent.reason(k)}" for k in range(len(spent)))
        self._upstream.fail_anchors(
            (each, why) for handed, why in zip(taken_up, reasons, strict=True) for each in handed
        )
