"""The daemon that forks Python workers: what it loads before the fork, and what it must not."""

from __future__ import annotations

import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest
from pyspark.sql import SparkSession

from acker_client.spark.daemon import acknowledge_at_once
from acker_client.spark.driver.session import DAEMON

LOADED = "from acker_client.spark import daemon; daemon.load(); import sys; print(*sys.modules)"


COUNTED = "import gc; print(len(gc.get_objects()), gc.get_freeze_count())"


@pytest.mark.slow
def test_the_garbage_collector_of_workers_does_not_visit_what_was_loaded_before_the_fork() -> None:
    run = subprocess.run(
        [sys.executable, "-c", f"from acker_client.spark import daemon; daemon.load(); {COUNTED}"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    visited, frozen = map(int, run.stdout.split())

    assert visited * 1000 < frozen


@pytest.mark.long
def test_grpc_is_not_loaded_before_the_fork_and_the_rest_is() -> None:
    run = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True, timeout=60)
    modules = set(run.stdout.split())

    assert {"pyarrow", "pandas", "pyspark.worker", "acker_client.spark.operators.operator"} <= modules
    assert "grpc" not in modules


@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="only Linux has this option")
def test_a_worker_acknowledges_a_task_at_once_although_it_has_just_sent_results() -> None:
    def acknowledges_at_once(connection: socket.socket, authenticated: bool) -> bool:
        return authenticated and bool(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK))

    daemon = SimpleNamespace(worker=acknowledges_at_once)
    acknowledge_at_once(daemon)
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.create_connection(listening.getsockname()) as jvm:
        worker, _ = listening.accept()
        with worker:
            for _ in range(4):
                jvm.sendall(b"task")
                worker.sendall(worker.recv(4))
                jvm.recv(4)
            assert not acknowledges_at_once(worker, True)
            assert daemon.worker(worker, True)
    for pair in socket.socketpair():
        with pair:
            assert not daemon.worker(pair, False)


def test_a_local_session_forks_its_workers_from_it(spark: SparkSession) -> None:
    assert spark.sparkContext.getConf().get("spark.python.daemon.module") == DAEMON
