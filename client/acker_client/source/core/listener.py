"""Listener: whoever wants to see what happens to records; in columns, not record by record."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from acker_client.source.core.flight import Fallen
from acker_client.source.core.input import Input, Original, Origins
from acker_client.source.core.tracker import Records
from acker_protocol.ids import Column


@dataclass(frozen=True, slots=True)
class Seen:
    """Emissions: ``records: int64[n]`` (numbers in the order of reading) and their ``roots: uint64[n]``."""

    records: Records
    roots: Column
    input: Input

    def __len__(self) -> int:
        return len(self.records)

    def origins(self) -> Origins:
        """Where they come from; to be asked during the call only, as records that are done are forgotten."""
        order = np.argsort(self.records)
        sorted_ = self.input.locate(self.records[order])
        path_ids, lines = np.empty_like(sorted_.path_ids), np.empty_like(sorted_.lines)
        path_ids[order], lines[order] = sorted_.path_ids, sorted_.lines
        return Origins(sorted_.paths, path_ids, lines)

    def originals(self) -> list[Original]:
        """Records as they stand in the input, read again; during the call only."""
        order = np.argsort(self.records)
        found = self.input.originals(self.records[order])
        return [found[place] for place in np.argsort(order)]


class Listener:
    """Override what you want to see. Calls come from the thread that drives the source, one at a time.

    An exception from here ends the run (nothing is lost by it). Every emission is seen by ``on_emit``, then by either
    ``on_ack`` or ``on_fail``; what failed then by either ``on_retry`` or ``on_dead_letter``.
    """

    def on_emit(self, batch: int, emitted: Seen, is_replay: bool) -> None:
        """Records of a batch are handed out, ascending, under these root ids; its replays and its new records each in a
        call of their own."""

    def on_ack(self, acked: Seen) -> None:
        """These are done: everything derived from them was processed."""

    def on_fail(self, failed: Seen, why: Fallen) -> None:
        """These were not acked: ``why.verdicts`` and ``why.reason(k)`` say how the k-th of them ended."""

    def on_retry(self, retried: Seen) -> None:
        """These will be emitted again."""

    def on_dead_letter(self, dead: Seen, why: Fallen) -> None:
        """These have spent their retries, stand in the dead letters and count as done."""
