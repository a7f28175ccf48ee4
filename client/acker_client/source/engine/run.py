"""Run: one session of a source, from opening it to closing it.

Decides the order of everything that touches the outside: due replays before new records, room before a plan, outcomes
drained before a checkpoint, dead letters on disk before a record counts as done, LOST at once for what a server forgot.
What an outcome means for a record is `in_flight`'s to decide.
"""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self

import numpy as np

from acker_client.clean_up import CleanUp
from acker_client.client import AckerClient
from acker_client.cluster.scope import BatchScope
from acker_client.cluster.watched import WatchResult
from acker_client.error_text import gist
from acker_client.source.engine.batch import Batch
from acker_client.source.engine.checkpointing import Checkpointing
from acker_client.source.engine.dead_lettering import DeadLettering
from acker_client.source.engine.environment import BatchFrame, Blame, Environment, FramePlan
from acker_client.source.engine.options import UNLIMITED, Options
from acker_client.source.engine.server_batches import ServerBatches
from acker_client.source.engine.upstream import UpstreamTrees
from acker_client.source.errors import Broken, SourceError
from acker_client.source.records.guarantee import Guarantee
from acker_client.source.records.in_flight import Effects, Failures, InFlight, excusing
from acker_client.source.records.input import Closing, Input, PausableInput, SharedInput, TakingUpInput
from acker_client.source.records.listener import Emissions, Listener
from acker_client.source.records.parts import Lookup, Parts
from acker_client.source.records.retry import PIECES, ReplayGroup, Retry
from acker_client.source.records.summary import Summary
from acker_client.source.records.tracker import NO_RECORDS, EmissionRange, RecordNumbers
from acker_protocol.ids import Column
from acker_protocol.messages import NO_IDS, Settlement

log = logging.getLogger("acker_client.source")

# So many batches of more than one record may break in a row, with none getting through, before the run stops.
BROKEN_MAX = 64
# How long one look for outcomes waits at the most.
LOOK_S = 1.0
# No replay is due.
NO_REPLAYS = ReplayGroup(0.0, -1, NO_RECORDS)
# What does not belong into the name of a file.
_UNSAFE = re.compile(r"[^A-Za-z0-9_.]")
# Of a source that tries nothing again.
NEVER = Retry(max_retries=0, max_interruptions=0)


