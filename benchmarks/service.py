"""Service: one server over loopback, as its callers see it.

Measures

- updates per second as they travel (4 a root: an init and three acks, each in a report of its own), with every outcome
  arriving at the source's callback;
- the time from the answer to a root's last ack until that callback, under an open load;
- the same mix through ``rivals``.

Reports are not folded first, because the client does that.

    python -m benchmarks.service [--quick]
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from acker_client.rpc.transport import GrpcTransport
from acker_protocol import ids
from acker_protocol.ids import Column
from acker_protocol.messages import (
    Apply,
    Entries,
    Identity,
    InitScope,
    Limits,
    Outcomes,
    Status,
    Verdict,
    Watch,
    WatchReply,
)
from acker_protocol.reports import digest
from benchmarks import machine, rivals

ACKS = 3
UPDATES_A_ROOT = 1 + ACKS
PENDING = 1_000_000
PENDING_REDIS = 262_144
# Entries per report: small, medium, and as many as the client packs into one message.
REPORTS = (4096, 32768, 61440)
SENDERS = 4
TIMEOUT_S = 60.0
LATENCY_UPDATES_PER_S = 4_000_000
LATENCY_ENTRIES = 4096
SESSION = 7

Floats = npt.NDArray[np.float64]


class ServiceLoad:
    """Trees cut into reports of ``entries`` entries, in the order in which they are sent. ``pending`` roots are open
    between a root's init and its acks, so that the ledger exceeds the processor's cache."""

    def __init__(self, chunks: int, entries: int, pending: int = PENDING) -> None:
        self.base, self.entries, self.roots = 1 << 40, entries, chunks * entries
        draw = np.random.default_rng(chunks)
        lag = min(chunks, max(1, pending // entries))
        parts = [self._chunk(chunk, draw) for chunk in range(chunks)]
        order = [(part, step) for step in range(UPDATES_A_ROOT) for part in range(chunks)]
        order.sort(key=lambda place: (place[0] + (lag if place[1] else 0), place[1] == 0, place[0], place[1]))
        self.plan = order
        self.columns = [(step == 0, *parts[part][step]) for part, step in order]

    def messages(self) -> list[Apply]:
        scope = InitScope(SESSION, 0)
        return [
            Apply(
                Identity(99, number, True),
                digest(Entries(roots, vals)),
                Entries(roots, vals),
                scope if is_init else None,
            )
            for number, (is_init, roots, vals) in enumerate(self.columns)
        ]

    def _chunk(self, chunk: int, draw: np.random.Generator) -> list[tuple[Column, Column]]:
        numbers = np.arange(chunk * self.entries, (chunk + 1) * self.entries, dtype=np.uint64)
        roots = ids.root_ids(self.base, numbers)
        roots = roots[np.argsort(ids.mix64_column(roots))]
        acks = [draw.integers(1, 1 << 63, self.entries, dtype=np.uint64) for _ in range(ACKS)]
        return [(roots, acks[0] ^ acks[1] ^ acks[2]), *((roots, ack) for ack in acks)]


class WatchingSource:
    """Watches from a thread of its own. The callback checks that every root is reported ACKED once, and notes when."""

    def __init__(self, address: str, load: ServiceLoad) -> None:
        self._transport = GrpcTransport(address)
        self._load = load
        self.told_s = np.zeros(load.roots)
        self.roots = 0
        self.watches = 0
        self._watch(0, 0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def join(self) -> None:
        self._thread.join()
        self._transport.close()
        if self.roots != self._load.roots:
            raise AssertionError(f"{self.roots} of {self._load.roots} roots were reported")

    def _run(self) -> None:
        cursor = 0
        while self.roots < self._load.roots:
            reply = self._watch(cursor, 1_000)
            cursor = reply.cursor
            if len(reply.outcomes):
                self.watches += 1
                self.callback(reply.outcomes)

    def callback(self, outcomes: Outcomes) -> None:
        now = time.monotonic()
        numbers = ids.numbers_of(self._load.base, outcomes.root_ids)
        if np.any(outcomes.verdicts != Verdict.ACKED) or np.any(self.told_s[numbers]):
            raise AssertionError("a root was not ACKED, or reported twice")
        self.told_s[numbers] = now
        self.roots += len(outcomes)

    def _watch(self, confirmed: int, wait_ms: int) -> WatchReply:
        watch = Watch("benchmark", SESSION, 600_000, Limits(), confirmed, wait_ms)
        return self._transport.watch(watch, TIMEOUT_S)


def send(address: str, messages: Sequence[Apply], due_s: Floats | None = None, senders: int = SENDERS) -> Floats:
    """Send each message once, when it is due, from ``senders`` threads over one channel. Return the answers' times."""
    transport = GrpcTransport(address)
    answered_s = np.zeros(len(messages))
    numbers = itertools.count()

    def work() -> None:
        while (number := next(numbers)) < len(messages):
            if due_s is not None:
                time.sleep(max(0.0, due_s[number] - time.monotonic()))
            reply = transport.apply(messages[number], TIMEOUT_S)
            answered_s[number] = time.monotonic()
            if reply.status != Status.APPLIED or len(reply.section_statuses):
                raise AssertionError(f"message {number}: {reply}")

    with ThreadPoolExecutor(senders) as pool:
        for sender in [pool.submit(work) for _ in range(senders)]:
            sender.result()
    transport.close()
    return answered_s


