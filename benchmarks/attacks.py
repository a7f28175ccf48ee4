"""Attacks: what one hostile client takes from a server, and from an honest client of that server.

For each attack, a new server process is measured before, during and after the attack: its memory, its log, its probes
(once a second), and an Apply of an honest client every few milliseconds. Percentiles count from the moment when a call
was due, so they include the time for which it waited for the call before it. The attacker is a process of its own with
a lower priority, so that it takes little of the processors itself.

    python -m benchmarks.attacks [--quick] [--only NAME ...] [--flag=--OPTION=VALUE ...]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from http.client import HTTPConnection, HTTPException
from typing import Any

import grpc
import numpy as np

from acker_client.errors import AckerError
from acker_client.rpc.transport import OPTIONS, GrpcTransport
from acker_protocol import ids, reports, wire
from acker_protocol.messages import (
    FAIL,
    PINS_MAX_BYTES,
    Apply,
    Entries,
    Identity,
    InitScope,
    OpenBatch,
    Settle,
    Settlement,
    Status,
    Watch,
)
from benchmarks import machine
from benchmarks.service import server_process
from tests.service.half_sent import HalfSender

# An honest client sends a report this often, each with one root.
INTERVAL_S = 0.005
# As Kubernetes' probes do, unless they are told otherwise.
PROBE_EVERY_S = PROBE_TIMEOUT_S = 1.0
TIMEOUT_S = 60.0
LEASE_MS = 600_000
# A session that no attack uses.
HONEST = 1 << 60
THREADS = 4


@dataclass(frozen=True, slots=True)
class Phases:
    """How long each attack is measured. ``after_s`` covers two checks of the server whether memory should be freed."""

    quiet_s: float = 5.0
    attack_s: float = 15.0
    after_s: float = 11.0


class Attacker:
    """The connections and counts of an attack. ``answers`` counts the answers: names of statuses, or of errors."""

    def __init__(self, address: str, http_address: str) -> None:
        self.address, self.http_address = address, http_address
        self.answers: Counter[str] = Counter()
        self._transport = GrpcTransport(address)

    def connect(self) -> GrpcTransport:
        """Return another connection."""
        return GrpcTransport(self.address)

    def ask(self, request: object, transport: GrpcTransport | None = None) -> None:
        """Send one request and count its answer."""
        to = transport or self._transport
        call: Any = {Watch: to.watch, Apply: to.apply, OpenBatch: to.open_batch, Settle: to.settle}[type(request)]
        try:
            self.answers[call(request, TIMEOUT_S).status.name] += 1
        except AckerError as error:
            self.answers[type(error).__name__] += 1

    def send(self, method: str, contents: bytes) -> None:
        """Send bytes as the request of a call and count its answer."""
        with grpc.insecure_channel(self.address, OPTIONS) as channel:
            call: Any = channel.unary_unary(f"/acker.v1.Acker/{method}", None, None)
            try:
                call(contents, timeout=TIMEOUT_S)
                self.answers["OK"] += 1
            except grpc.RpcError as error:
                self.answers[error.code().name] += 1

    def open(self, session: int, pins: bytes = b"", transport: GrpcTransport | None = None) -> None:
        """Open a source, or renew its lease."""
        self.ask(Watch(f"source {session}", session, LEASE_MS, max_outcomes=1, pins=pins), transport)

    def fail(self, session: int, first: int, reasons: tuple[str, ...], roots: int) -> None:
        """Let ``roots`` roots of the session's open stream fail, with the ``reasons`` in turn."""
        numbers = np.arange(first, first + roots, dtype=np.uint64)
        column = ids.root_ids(1 << 40, numbers)
        started = reports.fold(column, ids.edge0_column(column))
        reason_ids = np.arange(roots, dtype=np.uint32) % np.uint32(len(reasons))
        ended = Entries(
            started.root_ids, np.zeros(roots, np.uint64), np.full(roots, FAIL, np.uint8), reason_ids, reasons
        )
        for low, entries, scope in ((0, started, InitScope(session, 0)), (1, ended, None)):
            self.ask(Apply(Identity(first, low), reports.digest(entries), entries, scope))


def unread_replies(attacker: Attacker) -> None:
    """Watch on 5 connections with 120 streams each, and never read the replies of 3 MB each."""
    attacker.open(1)
    for first in range(0, 250_000, 50_000):
        attacker.fail(1, first, ("no reason",), 50_000)
    request = wire.encode(Watch("source 1", 1, LEASE_MS, max_outcomes=0)).SerializeToString()
    senders = [HalfSender(attacker.address) for _ in range(5)]
    for sender, _ in itertools.product(senders, range(120)):
        sender.begin("Watch", request=request)
        attacker.answers["sent"] += 1
    threading.Event().wait()


