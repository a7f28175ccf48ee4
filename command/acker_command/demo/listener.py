"""Listener: what the source reports of records, handed on to the counts and to the verifier as it comes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from acker_client.source import Emissions, Failures, Listener
from acker_command.demo.counts import RunCounts
from acker_command.demo.expected import Ints
from acker_command.demo.faults import Strike
from acker_command.demo.verify import Verifier
from acker_protocol.messages import Verdict


@dataclass(eq=False)
class CountingListener(Listener):
    """The demo's listener. Records are found by where they come from, not by the source's own numbers.

    ``records``: which lines of the input they are, by their origins. ``strike``: what falls on the batch in work.
    ``interrupted_by``: how many records were LOST, or unfinished, in the batch of a strike.
    """

    counts: RunCounts
    verifier: Verifier
    records: Callable[[pa.RecordBatch], Ints]
    strike: Strike | None = None
    interrupted_by: Counter[Strike] = field(default_factory=Counter)

    def on_emit(self, batch: int, emitted: Emissions, is_replay: bool) -> None:
        self.counts.batches += 1
        self.counts.emitted += len(emitted)
        self.counts.replayed += len(emitted) if is_replay else 0

    def on_ack(self, acked: Emissions) -> None:
        self.verifier.acked(acked.roots, self.records(acked.origins()))
        self.counts.acked += len(acked)

    def on_fail(self, failed: Emissions, why: Failures) -> None:
        reported = np.bincount(why.verdicts, minlength=Verdict.LOST + 1)
        self.counts.failed += int(reported[Verdict.FAILED])
        self.counts.timed_out += int(reported[Verdict.TIMED_OUT])
        self.counts.interrupted += int(reported[Verdict.LOST])
        if self.strike is not None:
            self.interrupted_by[self.strike] += int(reported[Verdict.LOST]) + _unfinished(why)

    def on_dead_letter(self, dead: Emissions, why: Failures) -> None:
        self.verifier.dead(self.records(dead.origins()))
        self.counts.dead_lettered += len(dead)


def _unfinished(why: Failures) -> int:
    """How many nobody has failed, and of which yet not all was done, or not all was heard of."""
    ids = [index for index, reason in enumerate(why.reasons, 1) if reason == "unfinished"]
    return int(np.isin(why.reason_ids, ids).sum())
