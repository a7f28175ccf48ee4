"""Imports, forks and pickles of the client. Each test runs in an interpreter of its own."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

FORK = """
import os, pickle, sys
from acker_client import AckerClient, Verdict
from acker_client.client import shared_client
from acker_protocol import ids

address, uses_in_parent = sys.argv[1], sys.argv[2] == "used"
client = AckerClient(address)
root, edge = ids.root_id(1 << 40, 0), 5
if uses_in_parent:
    client.open_source("parent")
    root, edge = client.emit()
    client.flush()
    client.ack(root, 7)  # still buffered at the fork; only the parent may send it
    shared_client(client.settings).hello()

pid = os.fork()
if pid == 0:
    try:
        assert ("grpc" in sys.modules) == uses_in_parent
        client.ack(root, edge)
        client.flush()
        pickle.loads(pickle.dumps(client)).hello()
        shared_client(client.settings).hello()
        os._exit(0)
    except BaseException as error:
        print(repr(error), file=sys.stderr, flush=True)
        os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
if uses_in_parent:
    client.ack(root, 7)
    client.flush()
    watched = client.watch(10.0)
    assert watched.outcomes.verdicts.tolist() == [Verdict.ACKED], watched
"""


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def test_importing_the_client_loads_neither_grpc_nor_spark_nor_numba() -> None:
    script = (
        "import sys, acker_client; print(sorted({'grpc', 'pyspark', 'numba', 'google.protobuf'} & set(sys.modules)))"
    )
    assert run(script).stdout.strip() == "[]"


def test_a_client_made_before_a_fork_makes_its_channel_in_the_child(server: Any) -> None:
    finished = run(FORK, server.address, "unused")
    assert finished.returncode == 0, finished.stderr
    assert server.shard.stats.updates == 1


def test_a_client_used_before_a_fork_is_used_on_both_sides_of_it(server: Any) -> None:
    finished = run(FORK, server.address, "used")
    assert finished.returncode == 0, finished.stderr