def reasons(attacker: Attacker) -> None:
    """Open 200 sources, and let 128 roots of each fail with reasons of 4 KiB that are all different."""
    # With one character beyond the 16-bit ones, Python keeps each character in four bytes.
    text = "\U0001f600" + "x" * 4000
    for session in range(1, 201):
        attacker.open(session)
        attacker.fail(session, session << 20, tuple(f"{text} {session} {n}" for n in range(128)), 128)


def pins(attacker: Attacker) -> None:
    """Open 16,000 sources with the largest pins."""
    content, sessions = os.urandom(PINS_MAX_BYTES), itertools.count(1)

    def work() -> None:
        transport = attacker.connect()
        while (session := next(sessions)) <= 16_000:
            attacker.open(session, content, transport)

    _in_threads(work)


def refused_batches(attacker: Attacker) -> None:
    """Open a batch of 320 M numbers in all slots but one, which is refused, again and again."""
    attacker.open(1)
    while True:
        attacker.ask(OpenBatch(1, 1, 1 << 40, 320_000_000, slots=b"\xfe" + b"\xff" * 127))


def sparse_settlements(attacker: Attacker) -> None:
    """Settle batches of 60 M numbers, of which one slot with 58 k roots is on this server."""
    attacker.open(1)
    for number in itertools.count(1):
        attacker.ask(OpenBatch(1, number, number << 30, 60_000_000, slots=b"\x01" + bytes(127)))
        attacker.ask(Settle(1, number, Settlement.DONE))


def covered_ranges(attacker: Attacker) -> None:
    """Cover a batch in 1 M ranges that do not touch, again and again."""
    attacker.open(1)
    attacker.ask(OpenBatch(1, 1, 1 << 40, 2_000_000))
    starts = np.arange(0, 2_000_000, 2, dtype=np.uint64)
    covered = np.column_stack((starts, starts + np.uint64(1)))
    empty = Entries(np.empty(0, np.uint64), np.empty(0, np.uint64))
    for number in itertools.count():
        attacker.ask(Apply(Identity(1, number), reports.digest(empty), empty, InitScope(1, 1, covered)))


def empty_reasons(attacker: Attacker) -> None:
    """Send a report with 8 M empty reasons, again and again."""
    roots = ids.root_ids(1 << 40, np.arange(1, dtype=np.uint64))
    entries = Entries(roots, roots)
    for number in itertools.count():
        report = wire.encode(Apply(Identity(1, number), reports.digest(entries), entries)).SerializeToString()
        # Field 8, reasons: a text of no bytes.
        attacker.send("Apply", report + b"\x42\x00" * 8_000_000)


def half_sent(attacker: Attacker) -> None:
    """Begin 120 reports on each of 8 connections without ever sending all of one, and again when one is cancelled."""

    def work() -> None:
        while True:
            with contextlib.suppress(OSError), HalfSender(attacker.address) as sender:
                begun = {sender.begin("Apply") for _ in range(120)}
                while ended := sender.next_ended():
                    # The server ends a stream twice: with a status, and with a reset.
                    if ended in begun:
                        attacker.answers["ended"] += 1
                        # gRPC refuses at once what is too much, without any work of the server.
                        time.sleep(0.01)
                        begun ^= {ended, sender.begin("Apply")}

    _in_threads(work, 8)


def scrapers(attacker: Attacker) -> None:
    """Scrape /metrics from 400 clients, each again and again."""
    host, _, port = attacker.http_address.rpartition(":")

    async def scrape() -> None:
        while True:
            try:
                reader, writer = await asyncio.open_connection(host, int(port))
                writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
                content = await reader.read(1 << 20)
                while some := await reader.read(1 << 20):
                    content += some
                attacker.answers[content[9:12].decode() or "closed"] += 1
                writer.close()
            except OSError as error:
                attacker.answers[type(error).__name__] += 1

    async def scrape_all() -> None:
        await asyncio.gather(*(scrape() for _ in range(400)))

    asyncio.run(scrape_all())


