"""Costs: what one call, one connection and one view cost a server, measured at a process over loopback.

Processor times include gRPC's own threads, so they are upper bounds of what holds the GIL.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from acker_client import Settings
from acker_client.rpc.transport import GrpcTransport
from acker_protocol import ids, reports, wire
from acker_protocol.messages import (
    PROTOCOL_VERSION,
    Apply,
    Hello,
    HelloReply,
    Identity,
    InitScope,
    ListedMember,
    ViewReply,
    Watch,
)
from acker_protocol.placement import Member, View
from benchmarks import machine
from benchmarks.service import send, server_process

TIMEOUT_S = 60.0
ROUNDS = 6
SESSION, BASE = 7, 1 << 40


@dataclass(frozen=True, slots=True)
class Costs:
    """Processor time of a server, and memory of a connection."""

    report_s: float
    entry_s: float
    connection_s: float
    tls_connection_s: float
    view_s: float
    connection_bytes: float


def view_of(servers: int) -> View:
    return View(1, tuple(Member(each, 1, f"server-{each}.acker:7070") for each in range(servers)))


@contextmanager
def measured_server(*flags: str) -> Iterator[tuple[int, str]]:
    """Run a server, and yield its process id and address."""
    with server_process("--http-port=off", "--log-level=warning", *flags) as (process, ready):
        yield process.pid, str(ready["address"])


def a_call(pid: int, calls: int, work: Callable[[int], object]) -> float:
    """Return the processor time of a server for one of the calls of ``work(round)``, which makes ``calls`` calls: the
    least of ROUNDS, because other work on the machine only makes it longer."""
    taken = []
    for number in range(ROUNDS):
        used = machine.processor_s(pid)
        work(number)
        taken.append((machine.processor_s(pid) - used) / calls)
    return min(taken)


def messages(entries: int, count: int, number: int) -> list[Apply]:
    """Return the reports of round ``number``: ``count`` reports of inits, of ``entries`` new roots each."""
    made = []
    for report in range(number * count, (number + 1) * count):
        first = entries << 32 | report * entries
        roots = ids.root_ids(BASE, np.arange(first, first + entries, dtype=np.uint64))
        folded = reports.fold(roots, ids.edge0_column(roots))
        made.append(Apply(Identity(entries, report), reports.digest(folded), folded, InitScope(SESSION, 0)))
    return made


def measure_costs(quick: bool) -> Costs:
    count, small, large = 10 if quick else 100, 128, 4096
    with measured_server() as (pid, address):
        transport = GrpcTransport(address)
        transport.watch(Watch("fleet", SESSION, 600_000), TIMEOUT_S)
        small_s = a_call(pid, count, lambda number: send(address, messages(small, count, number), senders=1))
        large_s = a_call(pid, count, lambda number: send(address, messages(large, count, number), senders=1))
        hello_s = a_call(pid, count, lambda _: [greet(transport) for _ in range(count)])
        view_s = a_call(pid, count, lambda _: [transport.view(TIMEOUT_S) for _ in range(count)]) + encoded_view_s(count)
        connection_s = a_call(pid, count, lambda _: connect(Settings((address,)), count)) - hello_s
        connection_bytes = held_bytes(pid, address, 3 * count)
        transport.close()
    with tempfile.TemporaryDirectory() as folder, measured_server(f"--own-access={folder}/own") as (pid, _):
        tls = Settings.from_access_file(Path(folder) / "own" / "access.json")
        tls_connection_s = a_call(pid, count, lambda _: connect(tls, count)) - hello_s
    entry_s = (large_s - small_s) / (large - small)
    fixed_s = small_s - small * entry_s
    return Costs(fixed_s, entry_s, connection_s, tls_connection_s, view_s, connection_bytes)


def greet(transport: GrpcTransport) -> HelloReply:
    return transport.hello(Hello(PROTOCOL_VERSION, "fleet"), TIMEOUT_S)


def connect(settings: Settings, count: int) -> None:
    """Open a connection, call Hello and close it, ``count`` times."""
    for _ in range(count):
        transport = GrpcTransport(settings.servers[0], settings)
        greet(transport)
        transport.close()


def held_bytes(pid: int, address: str, count: int) -> float:
    """Return the memory that one more open connection takes at the server."""
    before = machine.status_mb(pid, "VmRSS")
    held = [GrpcTransport(address) for _ in range(count)]
    for transport in held:
        greet(transport)
    grown = (machine.status_mb(pid, "VmRSS") - before) * 1e6 / count
    for transport in held:
        transport.close()
    return max(0.0, grown)


def encoded_view_s(count: int) -> float:
    """Return the time to encode a view of 100 members, which a server without ZooKeeper does not have."""
    reply = ViewReply(1, 1, tuple(map(ListedMember, view_of(100).members)))
    return a_call(os.getpid(), count, lambda _: [wire.encode(reply).SerializeToString() for _ in range(count)])
