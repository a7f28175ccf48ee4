"""Run: one session of a source, from opening it to closing it.

Decides the order of work: outcomes are taken before anything else, letters are written before partitions change hands,
and due replays come before new records. The parts of a run: `partitions` (assignment and progress), `batches` (the open
batch), `outcomes` (effects on records), `settling` (the end of a batch).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from acker_client.clean_up import CleanUp
from acker_client.client import AckerClient
from acker_client.source.engine.batch import Batch
from acker_client.source.engine.batches import Batches
from acker_client.source.engine.dead_lettering import DeadLettering
from acker_client.source.engine.environment import Environment
from acker_client.source.engine.options import Options
from acker_client.source.engine.outcomes import LOOK_S, RunOutcomes
from acker_client.source.engine.partitions import Partitions
from acker_client.source.engine.server_batches import ServerBatches
from acker_client.source.engine.settling import Settling
from acker_client.source.engine.upstream import UpstreamTrees
from acker_client.source.records.in_flight import InFlight
from acker_client.source.records.input import Input, TakingUpInput
from acker_client.source.records.parts import Lookup, Parts
from acker_client.source.records.retry import ReplayGroup, Retry
from acker_client.source.records.summary import PartitionState, Summary
from acker_client.source.records.tracker import NO_RECORDS
from acker_protocol.ids import session_digest

log = logging.getLogger("acker_client.source")

NO_REPLAYS = ReplayGroup(0.0, -1, NO_RECORDS)
# Retry policy of a source without retries.
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
        retry = options.retry if options.guarantee.retries else NEVER
        self._in_flight = InFlight(environment.draw_base(), retry, environment.draw)
        self._lookup = Lookup(source, Parts({}))
        self._dead_lettering = DeadLettering(options, self._lookup, self._in_flight)
        self._partitions = Partitions(options, environment, self._lookup, self._in_flight, self._dead_lettering)
        self._started_s = environment.clock()
        self._ended_s: float | None = None

    # -- from opening to closing

    def __enter__(self) -> Self:
        with CleanUp() as undo:
            undo.add(self._close_input)
            self._open_input()
            client = self._environment.connect(self._spark)
            undo.add(client.close)
            session = client.open_source(self.options.name, lease_s=self.options.lease_s)
            undo.add(client.close_source)
            self._connect_parts(client, session, undo)
            self._tasks = self.options.partitions or self._environment.parallelism(self._spark)
            self._partitions.sign_checkpoint(session)
            self._partitions.join_group(undo)
            # Must come before the group is left: the next owner of a partition starts from this commit.
            undo.add(self._partitions.commit)
            undo.add(self._batches.release_batch)
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
            log.info("%s", self.summary())

    def summary(self) -> Summary:
        """Return what this run has done so far. Any thread may ask."""
        elapsed_s = (self._environment.clock() if self._ended_s is None else self._ended_s) - self._started_s
        holes = self._partitions.holes()
        return Summary.of(
            self.options.name,
            self._in_flight.counts,
            elapsed_s=elapsed_s,
            checkpoint=self._partitions.describe_done(),
            holes=sum(holes),
            holes_of_fullest=max(holes, default=0),
            held_back=self._partitions.held_back,
        )

    def partition_states(self) -> list[PartitionState]:
        """Return how far each partition is, if the input shows that. Any thread may ask."""
        return self._partitions.states()

    def _open_input(self) -> None:
        committed = self._partitions.open_checkpoint()
        self._dead_lettering.open_letters()
        self._partitions.start_input(committed)

    def _close_input(self) -> None:
        self._partitions.close_input()
        self._dead_lettering.close()
        self._partitions.close_checkpoint()

    def _connect_parts(self, client: AckerClient, session: int, undo: CleanUp) -> None:
        """Make the parts that need the servers."""
        options, environment, lookup, in_flight = self.options, self._environment, self._lookup, self._in_flight
        upstream: UpstreamTrees | None = None
        if isinstance(self._input, TakingUpInput) and self._input.acks_upstream:
            upstream = UpstreamTrees(environment.connect(self._spark), environment.clock)
            undo.add(upstream.close)
        watching = environment.watch(client)
        undo.add(watching.stop)
        server_batches = ServerBatches(client, environment, options.deadline_s)
        self._batches = Batches(
            options, environment, lookup, in_flight, server_batches, session, self._spark, self._schema
        )
        self._outcomes = RunOutcomes(
            options, environment, lookup, in_flight, self._partitions, self._dead_lettering, watching, upstream
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

    # -- from batch to batch

    def next_batch(self) -> Batch | None:
        """Return the next batch, opened and ready to be worked on; None when every record has its answer, or the run
        was asked to stop.

        Due replays come first. New records fill the batch up, because a small batch costs Spark as much as a full one;
        only replays after a failed batch stay alone. Waits for the next replay when there is nothing else to do.
        """
        while not self._is_stopping():
            self._outcomes.take_outcomes(0.0)
            now = self._environment.clock()
            self._settling.lose_outlived(now)
            # Must come before the partitions of these records may go to another source.
            self._outcomes.write_letters()
            self._partitions.follow_group()
            self._partitions.commit_if_due(now)
            if self._is_replay_due(now) and not self._partitions.is_reachable():
                self._wait(now)
                continue
            replays = self._in_flight.take_replays(now, self.options.batch_records) or NO_REPLAYS
            room = 0 if replays.depth else self.options.batch_records - len(replays.records)
            new = self._partitions.plan_records(room, self._tasks)
            if len(replays.records) or len(new):
                return self._batches.open_batch(replays, new, self._tasks)
            if self._in_flight.is_over and self._partitions.is_read:
                break
            self._wait(now)
        self._outcomes.write_letters()
        return None

    def settle_batch(self, batch: Batch, error: BaseException | None = None) -> None:
        """End a batch whose work is complete, or has raised ``error``. See ``Settling``."""
        self._settling.settle_batch(batch, error)

    def abandon_batch(self, batch: Batch) -> None:
        """End a batch whose loop the user has left. See ``Settling``."""
        self._settling.abandon_batch(batch)

    def _is_replay_due(self, now: float) -> bool:
        due_s = self._in_flight.schedule.next_due_s
        return due_s is not None and due_s <= now

    def _wait(self, now: float) -> None:
        due_s = self._in_flight.schedule.next_due_s
        wait_s = LOOK_S if due_s is None else min(LOOK_S, max(0.0, due_s - now))
        if self._in_flight.tracker.pending:
            self._outcomes.take_outcomes(wait_s)
        else:
            self._environment.sleep(wait_s)