class Run:
    """One session; a context manager. Use it from one thread."""

    def __init__(
        self,
        options: Options,
        source: Input[Any],
        schema: Any,
        spark: Any,
        environment: Environment,
        *,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self.options = options
        self._is_stopping = is_stopping
        self._input = source
        self._schema = schema
        self._spark = spark
        self._environment = environment
        self._check_input()
        retry = options.retry if options.guarantee.retries else NEVER
        self._in_flight = InFlight(environment.draw_base(), retry, environment.draw)
        self._checkpointing = Checkpointing(options, source)
        self._use(Parts({}))
        self._hears_acks = getattr(options.listener.on_ack, "__func__", None) is not Listener.on_ack
        self._started_s = environment.clock()
        self._ended_s: float | None = None
        # Batches of which all has been heard.
        self._settled: set[int] = set()
        # Batches that are not held and were settled: what is pending of them goes on, until so late; number,
        # and emissions from and up to. Not the batches themselves, which have their frames.
        self._going_on: deque[tuple[float, int, int, int]] = deque()
        self._upstream: UpstreamTrees | None = None
        self._number = 0
        # Of the batch that is open, as long as *done* was not asked for: what takes its output back.
        self._undo: list[Callable[[], object]] = []
        self._frame: BatchFrame | None = None
        self._broken_in_a_row = 0
        # Records that have spent their retries, and have no letter yet.
        self._spent: list[Failures] = []
        self._is_read = False
        # The partitions that a group has assigned.
        self._owned: set[str] = set()
        self._is_leaving = False
        self._was_without_evidence = False

    # -- from opening to closing

    def __enter__(self) -> Self:
        with CleanUp() as undo:
            undo.add(self._close_input)
            self._open_input()
            self._client: AckerClient = self._environment.connect(self._spark)
            undo.add(self._client.close)
            self._session = self._client.open_source(self.options.name, lease_s=self.options.lease_s)
            undo.add(self._client.close_source)
            self._server_batches = ServerBatches(self._client, self._environment, self.options.deadline_s)
            if isinstance(self._input, TakingUpInput) and self._input.acks_upstream:
                self._upstream = UpstreamTrees(self._environment.connect(self._spark), self._environment.clock)
                undo.add(self._upstream.close)
            self._watching = self._environment.watch(self._client)
            undo.add(self._watching.stop)
            self._tasks = self.options.partitions or self._environment.parallelism(self._spark)
            self._checkpointing.sign(self._session)
            self._join_group(undo)
            # Before the group is left: who has the partitions next goes on from there.
            undo.add(self._commit)
            undo.add(self._release_frame)
            self._exits = undo.pop_all()
        log.info("source %r: session %d, %s", self.options.name, self._session, self._input.describe(self._parts.done))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        at: TracebackType | None = None,
    ) -> None:
        try:
            self._exits.__exit__(kind, error, at)
        finally:
            self._ended_s = self._environment.clock()
            log.info("%s", self.summary())

    def summary(self) -> Summary:
        """What this run has done so far."""
        elapsed_s = (self._environment.clock() if self._ended_s is None else self._ended_s) - self._started_s
        # Another thread may ask, while partitions come and go.
        holes = [done.holes for done in list(self._parts.done.values())]
        return Summary.of(
            self.options.name,
            self._in_flight.counts,
            elapsed_s=elapsed_s,
            checkpoint=self._input.describe(self._parts.done),
            holes=sum(holes),
            holes_of_fullest=max(holes, default=0),
        )

    def _use(self, parts: Parts[Any]) -> None:
        self._parts = parts
        self._lookup = Lookup(self._input, parts)
        self._dead_lettering = DeadLettering(self.options, self._lookup, self._in_flight)

    def _open_input(self) -> None:
        committed = self._checkpointing.open()
        done = {partition: each.done for partition, each in committed.items()}
        self._use(Parts(done, {partition: each.answered for partition, each in committed.items()}))
        self._dead_lettering.open()
        self._input.start(committed)

    def _close_input(self) -> None:
        if isinstance(self._input, Closing):
            self._input.close()
        self._dead_lettering.close()
        self._checkpointing.close()

    def _check_input(self) -> None:
        kind, limit = self._input.kind, self.options.max_uncommitted_per_partition
        if self.options.group is not None and not isinstance(self._input, SharedInput):
            raise SourceError(
                f"group with an input of {kind}: its partitions cannot be shared out among sources; leave group out"
            )
        if limit is not None and not isinstance(self._input, PausableInput):
            raise SourceError(
                f"max_uncommitted_per_partition={limit} with an input of {kind}: it cannot leave one partition alone"
                " and read others; give max_uncommitted"
            )

    # -- what comes next

    def next_batch(self) -> Batch | None:
        """The next batch, opened and ready to be worked on; None when every record has its answer, or the run was
        asked to stop.

        Due replays come before new records, which fill the batch up unless the replays have to be alone: a batch of a
        few replays costs Spark as much as a full one. Waits for the next replay when there is nothing else to do.
        """
        while not self._is_stopping():
            self._look(0.0)
            now = self._environment.clock()
            if self._going_on:
                # What ends now is of no batch that is still to be settled.
                self._fold()
            self._end_silent(now)
            # Before the partitions of these records may go to another source.
            self._write_letters()
            self._take_handover()
            if self._checkpointing.is_due(now):
                self._commit()
            replays = self._in_flight.take(now, self.options.batch_records) or NO_REPLAYS
            new = NO_RECORDS if replays.depth else self._plan(self.options.batch_records - len(replays.records))
            if len(replays.records) or len(new):
                return self._open_batch(replays, new)
            if self._in_flight.is_over and self._is_read:
                break
            self._wait(now)
        self._write_letters()
        return None

    def _plan(self, records_max: int) -> RecordNumbers:
        """New records, as many as may be uncommitted; none: there is no room for them, or none is left."""
        room = min(records_max, self.options.open_max - self._in_flight.tracker.open_records)
        records = NO_RECORDS
        while room > 0 and not len(records) and not self._is_read and self._leave_full_alone():
            plan = self._input.plan(room, self._tasks)
            if plan.revoked:
                self._commit()
                self._drop(plan.revoked)
            records = self._parts.add(plan.parts)
            self._is_read = plan.is_end
            if not self.options.guarantee.retries:
                records = self._count_as_done(plan.parts, records)
            if not plan.parts:
                break
        if len(records):
            self._dead_lettering.note_first_emission(int(records[0]), self._environment.wall())
        return records

    def _count_as_done(self, parts: Sequence[Any], records: RecordNumbers) -> RecordNumbers:
        """What was planned counts as done, whatever becomes of it; at most once, before it is emitted. Returns which
        of ``records`` may be emitted: those that are still this source's."""
        self._checkpointing.note(part.partition for part in parts)
        if self.options.guarantee is Guarantee.AT_MOST_ONCE:
            fenced = self._commit()
            records = records[~np.isin(records, self._parts.numbers_of(fenced))]
        return records

    def _leave_full_alone(self) -> bool:
        """See to it that nothing new is planned of partitions that have too many open records, or more holes than can
        be written down; whether anything may be planned at all.

        What was not emitted yet may close holes of an earlier run, so it is not held up by those alone.
        """
        limit = self.options.max_uncommitted_per_partition
        holes_max, full = self._checkpointing.holes_max, set[str]()
        if limit is not None or self._parts.most_holes >= holes_max:
            full = self._parts.full(self._in_flight.tracker.open_between, limit or UNLIMITED, holes_max)
        if isinstance(self._input, PausableInput):
            self._input.pause(full)
            return True
        return not full

    # -- whose partitions are whose

    def _join_group(self, undo: CleanUp) -> None:
        group = self.options.group
        if group is not None and isinstance(self._input, SharedInput):
            self._input.assign({})
            group.open(self.options.name, self._input.partitions)
            undo.add(group.close)

    def _take_handover(self) -> None:
        """Do as the group says, between two batches: what is revoked is written down, and then released."""
        group = self.options.group
        if group is None:
            return
        handover = group.poll()
        if handover.lost:
            # Not even the input hears any more of what is done of these.
            self._parts.finish(self._in_flight.take_finished())
            self._drop(handover.lost)
        if handover.revoked:
            self._commit()
            self._drop(handover.revoked)
            group.release(handover.revoked)
        if handover.assigned:
            self._assign(handover.assigned)

    def _assign(self, partitions: Sequence[str]) -> None:
        """Begin with partitions where the checkpoint says, whatever this run knows of them from before."""
        self._drop(partitions)
        committed = self._checkpointing.assign(partitions)
        answered = {partition: each.answered for partition, each in committed.items()}
        self._parts.assign({partition: each.done for partition, each in committed.items()}, answered)
        assert isinstance(self._input, SharedInput)
        self._input.assign(committed)
        self._owned.update(partitions)
        self._is_read = False
        log.info("assigned: %s", ", ".join(partitions))

    def _drop(self, partitions: Sequence[str]) -> None:
        """Partitions are another source's, with all that is open of them."""
        if self.options.group is not None:
            # What a commit has shown to be lost the group says again.
            partitions = [partition for partition in partitions if partition in self._owned]
            self._owned.difference_update(partitions)
        for partition in partitions:
            numbers = self._parts.numbers_of([partition])
            self._spent = [left for spent in self._spent if len(left := spent.without(numbers))]
            records = self._in_flight.revoke(numbers)
            roots = np.zeros(len(records), NO_IDS.dtype)
            self.options.listener.on_revoke(partition, Emissions(records, roots, self._lookup))
            self._parts.revoke(partition)
            self._checkpointing.drop(partition)
            log.info("partition %s went to another source: %d open records are that one's now", partition, len(records))
        if partitions and self.options.group is not None and isinstance(self._input, SharedInput):
            self._input.revoke(partitions)

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
        held, timeout_s = self.options.held, self.options.message_timeout_s
        pin = self._server_batches.reserve(scope, len(records), held=held, message_timeout_s=timeout_s)
        emitted = self._in_flight.emit(records, replays=replays)
        with CleanUp() as failed:
            failed.add(partial(self._server_batches.settle_once, self._number, Settlement.ABANDON))
            plan = FramePlan(self.options.name, scope, pin, self._schema, slices, held)
            frame = self._frame = self._environment.frame(self._spark, plan)
            self._announce(emitted, replays)
            failed.pop_all()
        log.debug("batch %d: %d records, %d of them again", self._number, len(emitted), replays)
        name = _UNSAFE.sub("_", self.options.name)
        id_ = f"{name}-{self._session:016x}-{self._number}"
        self._undo = []
        undo = self._undo if held else None
        return Batch(self._number, id_, len(emitted), replays, frame, emitted, group.depth, undo=undo)

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
        # Only now, as the good records of the batch have their outcomes: they count as read, and as done.
        self._write_letters()
        self._commit_if_due()
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
        if batch.error is None:
            # Once *done* is asked for, a record may be ACKED, so the output stays. Another list, as a thread of the
            # user's may still add a step to the batch's own.
            self._undo = []
        batch.unfinished_because = record.unfinished_because
        # Before it is settled: from then on what a server says of it counts.
        self._server_batches.leave_out(batch.number, record.without)
        self._in_flight.counts.short_of_replicas += bool(record.without)

    def _refuse_hopeless(self, batch: Batch, error: BaseException) -> None:
        """Stop where the program is at fault: its records are not, and trying again costs them their retries."""
        blame = self._environment.blame(error)
        is_hopeless = (
            blame is Blame.CODE
            or (blame is Blame.MISTAKE and not batch.frame.evidence.has_run)
            or (blame is Blame.EVIDENCE and self._was_without_evidence)
        )
        self._was_without_evidence = blame is Blame.EVIDENCE
        if is_hopeless:
            self._is_leaving = True
            self._finish(batch, self._server_batches.settle_once(batch.number, Settlement.ABANDON))
            raise error

    def _finish(self, batch: Batch, is_settled: bool) -> None:
        """See to it that every root of the batch has exactly one outcome here, and act on those of a broken batch."""
        if is_settled:
            self._drain(batch)
        # Also where a server was lost meanwhile: another may have it, and if none has, that was heard.
        if is_settled and batch.error is None and self._goes_on(batch):
            self._release_frame()
            return
        why = (
            "the servers did not settle the batch" if batch.error is None else f"the batch failed: {gist(batch.error)}"
        )
        start, stop, now = batch.emitted.start, batch.emitted.stop, self._environment.clock()
        self._act_on(batch, self._in_flight.lose(start, stop, why, now, is_broken=batch.is_broken))
        self._server_batches.forget(batch.number)
        self._settled.discard(batch.number)
        self._isolate(batch, Failures.merged(batch.broken, why), now)
        self._release_frame()

    def _release_frame(self) -> None:
        """Release what Spark keeps of the open batch, if there is one, and take back its output if it is abandoned."""
        frame, self._frame = self._frame, None
        undo, self._undo = self._undo, []
        # Without retries nothing would write the output again, and what is another batch's, too, may be ACKED there.
        if not self.options.guarantee.retries or (frame is not None and frame.evidence.is_shared):
            undo = []
        with CleanUp() as steps:
            for step in reversed(undo):
                steps.add(partial(_take_back, step))
            if frame is not None:
                # Runs first, as it ends what may still be writing.
                steps.add(frame.evidence.release)

    def _goes_on(self, batch: Batch) -> bool:
        """Whether roots of a batch that was settled as *done* may be pending still: it is not held."""
        timeout_s = self.options.message_timeout_s
        if timeout_s is None:
            return False
        # What a server has initialised it ends by then; of what it is silent about nothing is known.
        until_s = self._environment.clock() + timeout_s + self.options.deadline_s
        self._going_on.append((until_s, batch.number, batch.emitted.start, batch.emitted.stop))
        self._settled.discard(batch.number)
        return True

    def _end_silent(self, now: float) -> None:
        """The last resort for roots that went on after their batch: those of which nothing was heard are LOST."""
        while self._going_on and self._going_on[0][0] <= now:
            _, number, start, stop = self._going_on.popleft()
            # Only of a held batch do servers say what was read, and not there.
            records, roots = self._in_flight.tracker.pending_among(start, stop)
            is_missing = ~np.array(self._lookup.are_there(records), np.bool_)
            if is_missing.any():
                self._end_absent(roots[is_missing])
            why = "no server has said what became of it"
            self._act_on(None, self._in_flight.lose(start, stop, why, now))
            self._server_batches.forget(number)

    def _isolate(self, batch: Batch, broken: Failures, now: float) -> None:
        """Replay the records of a batch that broke as a whole in smaller pieces; dead letters of what is spent."""
        spent = self._in_flight.isolate(broken, batch.depth, now) if self.options.guarantee.retries else broken
        retried = broken.without(spent.records)
        if len(retried) and not self._is_leaving:
            self.options.listener.on_retry(self._emissions_of(retried))
        self._give_up(spent)

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
        self._environment.check()
        if self._upstream is not None:
            self._upstream.send()
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
        self._ack_upstream(absent.records)
        self.options.listener.on_absent(Emissions(absent.records, absent.roots, self._lookup))

    def _act_on(self, batch: Batch | None, effects: Effects) -> None:
        listener = self.options.listener
        self._ack_upstream(effects.acked)
        # Nearly everything is acked: a copy of it is made only for somebody who asked for it.
        if self._hears_acks and effects.is_acked.any():
            listener.on_ack(Emissions(effects.acked, effects.acked_roots, self._lookup))
        if not len(effects.failures):
            return
        self._dead_lettering.log_tracebacks(effects.failures.reasons)
        listener.on_fail(self._emissions_of(effects.failures), effects.failures)
        if batch is not None and len(effects.broken):
            batch.broken.append(effects.broken)
        if len(retried := effects.retried):
            listener.on_retry(self._emissions_of(retried))
        self._give_up(effects.spent)

    def _ack_upstream(self, records: RecordNumbers) -> None:
        """What came with ``records``, which are done, is acked where it came from: now, and not before."""
        if self._upstream is not None and len(records):
            taken_up = self._lookup.taken_up(np.sort(records))
            self._upstream.ack(each for handed in taken_up for each in handed)

    def _fail_upstream(self, spent: Failures) -> None:
        """What came with records that were given up fails where it came from, which may try it again."""
        if self._upstream is None or not len(spent):
            return
        taken_up = self._lookup.taken_up(spent.records)
        reasons = (f"{self.options.name}: {spent.reason(k)}" for k in range(len(spent)))
        self._upstream.fail((each, why) for handed, why in zip(taken_up, reasons, strict=True) for each in handed)

    def _give_up(self, spent: Failures) -> None:
        """Records that have spent their retries are to get letters; without retries they are done as they are."""
        if len(spent) and not self.options.guarantee.retries:
            self._in_flight.let_go(spent.records)
            self._fail_upstream(spent)
            records = "1 record" if len(spent) == 1 else f"{len(spent)} records"
            log.warning("%s not acked, and not tried again: %s", records, gist(spent.reason(0)))
        elif len(spent):
            self._spent.append(spent)

    def _write_letters(self) -> None:
        """Write the letters of all records that have spent their retries, unless the run is being left."""
        if not self._spent or self._is_leaving:
            return
        self._fold()
        spent, self._spent = Failures.joined(self._spent), []
        self._dead_lettering.write(spent, self._environment.wall())
        self._fail_upstream(spent)
        self.options.listener.on_dead_letter(self._emissions_of(spent), spent)

    def _emissions_of(self, failures: Failures) -> Emissions:
        return Emissions(failures.records, failures.roots, self._lookup)

    # -- what is done

    def _commit_if_due(self) -> None:
        """Move the checkpoint to what is done, unless it is too early for that."""
        self._fold()
        if self._checkpointing.is_due(self._environment.clock()):
            self._commit()

    def _commit(self) -> Sequence[str]:
        """Move the checkpoint to what is done. Returns the partitions that turned out to be another source's, and were
        dropped."""
        self._fold()
        fenced = self._checkpointing.save(self._parts, self._environment.clock())
        self._drop(fenced)
        return fenced

    def _fold(self) -> None:
        """Forget what is done."""
        self._parts.finish(self._in_flight.take_finished())
        done_below = self._in_flight.compact()
        self._parts.forget(done_below)
        self._dead_lettering.forget(done_below)
        changed = {partition: self._parts.done[partition] for partition in self._parts.take_changed()}
        for partition, done in changed.items():
            self._input.advance(partition, done)
        self._checkpointing.note(changed)
        self._checkpointing.warn_of_holes(changed)


def _take_back(step: Callable[[], object]) -> None:
    try:
        step()
    except Exception as error:  # noqa: BLE001  # what is left there is there twice, and nothing is missing
        log.warning("output of an abandoned batch could not be taken back: %s", gist(error))
