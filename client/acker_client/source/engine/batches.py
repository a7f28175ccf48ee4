"""Batches: the open batches of a run, from their records to the release of their frames.

Decides that servers reserve room before a batch is emitted, and that the output of an abandoned batch is removed once
nothing can write it any more.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from acker_client.clean_up import CleanUp
from acker_client.cluster.scope import BatchScope
from acker_client.error_text import shorten
from acker_client.source.engine.batch import Batch
from acker_client.source.engine.environment import Environment, FramePlan
from acker_client.source.engine.options import Options
from acker_client.source.engine.server_batches import ServerBatches
from acker_client.source.engine.timeout import BatchTimeout
from acker_client.source.records.in_flight import InFlight
from acker_client.source.records.listener import Emissions
from acker_client.source.records.parts import Lookup
from acker_client.source.records.progress import counted
from acker_client.source.records.retry import ReplayGroup
from acker_client.source.records.tracker import EmissionRange, RecordNumbers

log = logging.getLogger("acker_client.source")

# Characters that are replaced, because some file systems do not allow them in names.
_UNSAFE = re.compile(r"[^A-Za-z0-9_.]")


@dataclass(slots=True)
class _Open:
    """An open batch. ``undo``: steps that remove its output; none once the source decides to settle it as *done*."""

    batch: Batch
    plan: FramePlan
    undo: list[Callable[[], object]]
    timeout: BatchTimeout | None = None


class Batches:
    """The batches of one run. ``session``: the run's session at the servers. A thread that works on a batch may call
    only ``make_frame`` and ``stop_timeout``."""

    def __init__(
        self,
        options: Options,
        environment: Environment,
        lookup: Lookup,
        in_flight: InFlight,
        server_batches: ServerBatches,
        session: int,
        spark: Any,
        schema: Any,
    ) -> None:
        self._options = options
        self._environment = environment
        self._lookup = lookup
        self._in_flight = in_flight
        self._server_batches = server_batches
        self._session = session
        self._spark = spark
        self._schema = schema
        self._number = 0
        self._open: dict[int, _Open] = {}

    @property
    def open_batches(self) -> Collection[Batch]:
        """The batches that are open, oldest first."""
        return [each.batch for each in self._open.values()]

    def open_batch(self, replays: ReplayGroup, new: RecordNumbers, tasks: int) -> Batch:
        """Open a batch of replays and new records at the servers."""
        # Sort, because new records that were held back for their order may have lower numbers than replays.
        records = np.sort(np.concatenate((replays.records, new)))
        slices = self._lookup.input.slices(self._lookup.parts.chosen(records), tasks)
        first = self._in_flight.tracker.base + self._in_flight.tracker.emitted
        scope = BatchScope(self._session, self._number + 1, first)
        held, timeout_s = self._options.held, self._options.message_timeout_s
        # Only the driver has a timeout for a held batch, because servers do not know which jobs still run.
        pin = self._server_batches.reserve_batch(
            scope, len(records), held=held, message_timeout_s=None if held else timeout_s, waits=not self._open
        )
        self._number = scope.number
        emitted = self._in_flight.emit(records, replays=len(replays.records))
        what = _description(self._options.name, self._number, len(emitted), replays)
        name = _UNSAFE.sub("_", self._options.name)
        id_ = f"{name}-{self._session:016x}-{self._number}"
        undo: list[Callable[[], object]] = []
        batch = Batch(
            self._number, id_, len(emitted), len(replays.records), emitted, replays.depth, undo=undo if held else None
        )
        plan = FramePlan(self._options.name, scope, pin, self._schema, slices, held, what, self._options.track)
        with CleanUp() as failed:
            failed.add(partial(self._server_batches.abandon_at_servers, self._number))
            self._announce(emitted, np.isin(records, replays.records))
            failed.pop_all()
        self._open[self._number] = _Open(batch, plan, undo)
        log.debug("%s", what)
        return batch

    def make_frame(self, batch: Batch) -> None:
        """Make the frame of an open batch, and start its timeout. Call it in the thread that works on the batch."""
        opened, timeout_s = self._open[batch.number], self._options.message_timeout_s
        batch.frame = self._environment.frame(self._spark, opened.plan)
        if self._options.held and timeout_s is not None:
            opened.timeout = BatchTimeout(batch, timeout_s, self._environment.timer)

    def stop_timeout(self, batch: Batch) -> None:
        """Stop the timeout of an open batch. When this returns, the timeout cancels no more jobs."""
        opened = self._open[batch.number]
        timeout, opened.timeout = opened.timeout, None
        if timeout is not None:
            timeout.stop()

    def keep_output(self, batch: Batch) -> None:
        """Keep the output of an open batch, because its records may be ACKED from now on."""
        # A new list, because a thread of the user may still append to the batch's own list.
        self._open[batch.number].undo = []

    def release_batch(self, batch: Batch) -> None:
        """Close an open batch, and free what Spark keeps of it. Removes its output if the source retries, unless
        ``keep_output`` was called or the output is shared."""
        self.stop_timeout(batch)
        undo = self._open.pop(batch.number).undo
        evidence = batch.evidence
        # Without retries nothing would write the output again, and a shared one may hold another batch's ACKED records.
        if not self._options.guarantee.retries or (evidence is not None and evidence.is_shared):
            undo = []
        with CleanUp() as steps:
            for step in reversed(undo):
                steps.add(partial(_take_back, step))
            if evidence is not None:
                # Added last, so this step runs first. It ends the jobs that may still write.
                steps.add(evidence.release)

    def release_all(self) -> None:
        """Free what Spark keeps of the batches that are still open, as ``release_batch`` does."""
        with CleanUp() as steps:
            for batch in self.open_batches:
                steps.add(partial(self.release_batch, batch))

    def _announce(self, emitted: EmissionRange, is_replay: npt.NDArray[np.bool_]) -> None:
        for part, are_replays in ((is_replay, True), (~is_replay, False)):
            emissions = Emissions(emitted.records[part], emitted.roots[part], self._lookup)
            if len(emissions):
                self._options.listener.on_emit(self._number, emissions, are_replays)


def _description(name: str, number: int, records: int, replays: ReplayGroup) -> str:
    """Return the description that Spark's UI shows for the jobs of a batch."""
    again = f", {len(replays.records):,} of them again" if len(replays.records) and not replays.depth else ""
    return f"{name}: batch {number}, {counted(records, 'record')}{again}, attempt {replays.depth + 1}"


def _take_back(step: Callable[[], object]) -> None:
    try:
        step()
    except Exception as error:  # noqa: BLE001  # output that stays is duplicated, not missing
        log.warning("output of an abandoned batch could not be taken back: %s", shorten(error))
