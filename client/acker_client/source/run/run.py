"""Run: one session of a source, from opening it to closing it.

Decides the order of everything that touches the outside: due replays before new records, room before a plan, outcomes
drained before a checkpoint, dead letters on disk before a record counts as done, LOST at once for what a server forgot.
What an outcome means for a record is `in_flight`'s to decide.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from typing import Any, Self

import numpy as np

from acker_client.core.gist import gist
from acker_client.core.scope import BatchScope
from acker_client.core.watched import WatchResult
from acker_client.plain.client import AckerClient
from acker_client.source.core.in_flight import Effects, Failures, InFlight, excusing
from acker_client.source.core.input import Closing, Committed, Input
from acker_client.source.core.listener import Emissions
from acker_client.source.core.parts import Lookup, Parts
from acker_client.source.core.ranges import Ranges
from acker_client.source.core.retry import PIECES, ReplayGroup
from acker_client.source.core.summary import Summary
from acker_client.source.core.tracker import NO_RECORDS, EmissionRange, RecordNumbers
from acker_client.source.errors import Broken, SourceError
from acker_client.source.run.batch import Batch
from acker_client.source.run.dead_lettering import DeadLettering
from acker_client.source.run.environment import Blame, Environment, FramePlan
from acker_client.source.run.options import Options, checkpoint_store
from acker_client.source.run.server_batches import ServerBatches
from acker_protocol.ids import Column
from acker_protocol.messages import NO_IDS, Settlement

log = logging.getLogger("acker_client.source")

# So many batches of more than one record may break in a row, with none getting through, before the run stops.
BROKEN_MAX = 64
# So many holes are written down at most; from then on nothing new is read until what is open is done.
HOLES_MAX = 100_000
# How long one look for outcomes waits at the most.
LOOK_S = 1.0
# No replay is due.
NO_REPLAYS = ReplayGroup(0.0, -1, NO_RECORDS)


class Run:
    """One session; a context manager. Use it from one thread."""

    def __init__(self, options: Options, source: Input[Any], schema: Any, spark: Any, environment: Environment) -> None:
        self.options = options
        self._input = source
        self._schema = schema
        self._spark = spark
        self._environment = environment
        self._in_flight = InFlight(environment.draw_base(), options.retry, environment.draw)
        self._checkpoint = checkpoint_store(options)
        self._committed: dict[str, Committed] = {}
        self._use(Parts({}))
        self._started_s = environment.clock()
        self._ended_s: float | None = None
        # Batches of which all has been heard.
        self._settled: set[int] = set()
        self._number = 0
        self._broken_in_a_row = 0
        self._is_read = False
        self._is_full_of_holes = False
        self._is_leaving = False
        self._was_without_evidence = False

    # -- from opening to closing

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            undo.callback(self._close_input)
            self._open_input()
            self._client: AckerClient = self._environment.connect(self._spark)
            undo.callback(self._client.close)
            self._session = self._client.open_source(self.options.name, lease_s=self.options.lease_s)
            undo.callback(self._client.close_source)
            self._server_batches = ServerBatches(self._client, self._environment, self.options.deadline_s)
            self._watching = self._environment.watch(self._client)
            undo.callback(self._watching.stop)
            self._tasks = self.options.partitions or self._environment.parallelism(self._spark)
            self._exits = undo.pop_all()
        log.info("source %r: session %d, %s", self.options.name, self._session, self._input.describe(self._parts.done))
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._commit()
        finally:
            self._exits.close()
            self._ended_s = self._environment.clock()
            log.info("%s", self.summary())

    def summary(self) -> Summary:
        """What this run has done so far."""
        elapsed_s = (self._environment.clock() if self._ended_s is None else self._ended_s) - self._started_s
        checkpoint, holes = self._input.describe(self._parts.done), self._parts.holes
        return Summary.of(
            self.options.name, self._in_flight.counts, elapsed_s=elapsed_s, checkpoint=checkpoint, holes=holes
        )

    def _use(self, parts: Parts[Any]) -> None:
        self._parts = parts
        self._lookup = Lookup(self._input, parts)
        self._dead_lettering = DeadLettering(self.options, self._lookup, self._in_flight)

    def _open_input(self) -> None:
        if self._checkpoint is not None:
            self._checkpoint.open(self.options.name, self._input.kind)
            self._committed = self._checkpoint.load()
        self._use(Parts({partition: each.done for partition, each in self._committed.items()}))
        self._dead_lettering.open()
        self._input.start(self._committed)

    def _close_input(self) -> None:
        if isinstance(self._input, Closing):
            self._input.close()
        self._dead_lettering.close()
        if self._checkpoint is not None:
            self._checkpoint.close()

    # -- what comes next

    def next_batch(self) -> Batch | None:
        """The next batch, opened and ready to be worked on; None when every record has its answer.

        Due replays come before new records, which fill the batch up unless the replays have to be alone: a batch of a
        few replays costs Spark as much as a full one. Waits for the next replay when there is nothing else to do.
        """
        while True:
            self._look(0.0)
            now = self._environment.clock()
            replays = self._in_flight.take(now, self.options.batch_records) or NO_REPLAYS
            new = NO_RECORDS if replays.depth else self._plan(self.options.batch_records - len(replays.records))
            if len(replays.records) or len(new):
                return self._open_batch(replays, new)
            if self._in_flight.is_over and self._is_read:
                return None
            self._wait(now)

    def _plan(self, records_max: int) -> RecordNumbers:
        """New records, as many as may be uncommitted; none: there is no room for them, or none is left."""
        room = min(records_max, self.options.open_max - self._in_flight.tracker.open_records)
        records = NO_RECORDS
        while room > 0 and not len(records) and not self._is_read and not self._has_too_many_holes():
            plan = self._input.plan(room, self._tasks)
            for partition in plan.revoked:
                self._revoke(partition)
            records = self._parts.add(plan.parts)
            self._is_read = plan.is_end
            if not plan.parts:
                break
        if len(records):
            self._dead_lettering.note_first_emission(int(records[0]), self._environment.wall())
        return records

    def _has_too_many_holes(self) -> bool:
        """Whether reading on has to wait, as what is done could not be written down. What was not emitted yet may
        close holes of an earlier run, so it is not held up by those alone."""
        return self._parts.holes >= HOLES_MAX and self._in_flight.tracker.open_records > 0

    def _revoke(self, partition: str) -> None:
        """Write down what is done of a partition, then drop the rest of it."""
        self._commit()
        records = self._in_flight.revoke(self._parts.numbers_of(partition))
        roots = np.zeros(len(records), NO_IDS.dtype)
        self.options.listener.on_revoke(partition, Emissions(records, roots, self._lookup))
        self._parts.revoke(partition)
        log.info("partition %s went to another source: %d open records are that one's now", partition, len(records))

    def _wait(self, now: float) -> None:
        due_s = self._in_flight.schedule.next_due_s
        wait_s = LOOK_S if due_s is None else min(LOOK_S, max(0.0, due_s - now))
        if self._in_flight.tracker.pending:
            self._look(wait_s)
        else:
            self._environment.sleep(wait_s)

    def _open_batch(self, group: ReplayGroup, new: RecordNumbers) -> Batch:
        # What is new comes after all that was read before, so the whole is ascending.
        records, replays = np.concatenate((group.records, new)), len(group.records)
        slices = self._input.slices(self._parts.chosen(records), self._tasks)
        self._number += 1
        first = self._in_flight.tracker.base + self._in_flight.tracker.emitted
        scope = BatchScope(self._session, self._number, first)
        pin = self._server_batches.reserve(scope, len(records))
        emitted = self._in_flight.emit(records, replays=replays)
        try:
            plan = FramePlan(self.options.name, scope, pin, self._schema, slices)
            frame = self._environment.frame(self._spark, plan)
            self._announce(emitted, replays)
        except BaseException:
            self._server_batches.settle_once(self._number, Settlement.ABANDON)
            raise
        log.debug("batch %d: %d records, %d of them again", self._number, len(emitted), replays)
        return Batch(self._number, len(emitted), replays, frame, emitted, group.depth)

    def _announce(self, emitted: EmissionRange, replays: int) -> None:
        for part, is_replay in ((slice(0, replays), True), (slice(replays, None), False)):
            emissions = Emissions(emitted.records[part], emitted.roots[part], self._lookup)
            if len(emissions):
                self.options.listener.on_emit(self._number, emissions, is_replay)

    # -- the end of a batch

    def settle(self, batch: Batch, error: BaseException | None = None) -> None:
        """End a batch: *done*, or *abandon* when ``error``, a sink of it or the want of evidence says that its work
        failed. Raises what failed when that is the program's own fault, which no other try would mend."""
        self._look(0.0, batch)
        self._judge(batch, error)
        settlement = Settlement.DONE
        if batch.error is not None:
            settlement = Settlement.ABANDON
            log.warning("batch %d of %d records failed: %s", batch.number, batch.records, gist(batch.error))
            self._refuse_hopeless(batch, batch.error)
        else:
            self._was_without_evidence = False
        self._finish(batch, self._server_batches.settle(batch.number, settlement, lambda: self._look(0.0, batch)))
        self._commit()
        self._check_breaking(batch)

    def leave(self, batch: Batch) -> None:
        """End a batch whose loop was left: it is abandoned, unless the user has said that it is done, and it is.

        Nothing is held against its records, as nobody knows why the loop was left: what is not acked stays open.
        """
        self._is_leaving = True
        error = None if batch.is_done else SourceError("the loop over the batches was left before batch.done()")
        self._judge(batch, error)
        settlement = Settlement.DONE if batch.error is None else Settlement.ABANDON
        self._finish(batch, self._server_batches.settle_once(batch.number, settlement))

    def _judge(self, batch: Batch, error: BaseException | None) -> None:
        record = batch.frame.evidence
        batch.error = error or batch.error or record.judge()
        batch.unfinished_because = record.unfinished_because
        # Before it is settled: from then on what a server says of it counts.
        self._server_batches.leave_out(batch.number, record.without)
        self._in_flight.counts.short_of_replicas += bool(record.without)

    def _refuse_hopeless(self, batch: Batch, error: BaseException) -> None:
        """Stop where the program is at fault: its records are not, and trying again costs them their retries."""
        blame = self._environment.blame(error)
        is_hopeless = blame is Blame.CODE or (blame is Blame.EVIDENCE and self._was_without_evidence)
        self._was_without_evidence = blame is Blame.EVIDENCE
        if is_hopeless:
            self._is_leaving = True
            self._finish(batch, self._server_batches.settle_once(batch.number, Settlement.ABANDON))
            raise error

    def _finish(self, batch: Batch, is_settled: bool) -> None:
        """See to it that every root of the batch has exactly one outcome here, and act on those of a broken batch."""
        if is_settled:
            self._drain(batch)
        why = (
            "the servers did not settle the batch" if batch.error is None else f"the batch failed: {gist(batch.error)}"
        )
        start, stop, now = batch.emitted.start, batch.emitted.stop, self._environment.clock()
        self._act_on(batch, self._in_flight.lose(start, stop, why, now, is_broken=batch.is_broken))
        self._server_batches.forget(batch.number)
        self._settled.discard(batch.number)
        self._isolate(batch, Failures.merged(batch.broken, why), now)
        batch.frame.evidence.release()

    def _isolate(self, batch: Batch, broken: Failures, now: float) -> None:
        """Replay the records of a batch that broke as a whole in smaller pieces; dead letters of what is spent."""
        spent = self._in_flight.isolate(broken, batch.depth, now)
        retried = broken.without(spent.records)
        if len(retried) and not self._is_leaving:
            self.options.listener.on_retry(self._emissions_of(retried))
        self._write_dead(spent)

    def _drain(self, batch: Batch) -> None:
        """Take outcomes until all of the batch has been heard, or the source's deadline."""
        deadline_s = self._environment.clock() + self.options.deadline_s
        while batch.number not in self._settled and self._environment.clock() < deadline_s:
            self._look(LOOK_S, batch)

    def _check_breaking(self, batch: Batch) -> None:
        """Slow down while batch after batch fails as a whole, and stop when that does not end."""
        if not batch.is_broken:
            self._broken_in_a_row = 0
            return
        # A record that breaks its batch alone is on its way to the dead letters; what those may be is limited, too.
        self._broken_in_a_row += batch.records > 1
        if self._broken_in_a_row >= BROKEN_MAX:
            last = gist(batch.error) if batch.error else ""
            raise Broken(
                f"{self._broken_in_a_row} batches in a row failed as a whole, the last with {last!r}: see to what they"
                " compute or write to, and start again; nothing is lost, what is not done is read again"
            ) from batch.error
        if self._broken_in_a_row > PIECES:
            self._environment.sleep(self.options.retry.delay_s(self._broken_in_a_row - PIECES, self._environment.draw))

    # -- outcomes

    def _look(self, wait_s: float, batch: Batch | None = None) -> bool:
        """Take what the watcher has brought, waiting up to ``wait_s`` for the first of it; whether ``batch`` is
        lost."""
        watched = self._watching.take(wait_s)
        while watched is not None:
            self._hear(watched, batch)
            watched = self._watching.take(0.0)
        return batch is not None and batch.is_lost

    def _hear(self, watched: WatchResult, batch: Batch | None) -> None:
        self._settled.update(watched.settled)
        if batch is not None and batch.number in watched.interrupted:
            batch.is_lost = True
        self._in_flight.counts.differed += watched.differed
        self._in_flight.counts.saved += watched.saved
        if len(watched.absent):
            self._end_absent(watched.absent)
        if len(watched.outcomes):
            is_broken = batch is not None and batch.is_broken
            outcomes = watched.outcomes
            if batch is not None and batch.unfinished_because:
                outcomes = excusing(outcomes, batch.unfinished_because)
            effects = self._in_flight.apply(outcomes, self._environment.clock(), is_broken=is_broken)
            self._act_on(batch, effects)

    def _end_absent(self, roots: Column) -> None:
        """What was covered by a read task and never initialised does not exist: it is done."""
        absent = self._in_flight.end_absent(roots)
        log.debug("%d records do not exist", len(absent.records))
        self.options.listener.on_absent(Emissions(absent.records, absent.roots, self._lookup))

    def _act_on(self, batch: Batch | None, effects: Effects) -> None:
        listener = self.options.listener
        if len(effects.acked):
            listener.on_ack(Emissions(effects.acked, effects.acked_roots, self._lookup))
        if not len(effects.failures):
            return
        self._dead_lettering.log_tracebacks(effects.failures.reasons)
        listener.on_fail(self._emissions_of(effects.failures), effects.failures)
        if batch is not None and len(effects.broken):
            batch.broken.append(effects.broken)
        if len(retried := effects.retried):
            listener.on_retry(self._emissions_of(retried))
        self._write_dead(effects.spent)

    def _write_dead(self, spent: Failures) -> None:
        if len(spent) and not self._is_leaving:
            self._dead_lettering.write(spent, self._environment.wall())
            self.options.listener.on_dead_letter(self._emissions_of(spent), spent)

    def _emissions_of(self, failures: Failures) -> Emissions:
        return Emissions(failures.records, failures.roots, self._lookup)

    # -- what is done

    def _commit(self) -> None:
        """Forget what is done, and move the checkpoint there."""
        self._parts.finish(self._in_flight.take_finished())
        done_below = self._in_flight.compact()
        self._parts.forget(done_below)
        self._dead_lettering.forget(done_below)
        changed = self._parts.take_changed()
        for partition in changed:
            self._input.advance(partition, self._parts.done[partition])
        self._check_holes()
        if self._checkpoint is None or not changed:
            return
        for partition, done in self._to_write(changed).items():
            self._committed[partition] = Committed(done, self._input.mark(partition, done))
        self._checkpoint.save(self._committed)

    def _check_holes(self) -> None:
        holes = self._parts.holes
        if holes < HOLES_MAX // 2 or self._is_full_of_holes:
            self._is_full_of_holes = holes >= HOLES_MAX // 2
            return
        self._is_full_of_holes = True
        log.warning(
            "%d stretches of open records lie before done ones, and a checkpoint holds %d: reading waits from there on",
            holes,
            HOLES_MAX,
        )

    def _to_write(self, changed: set[str]) -> dict[str, Ranges]:
        """What is done of partitions, cut to what a checkpoint may hold: a restart reads the rest again."""
        done = self._parts.done
        if self._parts.holes <= HOLES_MAX:
            return {partition: done[partition] for partition in sorted(changed)}
        with_holes = sum(ranges.holes > 0 for ranges in done.values())
        return {partition: ranges.first_holes(HOLES_MAX // with_holes) for partition, ranges in done.items()}