def short_sources(attacker: Attacker) -> None:
    """Open and close sources with the longest names, again and again."""
    numbers = itertools.count(1)

    def work() -> None:
        transport = attacker.connect()
        for session in numbers:
            # A log line needs twelve bytes for each of these characters.
            name = "\U000e0001" * 240 + str(session)
            attacker.ask(Watch(name, session, LEASE_MS), transport)
            attacker.ask(Watch(name, session, LEASE_MS, close=True), transport)

    _in_threads(work)


ATTACKS: dict[str, Callable[[Attacker], None]] = {
    attack.__name__: attack
    for attack in (
        unread_replies,
        reasons,
        pins,
        refused_batches,
        sparse_settlements,
        covered_ranges,
        empty_reasons,
        half_sent,
        scrapers,
        short_sources,
    )
}


def _in_threads(work: Callable[[], None], threads: int = THREADS) -> None:
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(work) for _ in range(threads)]:
            done.result()


def _attack(name: str, address: str, http_address: str, pipe: Any) -> None:
    """Run an attack until the other end of ``pipe`` says that it is over, and send the answers. Runs in a process."""
    os.nice(10)
    attacker = Attacker(address, http_address)
    pipe.send("ready")
    pipe.recv()
    threading.Thread(target=ATTACKS[name], args=(attacker,), daemon=True).start()
    pipe.recv()
    pipe.send(dict(attacker.answers))


@dataclass(frozen=True, slots=True)
class Call:
    """An honest call: when it was due, sent and answered, and whether it was applied."""

    due_s: float
    sent_s: float
    answered_s: float
    is_applied: bool


class Honest:
    """A client that sends a report every INTERVAL_S, in a thread."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.calls: list[Call] = []
        self._thread = _Loop(self._run)

    def stop(self) -> None:
        self._thread.stop()

    def _run(self, is_over: threading.Event) -> None:
        transport = GrpcTransport(self._address)
        due_s = time.monotonic()
        cursor = 0
        for number in itertools.count():
            if is_over.is_set():
                return
            if number % 200 == 0:
                with contextlib.suppress(AckerError):
                    watch = Watch("honest", HONEST, LEASE_MS, confirmed=cursor, max_outcomes=200_000)
                    cursor = transport.watch(watch, TIMEOUT_S).cursor or cursor
            due_s += INTERVAL_S
            time.sleep(max(0.0, due_s - time.monotonic()))
            root, is_init = ids.root_ids(1 << 50, np.array([number // 2], np.uint64)), number % 2 == 0
            entries = Entries(root, ids.edge0_column(root))
            report = Apply(
                Identity(HONEST, number, True),
                reports.digest(entries),
                entries,
                InitScope(HONEST, 0) if is_init else None,
            )
            sent_s = time.monotonic()
            try:
                is_applied = transport.apply(report, TIMEOUT_S).status == Status.APPLIED
            except AckerError:
                is_applied = False
            self.calls.append(Call(due_s, sent_s, time.monotonic(), is_applied))


class Probing:
    """Asks /livez and /readyz once a second. ``probes``: when each was asked, and whether it answered 200 in time."""

    def __init__(self, http_address: str) -> None:
        self._http_address = http_address
        self.probes: list[tuple[float, bool]] = []
        self._threads = [_Loop(partial(self._run, path)) for path in ("/livez", "/readyz")]

    def stop(self) -> None:
        for thread in self._threads:
            thread.stop()

    def _run(self, path: str, is_over: threading.Event) -> None:
        while not is_over.wait(PROBE_EVERY_S):
            asked_s = time.monotonic()
            self.probes.append((asked_s, self._ask(path) and time.monotonic() < asked_s + PROBE_TIMEOUT_S))

    def _ask(self, path: str) -> bool:
        connection = HTTPConnection(self._http_address, timeout=PROBE_TIMEOUT_S)
        try:
            connection.request("GET", path)
            return connection.getresponse().status == 200
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()


class _Loop:
    """A thread that runs until it is stopped."""

    def __init__(self, run: Callable[[threading.Event], None]) -> None:
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=run, args=(self._is_over,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one attack. Percentiles are seconds of an honest Apply. ``not_applied``: honest reports that
    were refused or failed. ``log_bytes``: during the attack. ``answers``: what the attacker got."""

    rss_before_mb: float
    rss_peak_mb: float
    rss_after_mb: float
    quiet_s: dict[str, float]
    attacked_s: dict[str, float]
    not_applied: int
    failed_probes: int
    probes: int
    log_bytes: int
    answers: dict[str, int]
    has_crashed: bool