def throughput(load: ServiceLoad) -> dict[str, float]:
    """Measure one server and one client process, from the first report until the callback has the last outcome."""
    messages = load.messages()
    with server() as address:
        send(address, [])
        source = WatchingSource(address, load)
        started = time.monotonic()
        send(address, messages)
        source.join()
        elapsed = time.monotonic() - started
    return {
        "updates_per_s": load.roots * UPDATES_A_ROOT / elapsed,
        "outcomes_per_s": load.roots / elapsed,
        "outcomes_a_watch": load.roots / source.watches,
    }


def latency(seconds: float) -> dict[str, float]:
    """Measure an open loop: 4 M updates/s in reports of 4 k. Server, source and reporter are three processes."""
    reports_per_s = LATENCY_UPDATES_PER_S / LATENCY_ENTRIES
    load = ServiceLoad(int(seconds * reports_per_s / UPDATES_A_ROOT), LATENCY_ENTRIES)
    with server() as address:
        source = WatchingSource(address, load)
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            due_s, answered_s = pool.submit(_report, address, load.roots // LATENCY_ENTRIES, reports_per_s).result()
        source.join()
    answered_by_chunk = np.zeros(load.roots // LATENCY_ENTRIES)
    for (chunk, _), answer_s in zip(load.plan, answered_s, strict=True):
        answered_by_chunk[chunk] = max(answered_by_chunk[chunk], answer_s)
    waited_s = source.told_s - np.repeat(answered_by_chunk, LATENCY_ENTRIES)
    late_s = answered_s - due_s
    return {
        "offered_updates_per_s": LATENCY_UPDATES_PER_S,
        "updates_per_s": len(answered_s) * LATENCY_ENTRIES / (answered_s.max() - due_s[0]),
        **{f"latency_p{q}_s": float(np.percentile(waited_s, q)) for q in (50, 99)},
        "latency_max_s": float(waited_s.max()),
        **{f"answer_p{q}_s": float(np.percentile(late_s, q)) for q in (50, 99)},
    }


def _report(address: str, chunks: int, reports_per_s: float) -> tuple[Floats, Floats]:
    messages = ServiceLoad(chunks, LATENCY_ENTRIES).messages()
    due_s = time.monotonic() + 0.5 + np.arange(len(messages)) / reports_per_s
    return due_s, send(address, messages, due_s, senders=8)


@contextmanager
def server(*flags: str) -> Iterator[str]:
    """Run a server without HTTP as a process of its own, and yield its address."""
    with server_process("--http-port=off", "--log-level=warning", *flags) as (_, ready):
        yield str(ready["address"])


@contextmanager
def server_process(*flags: str, stderr: IO[bytes] | None = None) -> Iterator[tuple[subprocess.Popen[bytes], Any]]:
    """Run ``python -m acker_service`` as a process of its own, and yield it with the content of its ready file."""
    with tempfile.TemporaryDirectory() as folder:
        ready = Path(folder) / "ready.json"
        command = [sys.executable, "-m", "acker_service", "--port=0", "--ready-file", str(ready), *flags]
        with subprocess.Popen(command, stderr=stderr) as process:
            try:
                while not ready.exists():
                    if process.poll() is not None:
                        raise RuntimeError("the server did not start")
                    time.sleep(0.01)
                yield process, json.loads(ready.read_text())
            finally:
                process.terminate()


def measure(runs: int = 3, quick: bool = False) -> dict[str, Any]:
    """Return every figure, as medians over ``runs``. The rivals do less of the same mix, with fewer pending roots."""
    scale = 4 if quick else 1
    ours = {
        f"reports_of_{entries // 1024}k": _median(
            [throughput(ServiceLoad(8_388_608 // entries // scale, entries)) for _ in range(runs)]
        )
        for entries in REPORTS
    }
    best = max(figures["updates_per_s"] for figures in ours.values())
    return {
        "acker": ours,
        "open_loop": _median([latency(6.0 / scale) for _ in range(runs)]),
        "redis": _rival(best, [_redis(told=True, scale=scale) for _ in range(runs)]),
        "redis_expiry_untold": _rival(best, [_redis(told=False, scale=scale) for _ in range(runs)]),
        "per_record_grpc": _rival(best, [_per_record(scale) for _ in range(runs)]),
        "redis_version": rivals.redis_version(),
        "pending": PENDING,
        "pending_redis": PENDING_REDIS,
        "runs": runs,
    }


def _redis(*, told: bool, scale: int) -> float | None:
    return rivals.redis_updates_per_s(ServiceLoad(128 // scale, 4096, PENDING_REDIS).columns, told=told)


def _per_record(scale: int) -> float:
    return rivals.per_record_updates_per_s(ServiceLoad(4, 1024 // scale, pending=1024).columns)


def _rival(ours: float, rates: Sequence[float | None]) -> dict[str, float] | None:
    """Return the median of a rival and the acker's best figure over it; None if the rival is not installed."""
    known = [rate for rate in rates if rate is not None]
    return {"updates_per_s": (rate := statistics.median(known)), "times": ours / rate} if known else None


def rows(figures: dict[str, Any]) -> list[tuple[str, str]]:
    """Return (what, figure) for each row of the table."""
    loop = figures["open_loop"]
    waits = ", ".join(f"{loop[f'latency_{name}_s'] * 1e3:.1f} ms" for name in ("p50", "p99", "max"))
    redis = f"Redis {figures['redis_version']}, a call per batch"
    return [
        *((f"{name}: updates/s, outcomes/s", _rates(ours)) for name, ours in figures["acker"].items()),
        ("open loop at 4 M updates/s: p50, p99, max", waits),
        (f"{redis}: updates/s, times", _ratio(figures["redis"])),
        (f"{redis}, expiry untold", _ratio(figures["redis_expiry_untold"])),
        ("dict, a gRPC call per record", _ratio(figures["per_record_grpc"])),
    ]


def _rates(ours: dict[str, float]) -> str:
    return f"{ours['updates_per_s'] / 1e6:.1f} M, {ours['outcomes_per_s'] / 1e6:.2f} M"


def _ratio(rival: dict[str, float] | None) -> str:
    return "not installed" if rival is None else f"{rival['updates_per_s'] / 1e6:.3f} M, {rival['times']:.0f} x"


def _median(runs: list[dict[str, float]]) -> dict[str, float]:
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a quarter of the work, once")
    quick = parser.parse_args().quick
    figures = measure(1 if quick else 3, quick)
    print(json.dumps({"machine": machine.describe(), "service": figures}, indent=2))
    for what, figure in rows(figures):
        print(f"{what:<58} {figure}", file=sys.stderr)


if __name__ == "__main__":
    main()
