"""Listener: whoever wants to see what happens to records; in columns, not record by record."""

from __future__ import annotations

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
        """Where they come from, a row each, in the input's own columns (``Files``: ``path string, line bigint``,
        ``Parquet``: ``path string, row bigint``, ``Kafka``: ``topic string, partition int, offset bigint``); to be
        asked during the call only, as records that are done are forgotten."""
        order = np.argsort(self.records)
        return self.lookup.origins(self.records[order]).take(pa.array(np.argsort(order)))

    def originals(self) -> list[Original]:
        """Records as they stand in the input, read again; during the call only."""
        order = np.argsort(self.records)
        found = self.lookup.originals(self.records[order])
        return [found[place] for place in np.argsort(order)]


class Listener:
    """Override what you want to see. Calls come from the thread that drives the source, one at a time.

    An exception from here ends the run (nothing is lost by it). Every emission is seen by ``on_emit``, then by either
    ``on_ack``, ``on_fail`` or ``on_absent``; what failed then by either ``on_retry`` or ``on_dead_letter``, unless the
    run ends before, or tries nothing again (see the option ``guarantee``).
    """

    def on_emit(self, batch: int, emitted: Emissions, is_replay: bool) -> None:
        """Records of a batch are handed out, ascending, under these root ids; its replays and its new records each in a
        call of their own."""

    def on_ack(self, acked: Emissions) -> None:
        """These are done: everything derived from them was processed."""

    def on_fail(self, failed: Emissions, why: Failures) -> None:
        """These were not acked: ``why.verdicts`` and ``why.reason(k)`` say how the k-th of them ended."""

    def on_absent(self, absent: Emissions) -> None:
        """These were planned, and turned out not to exist; they count as done."""

    def on_revoke(self, partition: str, dropped: Emissions) -> None:
        """The partition went to another source; these were open, and are that one's now. They have no roots."""

    def on_retry(self, retried: Emissions) -> None:
        """These will be emitted again."""

    def on_dead_letter(self, dead: Emissions, why: Failures) -> None:
        """These have spent their retries, stand in the dead letters and count as done."""
