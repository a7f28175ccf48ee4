"""Soak: whether the memory of a server stays flat under a day of the mix of ``mix``, made by real clients.

With ``--simulated`` a shard in memory gets the calls, and the day passes in virtual time. Without it, a server process
gets all calls of a day over gRPC in 20 minutes, with shorter leases and timeouts; it also remembers reports for a
shorter time. The exit status is 1 if memory grows, see `growth`.

    python -m benchmarks.soak [--simulated [--hours 24] | --minutes 20]
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from acker_client.client import AckerClient
from acker_client.settings import Settings
from acker_service.http.metrics import GAUGES
from acker_testing.local import LocalServer, SimulatedTime, new_shard
from benchmarks import machine
from benchmarks.mix import LEASE_S, MEMORY_S, STEP_S, TIMEOUT_S, Mix
from benchmarks.service import server_process

# How much faster a day passes for a server process. Leases and the memory of reports are longer than that: on a busy
# machine, leases of 4 s would end.
FASTER, KEPT_FASTER = 72, 24
# Shorter than a lease: one source must not keep the others from renewing theirs.
BUDGET_S = 4.0
HOUR_S = 3600.0
# How many mixes run side by side.
MIXES = 2
# How much more a later part of a run may take than an earlier one. With real time, the draw counts for more: its leases
# are longer beside the rest. Memory that leaks at a steady rate doubles.
GROWTH_MAX, GROWTH_OF_PROCESS_MAX, RSS_GROWTH_MAX_MB = 1.05, 1.1, 8.0
# Added for a single kind, which may be small and change much with the draw.
KIND_GROWTH_MAX_BYTES = 64 << 10
# Counts change more with the draw than all bytes do. They show what is small beside the rest.
COUNT_GROWTH_MAX, COUNT_GROWTH_MIN = 1.5, 20
# Memory is not flat if only the load has fallen.
LOAD_MIN = 0.8
COUNTS = ("sources", "pending", "unconfirmed", "orphans", "identities", "open_batches")
KIND = re.compile(r'acker_memory_bytes{kind="(\w+)"}')


@dataclass(slots=True)
class Samples:
    """Holds the measurements of a part of the run: sums of accounted bytes by kind, without the allowance for the
    process, sums of counts, and the peak of resident bytes. ``calls_per_s`` is 0 if nobody counts."""

    samples: int = 0
    bytes_by_kind: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    rss_mb: float = 0.0
    calls_per_s: float = 0.0

    def add(self, bytes_by_kind: Mapping[str, float], counts: Mapping[str, float], rss_mb: float) -> None:
        # Not a list, which would grow beside the shard.
        self.samples += 1
        self.bytes_by_kind.update({kind: int(size) for kind, size in bytes_by_kind.items() if kind != "process"})
        self.counts.update({name: int(counts[name]) for name in COUNTS})
        self.rss_mb = max(self.rss_mb, rss_mb)

    def bytes_of(self, kind: str) -> float:
        """Return the mean of the accounted bytes of a kind, or of "all"."""
        return (self.bytes_by_kind.total() if kind == "all" else self.bytes_by_kind[kind]) / self.samples

    def mean_of(self, count: str) -> float:
        return self.counts[count] / self.samples

    def __str__(self) -> str:
        kinds = " ".join(f"{kind} {self.bytes_of(kind) / 1e3:,.0f}" for kind in ("all", *self.bytes_by_kind))
        counts = " ".join(f"{name} {self.mean_of(name):,.0f}" for name in COUNTS)
        calls = f" | {self.calls_per_s:,.0f} calls/s" if self.calls_per_s else ""
        return f"RSS {self.rss_mb:.1f} MB | kB: {kinds} | {counts}{calls}"


def growth(parts: list[Samples], growth_max: float = GROWTH_MAX) -> list[str]:
    """Return what has grown; empty if memory is flat. Compares the second half of the run with what came before it,
    without the first eighth: the means of accounted bytes and of counts, and the peaks of resident bytes."""
    early, late = parts[len(parts) // 8 : len(parts) // 2], parts[len(parts) // 2 :]
    found = []
    for kind in ("all", *parts[-1].bytes_by_kind):
        before, after = (statistics.fmean(part.bytes_of(kind) for part in some) for some in (early, late))
        if after > growth_max * before + (0 if kind == "all" else KIND_GROWTH_MAX_BYTES):
            found.append(f"accounted bytes of {kind}: {before / 1e3:,.0f} kB, then {after / 1e3:,.0f} kB")
    for name in COUNTS:
        before, after = (statistics.fmean(part.mean_of(name) for part in some) for some in (early, late))
        if after > COUNT_GROWTH_MAX * before + COUNT_GROWTH_MIN:
            found.append(f"{name}: {before:,.0f}, then {after:,.0f}")
    before, after = (max(part.rss_mb for part in some) for some in (early, late))
    if after > before + RSS_GROWTH_MAX_MB:
        found.append(f"RSS: {before:.1f} MB, then {after:.1f} MB")
    before, after = (statistics.fmean(part.calls_per_s for part in some) for some in (early, late))
    if after < LOAD_MIN * before:
        found.append(f"the load fell: {before:,.0f} calls/s, then {after:,.0f}; this machine was too busy")
    return found


def simulate(count: int, part_s: float = HOUR_S, mixes: int = MIXES) -> tuple[list[Samples], list[Mix]]:
    """Run the mix in virtual time. Returns the samples of ``count`` parts of ``part_s`` each."""
    passing = SimulatedTime()
    server = LocalServer(new_shard(incarnation=1, generation=1), clock=passing.clock, sleep=passing.sleep)

    def new_client() -> AckerClient:
        return AckerClient(connect=server.connect, clock=passing.clock, sleep=passing.sleep)

    running, parts = [Mix(new_client, seed) for seed in range(mixes)], list[Samples]()
    for number in range(1, count + 1):
        part = Samples()
        while passing.clock() < number * part_s:
            for mix in running:
                mix.step()
            stats = server.shard.stats
            part.add(stats.memory, {name: getattr(stats, name) for name in COUNTS}, 0.0)
            passing.sleep(STEP_S)
        part.rss_mb = machine.status_mb(os.getpid(), "VmRSS")
        parts.append(part)
        print(f"{number * part_s / HOUR_S:>4.1f} h: {part}", flush=True)
    return parts, running


def soak(minutes: int) -> tuple[list[Samples], list[Mix]]:
    """Run the mix on a server process. Returns the samples of each minute."""
    flags = (
        f"--memory-s={MEMORY_S / KEPT_FASTER}",
        f"--orphan-timeout-s={MEMORY_S / KEPT_FASTER}",
        "--http-port=off",
    )
    with open(os.devnull, "wb") as log, server_process(*flags, stderr=log) as (process, ready):
        settings = Settings((ready["address"],), budget_s=BUDGET_S)
        times = LEASE_S / KEPT_FASTER, TIMEOUT_S / FASTER
        mixes = [Mix(lambda: AckerClient(settings), seed, *times) for seed in range(MIXES)]
        is_over = threading.Event()
        threads = [threading.Thread(target=_keep_up, args=(mix, is_over)) for mix in mixes]
        for thread in threads:
            thread.start()
        try:
            with AckerClient(ready["address"]) as client:
                parts = [_minute(client, process.pid, minute + 1, threads) for minute in range(minutes)]
        finally:
            is_over.set()
            for thread in threads:
                thread.join()
    return parts, mixes


def _keep_up(mix: Mix, is_over: threading.Event) -> None:
    due_s = time.monotonic()
    while not is_over.is_set():
        mix.step()
        # A busy machine skips the steps that it could not do in time.
        due_s = max(due_s + STEP_S / FASTER, time.monotonic())
        is_over.wait(due_s - time.monotonic())


def _minute(client: AckerClient, pid: int, minute: int, threads: list[threading.Thread]) -> Samples:
    part, begun_s, calls = Samples(), time.monotonic(), _calls(client)
    while time.monotonic() < begun_s + 60.0:
        if not all(thread.is_alive() for thread in threads):
            raise RuntimeError("a mix has ended with an error")
        figures = client.stats().values
        kinds = {found[1]: size for name, size in figures.items() if (found := KIND.fullmatch(name))}
        counts = {name: figures[GAUGES[name][0]] for name in COUNTS}
        part.add(kinds, counts, machine.status_mb(pid, "VmRSS"))
        time.sleep(0.5)
    part.calls_per_s = (_calls(client) - calls) / (time.monotonic() - begun_s)
    print(f"minute {minute:>2}: {part}", flush=True)
    return part


def _calls(client: AckerClient) -> float:
    return sum(n for name, n in client.stats().values.items() if name.startswith("acker_call_duration_seconds_count"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulated", action="store_true", help="a shard in memory, in virtual time")
    parser.add_argument("--hours", type=int, default=24, help="how long the virtual time is; at least 8")
    parser.add_argument("--minutes", type=int, default=20, help="how long the server process runs; at least 8")
    options = parser.parse_args()
    if min(options.hours, options.minutes) < 8:
        parser.error("fewer than 8 parts of a run cannot be compared: give more --hours or --minutes")
    print(*(f"{name} {value}" for name, value in machine.describe().items()), flush=True)
    parts, mixes = simulate(options.hours) if options.simulated else soak(options.minutes)
    print(
        *(
            f"{name}: {sum(getattr(mix, name) for mix in mixes)}"
            for name in ("opened", "replayed", "recounted", "failed")
        )
    )
    grown = growth(parts, GROWTH_MAX if options.simulated else GROWTH_OF_PROCESS_MAX)
    print(*grown or ["flat"], sep="\n")
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())
