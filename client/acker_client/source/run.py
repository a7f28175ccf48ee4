"""Run: one session of a source, from opening it to closing it.

Decides the order of everything that touches the outside: due replays before new records, room before a plan, outcomes
drained before a checkpoint, dead letters on disk before a record counts as done, LOST at once for what a server forgot.
What an outcome means for a record is ``flight``'s to decide.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from acker_client.client import AckerClient
from acker_client.errors import RETRYABLE, AckerError, Overloaded, Rejected, UnknownBatch
from acker_client.registration import Watched
from acker_client.source.checkpoint import Checkpoint, Progress
from acker_client.source.dead_letters import DeadLetter, DeadLetters
from acker_client.source.errors import Broken, SourceError, TooManyDeadLetters
from acker_client.source.flight import Fallen, Flight, Landed
from acker_client.source.input import Input
from acker_client.source.listener import Seen
from acker_client.source.options import Options
from acker_client.source.retry import PIECES, Group
from acker_client.source.rim import Frame, FramePlan, Rim
from acker_client.source.summary import Summary
from acker_client.source.tracker import Emitted
from acker_protocol.messages import Settlement, SettleReply

log = logging.getLogger("acker_client.source")

# So many batches of more than one record may break in a row, with nothing acked in between, before the run stops.
BROKEN_MAX = 64
# How long one look for outcomes waits at the most.
LOOK_S = 1.0
# Where the traceback begins in the reason of an operator's failure.
TRACEBACK = "\nTraceback (most recent call last)"


@dataclass(slots=True)
class Batch:
    """A batch as user code gets it. ``df``: its rows, with their anchors; ``records``: how many records it has."""

    number: int
    records: int
    is_replay: bool
    df: Any
    frame: Frame = field(repr=False)
    emitted: Emitted = field(repr=False)
    depth: int = field(repr=False, default=0)
    is_lost: bool = field(repr=False, default=False)
    broken: list[Fallen] = field(repr=False, default_factory=list)


class Run:
    """One session; a context manager. Use it from one thread."""

    def __init__(self, options: Options, source: Input, schema: Any, spark: Any, rim: Rim) -> None:
        self.options = options
        self._input = source
        self._schema = schema
        self._spark = spark
        self._rim = rim
        self._flight = Flight(rim.draw_base(), options.retry, rim.draw)
        self._checkpoint = (
            None
            if options.checkpoint is None
            else Checkpoint(options.checkpoint, source=options.name, kind=source.kind)
        )
        self._letters = None if options.dead_letters is None else DeadLetters(options.dead_letters)
        self._saved: Progress | None = None
        self._started_s = rim.clock()
        self._ended_s: float | None = None
        self._cursor = 0
        self._number = 0
        self._broken_in_a_row = 0
        self._is_read = False
        self._is_leaving = False
        self._first_emitted: list[tuple[int, float]] = []
        self._told: set[str] = set()
        self._open_lock = threading.Lock()
        self._open: tuple[int, int, int] | None = None

    # -- from opening to closing

    def __enter__(self) -> Run:
        self._begin_input()
        try:
            self._client: AckerClient = self._rim.connect(self._spark)
            self._session = self._client.open_source(self.options.name, lease_s=self.options.lease_s)
            self._watching = self._rim.watch(self._client, self._reopen)
        except BaseException:
            self._end_input()
            raise
        self._partitions = self.options.partitions or self._rim.parallelism(self._spark)
        log.info("source %r: session %d, %s", self.options.name, self._session, self._input.describe())
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._commit()
        finally:
            self._watching.stop()
            self._client.close_source()
            self._client.close()
            self._end_input()
            self._ended_s = self._rim.clock()
            log.info("%s", self.summary())

    def summary(self) -> Summary:
        elapsed_s = (self._rim.clock() if self._ended_s is None else self._ended_s) - self._started_s
        return Summary.of(
            self.options.name, self._flight.counts, elapsed_s=elapsed_s, checkpoint=self._input.describe()
        )

    # -- the loop

    def next_batch(self) -> Batch | None:
        """The next batch, opened and ready to be worked on; None when every record has its answer."""
        group = self._next_group()
        return None if group is None else self._open_batch(group)

    def settle(self, batch: Batch, error: BaseException | None = None) -> None:
        """End a batch: *done*, or *abandon* when ``error`` or a sink of it says that its work failed."""
        error = error or batch.frame.record.error
        self._look(0.0, batch)
        if error is not None:
            log.warning("batch %d of %d records is abandoned: %s", batch.number, batch.records, _first_line(error))
        reply = self._settled(batch, Settlement.DONE if error is None else Settlement.ABANDON, error)
        self._close_batch(batch, reply, error)
        self._commit()
        self._check_breaking(batch, error)

    def leave(self, batch: Batch) -> None:
        """End a batch whose loop was left: what its sinks have committed is *done*, else it is abandoned.

        Nothing is held against its records, as nobody knows why the loop was left: what is not acked stays open.
        """
        self._is_leaving = True
        done = batch.frame.record.succeeded and batch.frame.record.error is None
        error = None if done else SourceError("the loop over the batches was left")
        try:
            reply = self._settle_once(batch, Settlement.DONE if done else Settlement.ABANDON)
            self._close_batch(batch, reply, error)
        except AckerError as problem:
            log.warning("batch %d was left open: %s", batch.number, problem)

    # -- what comes next

    def _next_group(self) -> Group | None:
        while True:
            self._look(0.0)
            now = self._rim.clock()
            group = self._flight.take(now, self.options.batch_records) or self._plan(now)
            if group is not None:
                return group
            if self._flight.is_over and self._is_read:
                return None
            self._wait_for_more(now)

    def _plan(self, now: float) -> Group | None:
        """New records, as many as may be uncommitted; None: there is no room for them, or none is left."""
        room = self.options.max_uncommitted - self._flight.tracker.open_records
        if self._is_read or room < 1:
            return None
        records = self._input.plan(min(room, self.options.batch_records), self._partitions)
        self._is_read = not len(records)
        if self._is_read:
            return None
        self._first_emitted.append((int(records[0]), self._rim.wall()))
        return Group(now, -1, records)

    def _wait_for_more(self, now: float) -> None:
        due_s = self._flight.schedule.next_due_s
        wait_s = LOOK_S if due_s is None else min(LOOK_S, max(0.0, due_s - now))
        if self._flight.tracker.pending:
            self._look(wait_s)
        else:
            self._rim.sleep(wait_s)

    # -- a batch

    def _open_batch(self, group: Group) -> Batch:
        slices = self._input.slices(group.records, self._partitions)
        self._number += 1
        first = self._flight.tracker.base + self._flight.tracker.emitted
        self._reserve(self._number, first, len(group.records))
        is_replay = group.order >= 0
        emitted = self._flight.emit(group.records, is_replay=is_replay)
        try:
            plan = FramePlan(self.options.name, self._session, self._number, first, self._schema, slices)
            frame = self._rim.frame(self._spark, plan)
        except BaseException:
            self._settle_quietly(self._number)
            raise
        self._listener.on_emit(self._number, Seen(emitted.records, emitted.roots, self._input), is_replay)
        log.debug("batch %d: %d records%s", self._number, len(emitted), " again" if is_replay else "")
        return Batch(self._number, len(emitted), is_replay, frame.df, frame, emitted, group.depth)

    def _reserve(self, number: int, first: int, up_to: int) -> None:
        """Open the batch at the server; waits as long as the server has no room, up to the source's deadline."""
        deadline_s = self._rim.clock() + self.options.deadline_s
        while True:
            try:
                self._client.open_batch(number, first, up_to)
                break
            except Rejected as error:
                raise SourceError(
                    f"the server refuses a batch of {up_to} records ({error}): lower batch_records, or give the"
                    f" server a"
                    " higher max-pending; nothing is lost"
                ) from error
            except RETRYABLE as error:
                self._look(0.0)
                if self._rim.clock() < deadline_s:
                    log.info("batch %d waits: %s", number, error)
                    self._rim.sleep(min(LOOK_S, self._rim.draw() * LOOK_S))
                    continue
                raise SourceError(_cannot_open(error, up_to, self.options.deadline_s)) from error
        with self._open_lock:
            self._open = (number, first, up_to)

    def _reopen(self) -> None:
        """The server came back without its state, while Spark may be at work: open the batch again, so that its tasks
        can end. Its roots are LOST here all the same, whatever becomes of them there. Called by the watcher's
        thread."""
        with self._open_lock:
            if self._open is None:
                return
            try:
                self._client.open_batch(*self._open)
            except AckerError as error:
                log.warning("batch %d could not be opened again: %s", self._open[0], error)

    def _settled(self, batch: Batch, settlement: Settlement, error: BaseException | None) -> SettleReply | None:
        """Settle, as long as it takes up to the source's deadline. None: the server does not know the batch, or is
        gone."""
        deadline_s = self._rim.clock() + self.options.deadline_s
        while True:
            try:
                return self._settle_once(batch, settlement)
            except RETRYABLE as problem:
                self._look(0.0, batch, error)
                if batch.is_lost or self._rim.clock() >= deadline_s:
                    log.warning("batch %d could not be settled: %s", batch.number, problem)
                    return None
                self._rim.sleep(self._rim.draw() * LOOK_S)

    def _settle_once(self, batch: Batch, settlement: Settlement) -> SettleReply | None:
        with self._open_lock:
            self._open = None
        try:
            return self._client.settle(batch.number, settlement)
        except UnknownBatch as problem:
            log.warning("batch %d is not known to the server any more: %s", batch.number, problem)
            return None

    def _settle_quietly(self, number: int) -> None:
        with self._open_lock:
            self._open = None
        try:
            self._client.settle(number, Settlement.ABANDON)
        except AckerError as problem:
            log.info("batch %d is left to the lease: %s", number, problem)

    def _close_batch(self, batch: Batch, reply: SettleReply | None, error: BaseException | None) -> None:
        """See to it that every root of the batch has exactly one outcome here, and act on those of a broken batch."""
        if reply is not None:
            self._drain(batch, reply.cursor, error)
        told = batch.records - self._pending_in(batch)
        if reply is not None and not batch.is_lost and (told != batch.records or reply.roots != batch.records):
            log.error(
                "batch %d has %d records, the server settled %d and told %d: the others are replayed",
                batch.number,
                batch.records,
                reply.roots,
                told,
            )
        reason = "the server lost the batch" if error is None else f"the batch failed: {_first_line(error)}"
        self._lose(batch, reason, error)
        broken = _merged(batch.broken)
        if broken is not None and error is not None:
            why = _with_reason(broken, f"the batch failed: {_first_line(error)}")
            self._bury(self._flight.isolate(why, batch.depth, self._rim.clock()))

    def _pending_in(self, batch: Batch) -> int:
        return self._flight.tracker.pending_between(batch.emitted.start, batch.emitted.stop)

    def _check_breaking(self, batch: Batch, error: BaseException | None) -> None:
        """Slow down while batch after batch breaks as a whole, and stop when that does not end."""
        if error is None or batch.is_lost:
            self._broken_in_a_row = 0
            return
        self._broken_in_a_row += batch.records > 1
        if self._broken_in_a_row >= BROKEN_MAX:
            raise Broken(
                f"{self._broken_in_a_row} batches in a row failed as a whole, the last with {_first_line(error)!r}:"
                f" see to"
                " what they write to or compute, and start again; nothing is lost, what is not done is read again"
            ) from error
        if self._broken_in_a_row > PIECES:
            self._rim.sleep(self.options.retry.delay_s(self._broken_in_a_row - PIECES, self._rim.draw))

    # -- outcomes

    def _look(self, wait_s: float, batch: Batch | None = None, error: BaseException | None = None) -> bool:
        """Take what the watcher has brought, waiting up to ``wait_s`` for the first of it; whether there was
        anything."""
        watched = self._watching.take(wait_s)
        found = watched is not None
        while watched is not None:
            self._heard(watched, batch, error)
            watched = self._watching.take(0.0)
        return found

    def _drain(self, batch: Batch, cursor: int, error: BaseException | None) -> None:
        """Take outcomes until the server's cursor is reached, or the source's deadline."""
        deadline_s = self._rim.clock() + self.options.deadline_s
        while self._cursor < cursor and not batch.is_lost and self._rim.clock() < deadline_s:
            self._look(LOOK_S, batch, error)

    def _heard(self, watched: Watched, batch: Batch | None, error: BaseException | None) -> None:
        self._cursor = watched.cursor
        if watched.generation_changed:
            log.warning("the server has lost its state: all %d pending roots are LOST", self._flight.tracker.pending)
            if batch is not None:
                batch.is_lost = True
            self._land(batch, self._flight.lose(0, self._flight.tracker.emitted, "server lost", self._rim.clock()))
        if len(watched.outcomes):
            is_broken = batch is not None and error is not None and not batch.is_lost
            self._land(batch, self._flight.apply(watched.outcomes, self._rim.clock(), is_broken=is_broken))

    def _lose(self, batch: Batch, reason: str, error: BaseException | None) -> None:
        is_broken = error is not None and not batch.is_lost
        emitted = batch.emitted
        self._land(
            batch, self._flight.lose(emitted.start, emitted.stop, reason, self._rim.clock(), is_broken=is_broken)
        )

    def _land(self, batch: Batch | None, landed: Landed) -> None:
        if len(landed.acked):
            self._listener.on_ack(Seen(landed.acked, landed.acked_roots, self._input))
        if not len(landed.fallen):
            return
        self._tell_tracebacks(landed.fallen)
        self._listener.on_fail(self._seen(landed.fallen), landed.fallen)
        if batch is not None and len(landed.broken):
            batch.broken.append(landed.broken)
        retried = landed.retried
        if len(retried):
            self._listener.on_retry(self._seen(retried))
        self._bury(landed.spent)

    def _seen(self, fallen: Fallen) -> Seen:
        return Seen(fallen.records, fallen.roots, self._input)

    @property
    def _listener(self) -> Any:
        return self.options.listener

    def _tell_tracebacks(self, fallen: Fallen) -> None:
        """Log the first traceback of each operator; the reasons behind it stand in the dead letters."""
        for reason in fallen.reasons:
            text, traceback = _split(reason)
            who = text.partition(":")[0]
            if traceback and who not in self._told:
                self._told.add(who)
                log.warning("first failure of %s\n%s", text, traceback)

    # -- dead letters

    def _bury(self, spent: Fallen) -> None:
        if not len(spent) or self._is_leaving:
            return
        self._check_dead(spent)
        assert self._letters is not None
        now_s = self._rim.wall()
        failed, interrupted = (
            self._flight.schedule.failed(spent.records),
            self._flight.schedule.interrupted(spent.records),
        )
        self._letters.write(
            DeadLetter(
                source=self.options.name,
                reason=self._letter_reason(spent.reason(k)),
                failed=int(failed[k]),
                interrupted=int(interrupted[k]),
                first_s=self._first_s(int(spent.records[k])),
                last_s=now_s,
                path=original.path,
                line=original.line,
                byte=original.byte,
                value=original.value,
            )
            for k, original in enumerate(self._input.originals(spent.records))
        )
        self._flight.bury(spent.records)
        self._listener.on_dead_letter(self._seen(spent), spent)

    def _check_dead(self, spent: Fallen) -> None:
        """Before a record counts as done in the dead letters: are there any, and are they not too many?"""
        nothing_lost = "nothing is lost: these records are not done, and are read again at the next start"
        first = _first_line(spent.reason(0))
        if self._letters is None:
            raise SourceError(
                f"{len(spent)} records have spent their retries (the first: {first}), and there is nowhere to put"
                f" them: give"
                f" the source dead_letters='dead.jsonl'; {nothing_lost}"
            )
        if self._flight.has_too_many_dead(len(spent), self.options.max_dead_share):
            counts = self._flight.counts
            dead = counts.dead_lettered + len(spent)
            raise TooManyDeadLetters(
                f"{dead} of {counts.acked + dead} records have spent their retries, more than"
                f" max_dead_share={self.options.max_dead_share:g} allows; the last reason: {first}. Earlier ones are in"
                f" {self._letters.path}. Mend what fails and start again, or raise max_dead_share; {nothing_lost}"
            )

    def _letter_reason(self, reason: str) -> str:
        """The reason with its traceback in the first letter of each operator, without in the others."""
        text, traceback = _split(reason)
        who = "letter of " + text.partition(":")[0]
        if not traceback or who in self._told:
            return text
        self._told.add(who)
        return reason

    def _first_s(self, record: int) -> float:
        index = bisect_right(self._first_emitted, (record, float("inf"))) - 1
        return self._first_emitted[max(0, index)][1]

    # -- what is done

    def _commit(self) -> None:
        done_below = self._flight.compact()
        self._input.advance(done_below)
        keep = max(0, bisect_right(self._first_emitted, (done_below, float("inf"))) - 1)
        del self._first_emitted[:keep]
        if self._checkpoint is None:
            return
        progress = self._input.progress()
        if progress != self._saved:
            self._checkpoint.save(progress)
            self._saved = progress

    def _begin_input(self) -> None:
        if self._checkpoint is not None:
            self._checkpoint.acquire()
        try:
            if self._letters is not None:
                self._letters.open()
            self._saved = None if self._checkpoint is None else self._checkpoint.load()
            self._input.start(self._saved)
        except BaseException:
            self._end_input()
            raise

    def _end_input(self) -> None:
        if self._letters is not None:
            self._letters.close()
        if self._checkpoint is not None:
            self._checkpoint.release()


