"""Run: one session of a source, from opening it to closing it.

Decides the order of everything that touches the outside: due replays before new records, room before a plan, outcomes
drained before a checkpoint, dead letters on disk before a record counts as done, LOST at once for what a server forgot.
What an outcome means for a record is ``flight``'s to decide.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from typing import Any, Self

import numpy as np

from acker_client.core.gist import gist
from acker_client.core.registration import WatchResult
from acker_client.plain.client import AckerClient
from acker_client.source.core.flight import Fallen, Flight, Landed, excusing
from acker_client.source.core.input import Input, Progress
from acker_client.source.core.listener import Seen
from acker_client.source.core.retry import PIECES, Group
from acker_client.source.core.summary import Summary
from acker_client.source.core.tracker import NO_RECORDS, Emitted, Records
from acker_client.source.errors import Broken, SourceError
from acker_client.source.run.batch import Batch
from acker_client.source.run.booking import Booking
from acker_client.source.run.burial import Burial
from acker_client.source.run.options import Options
from acker_client.source.run.rim import Blame, FramePlan, Rim
from acker_client.source.stores.checkpoint import Checkpoint
from acker_protocol.messages import Settlement, SettleReply

log = logging.getLogger("acker_client.source")

# So many batches of more than one record may break in a row, with none getting through, before the run stops.
BROKEN_MAX = 64
# How long one look for outcomes waits at the most.
LOOK_S = 1.0
# No replay is due.
NO_GROUP = Group(0.0, -1, NO_RECORDS)


class Run:
    """One session; a context manager. Use it from one thread."""

    def __init__(self, options: Options, source: Input, schema: Any, spark: Any, rim: Rim) -> None:
        self.options = options
        self._input = source
        self._schema = schema
        self._spark = spark
        self._rim = rim
        self._flight = Flight(rim.draw_base(), options.retry, rim.draw)
        self._burial = Burial(options, source, self._flight)
        self._checkpoint: Checkpoint | None = None
        if options.checkpoint is not None:
            self._checkpoint = Checkpoint(options.checkpoint, source=options.name, kind=source.kind)
        self._saved: Progress | None = None
        self._started_s = rim.clock()
        self._ended_s: float | None = None
        # Cursors count the outcomes of one generation.
        self._generation: int | None = None
        self._cursor = 0
        self._number = 0
        self._broken_in_a_row = 0
        self._is_read = False
        self._is_leaving = False
        self._was_without_evidence = False

    # -- from opening to closing

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            undo.callback(self._close_input)
            self._open_input()
            self._client: AckerClient = self._rim.connect(self._spark)
            undo.callback(self._client.close)
            self._session = self._client.open_source(self.options.name, lease_s=self.options.lease_s)
            undo.callback(self._client.close_source)
            self._generation = self._client.generation
            self._booking = Booking(self._client, self._rim, self.options.deadline_s)
            self._watching = self._rim.watch(self._client, self._booking.reopen)
            undo.callback(self._watching.stop)
            self._partitions = self.options.partitions or self._rim.parallelism(self._spark)
            self._exits = undo.pop_all()
        log.info("source %r: session %d, %s", self.options.name, self._session, self._input.describe())
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._commit()
        finally:
            self._exits.close()
            self._ended_s = self._rim.clock()
            log.info("%s", self.summary())

    def summary(self) -> Summary:
        """What this run has done so far."""
        elapsed_s = (self._rim.clock() if self._ended_s is None else self._ended_s) - self._started_s
        checkpoint = self._input.describe()
        return Summary.of(self.options.name, self._flight.counts, elapsed_s=elapsed_s, checkpoint=checkpoint)

    def _open_input(self) -> None:
        if self._checkpoint is not None:
            self._checkpoint.acquire()
            self._saved = self._checkpoint.load()
        self._burial.open()
        self._input.start(self._saved)

    def _close_input(self) -> None:
        self._burial.close()
        if self._checkpoint is not None:
            self._checkpoint.release()

    # -- what comes next

    def next_batch(self) -> Batch | None:
        """The next batch, opened and ready to be worked on; None when every record has its answer.

        Due replays come before new records, which fill the batch up unless the replays have to be alone: a batch of a
        few replays costs Spark as much as a full one. Waits for the next replay when there is nothing else to do.
        """
        while True:
            self._look(0.0)
            now = self._rim.clock()
            replays = self._flight.take(now, self.options.batch_records) or NO_GROUP
            new = NO_RECORDS if replays.depth else self._plan(self.options.batch_records - len(replays.records))
            if len(replays.records) or len(new):
                return self._open_batch(replays, new)
            if self._flight.is_over and self._is_read:
                return None
            self._wait(now)

    def _plan(self, records_max: int) -> Records:
        """New records, as many as may be uncommitted; none: there is no room for them, or none is left."""
        room = min(records_max, self.options.max_uncommitted - self._flight.tracker.open_records)
        if self._is_read or room < 1:
            return NO_RECORDS
        records = self._input.plan(room, self._partitions)
        self._is_read = not len(records)
        if not self._is_read:
            self._burial.note_first_emission(int(records[0]), self._rim.wall())
        return records

    def _wait(self, now: float) -> None:
        due_s = self._flight.schedule.next_due_s
        wait_s = LOOK_S if due_s is None else min(LOOK_S, max(0.0, due_s - now))
        if self._flight.tracker.pending:
            self._look(wait_s)
        else:
            self._rim.sleep(wait_s)

    def _open_batch(self, group: Group, new: Records) -> Batch:
        # What is new comes after all that was read before, so the whole is ascending.
        records, replays = np.concatenate((group.records, new)), len(group.records)
        slices = self._input.slices(records, self._partitions)
        self._number += 1
        first = self._flight.tracker.base + self._flight.tracker.emitted
        generation = self._booking.reserve(self._number, first, len(records))
        emitted = self._flight.emit(records, replays=replays)
        try:
            plan = FramePlan(self.options.name, self._session, self._number, first, self._schema, slices)
            frame = self._rim.frame(self._spark, plan)
            self._tell_emitted(emitted, replays)
        except BaseException:
            self._booking.settle_once(self._number, Settlement.ABANDON)
            raise
        log.debug("batch %d: %d records, %d of them again", self._number, len(emitted), replays)
        return Batch(self._number, len(emitted), replays, frame, emitted, generation, group.depth)

    def _tell_emitted(self, emitted: Emitted, replays: int) -> None:
        for part, is_replay in ((slice(0, replays), True), (slice(replays, None), False)):
            seen = Seen(emitted.records[part], emitted.roots[part], self._input)
            if len(seen):
                self.options.listener.on_emit(self._number, seen, is_replay)

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
        self._finish(batch, self._booking.settle(batch.number, settlement, lambda: self._look(0.0, batch)))
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
        self._finish(batch, self._booking.settle_once(batch.number, settlement))

    def _judge(self, batch: Batch, error: BaseException | None) -> None:
        record = batch.frame.evidence
        batch.error = error or batch.error or record.judge()
        batch.unfinished_because = record.unfinished_because

    def _refuse_hopeless(self, batch: Batch, error: BaseException) -> None:
        """Stop where the program is at fault: its records are not, and trying again costs them their retries."""
        blame = self._rim.blame(error)
        is_hopeless = blame is Blame.CODE or (blame is Blame.EVIDENCE and self._was_without_evidence)
        self._was_without_evidence = blame is Blame.EVIDENCE
        if is_hopeless:
            self._is_leaving = True
            self._finish(batch, self._booking.settle_once(batch.number, Settlement.ABANDON))
            raise error

    def _finish(self, batch: Batch, reply: SettleReply | None) -> None:
        """See to it that every root of the batch has exactly one outcome here, and act on those of a broken batch."""
        if reply is not None:
            self._drain(batch, reply.cursor)
            self._check_count(batch, reply)
        why = "the server lost the batch" if batch.error is None else f"the batch failed: {gist(batch.error)}"
        start, stop, now = batch.emitted.start, batch.emitted.stop, self._rim.clock()
        self._land(batch, self._flight.lose(start, stop, why, now, is_broken=batch.is_broken))
        self._bury(self._flight.isolate(Fallen.merged(batch.broken, why), batch.depth, now))
        batch.frame.evidence.release()

    def _drain(self, batch: Batch, cursor: int) -> None:
        """Take outcomes until the server's cursor is reached, or the source's deadline."""
        deadline_s = self._rim.clock() + self.options.deadline_s
        while not self._has_heard(batch, cursor) and not batch.is_lost and self._rim.clock() < deadline_s:
            self._look(LOOK_S, batch)

    def _has_heard(self, batch: Batch, cursor: int) -> bool:
        return self._generation == batch.generation and self._cursor >= cursor

    def _check_count(self, batch: Batch, reply: SettleReply) -> None:
        told = batch.records - self._flight.tracker.pending_between(batch.emitted.start, batch.emitted.stop)
        if not batch.is_lost and not told == reply.roots == batch.records:
            log.error(
                "batch %d has %d records, the server settled %d of them and told %d: the others are replayed",
                batch.number,
                batch.records,
                reply.roots,
                told,
            )

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
            self._rim.sleep(self.options.retry.delay_s(self._broken_in_a_row - PIECES, self._rim.draw))

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
        self._generation, self._cursor = watched.generation, watched.cursor
        now = self._rim.clock()
        if watched.generation_changed:
            self._lose(watched.generation, batch, now)
        if len(watched.outcomes):
            is_broken = batch is not None and batch.is_broken
            outcomes = watched.outcomes
            if batch is not None and batch.unfinished_because:
                outcomes = excusing(outcomes, batch.unfinished_because)
            self._land(batch, self._flight.apply(outcomes, now, is_broken=is_broken))

    def _lose(self, generation: int | None, batch: Batch | None, now: float) -> None:
        """All that is pending is LOST, but for a batch that was opened after the loss, before it was heard of."""
        stop = self._flight.tracker.emitted
        if batch is not None and batch.generation == generation:
            stop = batch.emitted.start
        elif batch is not None:
            batch.is_lost = True
        landed = self._flight.lose(0, stop, "the server lost its state", now)
        log.warning("the server has lost its state: %d pending roots are LOST", len(landed.fallen))
        self._land(batch, landed)

    def _land(self, batch: Batch | None, landed: Landed) -> None:
        listener = self.options.listener
        if len(landed.acked):
            listener.on_ack(Seen(landed.acked, landed.acked_roots, self._input))
        if not len(landed.fallen):
            return
        self._burial.tell(landed.fallen.reasons)
        listener.on_fail(self._seen(landed.fallen), landed.fallen)
        if batch is not None and len(landed.broken):
            batch.broken.append(landed.broken)
        if len(retried := landed.retried):
            listener.on_retry(self._seen(retried))
        self._bury(landed.spent)

    def _bury(self, spent: Fallen) -> None:
        if len(spent) and not self._is_leaving:
            self._burial.bury(spent, self._rim.wall())
            self.options.listener.on_dead_letter(self._seen(spent), spent)

    def _seen(self, fallen: Fallen) -> Seen:
        return Seen(fallen.records, fallen.roots, self._input)

    # -- what is done

    def _commit(self) -> None:
        """Forget what is done, and move the checkpoint there."""
        done_below = self._flight.compact()
        self._input.advance(done_below)
        self._burial.forget(done_below)
        if self._checkpoint is None:
            return
        progress = self._input.progress()
        if progress != self._saved:
            self._checkpoint.save(progress)
            self._saved = progress
