"""Identities: an hour of reports at a full rate, all with new identities.

Measures when the bound of their memory is reached, how many are dropped then, and what a report costs before and after.
A shard in memory gets the reports in virtual time.

    python -m benchmarks.identities
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from dataclasses import dataclass

import numpy as np

from acker_protocol import ids, reports
from acker_protocol.messages import Apply, Identity, InitScope, Status, Watch
from acker_service.core.memory import DEFAULT_BYTES, bounds_of
from acker_testing.local import new_shard
from benchmarks import machine

# About as many as one server takes over gRPC. Each has one root, so that its identity is as much of its cost as can be.
REPORTS_PER_S = 3000
TICKS_PER_S = 20


@dataclass(frozen=True, slots=True)
class Minute:
    """One minute of new identities. ``dropped``: how many were forgotten for want of room. ``bytes_max``: what all
    identities took at most. ``cost_s``: processor time of a report."""

    identities: int
    dropped: int
    bytes_max: int
    cost_s: float
    rss_mb: float

    def __str__(self) -> str:
        return (
            f"{self.identities:,} identities, {self.bytes_max / 1e6:,.1f} MB, {self.dropped / 60:,.0f} dropped a "
            f"second, {self.cost_s * 1e6:.1f} us a report, RSS {self.rss_mb:.1f} MB"
        )


class Filling:
    """A shard that gets reports with new identities. ``max_bytes``: bounds their memory."""

    def __init__(self, max_bytes: int) -> None:
        self._shard = new_shard(incarnation=1, generation=1, max_identity_bytes=max_bytes)
        roots = ids.root_ids(1 << 40, np.arange(1, dtype=np.uint64))
        self._entries = reports.fold(roots, ids.edge0_column(roots))
        self._digest = reports.digest(self._entries)
        self._number = self._cursor = 0

    def pass_minute(self, reports_per_s: int = REPORTS_PER_S) -> Minute:
        """Send the reports of the next minute."""
        shard, dropped, bytes_max, cost_s = self._shard, self._shard.stats.identities_dropped, 0, 0.0
        for number in range(self._number, self._number + 60 * reports_per_s):
            now = number / reports_per_s
            if number % (reports_per_s // TICKS_PER_S) == 0:
                shard.tick(now)
                self._cursor = shard.watch(Watch("full rate", 1, 600_000, confirmed=self._cursor), now).cursor
                bytes_max = max(bytes_max, shard.stats.identities_bytes)
            # The root starts in one report and ends in the next one.
            scope = None if number % 2 else InitScope(1, 0)
            message = Apply(Identity(7, number), self._digest, self._entries, scope)
            begun_s = time.thread_time()
            reply = shard.apply(message, now)
            cost_s += time.thread_time() - begun_s
            if reply.status != Status.APPLIED:
                raise AssertionError(f"a new report was not applied: {reply}")
        self._number += 60 * reports_per_s
        stats, rss_mb = shard.stats, machine.status_mb(os.getpid(), "VmRSS")
        dropped = stats.identities_dropped - dropped
        return Minute(stats.identities, dropped, bytes_max, cost_s / (60 * reports_per_s), rss_mb)


def main() -> int:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    max_bytes = bounds_of(DEFAULT_BYTES).max_identity_bytes
    filling, minutes = Filling(max_bytes), list[Minute]()
    for number in range(1, 61):
        minutes.append(filling.pass_minute())
        print(f"minute {number:>2}: {minutes[-1]}", flush=True)
    before = statistics.median(each.cost_s for each in minutes if not each.dropped)
    after = statistics.median(each.cost_s for each in minutes if each.dropped == 60 * REPORTS_PER_S)
    most = max(each.bytes_max for each in minutes)
    print(f"at most {most:,} bytes, of {max_bytes:,} allowed")
    print(f"a report costs {before * 1e6:.1f} us before the bound is reached, and {after / before:.2f} x that after")
    return 1 if most > max_bytes else 0


if __name__ == "__main__":
    sys.exit(main())
