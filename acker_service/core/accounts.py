"""Accounts: counts what kernels have changed, and passes outcomes on to the outboxes of their sources.

Decides in which order that happens, so that a lack of memory at any point loses nothing and counts nothing twice. Each
change is made in two parts. The first part takes all the memory; it may fail, and then nothing has changed. The second
part only stores values that exist already, which cannot fail. A kernel cannot fail either, but what it has changed is
counted afterwards. If that fails, the next call repeats it before it does anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from acker_protocol.messages import Reason
from acker_service.core import kernels
from acker_service.core.batches import BatchState
from acker_service.core.ledger import Ledger
from acker_service.core.outbox import Outbox
from acker_service.core.outputs import Outputs
from acker_service.core.room import Room
from acker_service.core.stats import Counters, tally

# How many groups of outcomes are passed on in one step, in some 5 ms.
GROUPS_A_STEP = 256
_INDEX = kernels.INDEXES - 1

# A long operation. Each step takes some 10 ms at most and leaves a state that any call may use.
Steps = Iterator[None]


@dataclass(slots=True)
class Uncounted:
    """Holds the changes that a kernel may have made. ``batch``: the batch of its inits, None for those of the open
    stream. ``reasons``: see `Outputs`. ``note`` does the remaining work; it may be called again if it fails."""

    outputs: Outputs
    reasons: Sequence[Reason] = kernels.REASONS
    batch: BatchState | None = None
    note: Callable[[], object] = lambda: None


class Accounts:
    """``outbox_of``: returns the outbox of a batch index; None if its source is gone."""

    def __init__(self, ledger: Ledger, room: Room, outbox_of: Callable[[int], Outbox | None]) -> None:
        self.counters = Counters()
        self._ledger, self._room, self._outbox_of = ledger, room, outbox_of
        self._uncounted: Uncounted | None = None

    def begin(self, uncounted: Uncounted) -> None:
        """Count what the next kernels change, as one. Call `finish` after them."""
        self._ledger.begin()
        self._uncounted = uncounted

    def finish(self) -> None:
        """Count what kernels have changed, unless that is done. Must come before any other use of the ledger."""
        found = self._uncounted
        if found is None:
            return
        found.note()
        ledger, room, counters, batch = self._ledger, self._room, self.counters, found.batch
        count = self._ledger.counters.tolist()
        created, dropped = count[kernels.CREATED], count[kernels.ROOTS_DROPPED]
        pending, orphans = room.pending + created - dropped, ledger.orphans + count[kernels.ORPHANS]
        reserved = room.reserved - created if batch is not None else room.reserved
        batch_inits = batch.inits + created if batch is not None else 0
        inits, inits_known = counters.inits + created, counters.inits_known + count[kernels.KNOWN]
        inits_conflicting = counters.inits_conflicting + count[kernels.CONFLICTS]
        updates, orphans_dropped = (
            counters.updates + count[kernels.APPLIED],
            counters.orphans_dropped + count[kernels.DROPPED],
        )
        orphans_expired = counters.orphans_expired + count[kernels.ORPHANS_EXPIRED]
        outcomes, is_uniform = count[kernels.OUTCOMES], not count[kernels.VARIETY]
        # Nothing below can fail.
        found.outputs.hold(outcomes, is_uniform, found.reasons)
        room.pending, room.reserved, ledger.orphans = pending, reserved, orphans
        if batch is not None:
            batch.inits = batch_inits
        counters.inits, counters.inits_known, counters.inits_conflicting = inits, inits_known, inits_conflicting
        counters.updates, counters.orphans_dropped = updates, orphans_dropped
        counters.orphans_expired = orphans_expired
        self._uncounted = None

    # -- outcomes

    def pass_on_all(self) -> Steps:
        """Put all outcomes that are on their way into outboxes, also those of other calls."""
        for outputs in self._ledger.outputs:
            yield from self.pass_on(outputs)

    def pass_on(self, outputs: Outputs) -> Steps:
        """Put outcomes into the outboxes of their sources. Until then their roots count as pending."""
        while not outputs.is_empty:
            self._pass_on_some(outputs)
            if not outputs.is_empty:
                yield
        self._ledger.drop_outputs(outputs)

    def _pass_on_some(self, outputs: Outputs) -> None:
        roots, info, stops = outputs.groups(GROUPS_A_STEP)
        for stop in stops:
            while outputs.at < stop:
                self._append(outputs, roots[outputs.at : stop], info[outputs.at : stop])

    def _append(self, outputs: Outputs, roots: Any, info: Any) -> None:
        """Put outcomes of one batch index into its outbox, as many as fit into a chunk."""
        first = int(info[0])
        index, verdicts, codes = first & _INDEX, first >> 16 & 0xFF, first >> 32
        if not outputs.is_uniform and np.any(info != info[0]):
            verdicts, codes = (info >> np.uint64(16)).astype(np.uint8), info >> np.uint64(32)
        outbox, ledger, room, counters = self._outbox_of(index), self._ledger, self._room, self.counters
        if outbox is None:
            wrote, chunk, counts = len(roots), None, [0, 0, 0, 0]
        else:
            chunk, wrote = outbox.write(roots, verdicts, codes, outputs.reasons)
            counts = tally(verdicts, wrote)
        at, pending, left = outputs.at + wrote, room.pending - wrote, int(ledger.pending[index]) - wrote
        acked, failed = counters.acked + counts[0], counters.failed + counts[1]
        timed_out, lost = counters.timed_out + counts[2], counters.lost + counts[3]
        unconfirmed = room.unconfirmed + wrote
        cursor, count = (0, 0) if chunk is None or outbox is None else (outbox.cursor + wrote, chunk.count + wrote)
        ledger.pending[index] = left
        # Nothing below can fail.
        outputs.at, room.pending = at, pending
        if chunk is not None and outbox is not None:
            chunk.count, outbox.cursor, room.unconfirmed = count, cursor, unconfirmed
            counters.acked, counters.failed = acked, failed
            counters.timed_out, counters.lost = timed_out, lost
