"""Load: reports, watches, probes and scrapes that continue while the server restarts."""

from __future__ import annotations

import contextlib
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from functools import partial
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from acker_protocol.messages import Status, Verdict, WatchReply
from tests.service.caller import Caller, acks, inits, roots_of

ROOTS_A_REPORT = 50
# Pause after a failed call: a restarting server needs the processor.
PAUSE_S = 0.02


class Load:
    """Load that runs until ``stop``, through restarts of the server at ``address``. Every root must end ACKED."""

    def __init__(self, address: str, http_address: Callable[[], str | None]) -> None:
        self._address, self._http_address = address, http_address
        self._stopping = threading.Event()
        self._failures: list[BaseException] = []
        self.generations: set[int] = set()
        self.registrations = self.reports = self.probes = 0
        self._sent: set[int] = set()
        self._told: dict[int, int] = {}
        with Caller(address) as caller:
            self._cursor = 0
            self._hear(caller.watch())
        jobs = [self._report, self._watch, self._check, *[self._probe] * 4]
        self._threads = [threading.Thread(target=self._guarded, args=(job,)) for job in jobs]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop, and wait until every root has its outcome."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        if self._failures:
            raise self._failures[0]
        with Caller(self._address) as caller:
            while len(self._told) < len(self._sent):
                self._hear(caller.watch(confirmed=self._cursor, wait_ms=20_000))
        assert self._told.keys() == self._sent
        assert set(self._told.values()) <= {Verdict.ACKED}

    def _guarded(self, job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:  # noqa: BLE001  # raised by stop
            self._failures.append(error)

    def _report(self) -> None:
        """Init some roots and ack them, again and again; retry calls that got no answer."""
        with Caller(self._address) as caller:
            number = 0
            while not self._stopping.is_set():
                roots = roots_of(range(number * ROOTS_A_REPORT, (number + 1) * ROOTS_A_REPORT))
                self._sent |= set(roots.tolist())
                for message in (inits(roots, 2 * number), acks(roots, 2 * number + 1)):
                    status = self._until_answered(partial(caller.apply, message)).status
                    assert status in (Status.APPLIED, Status.DUPLICATE)
                number += 1
                self.reports += 2

    def _watch(self) -> None:
        with Caller(self._address) as caller:
            while not self._stopping.is_set():
                self._hear(self._until_answered(lambda: caller.watch(confirmed=self._cursor, wait_ms=1_000)))

    def _hear(self, reply: WatchReply) -> None:
        assert reply.status == Status.APPLIED
        self.registrations += reply.is_new
        self.generations.add(reply.generation)
        self._told |= dict(zip(reply.outcomes.root_ids.tolist(), reply.outcomes.verdicts.tolist(), strict=True))
        self._cursor = reply.cursor

    def _check(self) -> None:
        with Caller(self._address) as caller:
            stub = health_pb2_grpc.HealthStub(caller.channel)
            while not self._stopping.is_set():
                with contextlib.suppress(grpc.RpcError):
                    stub.Check(health_pb2.HealthCheckRequest(), timeout=5)
                    continue
                self._stopping.wait(PAUSE_S)

    def _probe(self) -> None:
        while not self._stopping.is_set():
            for path in ("/readyz", "/metrics", "/livez"):
                with contextlib.suppress(OSError, urllib.error.URLError):
                    urllib.request.urlopen(f"http://{self._http_address()}{path}", timeout=5).read()
                    self.probes += 1
                    continue
                self._stopping.wait(PAUSE_S)

    def _until_answered(self, call: Callable[[], Any]) -> Any:
        while True:
            try:
                return call()
            except grpc.RpcError as error:
                if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
                    raise
                self._stopping.wait(PAUSE_S)
