"""Settling: the end of a batch, *done* or *abandon*, and what a failed batch costs its records.

Decides from evidence and errors whether a batch is *done*, and gives each of its roots exactly one outcome. Also
decides when failing batches stop the run, and when roots that outlive their batch are LOST.
"""

from __future__ import annotations

import logging
from collections import deque
from functools import partial

from acker_client.clean_up import CleanUp
from acker_client.error_text import shorten
from acker_client.source.engine.batch import Batch
from acker_client.source.engine.batches import Batches
from acker_client.source.engine.environment import Blame, Environment
from acker_client.source.engine.options import Options
from acker_client.source.engine.outcomes import RunOutcomes
from acker_client.source.engine.partitions import Partitions
from acker_client.source.engine.server_batches import ServerBatches
from acker_client.source.errors import Broken, SourceError
from acker_client.source.records.retry import PIECES
from acker_client.source.records.summary import Counts
from acker_protocol.messages import Settlement

log = logging.getLogger("acker_client.source")

# The run stops after this many failed batches in a row; batches of one record do not count.
BROKEN_MAX = 64


class Settling:
    """The settling of one run's batches."""

    def __init__(
        self,
        options: Options,
        environment: Environment,
        counts: Counts,
        partitions: Partitions,
        outcomes: RunOutcomes,
        batches: Batches,
        server_batches: ServerBatches,
    ) -> None:
        self._options = options
        self._environment = environment
        self._counts = counts
        self._partitions = partitions
        self._outcomes = outcomes
        self._batches = batches
        self._server_batches = server_batches
        # Settled batches that are not held, so their roots may still be pending. For each: (clock time at which pending
        # roots become LOST, batch number, first emission, emission after the last). A ``Batch`` would keep its frame.
        self._outlived: deque[tuple[float, int, int, int]] = deque()
        # Folders that the log has named already.
        self._named_folders = set[str]()
        self._broken_in_a_row = 0
        self._was_without_evidence = False
        # Clock time until which no batch opens, because too many batches in a row have failed as a whole.
        self.paused_until_s = 0.0

    def judge_work(self, batch: Batch, error: BaseException | None = None) -> None:
        """Find out whether the work on a batch is done. An ``error``, an exception in a sink or missing evidence means
        that it is not. Call it in the thread that worked on the batch."""
        # Compared with None, because an exception of the user's may count as false.
        batch.error = batch.error if error is None else error
        if batch.error is None and batch.evidence is not None:
            batch.error = batch.evidence.judge()
        # Must come after `evidence.judge`, which may run a job.
        self._batches.stop_timeout(batch)
        batch.is_judged = True

    def settle_judged(self, batch: Batch) -> None:
        """End a batch that ``judge_work`` has judged: as *done*, or as *abandon* if its work failed. Raises the failure
        if the program is at fault, because then no retry helps."""
        self._outcomes.take_outcomes(0.0)
        self._note_evidence(batch)
        settlement = Settlement.DONE
        if batch.error is not None:
            settlement = Settlement.ABANDON
            log.warning("batch %d of %d records failed: %s", batch.number, batch.records, shorten(batch.error))
            self._refuse_hopeless(batch, batch.error)
        else:
            self._was_without_evidence = False
        is_settled = self._server_batches.settle_at_servers(batch.number, settlement, lambda: self._is_lost(batch))
        self._finish_batch(batch, is_settled)
        # Must come after the outcomes of the batch: its good records count in the share of dead letters.
        self._outcomes.write_letters()
        self._partitions.retire_finished()
        self._partitions.commit_if_due(self._environment.clock())
        self._check_breaking(batch)

    def abandon_batch(self, batch: Batch, why: str) -> None:
        """End a batch that is open when the run ends, as *abandon* unless ``batch.done()`` was called.

        Records that are not acked stay open. This costs them no retry, because they may not be the cause of ``why``.
        """
        if not batch.is_judged:
            self.judge_work(batch, None if batch.is_done else SourceError(why))
        self._note_evidence(batch)
        settlement = Settlement.DONE if batch.error is None else Settlement.ABANDON
        self._finish_batch(batch, self._server_batches.settle_at_servers_once(batch.number, settlement), is_last=True)

    def lose_outlived(self, now: float) -> None:
        """Give LOST to roots that have outlived their batch for too long, as the last resort: no server reported an
        outcome."""
        if self._outlived:
            # Outcomes of settled batches also arrive between settlements, when no settlement retires their records.
            self._partitions.retire_finished()
        while self._outlived and self._outlived[0][0] <= now:
            _, number, start, stop = self._outlived.popleft()
            self._outcomes.lose_silent(start, stop, now)
            self._server_batches.forget_batch(number)

    def _note_evidence(self, batch: Batch) -> None:
        if batch.error is None:
            self._batches.keep_output(batch)
        if (evidence := batch.evidence) is not None:
            batch.unfinished_because = evidence.unfinished_because
            # Must come before the settlement: afterwards the outcomes of all servers count.
            without = evidence.without
            self._server_batches.leave_out_servers(batch.number, without)
            self._counts.short_of_replicas += bool(without)
            if self._options.group is not None:
                self._warn_of_folders(batch, evidence.folders)

    def _warn_of_folders(self, batch: Batch, folders: frozenset[str]) -> None:
        """Log each folder that other drivers of the group may write into, too. No driver sees the jobs of another."""
        shared = {folder for folder in folders - self._named_folders if batch.id not in folder}
        self._named_folders |= shared
        for folder in sorted(shared):
            log.warning(
                "files were written into %s, and this source is in a group: if another driver writes there at the same"
                " time, Spark may lose files of both without an error; use write_parquet, or give each driver a folder"
                " of its own",
                folder,
            )

    def _is_lost(self, batch: Batch) -> bool:
        self._outcomes.take_outcomes(0.0)
        return batch.is_lost

    def _refuse_hopeless(self, batch: Batch, error: BaseException) -> None:
        """Raise ``error`` when the program is at fault. Another try would only cost the records their retries."""
        blame = self._environment.blame(error)
        # The program is not to blame for evidence that is missing because its jobs were cancelled.
        if blame is Blame.EVIDENCE and batch.has_timed_out:
            blame = Blame.WORK
        is_hopeless = (
            blame is Blame.CODE
            or (blame is Blame.MISTAKE and not (batch.evidence and batch.evidence.has_run))
            or (blame is Blame.EVIDENCE and self._was_without_evidence)
        )
        self._was_without_evidence = blame is Blame.EVIDENCE
        if is_hopeless:
            with CleanUp() as steps:
                is_settled = self._server_batches.abandon_at_servers(batch.number)
                steps.add(partial(self._finish_batch, batch, is_settled, is_last=True))
                raise error

    def _finish_batch(self, batch: Batch, is_settled: bool, *, is_last: bool = False) -> None:
        """Give every root of the batch exactly one outcome, and schedule retries when the batch failed.

        ``is_last``: the run ends with this batch.
        """
        if is_settled:
            self._outcomes.await_batch(batch)
        if is_settled and batch.error is None and self._outlives(batch):
            self._batches.release_batch(batch)
            return
        why = _why_open(batch)
        now = self._environment.clock()
        self._outcomes.lose_batch(batch, why, now)
        self._server_batches.forget_batch(batch.number)
        self._outcomes.forget_batch(batch.number)
        self._outcomes.isolate_records(batch, why, now, is_last=is_last)
        self._batches.release_batch(batch)

    def _outlives(self, batch: Batch) -> bool:
        """Return whether roots of the *done* batch may still be pending because the batch is not held. If so, note
        when those roots become LOST. This holds although a server was lost: another replica may have the batch, and if
        none has, the roots were reported LOST."""
        timeout_s = self._options.message_timeout_s
        if self._options.held or timeout_s is None:
            return False
        # Within the timeout, a server ends each root that a task has initialised. It reports nothing about the others.
        until_s = self._environment.clock() + timeout_s + self._options.deadline_s
        self._outlived.append((until_s, batch.number, batch.emitted.start, batch.emitted.stop))
        self._outcomes.forget_batch(batch.number)
        return True

    def _check_breaking(self, batch: Batch) -> None:
        """Pause for longer and longer while batches keep failing as a whole. Raises ``Broken`` after too many in a
        row."""
        if not batch.is_broken:
            self._broken_in_a_row, self.paused_until_s = 0, 0.0
            return
        # A batch of one record does not count: that record goes to the dead letters, which have a limit of their own.
        self._broken_in_a_row += batch.records > 1
        if self._broken_in_a_row >= BROKEN_MAX:
            last = "" if batch.error is None else shorten(batch.error)
            raise Broken(
                f"{self._broken_in_a_row} batches in a row failed as a whole, the last with {last!r}: check what they"
                " compute or write to, and start again; nothing is lost, what is not done is read again"
            ) from batch.error
        if self._broken_in_a_row > PIECES:
            delay_s = self._options.batch_retry.delay_s(self._broken_in_a_row - PIECES, self._environment.draw)
            self.paused_until_s = max(self.paused_until_s, self._environment.clock() + delay_s)


def _why_open(batch: Batch) -> str:
    """Return why records of an ended batch have no outcome."""
    if batch.error is None:
        return "the servers did not settle the batch"
    if batch.has_timed_out:
        return f"the batch took longer than message_timeout_s={batch.timed_out_after_s:g}: {shorten(batch.error)}"
    return f"the batch failed: {shorten(batch.error)}"
