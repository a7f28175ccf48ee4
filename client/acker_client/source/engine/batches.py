"""Batches: the open batch, from its records to the release of its frame.

Decides that servers reserve room before a batch is emitted, and that the output of an abandoned batch is removed once
nothing can write it any more.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from acker_client.clean_up import CleanUp
from acker_client.cluster.scope import BatchScope
from acker_client.error_text import shorten
from acker_client.source.engine.batch import Batch
from acker_client.source.engine.environment import BatchFrame, Environment, FramePlan
from acker_client.source.engine.options import Options
from acker_client.source.engine.server_batches import ServerBatches
from acker_client.source.records.in_flight import InFlight
from acker_client.source.records.listener import Emissions
from acker_client.source.records.parts import Lookup
from acker_client.source.records.retry import ReplayGroup
from acker_client.source.records.tracker import EmissionRange, RecordNumbers

log = logging.getLogger("acker_client.source")

# Characters that are replaced, because some file systems do not allow them in names.
_UNSAFE = re.compile(r"[^A-Za-z0-9_.]")


class Batches:
    """The batches of one run; one is open at a time. ``session``: the run's session at the servers."""

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
        self._frame: BatchFrame | None = None
        # Steps that take back the output of the open batch, until the source asks to settle it as *done*.
        self._undo: list[Callable[[], object]] = []

    def open_batch(self, replays: ReplayGroup, new: RecordNumbers, tasks: int) -> Batch:
        """Open a batch of replays and new records at the servers, and make its frame."""
        # New records that were held back for their order may have lower numbers than replays.
        records = np.sort(np.concatenate((replays.records, new)))
        slices = self._lookup.input.slices(self._lookup.parts.chosen(records), tasks)
        self._number += 1
        first = self._in_flight.tracker.base + self._in_flight.tracker.emitted
        scope = BatchScope(self._session, self._number, first)
        held, timeout_s = self._options.held, self._options.message_timeout_s
        pin = self._server_batches.reserve_batch(scope, len(records), held=held, message_timeout_s=timeout_s)
        emitted = self._in_flight.emit(records, replays=len(replays.records))
        with CleanUp() as failed:
            failed.add(partial(self._server_batches.abandon_at_servers, self._number))
            plan = FramePlan(self._options.name, scope, pin, self._schema, slices, held)
            frame = self._frame = self._environment.frame(self._spark, plan)
            self._announce(emitted, np.isin(records, replays.records))
            failed.pop_all()
        log.debug("batch %d: %d records, %d of them again", self._number, len(emitted), len(replays.records))
        name = _UNSAFE.sub("_", self._options.name)
        id_ = f"{name}-{self._session:016x}-{self._number}"
        self._undo = []
        undo = self._undo if held else None
        return Batch(self._number, id_, len(emitted), len(replays.records), frame, emitted, replays.depth, undo=undo)

    def keep_output(self) -> None:
        """Keep the output of the open batch, because its records may be ACKED from now on."""
        # A new list, because a thread of the user may still append to the batch's own list.
        self._undo = []

    def release_batch(self) -> None:
        """Free what Spark keeps of the open batch, if any. Removes its output unless ``keep_output`` was called."""
        frame, self._frame = self._frame, None
        undo, self._undo = self._undo, []
        # Without retries nothing would write the output again. A shared output may hold ACKED records of another batch.
        if not self._options.guarantee.retries or (frame is not None and frame.evidence.is_shared):
            undo = []
        with CleanUp() as steps:
            for step in reversed(undo):
                steps.add(partial(_take_back, step))
            if frame is not None:
                # Added last, so this step runs first. It ends the jobs that may still write.
                steps.add(frame.evidence.release)

    def _announce(self, emitted: EmissionRange, is_replay: npt.NDArray[np.bool_]) -> None:
        for part, are_replays in ((is_replay, True), (~is_replay, False)):
            emissions = Emissions(emitted.records[part], emitted.roots[part], self._lookup)
            if len(emissions):
                self._options.listener.on_emit(self._number, emissions, are_replays)


def _take_back(step: Callable[[], object]) -> None:
    try:
        step()
    except Exception as error:  # noqa: BLE001  # output that stays is duplicated, not missing
        log.warning("output of an abandoned batch could not be taken back: %s", shorten(error))
