"""A simulation: a source and workers grow a forest of trees over bad networks. Checks each outcome against it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from acker_client import AckerClient, Anchor, Settings, Settlement, Verdict, WatchResult
from acker_client.errors import RETRYABLE
from acker_protocol import ids
from acker_protocol.messages import Identity, InitScope, Transport
from acker_protocol.reports import fold
from tests.faulty import FAULTS, FaultyTransport
from tests.trees import Forest, Update


class Simulation:
    """``connect`` returns a good transport to the server. Each call meets a fault with probability ``rate``.

    The first client is the source, and also a worker like the others.
    """

    def __init__(
        self,
        connect: Callable[[], Transport],
        seed: int,
        rate: float,
        *,
        faults: Sequence[str] = FAULTS,
        budget_s: float = 2.0,
        **options: Any,
    ) -> None:
        self.dice = random.Random(seed)
        self.rate = rate
        self.forest = Forest(self.dice, self.dice.randrange(1, ids.BASE_MAX))
        self.reported: dict[int, tuple[Verdict, str]] = {}
        self.networks: list[FaultyTransport] = []
        self._connect = connect
        self._faults = faults
        self._settings = Settings(("simulated",), budget_s=budget_s, buffer_entries=64)
        self._options = options
        self.workers = [self._client() for _ in range(3)]
        self.source = self.workers[0]
        self.session = self.dice.getrandbits(63) + 1
        self._again(lambda: self.source.open_source("simulated", session=self.session, message_timeout_s=None))

    def grow(self, numbers: range) -> None:
        """Plant a tree for each number, between random steps of the workers, until all trees are processed."""
        left = list(numbers)
        while left or self.forest.is_open:
            if left and (not self.forest.is_open or self.dice.random() < 0.3):
                left.pop()
                self.emit()
            else:
                self.step()
            if self.dice.random() < 0.15:
                self.flush(self.dice.choice(self.workers))
            if self.dice.random() < 0.05:
                self.watch()

    def emit(self) -> int:
        """Plant a tree under a root that the source emits."""
        root, edge = cast("Anchor", self._again(self.source.emit))
        _, edges = self.forest.plant(root)
        self._again(lambda: self.source.ack(root, edge, emitted=edges))
        return root

    def step(self) -> None:
        """Let a random worker process one record."""
        worker = self.dice.choice(self.workers)
        for update in self.forest.step():
            self._report(worker, update)

    def flush(self, client: AckerClient) -> None:
        """Flush until it succeeds. After a spent budget the next flush continues."""
        while True:
            try:
                return client.flush()
            except RETRYABLE:
                continue

    def watch(self, wait_s: float = 0.0) -> WatchResult:
        """Watch once. Assert one outcome a root: ACKED only if its tree was processed, FAILED only for a reason."""
        watched = self.source.watch(wait_s, max_outcomes=self.dice.choice([1, 7, 1_000_000]))
        for index, root in enumerate(watched.outcomes.root_ids.tolist()):
            verdict = Verdict(int(watched.outcomes.verdicts[index]))
            assert root not in self.reported, "an outcome was reported twice"
            self.reported[root] = (verdict, watched.outcomes.reason(index))
            if verdict == Verdict.FAILED:
                assert root in self.forest.failed or self.reported[root][1] == "unfinished"
            if verdict == Verdict.ACKED:
                assert self.forest.is_done(root), "a false ACK"
                assert root not in self.forest.failed, "ACKED, though it was failed"
        return watched

    def finish(self) -> None:
        """Flush everything and watch until every tree has its outcome."""
        for worker in self.workers:
            self.flush(worker)
        for _ in range(2000):
            if len(self.reported) >= len(self.forest.started):
                break
            self.watch(0.05)

    def expected(self) -> dict[int, Verdict]:
        """Return the verdict that each root of a fully processed forest must get, if no server loses its state."""
        failed = self.forest.failed
        return {root: Verdict.FAILED if root in failed else Verdict.ACKED for root in self.forest.started}

    def verdicts(self) -> dict[int, Verdict]:
        """Return the reported verdict of each root."""
        return {root: verdict for root, (verdict, _) in self.reported.items()}

    def await_lost(self, roots: set[int]) -> None:
        """Watch until the server answers and all ``roots`` are reported. Assert that they are LOST.

        Roots emitted before the source learns of the lost state are LOST too."""
        while not (self.watch(0.1).answered and roots <= self.reported.keys()):
            pass
        assert {self.reported[root][0] for root in roots} <= {Verdict.LOST}

    @property
    def faults(self) -> dict[str, int]:
        """Return the number of calls that met each fault."""
        return {name: sum(network.seen[name] for network in self.networks) for name in self.networks[0].seen}

    def close(self) -> None:
        for worker in self.workers:
            worker.close()

    def open_batch(self, number: int, size: int) -> None:
        """Open a held batch of ``size`` numbers that start at ``number * 1000``."""
        self._again(lambda: self.source.open_batch(number, self.forest.base + number * 1000, size))

    def read(self, number: int, start: int, stop: int) -> None:
        """Run a read task: plant the trees of numbers [start, stop) of a batch, and report them with that range."""
        numbers = (self.forest.base + number * 1000 + i for i in range(start, stop))
        planted = [self.forest.plant(ids.root_id(0, each)) for each in numbers]
        rows = [(root, edge) for root, edges in planted for edge in [*edges, 0]]
        entries = fold(np.array([row[0] for row in rows], np.uint64), np.array([row[1] for row in rows], np.uint64))
        scope = InitScope(self.session, number, np.array([[start, stop]], np.uint64))
        identity = Identity(number, self.dice.getrandbits(64))
        self._again(lambda: self.dice.choice(self.workers).report(identity, entries, scope))

    def settle(self, number: int, settlement: Settlement) -> None:
        """Settle, watch for every outcome of the batch, and check each against the forest at the time of settling."""
        expected = {
            root: self._expected_at(root, settlement) for root in self.forest.started if root not in self.reported
        }
        known = set(self.reported)
        self._again(lambda: self.source.settle(number, settlement))
        while number not in self.watch(0.05).settled:
            pass
        assert {root: self.reported[root] for root in expected} == expected
        assert {self.reported[root][0] for root in self.reported.keys() - known - expected.keys()} <= {Verdict.LOST}

    def unread(self) -> int:
        """Return the number of reported roots that were never planted."""
        return len(self.reported.keys() - self.forest.started.keys())

    def _expected_at(self, root: int, settlement: Settlement) -> tuple[Verdict, str]:
        if root in self.forest.failed:
            return Verdict.FAILED, "said so"
        if settlement == Settlement.ABANDON:
            return Verdict.LOST, "abandoned"
        return (Verdict.ACKED, "") if self.forest.is_done(root) else (Verdict.FAILED, "unfinished")

    def _report(self, worker: AckerClient, update: Update) -> None:
        if update.fails:
            worker.fail(update.root, "said so", edge=update.edge)
        else:
            worker.ack(update.root, update.edge, update.emitted)

    def _again(self, call: Callable[[], Any]) -> Any:
        while True:
            try:
                return call()
            except RETRYABLE:
                continue

    def _client(self) -> AckerClient:
        def connect(address: str) -> Transport:
            network = FaultyTransport(self._connect(), self.dice, self.rate, self._faults)
            self.networks.append(network)
            return network

        return AckerClient(self._settings, connect=connect, random=self.dice.random, **self._options)