def measure_attack(name: str, phases: Phases, flags: tuple[str, ...] = ()) -> Figures:
    """Run one attack on a new server."""
    context = multiprocessing.get_context("spawn")
    with tempfile.NamedTemporaryFile() as log, server_process("--http-port=0", *flags, stderr=log) as (process, ready):
        ours, its = context.Pipe()
        attacker = context.Process(target=_attack, args=(name, ready["address"], ready["http_address"], its))
        attacker.start()
        ours.recv()
        honest, probing = Honest(ready["address"]), Probing(ready["http_address"])
        began_s = time.monotonic() + 1.0
        time.sleep(1.0 + phases.quiet_s)
        before_mb, written = machine.status_mb(process.pid, "VmRSS"), os.path.getsize(log.name)
        attacked_s = time.monotonic()
        ours.send("begin")
        time.sleep(phases.attack_s)
        ended_s, logged = time.monotonic(), os.path.getsize(log.name) - written
        ours.send("end")
        answers = ours.recv() if ours.poll(5.0) else {}
        attacker.kill()
        attacker.join()
        time.sleep(phases.after_s)
        peak_mb, after_mb = machine.status_mb(process.pid, "VmHWM"), machine.status_mb(process.pid, "VmRSS")
        has_crashed = process.poll() is not None
        honest.stop()
        probing.stop()
    during = [call for call in honest.calls if attacked_s <= call.due_s < ended_s]
    probes = [passed for asked_s, passed in probing.probes if attacked_s <= asked_s < ended_s]
    return Figures(
        before_mb,
        peak_mb,
        after_mb,
        _times([call for call in honest.calls if began_s <= call.due_s < attacked_s]),
        _times(during),
        sum(not call.is_applied for call in during),
        probes.count(False),
        len(probes),
        logged,
        answers,
        has_crashed,
    )


def _times(calls: list[Call]) -> dict[str, float]:
    waited_s = [call.answered_s - call.due_s for call in calls]
    return {
        "p50": float(np.percentile(waited_s, 50)),
        "p99": float(np.percentile(waited_s, 99)),
        "longest_call": max(call.answered_s - call.sent_s for call in calls),
    }


def measure(names: list[str], phases: Phases, flags: tuple[str, ...] = ()) -> dict[str, Any]:
    """Run attacks one after the other. Returns the figures of each by name, and what the whole run is judged by."""
    found: dict[str, Figures] = {}
    for name in names:
        print(f"{name} ...", file=sys.stderr, flush=True)
        found[name] = measure_attack(name, phases, flags)
        print(f"  {found[name].answers}", file=sys.stderr, flush=True)
    return {
        "by_attack": {name: asdict(figures) for name, figures in found.items()},
        "worst_p99_over_quiet": max(each.attacked_s["p99"] / each.quiet_s["p99"] for each in found.values()),
        "failed_probes": sum(each.failed_probes for each in found.values()),
        "crashes": sum(each.has_crashed for each in found.values()),
    }


def rows(figures: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return the table: its head, and a row for each attack."""
    head = (
        "attack",
        "RSS before, peak, after",
        "quiet: p50, p99, longest call",
        "attacked: p50, p99, longest call",
        "not applied",
        "failed probes",
        "log",
    )
    return [head, *(_row(name, each) for name, each in figures["by_attack"].items())]


def _row(name: str, figures: dict[str, Any]) -> tuple[str, ...]:
    return (
        name + (" CRASHED" if figures["has_crashed"] else ""),
        ", ".join(f"{figures[f'rss_{when}_mb']:,.0f}" for when in ("before", "peak", "after")) + " MB",
        *(", ".join(f"{figures[when][q] * 1e3:,.0f}" for q in ("p50", "p99", "longest_call")) + " ms"
          for when in ("quiet_s", "attacked_s")),
        str(figures["not_applied"]),
        f"{figures['failed_probes']} of {figures['probes']}",
        f"{figures['log_bytes'] / 1e3:,.0f} kB",
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="five seconds of each attack")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=list(ATTACKS), default=list(ATTACKS))
    parser.add_argument("--flag", action="append", default=[], help="an option of the server; may be repeated")
    options = parser.parse_args()
    phases = Phases(3.0, 5.0, 6.0) if options.quick else Phases()
    figures = measure(options.only, phases, tuple(options.flag))
    print(json.dumps({"machine": machine.describe(), "attacks": figures}, indent=2))
    for row in rows(figures):
        print(f"| {' | '.join(row)} |", file=sys.stderr)


if __name__ == "__main__":
    main()
