"""Cluster: several servers behind one source, as processes on this machine under a real ZooKeeper.

Measures two things:

- The cost of replicas and more servers: processor time of all processes per million updates, compared with one server.
- The effect on a source when servers come and go under load: the longest time without an outcome, the number of roots
  that were not ACKED, and whether any outcome was missing.

One process reads batches, acks them in three reports and settles them one after the other, as a Spark job would. An
update counts once, however many replicas get it.

    python -m benchmarks.cluster [--quick] [--only cost|events]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from acker_client import AckerClient, Identity, InitScope, Settings, Settlement, Verdict
from acker_protocol import ids
from acker_protocol.reports import fold
from acker_testing import ZooKeeperProcess
from acker_testing.child import Child
from benchmarks import machine

ACKS = 3
UPDATES_A_ROOT = 1 + ACKS
ROOTS = 500_000
ROOTS_UNDER_EVENTS = 25_000
SESSION_S = 2.0
ROUNDS = 5


class Servers:
    """Servers under one ZooKeeper, by their ids."""

    def __init__(self, folder: Path, zookeeper: ZooKeeperProcess, chroot: str) -> None:
        self._folder, self._registry = folder, f"{zookeeper.address}/{chroot}"
        self.running: dict[int, Child] = {}
        self._ports: dict[int, int] = {}

    def start(self, number: int) -> None:
        """Start a server, with the state that it saved at its last stop, if any."""
        folder = self._folder / str(number)
        (folder / "state").mkdir(parents=True, exist_ok=True)
        (folder / "ready.json").unlink(missing_ok=True)
        flags = [f"--zookeeper={self._registry}", f"--id={number}", f"--zookeeper-session-s={SESSION_S:g}"]
        flags += [f"--state-dir={folder / 'state'}", f"--port={self._ports.get(number, 0)}"]
        child = Child(folder, *flags)
        self._ports[number] = int(child.await_ready().rpartition(":")[2])
        self.running[number] = child

    def restart(self, number: int) -> None:
        """Restart a server as planned, so that it keeps its state."""
        self.running.pop(number).terminate()
        self.start(number)

    def kill(self, number: int) -> None:
        self.running.pop(number).kill()

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(child.address for child in self.running.values())

    @property
    def processor_s(self) -> float:
        """User and system processor time of the running servers."""
        return sum(machine.processor_s(child.pid) for child in self.running.values())

    def end(self) -> None:
        for child in self.running.values():
            child.end()


@dataclass
class Load:
    """One source that emits, acks and settles batch after batch."""

    addresses: tuple[str, ...]
    replicas: int
    roots: int
    ended: Counter[Verdict] = field(default_factory=Counter)
    emitted: int = 0
    # When each batch was over. The gaps between these times are the stalls that a source notices.
    over_at: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._client = AckerClient(Settings(self.addresses, replicas=self.replicas))
        self._session = self._client.open_source("benchmark")
        self._number = 0

    def batch(self) -> None:
        """Run one batch, from its opening to its last outcome."""
        self._number += 1
        first = self._number << 32
        pin = self._client.open_batch(self._number, first, self.roots)
        roots = ids.root_ids(first, np.arange(self.roots, dtype=np.uint64))
        edges = ids.edge0_column(roots)
        covered = InitScope(self._session, self._number, np.array([[0, self.roots]], np.uint64))
        self._client.report_pinned(self._identity(0), fold(roots, edges), covered, (pin,))
        acks = [ids.mix64_column(edges ^ np.uint64(step)) for step in range(1, ACKS)]
        acks.append(edges ^ np.bitwise_xor.reduce(acks))
        for step, vals in enumerate(acks, start=1):
            self._client.report_pinned(self._identity(step), fold(roots, vals), None, (pin,))
        self.emitted += self.roots
        self._client.settle(self._number, Settlement.DONE)
        while True:
            watched = self._client.watch(5.0)
            values, counts = np.unique(watched.outcomes.verdicts, return_counts=True)
            self.ended.update({Verdict(int(value)): int(count) for value, count in zip(values, counts, strict=True)})
            if self._number in watched.settled:
                self.over_at.append(time.monotonic())
                return

    def close(self) -> None:
        self._client.close_source()
        self._client.close()

    def _identity(self, step: int) -> Identity:
        return Identity(self._session, self._number * 10 + step)


@contextlib.contextmanager
def cluster(folder: Path, zookeeper: ZooKeeperProcess, name: str, count: int) -> Iterator[Servers]:
    servers = Servers(folder / name, zookeeper, name)
    try:
        for number in range(count):
            servers.start(number)
        yield servers
    finally:
        servers.end()


def cost(folder: Path, zookeeper: ZooKeeperProcess, *, rounds: int, batches: int) -> dict[str, Any]:
    """Return processor seconds per million updates, of servers and client together, and updates per second. The cases
    take turns; the figures are medians of the rounds."""
    cases = {"1 server": (1, 1), "3 servers": (3, 1), "2 servers": (2, 1), "2 servers, 2 replicas": (2, 2)}
    with contextlib.ExitStack() as stack:
        running = {
            name: stack.enter_context(cluster(folder, zookeeper, f"cost{index}", count))
            for index, (name, (count, _)) in enumerate(cases.items())
        }
        loads = {name: Load(running[name].addresses, replicas, ROOTS) for name, (_, replicas) in cases.items()}
        figures: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
        for round_ in range(rounds + 1):
            for name, load in loads.items():
                taken = _measured(running[name], load, batches)
                if round_:
                    figures[name].append(taken)
        for load in loads.values():
            load.close()
    return {
        name: {
            "processor_s_a_million": round(statistics.median(each[0] for each in taken), 3),
            "updates_per_s": round(statistics.median(each[1] for each in taken)),
        }
        for name, taken in figures.items()
    }


def _measured(servers: Servers, load: Load, batches: int) -> tuple[float, float]:
    """Return (processor seconds per million updates, updates per second)."""
    used, began = servers.processor_s + time.process_time(), time.monotonic()
    for _ in range(batches):
        load.batch()
    updates = batches * load.roots * UPDATES_A_ROOT
    used = servers.processor_s + time.process_time() - used
    return used / updates * 1e6, updates / (time.monotonic() - began)


Event = Callable[[Servers], None]


def _drain(servers: Servers) -> None:
    from acker_client.rpc.transport import GrpcTransport

    transport = GrpcTransport(servers.running[0].address)
    transport.drain(5.0)
    transport.close()
    servers.running.pop(0).wait()


def _roll(servers: Servers) -> None:
    for number in (0, 1, 2):
        servers.restart(number)


EVENTS: dict[str, tuple[int, Event]] = {
    "a third server joins two": (2, lambda servers: servers.start(2)),
    "one of three drains": (3, _drain),
    "three are restarted, one after the other": (3, _roll),
    "one of three is killed": (3, lambda servers: servers.kill(0)),
}


def events(folder: Path, zookeeper: ZooKeeperProcess, *, quiet_s: float) -> list[dict[str, Any]]:
    """Return for each event the longest time between the ends of two batches, before the event and from its
    start on."""
    found = []
    for replicas in (1, 2):
        for index, (name, (count, event)) in enumerate(EVENTS.items()):
            with cluster(folder, zookeeper, f"events{replicas}{index}", count) as servers:
                found.append({"event": name, "replicas": replicas, **_under_load(servers, replicas, event, quiet_s)})
    return found


def _under_load(servers: Servers, replicas: int, event: Event, quiet_s: float) -> dict[str, Any]:
    load = Load(servers.addresses, replicas, ROOTS_UNDER_EVENTS)
    is_over = threading.Event()

    def happen() -> None:
        time.sleep(quiet_s)
        times.append(time.monotonic())
        event(servers)
        times.append(time.monotonic())
        time.sleep(quiet_s + 2 * SESSION_S)
        is_over.set()

    times: list[float] = []
    load.batch()
    happening = threading.Thread(target=happen, daemon=True)
    happening.start()
    while not is_over.is_set():
        load.batch()
    happening.join()
    load.close()
    gaps = list(zip(load.over_at[1:], np.diff(load.over_at), strict=True))
    span_s = load.over_at[-1] - load.over_at[0]
    return {
        "stall_s": round(max((gap for at, gap in gaps if at >= times[0]), default=0.0), 2),
        "stall_before_s": round(max((gap for at, gap in gaps if at < times[0]), default=0.0), 2),
        "event_s": round(times[1] - times[0], 1),
        "updates_per_s": round(load.emitted * UPDATES_A_ROOT / span_s),
        "emitted": load.emitted,
        "not_acked": load.ended.total() - load.ended[Verdict.ACKED],
        "missing": load.emitted - load.ended.total(),
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--only", choices=("cost", "events"))
    options = parser.parse_args(arguments)
    report: dict[str, Any] = {"machine": machine.describe()}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        zookeeper = ZooKeeperProcess(folder)
        try:
            if options.only != "events":
                report["cost"] = cost(
                    folder, zookeeper, rounds=1 if options.quick else ROUNDS, batches=2 if options.quick else 5
                )
            if options.only != "cost":
                report["events"] = events(folder, zookeeper, quiet_s=2.0 if options.quick else 4.0)
        finally:
            zookeeper.kill()
    print(json.dumps(report, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
