"""Listener: callbacks for what happens to records. One call gets many records, in columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from acker_client.source.records.in_flight import Failures
from acker_client.source.records.input import Original
from acker_client.source.records.parts import Lookup
from acker_client.source.records.tracker import RecordNumbers
from acker_protocol.ids import Column


@dataclass(frozen=True, slots=True)
class Emissions:
    """Emissions: ``records: int64[n]`` (numbers in the order of reading) and their ``roots: uint64[n]``."""

    records: RecordNumbers
    roots: Column
    lookup: Lookup

    def __len__(self) -> int:
        return len(self.records)

    def origins(self) -> pa.RecordBatch:
        """Return the origins of the records, one row each, in the input's own columns (``Files``: ``path string, line
        bigint``, ``Parquet``: ``path string, row bigint``, ``Kafka``: ``topic string, partition int, offset bigint``).
        Only valid during the callback, because finished records are dropped afterwards."""
        order = np.argsort(self.records)
        return self.lookup.origins(self.records[order]).take(pa.array(np.argsort(order)))

    def originals(self) -> list[Original]:
        """Read the records again. Only valid during the callback. Raises ``OutOfReach`` while the input is away, which
        ends the run unless the callback handles it."""
        order = np.argsort(self.records)
        found = self.lookup.originals(self.records[order])
        return [found[place] for place in np.argsort(order)]


class Listener:
    """Override the callbacks that you need. The thread that drives the source makes the calls, one at a time.

    An exception from a callback ends the run and loses nothing: the records of that call, and all records whose end was
    not reported yet, do not count as done, so the next start reads them again. Each emission gets ``on_emit``, then one
    of ``on_ack``, ``on_fail`` and ``on_absent``. A failed emission then gets ``on_retry`` or ``on_dead_letter``, unless
    the run ends first or has no retries (see the option ``guarantee``).
    """

    def on_open(self, source: str) -> None:
        """A run of the source with this name begins. Called before anything else of the run."""

    def on_close(self) -> None:
        """The run has ended, well or not, and its checkpoint is written. The last call. Not called if ``on_open``
        raised."""

    def on_assign(self, partitions: Sequence[str]) -> None:
        """The group gives these partitions to this source, which reads them from now on. Only in a group."""

    def on_emit(self, batch: int, emitted: Emissions, is_replay: bool) -> None:
        """These records of a batch, ascending, are emitted under these root ids. Replays and new records come in
        separate calls."""

    def on_ack(self, acked: Emissions) -> None:
        """These records are done: everything derived from them was processed."""

    def on_fail(self, failed: Emissions, why: Failures) -> None:
        """These records were not acked: ``why.verdicts`` and ``why.reason(k)`` say how the k-th of them ended."""

    def on_absent(self, absent: Emissions) -> None:
        """These records have no outcome and count as done: they were planned but do not exist, or they are untracked
        (option ``track``) and their batch has ended."""

    def on_revoke(self, partition: str, dropped: Emissions) -> None:
        """Another source owns the partition now, with these open records. ``dropped.roots`` are zero."""

    def on_retry(self, retried: Emissions) -> None:
        """These records will be emitted again."""

    def on_dead_letter(self, dead: Emissions, why: Failures) -> None:
        """These records have no retries left, are in the dead letters and count as done."""
