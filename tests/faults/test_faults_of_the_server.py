"""A server of its own that is restarted, killed and stopped under load, and what a plain client makes of it."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from acker_client import AckerClient, Settings, Verdict
from acker_client.errors import Unavailable
from acker_client.members.transport import GrpcTransport
from acker_protocol import ids

TREES = 200
BASE = 1 << 40


class Load:
    """A source whose trees (an init, a child, two acks) go on in a thread while the server suffers."""

    def __init__(self, address: str, **options: Any) -> None:
        self.client = AckerClient(Settings((address,), **options))
        self.client.open_source("load", lease_s=600.0, message_timeout_s=None)
        self.acked: set[int] = set()
        self.finished: set[int] = set()
        self.times_lost = 0
        self._half = threading.Event()

    def run(self, first: int) -> None:
        """Work through trees from ``first`` on, each step a flush of its own."""
        dice = random.Random(first)
        for number in range(first, first + TREES):
            root, child = ids.root_id(BASE, number), dice.getrandbits(64)
            self.client.init(root, ids.edge0(root))
            self.client.flush()
            self.client.ack(root, ids.edge0(root), emitted=[child])
            self.client.flush()
            self.finished.add(root)  # before it can be ACKED: the account of what was processed
            self.client.ack(root, child)
            self.client.flush()
            if number - first == TREES // 4:
                self._half.set()

    def await_half(self) -> None:
        """Until the work is well on its way."""
        assert self._half.wait(60.0)

    def hear(self) -> None:
        """Watch once; every ACK must be of a tree that was processed to its end, and come once."""
        watched = self.client.watch(0.05)
        self.times_lost += watched.generation_changed
        assert set(watched.outcomes.verdicts.tolist()) <= {Verdict.ACKED}
        roots = set(watched.outcomes.root_ids.tolist())
        assert roots <= self.finished, "a false ACK"
        assert not roots & self.acked, "told twice"
        self.acked |= roots


def test_a_planned_restart_under_load_costs_no_replay(server_process: Callable[..., Any], tmp_path: Any) -> None:
    server = server_process(f"--state-dir={tmp_path}")
    load = Load(server.address)
    with ThreadPoolExecutor(1) as threads:
        work = threads.submit(load.run, 0)
        load.await_half()
        load.hear()
        server.restart()
        work.result(60.0)
    while len(load.acked) < TREES:
        load.hear()
        assert not load.times_lost
    load.client.close()


def test_a_kill_under_load_is_told_and_the_replay_is_acked(server_process: Callable[..., Any]) -> None:
    server = server_process()
    load = Load(server.address)
    with ThreadPoolExecutor(1) as threads:
        work = threads.submit(load.run, 0)
        load.await_half()
        load.hear()
        server.restart(kill=True)
        work.result(60.0)
    while not load.times_lost:
        load.hear()
    replayed = {ids.root_id(BASE, number) for number in range(TREES, 2 * TREES)}
    load.run(TREES)
    while not replayed <= load.acked:
        load.hear()
    assert load.times_lost == 1
    load.client.close()


def test_a_server_that_is_stopped_and_goes_on_counts_each_report_once(server_process: Callable[..., Any]) -> None:
    server = server_process()
    gave_up = threading.Event()

    class Impatient(GrpcTransport):
        def apply(self, message: Any, timeout_s: float) -> Any:
            try:
                return super().apply(message, timeout_s)
            except Unavailable:
                gave_up.set()
                raise

    settings = Settings((server.address,), call_timeout_s=0.2)
    client = AckerClient(settings, connect=Impatient)
    client.open_source("impatient")
    root = ids.root_id(BASE, 0)
    client.init(root, 5)
    client.flush()
    server.pause()
    client.ack(root, 5)
    with ThreadPoolExecutor(1) as threads:
        flushed = threads.submit(client.flush)
        assert gave_up.wait(60.0)
        server.resume()
        flushed.result(60.0)
    watched = client.watch(10.0)
    assert watched.outcomes.verdicts.tolist() == [Verdict.ACKED]
    client.close()
