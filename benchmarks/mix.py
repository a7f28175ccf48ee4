"""Mix: drives a server as many programs do, with sources that come and go.

There are sources that emit, and sources that open held batches. There are acks, fails, timeouts and late acks, reports
that are sent twice, batches that are abandoned or never settled, outcomes that are read late, and sources that are
closed or left to expire.
"""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Callable, Iterator

import numpy as np

from acker_client.client import AckerClient
from acker_client.errors import AckerError
from acker_protocol import ids, reports
from acker_protocol.messages import ACK, FAIL, Entries, Identity, InitScope, Settlement

# In seconds. A server remembers reports and orphans for MEMORY_S by default.
STEP_S, LEASE_S, TIMEOUT_S, MEMORY_S = 10.0, 300.0, 120.0, 600.0
# How many sources a mix has at once.
SOURCES = 8
BATCH_ROOTS, REPORT_ROOTS, EMISSIONS = 2000, 500, 20

NewClient = Callable[[], AckerClient]


class Mix:
    """Sources that come and go. Each `step` lets each source do one thing. ``failed`` counts the sources that ended
    with an error, ``replayed`` the reports that were sent twice, and ``recounted`` those of them that the server no
    longer knew. ``lease_s``, ``timeout_s``: of its sources."""

    def __init__(
        self, new_client: NewClient, seed: int, lease_s: float = LEASE_S, timeout_s: float = TIMEOUT_S
    ) -> None:
        self._new_client, self._draw = new_client, random.Random(seed)
        self._lease_s, self._timeout_s = lease_s, timeout_s
        self._living: list[Iterator[None]] = []
        self._numbers = itertools.count()
        self.opened = self.replayed = self.recounted = self.failed = 0

    def step(self) -> None:
        while len(self._living) < SOURCES:
            self._living.append(self._live())
        for life in list(self._living):
            try:
                next(life)
            except StopIteration:
                self._living.remove(life)
            except AckerError as error:
                self._living.remove(life)
                self.failed += 1
                print(f"a source ended: {error}", file=sys.stderr)

    def _live(self) -> Iterator[None]:
        client, self.opened = self._new_client(), self.opened + 1
        try:
            name, session = f"source {next(self._numbers) % 20}", self._draw.getrandbits(62) + 1
            client.open_source(name, session=session, lease_s=self._lease_s, message_timeout_s=self._timeout_s)
            yield from self._open_batches(client, session) if self._is_drawn(0.5) else self._emit(client)
            # The others are left to expire.
            if self._is_drawn(0.6):
                client.close_source()
        finally:
            client.close()

    def _emit(self, client: AckerClient) -> Iterator[None]:
        late: list[tuple[int, int, int]] = []
        for round_ in range(self._draw.randint(5, 60)):
            for number in range(EMISSIONS):
                root, edge = client.emit()
                luck = self._draw.random()
                if luck < 0.7:
                    child = client.new_edge()
                    client.ack(root, edge, emitted=[child])
                    client.ack(root, child)
                elif luck < 0.85:
                    client.fail(root, f"record {number}: no such key")
                elif luck < 0.95:
                    # Acked after its timeout, so that its ack is an orphan.
                    late.append((round_ + 15, root, edge))
            while late and late[0][0] <= round_:
                client.ack(*late.pop(0)[1:])
            client.flush()
            yield
            self._read(client)

    def _open_batches(self, client: AckerClient, session: int) -> Iterator[None]:
        for number in range(1, self._draw.randint(2, 8)):
            first = self._draw.getrandbits(50) + 1
            pin = client.open_batch(number, first, BATCH_ROOTS, message_timeout_s=5 * self._timeout_s)
            with self._new_client() as task:
                for start in range(0, BATCH_ROOTS, REPORT_ROOTS):
                    # A part that no task reads is LOST.
                    if self._is_drawn(0.95):
                        numbers = np.arange(start, start + REPORT_ROOTS, dtype=np.uint64)
                        scope = InitScope(session, number, np.array([[start, start + REPORT_ROOTS]], np.uint64))
                        for entries, inits in self._entries(ids.root_ids(first, numbers), scope):
                            identity = Identity(self._draw.getrandbits(63), self._draw.getrandbits(63))
                            task.report_pinned(identity, entries, inits, (pin,))
                            yield
                            if self._is_drawn(0.2):
                                again = task.report_pinned(identity, entries, inits, (pin,))
                                self.replayed += 1
                                self.recounted += again.applied > 0
                    self._read(client)
            # Some drivers end before they settle.
            if self._is_drawn(0.05):
                return
            client.settle(number, Settlement.ABANDON if self._is_drawn(0.15) else Settlement.DONE)
            self._read(client)
            yield

    def _entries(self, roots: ids.Column, scope: InitScope) -> Iterator[tuple[Entries, InitScope | None]]:
        edges = ids.edge0_column(roots)
        yield reports.fold(roots, edges), scope
        # A tenth fails, and a tenth is not finished.
        kinds = np.full(len(roots), ACK, np.uint8)
        kinds[:50] = FAIL
        edges[50:100] += np.uint64(1)
        reasons = dict.fromkeys(roots[:50].tolist(), f"task {self._draw.randrange(1000)}: division by zero")
        yield reports.fold_updates(roots, edges, kinds, reasons), None

    def _read(self, client: AckerClient) -> None:
        """Read some outcomes now and then."""
        if self._is_drawn(0.4):
            client.watch(max_outcomes=self._draw.choice((100, 10_000)))

    def _is_drawn(self, chance: float) -> bool:
        return self._draw.random() < chance
