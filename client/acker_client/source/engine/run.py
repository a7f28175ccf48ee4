"""Run: one session of a source, from opening it to closing it.

Decides the order of work: outcomes are taken before anything else, dead letters are written before partitions change
hands, and due replays come before new records. The parts of a run: `partitions` (assignment and progress), `batches`
(the open batches), `outcomes` (effects on records), `settling` (the end of a batch).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from acker_client.clean_up import CleanUp
from acker_client.client import AckerClient
from acker_client.source.engine.activity import Activity
from acker_client.source.engine.batch import Batch
from acker_client.source.engine.batches import Batches
from acker_client.source.engine.dead_lettering import DeadLettering
from acker_client.source.engine.environment import Environment, StartThread
from acker_client.source.engine.listeners import Listeners
from acker_client.source.engine.no_servers import NoServers
from acker_client.source.engine.options import Options
from acker_client.source.engine.outcomes import LOOK_S, RunOutcomes
from acker_client.source.engine.partitions import Partitions
from acker_client.source.engine.progress_bar import bar_for
from acker_client.source.engine.progress_report import ProgressReport, start_report
from acker_client.source.engine.retry_policy import policy_of
from acker_client.source.engine.server_batches import NoRoom, ServerBatches
from acker_client.source.engine.settling import Settling
from acker_client.source.engine.upstream import UpstreamTrees
from acker_client.source.engine.watcher import Watching
from acker_client.source.errors import SourceError
from acker_client.source.records.batch_size import BatchSize
from acker_client.source.records.in_flight import InFlight
from acker_client.source.records.input import Input, TakingUpInput
from acker_client.source.records.outcome import RecordOutcome
from acker_client.source.records.parts import Lookup, Parts
from acker_client.source.records.progress import (
    ENDED,
    NEW_RECORDS,
    OPENING,
    OUTCOMES,
    PLANNING,
    RETRY,
    SETTLING,
    UNTAKEN,
    WORKING,
    Progress,
)
from acker_client.source.records.retry import ReplayGroup, Retry
from acker_client.source.records.summary import PartitionState, Summary
from acker_client.source.records.tracker import NO_RECORDS, RecordNumbers
from acker_protocol.ids import session_digest

log = logging.getLogger("acker_client.source")

NO_REPLAYS = ReplayGroup(0.0, -1, NO_RECORDS)
# Retry policy of a source without retries.
NEVER = Retry(max_retries=0, max_interruptions=0)


class Run:
    """One session; a context manager. Use it from one thread, with two exceptions. The thread that works on a batch
    calls ``make_frame`` and ``judge_work``. Any thread may call ``summary``, ``partition_states`` and ``progress``.

    ``streams``: the caller takes the outcomes of records from ``take_outcomes``. No batch opens while outcomes wait for
    that.
    """

    def __init__(
        self,
        options: Options,
        source: Input[Any],
        schema: Any,
        spark: Any,
        environment: Environment,
        *,
        is_stopping: Callable[[], bool] = lambda: False,
        streams: bool = False,
    ) -> None:
        self.options = options
        self._is_stopping = is_stopping
        self._input = source
        self._schema = schema
        self._spark = spark
        self._environment = environment
        self._lookup = Lookup(source, Parts({}))
        retry = options.batch_retry if options.guarantee.retries else NEVER
        decide = policy_of(options, self._lookup)
        self._in_flight = InFlight(environment.draw_base(), retry, environment.draw, decide)
        self._dead_lettering = DeadLettering(options, environment, self._lookup, self._in_flight)
        self._listeners = Listeners(options, self._lookup, self._in_flight, streams=streams)
        self._partitions = Partitions(
            options, environment, self._lookup, self._in_flight, self._dead_lettering, self._listeners
        )
        self._size = BatchSize(options.batch_records, options.open_max, options.message_timeout_s)
        self._is_over = False
        # Replays and new records of a batch for which the servers had no room. They are the next batch.
        self._unopened: tuple[ReplayGroup, RecordNumbers] | None = None
        self._activity = Activity(options.name, environment.clock)
        self._started_s = environment.clock()
        self._ended_s: float | None = None

    # -- from opening to closing

    def __enter__(self) -> Self:
        with CleanUp() as undo:
            undo.add(self._report_progress())
            self.options.listener.on_open(self.options.name)
            undo.add(self.options.listener.on_close)
            # Each step must run even if another one raises: the user may have written the input and the stores.
            undo.add(self._partitions.close_checkpoint)
            undo.add(self._listeners.close_store)
            undo.add(self._dead_lettering.close)
            undo.add(self._partitions.close_input)
            self._open_input()
            client = self._connect()
            undo.add(client.close)
            session = client.open_source(self.options.name, lease_s=self.options.lease_s)
            undo.add(client.close_source)
            self._connect_parts(client, session, undo)
            self._tasks = self.options.partitions or self._environment.parallelism(self._spark)
            self._partitions.sign_checkpoint(session)
            self._partitions.join_group(undo)
            # Must come before the group is left: the next owner of a partition starts from this commit.
            undo.add(self._partitions.commit)
            undo.add(self._listeners.drop_untaken)
            undo.add(self._batches.release_all)
            self._exits = undo.pop_all()
        done = self._partitions.describe_done()
        log.info("source %r: session digest %s, %s", self.options.name, session_digest(session), done)
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
            self._activity.begin(ENDED)
            log.info("%s", self.summary())

    def summary(self) -> Summary:
        """Return what this run has done so far. Any thread may ask."""
        holes = self._partitions.holes()
        return Summary.of(
            self.options.name,
            self._in_flight.counts,
            elapsed_s=self._elapsed_s,
            checkpoint=self._partitions.describe_done(),
            holes=sum(holes),
            holes_of_fullest=max(holes, default=0),
            held_back=self._partitions.held_back,
        )

    def partition_states(self) -> list[PartitionState]:
        """Return how far each partition is, if the input shows that. Any thread may ask."""
        return self._partitions.states()

    def progress(self) -> Progress:
        """Return what this run has done so far, and does now. Any thread may ask, often."""
        return self._activity.progress(self._in_flight, self._elapsed_s)

    @property
    def _elapsed_s(self) -> float:
        return (self._environment.clock() if self._ended_s is None else self._ended_s) - self._started_s

    def _report_progress(self) -> Callable[[], None]:
        """Show the progress as the option ``progress`` says. Returns the function that stops it."""
        wanted = self.options.progress
        bar = bar_for(wanted, self.options.name)
        if wanted is False or (bar is None and not log.isEnabledFor(logging.INFO)):
            return lambda: None
        return start_report(ProgressReport(self.progress, bar), self._environment.timer)

    def _connect(self) -> AckerClient | NoServers:
        client = self._environment.connect(self._spark) if self.options.tracking else None
        if client is None and not self.options.held:
            raise SourceError(
                "held=False with tracking off: without tracking nothing shows when a record that outlives its batch is"
                " done; turn tracking on, or leave held=False out"
            )
        return client or NoServers()

    def _open_input(self) -> None:
        committed = self._partitions.open_checkpoint()
        self._dead_lettering.open_letters(self._spark)
        self._listeners.open_store()
        self._partitions.start_input(committed)

    def _connect_parts(self, client: AckerClient | NoServers, session: int, undo: CleanUp) -> None:
        """Make the parts that need the servers."""
        options, environment, lookup, in_flight = self.options, self._environment, self._lookup, self._in_flight
        upstream: UpstreamTrees | None = None
        if isinstance(self._input, TakingUpInput) and self._input.acks_upstream:
            upstream = self._open_upstream(client)
            undo.add(upstream.close)
        watching: Watching = client if isinstance(client, NoServers) else environment.watch(client)
        undo.add(watching.stop)
        server_batches = ServerBatches(client, environment, options.deadline_s, options.guarantee)
        self._batches = Batches(
            options, environment, lookup, in_flight, server_batches, session, self._spark, self._schema
        )
        self._outcomes = RunOutcomes(
            options,
            environment,
            lookup,
            in_flight,
            self._partitions,
            self._dead_lettering,
            self._listeners,
            self._batches,
            watching,
            upstream,
        )
        self._settling = Settling(
            options,
            environment,
            in_flight.counts,
            self._partitions,
            self._outcomes,
            self._batches,
            server_batches,
        )

    def _open_upstream(self, client: AckerClient | NoServers) -> UpstreamTrees:
        second = None if isinstance(client, NoServers) else self._environment.connect(self._spark)
        if second is None:
            raise SourceError(
                "acks_upstream=True with tracking off: the other job's records would count as done without proof; turn"
                " tracking on, or leave acks_upstream=True out"
            )
        return UpstreamTrees(second, self._environment.clock)

    # -- from batch to batch

    @property
    def start_thread(self) -> StartThread:
        """The environment's function that starts the thread of a batch."""
        return self._environment.start_thread

    @property
    def is_over(self) -> bool:
        """Whether the run has no more batches, so that ``open_batch`` returns None from now on."""
        return self._is_over

    def take_outcomes(self) -> Iterator[RecordOutcome]:
        """Yield the outcomes that were not taken yet. Afterwards their records count as done."""
        self._activity.begin(UNTAKEN)
        yield from self._listeners.take_outcomes()
        self._activity.begin(PLANNING)
        self._partitions.retire_finished()
        self._partitions.commit_if_due(self._environment.clock())

    def next_batch(self) -> Batch | None:
        """Open the next batch and make its frame, for work in this thread. Returns None when ``open_batch`` does."""
        if (batch := self.open_batch()) is not None:
            try:
                self.make_frame(batch)
            except BaseException:
                self.abandon_batch(batch, "its frame could not be made")
                raise
        return batch

    def settle_batch(self, batch: Batch, error: BaseException | None = None) -> None:
        """Judge and settle a batch, in the thread that worked on it. ``error``: what the work raised, if it did."""
        self.judge_work(batch, error)
        self.settle_judged(batch)

    def open_batch(self) -> Batch | None:
        """Open the next batch. Some thread then has to call ``make_frame``. Returns None when every record has its
        answer, the run was asked to stop, or outcomes have to be taken first. While other batches are open, it also
        returns None instead of waiting.

        Due replays come first. New records fill the batch up, because a small batch costs Spark as much as a full one;
        only replays after a failed batch stay alone. Waits for the next replay when there is nothing else to do.
        """
        self._activity.begin(PLANNING)
        batch = self._open_next()
        if batch is None and self._batches.open_batches:
            self._activity.begin(WORKING)
        return batch

    def _open_next(self) -> Batch | None:
        while not self._is_stopping():
            self._outcomes.take_outcomes(0.0)
            now = self._environment.clock()
            self._settling.lose_outlived(now)
            # Must come before `follow_group`, which may give the partitions of these records to another source.
            self._outcomes.write_letters()
            if self._listeners.has_untaken:
                return None
            if self._may_open(now):
                replays, new = self._next_records(now) if self._unopened is None else self._unopened
                if len(replays.records) or len(new):
                    return self._try_to_open(replays, new)
            if self._batches.open_batches:
                return None
            is_answered = self._in_flight.is_over and not self._dead_lettering.has_queued
            if self._unopened is None and is_answered and self._partitions.is_read:
                break
            self._wait(now)
        if self._batches.open_batches:
            return None
        self._outcomes.write_letters()
        self._is_over = True
        return None

    def _may_open(self, now: float) -> bool:
        """Whether a batch may open now. Follows the group first, but not while a batch has its records and no room."""
        if self._unopened is None:
            self._partitions.follow_group()
            self._partitions.commit_if_due(now)
        return now >= self._settling.paused_until_s

    def _next_records(self, now: float) -> tuple[ReplayGroup, RecordNumbers]:
        """Return the replays and new records of the next batch.

        While the input is out of reach, or a partition of it, replays wait: otherwise they would use up their retries.
        """
        is_due = self._is_replay_due(now)
        may_replay = not is_due or self._lookup.is_reachable()
        if is_due and may_replay and len(away := self._lookup.away_records()):
            self._in_flight.schedule.postpone(away, now, now + LOOK_S)
        replays = (self._in_flight.take_replays(now, self._size.records) if may_replay else None) or NO_REPLAYS
        room = 0 if replays.depth else self._size.records - len(replays.records)
        new = self._partitions.plan_records(room, self._tasks)
        # The plan may have revoked partitions of the replays.
        return replace(replays, records=self._in_flight.tracker.open_among(replays.records)), new

    def make_frame(self, batch: Batch) -> None:
        """Make the frame of a batch, in the thread that works on it."""
        began_s = self._environment.clock()
        self._batches.make_frame(batch)
        batch.began_s = began_s

    def judge_work(self, batch: Batch, error: BaseException | None = None) -> None:
        """Find out whether a batch is done, in the thread that worked on it. ``error``: what the work raised."""
        self._settling.judge_work(batch, error)
        waited_s = 0.0 if batch.evidence is None else batch.evidence.waited_s
        batch.worked_s = self._environment.clock() - batch.began_s - waited_s

    def settle_judged(self, batch: Batch) -> None:
        """Settle a batch that ``judge_work`` has judged. See ``Settling``."""
        self._activity.begin(SETTLING)
        if batch.error is None or batch.has_timed_out:
            self._size.note_work(batch.records, batch.worked_s, has_timed_out=batch.has_timed_out)
        self._settling.settle_judged(batch)

    def abandon_batch(self, batch: Batch, why: str = "the loop over the batches was left before batch.done()") -> None:
        """End a batch that is open when the run ends. See ``Settling``."""
        self._activity.begin(SETTLING)
        self._settling.abandon_batch(batch, why)

    def _try_to_open(self, replays: ReplayGroup, new: RecordNumbers) -> Batch | None:
        """Open a batch. Returns None if other batches are open and the servers have no room for one more."""
        records = len(replays.records) + len(new)
        self._activity.open_batch(OPENING, self._in_flight.counts.batches + 1, records, replays.depth + 1)
        try:
            batch = self._batches.open_batch(replays, new, self._tasks)
        except NoRoom:
            # Count the new records as open. Otherwise the checkpoint would pass them when another batch ends.
            self._in_flight.tracker.hold_back(new)
            self._unopened = replays, new
            return None
        finally:
            self._activity.begin(WORKING)
        self._unopened = None
        return batch

    def _is_replay_due(self, now: float) -> bool:
        due_s = self._in_flight.schedule.next_due_s
        return due_s is not None and due_s <= now

    def _wait(self, now: float) -> None:
        paused_until_s = self._settling.paused_until_s
        due_s = paused_until_s if now < paused_until_s else self._in_flight.schedule.next_due_s
        # A replay that is due already waits for something else, such as a store that is away.
        wait_s = LOOK_S if due_s is None or due_s <= now else min(LOOK_S, due_s - now)
        if self._in_flight.tracker.pending:
            self._activity.begin(OUTCOMES)
            self._outcomes.take_outcomes(wait_s)
        else:
            self._activity.begin(NEW_RECORDS if due_s is None else RETRY, due_s)
            self._environment.sleep(wait_s)
