"""Faults of a single server: it is restarted, killed or paused, and a client without Spark checks the outcomes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from acker_client import AckerClient, Settings, Verdict
from acker_client.errors import Unavailable
from acker_client.rpc.transport import GrpcTransport

TREES = 200


class Load:
    """A source that works through trees (an init, a child, two acks) in a thread, while the test restarts or kills the
    server."""

    def __init__(self, address: str, **options: Any) -> None:
        self.client = AckerClient(Settings((address,), **options))
        self.client.open_source("load", lease_s=600.0, message_timeout_s=None)
        self.acked: set[int] = set()
        self.finished: set[int] = set()
        self.lost: set[int] = set()
        self._quarter = threading.Event()

    def run(self) -> set[int]:
        """Work through trees, and flush after each step. Returns their roots."""
        roots = set[int]()
        for number in range(TREES):
            root, edge = self.client.emit()
            roots.add(root)
            self.client.flush()
            child = self.client.new_edge()
            self.client.ack(root, edge, emitted=[child])
            self.client.flush()
            # Must come before the last ack: afterwards a watch may report the root as ACKED.
            self.finished.add(root)
            self.client.ack(root, child)
            self.client.flush()
            if number == TREES // 4:
                self._quarter.set()
        return roots

    def await_quarter(self) -> None:
        """Wait until a quarter of the trees are done."""
        assert self._quarter.wait(60.0)

    def hear(self) -> None:
        """Watch once. Assert that no root gets a second outcome, and that only finished roots are ACKED."""
        for outcome in self.client.watch(0.05).outcomes:
            root = outcome.root_id
            assert root not in self.acked | self.lost, "told twice"
            assert outcome.verdict == Verdict.LOST or root in self.finished, "a false ACK"
            {Verdict.ACKED: self.acked, Verdict.LOST: self.lost}[outcome.verdict].add(root)


@pytest.mark.long
def test_a_planned_restart_under_load_costs_no_replay(server_process: Callable[..., Any], tmp_path: Any) -> None:
    server = server_process(f"--state-dir={tmp_path}")
    load = Load(server.address)
    with ThreadPoolExecutor(1) as threads:
        work = threads.submit(load.run)
        load.await_quarter()
        load.hear()
        server.restart()
        work.result(60.0)
    while len(load.acked) < TREES:
        load.hear()
        assert not load.lost
    load.client.close()


@pytest.mark.long
def test_after_a_kill_under_load_each_tree_is_acked_or_lost_and_the_replay_is_acked(
    server_process: Callable[..., Any],
) -> None:
    server = server_process()
    load = Load(server.address)
    with ThreadPoolExecutor(1) as threads:
        work = threads.submit(load.run)
        load.await_quarter()
        load.hear()
        server.restart(kill=True)
        emitted = work.result(60.0)
    while not emitted <= load.acked | load.lost:
        load.hear()
    assert load.lost
    replayed = load.run()
    while not replayed <= load.acked:
        load.hear()
    load.client.close()


@pytest.mark.long
def test_a_server_that_was_paused_counts_a_retried_report_once(server_process: Callable[..., Any]) -> None:
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
    root, edge = client.emit()
    client.flush()
    server.pause()
    client.ack(root, edge)
    with ThreadPoolExecutor(1) as threads:
        flushed = threads.submit(client.flush)
        assert gave_up.wait(60.0)
        server.resume()
        flushed.result(60.0)
    watched = client.watch(10.0)
    assert watched.outcomes.verdicts.tolist() == [Verdict.ACKED]
    client.close()