def _merged(parts: list[Fallen]) -> Fallen | None:
    """All of ``parts`` in one, ascending; their own reasons are dropped."""
    if not parts:
        return None
    records = np.concatenate([part.records for part in parts])
    order = np.argsort(records)
    roots = np.concatenate([part.roots for part in parts])[order]
    verdicts = np.concatenate([part.verdicts for part in parts])[order]
    return Fallen(records[order], roots, verdicts, np.zeros(len(order), np.uint32), ())


def _with_reason(fallen: Fallen, reason: str) -> Fallen:
    return Fallen(fallen.records, fallen.roots, fallen.verdicts, np.ones(len(fallen), np.uint32), (reason,))


def _split(reason: str) -> tuple[str, str]:
    """(what went wrong, its traceback where there is one)."""
    at = reason.find(TRACEBACK)
    return (reason[:at], reason[at + 1 :]) if at >= 0 else (reason, "")


def _first_line(error: object) -> str:
    kind = f"{type(error).__name__}: " if isinstance(error, BaseException) else ""
    text = str(error).strip().partition("\n")[0]
    return (kind + text)[:500]


def _cannot_open(error: AckerError, up_to: int, deadline_s: float) -> str:
    if isinstance(error, Overloaded):
        return (
            f"the server had no room for a batch of {up_to} records for {deadline_s:g} s ({error}): lower"
            f" batch_records, or"
            " give the server a higher max-pending; nothing is lost"
        )
    return f"no batch could be opened for {deadline_s:g} s ({error}); nothing is lost: start again when it is there"
