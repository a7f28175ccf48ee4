"""Watch: what the source tells of records, handed on to the tally and to the verifier as it comes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from acker_client.source import Fallen, Listener, Seen
from acker_command.demo.expected import Ints
from acker_command.demo.faults import Strike
from acker_command.demo.tally import Tally
from acker_command.demo.verify import Verifier
from acker_protocol.messages import Verdict


@dataclass(eq=False)
class Watch(Listener):
    """The demo's listener. Records are found by path and line, not by the source's own numbers.

    ``strike``: what falls on the batch in work. ``interrupted_by``: how many records were LOST in the batch of a
    strike.
    """

    tally: Tally
    verifier: Verifier
    strike: Strike | None = None
    interrupted_by: Counter[Strike] = field(default_factory=Counter)

    def on_emit(self, batch: int, emitted: Seen, is_replay: bool) -> None:
        self.tally.batches += 1
        self.tally.emitted += len(emitted)
        self.tally.replayed += len(emitted) if is_replay else 0

    def on_ack(self, acked: Seen) -> None:
        self.verifier.acked(acked.roots, self._records(acked))
        self.tally.acked += len(acked)

    def on_fail(self, failed: Seen, why: Fallen) -> None:
        told = np.bincount(why.verdicts, minlength=Verdict.LOST + 1)
        self.tally.failed += int(told[Verdict.FAILED])
        self.tally.timed_out += int(told[Verdict.TIMED_OUT])
        self.tally.interrupted += int(told[Verdict.LOST])
        if self.strike is not None:
            self.interrupted_by[self.strike] += int(told[Verdict.LOST])

    def on_dead_letter(self, dead: Seen, why: Fallen) -> None:
        self.verifier.dead(self._records(dead))
        self.tally.dead_lettered += len(dead)

    def _records(self, seen: Seen) -> Ints:
        origins, first_of = seen.origins(), self.verifier.expected.first_of
        firsts = np.array([first_of[path] for path in origins.paths], np.int64)
        records: Ints = firsts[origins.path_ids] + origins.lines - 1
        return records
